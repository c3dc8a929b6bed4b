#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/pool.h"
#include "base/region.h"

#define KIB ((size_t)1 << 10)
#define PIECE (200 * KIB)

static void who_has_the_descriptor_sees_what_is_written(void **state)
{
	struct region *r;
	uint8_t *a, *b, seen[5];
	assert_int_equal(region_new(1024 * KIB, &r), 0);
	a = region_take(r, PIECE);
	b = region_take(r, PIECE);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_equal((uintptr_t)b % 4096, 0);
	memset(a, 'a', PIECE);
	memset(b, 'b', PIECE);
	assert_true(region_holds(r, b + 100, PIECE - 100));
	assert_int_equal(pread(region_descriptor(r), seen, 5, (off_t)region_offset(r, b + PIECE - 5)), 5);
	assert_memory_equal(seen, "bbbbb", 5);
	assert_int_equal(pread(region_descriptor(r), seen, 5, (off_t)region_offset(r, a + PIECE - 5)), 5);
	assert_memory_equal(seen, "aaaaa", 5);
	assert_false(region_holds(r, seen, 5));
	assert_false(region_holds(NULL, a, 5));
	region_give(r, a, PIECE);
	region_give(r, b, PIECE);
	region_free(r);
}

static void what_is_given_back_takes_no_memory_and_can_be_taken_again(void **state)
{
	uint8_t *pieces[4];
	struct region *r;
	struct stat st;
	assert_int_equal(region_new(1024 * KIB, &r), 0);
	for (int round = 0; round < 3; round++) {
		for (int k = 0; k < 4; k++) {
			pieces[k] = region_take(r, PIECE);
			assert_non_null(pieces[k]);
			memset(pieces[k], k, PIECE);
		}
		assert_null(region_take(r, PIECE)); /* it is full */
		for (int k = 0; k < 4; k++)
			assert_int_equal(pieces[k][PIECE - 1], k);
		region_give(r, pieces[1], PIECE);
		assert_ptr_equal(region_take(r, PIECE), pieces[1]);
		for (int k = 0; k < 4; k++)
			region_give(r, pieces[k], PIECE);
		assert_int_equal(fstat(region_descriptor(r), &st), 0);
		assert_int_equal(st.st_blocks, 0);
	}
	assert_null(region_take(r, 1025 * KIB));
	region_free(r);
}

/* Or whoever reads it by a mapping could be killed by it. */
static void it_cannot_be_cut_off(void **state)
{
	struct region *r;
	assert_int_equal(region_new(64 * KIB, &r), 0);
	assert_int_equal(ftruncate(region_descriptor(r), 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(region_descriptor(r), (off_t)(1024 * KIB)), -1);
	region_free(r);
}

static void a_pool_takes_from_it_while_there_is_room(void **state)
{
	struct region *r;
	struct pool p;
	uint8_t *taken[4];
	int held = 0;
	assert_int_equal(region_new(3 * 1088 * KIB, &r), 0);
	pool_init(&p, 1032 * KIB, 1, r);
	for (int round = 0; round < 3; round++) {
		held = 0;
		for (int k = 0; k < 4; k++) {
			taken[k] = pool_take(&p);
			assert_non_null(taken[k]);
			memset(taken[k], k, 1032 * KIB);
			held += region_holds(r, taken[k], 1032 * KIB);
		}
		assert_int_equal(held, 3);
		for (int k = 0; k < 4; k++) {
			assert_int_equal(taken[k][1032 * KIB - 1], k);
			pool_give(&p, taken[k]);
		}
	}
	pool_free(&p);
	region_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_has_the_descriptor_sees_what_is_written),
		cmocka_unit_test(what_is_given_back_takes_no_memory_and_can_be_taken_again),
		cmocka_unit_test(it_cannot_be_cut_off),
		cmocka_unit_test(a_pool_takes_from_it_while_there_is_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
