#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "fuse/modes.h"

#define INODE 42u
#define FD 7

struct kernel {
	struct modes modes;
	int made, dropped, refuses;
};

static int make(void *context, int fd)
{
	struct kernel *k = context;

	assert_int_equal(fd, FD);
	return k->refuses ? -EPERM : 100 + k->made++;
}

static void drop(void *context, int id)
{
	struct kernel *k = context;

	assert_int_equal(id, 100 + k->dropped);
	k->dropped++;
}

static int setup(void **state)
{
	struct kernel *k = calloc(1, sizeof(*k));

	k->modes = (struct modes){ .make = make, .drop = drop, .context = k };
	modes_init(&k->modes);
	*state = k;
	return 0;
}

static int teardown(void **state)
{
	struct kernel *k = *state;

	assert_int_equal(k->made, k->dropped);
	modes_free(&k->modes);
	free(k);
	return 0;
}

static struct opened reads(struct kernel *k, unsigned side, int fd, enum open_mode mode)
{
	struct opened o;

	assert_int_equal(modes_open_read(&k->modes, INODE, side, fd, &o), 0);
	assert_int_equal(o.mode, mode);
	assert_int_equal(o.side, side);
	return o;
}

static struct opened writes(struct kernel *k, unsigned side)
{
	struct opened o;

	assert_int_equal(modes_open_write(&k->modes, INODE, side, &o), 0);
	assert_int_equal(o.mode, OPEN_PAGES);
	assert_int_equal(o.side, side);
	return o;
}

static void closes(struct kernel *k, struct opened o) { modes_close(&k->modes, INODE, &o); }

static unsigned current(struct kernel *k)
{
	bool dual;

	return modes_side(&k->modes, INODE, &dual);
}

static bool is_dual(struct kernel *k)
{
	bool dual;

	modes_side(&k->modes, INODE, &dual);
	return dual;
}

static void readers_share_one_backing_id_until_the_last_one_closes(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, FD, OPEN_PASSED), b = reads(k, 0, FD, OPEN_PASSED);

	assert_int_equal(a.backing, b.backing);
	assert_int_equal(k->made, 1);
	closes(k, a);
	assert_int_equal(k->dropped, 0);
	assert_int_equal(k->modes.passing, 1);
	closes(k, b);
	assert_int_equal(k->dropped, 1);
	assert_int_equal(k->modes.passing, 0);
	assert_int_equal(k->modes.passed, 2);
	assert_int_equal(k->modes.files.used, 0);
}

static void a_reader_who_cannot_join_is_sent_to_the_other_side(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, FD, OPEN_PASSED), b;

	assert_int_equal(modes_open_read(&k->modes, INODE, 0, -1, &b), -ESTALE);
	b = reads(k, 1, -1, OPEN_PAGES);
	assert_int_equal(modes_open_read(&k->modes, INODE, 0, -1, &b), -ESTALE);
	assert_int_equal(current(k), 1);
	closes(k, b = (struct opened){ .mode = OPEN_PAGES, .side = 1 });
	closes(k, a);
}

static void pages_stay_pages_until_all_are_closed(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, -1, OPEN_PAGES), b = reads(k, 0, FD, OPEN_PAGES), c = writes(k, 0);

	closes(k, a);
	closes(k, c);
	closes(k, reads(k, 0, FD, OPEN_PAGES));
	closes(k, b);
	closes(k, reads(k, 0, FD, OPEN_PASSED));
	assert_false(is_dual(k));
}

static void where_the_kernel_refuses_an_id_it_is_pages(void **state)
{
	struct kernel *k = *state;

	k->refuses = 1;
	closes(k, reads(k, 0, FD, OPEN_PAGES));
}

static void a_writer_is_sent_to_the_other_side(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, FD, OPEN_PASSED), b, w, o;

	assert_int_equal(modes_open_write(&k->modes, INODE, 0, &o), -ESTALE);
	assert_int_equal(current(k), 1);
	assert_true(is_dual(k));
	w = writes(k, 1);
	assert_true(w.foreign);
	b = reads(k, 1, FD, OPEN_PAGES);
	assert_false(b.foreign);
	closes(k, reads(k, 0, FD, OPEN_PASSED)); /* who has it open can open it again */
	assert_true(modes_is_elsewhere(&k->modes, INODE, 0));
	assert_false(modes_is_elsewhere(&k->modes, INODE, 1));
	closes(k, w);
	closes(k, b);
	closes(k, reads(k, 1, FD, OPEN_PAGES)); /* not while the first side is passed through */
	closes(k, a);
	closes(k, reads(k, 1, FD, OPEN_PASSED));
	assert_true(is_dual(k));
}

static void and_back_to_the_first(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, FD, OPEN_PASSED), b, o;

	assert_int_equal(modes_open_write(&k->modes, INODE, 0, &o), -ESTALE);
	closes(k, a);
	b = reads(k, 1, FD, OPEN_PASSED);
	assert_int_equal(modes_open_write(&k->modes, INODE, 1, &o), -ESTALE);
	assert_int_equal(current(k), 0);
	o = writes(k, 0);
	assert_true(o.foreign);
	closes(k, o);
	closes(k, b);
}

static void an_old_name_of_the_other_side_is_looked_up_again_unless_all_is_closed(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, FD, OPEN_PASSED), w, o;

	assert_int_equal(modes_open_write(&k->modes, INODE, 0, &o), -ESTALE);
	closes(k, a);
	w = writes(k, 1);
	assert_int_equal(modes_open_read(&k->modes, INODE, 0, FD, &o), -ESTALE);
	assert_int_equal(modes_open_write(&k->modes, INODE, 0, &o), -ESTALE);
	closes(k, w);
	w = writes(k, 0);
	assert_int_equal(current(k), 0);
	assert_int_equal(modes_open_write(&k->modes, INODE, 1, &o), -ESTALE);
	closes(k, w);
}

static void what_is_created_is_told_its_side_with_the_answer(void **state)
{
	struct kernel *k = *state;
	struct opened a = reads(k, 0, FD, OPEN_PASSED), o;

	assert_int_equal(modes_create(&k->modes, INODE, &o), 0);
	assert_int_equal(o.mode, OPEN_PAGES);
	assert_int_equal(o.side, 1);
	assert_int_equal(current(k), 1);
	closes(k, o);
	closes(k, a);
}

static struct opened waiting;

static void *close_soon(void *context)
{
	closes(context, waiting);
	return NULL;
}

static void a_writer_waits_a_moment_for_a_close_that_is_on_its_way(void **state)
{
	struct kernel *k = *state;

	for (int turn = 0; turn < 100; turn++) {
		struct opened o;
		pthread_t closer;
		int r;

		waiting = reads(k, current(k), FD, OPEN_PASSED);
		assert_int_equal(pthread_create(&closer, NULL, close_soon, k), 0);
		r = modes_open_write(&k->modes, INODE, waiting.side, &o);
		pthread_join(closer, NULL);
		/* On a machine that is busy it may not come in time: then it is the other side. */
		if (r == 0)
			closes(k, o);
		else
			assert_int_equal(r, -ESTALE);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(readers_share_one_backing_id_until_the_last_one_closes, setup, teardown),
		cmocka_unit_test_setup_teardown(a_reader_who_cannot_join_is_sent_to_the_other_side, setup, teardown),
		cmocka_unit_test_setup_teardown(pages_stay_pages_until_all_are_closed, setup, teardown),
		cmocka_unit_test_setup_teardown(where_the_kernel_refuses_an_id_it_is_pages, setup, teardown),
		cmocka_unit_test_setup_teardown(a_writer_is_sent_to_the_other_side, setup, teardown),
		cmocka_unit_test_setup_teardown(and_back_to_the_first, setup, teardown),
		cmocka_unit_test_setup_teardown(an_old_name_of_the_other_side_is_looked_up_again_unless_all_is_closed, setup,
						teardown),
		cmocka_unit_test_setup_teardown(what_is_created_is_told_its_side_with_the_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(a_writer_waits_a_moment_for_a_close_that_is_on_its_way, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
