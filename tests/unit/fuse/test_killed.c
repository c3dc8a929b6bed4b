/* Programs that are killed while a request of theirs is handled: the kernel closes their files, and the handler is still at it. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fuse/session.h"
#include "mounted.h"

#define SIZE 65536

/* The end of what a thread does about an INTERRUPT whose request it has not answered. */
void __real_session_interrupt(struct session *s, uint64_t unique);
void __wrap_session_interrupt(struct session *s, uint64_t unique);

void __wrap_session_interrupt(struct session *s, uint64_t unique)
{
	__real_session_interrupt(s, unique);
	atomic_fetch_add(&fake_control->interrupts, 1);
}

static int setup(void **state)
{
	static struct mounted m;
	char data[SIZE] = "";
	int fd;

	mounted_new(&m, 0);
	if (mounted_start(&m, &(struct mountpoint_flags){ 0 }, 0))
		fail_msg("%s", m.why);
	fd = open(at(&m, "file"), O_CREAT | O_WRONLY, 0644);
	assert_int_equal(write(fd, data, sizeof(data)), sizeof(data));
	assert_int_equal(close(fd), 0);
	wait_for("releases", &m.control->releases, 1);
	atomic_store(&m.control->changed_content, true); /* whoever opens it reads it anew */
	*state = &m;
	return 0;
}

static int teardown(void **state)
{
	struct mounted *m = *state;

	atomic_store(&m->control->stall_files, false);
	assert_int_equal(mounted_stop(m), 0);
	assert_int_equal(atomic_load(&m->control->opens), atomic_load(&m->control->releases));
	mounted_free(m);
	return 0;
}

/* ---- What they were at ---- */

static void read_it(int fd)
{
	static char data[SIZE];

	_exit(pread(fd, data, SIZE, 0) != SIZE);
}

static void write_it(int fd) { _exit(pwrite(fd, "data", 4, 0) != 4); }

static void sync_it(int fd) { _exit(fsync(fd) != 0); }

static void seek_in_it(int fd) { _exit(lseek(fd, 0, SEEK_DATA) != 0); }

static void allocate_it(int fd) { _exit(fallocate(fd, 0, 0, 2 * SIZE) != 0); }

static void copy_it(int fd)
{
	off_t from = 0, to = SIZE;

	_exit(copy_file_range(fd, &from, fd, &to, 100, 0) != 100);
}

static void look_for_locks(int fd)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	_exit(fcntl(fd, F_GETLK, &l) != 0);
}

/* ---- Cases ---- */

struct killed {
	struct mounted *m;
	pid_t child;
	int go;
	unsigned stalled, releases, drops;
};

static void byte_get(int fd)
{
	char byte;

	assert_int_equal(read(fd, &byte, 1), 1);
}

/* It has the file open, with a lock, so that it is seen when that is closed. */
static void program_start(struct killed *k, struct mounted *m, int flags, void (*act)(int fd))
{
	int ready[2], go[2];

	*k = (struct killed){ .m = m };
	assert_int_equal(pipe(ready) | pipe(go), 0);
	k->child = fork();
	assert_true(k->child >= 0);
	if (!k->child) {
		int fd = open(at(m, "file"), flags);

		alarm(100);
		if (fd < 0 || flock(fd, LOCK_SH) || write(ready[1], "r", 1) != 1)
			_exit(99);
		byte_get(go[0]);
		act(fd);
	}
	byte_get(ready[0]);
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	k->go = go[1];
	k->releases = atomic_load(&m->control->releases);
	k->drops = atomic_load(&m->control->drops);
	k->stalled = atomic_load(&m->control->stalled);
}

/* Its request is being handled, and that does not end. */
static void request_stall(struct killed *k)
{
	atomic_store(&k->m->control->stall_files, true);
	assert_int_equal(write(k->go, "g", 1), 1);
	close(k->go);
	wait_for("stalled", &k->m->control->stalled, k->stalled + 1);
}

static void request_end(struct killed *k)
{
	atomic_store(&k->m->control->stall_files, false);
	wait_for("releases", &k->m->control->releases, k->releases + 1);
	assert_int_equal(atomic_load(&k->m->control->releases), k->releases + 1);
}

static void assert_killed(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void a_file_that_is_closed_while_a_request_of_a_killed_program_is_handled_stays_for_that(void **state)
{
	static const struct {
		int flags;
		void (*act)(int fd);
	} kinds[] = {
		{ O_RDWR | O_APPEND, read_it }, /* not through pages, and waited for */
		{ O_RDWR, sync_it },
		{ O_RDONLY, seek_in_it },
		{ O_RDWR, look_for_locks },
	};
	struct mounted *m = *state;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct killed k;

		program_start(&k, m, kinds[i].flags, kinds[i].act);
		request_stall(&k);
		assert_int_equal(kill(k.child, SIGKILL), 0);
		assert_killed(k.child);
		/* RELEASE has come: the locks have gone, and nothing else. */
		wait_for("locks dropped", &m->control->drops, k.drops + 1);
		assert_int_equal(atomic_load(&m->control->stalled), k.stalled + 1);
		assert_int_equal(atomic_load(&m->control->releases), k.releases);
		request_end(&k);
	}
}

/* Nobody waits for the request but for its pages: the program goes at once, its file once the request is answered, which, by io_uring,
 * it is when the program is seen to be gone. */
static void a_program_that_is_killed_while_pages_are_read_for_it_takes_nothing_away(void **state)
{
	struct killed k;

	program_start(&k, *state, O_RDONLY, read_it);
	request_stall(&k);
	assert_int_equal(kill(k.child, SIGKILL), 0);
	assert_killed(k.child);
	assert_int_equal(atomic_load(&k.m->control->releases), k.releases);
	request_end(&k);
}

static void a_killed_program_waits_for_its_changes(void **state)
{
	static void (*const acts[])(int fd) = { write_it, allocate_it, copy_it };
	struct mounted *m = *state;
	int status;

	for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		unsigned interrupts = atomic_load(&m->control->interrupts);
		struct killed k;

		program_start(&k, m, O_RDWR, acts[i]);
		request_stall(&k);
		assert_int_equal(kill(k.child, SIGKILL), 0);
		wait_for("the INTERRUPT to be handled", &m->control->interrupts, interrupts + 1);
		assert_int_equal(waitpid(k.child, &status, WNOHANG), 0);
		assert_int_equal(atomic_load(&m->control->drops), k.drops);
		request_end(&k);
		assert_killed(k.child);
	}
}

static void an_open_whose_program_was_killed_is_undone_and_dropped_no_pages(void **state)
{
	struct mounted *m = *state;
	unsigned opens = atomic_load(&m->control->opens), releases = atomic_load(&m->control->releases);
	unsigned stalled = atomic_load(&m->control->stalled), untold = atomic_load(&m->control->untold);
	pid_t child;

	atomic_store(&m->control->stall_files, true);
	child = fork();
	if (!child)
		_exit(open(at(m, "file"), O_RDONLY) < 0);
	wait_for("stalled", &m->control->stalled, stalled + 1);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_killed(child);
	assert_int_equal(atomic_load(&m->control->opens), opens);
	atomic_store(&m->control->stall_files, false);
	wait_for("releases", &m->control->releases, releases + 1);
	assert_int_equal(atomic_load(&m->control->opens), opens + 1);
	assert_int_equal(atomic_load(&m->control->untold), untold + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_file_that_is_closed_while_a_request_of_a_killed_program_is_handled_stays_for_that, setup, teardown),
		cmocka_unit_test_setup_teardown(a_program_that_is_killed_while_pages_are_read_for_it_takes_nothing_away, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_killed_program_waits_for_its_changes, setup, teardown),
		cmocka_unit_test_setup_teardown(an_open_whose_program_was_killed_is_undone_and_dropped_no_pages, setup, teardown),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
