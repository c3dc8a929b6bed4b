#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "place.h"

/* As many as are let in. */
static unsigned objects_add(struct place *p, uint64_t first, unsigned count, size_t size, unsigned flags)
{
	unsigned in = 0;
	for (unsigned i = 0; i < count; i++)
		in += object_add(p->cache, first + i, size, flags) == 0;
	return in;
}

static unsigned objects_present(struct place *p, uint64_t first, unsigned count)
{
	unsigned there = 0;
	for (unsigned i = 0; i < count; i++)
		there += cache_object_has(p->cache, first + i, 0);
	return there;
}

static void a_full_cache_refuses_what_was_read_once(void **state)
{
	struct place *p = *state;
	place_open(p);
	unsigned in = objects_add(p, 0, 100, MIB, 0);
	assert_in_range(in, 60, 63);
	assert_true(place_bytes(p->folder) <= 64 * MIB);
	assert_int_equal(objects_present(p, 0, in), in);
	assert_int_equal(object_add(p->cache, 1000, MIB, 0), -ENOSPC);
	struct cache_stats s;
	cache_stats(p->cache, &s);
	assert_int_equal(s.evictions, 0);
	assert_true(s.refusals > 0);
}

static void what_is_told_is_let_in_and_is_not_pushed_out_by_its_like(void **state)
{
	struct place *p = *state;
	place_open(p);
	unsigned in = objects_add(p, 0, 100, MIB, 0);
	assert_int_equal(objects_add(p, 1000, 20, MIB, CACHE_TOLD), 20);
	assert_int_equal(objects_present(p, 1000, 20), 20);
	assert_in_range(objects_present(p, 0, 100), in - 22, in - 20);
	assert_true(place_bytes(p->folder) <= 64 * MIB);
	/* All of it told: no more of them. */
	unsigned more = objects_add(p, 2000, 100, MIB, CACHE_TOLD);
	assert_in_range(more, in - 22, in - 20);
	assert_int_equal(objects_present(p, 1000, 20), 20);
	/* Once they are read they make room again. */
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(object_read(p->cache, 1000 + i, MIB), 0);
	assert_in_range(objects_add(p, 3000, 20, MIB, CACHE_TOLD), 18, 20);
}

/* In MiB; what each takes beside its content is less than one. */
static uint64_t pinned(struct place *p)
{
	uint64_t bytes = 0;
	assert_int_equal(cache_dir_pinned(p->cache, 0, INT64_MAX, &bytes), 0);
	return bytes / MIB;
}

static void what_is_pinned_stays(void **state)
{
	struct place *p = *state;
	place_open(p);
	assert_int_equal(objects_add(p, 0, 10, MIB, CACHE_PIN), 10);
	assert_int_equal(objects_add(p, 10, 10, MIB, 0), 10);
	assert_int_equal(pinned(p), 10);
	for (unsigned i = 10; i < 20; i++)
		assert_true(cache_object_has(p->cache, i, CACHE_PIN));
	assert_int_equal(pinned(p), 20);
	place_close(p);
	place_open(p);
	objects_add(p, 1000, 200, MIB, CACHE_TOLD);
	assert_int_equal(objects_present(p, 0, 20), 20);
	place_close(p);
	p->options.size.bytes = 32 * MIB; /* the others make way */
	place_open(p);
	cache_tend(p->cache, 0);
	assert_true(place_bytes(p->folder) <= 32 * MIB);
	assert_int_equal(objects_present(p, 0, 20), 20);
	for (unsigned i = 0; i < 20; i++)
		cache_object_unpin(p->cache, i);
	assert_int_equal(pinned(p), 0);
	uint64_t untouched = 17;
	assert_int_equal(cache_dir_pinned(p->cache, 0, 0, &untouched), -ETIMEDOUT);
	assert_int_equal(untouched, 17);
	place_close(p);
	p->options.size.bytes = 8 * MIB;
	place_open(p);
	cache_tend(p->cache, 0);
	assert_true(place_bytes(p->folder) <= 8 * MIB);
	assert_true(objects_present(p, 0, 20) < 8);
}

/* As for the count of all that is there. */
static void what_is_no_bucket_holds_nothing_that_is_pinned(void **state)
{
	struct place *p = *state;
	char path[128];
	int made = 0;
	place_open(p);
	assert_int_equal(objects_add(p, 0, 2, MIB, CACHE_PIN), 2);
	for (unsigned i = 0; i < 5; i++) {
		snprintf(path, sizeof path, "%s/%02x", p->dirs[0], i);
		int fd = i % 2 ? symlink(".", path) : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		made += fd >= 0;
		if (fd > 0)
			close(fd);
	}
	assert_true(made >= 3);
	assert_int_equal(pinned(p), 2);
}

static void a_volume_gets_no_more_than_its_share(void **state)
{
	struct place *p = *state;
	struct cache_share share = { .volume = 1, .percent = 25 };
	p->options.shares = &share;
	p->options.share_count = 1;
	place_open(p);
	for (int again = 0; again < 2; again++) {
		uint64_t in = objects_add(p, 0, 64, MIB, 0) + again * 15;
		assert_in_range(in, 14, 16);
		/* Told ones only replace those of their own volume. */
		assert_in_range(objects_add(p, 100, 5, MIB, CACHE_TOLD), again ? 0 : 5, 5);
		assert_in_range(objects_present(p, 0, 200), 14, 16);
		place_close(p);
		place_open(p);
	}
	char *bytes = calloc(1, MIB);
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(cache_object_add(p->cache, 2, 5000 + i, &(struct iovec){ bytes, MIB }, 1, 0), 0);
	free(bytes);
	struct cache_file_key key = { .volume = 1, .inode = 1, .version = 1, .size = 4 * MIB };
	struct cache_file *f;
	if (cache_file_open(p->cache, &key, 0, &f) == 0) {
		assert_int_equal(chunks_add(f, 1, 0, 4 * MIB), -ENOSPC);
		cache_file_close(f);
	}
}

static void a_file_that_cannot_become_whole_is_not_begun(void **state)
{
	struct place *p = *state;
	struct cache_file_key key = { .volume = 1, .inode = 1, .version = 1, .size = 20 * MIB };
	struct cache_file *f;
	place_open(p);
	objects_add(p, 0, 50, MIB, 0);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &f), 0);
	assert_int_equal(chunks_add(f, 1, 0, CACHE_CHUNK), -ENOSPC);
	cache_file_close(f);
	assert_int_equal(cache_file_open(p->cache, &key, CACHE_TOLD, &f), 0);
	assert_int_equal(chunks_add(f, 1, 0, 20 * MIB), 0);
	assert_true(cache_file_whole(f) >= 0);
	cache_file_close(f);
	assert_true(place_bytes(p->folder) <= 64 * MIB);
}

static void of_a_file_larger_than_the_cache_a_part_is_kept(void **state)
{
	struct place *p = *state;
	struct cache_file_key key = { .volume = 1, .inode = 1, .version = 1, .size = 200 * MIB };
	struct cache_file *f;
	unsigned in = 0;
	place_open(p);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &f), 0);
	for (unsigned i = 0; i < 200; i++)
		in += chunks_add(f, 1, i * MIB, MIB) == 0;
	assert_in_range(in, 60, 63);
	assert_int_equal(chunks_read(f, 1, 0, 60 * MIB), 0);
	uint64_t at, length;
	assert_true(cache_file_absent(f, 0, 200 * MIB, &at, &length));
	assert_true(at == in * MIB && length == (200 - in) * MIB);
	assert_false(cache_file_absent(f, 5, in * MIB - 5, &at, &length));
	assert_true(place_bytes(p->folder) <= 64 * MIB);
	cache_file_close(f);
}

static uint64_t free_bytes(struct place *p)
{
	struct statvfs v;
	assert_int_equal(statvfs(p->folder, &v), 0);
	return v.f_bavail * v.f_frsize;
}

static void min_free_is_left_to_others_and_given_back_to_them(void **state)
{
	struct place *p = *state;
	char path[128];
	if (!place_mount(p, 64))
		skip();
	p->options.size.percent = 100;
	p->options.min_free.percent = 25;
	place_open(p);
	objects_add(p, 0, 10, MIB, CACHE_PIN);
	unsigned in = objects_add(p, 10, 100, MIB, 0);
	assert_in_range(in, 34, 38);
	assert_true(free_bytes(p) >= 16 * MIB);
	/* Another program writes; first those that are not pinned go, then these. */
	snprintf(path, sizeof path, "%s/other", p->folder);
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	for (uint64_t i = 0; i < 60; i++) {
		assert_int_equal(posix_fallocate(fd, (off_t)(i * MIB), (off_t)MIB), 0);
		cache_tend(p->cache, 0);
		assert_true(free_bytes(p) >= (i < 45 ? 16 * MIB : 0));
		if (i < 30)
			assert_int_equal(objects_present(p, 0, 10), 10);
		assert_true(i < 40 || object_add(p->cache, 500 + i, MIB, CACHE_TOLD) == -ENOSPC);
	}
	assert_int_equal(place_count(p, "o-"), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	close(fd);
	p->now += NS_PER_S;
	assert_int_equal(objects_add(p, 0, 10, MIB, 0), 10);
}

static void a_full_disk_is_no_error(void **state)
{
	struct place *p = *state;
	struct cache_file_key key = { .volume = 1, .inode = 1, .version = 1, .size = 8 * MIB };
	struct cache_file *f;
	char path[128];
	if (!place_mount(p, 32))
		skip();
	p->options.size.bytes = 1024 * MIB;
	place_open(p);
	assert_int_equal(objects_add(p, 0, 10, MIB, 0), 10);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &f), 0);
	/* Behind our back: the last look at the free space was before. */
	snprintf(path, sizeof path, "%s/other", p->folder);
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	while (free_bytes(p) > 0)
		assert_int_equal(posix_fallocate(fd, lseek(fd, 0, SEEK_END), 4096), 0);
	assert_int_equal(object_add(p->cache, 100, 500000, 0), -ENOSPC);
	assert_int_equal(object_add(p->cache, 100, 500000, 0), -ENOSPC);
	assert_int_equal(chunks_add(f, 1, 0, CACHE_CHUNK), -ENOSPC);
	assert_int_equal(object_read(p->cache, 3, MIB), 0);
	struct cache_dir_stats s;
	cache_dir_stats(p->cache, 0, &s);
	assert_true(s.in_use);
	assert_int_equal(place_count(p, "t-"), 0);
	cache_file_close(f);
	close(fd);
}

static void a_smaller_size_is_reached_when_it_is_tended(void **state)
{
	struct place *p = *state;
	place_open(p);
	objects_add(p, 0, 60, MIB, 0);
	place_close(p);
	p->options.size.bytes = 10 * MIB;
	place_open(p);
	for (int i = 0; i < 3; i++)
		cache_tend(p->cache, 0);
	assert_true(place_bytes(p->folder) <= 10 * MIB);
	assert_in_range(objects_present(p, 0, 60), 6, 9);
}

static void the_content_of_a_hundred_thousand_entries_is_there_at_once(void **state)
{
	struct place *p = *state;
	struct cache_stats s;
	uint8_t bytes[64];
	if (!place_mount(p, 900))
		skip();
	p->options.size.bytes = 800 * MIB;
	place_open(p);
	for (uint64_t i = 0; i < 100000; i++) {
		content_fill(i, 0, bytes, 64);
		assert_int_equal(cache_object_add(p->cache, 1, i, &(struct iovec){ bytes, 64 }, 1, 0), 0);
	}
	place_close(p);
	place_open(p);
	cache_stats(p->cache, &s);
	assert_int_equal(s.entries, 100000);
	for (uint64_t i = 0; i < 100000; i += 997)
		assert_int_equal(object_read(p->cache, i, 64), 0);
	/* And after a count from nothing. */
	place_close(p);
	char path[128];
	snprintf(path, sizeof path, "%s/state", p->dirs[0]);
	assert_int_equal(unlink(path), 0);
	int bad;
	assert_int_equal(cache_open(&p->options, &p->cache, &bad), 0);
	assert_int_equal(object_read(p->cache, 4711, 64), 0);
	struct cache_dir_stats d;
	do {
		cache_tend(p->cache, 0);
		cache_dir_stats(p->cache, 0, &d);
	} while (d.counting);
	assert_int_equal(d.entries, 100000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_full_cache_refuses_what_was_read_once),
		TEST(what_is_told_is_let_in_and_is_not_pushed_out_by_its_like),
		TEST(what_is_pinned_stays),
		TEST(what_is_no_bucket_holds_nothing_that_is_pinned),
		TEST(a_volume_gets_no_more_than_its_share),
		TEST(a_file_that_cannot_become_whole_is_not_begun),
		TEST(of_a_file_larger_than_the_cache_a_part_is_kept),
		TEST(min_free_is_left_to_others_and_given_back_to_them),
		TEST(a_full_disk_is_no_error),
		TEST(a_smaller_size_is_reached_when_it_is_tended),
		TEST(the_content_of_a_hundred_thousand_entries_is_there_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
