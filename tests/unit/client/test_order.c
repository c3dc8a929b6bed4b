#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include "client/order.h"

#define CAPACITY 4096u

static void fill(struct order *o, uint64_t window, uint64_t ahead, uint64_t files, uint64_t bytes)
{
	assert_int_equal(order_init(o, CAPACITY, window, ahead, 0), 0);
	for (uint64_t i = 0; i < files; i++)
		assert_int_equal(order_add(o, 100 + i, bytes), 0);
}

/* Takes all that may be taken; how many. */
static uint64_t take_all(struct order *o)
{
	uint64_t position, inode, bytes, n = 0;

	for (; order_take(o, &position, &inode, &bytes); n++)
		order_done(o, position, bytes, ORDER_ON_DISK);
	assert_true(o->ahead_bytes <= o->window);
	assert_true(o->ahead_files <= o->ahead);
	return n;
}

static void no_more_than_the_window_is_fetched_ahead(void **state)
{
	struct order o;

	fill(&o, 1000, 4000, 100, 100);
	assert_int_equal(take_all(&o), 10);
	assert_false(order_seen(&o, 7)); /* not of the order */
	assert_int_equal(take_all(&o), 0);
	assert_true(order_seen(&o, 100));
	assert_int_equal(take_all(&o), 1);
	for (uint64_t i = 1; i < 5; i++)
		assert_true(order_seen(&o, 100 + i));
	assert_int_equal(take_all(&o), 4);
	assert_int_equal(o.ready, 15);
	order_free(&o);
}

static void no_more_than_so_many_files_are_fetched_ahead(void **state)
{
	struct order o;

	fill(&o, 1000000, 3, 100, 100);
	assert_int_equal(take_all(&o), 3);
	assert_true(order_seen(&o, 100));
	assert_int_equal(take_all(&o), 1);
	order_free(&o);
}

static void a_file_larger_than_the_window_is_fetched_as_far_as_that_goes(void **state)
{
	uint64_t position, inode, bytes;
	struct order o;

	fill(&o, 1000, 10, 2, 5000);
	assert_true(order_take(&o, &position, &inode, &bytes));
	assert_int_equal(inode, 100);
	assert_int_equal(bytes, 1000);
	assert_false(order_take(&o, &position, &inode, &bytes));
	assert_true(order_seen(&o, 100));
	assert_true(order_take(&o, &position, &inode, &bytes));
	order_free(&o);
}

static void what_goes_to_memory_is_bounded_by_that(void **state)
{
	uint64_t position, inode, bytes, taken = 0;
	struct order o;

	assert_int_equal(order_init(&o, CAPACITY, 10000, 1000, 300), 0);
	for (uint64_t i = 0; i < 50; i++)
		assert_int_equal(order_add(&o, 100 + i, 100), 0);
	for (; order_take(&o, &position, &inode, &bytes); taken++)
		order_done(&o, position, bytes, ORDER_IN_MEMORY);
	assert_int_equal(taken, 3);
	assert_true(order_seen(&o, 100));
	assert_int_equal(o.memory_bytes, 200);
	assert_true(order_take(&o, &position, &inode, &bytes));
	/* One that is read before it has come counts no more. */
	assert_true(order_seen(&o, inode));
	order_done(&o, position, bytes, ORDER_IN_MEMORY);
	assert_int_equal(o.memory_bytes, 200);
	order_free(&o);
}

static void what_was_read_before_it_was_fetched_is_not_fetched(void **state)
{
	uint64_t position, inode, bytes;
	struct order o;

	fill(&o, 300, 100, 10, 100);
	for (uint64_t i = 0; i < 5; i++)
		assert_true(order_seen(&o, 100 + i));
	assert_true(order_take(&o, &position, &inode, &bytes));
	assert_int_equal(inode, 105);
	order_free(&o);
}

/* Eight workers, each with a batch of 32: what lies before the furthest is still to come. */
static void workers_that_read_out_of_order_lose_nothing(void **state)
{
	uint64_t position, inode, bytes, taken = 0;
	struct order o;

	fill(&o, 100000, 1000, 512, 10);
	for (uint64_t w = 0; w < 8; w++)
		assert_true(order_seen(&o, 100 + w * 32));
	assert_int_equal(o.first, 1);
	assert_int_equal(o.furthest, 7 * 32 + 1);
	while (order_take(&o, &position, &inode, &bytes))
		taken++;
	assert_int_equal(taken, 512 - 8);
	assert_int_equal(o.passed, 0);
	order_free(&o);
}

static void files_that_are_never_seen_do_not_hold_it_up_for_ever(void **state)
{
	struct order o;

	fill(&o, 100 * 64, 64, 4000, 100);
	take_all(&o);
	for (uint64_t i = 0; i < 4000; i += 2) {
		assert_true(order_seen(&o, 100 + i));
		take_all(&o);
	}
	assert_true(o.next > 3990);
	assert_true(o.passed > 1900);
	assert_true(o.ahead_files <= 64);
	order_free(&o);
}

static void a_file_read_in_pieces_does_not_bring_the_next_epoch(void **state)
{
	struct order o;

	fill(&o, 1000, 20, 100, 100);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(order_add(&o, 100 + i, 100), 0);
	for (int piece = 0; piece < 50; piece++)
		order_seen(&o, 100);
	assert_int_equal(o.furthest, 1);
	for (uint64_t i = 1; i < 100; i++)
		for (int piece = 0; piece < 3; piece++)
			order_seen(&o, 100 + i);
	/* The end of one epoch is near the beginning of the next. */
	assert_in_range(o.furthest, 100, 120);
	for (uint64_t i = 0; i < 100; i++)
		order_seen(&o, 100 + i);
	assert_int_equal(o.furthest, 200);
	order_free(&o);
}

static void a_reader_that_leaves_out_many_is_followed(void **state)
{
	uint64_t position, inode, bytes;
	struct order o;

	fill(&o, 1000, 20, 2000, 100);
	take_all(&o);
	for (uint64_t i = 0; i < 8; i++)
		order_seen(&o, 100 + 1500 + i);
	assert_int_equal(o.furthest, 1508);
	assert_true(order_take(&o, &position, &inode, &bytes));
	assert_in_range(position, 1480, 1520);
	order_free(&o);
}

static void a_single_look_at_something_far_away_is_not_the_reader(void **state)
{
	struct order o;

	fill(&o, 1000, 20, 2000, 100);
	assert_false(order_seen(&o, 100 + 1500));
	assert_false(order_seen(&o, 100 + 900));
	assert_true(order_seen(&o, 100));
	assert_int_equal(o.furthest, 1);
	order_free(&o);
}

static void a_long_order_is_taken_in_as_it_is_read(void **state)
{
	uint64_t added = 0, read = 0, files = CAPACITY * 5;
	struct order o;

	assert_int_equal(order_init(&o, CAPACITY, 1000, 16, 0), 0);
	while (read < files) {
		while (added < files && order_add(&o, 1 + added % 3000, 10) == 0)
			added++;
		take_all(&o);
		assert_true(o.count <= CAPACITY);
		order_seen(&o, 1 + read++ % 3000);
	}
	assert_int_equal(o.seen, files);
	assert_int_equal(o.ready, files);
	assert_int_equal(o.count, 0);
	assert_int_equal(o.waiting.used, 0);
	assert_int_equal(o.latest.used, 0);
	order_free(&o);
}

/* Whatever is seen in whatever order: the sums are those of the entries. */
static void the_sums_stay_right_whatever_is_seen(void **state)
{
	unsigned seed = 1;

	for (int round = 0; round < 50; round++) {
		struct order o;
		uint64_t position, inode, bytes;

		assert_int_equal(order_init(&o, 64, 500, 1 + (uint64_t)(rand_r(&seed) % 40), 200), 0);
		for (int step = 0; step < 5000; step++) {
			switch (rand_r(&seed) % 3) {
			case 0: order_add(&o, 1 + (uint64_t)(rand_r(&seed) % 90), (uint64_t)(rand_r(&seed) % 900)); break;
			case 1:
				if (order_take(&o, &position, &inode, &bytes))
					order_done(&o, position, bytes, (enum order_outcome)(rand_r(&seed) % 3));
				break;
			default: order_seen(&o, 1 + (uint64_t)(rand_r(&seed) % 90));
			}
			assert_true(o.ahead_bytes <= o.window && o.ahead_files <= o.ahead && o.count <= 64);
			assert_true(o.first <= o.next && o.next <= o.first + o.count);
			assert_int_equal(o.added, o.first + o.count);
		}
		/* Where every inode is seen often enough nothing is left. */
		for (int i = 0; i < 100000 && o.count; i++)
			order_seen(&o, 1 + (uint64_t)(rand_r(&seed) % 90));
		assert_int_equal(o.ahead_bytes, 0);
		assert_int_equal(o.ahead_files, 0);
		assert_int_equal(o.memory_bytes, 0);
		assert_int_equal(o.waiting.used, 0);
		order_free(&o);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_more_than_the_window_is_fetched_ahead),
		cmocka_unit_test(no_more_than_so_many_files_are_fetched_ahead),
		cmocka_unit_test(a_file_larger_than_the_window_is_fetched_as_far_as_that_goes),
		cmocka_unit_test(what_goes_to_memory_is_bounded_by_that),
		cmocka_unit_test(what_was_read_before_it_was_fetched_is_not_fetched),
		cmocka_unit_test(workers_that_read_out_of_order_lose_nothing),
		cmocka_unit_test(files_that_are_never_seen_do_not_hold_it_up_for_ever),
		cmocka_unit_test(a_file_read_in_pieces_does_not_bring_the_next_epoch),
		cmocka_unit_test(a_reader_that_leaves_out_many_is_followed),
		cmocka_unit_test(a_single_look_at_something_far_away_is_not_the_reader),
		cmocka_unit_test(a_long_order_is_taken_in_as_it_is_read),
		cmocka_unit_test(the_sums_stay_right_whatever_is_seen),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
