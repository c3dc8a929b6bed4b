/* How a mount begins, ends, and behaves while its server does not answer. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "fuse/mount.h"
#include "fuse/mountinfo.h"
#include "mounted.h"

#define USER 65534 /* nobody: fusermount3 wants a user it knows */

static const struct mountpoint_flags plain = { 0 };

static void start(struct mounted *m, const struct mountpoint_flags *flags, uid_t uid)
{
	mounted_new(m, uid);
	if (mounted_start(m, flags, uid))
		fail_msg("cannot mount: %s", m->why);
}

static void write_file(const struct mounted *m, const char *name)
{
	int fd = open(at(m, name), O_CREAT | O_WRONLY, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "data", 4), 4);
	assert_int_equal(close(fd), 0);
}

static bool is_mounted(const struct mounted *m)
{
	struct mountinfo info;

	return !mountinfo_find(m->directory, &info);
}

static void a_signal_unmounts_stores_and_ends(void **state)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP };

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		struct mounted m;

		start(&m, &plain, 0);
		assert_true(is_mounted(&m));
		write_file(&m, "file");
		assert_int_equal(kill(m.daemon, signals[i]), 0);
		assert_int_equal(mounted_wait(&m), 0);
		assert_int_equal(atomic_load(&m.control->disconnects), 1);
		assert_false(is_mounted(&m));
		mounted_free(&m);
	}
}

static void a_signal_also_ends_a_mount_that_is_in_use(void **state)
{
	struct mounted m;
	char byte;
	int fd;

	start(&m, &plain, 0);
	write_file(&m, "file");
	fd = open(at(&m, "file"), O_RDONLY | O_DIRECT);
	assert_true(fd >= 0);
	assert_int_equal(mounted_stop(&m), 0);
	assert_int_equal(atomic_load(&m.control->disconnects), 1);
	assert_int_equal(atomic_load(&m.control->opens), atomic_load(&m.control->releases));
	assert_false(is_mounted(&m));
	assert_int_equal(pread(fd, &byte, 1, 0), -1);
	close(fd);
	mounted_free(&m);
}

static void unmounting_by_others_ends_the_process(void **state)
{
	struct mounted m;

	start(&m, &plain, 0);
	write_file(&m, "file");
	assert_int_equal(umount2(m.directory, 0), 0);
	assert_int_equal(mounted_wait(&m), 0);
	assert_int_equal(atomic_load(&m.control->disconnects), 1);
	mounted_free(&m);
}

static void a_lazily_unmounted_file_system_works_until_the_last_close(void **state)
{
	struct mounted m;
	char back[5] = "";
	int fd;

	start(&m, &plain, 0);
	write_file(&m, "file");
	fd = open(at(&m, "file"), O_RDWR);
	assert_int_equal(umount2(m.directory, MNT_DETACH), 0);
	assert_int_equal(pwrite(fd, "more", 4, 4), 4);
	assert_int_equal(pread(fd, back, 4, 4), 4);
	assert_string_equal(back, "more");
	close(fd);
	assert_int_equal(mounted_wait(&m), 0);
	assert_int_equal(atomic_load(&m.control->disconnects), 1);
	mounted_free(&m);
}

/* A connection by io_uring goes down a moment after its process. */
static void wait_for_dead(const struct mounted *m)
{
	int64_t until = clock_steady_ns() + 20 * NS_PER_S;
	struct stat st;

	while (!stat(m->directory, &st) || errno != ENOTCONN) {
		if (clock_steady_ns() > until)
			fail_msg("the mount is not dead");
	}
}

static void a_dead_mount_point_is_replaced(void **state)
{
	struct mounted m;
	struct stat st;

	start(&m, &plain, 0);
	assert_int_equal(kill(m.daemon, SIGKILL), 0);
	assert_int_equal(mounted_wait(&m), 128 + SIGKILL);
	wait_for_dead(&m);
	assert_int_equal(mounted_start(&m, &plain, 0), 0);
	write_file(&m, "file");
	assert_int_equal(mounted_stop(&m), 0);
	assert_int_equal(stat(m.directory, &st), 0);
	assert_false(is_mounted(&m));
	mounted_free(&m);
}

static void a_live_mount_is_not_covered_by_another(void **state)
{
	struct mounted m, second;

	start(&m, &plain, 0);
	second = m;
	assert_int_equal(mounted_start(&second, &plain, 0), -1);
	assert_non_null(strstr(second.why, "already mounted"));
	assert_int_equal(mounted_wait(&second), 1);
	write_file(&m, "file");
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static void a_mount_that_cannot_be_says_why_and_leaves_nothing(void **state)
{
	struct mounted m;

	mounted_new(&m, 0);
	atomic_store(&m.control->refuse, true);
	assert_int_equal(mounted_start(&m, &plain, 0), -1);
	assert_string_equal(m.why, "no server at fake");
	assert_int_equal(mounted_wait(&m), 1);
	assert_false(is_mounted(&m));
	mounted_free(&m);

	mounted_new(&m, 0);
	assert_int_equal(rmdir(m.directory), 0);
	assert_int_equal(mounted_start(&m, &plain, 0), -1);
	assert_non_null(strstr(m.why, "is not there"));
	assert_int_equal(mounted_wait(&m), 1);
	assert_int_equal(mkdir(m.directory, 0755), 0);
	mounted_free(&m);
}

static void a_read_only_mount_refuses_changes(void **state)
{
	struct mountpoint_flags flags = { .read_only = true };
	struct mounted m;

	start(&m, &flags, 0);
	assert_int_equal(mkdir(at(&m, "dir"), 0755), -1);
	assert_int_equal(errno, EROFS);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static void the_mount_tells_its_process(void **state)
{
	struct mounted m;
	char text[32] = "", expected[32];

	start(&m, &plain, 0);
	snprintf(expected, sizeof(expected), "%d", (int)m.daemon);
	assert_int_equal(getxattr(m.directory, MOUNT_PID_XATTR, text, sizeof(text) - 1), strlen(expected));
	assert_string_equal(text, expected);
	assert_int_equal(listxattr(m.directory, text, sizeof(text)), 0);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static struct timespec atime_of(const struct mounted *m, const char *name)
{
	struct stat st;

	assert_int_equal(stat(at(m, name), &st), 0);
	return st.st_atim;
}

static void read_file(const struct mounted *m, const char *name, int flags)
{
	char data[8];
	int fd = open(at(m, name), O_RDONLY | flags);

	assert_int_equal(read(fd, data, sizeof(data)), 4);
	close(fd);
}

static bool moved(struct timespec a, struct timespec b) { return a.tv_sec != b.tv_sec || a.tv_nsec != b.tv_nsec; }

static void reading_moves_the_access_time_as_the_mount_was_told(void **state)
{
	static const enum mountpoint_atime modes[] = { ATIME_NEVER, ATIME_RELATIVE, ATIME_ALWAYS };

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct mountpoint_flags flags = { .atime = modes[i] };
		struct timespec before, first, second;
		struct mounted m;

		start(&m, &flags, 0);
		write_file(&m, "file");
		before = atime_of(&m, "file");
		read_file(&m, "file", O_NOATIME);
		assert_false(moved(atime_of(&m, "file"), before));
		read_file(&m, "file", 0);
		first = atime_of(&m, "file");
		read_file(&m, "file", 0);
		second = atime_of(&m, "file");
		assert_int_equal(modes[i] != ATIME_NEVER, moved(first, before));
		assert_int_equal(modes[i] == ATIME_ALWAYS, moved(second, first));
		/* Changed since: the next read counts again, though the kernel has the pages. */
		write_file(&m, "file");
		read_file(&m, "file", 0);
		assert_int_equal(modes[i] != ATIME_NEVER, moved(atime_of(&m, "file"), second));
		assert_int_equal(mounted_stop(&m), 0);
		mounted_free(&m);
	}
}

/* Linux 6.6 and later allow files that are read past the kernel's pages to be mapped.  Before, the first read after an open counts
 * alone. */
static bool each_read_counts(void)
{
	struct utsname name;
	unsigned long major, minor = 0;
	char *end;

	assert_int_equal(uname(&name), 0);
	major = strtoul(name.release, &end, 10);
	if (*end == '.')
		minor = strtoul(end + 1, NULL, 10);
	return major > 6 || (major == 6 && minor >= 6);
}

static void with_strictatime_each_read_of_an_open_file_counts(void **state)
{
	struct mountpoint_flags flags = { .atime = ATIME_ALWAYS };
	struct timespec last;
	struct mounted m;
	char data[8];
	int fd;

	if (!each_read_counts())
		skip();
	start(&m, &flags, 0);
	write_file(&m, "file");
	fd = open(at(&m, "file"), O_RDWR);
	last = atime_of(&m, "file");
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pread(fd, data, 2, i), 2);
		assert_true(moved(atime_of(&m, "file"), last));
		last = atime_of(&m, "file");
	}
	close(fd);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

/* Whether reading moves the access time; it is waited for until that is so, or not so any more. */
static void await_moving(const struct mounted *m, bool wanted)
{
	for (int tries = 0; tries < 2000; tries++) {
		struct timespec before = atime_of(m, "file");

		read_file(m, "file", 0);
		if (moved(atime_of(m, "file"), before) == wanted)
			return;
		usleep(10000);
	}
	fail_msg("reading %s the access time after 20 seconds", wanted ? "does not move" : "still moves");
}

/* By mount(2), which tells the mount nothing. */
static void a_live_mount_takes_over_what_a_remount_changes(void **state)
{
	struct mounted m;

	start(&m, &plain, 0);
	write_file(&m, "file");
	await_moving(&m, false);
	assert_int_equal(mount("x", m.directory, NULL, MS_REMOUNT | MS_STRICTATIME, NULL), 0);
	await_moving(&m, true);
	read_file(&m, "file", 0);
	await_moving(&m, true);
	assert_int_equal(mount("x", m.directory, NULL, MS_REMOUNT | MS_RDONLY | MS_STRICTATIME, NULL), 0);
	await_moving(&m, false);
	assert_int_equal(open(at(&m, "file"), O_WRONLY), -1);
	assert_int_equal(errno, EROFS);
	assert_int_equal(mount("x", m.directory, NULL, MS_REMOUNT | MS_STRICTATIME, NULL), 0);
	write_file(&m, "file");
	await_moving(&m, true);
	assert_int_equal(mount("x", m.directory, NULL, MS_REMOUNT | MS_NOATIME, NULL), 0);
	await_moving(&m, false);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

/* Look-ups wait in a directory of their own: while they do, the kernel lets nobody make a
 * name beside them. */
static pid_t stat_in_child(const struct mounted *m, int number)
{
	char name[32];
	pid_t child = fork();
	struct stat st;

	if (child)
		return child;
	snprintf(name, sizeof(name), "dir/stall%d", number);
	_exit(stat(at(m, name), &st) ? errno : 0);
}

static void start_with_directory(struct mounted *m)
{
	start(m, &plain, 0);
	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
}

static void handler_of_nothing(int signal) {}

static void a_killed_process_does_not_wait_for_the_server(void **state)
{
	static const int deadly[] = { SIGKILL, SIGTERM };
	struct mounted m;
	int status;

	start_with_directory(&m);
	for (int i = 0; i < 2; i++) {
		unsigned already = atomic_load(&m.control->stalled);
		pid_t child;

		atomic_store(&m.control->stall, true);
		child = stat_in_child(&m, i);
		wait_for("stalled", &m.control->stalled, already + 1);
		assert_int_equal(kill(child, deadly[i]), 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(atomic_load(&m.control->stalled), already + 1);
	}
	atomic_store(&m.control->stall, false);
	write_file(&m, "file");
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static void other_signals_interrupt_nothing(void **state)
{
	struct sigaction nothing = { .sa_handler = handler_of_nothing }, before;
	struct mounted m;
	pid_t child;
	int status;

	start_with_directory(&m);
	atomic_store(&m.control->stall, true);
	sigaction(SIGUSR1, &nothing, &before);
	child = stat_in_child(&m, 0);
	sigaction(SIGUSR1, &before, NULL);
	wait_for("stalled", &m.control->stalled, 1);
	assert_int_equal(kill(child, SIGUSR1), 0);
	/* Another request is answered after the INTERRUPT was read: it has been dealt with. */
	write_file(&m, "file");
	assert_int_equal(waitpid(child, &status, WNOHANG), 0);
	atomic_store(&m.control->stall, false);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), ENOENT);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static unsigned thread_count(pid_t pid)
{
	char path[64], line[128];
	unsigned long count = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "Threads:", 8))
			count = strtoul(line + 8, NULL, 10);
	}
	if (f)
		fclose(f);
	return (unsigned)count;
}

static void wait_for_few_threads(const struct mounted *m, unsigned few)
{
	int64_t until = clock_steady_ns() + 20 * NS_PER_S;

	while (thread_count(m->daemon) > few) {
		if (clock_steady_ns() > until)
			fail_msg("there are still %u threads", thread_count(m->daemon));
		usleep(1000);
	}
}

/* Each waits in a thread of its own; more are started, and then there are enough. */
static void many_waiting_requests_do_not_stop_others(void **state)
{
	enum { WAITING = 40, FEW = 32 };
	struct mounted m;
	pid_t children[WAITING];
	int status;

	start_with_directory(&m);
	atomic_store(&m.control->stall, true);
	for (int i = 0; i < WAITING; i++)
		children[i] = stat_in_child(&m, i);
	wait_for("stalled", &m.control->stalled, WAITING);
	write_file(&m, "another");
	atomic_store(&m.control->stall, false);
	for (int i = 0; i < WAITING; i++) {
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(WEXITSTATUS(status), ENOENT);
	}
	wait_for_few_threads(&m, mounted_by_ring() ? FEW + WAITING : FEW); /* a ring keeps them (ring.h) */
	write_file(&m, "after");
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static void more_waiting_requests_than_threads_are_all_answered(void **state)
{
	enum { WAITING = 100, THREADS = 64 };
	struct mounted m;
	pid_t children[WAITING];
	int status;

	start_with_directory(&m);
	atomic_store(&m.control->stall, true);
	for (int i = 0; i < WAITING; i++)
		children[i] = stat_in_child(&m, i);
	wait_for("stalled", &m.control->stalled, THREADS);
	atomic_store(&m.control->stall, false);
	for (int i = 0; i < WAITING; i++) {
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(WEXITSTATUS(status), ENOENT);
	}
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

static int user_story(const void *argument)
{
	const struct mounted *m = argument;
	char back[5] = "";
	int fd = open(at(m, "mine"), O_CREAT | O_RDWR, 0600);
	struct stat st;

	if (fd < 0 || write(fd, "mine", 4) != 4 || pread(fd, back, 4, 0) != 4 || strcmp(back, "mine") || fstat(fd, &st))
		return 1;
	close(fd);
	return st.st_uid != USER || mkdir(at(m, "dir"), 0755) || rename(at(m, "mine"), at(m, "dir/mine")) ? 2 : 0;
}

static void a_user_mounts_through_fusermount3(void **state)
{
	struct mounted m;
	struct stat st;

	if (access("/usr/bin/fusermount3", X_OK)) {
		fprintf(stderr, "SKIPPED: no fusermount3\n");
		skip();
	}
	start(&m, &plain, USER);
	assert_int_equal(as_user(USER, user_story, &m), 0);
	/* Without allow_other not even root gets in. */
	assert_int_equal(stat(at(&m, "dir"), &st), -1);
	assert_int_equal(errno, EACCES);
	assert_int_equal(mounted_stop(&m), 0);
	assert_false(is_mounted(&m));

	assert_int_equal(mounted_start(&m, &plain, USER), 0);
	assert_int_equal(kill(m.daemon, SIGKILL), 0);
	assert_int_equal(mounted_wait(&m), 128 + SIGKILL);
	assert_int_equal(mounted_start(&m, &plain, USER), 0);
	assert_int_equal(as_user(USER, user_story, &m), 0);
	assert_int_equal(umount2(m.directory, 0), 0);
	assert_int_equal(mounted_wait(&m), 0);
	mounted_free(&m);
}

static void a_user_may_not_let_others_in_without_leave(void **state)
{
	struct mountpoint_flags flags = { .others = OTHERS_ALLOWED };
	struct mounted m;

	mounted_new(&m, USER);
	assert_int_equal(mounted_start(&m, &flags, USER), -1);
	assert_non_null(strstr(m.why, "user_allow_other"));
	assert_int_equal(mounted_wait(&m), 1);
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_signal_unmounts_stores_and_ends),
		cmocka_unit_test(a_signal_also_ends_a_mount_that_is_in_use),
		cmocka_unit_test(unmounting_by_others_ends_the_process),
		cmocka_unit_test(a_lazily_unmounted_file_system_works_until_the_last_close),
		cmocka_unit_test(a_dead_mount_point_is_replaced),
		cmocka_unit_test(a_live_mount_is_not_covered_by_another),
		cmocka_unit_test(a_mount_that_cannot_be_says_why_and_leaves_nothing),
		cmocka_unit_test(a_read_only_mount_refuses_changes),
		cmocka_unit_test(the_mount_tells_its_process),
		cmocka_unit_test(reading_moves_the_access_time_as_the_mount_was_told),
		cmocka_unit_test(with_strictatime_each_read_of_an_open_file_counts),
		cmocka_unit_test(a_live_mount_takes_over_what_a_remount_changes),
		cmocka_unit_test(a_killed_process_does_not_wait_for_the_server),
		cmocka_unit_test(other_signals_interrupt_nothing),
		cmocka_unit_test(many_waiting_requests_do_not_stop_others),
		cmocka_unit_test(more_waiting_requests_than_threads_are_all_answered),
		cmocka_unit_test(a_user_mounts_through_fusermount3),
		cmocka_unit_test(a_user_may_not_let_others_in_without_leave),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
