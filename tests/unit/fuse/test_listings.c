/* Directories as programs list them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "mounted.h"

#define MANY 3000

static struct mounted mount_of_group;
static struct mounted *const m = &mount_of_group;

/* How often each of name0 ... nameN is listed from here on; others are counted apart. */
static unsigned list(DIR *dir, unsigned char *seen, unsigned count)
{
	unsigned others = 0;
	struct dirent *e;

	while ((e = readdir(dir))) {
		unsigned long n = strncmp(e->d_name, "name", 4) ? count : strtoul(e->d_name + 4, NULL, 10);

		if (n < count)
			seen[n]++;
		else
			others++;
	}
	return others;
}

static bool listed(DIR *dir, const char *name)
{
	struct dirent *e;

	rewinddir(dir);
	while ((e = readdir(dir))) {
		if (!strcmp(e->d_name, name))
			return true;
	}
	return false;
}

static void touch(const char *name)
{
	int fd = open(at(m, name), O_CREAT | O_EXCL | O_WRONLY, 0644);

	assert_true(fd >= 0);
	close(fd);
}

static void every_name_of_a_large_directory_is_listed_once(void **state)
{
	unsigned char *seen = calloc(MANY, 1);
	char name[32];
	DIR *dir;

	assert_int_equal(mkdir(at(m, "large"), 0755), 0);
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "large/name%d", i);
		touch(name);
	}
	dir = opendir(at(m, "large"));
	assert_non_null(dir);
	assert_int_equal(list(dir, seen, MANY), 2);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(seen[i], 1);
	closedir(dir);
	free(seen);
}

static void a_listing_goes_on_where_it_was_left(void **state)
{
	unsigned char *seen = calloc(MANY, 1);
	DIR *dir = opendir(at(m, "large"));
	long place = 0;
	unsigned left = 0;

	assert_non_null(dir);
	for (int i = 0; i < 1000; i++) {
		assert_non_null(readdir(dir));
		if (i == 499)
			place = telldir(dir);
	}
	seekdir(dir, place);
	list(dir, seen, MANY);
	for (int i = 0; i < MANY; i++) {
		assert_true(seen[i] <= 1);
		left += seen[i];
	}
	assert_int_equal(left, MANY + 2 - 500);
	closedir(dir);
	free(seen);
}

/* Names not touched meanwhile must appear exactly once whatever happens to others. */
static void removing_while_listing_skips_nothing(void **state)
{
	unsigned char *seen = calloc(MANY, 1);
	DIR *dir = opendir(at(m, "large"));
	struct dirent *e;
	char path[300];

	assert_non_null(dir);
	while ((e = readdir(dir))) {
		unsigned long n = strncmp(e->d_name, "name", 4) ? MANY : strtoul(e->d_name + 4, NULL, 10);

		if (n < MANY) {
			seen[n]++;
			snprintf(path, sizeof(path), "large/%s", e->d_name);
			assert_int_equal(unlink(at(m, path)), 0);
		}
	}
	closedir(dir);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(seen[i], 1);
	assert_int_equal(rmdir(at(m, "large")), 0);
	free(seen);
}

static void the_dots_have_the_right_numbers(void **state)
{
	struct stat root, sub;
	struct dirent *e;
	DIR *dir;

	assert_int_equal(mkdir(at(m, "sub"), 0755), 0);
	assert_int_equal(stat(m->directory, &root), 0);
	assert_int_equal(stat(at(m, "sub"), &sub), 0);
	dir = opendir(at(m, "sub"));
	e = readdir(dir);
	assert_string_equal(e->d_name, ".");
	assert_int_equal(e->d_ino, sub.st_ino);
	assert_int_equal(e->d_type, DT_DIR);
	e = readdir(dir);
	assert_string_equal(e->d_name, "..");
	assert_int_equal(e->d_ino, root.st_ino);
	assert_null(readdir(dir));
	closedir(dir);
	dir = opendir(m->directory);
	readdir(dir);
	assert_int_equal(readdir(dir)->d_ino, root.st_ino);
	closedir(dir);
	assert_int_equal(rmdir(at(m, "sub")), 0);
}

static void a_listing_brings_the_attributes_along(void **state)
{
	struct stat st;
	DIR *dir;

	touch("primed");
	dir = opendir(m->directory);
	assert_true(listed(dir, "primed"));
	closedir(dir);
	/* A look-up would hang, were it not for the listing: "stall" ... */
	touch("stalled");
	dir = opendir(m->directory);
	assert_true(listed(dir, "stalled"));
	closedir(dir);
	atomic_store(&m->control->stall, true);
	assert_int_equal(stat(at(m, "stalled"), &st), 0);
	assert_int_equal(atomic_load(&m->control->stalled), 0);
	atomic_store(&m->control->stall, false);
	assert_int_equal(unlink(at(m, "primed")), 0);
	assert_int_equal(unlink(at(m, "stalled")), 0);
}

static void names_made_here_are_listed_at_once(void **state)
{
	DIR *dir = opendir(m->directory), *other;

	assert_false(listed(dir, "new"));
	touch("new");
	assert_true(listed(dir, "new"));
	other = opendir(m->directory);
	assert_true(listed(other, "new"));
	assert_int_equal(unlink(at(m, "new")), 0);
	assert_false(listed(dir, "new"));
	assert_false(listed(other, "new"));
	closedir(dir);
	closedir(other);
}

/* Attributes are cached for ten seconds here; listings must not be. */
static void names_made_by_another_mount_are_listed_at_once(void **state)
{
	DIR *dir = opendir(m->directory);

	assert_false(listed(dir, "elsewhere1"));
	assert_false(listed(dir, "elsewhere1"));
	atomic_store(&m->control->changes, 1);
	assert_true(listed(dir, "elsewhere1"));
	closedir(dir);
	atomic_store(&m->control->changes, 2);
	dir = opendir(m->directory);
	assert_true(listed(dir, "elsewhere2"));
	closedir(dir);
	assert_int_equal(unlink(at(m, "elsewhere1")), 0);
	assert_int_equal(unlink(at(m, "elsewhere2")), 0);
}

/* A file handle outlives the kernel's memory of the inode. */
static void a_file_is_found_again_by_its_handle(void **state)
{
	struct {
		struct file_handle head;
		unsigned char room[MAX_HANDLE_SZ];
	} handle = { .head.handle_bytes = MAX_HANDLE_SZ };
	int mount_id, dir = open(m->directory, O_RDONLY | O_DIRECTORY), fd, drop;

	assert_int_equal(mkdir(at(m, "deep"), 0755), 0);
	touch("deep/handled");
	assert_int_equal(name_to_handle_at(AT_FDCWD, at(m, "deep/handled"), &handle.head, &mount_id, 0), 0);
	drop = open("/proc/sys/vm/drop_caches", O_WRONLY);
	assert_true(drop < 0 || write(drop, "2", 1) == 1);
	close(drop);
	fd = open_by_handle_at(dir, &handle.head, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "found", 5), 5);
	close(fd);
	assert_int_equal(unlink(at(m, "deep/handled")), 0);
	/* Nobody waits for the last close() to be known, and until then it is there. */
	for (int n = 0; n < 500 && (fd = open_by_handle_at(dir, &handle.head, O_RDWR)) >= 0; n++) {
		close(fd);
		usleep(10000);
	}
	assert_int_equal(fd, -1);
	assert_int_equal(errno, ESTALE);
	close(dir);
	assert_int_equal(rmdir(at(m, "deep")), 0);
}

static void syncing_a_directory_syncs_its_files(void **state)
{
	unsigned before = atomic_load(&m->control->syncs);
	int fd = open(m->directory, O_RDONLY | O_DIRECTORY);

	assert_int_equal(fsync(fd), 0);
	assert_int_equal(atomic_load(&m->control->syncs), before + 1);
	close(fd);
}

static int mount_it(void **state)
{
	struct mountpoint_flags flags = { 0 };

	mounted_new(m, 0);
	if (mounted_start(m, &flags, 0)) {
		fprintf(stderr, "cannot mount: %s\n", m->why);
		return -1;
	}
	return 0;
}

static int unmount_it(void **state)
{
	int code = mounted_stop(m);

	mounted_free(m);
	return code;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_name_of_a_large_directory_is_listed_once),
		cmocka_unit_test(a_listing_goes_on_where_it_was_left),
		cmocka_unit_test(removing_while_listing_skips_nothing),
		cmocka_unit_test(the_dots_have_the_right_numbers),
		cmocka_unit_test(a_listing_brings_the_attributes_along),
		cmocka_unit_test(names_made_here_are_listed_at_once),
		cmocka_unit_test(names_made_by_another_mount_are_listed_at_once),
		cmocka_unit_test(a_file_is_found_again_by_its_handle),
		cmocka_unit_test(syncing_a_directory_syncs_its_files),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, mount_it, unmount_it) : 77;
}
