/* Locks through a real mount of the fake client: what reaches the client, and when. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "fuse/handlers.h"
#include "mounted.h"

void __real_locks_begin(struct session *s);
void __wrap_locks_begin(struct session *s);

void __wrap_locks_begin(struct session *s)
{
	__real_locks_begin(s);
	s->locks.closing_ns = fake_control->closing_ns;
	s->locks.closing_again_ns = fake_control->closing_again_ns;
}

static int start(void **state, int64_t closing_ns, int64_t closing_again_ns)
{
	static struct mounted m;

	mounted_new(&m, 0);
	m.control->closing_ns = closing_ns;
	m.control->closing_again_ns = closing_again_ns;
	if (mounted_start(&m, &(struct mountpoint_flags){ 0 }, 0))
		fail_msg("%s", m.why);
	*state = &m;
	return 0;
}

/* Longer than anything is waited for here; and what is always over. */
#define LONG_NS (60 * NS_PER_S)
#define SHORT_NS 1

static int setup(void **state) { return start(state, LONG_NS, SHORT_NS); }
static int setup_for_short_waits(void **state) { return start(state, SHORT_NS, LONG_NS); }

static int teardown(void **state)
{
	struct mounted *m = *state;

	atomic_store(&m->control->stall_drops, false);
	assert_int_equal(mounted_stop(m), 0);
	mounted_free(m);
	return 0;
}

static unsigned flushes(struct mounted *m) { return atomic_load(&m->control->flushes); }

static void open_and_close(struct mounted *m, const char *name, int flags)
{
	int fd = open(at(m, name), flags, 0644);

	assert_true(fd >= 0);
	assert_int_equal(close(fd), 0);
}

static int record(int fd, int command, short type, off_t start, off_t length)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length };

	return fcntl(fd, command, &l) ? -errno : 0;
}

static void closing_a_file_nobody_locks_costs_no_message_unless_it_may_be_a_lock_file(void **state)
{
	struct mounted *m = *state;
	int fd;

	open_and_close(m, "data", O_CREAT | O_EXCL | O_WRONLY);
	open_and_close(m, "data", O_RDONLY);
	assert_int_equal(flushes(m), 0);
	open_and_close(m, "data", O_RDWR);
	assert_int_equal(flushes(m), 1);
	open_and_close(m, "data", O_WRONLY);
	assert_int_equal(flushes(m), 2);
	open_and_close(m, "lock", O_CREAT | O_RDWR);
	assert_int_equal(flushes(m), 3);
	/* Once it was locked, every close counts. */
	fd = open(at(m, "data"), O_RDONLY);
	assert_int_equal(record(fd, F_SETLK, F_RDLCK, 0, 0), 0);
	open_and_close(m, "data", O_RDONLY);
	assert_int_equal(flushes(m), 4);
	assert_int_equal(atomic_load(&m->control->drops), 0);
	close(fd);
	wait_for("the lock to go with the file", &m->control->drops, 1);
}

static uint64_t asked_owner(struct mounted *m) { return atomic_load(&m->control->lock_owner); }
static uint64_t asked_handle(struct mounted *m) { return atomic_load(&m->control->lock_handle); }

/* The kernel's number of an open file is given to another one as soon as it is closed, before we are told of that. */
static void a_flock_belongs_to_the_open_file_and_a_range_lock_to_the_process(void **state)
{
	struct mounted *m = *state;
	int first = open(at(m, "f"), O_CREAT | O_RDWR, 0644), second = open(at(m, "f"), O_RDWR);
	uint64_t handle, process;

	assert_int_equal(flock(first, LOCK_SH), 0);
	handle = asked_handle(m);
	assert_int_equal(asked_owner(m), handle);
	assert_int_equal(flock(second, LOCK_SH | LOCK_NB), 0);
	assert_int_equal(asked_owner(m), asked_handle(m));
	assert_int_not_equal(asked_owner(m), handle);
	assert_int_equal(record(first, F_SETLK, F_RDLCK, 0, 0), 0);
	process = asked_owner(m);
	assert_int_equal(asked_handle(m), handle);
	assert_int_equal(record(second, F_SETLK, F_RDLCK, 0, 0), 0);
	assert_int_equal(asked_owner(m), process);
	assert_int_not_equal(asked_handle(m), handle);
	close(first);
	close(second);
}

static pid_t wait_in_child(struct mounted *m, const char *name, bool of_range)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child) {
		int fd = open(at(m, name), O_RDWR), r;

		alarm(60);
		r = of_range ? -record(fd, F_SETLKW, F_WRLCK, 0, 0) : flock(fd, LOCK_EX) ? errno : 0;
		_exit(r);
	}
	return child;
}

static int exit_of(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void more_processes_wait_than_there_are_threads_and_others_go_on(void **state)
{
	enum { MANY = 100 };
	struct mounted *m = *state;
	pid_t children[MANY];
	struct stat st;
	int fd;

	open_and_close(m, "f", O_CREAT | O_RDWR);
	fd = open(at(m, "f"), O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(record(fd, F_SETLK, F_WRLCK, 0, 0), 0);
	for (int i = 0; i < MANY; i++)
		children[i] = wait_in_child(m, "f", i % 2);
	wait_for("all of them to wait", &m->control->waits, MANY);
	assert_int_equal(stat(at(m, "f"), &st), 0);
	assert_int_equal(flock(fd, LOCK_UN), 0);
	assert_int_equal(close(fd), 0);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(exit_of(children[i]), 0);
}

static void a_killed_process_waits_no_longer(void **state)
{
	struct mounted *m = *state;
	pid_t child;
	int fd;

	open_and_close(m, "f", O_CREAT | O_RDWR);
	fd = open(at(m, "f"), O_RDWR);
	assert_int_equal(record(fd, F_SETLK, F_WRLCK, 0, 0), 0);
	for (int i = 0; i < 50; i++) {
		/* At any moment: before the request is read, while it is asked, when it waits. */
		child = wait_in_child(m, "f", true);
		usleep((unsigned)i * 20);
		kill(child, SIGKILL);
		assert_int_equal(exit_of(child), 128 + SIGKILL);
	}
	close(fd);
}

static void a_circle_is_refused_and_getlk_names_who_has_it(void **state)
{
	struct mounted *m = *state;
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	pid_t child;
	int fd, told[2];
	char byte;

	open_and_close(m, "f", O_CREAT | O_RDWR);
	fd = open(at(m, "f"), O_RDWR);
	assert_int_equal(record(fd, F_SETLK, F_WRLCK, 0, 1), 0);
	assert_int_equal(pipe(told), 0);
	child = fork();
	if (!child) {
		int mine = open(at(m, "f"), O_RDWR);

		if (record(mine, F_SETLK, F_WRLCK, 1, 1) || write(told[1], "x", 1) != 1)
			_exit(99);
		_exit(-record(mine, F_SETLKW, F_WRLCK, 0, 1));
	}
	assert_int_equal(read(told[0], &byte, 1), 1);
	wait_for("it to wait", &m->control->waits, 1);
	l.l_start = 1;
	l.l_len = 1;
	assert_int_equal(fcntl(fd, F_GETLK, &l), 0);
	assert_int_equal(l.l_type, F_WRLCK);
	assert_int_equal(l.l_pid, child);
	assert_int_equal(record(fd, F_SETLKW, F_WRLCK, 1, 1), -EDEADLK);
	assert_int_equal(record(fd, F_SETLK, F_UNLCK, 0, 0), 0);
	assert_int_equal(exit_of(child), 0);
	close(fd);
	close(told[0]);
	close(told[1]);
}

enum kind { OFD, OFD_TEST, FLOCK, KINDS };

/* A new file each, for which no RELEASE is to come. */
static const char *file_make(struct mounted *m, enum kind kind)
{
	static const char *const names[] = { "ofd", "ofd-test", "flock" };

	open_and_close(m, names[kind], O_CREAT | O_RDWR);
	return names[kind];
}

/* 0, or -EAGAIN: somebody has it. */
static int try_lock(int fd, enum kind kind)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	if (kind == FLOCK)
		return flock(fd, LOCK_EX | LOCK_NB) ? -errno : 0;
	if (fcntl(fd, kind == OFD ? F_OFD_SETLK : F_OFD_GETLK, &l))
		return -errno;
	return kind == OFD || l.l_type == F_UNLCK ? 0 : -EAGAIN;
}

struct attempt {
	int fd, result;
	enum kind kind;
	atomic_uint *ended;
};

static void *attempt_run(void *context)
{
	struct attempt *a = context;

	a->result = try_lock(a->fd, a->kind);
	if (a->ended)
		atomic_fetch_add(a->ended, 1);
	return NULL;
}

static int lock_and_close_in_child(struct mounted *m, const char *name, enum kind kind)
{
	pid_t child = fork();

	if (!child) {
		int fd = open(at(m, name), O_RDWR);

		_exit(try_lock(fd, kind == OFD_TEST ? OFD : kind) || close(fd));
	}
	return exit_of(child);
}

/* The kernel tells of it, but does not wait until that was heard. */
static void a_lock_whose_file_is_closed_is_not_seen_any_more(void **state)
{
	struct mounted *m = *state;

	for (enum kind kind = OFD; kind < KINDS; kind++) {
		const char *name = file_make(m, kind);
		struct attempt a = { .fd = open(at(m, name), O_RDWR), .kind = kind };
		pthread_t thread;

		atomic_store(&m->control->stall_drops, true);
		assert_int_equal(lock_and_close_in_child(m, name, kind), 0);
		atomic_store(&m->control->locks, 0);
		assert_int_equal(pthread_create(&thread, NULL, attempt_run, &a), 0);
		wait_for("it to be found locked", &m->control->locks, 1);
		atomic_store(&m->control->stall_drops, false);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(a.result, 0);
		close(a.fd);
	}
}

/* Who had no lock has none to release. */
static void the_close_of_a_file_that_was_refused_a_lock_is_not_waited_for(void **state)
{
	struct mounted *m = *state;

	for (enum kind kind = OFD; kind < KINDS; kind++) {
		const char *name = file_make(m, kind);
		int holder = open(at(m, name), O_RDWR), asking = open(at(m, name), O_RDWR), refused = open(at(m, name), O_RDWR),
		    r;

		assert_int_equal(try_lock(holder, kind == OFD_TEST ? OFD : kind), 0);
		assert_int_equal(try_lock(refused, kind), -EAGAIN);
		atomic_store(&m->control->stall_drops, true);
		close(refused);
		atomic_store(&m->control->locks, 0);
		r = try_lock(asking, kind);
		atomic_store(&m->control->stall_drops, false);
		assert_int_equal(r, -EAGAIN);
		assert_int_equal(atomic_load(&m->control->locks), 1);
		close(holder);
		close(asking);
	}
}

static void closing_one_of_two_descriptors_releases_nothing(void **state)
{
	struct mounted *m = *state;

	for (enum kind kind = OFD; kind < KINDS; kind++) {
		const char *name = file_make(m, kind);
		int mine = open(at(m, name), O_RDWR), other = open(at(m, name), O_RDWR);

		assert_int_equal(try_lock(mine, kind == OFD_TEST ? OFD : kind), 0);
		assert_int_equal(close(dup(mine)), 0);
		for (int i = 0; i < 3; i++)
			assert_int_equal(try_lock(other, kind), -EAGAIN);
		close(mine);
		assert_int_equal(try_lock(other, kind), 0);
		close(other);
	}
}

static void lock_and_close_a_duplicate(int fd, enum kind kind)
{
	assert_int_equal(try_lock(fd, kind), 0);
	assert_int_equal(close(dup(fd)), 0);
}

static void unlock(int fd, enum kind kind)
{
	assert_int_equal(kind == FLOCK ? flock(fd, LOCK_UN) : record(fd, F_OFD_SETLK, F_UNLCK, 0, 0), 0);
}

static void who_waits_for_a_file_to_be_released_goes_on_when_that_is_unlocked(void **state)
{
	struct mounted *m = *state;

	for (enum kind kind = OFD; kind < KINDS; kind++) {
		const char *name = file_make(m, kind);
		atomic_uint ended = 0;
		struct attempt a = { .fd = open(at(m, name), O_RDWR), .kind = kind, .ended = &ended };
		int holder = open(at(m, name), O_RDWR);
		pthread_t thread;

		lock_and_close_a_duplicate(holder, kind == OFD_TEST ? OFD : kind);
		atomic_store(&m->control->locks, 0);
		assert_int_equal(pthread_create(&thread, NULL, attempt_run, &a), 0);
		wait_for("it to be found locked", &m->control->locks, 1);
		unlock(holder, kind);
		wait_for("the attempt to end", &ended, 1);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(a.result, 0);
		close(holder);
		close(a.fd);
	}
}

static void only_two_wait_for_files_to_be_released(void **state)
{
	enum { MANY = 5, WAITING = 2 };
	struct mounted *m = *state;
	struct attempt a[MANY];
	pthread_t threads[MANY];
	atomic_uint ended = 0;
	unsigned refused = 0;
	int holder;

	open_and_close(m, "f", O_CREAT | O_RDWR);
	holder = open(at(m, "f"), O_RDWR);
	lock_and_close_a_duplicate(holder, OFD);
	for (int i = 0; i < MANY; i++) {
		a[i] = (struct attempt){ .fd = open(at(m, "f"), O_RDWR), .kind = OFD_TEST, .ended = &ended };
		assert_int_equal(pthread_create(&threads[i], NULL, attempt_run, &a[i]), 0);
	}
	wait_for("all but two to end", &ended, MANY - WAITING);
	unlock(holder, OFD);
	wait_for("all to end", &ended, MANY);
	for (int i = 0; i < MANY; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		refused += a[i].result != 0;
		close(a[i].fd);
	}
	assert_int_equal(refused, MANY - WAITING);
	close(holder);
}

/* As when a daemon that holds a lock starts children, each of which closes the descriptor it has inherited. */
static void a_file_that_stayed_open_is_waited_for_in_another_way(void **state)
{
	struct mounted *m = *state;

	for (enum kind kind = OFD; kind < KINDS; kind++) {
		const char *name = file_make(m, kind);
		int holder = open(at(m, name), O_RDWR), asking = open(at(m, name), O_RDWR);

		/* It has a lock anew in each turn. */
		for (int turn = 0; turn < 2; turn++) {
			atomic_uint ended = 0;
			struct attempt a = { .fd = asking, .kind = kind, .ended = &ended };
			pthread_t thread;

			lock_and_close_a_duplicate(holder, kind == OFD_TEST ? OFD : kind);
			assert_int_equal(try_lock(asking, kind), -EAGAIN);
			assert_int_equal(close(dup(holder)), 0);
			atomic_store(&m->control->locks, 0);
			assert_int_equal(pthread_create(&thread, NULL, attempt_run, &a), 0);
			wait_for("it to be found locked", &m->control->locks, 1);
			unlock(holder, kind);
			wait_for("the attempt to end", &ended, 1);
			assert_int_equal(pthread_join(thread, NULL), 0);
			assert_int_equal(a.result, 0);
			unlock(asking, kind);
		}
		close(holder);
		close(asking);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_lock_whose_file_is_closed_is_not_seen_any_more, setup, teardown),
		cmocka_unit_test_setup_teardown(the_close_of_a_file_that_was_refused_a_lock_is_not_waited_for, setup, teardown),
		cmocka_unit_test_setup_teardown(closing_one_of_two_descriptors_releases_nothing, setup_for_short_waits, teardown),
		cmocka_unit_test_setup_teardown(who_waits_for_a_file_to_be_released_goes_on_when_that_is_unlocked, setup,
						teardown),
		cmocka_unit_test_setup_teardown(only_two_wait_for_files_to_be_released, setup, teardown),
		cmocka_unit_test_setup_teardown(a_file_that_stayed_open_is_waited_for_in_another_way, setup_for_short_waits,
						teardown),
		cmocka_unit_test_setup_teardown(closing_a_file_nobody_locks_costs_no_message_unless_it_may_be_a_lock_file, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_flock_belongs_to_the_open_file_and_a_range_lock_to_the_process, setup,
						teardown),
		cmocka_unit_test_setup_teardown(more_processes_wait_than_there_are_threads_and_others_go_on, setup, teardown),
		cmocka_unit_test_setup_teardown(a_killed_process_waits_no_longer, setup, teardown),
		cmocka_unit_test_setup_teardown(a_circle_is_refused_and_getlk_names_who_has_it, setup, teardown),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
