#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "client/catalog.h"

#define LIMIT (1u << 20)
#define PARENT 7u

static struct catalog c;

static int fresh(void **state)
{
	(void)state;
	return catalog_init(&c, LIMIT);
}

static int ended(void **state)
{
	(void)state;
	catalog_free(&c);
	return 0;
}

static void make_directory(uint64_t inode)
{
	struct catalog_change change;

	catalog_begin(&c, PARENT, &change);
	catalog_made(&c, &change, inode);
	catalog_end(&c, &change);
}

static enum catalog_answer find(uint64_t directory, const char *name)
{
	uint64_t inode;

	return catalog_find(&c, directory, name, &inode);
}

static bool claim(uint64_t directory, const char *name, uint64_t inode)
{
	uint64_t clears = UINT64_MAX;
	bool r = catalog_claim(&c, directory, name, inode, &clears);

	assert_true(!r || clears == catalog_cleared(&c));
	return r;
}

static void add(uint64_t directory, const char *name)
{
	struct catalog_change change;

	catalog_begin(&c, directory, &change);
	catalog_added(&c, &change, name, 0);
	catalog_end(&c, &change);
}

static void take(uint64_t directory, const char *name)
{
	struct catalog_change change;

	catalog_begin(&c, directory, &change);
	catalog_removed(&c, &change, name);
	catalog_end(&c, &change);
}

static void nothing_is_said_of_a_directory_that_is_not_known(void **state)
{
	assert_int_equal(find(9, "a"), CATALOG_UNKNOWN);
	assert_false(claim(9, "a", 100));
	add(9, "a");
	assert_int_equal(find(9, "a"), CATALOG_UNKNOWN);
}

static void a_new_directory_is_known_to_be_empty(void **state)
{
	uint64_t inode = 0;

	make_directory(9);
	assert_int_equal(find(9, "a"), CATALOG_ABSENT);
	assert_true(claim(9, "a", 100));
	assert_int_equal(catalog_find(&c, 9, "a", &inode), CATALOG_PRESENT);
	assert_int_equal(inode, 100);
	assert_false(claim(9, "a", 101));
	assert_int_equal(find(9, "b"), CATALOG_ABSENT);
}

static void names_made_by_the_server_have_no_inode_here(void **state)
{
	uint64_t inode = 5;

	make_directory(9);
	add(9, "a");
	assert_int_equal(catalog_find(&c, 9, "a", &inode), CATALOG_PRESENT);
	assert_int_equal(inode, 0);
}

static void nothing_is_said_while_a_change_is_under_way(void **state)
{
	struct catalog_change change;

	make_directory(9);
	catalog_begin(&c, 9, &change);
	assert_int_equal(find(9, "a"), CATALOG_UNKNOWN);
	assert_false(claim(9, "a", 100));
	catalog_end(&c, &change);
	assert_int_equal(find(9, "a"), CATALOG_ABSENT);
}

/* Whichever was done first at the server, "absent" would be wrong in one of the orders. */
static void a_name_removed_beside_another_change_stays_to_be_asked_for(void **state)
{
	struct catalog_change one, two;

	make_directory(9);
	add(9, "a");
	catalog_begin(&c, 9, &one);
	catalog_begin(&c, 9, &two);
	catalog_added(&c, &two, "a", 0);
	catalog_end(&c, &two);
	catalog_removed(&c, &one, "a");
	catalog_end(&c, &one);
	assert_int_equal(find(9, "a"), CATALOG_PRESENT);

	catalog_begin(&c, 9, &one);
	catalog_begin(&c, 9, &two);
	catalog_end(&c, &one);
	catalog_removed(&c, &two, "a");
	catalog_end(&c, &two);
	assert_int_equal(find(9, "a"), CATALOG_PRESENT);

	take(9, "a");
	assert_int_equal(find(9, "a"), CATALOG_ABSENT);
}

/* Somebody who looked it up was quicker than who made it. */
static void a_new_directory_somebody_was_in_already_is_not_known(void **state)
{
	struct catalog_change change, other;

	catalog_begin(&c, PARENT, &change);
	catalog_begin(&c, 9, &other);
	catalog_added(&c, &other, "a", 0);
	catalog_end(&c, &other);
	catalog_made(&c, &change, 9);
	catalog_end(&c, &change);
	assert_int_equal(find(9, "a"), CATALOG_UNKNOWN);
}

static void clearing_forgets_everything_also_what_is_under_way(void **state)
{
	struct catalog_change change;

	make_directory(9);
	catalog_begin(&c, 9, &change);
	catalog_clear(&c);
	catalog_made(&c, &change, 10);
	catalog_end(&c, &change);
	assert_int_equal(find(9, "a"), CATALOG_UNKNOWN);
	assert_int_equal(find(10, "a"), CATALOG_UNKNOWN);
	assert_int_equal(c.bytes, 0);
}

/* The directory was forgotten and known anew meanwhile. */
static void a_change_of_a_forgotten_directory_does_not_touch_the_new_one(void **state)
{
	struct catalog_change change;

	make_directory(9);
	add(9, "a");
	catalog_begin(&c, 9, &change);
	catalog_drop(&c, 9);
	make_directory(9);
	add(9, "a");
	catalog_removed(&c, &change, "a");
	catalog_end(&c, &change);
	assert_int_equal(find(9, "a"), CATALOG_PRESENT);
}

static void a_listing_is_taken_in_unless_something_changed_meanwhile(void **state)
{
	struct catalog_change change;
	struct catalog_listing l;

	assert_true(catalog_listing_begin(&c, 9, &l));
	assert_int_equal(catalog_listing_add(&c, &l, "apple", 1, 55), 0);
	assert_true(catalog_listing_end(&c, &l, true));
	assert_int_equal(find(9, "a"), CATALOG_PRESENT);
	assert_int_equal(find(9, "apple"), CATALOG_ABSENT);

	catalog_begin(&c, 10, &change);
	assert_false(catalog_listing_begin(&c, 10, &l));
	assert_true(catalog_listing_begin(&c, 11, &l)); /* what is changed elsewhere does not matter */
	catalog_end(&c, &change);
	add(10, "b");
	assert_true(catalog_listing_end(&c, &l, true));
	assert_int_equal(find(11, "b"), CATALOG_ABSENT);
	assert_true(catalog_listing_begin(&c, 12, &l)); /* but so much that it is not remembered does */
	for (unsigned i = 0; i <= CATALOG_CHANGED; i++)
		add(10, "b");
	assert_false(catalog_listing_end(&c, &l, true));

	assert_true(catalog_listing_begin(&c, 10, &l));
	add(10, "b");
	assert_false(catalog_listing_end(&c, &l, true));
	assert_true(catalog_listing_begin(&c, 10, &l));
	catalog_clear(&c);
	assert_false(catalog_listing_end(&c, &l, true));
	assert_true(catalog_listing_begin(&c, 10, &l));
	assert_false(catalog_listing_end(&c, &l, false));
	assert_int_equal(find(10, "a"), CATALOG_UNKNOWN);
}

static uint64_t take_in(uint64_t directory)
{
	struct catalog_listing l;

	assert_true(catalog_listing_begin(&c, directory, &l));
	assert_int_equal(catalog_listing_add(&c, &l, "a", 1, 55), 0);
	assert_true(catalog_listing_end(&c, &l, true));
	assert_true(l.id != 0);
	return l.id;
}

static void a_recalled_directory_is_known_no_more_and_has_another_number_afterwards(void **state)
{
	uint64_t before = catalog_clock(&c), first, second;

	assert_int_equal(catalog_grant(&c, 9, before), 0);
	first = take_in(9);
	assert_int_equal(catalog_grant(&c, 9, before), 0); /* it was not here yet */
	assert_int_equal(catalog_grant(&c, 9, catalog_clock(&c)), first);
	assert_int_equal(catalog_grant(&c, 10, catalog_clock(&c)), 0);
	before = catalog_clock(&c);
	catalog_recall(&c, 9);
	catalog_recall(&c, 10); /* not here: nothing to forget */
	assert_int_equal(find(9, "a"), CATALOG_UNKNOWN);
	assert_int_equal(catalog_grant(&c, 9, UINT64_MAX), 0);
	second = take_in(9);
	assert_true(second != first);
	assert_int_equal(catalog_grant(&c, 9, before), 0); /* an answer asked for under the first rests on nothing */
	assert_int_equal(catalog_grant(&c, 9, catalog_clock(&c)), second);
}

static void a_listing_under_way_during_a_recall_is_not_taken_in(void **state)
{
	struct catalog_listing l, other;

	assert_true(catalog_listing_begin(&c, 9, &l));
	assert_true(catalog_listing_begin(&c, 10, &other));
	assert_int_equal(catalog_listing_add(&c, &l, "a", 1, 55), 0);
	catalog_recall(&c, 9);
	assert_false(catalog_listing_end(&c, &l, true));
	assert_int_equal(catalog_grant(&c, 9, UINT64_MAX), 0);
	assert_true(catalog_listing_end(&c, &other, true)); /* that one was not meant */
}

static void over_the_limit_what_was_not_used_for_longest_goes(void **state)
{
	char name[32];

	make_directory(1);
	make_directory(2);
	for (int i = 0; i < 20000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		assert_true(claim(2, name, 100 + i));
	}
	for (uint64_t d = 3; intmap_get(&c.directories, 2); d++) {
		make_directory(d);
		add(d, "a");
		assert_true(c.bytes <= LIMIT);
		assert_int_equal(find(1, "x"), CATALOG_ABSENT);
		assert_true(d < 100000);
	}
	assert_int_equal(find(1, "x"), CATALOG_ABSENT);
	catalog_clear(&c);
	make_directory(1);
	/* Two tables of it would be over the limit for a moment. */
	for (int i = 0; find(1, "x") == CATALOG_ABSENT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		claim(1, name, 100);
		assert_true(i < 100000);
	}
	assert_int_equal(c.bytes, 0);
}

/* Against a plain array of what is there. */
static void any_order_of_additions_and_removals_gives_what_is_there(void **state)
{
	enum { NAMES = 3000 };
	static bool there[NAMES];
	unsigned seed = 11;
	char name[32];

	memset(there, 0, sizeof(there));
	make_directory(9);
	for (int step = 0; step < 200000; step++) {
		int n = rand_r(&seed) % (step % 40000 < 20000 ? NAMES : NAMES / 20);

		snprintf(name, sizeof(name), "file-%d.jpg", n);
		if (rand_r(&seed) % 2) {
			take(9, name);
			there[n] = false;
		} else if (rand_r(&seed) % 2) {
			add(9, name);
			there[n] = true;
		} else {
			assert_int_equal(claim(9, name, 1000 + n), !there[n]);
			there[n] = true;
		}
		n = rand_r(&seed) % NAMES;
		snprintf(name, sizeof(name), "file-%d.jpg", n);
		assert_int_equal(find(9, name), there[n] ? CATALOG_PRESENT : CATALOG_ABSENT);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_is_said_of_a_directory_that_is_not_known, fresh, ended),
		cmocka_unit_test_setup_teardown(a_new_directory_is_known_to_be_empty, fresh, ended),
		cmocka_unit_test_setup_teardown(names_made_by_the_server_have_no_inode_here, fresh, ended),
		cmocka_unit_test_setup_teardown(nothing_is_said_while_a_change_is_under_way, fresh, ended),
		cmocka_unit_test_setup_teardown(a_name_removed_beside_another_change_stays_to_be_asked_for, fresh, ended),
		cmocka_unit_test_setup_teardown(a_new_directory_somebody_was_in_already_is_not_known, fresh, ended),
		cmocka_unit_test_setup_teardown(clearing_forgets_everything_also_what_is_under_way, fresh, ended),
		cmocka_unit_test_setup_teardown(a_change_of_a_forgotten_directory_does_not_touch_the_new_one, fresh, ended),
		cmocka_unit_test_setup_teardown(a_listing_is_taken_in_unless_something_changed_meanwhile, fresh, ended),
		cmocka_unit_test_setup_teardown(a_recalled_directory_is_known_no_more_and_has_another_number_afterwards, fresh,
						ended),
		cmocka_unit_test_setup_teardown(a_listing_under_way_during_a_recall_is_not_taken_in, fresh, ended),
		cmocka_unit_test_setup_teardown(over_the_limit_what_was_not_used_for_longest_goes, fresh, ended),
		cmocka_unit_test_setup_teardown(any_order_of_additions_and_removals_gives_what_is_there, fresh, ended),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
