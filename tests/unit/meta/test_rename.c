#include "world.h"
#include <stdio.h>

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static struct attr file(struct world *w, uint64_t parent, const char *name)
{
	struct attr a;

	assert_int_equal(do_file(w, parent, name, &a), 0);
	return a;
}

static struct attr directory(struct world *w, uint64_t parent, const char *name)
{
	struct attr a;

	assert_int_equal(do_directory(w, parent, name, &a), 0);
	return a;
}

static struct attr now(struct world *w, uint64_t inode)
{
	struct attr a;

	assert_int_equal(do_getattr(w, inode, &a), 0);
	return a;
}

static void a_file_moves_between_directories_with_its_times(void **state)
{
	struct world *w = *state;
	struct attr d = directory(w, ROOT_INODE, "d"), f = file(w, ROOT_INODE, "f"), a;

	w->now_ns += 9;
	assert_int_equal(do_rename(w, ROOT_INODE, "f", d.inode, "g", 0), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "f", NULL), -ENOENT);
	assert_int_equal(do_lookup(w, d.inode, "g", &a), 0);
	assert_int_equal(a.inode, f.inode);
	assert_int_equal(a.parent, d.inode);
	assert_int_equal(a.ctime_ns, START_NS + 9);
	assert_int_equal(a.mtime_ns, START_NS);
	assert_int_equal(now(w, ROOT_INODE).mtime_ns, START_NS + 9);
	assert_int_equal(now(w, d.inode).mtime_ns, START_NS + 9);
}

static void a_directory_that_moves_takes_its_link_along(void **state)
{
	struct world *w = *state;
	struct attr a = directory(w, ROOT_INODE, "a"), b = directory(w, ROOT_INODE, "b"), m = directory(w, a.inode, "m"), up;

	assert_int_equal(do_rename(w, a.inode, "m", b.inode, "m", 0), 0);
	assert_int_equal(now(w, a.inode).nlink, 2);
	assert_int_equal(now(w, b.inode).nlink, 3);
	assert_int_equal(do_lookup(w, m.inode, "..", &up), 0);
	assert_int_equal(up.inode, b.inode);
	assert_int_equal(do_rename(w, b.inode, "m", b.inode, "n", 0), 0);
	assert_int_equal(now(w, b.inode).nlink, 3);
}

static void what_is_replaced_goes_to_the_trash(void **state)
{
	struct world *w = *state;
	struct attr f = file(w, ROOT_INODE, "f"), g = file(w, ROOT_INODE, "g"), a;

	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "g", 0), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "g", &a), 0);
	assert_int_equal(a.inode, f.inode);
	a = now(w, g.inode);
	assert_int_equal(a.nlink, 0);
	assert_true(a.flags & ATTR_TRASHED);
	assert_int_equal(count_names(w, ROOT_INODE), 1);
	assert_int_equal(show_volume(w, "training")->used_files, 1);
	assert_int_equal(show_volume(w, "training")->trash_files, 1);
}

static void replacing_one_of_two_names_leaves_the_other(void **state)
{
	struct world *w = *state;
	struct attr g = file(w, ROOT_INODE, "g");

	file(w, ROOT_INODE, "f");
	assert_int_equal(do_link(w, g.inode, ROOT_INODE, "h", NULL), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "g", 0), 0);
	assert_int_equal(now(w, g.inode).nlink, 1);
	assert_int_equal(do_lookup(w, ROOT_INODE, "h", &g), 0);
}

static void two_names_of_one_file_are_left_alone(void **state)
{
	struct world *w = *state;
	struct attr f = file(w, ROOT_INODE, "f");

	assert_int_equal(do_link(w, f.inode, ROOT_INODE, "g", NULL), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "g", 0), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "f", 0), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "g", RENAME_EXCHANGE), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "g", RENAME_NOREPLACE), -EEXIST);
	assert_int_equal(count_names(w, ROOT_INODE), 2);
	assert_int_equal(now(w, f.inode).nlink, 2);
}

static void kinds_must_match(void **state)
{
	struct world *w = *state;
	struct attr d = directory(w, ROOT_INODE, "d"), e = directory(w, ROOT_INODE, "e");

	file(w, ROOT_INODE, "f");
	file(w, e.inode, "inside");
	assert_int_equal(do_rename(w, ROOT_INODE, "d", ROOT_INODE, "f", 0), -ENOTDIR);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "d", 0), -EISDIR);
	assert_int_equal(do_rename(w, ROOT_INODE, "d", ROOT_INODE, "e", 0), -ENOTEMPTY);
	assert_int_equal(do_rename(w, ROOT_INODE, "e", ROOT_INODE, "d", 0), 0);
	assert_int_equal(now(w, ROOT_INODE).nlink, 3);
	assert_int_equal(now(w, d.inode).nlink, 0);
	assert_int_equal(do_lookup(w, e.inode, "inside", NULL), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "missing", ROOT_INODE, "x", 0), -ENOENT);
}

static void a_directory_cannot_move_into_itself(void **state)
{
	struct world *w = *state;
	struct attr a = directory(w, ROOT_INODE, "a"), b = directory(w, a.inode, "b"), c = directory(w, b.inode, "c");

	assert_int_equal(do_rename(w, ROOT_INODE, "a", c.inode, "x", 0), -EINVAL);
	assert_int_equal(do_rename(w, ROOT_INODE, "a", a.inode, "x", 0), -EINVAL);
	assert_int_equal(do_rename(w, ROOT_INODE, "a", b.inode, "c", RENAME_EXCHANGE), -EINVAL);
	assert_int_equal(do_rename(w, b.inode, "c", ROOT_INODE, "a", RENAME_EXCHANGE), -EINVAL);
	assert_int_equal(do_rename(w, b.inode, "c", ROOT_INODE, "a", 0), -ENOTEMPTY);
	assert_int_equal(do_rename(w, b.inode, "c", ROOT_INODE, "c", 0), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "a", c.inode, "a", 0), 0);
	assert_int_equal(do_resolve(w, "c/a/b", NULL), 0);
}

static void noreplace_refuses_and_exchange_needs_both(void **state)
{
	struct world *w = *state;

	file(w, ROOT_INODE, "f");
	file(w, ROOT_INODE, "g");
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "g", RENAME_NOREPLACE), -EEXIST);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "h", RENAME_EXCHANGE), -ENOENT);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", ROOT_INODE, "h", RENAME_NOREPLACE), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "g", ROOT_INODE, "h", RENAME_NOREPLACE | RENAME_EXCHANGE), -EINVAL);
	assert_int_equal(do_rename(w, ROOT_INODE, "g", ROOT_INODE, "h", RENAME_WHITEOUT), -EINVAL);
}

static void exchange_swaps_a_file_and_a_directory(void **state)
{
	struct world *w = *state;
	struct attr d = directory(w, ROOT_INODE, "d"), sub = directory(w, d.inode, "sub"), f = file(w, ROOT_INODE, "f"), a;

	file(w, sub.inode, "inside");
	assert_int_equal(do_rename(w, ROOT_INODE, "f", d.inode, "sub", RENAME_EXCHANGE), 0);
	assert_int_equal(do_lookup(w, d.inode, "sub", &a), 0);
	assert_int_equal(a.inode, f.inode);
	assert_int_equal(a.parent, d.inode);
	assert_int_equal(do_lookup(w, ROOT_INODE, "f", &a), 0);
	assert_int_equal(a.inode, sub.inode);
	assert_int_equal(a.parent, ROOT_INODE);
	assert_int_equal(now(w, d.inode).nlink, 2);
	assert_int_equal(now(w, ROOT_INODE).nlink, 4);
	assert_int_equal(do_resolve(w, "f/inside", NULL), 0);
	assert_int_equal(show_volume(w, "training")->used_files, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_file_moves_between_directories_with_its_times),
		TEST(a_directory_that_moves_takes_its_link_along),
		TEST(what_is_replaced_goes_to_the_trash),
		TEST(replacing_one_of_two_names_leaves_the_other),
		TEST(two_names_of_one_file_are_left_alone),
		TEST(kinds_must_match),
		TEST(a_directory_cannot_move_into_itself),
		TEST(noreplace_refuses_and_exchange_needs_both),
		TEST(exchange_swaps_a_file_and_a_directory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
