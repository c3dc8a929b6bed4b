#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "server/process.h"

/* Both ends are this process's. */
static void me(struct process *p)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	process_of_peer(pair[0], p);
	close(pair[0]);
	close(pair[1]);
}

static void a_process_that_lives_is_found_again(void **state)
{
	struct process p;
	int fd;

	me(&p);
	if (!p.boot[0])
		skip(); /* in a container there is nothing to be said */
	assert_int_equal(p.pid, getpid());
	fd = process_find(&p);
	assert_true(fd >= 0);
	close(fd);
}

static void another_process_with_its_number_is_not_it(void **state)
{
	struct process p;

	me(&p);
	if (!p.boot[0])
		skip();
	p.started++;
	assert_int_equal(process_find(&p), -ESRCH);
}

static void it_does_not_outlive_the_machine(void **state)
{
	struct process p;

	me(&p);
	if (!p.boot[0])
		skip();
	p.boot[0] = p.boot[0] == '0' ? '1' : '0';
	assert_int_equal(process_find(&p), -ESRCH);
}

static void one_that_has_ended_is_not_found(void **state)
{
	struct process p;
	pid_t child;

	me(&p);
	if (!p.boot[0])
		skip();
	child = fork();
	assert_true(child >= 0);
	if (!child)
		_exit(0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	p.pid = (uint32_t)child;
	assert_int_equal(process_find(&p), -ESRCH);
}

static void of_one_that_was_never_described_nothing_is_said(void **state)
{
	struct process p = { .pid = 1 };

	assert_int_equal(process_find(&p), -ENOTSUP);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_process_that_lives_is_found_again),
		cmocka_unit_test(another_process_with_its_number_is_not_it),
		cmocka_unit_test(it_does_not_outlive_the_machine),
		cmocka_unit_test(one_that_has_ended_is_not_found),
		cmocka_unit_test(of_one_that_was_never_described_nothing_is_said),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
