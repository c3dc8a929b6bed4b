/* Who stays: training in random order, again and again, on the real thing with small objects. */
#include <stdio.h>
#include <stdlib.h>
#include "place.h"

#define OBJECT_BYTES 3000
#define OBJECT_COST (4096 + 512)
#define IN_CACHE 1000u

static void cache_make(struct place *p)
{
	/* What the directory itself takes comes on top: state, marker, buckets. */
	p->options.size.bytes = IN_CACHE * OBJECT_COST + 1400000;
	place_open(p);
}

/* What a client does.  1: it was a hit. */
static unsigned use(struct place *p, uint64_t object)
{
	static uint8_t bytes[OBJECT_BYTES];
	struct iovec part = { bytes, sizeof bytes };
	if (cache_object_read(p->cache, object, 0, &part, 1) == 0)
		return 1;
	(void)cache_object_add(p->cache, 1, object, &part, 1, 0);
	return 0;
}

static void shuffle(uint32_t *order, unsigned count, unsigned *seed)
{
	for (unsigned i = count - 1; i > 0; i--) {
		unsigned k = (unsigned)rand_r(seed) % (i + 1);
		uint32_t t = order[i];
		order[i] = order[k];
		order[k] = t;
	}
}

/* Percent of hits. */
static unsigned epoch(struct place *p, uint64_t first, unsigned count, unsigned *seed)
{
	uint32_t *order = malloc(count * sizeof *order);
	unsigned hits = 0;
	for (unsigned i = 0; i < count; i++)
		order[i] = i;
	if (seed)
		shuffle(order, count, seed);
	for (unsigned i = 0; i < count; i++)
		hits += use(p, first + order[i]);
	free(order);
	return hits * 100 / count;
}

static void a_cache_of_60_percent_gives_60_percent_in_every_epoch(void **state)
{
	struct place *p = *state;
	unsigned seed = 1, set = IN_CACHE * 167 / 100;
	cache_make(p);
	epoch(p, 0, set, &seed);
	for (int i = 0; i < 8; i++) {
		unsigned hits = epoch(p, 0, set, &seed);
		print_message("epoch %d over 1.67 x the cache: %u %%\n", i + 2, hits);
		assert_true(hits >= 55);
	}
}

static void the_same_with_a_set_five_times_as_large_and_in_the_same_order(void **state)
{
	struct place *p = *state;
	unsigned seed = 2;
	cache_make(p);
	for (int i = 0; i < 6; i++) {
		unsigned hits = epoch(p, 0, 5 * IN_CACHE, &seed);
		print_message("epoch %d over 5 x the cache: %u %%\n", i + 1, hits);
		assert_true(i == 0 || hits >= 17);
	}
	for (int i = 0; i < 6; i++) {
		unsigned hits = epoch(p, 100000, 2 * IN_CACHE, NULL);
		print_message("epoch %d over another of 2 x, always in the same order: %u %%\n", i + 1, hits);
		assert_true(i < 4 || hits >= 45);
	}
}

static void a_new_set_takes_the_place_of_the_old_one(void **state)
{
	struct place *p = *state;
	unsigned seed = 3, set = IN_CACHE * 167 / 100, hits = 0;
	cache_make(p);
	for (int i = 0; i < 5; i++)
		epoch(p, 0, set, &seed);
	for (int i = 0; i < 4; i++) {
		hits = epoch(p, 10000, set, &seed);
		print_message("epoch %d over a new set: %u %%\n", i + 1, hits);
	}
	assert_true(hits >= 50);
	for (int i = 0; i < 3; i++)
		assert_true(epoch(p, 10000, set, &seed) >= 55);
}

static void a_set_that_fits_is_kept_whole(void **state)
{
	struct place *p = *state;
	unsigned seed = 4;
	cache_make(p);
	epoch(p, 0, IN_CACHE * 95 / 100, &seed);
	for (int i = 0; i < 3; i++)
		assert_int_equal(epoch(p, 0, IN_CACHE * 95 / 100, &seed), 100);
	/* And replaced whole by the next one. */
	unsigned hits = 0;
	for (int i = 0; i < 7; i++) {
		hits = epoch(p, 10000, IN_CACHE * 95 / 100, &seed);
		print_message("epoch %d over another set that fits: %u %%\n", i + 1, hits);
	}
	assert_true(hits >= 95);
}

/* A tenth of the set gets half of the requests. */
static unsigned some_are_hot(struct place *p, uint64_t first, unsigned set, unsigned requests, unsigned *seed, unsigned *hot_hits)
{
	unsigned hits = 0, hot = 0, of_hot = 0;
	for (unsigned i = 0; i < requests; i++) {
		bool is_hot = rand_r(seed) % 2;
		unsigned hit = use(p,
				   first + (is_hot ? 0 : set / 10) + (unsigned)rand_r(seed) % (is_hot ? set / 10 : set * 9 / 10));
		hits += hit;
		hot += is_hot;
		of_hot += is_hot && hit;
	}
	*hot_hits = of_hot * 100 / hot;
	return hits * 100 / requests;
}

static void what_is_hot_stays_and_gets_in(void **state)
{
	struct place *p = *state;
	unsigned seed = 5, hot = 0, set = 4 * IN_CACHE;
	cache_make(p);
	for (int i = 0; i < 5; i++) {
		unsigned hits = some_are_hot(p, 0, set, 2 * set, &seed, &hot);
		print_message("half the requests to a tenth of 4 x the cache: %u %%, of the hot ones %u %%\n", hits, hot);
	}
	assert_true(hot >= 90);
	/* Others become hot. */
	for (int i = 0; i < 5; i++) {
		unsigned hits = some_are_hot(p, 10000, set, 2 * set, &seed, &hot);
		print_message("then to others: %u %%, of the hot ones %u %%\n", hits, hot);
	}
	assert_true(hot >= 90);
}

static void who_was_used_is_known_after_a_remount(void **state)
{
	struct place *p = *state;
	unsigned seed = 6, set = IN_CACHE * 167 / 100;
	cache_make(p);
	for (int i = 0; i < 6; i++) {
		unsigned hits = epoch(p, 0, set, &seed);
		assert_true(i == 0 || hits >= 55);
		place_close(p);
		place_open(p);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_cache_of_60_percent_gives_60_percent_in_every_epoch),
		TEST(the_same_with_a_set_five_times_as_large_and_in_the_same_order),
		TEST(a_new_set_takes_the_place_of_the_old_one),
		TEST(a_set_that_fits_is_kept_whole),
		TEST(what_is_hot_stays_and_gets_in),
		TEST(who_was_used_is_known_after_a_remount),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
