#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include "client/attrs.h"

static struct attrs a;

static int fresh(void **state)
{
	(void)state;
	return attrs_init(&a);
}

static int ended(void **state)
{
	(void)state;
	attrs_free(&a);
	return 0;
}

static struct attr version(uint64_t inode, uint64_t number) { return (struct attr){ .inode = inode, .version = number }; }

static void learn(uint64_t begun, uint64_t inode, uint64_t number, uint32_t valid_ms)
{
	struct attr attr = version(inode, number);

	attrs_learn(&a, begun, &attr, valid_ms);
}

/* The version that is known; 0: none. */
static uint64_t known(uint64_t inode, uint32_t lease_ms)
{
	struct attr attr;

	return attrs_find(&a, inode, lease_ms, &attr) ? attr.version : 0;
}

static void what_was_learned_is_found_until_it_is_forgotten(void **state)
{
	assert_int_equal(known(5, 1000), 0);
	learn(attrs_begin(&a), 5, 1, 1000);
	assert_int_equal(known(5, 0), 1);
	assert_int_equal(known(6, 1000), 0);
	attrs_forget(&a, 5);
	assert_int_equal(known(5, 1000), 0);
}

static void without_leave_nothing_is_kept(void **state)
{
	learn(attrs_begin(&a), 5, 1, 0);
	assert_int_equal(known(5, 1000), 0);
}

static void under_the_lease_it_holds_as_long_as_the_lease(void **state)
{
	struct attr attr;

	learn(attrs_begin(&a), 5, 1, 1);
	while (attrs_find(&a, 5, 0, &attr))
		;
	assert_int_equal(known(5, 0), 0);
	assert_int_equal(attrs_find(&a, 5, 777, &attr), 777);
}

static void an_answer_from_before_a_change_is_not_taken_in(void **state)
{
	uint64_t begun = attrs_begin(&a);

	attrs_forget(&a, 5);
	learn(begun, 5, 1, 1000);
	learn(begun, 6, 1, 1000);
	assert_int_equal(known(5, 1000), 0);
	assert_int_equal(known(6, 1000), 1);
	learn(attrs_begin(&a), 5, 2, 1000);
	assert_int_equal(known(5, 1000), 2);
}

static void an_answer_from_before_more_changes_than_are_remembered_is_not_taken_in(void **state)
{
	uint64_t begun = attrs_begin(&a);

	for (uint64_t i = 0; i < ATTRS_FORGOTTEN; i++)
		attrs_forget(&a, 100);
	learn(begun, 5, 1, 1000);
	assert_int_equal(known(5, 1000), 1);
	attrs_forget(&a, 100);
	learn(begun, 6, 1, 1000);
	assert_int_equal(known(6, 1000), 0);
}

static void forgetting_all_holds_for_answers_under_way_too(void **state)
{
	uint64_t begun = attrs_begin(&a);

	learn(begun, 5, 1, 1000);
	attrs_forget_all(&a);
	assert_int_equal(known(5, 1000), 0);
	learn(begun, 5, 1, 1000);
	assert_int_equal(known(5, 1000), 0);
	learn(attrs_begin(&a), 5, 1, 1000);
	assert_int_equal(known(5, 1000), 1);
}

static void the_later_of_two_answers_stays_whichever_comes_first(void **state)
{
	uint64_t begun = attrs_begin(&a);

	learn(begun, 5, 3, 1000);
	learn(begun, 5, 2, 1000);
	assert_int_equal(known(5, 1000), 3);
}

static void a_directory_grows_with_the_files_made_in_it(void **state)
{
	uint64_t begun = attrs_begin(&a);
	struct attr attr;

	learn(begun, 5, 3, 1000);
	attrs_grown(&a, 5, 1234);
	assert_int_equal(attrs_find(&a, 5, 1000, &attr), 1000);
	assert_int_equal(attr.mtime_ns, 1234);
	assert_int_equal(attr.ctime_ns, 1234);
	learn(begun, 5, 3, 1000); /* an answer from before the file */
	assert_int_equal(known(5, 1000), 4);
	attrs_grown(&a, 6, 1234); /* not known: nor may an older answer make it known */
	learn(begun, 6, 3, 1000);
	assert_int_equal(known(6, 1000), 0);
}

/* The grant and the version that are known; 0: none. */
static uint64_t granted(uint64_t inode, uint64_t *number)
{
	struct attr attr = { 0 };
	uint64_t grant = attrs_find_granted(&a, inode, &attr);

	*number = attr.version;
	return grant;
}

static void what_rests_on_a_grant_says_on_which_one(void **state)
{
	uint64_t begun = attrs_begin(&a), number;
	struct attr old = version(5, 1), new = version(5, 2);

	assert_int_equal(granted(5, &number), 0);
	assert_true(attrs_learn_granted(&a, begun, &old, 77));
	assert_int_equal(granted(5, &number), 77);
	assert_int_equal(number, 1);
	assert_int_equal(known(5, 0), 0); /* without the grant it is good for nothing */
	assert_true(attrs_learn_granted(&a, begun, &new, 78));
	assert_int_equal(granted(5, &number), 78);
	assert_int_equal(number, 2);
	learn(begun, 5, 3, 1000); /* by the server's leave: no grant is behind it */
	assert_int_equal(granted(5, &number), 0);
	assert_int_equal(known(5, 0), 3);
	assert_int_equal(granted(6, &number), 0);
}

static void what_was_forgotten_is_not_learned_by_a_grant_either(void **state)
{
	uint64_t begun = attrs_begin(&a), number;
	struct attr five = version(5, 1), six = version(6, 1);

	assert_true(attrs_learn_granted(&a, begun, &five, 77));
	attrs_forget(&a, 5);
	assert_int_equal(granted(5, &number), 0);
	assert_false(attrs_learn_granted(&a, begun, &five, 77));
	assert_int_equal(granted(5, &number), 0);
	assert_true(attrs_learn_granted(&a, begun, &six, 77));
	attrs_forget_all(&a);
	assert_int_equal(granted(6, &number), 0);
	assert_false(attrs_learn_granted(&a, begun, &six, 77));
	assert_true(attrs_learn_granted(&a, attrs_begin(&a), &six, 77));
	assert_int_equal(granted(6, &number), 77);
}

static void two_inodes_of_one_slot_push_each_other_out(void **state)
{
	learn(attrs_begin(&a), 5, 1, 1000);
	learn(attrs_begin(&a), 5 + ATTRS_SLOTS, 2, 1000);
	assert_int_equal(known(5, 1000), 0);
	assert_int_equal(known(5 + ATTRS_SLOTS, 1000), 2);
	attrs_forget(&a, 5);
	assert_int_equal(known(5 + ATTRS_SLOTS, 1000), 2);
}

static void there_is_room_until_three_quarters_are_taken(void **state)
{
	for (uint64_t i = 1; i < ATTRS_SLOTS / 4 * 3; i++) {
		learn(attrs_begin(&a), i, 1, 1000);
		learn(attrs_begin(&a), i, 2, 1000);
	}
	assert_true(attrs_have_room(&a));
	learn(attrs_begin(&a), ATTRS_SLOTS - 1, 1, 1000);
	assert_false(attrs_have_room(&a));
	attrs_forget(&a, 7);
	attrs_forget(&a, 7);
	assert_true(attrs_have_room(&a));
	attrs_forget_all(&a);
	assert_int_equal(a.used, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_was_learned_is_found_until_it_is_forgotten, fresh, ended),
		cmocka_unit_test_setup_teardown(without_leave_nothing_is_kept, fresh, ended),
		cmocka_unit_test_setup_teardown(under_the_lease_it_holds_as_long_as_the_lease, fresh, ended),
		cmocka_unit_test_setup_teardown(an_answer_from_before_a_change_is_not_taken_in, fresh, ended),
		cmocka_unit_test_setup_teardown(an_answer_from_before_more_changes_than_are_remembered_is_not_taken_in, fresh,
						ended),
		cmocka_unit_test_setup_teardown(forgetting_all_holds_for_answers_under_way_too, fresh, ended),
		cmocka_unit_test_setup_teardown(the_later_of_two_answers_stays_whichever_comes_first, fresh, ended),
		cmocka_unit_test_setup_teardown(a_directory_grows_with_the_files_made_in_it, fresh, ended),
		cmocka_unit_test_setup_teardown(there_is_room_until_three_quarters_are_taken, fresh, ended),
		cmocka_unit_test_setup_teardown(what_rests_on_a_grant_says_on_which_one, fresh, ended),
		cmocka_unit_test_setup_teardown(what_was_forgotten_is_not_learned_by_a_grant_either, fresh, ended),
		cmocka_unit_test_setup_teardown(two_inodes_of_one_slot_push_each_other_out, fresh, ended),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
