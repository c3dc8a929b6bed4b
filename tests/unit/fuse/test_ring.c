/* What only a mount whose requests come by io_uring has to get right: slots that run out. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "mounted.h"

#define KEPT_MOST 1024 /* in one queue; RING_KEPT_MOST */

static int setup(void **state)
{
	static struct mounted m;

	mounted_new(&m, 0);
	if (mounted_start(&m, &(struct mountpoint_flags){ 0 }, 0))
		fail_msg("%s", m.why);
	*state = &m;
	return 0;
}

static int teardown(void **state)
{
	struct mounted *m = *state;

	assert_int_equal(mounted_stop(m), 0);
	mounted_free(m);
	return 0;
}

static void file_make(struct mounted *m, const char *name)
{
	int fd = open(at(m, name), O_CREAT | O_RDWR, 0644);

	assert_true(fd >= 0);
	assert_int_equal(close(fd), 0);
}

/* All requests of this process, and those it starts, go to one queue. */
static void to_one_cpu(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	assert_int_equal(sched_setaffinity(0, sizeof(set), &set), 0);
}

static int exit_of(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void the_mount_tells_how_requests_reach_it(void **state)
{
	struct mounted *m = *state;
	char text[32] = "";

	assert_int_equal(getxattr(m->directory, MOUNT_TRANSPORT_XATTR, text, sizeof(text) - 1), 8);
	assert_string_equal(text, "io_uring");
}

/* One process that waits at many descriptors would need as many threads; so these are processes. */
static pid_t lock_in_child(struct mounted *m)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child) {
		int fd = open(at(m, "f"), O_RDWR);

		alarm(500); /* making all of them takes long on a busy machine, with ThreadSanitizer */
		_exit(fd < 0 ? 99 : flock(fd, LOCK_SH) ? errno : 0);
	}
	return child;
}

static void so_many_wait_for_a_lock_that_one_is_refused_and_the_unlock_comes_through(void **state)
{
	static pid_t children[KEPT_MOST];
	struct mounted *m = *state;
	struct stat st;
	int fd;

	to_one_cpu();
	file_make(m, "f");
	fd = open(at(m, "f"), O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	for (int i = 0; i < KEPT_MOST; i++)
		children[i] = lock_in_child(m);
	wait_for("all of them to wait", &m->control->waits, KEPT_MOST);
	assert_int_equal(exit_of(lock_in_child(m)), ENOLCK);
	assert_int_equal(stat(at(m, "f"), &st), 0);
	assert_int_equal(flock(fd, LOCK_UN), 0);
	for (int i = 0; i < KEPT_MOST; i++)
		assert_int_equal(exit_of(children[i]), 0);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	close(fd);
}

/* While the mount's process stands still, more requests come than there are slots.  Those that the kernel has queued must come
 * through, though all before them go on waiting and no other request follows. */
static void requests_that_found_no_slot_are_served_when_there_are_new_ones(void **state)
{
	enum { MANY = 250 };
	static pid_t children[MANY];
	struct mounted *m = *state;
	int fd;

	to_one_cpu();
	file_make(m, "f");
	fd = open(at(m, "f"), O_RDWR);
	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
	atomic_store(&m->control->stall, true);
	assert_int_equal(kill(m->daemon, SIGSTOP), 0);
	for (int i = 0; i < MANY; i++) {
		children[i] = fork();
		if (!children[i]) {
			char name[32];
			struct stat st;

			snprintf(name, sizeof(name), "dir/stall%d", i);
			_exit(stat(at(m, name), &st) ? errno : 0);
		}
	}
	usleep(300000); /* nothing can be waited for here, as nobody serves; it only makes the case harder */
	assert_int_equal(kill(m->daemon, SIGCONT), 0);
	wait_for("stalled", &m->control->stalled, MANY);
	atomic_store(&m->control->stall, false);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(exit_of(children[i]), ENOENT);
	close(fd);
}

static void handler_of_nothing(int signal) {}

static void wait_for_request(pid_t child)
{
	char path[64], text[64];

	snprintf(path, sizeof(path), "/proc/%d/wchan", (int)child);
	for (;;) {
		int fd = open(path, O_RDONLY);
		ssize_t n = read(fd, text, sizeof(text) - 1);

		close(fd);
		text[n > 0 ? n : 0] = 0;
		if (strstr(text, "request_wait_answer"))
			return;
		usleep(1000);
	}
}

/* The kernel itself loses it. */
static void a_signal_that_comes_before_the_request_is_delivered_ends_the_wait_for_a_lock(void **state)
{
	struct sigaction nothing = { .sa_handler = handler_of_nothing };
	struct mounted *m = *state;
	int fd, opened[2], stopped[2], status;
	char byte;
	pid_t child;

	file_make(m, "f");
	fd = open(at(m, "f"), O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(pipe(opened) | pipe(stopped), 0);
	child = fork();
	if (!child) {
		int mine = open(at(m, "f"), O_RDWR);

		alarm(100);
		sigaction(SIGUSR1, &nothing, NULL);
		if (mine < 0 || write(opened[1], "x", 1) != 1 || read(stopped[0], &byte, 1) != 1)
			_exit(99);
		_exit(flock(mine, LOCK_EX) ? errno : 0);
	}
	assert_int_equal(read(opened[0], &byte, 1), 1);
	assert_int_equal(kill(m->daemon, SIGSTOP), 0);
	assert_int_equal(waitpid(m->daemon, &status, WUNTRACED), m->daemon);
	assert_int_equal(write(stopped[1], "x", 1), 1);
	wait_for_request(child);
	assert_int_equal(kill(child, SIGUSR1), 0);
	assert_int_equal(kill(m->daemon, SIGCONT), 0);
	assert_int_equal(exit_of(child), EINTR);
	for (int i = 0; i < 2; i++) {
		close(opened[i]);
		close(stopped[i]);
	}
	close(fd);
}

static void killed_before_anybody_begins_with_its_request(void **state)
{
	struct mounted *m = *state;

	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
	atomic_store(&m->control->stall, true);
	for (unsigned i = 0; i < 100; i++) {
		pid_t child = fork();

		if (!child) {
			char name[32];
			struct stat st;

			snprintf(name, sizeof(name), "dir/stall%u", i);
			_exit(stat(at(m, name), &st) ? errno : 0);
		}
		usleep(i * 10);
		assert_int_equal(kill(child, SIGKILL), 0);
		assert_int_equal(exit_of(child), 128 + SIGKILL);
	}
	atomic_store(&m->control->stall, false);
}

static void burst(struct mounted *m, unsigned count)
{
	pid_t children[64];
	struct stat st;
	char name[32];

	atomic_store(&m->control->stall, true);
	for (unsigned i = 0; i < count; i++) {
		children[i] = fork();
		if (!children[i]) {
			snprintf(name, sizeof(name), "dir/stall%u", i);
			_exit(stat(at(m, name), &st) ? errno : 0);
		}
	}
	wait_for("stalled", &m->control->stalled, count);
	atomic_store(&m->control->stall, false);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(exit_of(children[i]), ENOENT);
}

/* When one request comes after the other again, each shall be answered by a worker it comes to; by way of the attendant it takes three
 * sleeps.  However many came at a time before, and however often that was. */
static void after_bursts_requests_come_straight_to_workers_again(void **state)
{
	enum { BURSTS = 16, BURST = 40, REQUESTS = 200 };
	struct mounted *m = *state;
	unsigned long before, sleeps = 0;
	struct stat st;
	char name[32];

	to_one_cpu();
	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
	for (int k = 0; k < BURSTS; k++) {
		burst(m, BURST);
		before = mounted_sleeps(m);
		for (int i = 0; i < REQUESTS; i++) {
			snprintf(name, sizeof(name), "dir/none%d.%d", k, i);
			assert_int_equal(stat(at(m, name), &st), -1);
		}
		sleeps = mounted_sleeps(m) - before;
	}
	if (sleeps > 2 * REQUESTS)
		fail_msg("%d requests made threads sleep %lu times", REQUESTS, sleeps);
}

/* Between bursts one request comes after the other, for so long that whatever is decided by the second is decided. */
static unsigned threads_after(struct mounted *m, unsigned bursts)
{
	static unsigned long ran_ns[1024];
	struct stat st;

	for (unsigned k = 0; k < bursts; k++) {
		burst(m, 60 - k % 3 * 10);
		for (int64_t until = clock_steady_ns() + 1200 * NS_PER_MS; clock_steady_ns() < until; usleep(10000))
			assert_int_equal(stat(at(m, "dir/none"), &st), -1);
	}
	return mounted_ran_ns(m, ran_ns, 1024);
}

static void there_are_no_more_threads_after_many_bursts_than_after_some(void **state)
{
	struct mounted *m = *state;
	unsigned some, many;

	to_one_cpu();
	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
	some = threads_after(m, 2);
	many = threads_after(m, 6);
	if (many > some + 4)
		fail_msg("%u threads became %u", some, many);
}

static void a_mount_that_is_killed_leaves_nobody_waiting(void **state)
{
	struct mounted m;
	pid_t child;

	mounted_new(&m, 0);
	assert_int_equal(mounted_start(&m, &(struct mountpoint_flags){ 0 }, 0), 0);
	atomic_store(&m.control->stall, true);
	child = fork();
	if (!child) {
		struct stat st;

		_exit(stat(at(&m, "stall"), &st) ? errno : 0);
	}
	wait_for("stalled", &m.control->stalled, 1);
	assert_int_equal(kill(m.daemon, SIGKILL), 0);
	assert_int_equal(mounted_wait(&m), 128 + SIGKILL);
	assert_int_equal(exit_of(child), ECONNABORTED);
	assert_int_equal(mounted_start(&m, &(struct mountpoint_flags){ 0 }, 0), 0);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_mount_tells_how_requests_reach_it, setup, teardown),
		cmocka_unit_test_setup_teardown(killed_before_anybody_begins_with_its_request, setup, teardown),
		cmocka_unit_test_setup_teardown(a_signal_that_comes_before_the_request_is_delivered_ends_the_wait_for_a_lock,
						setup, teardown),
		cmocka_unit_test_setup_teardown(after_bursts_requests_come_straight_to_workers_again, setup, teardown),
		cmocka_unit_test_setup_teardown(there_are_no_more_threads_after_many_bursts_than_after_some, setup, teardown),
		cmocka_unit_test(a_mount_that_is_killed_leaves_nobody_waiting),
		cmocka_unit_test_setup_teardown(requests_that_found_no_slot_are_served_when_there_are_new_ones, setup, teardown),
		cmocka_unit_test_setup_teardown(so_many_wait_for_a_lock_that_one_is_refused_and_the_unlock_comes_through, setup,
						teardown),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
