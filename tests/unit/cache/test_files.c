#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "place.h"

#define SIZE (3 * MIB + 12345)
#define CHUNKS 49 /* the last one of 12345 bytes */
#define NUMBER 77
#define ROUND 300 /* calls in which the scrub, half a MiB a time, has certainly come by */

static const struct cache_file_key key = { .volume = 3, .inode = 99, .version = 10, .size = SIZE };

static struct cache_file *file_open(struct place *p)
{
	struct cache_file *f = NULL;
	assert_int_equal(cache_file_open(p->cache, &key, 0, &f), 0);
	return f;
}

static void file_fill(struct cache_file *f) { assert_int_equal(chunks_add(f, NUMBER, 0, SIZE), 0); }

static void assert_descriptor_reads(int fd)
{
	uint8_t *bytes = malloc(SIZE);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(pread(fd, bytes, SIZE, 0), SIZE);
	assert_true(content_is(NUMBER, 0, bytes, SIZE));
	free(bytes);
}

static void chunks_are_read_as_they_come_and_the_rest_is_absent(void **state)
{
	struct place *p = *state;
	uint64_t at, length;
	place_open(p);
	struct cache_file *f = file_open(p);
	assert_true(cache_file_absent(f, 0, SIZE, &at, &length));
	assert_true(at == 0 && length == SIZE);
	assert_int_equal(chunks_read(f, NUMBER, 0, 10), -ENOENT);
	assert_int_equal(chunks_add(f, NUMBER, 2 * CACHE_CHUNK, 3 * CACHE_CHUNK), 0);
	assert_int_equal(chunks_add(f, NUMBER, (CHUNKS - 1) * CACHE_CHUNK, SIZE % CACHE_CHUNK), 0);
	assert_int_equal(chunks_read(f, NUMBER, 2 * CACHE_CHUNK + 5, 2 * CACHE_CHUNK + 50), 0);
	assert_int_equal(chunks_read(f, NUMBER, SIZE - 100, 100), 0);
	assert_int_equal(chunks_read(f, NUMBER, 5 * CACHE_CHUNK - 1, 2), -ENOENT);
	assert_int_equal(chunks_read(f, NUMBER, SIZE - 100, 101), -ENOENT);
	assert_true(cache_file_absent(f, 0, SIZE, &at, &length));
	assert_true(at == 0 && length == 2 * CACHE_CHUNK);
	assert_true(cache_file_absent(f, 2 * CACHE_CHUNK, SIZE, &at, &length));
	assert_true(at == 5 * CACHE_CHUNK && length == (CHUNKS - 1 - 5) * CACHE_CHUNK);
	assert_false(cache_file_absent(f, 3 * CACHE_CHUNK, 2 * CACHE_CHUNK, &at, &length));
	assert_false(cache_file_absent(f, SIZE - 10, 10, &at, &length));
	assert_false(cache_file_absent(f, SIZE, 10, &at, &length));
	assert_int_equal(cache_file_whole(f), -ENOENT);
	file_fill(f);
	assert_false(cache_file_absent(f, 0, SIZE, &at, &length));
	assert_descriptor_reads(cache_file_whole(f));
	cache_file_close(f);
}

static void only_whole_chunks_within_the_file_are_taken(void **state)
{
	struct place *p = *state;
	place_open(p);
	struct cache_file *f = file_open(p), *none;
	assert_int_equal(chunks_add(f, NUMBER, 5, CACHE_CHUNK), -EINVAL);
	assert_int_equal(chunks_add(f, NUMBER, 0, CACHE_CHUNK - 1), -EINVAL);
	assert_int_equal(chunks_add(f, NUMBER, (CHUNKS - 1) * CACHE_CHUNK, CACHE_CHUNK), -EINVAL);
	assert_int_equal(chunks_add(f, NUMBER, CHUNKS * CACHE_CHUNK, CACHE_CHUNK), -EINVAL);
	assert_int_equal(cache_file_open(p->cache, &(struct cache_file_key){ .inode = 1 }, 0, &none), -EINVAL);
	assert_int_equal(cache_file_open(p->cache, &(struct cache_file_key){ .inode = 1, .size = 1ULL << 59 }, 0, &none), -EFBIG);
	cache_file_close(f);
}

/* Past the page cache where they are aligned, through it where not. */
static void chunks_are_taken_from_wherever_they_are_in_memory(void **state)
{
	struct place *p = *state;
	place_open(p);
	for (uint64_t skew = 0; skew <= 8; skew += 8) {
		struct cache_file_key another = key;
		struct cache_file *f;
		struct iovec parts[CHUNKS];
		uint8_t *memory = aligned_alloc(4096, 2 * CHUNKS * CACHE_CHUNK);
		another.version += skew;
		assert_int_equal(cache_file_open(p->cache, &another, 0, &f), 0);
		for (uint64_t i = 0; i < CHUNKS; i++) {
			uint8_t *chunk = memory + 2 * (CHUNKS - 1 - i) * CACHE_CHUNK + skew;
			parts[i] = (struct iovec){ chunk, i == CHUNKS - 1 ? SIZE % CACHE_CHUNK : CACHE_CHUNK };
			content_fill(NUMBER, i * CACHE_CHUNK, chunk, parts[i].iov_len);
		}
		assert_int_equal(cache_file_add_chunks(f, 0, parts, 0), -EINVAL);
		assert_int_equal(cache_file_add_chunks(f, 7, parts, 1), -EINVAL);
		assert_int_equal(cache_file_add_chunks(f, 0, parts + CHUNKS - 1, 1), -EINVAL);
		assert_int_equal(cache_file_add_chunks(f, 0, parts, 20), 0);
		assert_int_equal(cache_file_add_chunks(f, 0, parts, CHUNKS), 0);
		assert_descriptor_reads(cache_file_whole(f));
		assert_int_equal(chunks_read(f, NUMBER, 0, SIZE), 0);
		cache_file_close(f);
		free(memory);
	}
}

struct adder {
	pthread_t thread;
	pthread_barrier_t *begin;
	struct cache_file *file;
};

static void *adder_run(void *argument)
{
	struct adder *a = argument;
	pthread_barrier_wait(a->begin);
	file_fill(a->file);
	return NULL;
}

/* As who reads does beside those that read ahead. */
static void what_several_threads_add_at_once_takes_room_once(void **state)
{
	enum { FILES = 10, ADDERS = 3 };
	struct place *p = *state;
	struct cache_dir_stats stats;
	pthread_barrier_t begin;
	uint64_t before;
	place_open(p);
	cache_dir_stats(p->cache, 0, &stats);
	before = stats.bytes;
	pthread_barrier_init(&begin, NULL, ADDERS);
	for (uint64_t i = 0; i < FILES; i++) {
		struct cache_file_key one = key;
		struct adder adders[ADDERS];
		one.inode += i;
		for (int k = 0; k < ADDERS; k++) {
			adders[k].begin = &begin;
			assert_int_equal(cache_file_open(p->cache, &one, 0, &adders[k].file), 0);
			assert_int_equal(pthread_create(&adders[k].thread, NULL, adder_run, &adders[k]), 0);
		}
		for (int k = 0; k < ADDERS; k++) {
			pthread_join(adders[k].thread, NULL);
			cache_file_close(adders[k].file);
		}
	}
	pthread_barrier_destroy(&begin);
	cache_dir_stats(p->cache, 0, &stats);
	/* Beside the data: a map, and what an entry is reckoned with. */
	assert_in_range(stats.bytes - before, FILES * SIZE, FILES * (SIZE + 4 * CACHE_CHUNK));
}

static void what_was_filled_before_a_remount_is_there_after_it(void **state)
{
	struct place *p = *state;
	for (int sealed = 0; sealed < 2; sealed++) {
		place_open(p);
		struct cache_file *f = file_open(p);
		file_fill(f);
		if (sealed)
			cache_tend(p->cache, 0);
		cache_file_close(f);
		place_close(p);
		place_open(p);
		f = file_open(p);
		assert_descriptor_reads(cache_file_whole(f));
		assert_int_equal(chunks_read(f, NUMBER, 0, SIZE), 0);
		cache_file_close(f);
		place_close(p);
	}
}

static void a_file_that_another_process_left_half_full_goes_on_from_there(void **state)
{
	struct place *p = *state;
	uint64_t at, length;
	place_open(p);
	struct cache_file *f = file_open(p);
	assert_int_equal(chunks_add(f, NUMBER, 0, 20 * CACHE_CHUNK), 0);
	cache_file_close(f);
	place_close(p);
	place_open(p);
	f = file_open(p);
	assert_true(cache_file_absent(f, 0, SIZE, &at, &length));
	assert_int_equal(at, 20 * CACHE_CHUNK);
	assert_int_equal(chunks_add(f, NUMBER, at, length), 0);
	/* Nothing of the first part was verified by us yet: that is done now. */
	assert_descriptor_reads(cache_file_whole(f));
	cache_file_close(f);
}

static void a_damaged_chunk_is_absent_and_can_be_added_again(void **state)
{
	struct place *p = *state;
	char path[256];
	uint64_t at, length;
	place_open(p);
	struct cache_file *f = file_open(p);
	assert_int_equal(chunks_add(f, NUMBER, 0, 20 * CACHE_CHUNK), 0);
	cache_file_close(f);
	place_close(p);
	assert_true(place_find(p, "f-", path, sizeof path));
	file_damage(path, 7 * CACHE_CHUNK + 1000);
	place_open(p);
	f = file_open(p);
	assert_int_equal(chunks_read(f, NUMBER, 0, 7 * CACHE_CHUNK), 0);
	assert_int_equal(chunks_read(f, NUMBER, 7 * CACHE_CHUNK, 10), -ENOENT);
	assert_int_equal(chunks_read(f, NUMBER, 8 * CACHE_CHUNK, 12 * CACHE_CHUNK), 0);
	assert_true(cache_file_absent(f, 0, 20 * CACHE_CHUNK, &at, &length));
	assert_true(at == 7 * CACHE_CHUNK && length == CACHE_CHUNK);
	assert_int_equal(chunks_add(f, NUMBER, 7 * CACHE_CHUNK, CACHE_CHUNK), 0);
	assert_int_equal(chunks_read(f, NUMBER, 0, 20 * CACHE_CHUNK), 0);
	struct cache_stats s;
	cache_stats(p->cache, &s);
	assert_int_equal(s.damaged, 1);
	cache_file_close(f);
}

/* Every byte of the header in turn, then some of the checksums; the data is never taken for what it is not. */
static void a_damaged_map_loses_chunks_and_never_shows_wrong_ones(void **state)
{
	struct place *p = *state;
	char path[256];
	for (uint64_t byte = 0; byte < 72 + 16; byte++) {
		place_open(p);
		struct cache_file *f = file_open(p);
		file_fill(f);
		cache_tend(p->cache, 0);
		cache_file_close(f);
		place_close(p);
		assert_true(place_find(p, "m-", path, sizeof path));
		file_damage(path, byte);
		place_open(p);
		f = file_open(p);
		int status = chunks_read(f, NUMBER, 0, CACHE_CHUNK);
		assert_true(status == 0 || status == -ENOENT);
		int fd = cache_file_whole(f);
		if (fd >= 0)
			assert_descriptor_reads(fd);
		cache_file_close(f);
		place_close(p);
	}
}

static void files_that_are_cut_off_under_us_are_not_here(void **state)
{
	struct place *p = *state;
	char data[256], map[256];
	uint64_t at, length;
	for (int way = 0; way < 4; way++) {
		place_open(p);
		struct cache_file *f = file_open(p);
		file_fill(f);
		assert_true(place_find(p, "f-", data, sizeof data) && place_find(p, "m-", map, sizeof map));
		assert_int_equal(way < 2 ? truncate(data, 100000) : way == 2 ? truncate(map, 100) : unlink(map), 0);
		if (way == 1 || way == 3) {
			cache_file_close(f);
			cache_tend(p->cache, 0);
			f = file_open(p);
		}
		int status = chunks_read(f, NUMBER, 100, SIZE - 100);
		assert_true(status == -ENOENT || way == 2 || way == 3);
		(void)cache_file_absent(f, 0, SIZE, &at, &length);
		status = chunks_add(f, NUMBER, 0, SIZE);
		assert_true(status == 0 || way == 2);
		if (status == 0)
			assert_int_equal(chunks_read(f, NUMBER, 0, SIZE), 0);
		cache_file_close(f);
		place_close(p);
		assert_true(unlink(data) == 0 || way == 3);
		(void)unlink(map);
	}
}

static void of_a_whole_file_the_beginning_is_verified_at_first_use(void **state)
{
	struct place *p = *state;
	char path[256];
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	cache_tend(p->cache, 0);
	cache_file_close(f);
	place_close(p);
	assert_true(place_find(p, "f-", path, sizeof path));
	file_damage(path, 500000);
	place_open(p);
	f = file_open(p);
	assert_int_equal(cache_file_whole(f), -ENOENT);
	assert_int_equal(chunks_read(f, NUMBER, 500000, 10), -ENOENT);
	file_fill(f);
	assert_descriptor_reads(cache_file_whole(f));
	cache_file_close(f);
}

static void the_scrub_finds_what_nobody_reads_through_us(void **state)
{
	struct place *p = *state;
	char path[256];
	struct cache_stats s;
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	assert_true(cache_file_whole(f) >= 0);
	cache_tend(p->cache, 0);
	assert_true(place_find(p, "f-", path, sizeof path));
	file_damage(path, 2 * MIB);
	for (int i = 0; i < ROUND && cache_file_whole(f) >= 0; i++)
		cache_tend(p->cache, MIB / 2);
	assert_int_equal(cache_file_whole(f), -ENOENT);
	assert_int_equal(chunks_read(f, NUMBER, 2 * MIB, 10), -ENOENT);
	cache_stats(p->cache, &s);
	assert_true(s.damaged == 1 && s.scrubbed_bytes > 0);
	cache_file_close(f);
}

static void a_file_that_is_replaced_while_it_is_scrubbed_is_not_damaged(void **state)
{
	struct place *p = *state;
	struct cache_file_key newer = key;
	struct cache_file *new_one;
	struct cache_stats s = { 0 };
	newer.version++;
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	assert_true(cache_file_whole(f) >= 0);
	cache_tend(p->cache, 0);
	cache_file_close(f);
	for (int i = 0; i < ROUND && s.scrubbed_bytes == 0; i++) {
		cache_tend(p->cache, MIB / 2);
		cache_stats(p->cache, &s);
	}
	assert_in_range(s.scrubbed_bytes, 1, SIZE - MIB);
	assert_int_equal(cache_file_open(p->cache, &newer, 0, &new_one), 0);
	assert_int_equal(place_count(p, "s-"), 0); /* nobody had it open, so it is gone */
	for (int i = 0; i < ROUND; i++)
		cache_tend(p->cache, MIB / 2);
	cache_stats(p->cache, &s);
	assert_int_equal(s.damaged, 0);
	cache_file_close(new_one);
}

/* Of one that has few files to verify it would else list all folders again, all the time. */
static void the_scrub_takes_its_time_to_go_round_a_cache(void **state)
{
	enum { ROUNDS = 3, CALLS = ROUNDS * 256 };
	struct place *p = *state;
	struct cache_stats s;
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	assert_true(cache_file_whole(f) >= 0);
	for (int i = 0; i < CALLS; i++)
		cache_tend(p->cache, 4 * MIB);
	cache_stats(p->cache, &s);
	assert_in_range(s.scrubbed_bytes / (CHUNKS * (uint64_t)CACHE_CHUNK), ROUNDS - 1, ROUNDS);
	cache_file_close(f);
}

static void a_newer_version_takes_the_place_of_an_older_one_that_can_be_read_on(void **state)
{
	struct place *p = *state;
	struct cache_file_key newer = key;
	struct cache_file *new_one, *none;
	newer.version++;
	newer.size = 100000;
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	int fd = cache_file_whole(f);
	assert_int_equal(cache_file_open(p->cache, &newer, 0, &new_one), 0);
	assert_int_equal(chunks_read(new_one, NUMBER, 0, 10), -ENOENT);
	assert_int_equal(chunks_add(new_one, NUMBER + 1, 0, 100000), 0);
	assert_int_equal(place_count(p, "s-"), 1);
	for (int i = 0; i < 300; i++) { /* a count does not remove what is in use */
		p->now += 6 * NS_PER_S;
		cache_tend(p->cache, 0);
	}
	assert_descriptor_reads(fd);
	assert_int_equal(chunks_read(f, NUMBER, 0, SIZE), 0);
	assert_int_equal(place_count(p, "s-"), 1);
	cache_file_close(f);
	assert_int_equal(cache_file_open(p->cache, &key, 0, &none), -ESTALE);
	for (int i = 0; i < 300; i++) {
		p->now += 6 * NS_PER_S;
		cache_tend(p->cache, 0);
	}
	assert_int_equal(place_count(p, "s-"), 0);
	assert_int_equal(chunks_read(new_one, NUMBER + 1, 0, 100000), 0);
	assert_int_equal(place_count(p, "f-"), 1);
	cache_file_close(new_one);
}

static void an_older_version_that_nobody_uses_goes_at_once(void **state)
{
	struct place *p = *state;
	struct cache_file_key newer = key;
	struct cache_file *new_one;
	struct cache_stats s;
	newer.version++;
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	cache_file_close(f);
	cache_tend(p->cache, 0); /* it was to be made durable */
	assert_int_equal(cache_file_open(p->cache, &newer, 0, &new_one), 0);
	assert_int_equal(place_count(p, "s-"), 0);
	cache_stats(p->cache, &s);
	assert_true(s.bytes < 100000 && s.entries == 1);
	cache_file_close(new_one);
}

static void a_duplicate_of_the_descriptor_keeps_the_file(void **state)
{
	struct place *p = *state;
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	int fd = dup(cache_file_whole(f));
	cache_file_close(f);
	cache_tend(p->cache, 0);
	/* Told objects push out all that is not in use. */
	for (uint64_t i = 0; i < 90; i++)
		(void)object_add(p->cache, i, MIB, CACHE_TOLD);
	assert_descriptor_reads(fd);
	assert_int_equal(place_count(p, "f-"), 1);
	close(fd);
}

static void the_same_file_is_opened_once_in_a_process(void **state)
{
	struct place *p = *state;
	place_open(p);
	struct cache_file *f = file_open(p), *again = file_open(p);
	assert_ptr_equal(f, again);
	cache_file_close(f);
	assert_int_equal(chunks_add(again, NUMBER, 0, CACHE_CHUNK), 0);
	cache_file_close(again);
}

static void a_backing_file_replaced_by_another_is_not_taken_for_it(void **state)
{
	struct place *p = *state;
	char path[256];
	place_open(p);
	struct cache_file *f = file_open(p);
	file_fill(f);
	cache_tend(p->cache, 0);
	cache_file_close(f);
	place_close(p);
	assert_true(place_find(p, "f-", path, sizeof path));
	int fd = open(path, O_RDONLY);
	assert_int_equal(unlink(path), 0);
	int other = open(path, O_RDWR | O_CREAT, 0600);
	assert_int_equal(ftruncate(other, SIZE), 0);
	close(other);
	place_open(p);
	f = file_open(p);
	assert_int_equal(cache_file_whole(f), -ENOENT);
	assert_int_equal(chunks_read(f, NUMBER, 2 * MIB, 10), -ENOENT);
	cache_file_close(f);
	close(fd);
}

static void half_of_a_pair_is_removed_by_the_count(void **state)
{
	struct place *p = *state;
	char path[256];
	for (int way = 0; way < 2; way++) {
		place_open(p);
		struct cache_file *f = file_open(p);
		file_fill(f);
		cache_file_close(f);
		place_close(p);
		assert_true(place_find(p, way ? "f-" : "m-", path, sizeof path));
		assert_int_equal(unlink(path), 0);
		snprintf(path, sizeof path, "%s/state", p->dirs[0]);
		assert_int_equal(unlink(path), 0); /* all is counted */
		place_open(p);
		assert_int_equal(place_count(p, "f-") + place_count(p, "m-"), 0);
		place_close(p);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
static void what_somebody_has_written_to_is_not_given_out_unverified(void **state)
{
	struct place *p = *state;
	char path[256];
	for (int remounted = 0; remounted < 2; remounted++) {
		place_open(p);
		struct cache_file *f = file_open(p);
		file_fill(f);
		cache_tend(p->cache, 0);
		assert_true(cache_file_whole(f) >= 0);
		assert_true(place_find(p, "f-", path, sizeof path));
		if (remounted) {
			cache_file_close(f);
			place_close(p);
		}
		file_damage(path, 3 * MIB);
		assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
		if (remounted) {
			place_open(p);
			f = file_open(p);
		}
		for (int i = 0; i < 3; i++)
			assert_true(cache_file_whole(f) < 0);
		file_fill(f);
		assert_descriptor_reads(cache_file_whole(f));
		cache_file_close(f);
		place_close(p);
	}
}

static void what_is_detached_is_nobodys_content_any_more(void **state)
{
	struct place *p = *state;
	struct cache *other;
	struct cache_file *f, *theirs, *again;
	uint8_t byte;
	int fd, bad;
	place_open(p);
	f = file_open(p);
	file_fill(f);
	cache_tend(p->cache, 0); /* sealed */
	fd = dup(cache_file_whole(f));
	assert_descriptor_reads(fd);
	/* As another process would. */
	assert_int_equal(cache_open(&p->options, &other, &bad), 0);
	assert_int_equal(cache_file_open(other, &key, 0, &theirs), 0);
	assert_int_equal(cache_file_detach(f), 0);
	assert_int_equal(cache_file_detach(f), 0);
	assert_false(cache_file_is_alone(f));
	cache_file_close(theirs);
	assert_true(cache_file_is_alone(f));
	assert_int_equal(cache_file_patch(f, SIZE, "!", 1), 0);
	assert_int_equal(pread(fd, &byte, 1, SIZE), 1);
	assert_int_equal(byte, '!');
	assert_int_equal(cache_file_cut(f, 5), 0);
	assert_int_equal(pread(fd, &byte, 1, 5), 0);
	assert_int_equal(chunks_read(f, NUMBER, 0, 10), -ENOENT);
	assert_int_equal(cache_file_whole(f), -ENOENT);
	assert_true(chunks_add(f, NUMBER, 0, CACHE_CHUNK) <= 0);
	assert_int_equal(pread(fd, &byte, 1, 5), 0);
	/* Whoever opens it gets an empty one. */
	again = file_open(p);
	assert_ptr_not_equal(again, f);
	assert_int_equal(chunks_read(again, NUMBER, 0, 10), -ENOENT);
	file_fill(again);
	assert_descriptor_reads(cache_file_whole(again));
	assert_int_equal(cache_file_open(other, &key, 0, &theirs), 0);
	assert_descriptor_reads(cache_file_whole(theirs));
	cache_file_close(theirs);
	cache_close(other);
	cache_file_close(again);
	cache_file_close(f);
	close(fd);
}

static void one_that_is_half_here_is_worth_completing(void **state)
{
	struct place *p = *state;
	place_open(p);
	struct cache_file *f = file_open(p);
	assert_false(cache_file_is_worth_completing(f));
	assert_int_equal(chunks_add(f, NUMBER, 0, 24 * CACHE_CHUNK), 0);
	assert_false(cache_file_is_worth_completing(f));
	assert_int_equal(chunks_add(f, NUMBER, 24 * CACHE_CHUNK, CACHE_CHUNK), 0);
	assert_true(cache_file_is_worth_completing(f));
	file_fill(f);
	assert_false(cache_file_is_worth_completing(f));
	cache_file_close(f);
}

/* What was absent is looked at first the next time, and the rest nevertheless. */
static void one_that_another_process_fills_is_worth_verifying_once_all_is_there(void **state)
{
	struct place *p = *state;
	struct cache_file *f, *theirs;
	struct cache *other;
	char path[512];
	int bad;
	place_open(p);
	f = file_open(p);
	assert_int_equal(cache_open(&p->options, &other, &bad), 0);
	assert_int_equal(cache_file_open(other, &key, 0, &theirs), 0);
	assert_int_equal(chunks_add(theirs, NUMBER, 0, 3 * CACHE_CHUNK), 0);
	assert_false(cache_file_is_worth_completing(f));
	assert_int_equal(chunks_add(theirs, NUMBER, 4 * CACHE_CHUNK, (CHUNKS - 5) * CACHE_CHUNK), 0);
	assert_false(cache_file_is_worth_completing(f));
	assert_int_equal(chunks_add(theirs, NUMBER, 3 * CACHE_CHUNK, CACHE_CHUNK), 0);
	assert_false(cache_file_is_worth_completing(f));
	assert_int_equal(cache_file_whole(f), -ENOENT);
	assert_int_equal(chunks_add(theirs, NUMBER, (CHUNKS - 1) * CACHE_CHUNK, SIZE % CACHE_CHUNK), 0);
	assert_true(cache_file_is_worth_completing(f));
	assert_true(place_find(p, "f-", path, sizeof path));
	file_damage(path, CACHE_CHUNK);
	assert_int_equal(chunks_read(theirs, NUMBER, CACHE_CHUNK, 10), -ENOENT);
	assert_false(cache_file_is_worth_completing(f));
	assert_int_equal(cache_file_whole(f), -ENOENT);
	cache_file_close(theirs);
	cache_close(other);
	cache_file_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_somebody_has_written_to_is_not_given_out_unverified),
		TEST(what_is_detached_is_nobodys_content_any_more),
		TEST(one_that_is_half_here_is_worth_completing),
		TEST(one_that_another_process_fills_is_worth_verifying_once_all_is_there),
		TEST(chunks_are_read_as_they_come_and_the_rest_is_absent),
		TEST(only_whole_chunks_within_the_file_are_taken),
		TEST(chunks_are_taken_from_wherever_they_are_in_memory),
		TEST(what_several_threads_add_at_once_takes_room_once),
		TEST(what_was_filled_before_a_remount_is_there_after_it),
		TEST(a_file_that_another_process_left_half_full_goes_on_from_there),
		TEST(a_damaged_chunk_is_absent_and_can_be_added_again),
		TEST(a_damaged_map_loses_chunks_and_never_shows_wrong_ones),
		TEST(files_that_are_cut_off_under_us_are_not_here),
		TEST(of_a_whole_file_the_beginning_is_verified_at_first_use),
		TEST(the_scrub_finds_what_nobody_reads_through_us),
		TEST(a_file_that_is_replaced_while_it_is_scrubbed_is_not_damaged),
		TEST(the_scrub_takes_its_time_to_go_round_a_cache),
		TEST(a_newer_version_takes_the_place_of_an_older_one_that_can_be_read_on),
		TEST(an_older_version_that_nobody_uses_goes_at_once),
		TEST(a_duplicate_of_the_descriptor_keeps_the_file),
		TEST(the_same_file_is_opened_once_in_a_process),
		TEST(a_backing_file_replaced_by_another_is_not_taken_for_it),
		TEST(half_of_a_pair_is_removed_by_the_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
