/* What the kernel knows of sizes, through a real mount of the fake client, while "another mount" changes them. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "mounted.h"

#define PAGE 4096
#define PAGES_MOST 6

static int setup(void **state)
{
	static struct mounted m;

	mounted_new(&m, 0);
	atomic_store(&m.control->valid_ms, 0); /* as in company */
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

static void elsewhere(const struct mounted *m, const char *what, const char *file)
{
	char name[64];

	snprintf(name, sizeof(name), "user.elsewhere.%s", what);
	assert_int_equal(setxattr(m->directory, name, file, strlen(file), 0), 0);
}

static int file_of_pages(const struct mounted *m, const char *name, int pages)
{
	char data[PAGE] = { 1 };
	int fd = open(at(m, name), O_CREAT | O_RDWR, 0644);

	assert_true(fd >= 0);
	for (int i = 0; i < pages; i++)
		assert_int_equal(pwrite(fd, data, PAGE, (off_t)i * PAGE), PAGE);
	return fd;
}

struct read_behind {
	int fd;
	off_t offset;
	ssize_t got;
};

static void *read_behind_run(void *context)
{
	struct read_behind *b = context;
	char data[PAGE];

	b->got = pread(b->fd, data, sizeof(data), b->offset);
	return NULL;
}

/* It asks for the size; its pages are recalled before the answer comes, which the kernel ignores therefore. */
static void a_read_is_not_cut_short_at_an_old_end_when_pages_are_recalled(void **state)
{
	struct mounted *m = *state;
	char data[PAGE];
	int fd = file_of_pages(m, "f", 1);

	for (int pages = 1; pages < PAGES_MOST; pages++) {
		struct read_behind behind = { fd, (off_t)pages * PAGE, -1 };
		pthread_t thread;

		assert_int_equal(pread(fd, data, PAGE, 0), PAGE);
		elsewhere(m, "grow", "f");
		atomic_store(&m->control->stall_getattrs, true);
		assert_int_equal(pthread_create(&thread, NULL, read_behind_run, &behind), 0);
		wait_for("the read to ask for the size", &m->control->stalled_getattrs, 1);
		elsewhere(m, "recall", "f");
		atomic_store(&m->control->stall_getattrs, false);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(behind.got, PAGE);
	}
	close(fd);
}

/* Telling the size leaves what is in the pages alone, and a size that is known already. */
static void a_recall_changes_neither_size_nor_content(void **state)
{
	struct mounted *m = *state;
	char data[2 * PAGE];
	struct stat st;
	int fd = file_of_pages(m, "f", 1);

	assert_int_equal(pwrite(fd, "abc", 3, PAGE), 3);
	elsewhere(m, "recall", "f");
	assert_int_equal(pread(fd, data, sizeof(data), 0), PAGE + 3);
	assert_int_equal(data[0], 1);
	assert_memory_equal(data + PAGE, "abc", 3);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, PAGE + 3);
	assert_int_equal(ftruncate(fd, 1), 0);
	elsewhere(m, "recall", "f");
	assert_int_equal(pread(fd, data, sizeof(data), 0), 1);
	close(fd);
}

/* A recall would not find it there: it is made some time after the answer. */
static void what_a_look_up_tells_of_a_new_inode_is_not_kept_by_a_grant(void **state)
{
	struct mounted *m = *state;
	struct stat st;

	atomic_store(&m->control->granted_ms, 60000);
	elsewhere(m, "make", "f");
	assert_int_equal(stat(at(m, "f"), &st), 0);
	assert_int_equal(atomic_load(&m->control->getattrs), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(stat(at(m, "f"), &st), 0);
	assert_int_equal(atomic_load(&m->control->getattrs), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_read_is_not_cut_short_at_an_old_end_when_pages_are_recalled, setup, teardown),
		cmocka_unit_test_setup_teardown(a_recall_changes_neither_size_nor_content, setup, teardown),
		cmocka_unit_test_setup_teardown(what_a_look_up_tells_of_a_new_inode_is_not_kept_by_a_grant, setup, teardown),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
