#include "world.h"
#include "meta/machine.h"
#include "meta/tail.h"

/* A write view of the test's own, on tables the writer does not use meanwhile. */
struct batch {
	struct view view;
	struct view_tail tails[TABLE_COUNT];
	struct buf write_set;
};

static void batch_begin(struct world *w, struct batch *b)
{
	*b = (struct batch){ 0 };
	b->view = (struct view){ .meta = w->meta, .writable = true, .write_set = &b->write_set, .tails = b->tails };
	assert_int_equal(mdb_txn_begin(w->meta->env, NULL, 0, &b->view.txn), 0);
}

static void batch_commit(struct batch *b)
{
	assert_int_equal(mdb_txn_commit(b->view.txn), 0);
	buf_free(&b->write_set);
}

static void batch_abort(struct batch *b)
{
	mdb_txn_abort(b->view.txn);
	buf_free(&b->write_set);
}

static int put(struct batch *b, uint64_t key, const char *value)
{
	uint8_t k[8];

	put_be64(k, key);
	return view_put(&b->view, TABLE_XATTR, k, sizeof(k), value, strlen(value));
}

static int delete (struct batch *b, uint64_t key)
{
	uint8_t k[8];

	put_be64(k, key);
	return view_delete(&b->view, TABLE_XATTR, k, sizeof(k));
}

static void keys_are_found_in_numeric_order(void **state)
{
	struct world *w = *state;
	static const uint64_t keys[] = { 300, 2, 1ull << 40, 7, 70000 };
	static const uint64_t sorted[] = { 2, 7, 300, 70000, 1ull << 40 };
	CLEANUP_CURSOR struct cursor c = { 0 };
	struct batch b;
	struct view v;
	int r, i = 0;

	batch_begin(w, &b);
	for (int k = 0; k < 5; k++)
		assert_int_equal(put(&b, keys[k], "v"), 0);
	batch_commit(&b);
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(cursor_open(&c, &v, TABLE_XATTR), 0);
	for (r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c))
		assert_int_equal(get_be64(c.key.data), sorted[i++]);
	assert_int_equal(r, -ENOENT);
	assert_int_equal(i, 5);
	assert_int_equal(cursor_last(&c), 0);
	assert_int_equal(get_be64(c.key.data), 1ull << 40);
	assert_int_equal(cursor_previous(&c), 0);
	assert_int_equal(get_be64(c.key.data), 70000);
	cursor_close(&c);
	meta_view_end(&v);
}

/* Whatever mixture of appends, inserts, overwrites and deletes of the last key, the batch's idea of the last key is right. */
static void appending_and_inserting_mix(void **state)
{
	struct world *w = *state;
	uint8_t there[512] = { 0 };
	uint32_t random = 12345;
	struct cursor c;
	struct batch b;
	int r, i;

	batch_begin(w, &b);
	for (int step = 0; step < 20000; step++) {
		random = random * 1103515245 + 12345;
		unsigned key = (random >> 8) % 512;
		if (random >> 30 == 0 || (random >> 30 == 1 && b.tails[TABLE_XATTR].known)) {
			if (random >> 30 == 1)
				key = (unsigned)get_be64(b.tails[TABLE_XATTR].key);
			assert_int_equal(delete (&b, key), there[key] ? 0 : -ENOENT);
			there[key] = 0;
		} else {
			assert_int_equal(put(&b, key, "some value"), 0);
			there[key] = 1;
		}
	}
	assert_int_equal(cursor_open(&c, &b.view, TABLE_XATTR), 0);
	r = cursor_seek(&c, NULL, 0);
	for (i = 0; i < 512; i++) {
		if (!there[i])
			continue;
		assert_int_equal(r, 0);
		assert_int_equal(get_be64(c.key.data), i);
		r = cursor_next(&c);
	}
	assert_int_equal(r, -ENOENT);
	cursor_close(&c);
	batch_abort(&b);
}

static void keys_in_order_fill_their_pages(void **state)
{
	struct world *w = *state;
	struct batch b;
	MDB_stat stat;

	batch_begin(w, &b);
	for (uint64_t key = 1; key <= 10000; key++)
		assert_int_equal(
			put(&b, key,
			    "a value of about a hundred bytes, which is what an inode has, so that some thirty fit a page"),
			0);
	assert_int_equal(mdb_stat(b.view.txn, w->meta->tables[TABLE_XATTR], &stat), 0);
	assert_in_range(stat.ms_leaf_pages, 250, 320);
	batch_abort(&b);
}

static void changes_are_recorded_in_the_write_set(void **state)
{
	struct world *w = *state;
	static const uint8_t expected[] = {
		TABLE_XATTR, 8,           0, 2, 0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 9, 'h',
		'i',         TABLE_XATTR, 8, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 9,
	};
	struct batch b;

	batch_begin(w, &b);
	assert_int_equal(put(&b, 9, "hi"), 0);
	assert_int_equal(delete (&b, 9), 0);
	assert_int_equal(delete (&b, 9), -ENOENT);
	assert_int_equal(b.write_set.len, sizeof(expected));
	assert_memory_equal(b.write_set.data, expected, sizeof(expected));
	assert_int_equal(b.view.touched, 1u << TABLE_XATTR);
	batch_abort(&b);
}

static void a_failed_write_poisons_the_batch(void **state)
{
	struct world *w = *state;
	struct batch b;
	uint8_t long_key[600] = { 1 };

	batch_begin(w, &b);
	assert_int_equal(put(&b, 1, "fine"), 0);
	assert_int_equal(view_put(&b.view, TABLE_XATTR, long_key, sizeof(long_key), "x", 1), -EINVAL);
	assert_int_equal(b.view.poisoned, -EINVAL);
	assert_int_equal(put(&b, 2, "too late"), -EINVAL);
	assert_int_equal(delete (&b, 1), -EINVAL);
	batch_abort(&b);
}

static void a_view_sees_what_was_there_when_it_began(void **state)
{
	struct world *w = *state;
	struct batch b;
	struct view before, after;
	struct span value;
	uint8_t key[8];

	put_be64(key, 5);
	assert_int_equal(meta_view_begin(w->meta, &before), 0);
	batch_begin(w, &b);
	assert_int_equal(put(&b, 5, "new"), 0);
	batch_commit(&b);
	assert_int_equal(meta_view_begin(w->meta, &after), 0);
	assert_int_equal(view_get(&before, TABLE_XATTR, key, sizeof(key), &value), -ENOENT);
	assert_int_equal(view_get(&after, TABLE_XATTR, key, sizeof(key), &value), 0);
	assert_int_equal(value.size, 3);
	meta_view_end(&before);
	meta_view_end(&after);
	assert_int_equal(meta_view_begin(w->meta, &before), 0); /* from the pool: a new snapshot all the same */
	assert_int_equal(view_get(&before, TABLE_XATTR, key, sizeof(key), &value), 0);
	meta_view_end(&before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(keys_are_found_in_numeric_order),  TEST(appending_and_inserting_mix),
		TEST(keys_in_order_fill_their_pages),   TEST(changes_are_recorded_in_the_write_set),
		TEST(a_failed_write_poisons_the_batch), TEST(a_view_sees_what_was_there_when_it_began),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
