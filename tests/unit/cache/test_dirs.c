#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include "place.h"

static bool in_use(struct place *p, int dir)
{
	struct cache_dir_stats s;
	cache_dir_stats(p->cache, dir, &s);
	return s.in_use;
}

static int error_of(struct place *p, int dir)
{
	struct cache_dir_stats s;
	cache_dir_stats(p->cache, dir, &s);
	return s.error;
}

static void file_make(const char *folder, const char *name)
{
	char path[200];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "mine\n", 5), 5);
	close(fd);
}

static bool file_is_there(const char *folder, const char *name)
{
	char path[200];
	struct stat st;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return lstat(path, &st) == 0;
}

static void a_folder_that_holds_something_else_is_refused_and_left_alone(void **state)
{
	struct place *p = *state;
	int bad = -1;
	p->options.dir_count = 2;
	assert_int_equal(mkdir(p->dirs[1], 0700), 0);
	file_make(p->dirs[1], "thesis.tex");
	assert_int_equal(cache_open(&p->options, &p->cache, &bad), -ENOTEMPTY);
	assert_int_equal(bad, 1);
	assert_true(file_is_there(p->dirs[1], "thesis.tex"));
	assert_false(file_is_there(p->dirs[1], "epochfs-cache"));
	p->cache = NULL;
}

static void a_cache_of_another_format_is_refused(void **state)
{
	struct place *p = *state;
	int bad;
	assert_int_equal(mkdir(p->dirs[0], 0700), 0);
	file_make(p->dirs[0], "epochfs-cache");
	assert_int_equal(cache_open(&p->options, &p->cache, &bad), -EPROTONOSUPPORT);
	file_make(p->folder, "2");
	p->dir_names[0] = p->dirs[2];
	assert_int_equal(cache_open(&p->options, &p->cache, &bad), -ENOTDIR);
	p->cache = NULL;
}

static void what_is_not_ours_among_the_entries_is_left_alone(void **state)
{
	struct place *p = *state;
	char bucket[128], path[256];
	place_open(p);
	assert_int_equal(object_add(p->cache, 1, 1000, 0), 0);
	assert_true(place_find(p, "o-", path, sizeof path));
	snprintf(bucket, sizeof bucket, "%.*s", (int)(strrchr(path, '/') - path), path);
	const char *names[] = { "README",
				".hidden",
				"o-123",
				"t-zz-0000000000000000-0000000000000000",
				"o-",
				"\xff\xfe",
				"f-0123456789abcdef0123456789abcdef-00000001-000000000000000G" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		file_make(bucket, names[i]);
		file_make(p->dirs[0], names[i]);
	}
	/* One of ours in the bucket of another. */
	file_make(bucket, "o-00000000000000000000000000000000-0000000000000000");
	place_close(p);
	snprintf(path, sizeof path, "%s/state", p->dirs[0]);
	assert_int_equal(unlink(path), 0);
	p->options.size.bytes = 0; /* all that is ours goes */
	place_open(p);
	for (int i = 0; i < 5; i++)
		cache_tend(p->cache, MIB);
	assert_int_equal(place_count(p, "o-7369"), 0);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		assert_true(file_is_there(bucket, names[i]) && file_is_there(p->dirs[0], names[i]));
	assert_true(file_is_there(bucket, "o-00000000000000000000000000000000-0000000000000000"));
}

static void content_is_spread_by_size_and_found_whatever_the_order(void **state)
{
	struct place *p = *state;
	struct cache_dir_stats s;
	p->options.dir_count = 3;
	place_open(p);
	for (uint64_t i = 0; i < 300; i++)
		assert_int_equal(object_add(p->cache, i, 1000, 0), 0);
	for (int i = 0; i < 3; i++) {
		cache_dir_stats(p->cache, i, &s);
		assert_in_range(s.entries, 60, 140);
	}
	place_close(p);
	p->dir_names[0] = p->dirs[2];
	p->dir_names[2] = p->dirs[0];
	place_open(p);
	for (uint64_t i = 0; i < 300; i++)
		assert_int_equal(object_read(p->cache, i, 1000), 0);
}

static void a_folder_that_is_deleted_is_out_of_use_and_comes_back_empty(void **state)
{
	struct place *p = *state;
	char away[100];
	p->options.dir_count = 2;
	place_open(p);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(object_add(p->cache, i, 1000, 0), 0);
	snprintf(away, sizeof away, "%s/away", p->folder);
	assert_int_equal(rename(p->dirs[0], away), 0);
	cache_tend(p->cache, 0);
	assert_true(!in_use(p, 0) && in_use(p, 1));
	assert_int_equal(error_of(p, 0), ENODEV);
	assert_int_equal(error_of(p, 1), 0);
	/* The other one takes over. */
	unsigned hits = 0;
	for (uint64_t i = 0; i < 100; i++) {
		hits += object_read(p->cache, i, 1000) == 0;
		int status = object_add(p->cache, i, 1000, 0);
		assert_true(status == 0 || status == -EEXIST);
		assert_int_equal(object_read(p->cache, i, 1000), 0);
	}
	assert_in_range(hits, 25, 75);
	p->now += 5 * NS_PER_S;
	cache_tend(p->cache, 0);
	assert_false(in_use(p, 0));
	p->now += 6 * NS_PER_S;
	cache_tend(p->cache, 0);
	assert_true(in_use(p, 0));
	assert_int_equal(error_of(p, 0), 0);
	count_await(p->cache);
	assert_int_equal(object_add(p->cache, 1000, 1000, 0), 0);
	assert_int_equal(object_read(p->cache, 1000, 1000), 0);
}

static void files_of_a_folder_that_went_away_end_quietly(void **state)
{
	struct place *p = *state;
	struct cache_file_key key = { .volume = 1, .inode = 1, .version = 1, .size = 4 * MIB };
	struct cache_file *f, *again;
	char away[100];
	place_open(p);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &f), 0);
	assert_int_equal(chunks_add(f, 1, 0, MIB), 0);
	snprintf(away, sizeof away, "%s/away", p->folder);
	assert_int_equal(rename(p->dirs[0], away), 0);
	cache_tend(p->cache, 0);
	assert_int_equal(chunks_read(f, 1, 0, 10), -ENOENT);
	assert_int_equal(chunks_add(f, 1, MIB, MIB), -ENOSPC);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &again), -ENOSPC);
	p->now += 11 * NS_PER_S;
	cache_tend(p->cache, 0);
	count_await(p->cache);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &again), 0);
	assert_ptr_not_equal(f, again);
	assert_int_equal(chunks_add(again, 1, 0, 4 * MIB), 0);
	assert_int_equal(chunks_read(again, 1, 0, 4 * MIB), 0);
	assert_int_equal(cache_file_whole(f), -ENOENT);
	cache_file_close(f);
	cache_file_close(again);
}

static void a_disk_that_is_unmounted_is_not_replaced_by_its_mount_point(void **state)
{
	struct place *p = *state;
	if (!place_mount(p, 32))
		skip();
	p->dir_names[0] = p->folder; /* the mount point itself */
	place_open(p);
	assert_int_equal(object_add(p->cache, 1, 1000, 0), 0);
	assert_int_equal(umount2(p->folder, MNT_DETACH), 0);
	p->mounted = false;
	for (int i = 0; i < 3; i++) {
		cache_tend(p->cache, 0);
		assert_false(in_use(p, 0));
		p->now += 11 * NS_PER_S;
	}
	assert_int_equal(object_read(p->cache, 1, 1000), -ENOENT);
	assert_false(file_is_there(p->folder, "epochfs-cache"));
	assert_false(file_is_there(p->folder, "state"));
}

static void a_disk_that_becomes_read_only_is_out_of_use_until_it_is_writable(void **state)
{
	struct place *p = *state;
	if (!place_mount(p, 32))
		skip();
	place_open(p);
	assert_int_equal(object_add(p->cache, 1, 1000, 0), 0);
	/* While a cache has it open for writing no orderly remount succeeds; what errors do to it is tested by torture. */
	assert_int_equal(mount(NULL, p->folder, NULL, MS_REMOUNT | MS_RDONLY, NULL), -1);
	place_close(p);
	assert_int_equal(mount(NULL, p->folder, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	place_open(p);
	assert_false(in_use(p, 0));
	assert_int_equal(object_read(p->cache, 1, 1000), -ENOENT);
	assert_int_equal(object_add(p->cache, 2, 1000, 0), -ENOSPC);
	p->now += 11 * NS_PER_S;
	cache_tend(p->cache, 0);
	assert_false(in_use(p, 0));
	assert_int_equal(mount(NULL, p->folder, NULL, MS_REMOUNT, NULL), 0);
	p->now += 11 * NS_PER_S;
	cache_tend(p->cache, 0);
	assert_true(in_use(p, 0));
	count_await(p->cache);
	assert_int_equal(object_read(p->cache, 1, 1000), 0);
}

static void a_disk_that_is_full_is_said_to_be_that(void **state)
{
	struct place *p = *state;
	char path[200];
	static const char page[4096];
	if (!place_mount(p, 1))
		skip();
	snprintf(path, sizeof path, "%s/filler", p->folder);
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	while (write(fd, page, sizeof page) > 0)
		;
	assert_int_equal(errno, ENOSPC);
	close(fd);
	place_open(p);
	assert_false(in_use(p, 0));
	assert_int_equal(error_of(p, 0), ENOSPC);
	/* Nothing half made is in the way of the next try. */
	assert_false(file_is_there(p->dirs[0], "epochfs-cache"));
	assert_int_equal(unlink(path), 0);
	p->now += 11 * NS_PER_S;
	cache_tend(p->cache, 0);
	assert_true(in_use(p, 0));
}

static void one_that_cannot_be_used_at_first_is_used_later(void **state)
{
	struct place *p = *state;
	char late[128];
	snprintf(late, sizeof late, "%s/not-there/cache", p->folder);
	p->dir_names[1] = late;
	p->options.dir_count = 2;
	place_open(p);
	assert_true(in_use(p, 0) && !in_use(p, 1));
	late[strlen(late) - 6] = 0;
	assert_int_equal(mkdir(late, 0700), 0);
	p->now += 11 * NS_PER_S;
	cache_tend(p->cache, 0);
	assert_true(in_use(p, 1));
	count_await(p->cache);
	assert_int_equal(object_add(p->cache, 1, 1000, 0), 0);
}

static void options_that_make_no_sense_are_refused(void **state)
{
	struct place *p = *state;
	struct cache_options o = p->options;
	struct cache *c;
	int bad;
	o.size.percent = 101;
	assert_int_equal(cache_open(&o, &c, &bad), -EINVAL);
	o = p->options;
	o.dir_count = 0;
	assert_int_equal(cache_open(&o, &c, &bad), -EINVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_folder_that_holds_something_else_is_refused_and_left_alone),
		TEST(a_cache_of_another_format_is_refused),
		TEST(what_is_not_ours_among_the_entries_is_left_alone),
		TEST(content_is_spread_by_size_and_found_whatever_the_order),
		TEST(a_folder_that_is_deleted_is_out_of_use_and_comes_back_empty),
		TEST(files_of_a_folder_that_went_away_end_quietly),
		TEST(a_disk_that_is_unmounted_is_not_replaced_by_its_mount_point),
		TEST(a_disk_that_becomes_read_only_is_out_of_use_until_it_is_writable),
		TEST(a_disk_that_is_full_is_said_to_be_that),
		TEST(one_that_cannot_be_used_at_first_is_used_later),
		TEST(options_that_make_no_sense_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
