/* The state file may hold anything. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "place.h"
#include "cache/state.h"

static char *state_path(struct place *p, char *out)
{
	snprintf(out, 128, "%s/state", p->dirs[0]);
	return out;
}

static void objects_fill(struct place *p)
{
	for (uint64_t i = 0; i < 20; i++)
		(void)object_add(p->cache, i, 100000, 0);
}

/* Uses the cache in all ways; the bytes are checked by object_read. */
static void cache_use(struct place *p, unsigned seed)
{
	struct cache_stats s;
	struct cache_file *f;
	struct cache_file_key key = { .volume = seed % 3, .inode = seed, .version = 1, .size = 200000 };
	for (uint64_t i = 0; i < 30; i++) {
		(void)object_read(p->cache, i, 100000);
		(void)object_add(p->cache, i, 100000, i % 4);
	}
	if (cache_file_open(p->cache, &key, 0, &f) == 0) {
		(void)chunks_add(f, seed, 0, 200000);
		(void)chunks_read(f, seed, 0, 200000);
		cache_file_close(f);
	}
	cache_tend(p->cache, MIB);
	cache_stats(p->cache, &s);
}

static void settle(struct place *p)
{
	for (int i = 0; i < 600; i++) {
		p->now += 6 * NS_PER_S;
		cache_tend(p->cache, 0);
	}
}

static void assert_right_count(struct place *p)
{
	struct cache_stats s;
	cache_stats(p->cache, &s);
	assert_int_equal(s.entries, place_count(p, "o-") + place_count(p, "f-"));
	assert_in_range(s.bytes + 4 * MIB, place_bytes(p->dirs[0]), place_bytes(p->dirs[0]) + 6 * MIB);
}

static void state_overwrite(struct place *p, unsigned seed, size_t from)
{
	char path[128];
	struct stat st;
	int fd = open(state_path(p, path), O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	uint8_t *bytes = malloc((size_t)st.st_size);
	srandom(seed);
	for (off_t i = 0; i < st.st_size; i++)
		bytes[i] = seed % 4 == 0 ? 0 : seed % 4 == 1 ? 0xff : seed % 4 == 2 ? 0x7f : (uint8_t)random();
	assert_true(pwrite(fd, bytes + from, (size_t)st.st_size - from, (off_t)from) > 0);
	free(bytes);
	close(fd);
}

static void a_state_of_any_content_does_no_harm(void **state)
{
	struct place *p = *state;
	char path[128];
	for (unsigned seed = 0; seed < 12; seed++) {
		place_open(p);
		objects_fill(p);
		place_close(p);
		/* From the beginning, or with a header that is believed. */
		state_overwrite(p, seed, seed < 6 ? 0 : offsetof(struct cache_state, clock));
		place_open(p);
		cache_use(p, seed);
		settle(p);
		assert_right_count(p);
		assert_true(object_add(p->cache, 1000 + seed, 1000, 0) == 0);
		place_close(p);
	}
	for (int length = 0; length < 100000; length += 9999) {
		assert_int_equal(truncate(state_path(p, path), length), 0);
		place_open(p);
		cache_use(p, 1);
		place_close(p);
	}
	assert_int_equal(unlink(state_path(p, path)), 0);
	assert_int_equal(symlink("/etc/passwd", path), 0);
	place_open(p);
	cache_use(p, 1);
}

static void a_state_that_is_cut_off_while_it_is_used_does_no_harm(void **state)
{
	struct place *p = *state;
	char path[128];
	for (int length = 0; length < 100000; length += 33333) {
		place_open(p);
		objects_fill(p);
		assert_int_equal(truncate(state_path(p, path), length), 0);
		cache_use(p, 1);
		settle(p);
		place_close(p);
		place_open(p);
		settle(p);
		assert_right_count(p);
		place_close(p);
	}
}

static void a_state_that_is_overwritten_while_it_is_used_does_no_harm(void **state)
{
	struct place *p = *state;
	place_open(p);
	for (unsigned seed = 0; seed < 12; seed++) {
		objects_fill(p);
		state_overwrite(p, seed, seed < 8 ? offsetof(struct cache_state, clock) : 0);
		cache_use(p, seed);
	}
	settle(p);
	assert_right_count(p);
	assert_true(place_bytes(p->dirs[0]) <= 64 * MIB);
}

static void a_state_that_was_removed_is_made_again(void **state)
{
	struct place *p = *state;
	char path[128];
	struct cache *other;
	int bad;
	place_open(p);
	objects_fill(p);
	assert_int_equal(unlink(state_path(p, path)), 0);
	assert_int_equal(cache_open(&p->options, &other, &bad), 0);
	count_await(other);
	assert_int_equal(object_add(other, 100, 1000, 0), 0);
	cache_tend(p->cache, 0);
	count_await(p->cache);
	assert_int_equal(object_add(p->cache, 101, 1000, 0), 0);
	struct cache_stats s, s2;
	cache_stats(p->cache, &s);
	cache_stats(other, &s2);
	assert_int_equal(s.entries, 22);
	assert_int_equal(s2.entries, 22);
	cache_close(other);
}

static void after_a_reboot_all_is_counted_before_anything_is_added(void **state)
{
	struct place *p = *state;
	char path[128];
	place_open(p);
	objects_fill(p);
	place_close(p);
	/* As if it had been written in another boot, and lost half its pages. */
	int fd = open(state_path(p, path), O_RDWR);
	uint64_t boot = 12345, none[200] = { 0 };
	assert_int_equal(pwrite(fd, &boot, 8, offsetof(struct cache_state, boot)), 8);
	assert_int_equal(pwrite(fd, none, sizeof none, offsetof(struct cache_state, buckets)), sizeof none);
	close(fd);
	place_open(p);
	assert_right_count(p);
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(object_read(p->cache, i, 100000), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: the frame of the tests sets a handler for SIGBUS before each. */
		TEST(a_state_that_is_cut_off_while_it_is_used_does_no_harm),     TEST(a_state_of_any_content_does_no_harm),
		TEST(a_state_that_is_overwritten_while_it_is_used_does_no_harm), TEST(a_state_that_was_removed_is_made_again),
		TEST(after_a_reboot_all_is_counted_before_anything_is_added),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
