#include "base/bytes.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include "base/arena.h"
#include "base/cleanup.h"
#include "base/intmap.h"

static void integers_have_a_fixed_byte_order(void **state)
{
	uint8_t p[8];
	put_le32(p, 0x01020304);
	assert_memory_equal(p, "\4\3\2\1", 4);
	put_be32(p, 0x01020304);
	assert_memory_equal(p, "\1\2\3\4", 4);
	put_be64(p, 0x0102030405060708);
	assert_memory_equal(p, "\1\2\3\4\5\6\7\10", 8);
	assert_true(get_be64(p) == 0x0102030405060708);
	assert_true(get_le64(p) == 0x0807060504030201);
	put_le16(p, 0xabcd);
	assert_int_equal(get_le16(p), 0xabcd);
}

static void a_buffer_grows_with_what_is_appended(void **state)
{
	CLEANUP_BUF struct buf b = { 0 };
	for (uint32_t i = 0; i < 10000; i++)
		buf_le32(&b, i);
	assert_false(b.failed);
	assert_int_equal(b.len, 40000);
	for (uint32_t i = 0; i < 10000; i++)
		assert_int_equal(get_le32(b.data + 4 * i), i);
	buf_append(&b, NULL, 0);
	assert_int_equal(b.len, 40000);
	assert_non_null(buf_extend(&b, 0));
}

static void a_buffer_that_failed_stays_failed_until_cleared(void **state)
{
	CLEANUP_BUF struct buf b = { 0 };
	buf_le8(&b, 1);
	assert_null(buf_extend(&b, SIZE_MAX));
	assert_null(buf_extend(&b, SIZE_MAX - 1));
	assert_true(b.failed);
	buf_le64(&b, 2);
	assert_null(buf_extend(&b, 1));
	assert_int_equal(b.len, 1);
	buf_clear(&b);
	buf_le16(&b, 3);
	assert_false(b.failed);
	assert_int_equal(b.len, 2);
}

static void a_reader_takes_what_is_there_and_nothing_else(void **state)
{
	const uint8_t in[] = { 1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 9, 9 };
	struct reader r = reader_of(in, sizeof in);
	assert_int_equal(take_le8(&r), 1);
	assert_int_equal(take_le16(&r), 2);
	assert_int_equal(take_le32(&r), 3);
	assert_int_equal(take_le64(&r), 4);
	assert_int_equal(reader_left(&r), 2);
	assert_false(r.bad);
	assert_int_equal(take_le32(&r), 0);
	assert_true(r.bad);
	assert_int_equal(take_le8(&r), 0); /* bad stays bad, though a byte was left */
	assert_int_equal(reader_left(&r), 0);
}

static void a_reader_of_nothing_gives_nothing(void **state)
{
	struct reader r = reader_of(NULL, 0);
	assert_non_null(take_bytes(&r, 0));
	assert_false(r.bad);
	assert_null(take_bytes(&r, SIZE_MAX));
	assert_true(r.bad);
}

static void an_arena_gives_aligned_memory_that_does_not_overlap(void **state)
{
	struct arena a;
	uint8_t *p[500];
	arena_init(&a, 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 500; i++) {
			size_t n = (size_t)(i * 37 % 1000);
			p[i] = arena_take(&a, n);
			assert_non_null(p[i]);
			assert_int_equal((uintptr_t)p[i] % 16, 0);
			memset(p[i], i, n);
		}
		for (int i = 0; i < 500; i++)
			for (int j = 0; j < i * 37 % 1000; j++)
				assert_int_equal(p[i][j], (uint8_t)i);
		arena_reset(&a);
		assert_int_equal(a.taken, 0);
	}
	arena_free(&a);
}

static void a_large_request_does_not_waste_the_chunk_in_use(void **state)
{
	struct arena a;
	arena_init(&a, 0);
	uint8_t *before = arena_take(&a, 16);
	uint8_t *big = arena_zero(&a, 1 << 20);
	uint8_t *after = arena_take(&a, 16);
	assert_non_null(big);
	assert_int_equal(big[(1 << 20) - 1], 0);
	assert_ptr_equal(before + 16, after);
	assert_memory_equal(arena_copy(&a, "copied", 7), "copied", 7);
	arena_free(&a);
	arena_free(&a);
}

static void an_arena_never_gives_more_than_its_limit(void **state)
{
	struct arena a;
	arena_init(&a, 1000);
	assert_null(arena_take(&a, SIZE_MAX));
	assert_null(arena_take(&a, SIZE_MAX - 15));
	assert_null(arena_take(&a, 1001));
	assert_non_null(arena_take(&a, 900));
	assert_null(arena_take(&a, 100));
	assert_non_null(a.allocator.alloc(a.allocator.allocator_data, 64));
	a.allocator.free(a.allocator.allocator_data, NULL);
	arena_reset(&a);
	assert_non_null(arena_take(&a, 900));
	arena_free(&a);
}

static void a_map_keeps_a_million_changes_apart(void **state)
{
	enum { KEYS = 5000 };
	struct intmap m = { 0 };
	static uintptr_t model[KEYS];
	uint64_t random = 42;
	size_t used = 0;
	for (int step = 0; step < 1000000; step++) {
		random = random * 6364136223846793005ULL + 1442695040888963407ULL;
		uint64_t key = (random >> 33) % KEYS;
		bool growing = step / 100000 % 2 == 0;
		if ((random >> 60) < (growing ? 12 : 4)) {
			used += !model[key];
			model[key] = (uintptr_t)step + 1;
			assert_int_equal(intmap_set(&m, key * 4096, (void *)model[key]), 0);
		} else {
			used -= !!model[key];
			assert_ptr_equal(intmap_remove(&m, key * 4096), (void *)model[key]);
			model[key] = 0;
		}
		if (m.used != used)
			fail();
	}
	for (uint64_t key = 0; key < KEYS; key++)
		assert_ptr_equal(intmap_get(&m, key * 4096), (void *)model[key]);
	size_t seen = 0, i = 0;
	uint64_t key;
	void *value;
	while (intmap_next(&m, &i, &key, &value)) {
		assert_ptr_equal(value, (void *)model[key / 4096]);
		seen++;
	}
	assert_int_equal(seen, used);
	intmap_free(&m);
}

static void an_empty_map_has_nothing_and_takes_no_null(void **state)
{
	struct intmap m = { 0 };
	size_t i = 0;
	assert_null(intmap_get(&m, 0));
	assert_null(intmap_remove(&m, 0));
	assert_false(intmap_next(&m, &i, NULL, NULL));
	assert_int_equal(intmap_set(&m, 0, NULL), -EINVAL);
	assert_int_equal(intmap_set(&m, UINT64_MAX, &m), 0);
	assert_ptr_equal(intmap_get(&m, UINT64_MAX), &m);
	assert_null(intmap_get(&m, 0));
	intmap_free(&m);
	assert_null(intmap_get(&m, UINT64_MAX));
}

static void a_map_emptied_gives_its_memory_back(void **state)
{
	struct intmap m = { 0 };
	for (uint64_t i = 1; i <= 100000; i++)
		assert_int_equal(intmap_set(&m, i, &m), 0);
	assert_true(m.capacity * 16 / 100000 <= 42);
	for (uint64_t i = 1; i <= 100000; i++)
		assert_ptr_equal(intmap_remove(&m, i), &m);
	assert_true(m.capacity <= 64);
	intmap_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(integers_have_a_fixed_byte_order),
		cmocka_unit_test(a_buffer_grows_with_what_is_appended),
		cmocka_unit_test(a_buffer_that_failed_stays_failed_until_cleared),
		cmocka_unit_test(a_reader_takes_what_is_there_and_nothing_else),
		cmocka_unit_test(a_reader_of_nothing_gives_nothing),
		cmocka_unit_test(an_arena_gives_aligned_memory_that_does_not_overlap),
		cmocka_unit_test(a_large_request_does_not_waste_the_chunk_in_use),
		cmocka_unit_test(an_arena_never_gives_more_than_its_limit),
		cmocka_unit_test(a_map_keeps_a_million_changes_apart),
		cmocka_unit_test(an_empty_map_has_nothing_and_takes_no_null),
		cmocka_unit_test(a_map_emptied_gives_its_memory_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
