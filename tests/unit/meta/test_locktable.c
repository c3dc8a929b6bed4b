#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "meta/locktable.h"

#define DONE LOCK_RESULT_DONE
#define BUSY LOCK_RESULT_BUSY
#define QUEUED LOCK_RESULT_QUEUED

static unsigned grants;

static void count_grant(void *context, uint64_t session) { grants++; }

static int setup(void **state)
{
	grants = 0;
	*state = locktable_new(count_grant, NULL);
	return *state ? 0 : -1;
}

static int teardown(void **state)
{
	locktable_free(*state);
	return 0;
}

/* Owners are told apart by session * 10 + owner. */
static struct lock range(unsigned who, enum lock_type type, uint64_t start, uint64_t end)
{
	return (struct lock){ .file = lock_file(1, 5),
			      .session = who / 10,
			      .owner = who % 10,
			      .handle = who,
			      .start = start,
			      .end = end,
			      .pid = 1000 + who,
			      .type = type };
}

static int set(struct locktable *t, unsigned who, enum lock_type type, uint64_t start, uint64_t end, uint64_t wait)
{
	struct lock l = range(who, type, start, end);

	return locktable_set(t, &l, wait);
}

static int flock_set(struct locktable *t, unsigned who, enum lock_type type, uint64_t wait)
{
	struct lock l = range(who, type, 0, LOCK_END_MAX);

	l.flock = true;
	return locktable_set(t, &l, wait);
}

static bool is_free(struct locktable *t, unsigned who, enum lock_type type, uint64_t start, uint64_t end)
{
	struct lock l = range(who, type, start, end), found;

	return locktable_test(t, &l, &found);
}

static bool was_granted(struct locktable *t, uint64_t session, uint64_t wait)
{
	uint64_t ids[16];
	size_t count = locktable_granted(t, session, ids, 16);

	for (size_t i = 0; i < count; i++)
		if (ids[i] == wait)
			return true;
	return false;
}

static void locks_exclude_only_where_they_overlap_and_one_is_exclusive(void **state)
{
	struct locktable *t = *state;
	struct lock asked = range(21, LOCK_SHARED, 0, 100), found;

	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 10, 19, 0), DONE);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 19, 19, 0), BUSY);
	assert_int_equal(set(t, 21, LOCK_SHARED, 20, LOCK_END_MAX, 0), DONE);
	assert_int_equal(set(t, 12, LOCK_SHARED, 25, 30, 0), DONE);
	assert_int_equal(set(t, 12, LOCK_EXCLUSIVE, 25, 30, 0), BUSY);
	assert_false(locktable_test(t, &asked, &found));
	assert_int_equal(found.session, 1);
	assert_int_equal(found.start, 10);
	assert_int_equal(found.end, 19);
	assert_int_equal(found.pid, 1011);
	/* The same numbers in another volume are another file. */
	asked.file = lock_file(2, 5);
	assert_true(locktable_test(t, &asked, &found));
}

static void an_owner_replaces_splits_and_joins_its_own(void **state)
{
	struct locktable *t = *state;
	struct lock list[8];

	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 0, 99, 0), DONE);
	assert_int_equal(set(t, 11, LOCK_SHARED, 40, 59, 0), DONE);
	assert_int_equal(locktable_list(t, 1, list, 8), 3);
	assert_true(is_free(t, 21, LOCK_SHARED, 40, 59));
	assert_false(is_free(t, 21, LOCK_SHARED, 39, 39));
	assert_false(is_free(t, 21, LOCK_SHARED, 60, 60));
	assert_int_equal(set(t, 11, LOCK_NONE, 45, 49, 0), DONE);
	assert_int_equal(locktable_held(t, 1), 4);
	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 40, 59, 0), DONE);
	assert_int_equal(locktable_list(t, 1, list, 8), 1);
	assert_int_equal(list[0].start, 0);
	assert_int_equal(list[0].end, 99);
	assert_int_equal(set(t, 11, LOCK_NONE, 0, LOCK_END_MAX, 0), DONE);
	assert_int_equal(locktable_held(t, 1), 0);
	assert_int_equal(set(t, 11, LOCK_NONE, 0, LOCK_END_MAX, 0), DONE);
}

static void who_waits_is_served_in_turn(void **state)
{
	struct locktable *t = *state;

	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 7), QUEUED);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 7), QUEUED);
	assert_int_equal(set(t, 31, LOCK_EXCLUSIVE, 5, 5, 1), QUEUED);
	assert_int_equal(set(t, 11, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(grants, 1);
	assert_true(was_granted(t, 2, 7));
	assert_false(was_granted(t, 3, 1));
	/* Saying it again is how the session takes it. */
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 7), DONE);
	assert_false(was_granted(t, 2, 7));
	locktable_drop_session(t, 2);
	assert_true(was_granted(t, 3, 1));
}

static void a_wait_can_be_cancelled_unless_it_was_granted(void **state)
{
	struct locktable *t = *state;

	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 7), QUEUED);
	assert_int_equal(set(t, 31, LOCK_EXCLUSIVE, 0, 9, 8), QUEUED);
	assert_int_equal(locktable_cancel(t, 2, 7), BUSY);
	assert_int_equal(locktable_cancel(t, 2, 7), BUSY);
	assert_int_equal(set(t, 11, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(locktable_cancel(t, 3, 8), DONE);
	assert_int_equal(locktable_cancel(t, 3, 8), BUSY);
	assert_false(is_free(t, 21, LOCK_SHARED, 0, 9));
	/* Granted, but released by another thread of its owner: then it is not held. */
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 9), QUEUED);
	assert_int_equal(set(t, 31, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(set(t, 21, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(set(t, 11, LOCK_SHARED, 0, 9, 0), DONE);
	assert_int_equal(locktable_cancel(t, 2, 9), BUSY);
	assert_int_equal(locktable_held(t, 2), 0);
}

static void a_circle_of_waits_is_refused_to_who_closes_it(void **state)
{
	struct locktable *t = *state;

	for (unsigned k = 1; k <= 3; k++)
		assert_int_equal(set(t, 10 * k + 1, LOCK_EXCLUSIVE, k, k, 0), DONE);
	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 2, 2, 1), QUEUED);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 3, 3, 1), QUEUED);
	assert_int_equal(set(t, 31, LOCK_EXCLUSIVE, 1, 1, 1), LOCK_RESULT_DEADLOCK);
	assert_int_equal(set(t, 31, LOCK_EXCLUSIVE, 1, 1, 0), BUSY);
	/* Another owner of the same session is not in it. */
	assert_int_equal(set(t, 32, LOCK_EXCLUSIVE, 1, 1, 2), QUEUED);
	/* Both have it shared and want it alone. */
	assert_int_equal(set(t, 41, LOCK_SHARED, 50, 50, 0), DONE);
	assert_int_equal(set(t, 42, LOCK_SHARED, 50, 50, 0), DONE);
	assert_int_equal(set(t, 41, LOCK_EXCLUSIVE, 50, 50, 1), QUEUED);
	assert_int_equal(set(t, 42, LOCK_EXCLUSIVE, 50, 50, 2), LOCK_RESULT_DEADLOCK);
}

static void flocks_are_of_the_whole_file_and_give_up_the_old_type_first(void **state)
{
	struct locktable *t = *state;

	assert_int_equal(flock_set(t, 11, LOCK_SHARED, 0), DONE);
	assert_int_equal(flock_set(t, 21, LOCK_SHARED, 0), DONE);
	/* Range locks are another matter. */
	assert_int_equal(set(t, 31, LOCK_EXCLUSIVE, 0, LOCK_END_MAX, 0), DONE);
	assert_int_equal(flock_set(t, 11, LOCK_EXCLUSIVE, 0), BUSY);
	assert_int_equal(locktable_held(t, 1), 0);
	assert_int_equal(flock_set(t, 21, LOCK_EXCLUSIVE, 0), DONE);
	assert_int_equal(flock_set(t, 11, LOCK_SHARED, 3), QUEUED);
	assert_int_equal(flock_set(t, 21, LOCK_SHARED, 0), DONE);
	assert_true(was_granted(t, 1, 3));
	assert_int_equal(flock_set(t, 11, LOCK_SHARED, 3), DONE);
	/* Two that wait for each other's: no circle is looked for, the first one gave its own up. */
	assert_int_equal(flock_set(t, 11, LOCK_EXCLUSIVE, 4), QUEUED);
	assert_int_equal(flock_set(t, 21, LOCK_EXCLUSIVE, 5), DONE);
	assert_int_equal(flock_set(t, 21, LOCK_NONE, 0), DONE);
	assert_int_equal(flock_set(t, 11, LOCK_EXCLUSIVE, 4), DONE);
}

static void what_was_set_through_a_handle_goes_with_it(void **state)
{
	struct locktable *t = *state;
	struct lock l = range(11, LOCK_EXCLUSIVE, 0, 9);

	l.handle = 100;
	assert_int_equal(locktable_set(t, &l, 0), DONE);
	l.start = 10;
	l.end = 19;
	l.handle = 200;
	assert_int_equal(locktable_set(t, &l, 0), DONE);
	assert_int_equal(locktable_held(t, 1), 2);
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 5, 1), QUEUED);
	locktable_drop_handle(t, l.file, 1, 100);
	assert_true(was_granted(t, 2, 1));
	assert_true(locktable_owns(t, l.file, 1, 1));
	locktable_drop_owner(t, l.file, 1, 1);
	assert_false(locktable_owns(t, l.file, 1, 1));
	assert_true(is_free(t, 31, LOCK_EXCLUSIVE, 10, 19));
}

static void a_frozen_volume_takes_back_what_was_held_and_grants_nothing_new(void **state)
{
	struct locktable *t = *state;
	struct lock mine = range(11, LOCK_EXCLUSIVE, 0, 9), theirs = range(21, LOCK_EXCLUSIVE, 5, 5);

	assert_int_equal(locktable_freeze(t, 1), 0);
	assert_int_equal(set(t, 31, LOCK_SHARED, 50, 59, 0), LOCK_RESULT_FROZEN);
	assert_int_equal(set(t, 31, LOCK_SHARED, 50, 59, 1), QUEUED);
	assert_int_equal(set(t, 31, LOCK_SHARED, 5, 5, 2), QUEUED);
	assert_int_equal(locktable_reclaim(t, &mine), DONE);
	assert_int_equal(locktable_reclaim(t, &mine), DONE);
	assert_int_equal(locktable_reclaim(t, &theirs), BUSY);
	assert_int_equal(locktable_held(t, 1), 1);
	assert_int_equal(grants, 0);
	locktable_thaw(t, 1);
	assert_true(was_granted(t, 3, 1));
	assert_false(was_granted(t, 3, 2));
	assert_int_equal(set(t, 11, LOCK_NONE, 0, 9, 0), DONE);
	assert_true(was_granted(t, 3, 2));
}

static void a_session_has_no_more_locks_than_the_limit(void **state)
{
	struct locktable *t = *state;
	struct lock l = range(11, LOCK_EXCLUSIVE, 0, 99);

	for (l.file = 0; l.file < LOCKS_PER_SESSION - 3; l.file++)
		assert_int_equal(locktable_set(t, &l, 0), DONE);
	/* A wait is sure of the room it needs. */
	assert_int_equal(set(t, 21, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(t, 11, LOCK_EXCLUSIVE, 0, 9, 5), QUEUED);
	assert_int_equal(locktable_set(t, &l, 0), -ENOLCK);
	l.file = 0;
	l.start = l.end = 50;
	l.type = LOCK_NONE;
	assert_int_equal(locktable_set(t, &l, 0), -ENOLCK);
	assert_int_equal(set(t, 21, LOCK_NONE, 0, 9, 0), DONE);
	assert_true(was_granted(t, 1, 5));
	l.start = 0;
	l.end = 99;
	assert_int_equal(locktable_set(t, &l, 0), DONE);
	assert_int_equal(locktable_held(t, 1), LOCKS_PER_SESSION - 3);
	locktable_drop_session(t, 1);
	assert_int_equal(locktable_held(t, 1), 0);
}

/* ---- A model of bytes ---- */

#define FILES 2
#define BYTES 12
#define WHO 4 /* sessions 1 and 2, owners 1 and 2 */
#define WAITS 64

struct model {
	struct {
		enum lock_type type;
		uint64_t handle;
	} at[FILES][BYTES][WHO];
	struct waiting {
		unsigned file, who, start, end;
		enum lock_type type;
		uint64_t handle, wait;
	} waits[WAITS];
	size_t wait_count;
	bool granted[500];
};

static bool model_free(const struct model *m, const struct waiting *w)
{
	for (unsigned b = w->start; b <= w->end; b++)
		for (unsigned k = 0; k < WHO; k++)
			if (k != w->who && m->at[w->file][b][k].type &&
			    (w->type == LOCK_EXCLUSIVE || m->at[w->file][b][k].type == LOCK_EXCLUSIVE))
				return false;
	return true;
}

static void model_put(struct model *m, const struct waiting *w)
{
	for (unsigned b = w->start; b <= w->end; b++) {
		m->at[w->file][b][w->who].type = w->type;
		m->at[w->file][b][w->who].handle = w->handle;
	}
}

static void model_wait_remove(struct model *m, size_t i)
{
	memmove(&m->waits[i], &m->waits[i + 1], (--m->wait_count - i) * sizeof(m->waits[0]));
}

static void model_grant(struct model *m)
{
	for (bool again = true; again;) {
		again = false;
		for (size_t i = 0; i < m->wait_count; i++) {
			if (!model_free(m, &m->waits[i]))
				continue;
			model_put(m, &m->waits[i]);
			m->granted[m->waits[i].wait] = true;
			model_wait_remove(m, i--);
			again = true;
		}
	}
}

/* Whether `who` waits, over others, for `target`. */
static bool model_waits_for(const struct model *m, const struct waiting *w, unsigned target, unsigned seen)
{
	for (unsigned k = 0; k < WHO; k++) {
		bool in_the_way = false;

		for (unsigned b = w->start; b <= w->end; b++)
			in_the_way |= k != w->who && m->at[w->file][b][k].type &&
				      (w->type == LOCK_EXCLUSIVE || m->at[w->file][b][k].type == LOCK_EXCLUSIVE);
		if (!in_the_way || seen & (1u << k))
			continue;
		if (k == target)
			return true;
		for (size_t i = 0; i < m->wait_count; i++)
			if (m->waits[i].who == k && model_waits_for(m, &m->waits[i], target, seen | (1u << k)))
				return true;
	}
	return false;
}

static struct lock model_lock(const struct waiting *w)
{
	return (struct lock){ .file = lock_file(1, w->file + 1),
			      .session = 1 + w->who / 2,
			      .owner = 1 + w->who % 2,
			      .handle = w->handle,
			      .start = w->start,
			      .end = w->end,
			      .type = w->type };
}

static void model_compare(const struct model *m, struct locktable *t)
{
	for (unsigned f = 0; f < FILES; f++)
		for (unsigned b = 0; b < BYTES; b++) {
			bool any = false, exclusive = false;
			struct waiting probe = { .file = f, .start = b, .end = b };
			struct lock l = model_lock(&probe), found;

			for (unsigned k = 0; k < WHO; k++) {
				any |= m->at[f][b][k].type != LOCK_NONE;
				exclusive |= m->at[f][b][k].type == LOCK_EXCLUSIVE;
			}
			l.session = 99;
			l.type = LOCK_SHARED;
			assert_int_equal(locktable_test(t, &l, &found), !exclusive);
			l.type = LOCK_EXCLUSIVE;
			assert_int_equal(locktable_test(t, &l, &found), !any);
		}
}

static int model_set(struct model *m, const struct waiting *w)
{
	if (w->type == LOCK_NONE || model_free(m, w)) {
		model_put(m, w);
		model_grant(m);
		return DONE;
	}
	if (!w->wait)
		return BUSY;
	if (model_waits_for(m, w, w->who, 1u << w->who) || model_waits_for(m, w, w->who, 0))
		return LOCK_RESULT_DEADLOCK;
	m->waits[m->wait_count++] = *w;
	return QUEUED;
}

static void model_drop(struct model *m, const struct waiting *w, bool session, bool handle)
{
	for (size_t i = m->wait_count; session && i-- > 0;)
		if (m->waits[i].who / 2 == w->who / 2)
			model_wait_remove(m, i);
	for (unsigned f = 0; f < FILES; f++)
		for (unsigned b = 0; b < BYTES; b++)
			for (unsigned k = 0; k < WHO; k++)
				if (session  ? k / 2 == w->who / 2
				    : handle ? f == w->file && k / 2 == w->who / 2 && m->at[f][b][k].handle == w->handle
					     : f == w->file && k == w->who)
					m->at[f][b][k].type = LOCK_NONE;
	model_grant(m);
}

static unsigned dice(unsigned sides) { return (unsigned)random() % sides; }

static void step(struct model *m, struct locktable *t, uint64_t number)
{
	struct waiting w = { .file = dice(FILES), .who = dice(WHO), .start = dice(BYTES), .handle = 1 + dice(3) };
	struct lock l;

	w.end = w.start + dice(BYTES - w.start);
	w.type = dice(3);
	w.wait = w.type && m->wait_count < WAITS - 1 && dice(2) ? number : 0;
	l = model_lock(&w);
	switch (dice(20)) {
	case 0:
		locktable_drop_session(t, l.session);
		model_drop(m, &w, true, false);
		break;
	case 1:
		locktable_drop_owner(t, l.file, l.session, l.owner);
		model_drop(m, &w, false, false);
		break;
	case 2:
		locktable_drop_handle(t, l.file, l.session, l.handle);
		model_drop(m, &w, false, true);
		break;
	case 3:
		if (m->wait_count) {
			size_t i = dice((unsigned)m->wait_count);

			assert_int_equal(locktable_cancel(t, model_lock(&m->waits[i]).session, m->waits[i].wait), BUSY);
			model_wait_remove(m, i);
		}
		break;
	default: assert_int_equal(locktable_set(t, &l, w.wait), model_set(m, &w));
	}
}

static void granted_compare(struct model *m, struct locktable *t)
{
	uint64_t ids[256];

	for (uint64_t session = 1; session <= 2; session++) {
		size_t count = locktable_granted(t, session, ids, 256);

		for (size_t i = 0; i < count; i++)
			assert_true(m->granted[ids[i]]);
	}
}

static void any_sequence_gives_what_a_map_of_bytes_gives(void **state)
{
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct locktable *t = locktable_new(NULL, NULL);

		srandom(seed);
		memset(m, 0, sizeof(*m));
		for (uint64_t number = 1; number < 500; number++) {
			step(m, t, number);
			model_compare(m, t);
		}
		granted_compare(m, t);
		locktable_free(t);
	}
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(locks_exclude_only_where_they_overlap_and_one_is_exclusive, setup, teardown),
		cmocka_unit_test_setup_teardown(an_owner_replaces_splits_and_joins_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(who_waits_is_served_in_turn, setup, teardown),
		cmocka_unit_test_setup_teardown(a_wait_can_be_cancelled_unless_it_was_granted, setup, teardown),
		cmocka_unit_test_setup_teardown(a_circle_of_waits_is_refused_to_who_closes_it, setup, teardown),
		cmocka_unit_test_setup_teardown(flocks_are_of_the_whole_file_and_give_up_the_old_type_first, setup, teardown),
		cmocka_unit_test_setup_teardown(what_was_set_through_a_handle_goes_with_it, setup, teardown),
		cmocka_unit_test_setup_teardown(a_frozen_volume_takes_back_what_was_held_and_grants_nothing_new, setup, teardown),
		cmocka_unit_test_setup_teardown(a_session_has_no_more_locks_than_the_limit, setup, teardown),
		cmocka_unit_test(any_sequence_gives_what_a_map_of_bytes_gives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
