#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/bytes.h"
#include "client/chunks.h"

/* One object in memory, with one extent in it; counts and breaks what is fetched. */
struct fixture {
	struct chunks *chunks;
	struct extent extent;
	struct buf object;
	uint8_t *raw;
	_Atomic int fetches;
	_Atomic int fail_next;
	_Atomic bool another_try; /* with which the object is whole again */
};

static int fetch(void *context, const struct extent *e, uint32_t offset, uint32_t length, const struct iovec *into, int count)
{
	struct fixture *f = context;
	uint32_t at = offset;
	atomic_fetch_add(&f->fetches, 1);
	if (atomic_load(&f->fail_next) > 0) {
		atomic_fetch_sub(&f->fail_next, 1);
		return -EIO;
	}
	assert_int_equal(e->object, f->extent.object);
	assert_true(offset + length <= f->object.len);
	for (int k = 0; k < count; k++) {
		memcpy(into[k].iov_base, f->object.data + at, into[k].iov_len);
		at += into[k].iov_len;
	}
	assert_int_equal(at, offset + length);
	return 0;
}

static bool doubt(void *context, uint64_t object)
{
	struct fixture *f = context;

	assert_int_equal(object, f->extent.object);
	if (!atomic_exchange(&f->another_try, false))
		return false;
	f->object.data[6] ^= 4;
	return true;
}

static void setup(struct fixture *f, uint32_t raw_length, enum codec codec, uint64_t limit)
{
	*f = (struct fixture){ 0 };
	f->raw = malloc(raw_length);
	for (uint32_t i = 0; i < raw_length; i++)
		f->raw[i] = (uint8_t)(i / 1000 + i % 7);
	buf_append(&f->object, "before", 6);
	assert_int_equal(extent_encode(f->raw, raw_length, codec, 3, &f->object, &f->extent), 0);
	f->extent.object = 42;
	assert_int_equal(f->extent.object_offset, 6);
	assert_int_equal(chunks_new(limit, fetch, doubt, f, &f->chunks), 0);
}

static void teardown(struct fixture *f)
{
	chunks_free(f->chunks);
	buf_free(&f->object);
	free(f->raw);
}

static void expect_chunks(struct fixture *f, uint32_t first, uint32_t last)
{
	struct chunk *got[64];
	assert_int_equal(chunks_get(f->chunks, &f->extent, first, last, got), 0);
	for (uint32_t k = first; k <= last; k++) {
		uint32_t left = f->extent.raw_length - k * CHUNK_BYTES, n = left < CHUNK_BYTES ? left : CHUNK_BYTES;
		assert_int_equal(chunk_length(got[k - first]), n);
		assert_memory_equal(chunk_data(got[k - first]), f->raw + (size_t)k * CHUNK_BYTES, n);
	}
	chunks_unpin(f->chunks, got, last - first + 1);
}

static void ranges_of_every_codec_come_back_as_written(void **state)
{
	enum codec codecs[] = { CODEC_NONE, CODEC_LZ4, CODEC_ZSTD };
	uint32_t sizes[] = { 1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 77 };
	for (int c = 0; c < 3; c++) {
		for (int s = 0; s < 5; s++) {
			struct fixture f;
			setup(&f, sizes[s], codecs[c], 64 << 20);
			uint32_t last = extent_chunks(sizes[s]) - 1;
			expect_chunks(&f, last, last);
			expect_chunks(&f, 0, 0);
			expect_chunks(&f, 0, last);
			teardown(&f);
		}
	}
}

static void what_is_cached_is_not_fetched_again(void **state)
{
	struct fixture f;
	setup(&f, 4 * CHUNK_BYTES, CODEC_NONE, 64 << 20);
	expect_chunks(&f, 0, 3);
	int fetches = atomic_load(&f.fetches);
	assert_int_equal(fetches, 1); /* chunks and table, which follow each other */
	expect_chunks(&f, 0, 3);
	expect_chunks(&f, 2, 2);
	assert_int_equal(atomic_load(&f.fetches), fetches);
	teardown(&f);
}

static void the_table_is_fetched_once_whoever_needs_it_first(void **state)
{
	for (enum codec codec = CODEC_NONE; codec <= CODEC_ZSTD; codec++) {
		struct fixture f;
		setup(&f, 4 * CHUNK_BYTES + 9, codec, 64 << 20);
		expect_chunks(&f, 1, 2);
		assert_int_equal(atomic_load(&f.fetches), 2); /* table, chunks */
		expect_chunks(&f, 3, 4);
		assert_int_equal(atomic_load(&f.fetches), 3);
		teardown(&f);
	}
}

static void the_limit_holds_once_nothing_is_pinned(void **state)
{
	struct fixture f;
	struct chunks_stats stats;
	setup(&f, 32 * CHUNK_BYTES, CODEC_NONE, 4 * CHUNK_BYTES);
	expect_chunks(&f, 0, 31);
	chunks_stats(f.chunks, &stats);
	assert_true(stats.bytes <= 4 * CHUNK_BYTES);
	expect_chunks(&f, 0, 31);
	teardown(&f);
}

static void a_failed_fetch_is_reported_and_the_next_try_succeeds(void **state)
{
	struct fixture f;
	struct chunk *got[4];
	setup(&f, 4 * CHUNK_BYTES, CODEC_NONE, 64 << 20);
	for (int broken = 1; broken <= 2; broken++) {
		atomic_store(&f.fail_next, 1);
		assert_int_equal(chunks_get(f.chunks, &f.extent, 0, 3, got), -EIO);
	}
	expect_chunks(&f, 0, 3);
	teardown(&f);
}

static void a_flipped_bit_is_never_handed_out(void **state)
{
	uint32_t places[] = { 6, 6 + 70000, 6 + 4 * CHUNK_BYTES + 3 };
	for (int k = 0; k < 3; k++) {
		struct fixture f;
		struct chunk *got[4];
		setup(&f, 4 * CHUNK_BYTES, CODEC_NONE, 64 << 20);
		f.object.data[places[k]] ^= 4;
		assert_int_equal(chunks_get(f.chunks, &f.extent, 0, 3, got), -EBADMSG);
		teardown(&f);
	}
}

static void damage_that_another_try_mends_is_not_seen(void **state)
{
	struct fixture f;
	struct chunk *got[4];

	setup(&f, 4 * CHUNK_BYTES, CODEC_NONE, 64 << 20);
	f.object.data[6] ^= 4;
	atomic_store(&f.another_try, true);
	expect_chunks(&f, 0, 3);
	teardown(&f);
	setup(&f, 4 * CHUNK_BYTES, CODEC_NONE, 64 << 20);
	f.object.data[6 + 70000] ^= 4;
	atomic_store(&f.another_try, true); /* which mends something else */
	assert_int_equal(chunks_get(f.chunks, &f.extent, 0, 3, got), -EBADMSG);
	teardown(&f);
}

static void *reader_thread(void *context)
{
	struct fixture *f = context;
	unsigned seed = (unsigned)(uintptr_t)pthread_self();
	for (int k = 0; k < 300; k++) {
		uint32_t first = rand_r(&seed) % 16, last = first + rand_r(&seed) % (16 - first);
		expect_chunks(f, first, last);
	}
	return NULL;
}

static void many_readers_with_little_memory_all_see_the_right_bytes(void **state)
{
	struct fixture f;
	pthread_t threads[4];
	setup(&f, 16 * CHUNK_BYTES, CODEC_LZ4, 3 * CHUNK_BYTES);
	for (int k = 0; k < 4; k++)
		assert_int_equal(pthread_create(&threads[k], NULL, reader_thread, &f), 0);
	for (int k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	teardown(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges_of_every_codec_come_back_as_written),
		cmocka_unit_test(what_is_cached_is_not_fetched_again),
		cmocka_unit_test(the_table_is_fetched_once_whoever_needs_it_first),
		cmocka_unit_test(the_limit_holds_once_nothing_is_pinned),
		cmocka_unit_test(a_failed_fetch_is_reported_and_the_next_try_succeeds),
		cmocka_unit_test(a_flipped_bit_is_never_handed_out),
		cmocka_unit_test(damage_that_another_try_mends_is_not_seen),
		cmocka_unit_test(many_readers_with_little_memory_all_see_the_right_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
