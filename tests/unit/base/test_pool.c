#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/pool.h"

#define KIB ((size_t)1 << 10)
#define MANY 100

static const size_t sizes[] = { 1, 4096, 64 * KIB, 96 * KIB, 512 * KIB, 1032 * KIB, 4096 * KIB };

static void buffers_do_not_overlap_and_large_ones_begin_on_a_page(void **state)
{
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct pool p;
		uint8_t *taken[MANY];
		pool_init(&p, sizes[i], 10, NULL);
		for (int round = 0; round < 3; round++) {
			int n = sizes[i] > 512 * KIB ? 5 : MANY;
			for (int k = 0; k < n; k++) {
				taken[k] = pool_take(&p);
				assert_non_null(taken[k]);
				memset(taken[k], k, sizes[i]);
				if (sizes[i] >= POOL_ALIGNED)
					assert_int_equal((uintptr_t)taken[k] % 4096, 0);
			}
			for (int k = 0; k < n; k++) {
				int at = (k * 37) % n; /* in another order than they were taken */
				assert_int_equal(taken[at][0], at);
				assert_int_equal(taken[at][sizes[i] - 1], at);
				pool_give(&p, taken[at]);
			}
		}
		pool_give(&p, NULL);
		pool_free(&p);
	}
}

static void what_is_given_back_is_taken_again_and_no_more_kept_than_said(void **state)
{
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		/* Cut from huge pages, whole ones are kept or go. */
		size_t rounding = sizes[i] == 64 * KIB ? 32 : sizes[i] == 512 * KIB ? 4 : 1;
		struct pool p;
		void *taken[MANY];
		pool_init(&p, sizes[i], 40, NULL);
		for (int k = 0; k < MANY; k++)
			taken[k] = pool_take(&p);
		for (int k = 0; k < MANY; k++)
			pool_give(&p, taken[k]);
		assert_true(p.count <= 40 && p.count > 40 - rounding);
		size_t kept = p.count;
		void *again = pool_take(&p);
		assert_int_equal(p.count, kept - 1);
		pool_give(&p, again);
		pool_free(&p);
	}
}

static void neighbours_are_taken_one_after_the_other(void **state)
{
	struct pool p;
	uint8_t *taken[64];
	pool_init(&p, 64 * KIB, 64, NULL);
	for (int round = 0; round < 2; round++) {
		for (int k = 0; k < 64; k++)
			taken[k] = pool_take(&p);
		for (int k = 1; k < 32; k++)
			assert_ptr_equal(taken[k], taken[k - 1] + 64 * KIB);
		for (int k = 0; k < 64; k++)
			pool_give(&p, taken[k]);
	}
	pool_free(&p);
}

static void *exchange(void *context)
{
	struct pool *p = context;
	for (int round = 0; round < 2000; round++) {
		uint64_t *mine[5];
		for (uint64_t k = 0; k < 5; k++) {
			mine[k] = pool_take(p);
			*mine[k] = (uintptr_t)&mine + k;
		}
		for (uint64_t k = 0; k < 5; k++) {
			assert_int_equal(*mine[k], (uintptr_t)&mine + k);
			pool_give(p, mine[k]);
		}
	}
	return NULL;
}

static void threads_do_not_get_each_others_buffers(void **state)
{
	for (size_t i = 0; i < 3; i++) {
		struct pool p;
		pthread_t threads[4];
		pool_init(&p, sizes[i] < 8 ? 8 : sizes[i], 7, NULL);
		for (int k = 0; k < 4; k++)
			assert_int_equal(pthread_create(&threads[k], NULL, exchange, &p), 0);
		for (int k = 0; k < 4; k++)
			pthread_join(threads[k], NULL);
		pool_free(&p);
	}
}

/* In malloc's memory it would stay, in huge pages, for whatever small thing is there later. */
static void large_buffers_that_are_not_kept_are_given_back_to_the_system(void **state)
{
	size_t size = 4096 * KIB;
	struct pool p;
	void *buffer;
	mallopt(M_MMAP_THRESHOLD, 8 << 20); /* as the program does */
	pool_init(&p, size, 0, NULL);
	buffer = pool_take(&p);
	assert_non_null(buffer);
	assert_int_equal((uintptr_t)buffer % POOL_SLAB, 0);
	memset(buffer, 1, size);
	assert_int_equal(msync(buffer, size, MS_ASYNC), 0);
	pool_give(&p, buffer);
	assert_int_equal(msync(buffer, size, MS_ASYNC), -1); /* nothing is there */
	assert_int_equal(errno, ENOMEM);
	pool_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buffers_do_not_overlap_and_large_ones_begin_on_a_page),
		cmocka_unit_test(what_is_given_back_is_taken_again_and_no_more_kept_than_said),
		cmocka_unit_test(neighbours_are_taken_one_after_the_other),
		cmocka_unit_test(threads_do_not_get_each_others_buffers),
		cmocka_unit_test(large_buffers_that_are_not_kept_are_given_back_to_the_system),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
