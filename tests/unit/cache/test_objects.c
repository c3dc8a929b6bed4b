#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "place.h"
#include "block/object.h"

static void an_object_is_there_after_a_remount(void **state)
{
	struct place *p = *state;
	place_open(p);
	assert_int_equal(object_read(p->cache, 5, 100000), -ENOENT);
	assert_int_equal(object_add(p->cache, 5, 100000, 0), 0);
	assert_int_equal(object_add(p->cache, 5, 100000, 0), -EEXIST);
	assert_int_equal(object_add(p->cache, 6, 0, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 100000), 0);
	place_close(p);
	place_open(p);
	assert_true(cache_object_has(p->cache, 5, 0));
	assert_false(cache_object_has(p->cache, 7, 0));
	assert_int_equal(object_read(p->cache, 5, 100000), 0);
	assert_int_equal(object_read(p->cache, 6, 0), 0);
	struct cache_stats s;
	cache_stats(p->cache, &s);
	assert_int_equal(s.entries, 2);
	assert_int_equal(s.hits, 2);
}

static void a_range_is_read_and_nothing_past_the_end(void **state)
{
	struct place *p = *state;
	uint8_t bytes[100];
	place_open(p);
	assert_int_equal(object_add(p->cache, 5, 1000, 0), 0);
	assert_int_equal(cache_object_read(p->cache, 5, 900, &(struct iovec){ bytes, 100 }, 1), 0);
	assert_true(content_is(5, 900, bytes, 100));
	assert_int_equal(cache_object_read(p->cache, 5, 901, &(struct iovec){ bytes, 100 }, 1), -ENOENT);
	assert_int_equal(cache_object_read(p->cache, 5, UINT64_MAX - 10, &(struct iovec){ bytes, 100 }, 1), -ENOENT);
	assert_int_equal(object_read(p->cache, 5, 1000), 0);
}

static void another_store_has_other_objects(void **state)
{
	struct place *p = *state;
	place_open(p);
	assert_int_equal(object_add(p->cache, 5, 1000, 0), 0);
	place_close(p);
	p->options.store[3] ^= 1;
	place_open(p);
	assert_int_equal(object_read(p->cache, 5, 1000), -ENOENT);
}

static void a_dropped_object_is_gone_and_can_come_again(void **state)
{
	struct place *p = *state;
	place_open(p);
	assert_int_equal(object_add(p->cache, 5, 1000, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 1000), 0);
	cache_object_drop(p->cache, 5);
	cache_object_drop(p->cache, 5);
	assert_int_equal(object_read(p->cache, 5, 1000), -ENOENT);
	assert_int_equal(object_add(p->cache, 5, 1000, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 1000), 0);
}

/* Cut off, with a wrong trailer, empty, longer: each time it is not here and makes way for a good one. */
static void one_that_is_not_as_long_as_it_should_be_is_dropped(void **state)
{
	struct place *p = *state;
	char path[256];
	for (int way = 0; way < 4; way++) {
		place_open(p);
		assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
		place_close(p);
		assert_true(place_find(p, "o-", path, sizeof path));
		if (way == 0)
			assert_int_equal(truncate(path, 5000), 0);
		else if (way == 1)
			file_damage(path, 10010);
		else
			assert_int_equal(truncate(path, way == 2 ? 0 : 20000), 0);
		place_open(p);
		assert_int_equal(object_read(p->cache, 5, 10000), -ENOENT);
		assert_false(cache_object_has(p->cache, 5, 0));
		assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
		assert_int_equal(object_read(p->cache, 5, 10000), 0);
		cache_object_drop(p->cache, 5);
		place_close(p);
	}
}

static void what_one_that_was_cut_off_took_is_not_counted_any_more(void **state)
{
	struct place *p = *state;
	struct cache_dir_stats before, after;
	char path[256];
	place_open(p);
	cache_dir_stats(p->cache, 0, &before);
	assert_int_equal(object_add(p->cache, 5, 1000000, 0), 0);
	assert_true(place_find(p, "o-", path, sizeof path));
	assert_int_equal(truncate(path, 5000), 0);
	assert_int_equal(object_read(p->cache, 5, 1000000), -ENOENT);
	cache_object_drop(p->cache, 5);
	for (int i = 0; i < 100; i++)
		cache_tend(p->cache, 0);
	cache_dir_stats(p->cache, 0, &after);
	assert_in_range(after.bytes, before.bytes, before.bytes + 65536); /* the folder it was in */
}

static void one_that_is_cut_off_or_deleted_while_it_is_open_is_not_here(void **state)
{
	struct place *p = *state;
	char path[256];
	place_open(p);
	assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 10000), 0);
	assert_true(place_find(p, "o-", path, sizeof path));
	assert_int_equal(truncate(path, 5000), 0);
	assert_int_equal(object_read(p->cache, 5, 10000), -ENOENT);
	assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(object_read(p->cache, 5, 10000), -ENOENT);
	assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 10000), 0);
}

static void what_another_process_evicted_and_added_again_is_found(void **state)
{
	struct place *p = *state;
	struct cache *other;
	int bad;
	place_open(p);
	assert_int_equal(cache_open(&p->options, &other, &bad), 0);
	count_await(other);
	assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 10000), 0);
	cache_object_drop(other, 5);
	assert_int_equal(object_add(other, 5, 10000, 0), 0);
	assert_int_equal(object_read(p->cache, 5, 10000), 0);
	cache_close(other);
}

/* A folder, a symbolic link to a good object, a pipe. */
static void what_is_no_file_under_its_name_is_neither_read_nor_removed(void **state)
{
	struct place *p = *state;
	char path[256], aside[300];
	struct stat st;
	place_open(p);
	for (int way = 0; way < 3; way++) {
		assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
		assert_true(place_find(p, "o-", path, sizeof path));
		snprintf(aside, sizeof aside, "%s/aside-%d", p->folder, way);
		assert_int_equal(rename(path, aside), 0);
		assert_int_equal(way == 0 ? mkdir(path, 0700) : way == 1 ? symlink(aside, path) : mkfifo(path, 0600), 0);
		place_close(p);
		place_open(p);
		assert_int_equal(object_read(p->cache, 5, 10000), -ENOENT);
		assert_false(cache_object_has(p->cache, 5, CACHE_PIN));
		assert_int_not_equal(object_add(p->cache, 5, 10000, 0), 0);
		cache_object_drop(p->cache, 5);
		cache_tend(p->cache, 0);
		assert_int_equal(lstat(path, &st), 0);
		assert_int_equal(stat(aside, &st), 0);
		assert_int_equal(remove(path), 0);
	}
}

static void a_bucket_that_is_a_link_leads_nowhere(void **state)
{
	struct place *p = *state;
	char path[256], aside[300];
	place_open(p);
	assert_int_equal(object_add(p->cache, 5, 10000, 0), 0);
	assert_true(place_find(p, "o-", path, sizeof path));
	*strrchr(path, '/') = 0;
	snprintf(aside, sizeof aside, "%s/aside", p->folder);
	assert_int_equal(rename(path, aside), 0);
	assert_int_equal(symlink(aside, path), 0);
	place_close(p);
	place_open(p);
	assert_int_equal(object_read(p->cache, 5, 10000), -ENOENT);
	assert_int_not_equal(object_add(p->cache, 5, 10000, 0), 0);
	cache_object_drop(p->cache, 5);
	assert_int_equal(place_count(p, "t-"), 0);
	assert_int_equal(place_bytes(aside) > 10000, 1);
}

static void an_object_that_is_too_large_is_refused(void **state)
{
	struct place *p = *state;
	place_open(p);
	struct iovec huge = { p, (size_t)OBJECT_SIZE_MAX + 1 };
	assert_int_equal(cache_object_add(p->cache, 1, 5, &huge, 1, 0), -EFBIG);
	assert_int_equal(object_add(p->cache, 5, 65 * MIB, 0), -ENOSPC);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_object_is_there_after_a_remount),
		TEST(a_range_is_read_and_nothing_past_the_end),
		TEST(what_one_that_was_cut_off_took_is_not_counted_any_more),
		TEST(another_store_has_other_objects),
		TEST(a_dropped_object_is_gone_and_can_come_again),
		TEST(one_that_is_not_as_long_as_it_should_be_is_dropped),
		TEST(one_that_is_cut_off_or_deleted_while_it_is_open_is_not_here),
		TEST(what_another_process_evicted_and_added_again_is_found),
		TEST(what_is_no_file_under_its_name_is_neither_read_nor_removed),
		TEST(a_bucket_that_is_a_link_leads_nowhere),
		TEST(an_object_that_is_too_large_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
