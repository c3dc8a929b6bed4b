/* Which of the threads that read from /dev/fuse get requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "mounted.h"

#define THREADS 64

static long cpus;

long __real_sysconf(int name);
long __wrap_sysconf(int name);

long __wrap_sysconf(int name) { return name == _SC_NPROCESSORS_ONLN ? cpus : __real_sysconf(name); }

static void start(struct mounted *m, long with_cpus)
{
	static const struct mountpoint_flags plain = { 0 };

	cpus = with_cpus;
	mounted_new(m, 0);
	if (mounted_start(m, &plain, 0))
		fail_msg("cannot mount: %s", m->why);
	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
}

static void stop(struct mounted *m)
{
	assert_int_equal(mounted_stop(m), 0);
	mounted_free(m);
}

/* Each of them is one request. */
static void ask(const struct mounted *m, int turn, int count)
{
	struct stat st;
	char name[48];

	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "dir/none%d.%d", turn, i);
		assert_int_equal(stat(at(m, name), &st), -1);
	}
}

/* A thread that was busy a moment ago gets the next one, too: with all of them in turn each would run an eighth of the time. */
static void quick_requests_keep_to_few_threads(void **state)
{
	unsigned long before[THREADS], after[THREADS], most = 0, all = 0;
	struct mounted m;
	unsigned count;

#ifdef __SANITIZE_THREAD__
	skip(); /* no request is quick */
#endif
	start(&m, 2);
	count = mounted_ran_ns(&m, before, THREADS);
	ask(&m, 0, 4000);
	assert_true(mounted_ran_ns(&m, after, THREADS) >= count);
	for (unsigned i = 0; i < count; i++) {
		all += after[i] - before[i];
		most = after[i] - before[i] > most ? after[i] - before[i] : most;
	}
	assert_true(all > 0);
	if (most < all / 6)
		fail_msg("of %lu ns no thread ran more than %lu", all, most);
	stop(&m);
}

/* Also after one was enough for a while. */
static void many_who_ask_have_many_readers(void **state)
{
	enum { CHILDREN = 8, READERS = 4 };
	unsigned long before[THREADS], after[THREADS];
	pid_t children[CHILDREN];
	unsigned count, ran = 0;
	struct mounted m;
	int status;

	start(&m, 16);
	ask(&m, 0, 4000);
	count = mounted_ran_ns(&m, before, THREADS);
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		if (!children[i]) {
			ask(&m, i + 1, 4000);
			_exit(0);
		}
	}
	for (int i = 0; i < CHILDREN; i++) {
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(status, 0);
	}
	assert_true(mounted_ran_ns(&m, after, THREADS) >= count);
	for (unsigned i = 0; i < count; i++)
		ran += after[i] - before[i] > NS_PER_MS;
	if (ran < READERS)
		fail_msg("only %u threads did anything", ran);
	stop(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quick_requests_keep_to_few_threads),
		cmocka_unit_test(many_who_ask_have_many_readers),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
