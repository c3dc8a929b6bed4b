#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "fuse/bare.h"

static struct entry entry_of(uint64_t inode, uint32_t flags, uint32_t valid_ms)
{
	return (struct entry){ .attr = { .inode = inode, .flags = flags }, .valid_ms = valid_ms };
}

static void learn(struct bare *b, uint64_t inode, uint32_t flags, uint32_t valid_ms)
{
	struct entry e = entry_of(inode, flags, valid_ms);

	bare_learn(b, bare_begin(b), &e);
}

static void only_files_without_any_are_remembered(void **state)
{
	struct bare *b = calloc(1, sizeof(*b));

	learn(b, 1, 0, 10000);
	learn(b, 2, ATTR_HAS_XATTR, 10000);
	learn(b, 3, ATTR_HAS_ACL, 10000);
	learn(b, 4, ATTR_HAS_DEFAULT, 10000);
	learn(b, 5, ATTR_TRASHED, 10000);
	assert_true(bare_is(b, 1));
	assert_false(bare_is(b, 2));
	assert_false(bare_is(b, 3));
	assert_false(bare_is(b, 4));
	assert_true(bare_is(b, 5));
	assert_false(bare_is(b, 6));
	free(b);
}

static void what_may_not_be_cached_is_not_remembered(void **state)
{
	struct bare *b = calloc(1, sizeof(*b));

	learn(b, 1, 0, 0);
	assert_false(bare_is(b, 1));
	free(b);
}

static void a_change_makes_all_forgotten(void **state)
{
	struct bare *b = calloc(1, sizeof(*b));

	learn(b, 1, 0, 10000);
	bare_change_begin(b);
	assert_false(bare_is(b, 1));
	bare_change_end(b);
	assert_false(bare_is(b, 1));
	free(b);
}

static void an_answer_from_before_or_during_a_change_counts_for_nothing(void **state)
{
	struct bare *b = calloc(1, sizeof(*b));
	struct entry e = entry_of(1, 0, 10000);
	uint64_t before = bare_begin(b), during;

	bare_change_begin(b);
	during = bare_begin(b);
	bare_learn(b, during, &e);
	assert_false(bare_is(b, 1));
	bare_change_end(b);
	bare_learn(b, before, &e);
	assert_false(bare_is(b, 1));
	bare_learn(b, during, &e);
	assert_false(bare_is(b, 1));
	bare_learn(b, bare_begin(b), &e);
	assert_true(bare_is(b, 1));
	free(b);
}

/* One thread sets an attribute and takes it away, over and over; others ask.  An answer
 * is right if it was so at some time since it was asked for. */
struct race {
	struct bare bare;
	atomic_bool has, stop;
};

static void *asker(void *argument)
{
	struct race *r = argument;

	while (!atomic_load(&r->stop)) {
		uint64_t begun = bare_begin(&r->bare);
		struct entry e = entry_of(1, atomic_load(&r->has) ? ATTR_HAS_XATTR : 0, 10000);

		bare_learn(&r->bare, begun, &e);
	}
	return NULL;
}

static void an_attribute_that_was_set_is_always_found(void **state)
{
	struct race *r = calloc(1, sizeof(*r));
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, asker, r), 0);
	for (int i = 0; i < 50000; i++) {
		bare_change_begin(&r->bare);
		atomic_store(&r->has, true);
		bare_change_end(&r->bare);
		for (int j = 0; j < 10; j++)
			assert_false(bare_is(&r->bare, 1));
		atomic_store(&r->has, false);
	}
	atomic_store(&r->stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_files_without_any_are_remembered),
		cmocka_unit_test(what_may_not_be_cached_is_not_remembered),
		cmocka_unit_test(a_change_makes_all_forgotten),
		cmocka_unit_test(an_answer_from_before_or_during_a_change_counts_for_nothing),
		cmocka_unit_test(an_attribute_that_was_set_is_always_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
