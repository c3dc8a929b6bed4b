#include "filling.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "meta/machine.h"
#include "meta/replica.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
#define FILES 60

/* A replica of the world's volume, made of ranges of `most` bytes each. */
struct copy {
	struct world *world;
	char folder[100];
	struct meta *meta;
	struct replica_head head;
	uint64_t highest;
	size_t changed; /* records that became others */
};

static void make_folder(struct copy *k, const char *name)
{
	snprintf(k->folder, sizeof(k->folder), "%s/%s", k->world->folder, name);
	assert_int_equal(mkdir(k->folder, 0700), 0);
}

static void copy_make(struct copy *k, struct world *w, const char *name)
{
	char error[500];

	*k = (struct copy){ .world = w, .head = { .volume = w->who.volume, .name_seed = meta_name_seed(w->meta) } };
	memcpy(k->head.history, meta_history(w->meta), 16);
	make_folder(k, name);
	assert_int_equal(replica_make(k->folder, &k->head, &k->meta, error, sizeof(error)), 0);
}

static int count_change(void *context, const struct change *now, struct span before)
{
	((struct copy *)context)->changed++;
	return 0;
}

static void update_begin(struct copy *k, struct replica_update *u)
{
	assert_int_equal(replica_begin(u, k->meta, k->head.volume), 0);
	u->each = count_change;
	u->context = k;
}

static int batch_apply(void *context, uint64_t batch, const void *data, size_t size)
{
	struct copy *k = context;
	struct buf changes = { 0 };
	struct replica_update u;

	assert_int_equal(stream_filter(data, size, k->head.volume, &changes), 0);
	update_begin(k, &u);
	assert_int_equal(replica_apply(&u, changes.data, changes.len), 0);
	k->head.batch = batch;
	assert_int_equal(replica_commit(&u, &k->head, NULL), 0);
	buf_free(&changes);
	return 0;
}

static void follow(struct copy *k) { assert_int_equal(meta_write_sets(k->world->meta, k->head.batch, batch_apply, k), 0); }

static void last_key(const struct buf *records, struct buf *out)
{
	struct reader in = reader_of(records->data, records->len);
	struct change c = { 0 };

	while (change_next(&in, &c) > 0)
		;
	buf_clear(out);
	buf_append(out, c.key.data, c.key.size);
}

/* `meanwhile` is called between the ranges; the number of the first batch is where following begins. */
static void copy_ranges(struct copy *k, size_t most, void (*meanwhile)(struct world *w))
{
	bool first = true;

	for (int i = 0; i < STREAM_TABLES; i++) {
		struct buf after = { 0 }, records = { 0 };
		bool end = false;

		while (!end) {
			struct replica_update u;
			struct view v;
			uint64_t batch;

			buf_clear(&records);
			assert_int_equal(meta_view_begin(k->world->meta, &v), 0);
			assert_int_equal(stream_range(&v, k->head.volume, stream_tables[i], after.data, after.len, most, &records,
						      &end, &batch),
					 0);
			meta_view_end(&v);
			if (meanwhile)
				meanwhile(k->world);
			update_begin(k, &u);
			struct buf last = { 0 };
			last_key(&records, &last);
			assert_int_equal(replica_range(&u, stream_tables[i], after.data, after.len, last.data, end ? 0 : last.len,
						       records.data, records.len),
					 0);
			buf_clear(&after);
			buf_append(&after, last.data, last.len);
			buf_free(&last);
			if (first)
				k->head.batch = batch;
			first = false;
			if (batch > k->highest)
				k->highest = batch;
			assert_int_equal(replica_commit(&u, &k->head, NULL), 0);
		}
		buf_free(&after);
		buf_free(&records);
	}
}

/* Byte for byte: all there is of the volume in these tables, and nothing in any other. */
static void assert_same(struct copy *k)
{
	struct view there, here;

	assert_true(k->head.batch >= k->highest);
	assert_int_equal(meta_view_begin(k->world->meta, &there), 0);
	assert_int_equal(meta_view_begin(k->meta, &here), 0);
	for (int i = 0; i < STREAM_TABLES; i++) {
		struct buf a = { 0 }, b = { 0 };
		uint64_t batch, count;
		bool end;

		assert_int_equal(stream_range(&there, k->head.volume, stream_tables[i], NULL, 0, SIZE_MAX, &a, &end, &batch), 0);
		assert_int_equal(stream_range(&here, k->head.volume, stream_tables[i], NULL, 0, SIZE_MAX, &b, &end, &batch), 0);
		assert_int_equal(a.len, b.len);
		assert_memory_equal(a.data ? a.data : (uint8_t *)"", b.data ? b.data : (uint8_t *)"", a.len);
		assert_int_equal(view_count(&here, stream_tables[i], &count), 0);
		struct reader in = reader_of(b.data, b.len);
		struct change c;
		uint64_t records = 0;
		while (change_next(&in, &c) > 0)
			records++;
		/* "format" and "replica" are its own. */
		assert_int_equal(count, records + (stream_tables[i] == TABLE_META ? 2 : 0));
		buf_free(&a);
		buf_free(&b);
	}
	for (enum table t = TABLE_OBJECT; t < TABLE_COUNT; t++) {
		uint64_t count;

		assert_int_equal(view_count(&here, t, &count), 0);
		assert_int_equal(count, 0);
	}
	meta_view_end(&here);
	meta_view_end(&there);
}

/* ---- Changing the world ---- */

static int set_xattr(struct world *w, uint64_t inode, const char *name, const char *value)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;

	q.inode = inode;
	q.name = bytes_of(name);
	q.value = bytes_of(value);
	return world_mutate(w, WIRE__OP__SETXATTR, &q, NULL);
}

static void change_somehow(struct world *w)
{
	char name[20], other[20];
	struct attr a;

	arena_reset(&w->arena);
	snprintf(name, sizeof(name), "f%d", rand() % FILES);
	snprintf(other, sizeof(other), "f%d", rand() % FILES);
	switch (rand() % 7) {
	case 0:
	case 1: do_file(w, ROOT_INODE, name, NULL); break;
	case 2: do_unlink(w, ROOT_INODE, name); break;
	case 3: do_rename(w, ROOT_INODE, name, ROOT_INODE, other, 0); break;
	case 4:
		if (do_lookup(w, ROOT_INODE, name, &a) == 0 && S_ISREG(a.mode))
			do_write(w, a.inode, (uint64_t)(rand() % 5) * 4096, 4096);
		break;
	case 5:
		if (do_lookup(w, ROOT_INODE, name, &a) == 0 && S_ISREG(a.mode))
			set_xattr(w, a.inode, "user.x", other);
		break;
	default: do_symlink(w, ROOT_INODE, name, other, NULL);
	}
	do_reap_all(w, 100);
}

static void change_twice(struct world *w)
{
	change_somehow(w);
	change_somehow(w);
}

static void fill(struct world *w)
{
	for (int i = 0; i < 4 * FILES; i++)
		change_somehow(w);
}

/* ---- Tests ---- */

static void a_copy_that_takes_long_becomes_what_the_volume_is(void **state)
{
	struct world *w = *state;
	struct copy k;

	for (unsigned seed = 1; seed <= 8; seed++) {
		char name[20];

		srand(seed);
		fill(w);
		snprintf(name, sizeof(name), "copy%u", seed);
		copy_make(&k, w, name);
		copy_ranges(&k, 400, change_twice);
		follow(&k);
		assert_same(&k);
		for (int i = 0; i < 50; i++)
			change_somehow(w);
		follow(&k);
		assert_same(&k);
		meta_close(k.meta);
	}
}

static void an_old_copy_is_brought_up_to_date_by_its_differences(void **state)
{
	struct world *w = *state;
	struct copy k;

	srand(5);
	fill(w);
	copy_make(&k, w, "copy");
	copy_ranges(&k, 400, NULL);
	follow(&k);
	for (int i = 0; i < 100; i++)
		change_somehow(w);
	copy_ranges(&k, 400, change_somehow);
	follow(&k);
	assert_same(&k);
	k.changed = 0;
	copy_ranges(&k, 1 << 20, NULL);
	assert_int_equal(k.changed, 0);
	assert_same(&k);
	meta_close(k.meta);
}

/* Whatever is made in another volume, and by whom, none of it gets through. */
static void other_volumes_sessions_and_answers_stay_where_they_are(void **state)
{
	struct world *w = *state;
	struct caller mine = w->who;
	uint64_t before = meta_batch(w->meta);
	Wire__Volume v = WIRE__VOLUME__INIT;
	Wire__SessionBegin s = WIRE__SESSION_BEGIN__INIT;
	Wire__VolumeReply *made;
	struct copy k;
	struct attr a;

	v.name = "secret";
	v.block_size = 4 << 20;
	v.compression = "none";
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_CREATE, &v, &made), 0);
	s.session = 99;
	s.volume = made->volume->id;
	s.host = "secret-host";
	assert_int_equal(admin_mutate(w, WIRE__OP__SESSION_BEGIN, &s, NULL), 0);
	copy_make(&k, w, "copy");
	k.head.batch = before;
	w->who = (struct caller){ .session = 99, .volume = made->volume->id, .root = ROOT_INODE };
	assert_int_equal(do_file(w, ROOT_INODE, "secret", &a), 0);
	do_write(w, a.inode, 0, 100);
	set_xattr(w, a.inode, "user.secret", "x");
	w->who = mine;
	follow(&k);
	assert_int_equal(k.changed, 0);
	copy_ranges(&k, 1 << 20, NULL);
	assert_int_equal(k.changed, 1); /* the root, and nothing else */
	assert_same(&k);
	meta_close(k.meta);
}

static void names_and_attributes_are_found_in_it(void **state)
{
	struct world *w = *state;
	struct attr a, b;
	struct copy k;

	srand(3);
	fill(w);
	copy_make(&k, w, "copy");
	copy_ranges(&k, 1 << 20, NULL);
	for (int i = 0; i < FILES; i++) {
		char name[20];
		int r;

		arena_reset(&w->arena);
		snprintf(name, sizeof(name), "f%d", i);
		r = do_lookup(w, ROOT_INODE, name, &a);
		assert_int_equal(replica_lookup(k.meta, k.head.volume, ROOT_INODE, name, strlen(name), &b), r);
		if (r == 0) {
			assert_attr_equal(&a, &b);
			assert_int_equal(replica_getattr(k.meta, k.head.volume, a.inode, &b), 0);
			assert_attr_equal(&a, &b);
		}
	}
	assert_int_equal(replica_getattr(k.meta, k.head.volume, INODE_MAX, &b), -ENOENT);
	assert_int_equal(replica_lookup(k.meta, k.head.volume, ROOT_INODE, "a/b", 3, &b), -EINVAL);
	meta_close(k.meta);
}

static void it_is_there_after_a_restart(void **state)
{
	struct world *w = *state;
	struct replica_head head;
	struct replica_update u;
	Wire__Volume v = WIRE__VOLUME__INIT, *back;
	struct copy k;

	fill(w);
	copy_make(&k, w, "copy");
	copy_ranges(&k, 1 << 20, NULL);
	k.head.whole = true;
	k.head.as_of_ns = 12345;
	k.head.space[1] = 77;
	v.name = "training";
	v.block_size = 65536;
	update_begin(&k, &u);
	assert_int_equal(replica_commit(&u, &k.head, &v), 0);
	meta_close(k.meta);
	assert_int_equal(replica_open(k.folder, &k.meta, &head), 0);
	assert_memory_equal(head.history, meta_history(w->meta), 16);
	assert_int_equal(head.name_seed, meta_name_seed(w->meta));
	assert_int_equal(head.batch, k.head.batch);
	assert_int_equal(head.as_of_ns, 12345);
	assert_int_equal(head.space[1], 77);
	assert_true(head.whole);
	assert_int_equal(replica_volume(k.meta, head.volume, &w->arena, &back), 0);
	assert_string_equal(back->name, "training");
	assert_int_equal(back->block_size, 65536);
	assert_same(&k);
	meta_close(k.meta);
}

static void one_of_an_earlier_release_is_read(void **state)
{
	struct world *w = *state;
	struct replica_head head;
	struct replica_update u;
	struct copy k;
	MDB_val key = { strlen("replica"), "replica" }, value;
	uint8_t old[33 + 4 * 8];

	fill(w);
	copy_make(&k, w, "copy");
	copy_ranges(&k, 1 << 20, NULL);
	k.head.whole = true;
	k.head.space[3] = 77;
	k.head.space[4] = 78;
	update_begin(&k, &u);
	assert_int_equal(replica_commit(&u, &k.head, NULL), 0);
	/* As that release wrote it. */
	update_begin(&k, &u);
	assert_int_equal(mdb_get(u.txn, k.meta->tables[TABLE_META], &key, &value), 0);
	assert_in_range(value.mv_size, sizeof(old), SIZE_MAX);
	memcpy(old, value.mv_data, sizeof(old));
	put_le32(old + 8, 1);
	value = (MDB_val){ sizeof(old), old };
	assert_int_equal(mdb_put(u.txn, k.meta->tables[TABLE_META], &key, &value, 0), 0);
	assert_int_equal(mdb_txn_commit(u.txn), 0);
	meta_close(k.meta);
	assert_int_equal(replica_open(k.folder, &k.meta, &head), 0);
	assert_true(head.whole);
	assert_int_equal(head.batch, k.head.batch);
	assert_int_equal(head.space[3], 77);
	assert_int_equal(head.space[4], 0);
	assert_same(&k);
	meta_close(k.meta);
}

static void one_that_is_damaged_is_gone(void **state)
{
	struct world *w = *state;
	char path[200], garbage[4096];
	struct replica_head head;
	struct copy k;
	FILE *f;

	fill(w);
	copy_make(&k, w, "copy");
	copy_ranges(&k, 1 << 20, NULL);
	meta_close(k.meta);
	snprintf(path, sizeof(path), "%s/data.mdb", k.folder);
	memset(garbage, 0x5a, sizeof(garbage));
	f = fopen(path, "r+");
	assert_non_null(f);
	for (int i = 0; i < 8; i++)
		assert_int_equal(fwrite(garbage, 1, sizeof(garbage), f), sizeof(garbage));
	fclose(f);
	assert_int_equal(replica_open(k.folder, &k.meta, &head), -ENOENT);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(replica_open(k.folder, &k.meta, &head), -ENOENT);
}

/* ---- What a server may send that makes no sense ---- */

static void put_record(struct buf *b, enum table t, uint64_t key, uint64_t second, size_t key_size, const void *value,
		       size_t size)
{
	uint8_t bytes[16];

	put_be64(bytes, key);
	put_be64(bytes + 8, second);
	change_append(b, &(struct change){ .table = t, .key = { bytes, key_size }, .value = { value, size }, .deleted = !value });
}

static int try_apply(struct copy *k, struct buf *b)
{
	struct replica_update u;
	int r;

	update_begin(k, &u);
	r = replica_apply(&u, b->data, b->len);
	replica_abort(&u);
	buf_clear(b);
	return r;
}

static void nonsense_is_refused(void **state)
{
	struct world *w = *state;
	uint8_t inode[INODE_HEAD] = { 0 }, name[DENTRY_HEAD + 1] = { 5, 0, 0, 0, 0, 0, 0, 0, 8, 'x' };
	struct attr a = { .inode = 7, .mode = S_IFREG | 0644, .nlink = 1 };
	struct replica_update u;
	struct buf b = { 0 };
	struct copy k;
	uint64_t mine;

	copy_make(&k, w, "copy");
	mine = inode_key(k.head.volume, 7);
	attr_pack(&a, inode);
	put_record(&b, TABLE_INODE, mine, 0, 8, inode, sizeof(inode));
	assert_int_equal(try_apply(&k, &b), 0);
	put_record(&b, TABLE_INODE, inode_key(k.head.volume + 1, 7), 0, 8, inode, sizeof(inode)); /* another volume's */
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_INODE, mine + 1, 0, 8, inode, sizeof(inode)); /* attributes of another inode */
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_INODE, mine, 0, 8, inode, 20);
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_SESSION, mine, 0, 8, "x", 1);
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_META, mine, 0, 8, "x", 1);
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_DENTRY, mine, 32, 8, name, sizeof(name)); /* half a key */
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_DENTRY, mine, 32, 16, name, sizeof(name));
	assert_int_equal(try_apply(&k, &b), 0);
	name[9] = '/';
	put_record(&b, TABLE_DENTRY, mine, 32, 16, name, sizeof(name));
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_EXTENT, mine, 0, 16, "short", 5);
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	put_record(&b, TABLE_INODE, mine, 0, 8, inode, sizeof(inode));
	b.len -= 3;
	assert_int_equal(try_apply(&k, &b), -EBADMSG);
	/* A range out of order, and one that does not end where it says. */
	put_record(&b, TABLE_EXTENT, mine, 0, 16, NULL, 0);
	update_begin(&k, &u);
	assert_int_equal(replica_range(&u, TABLE_EXTENT, NULL, 0, NULL, 0, b.data, b.len), -EBADMSG);
	buf_clear(&b);
	put_record(&b, TABLE_INODE, mine, 0, 8, inode, sizeof(inode));
	put_record(&b, TABLE_INODE, mine, 0, 8, inode, sizeof(inode));
	assert_int_equal(replica_range(&u, TABLE_INODE, NULL, 0, NULL, 0, b.data, b.len), -EBADMSG);
	assert_int_equal(replica_range(&u, TABLE_INODE, NULL, 0, "x", 1, NULL, 0), -EBADMSG);
	replica_abort(&u);
	buf_free(&b);
	meta_close(k.meta);
}

static void the_end_of_a_replica_is_on_record(void **state)
{
	struct world *w = *state;
	Wire__SessionBegin s = WIRE__SESSION_BEGIN__INIT;
	Wire__SessionEnd e = WIRE__SESSION_END__INIT;

	assert_int_equal(meta_replica_seen_ns(w->meta), 0);
	s.session = e.session = 99;
	s.volume = w->who.volume;
	s.replica = true;
	assert_int_equal(admin_mutate(w, WIRE__OP__SESSION_BEGIN, &s, NULL), 0);
	assert_true(meta_replica_seen_ns(w->meta) == INT64_MAX);
	world_stop(w);
	world_start(w);
	assert_true(meta_replica_seen_ns(w->meta) == INT64_MAX);
	w->now_ns += 5 * NS_PER_S;
	assert_int_equal(admin_mutate(w, WIRE__OP__SESSION_END, &e, NULL), 0);
	assert_true(meta_replica_seen_ns(w->meta) == w->now_ns);
	world_stop(w);
	world_start(w);
	assert_true(meta_replica_seen_ns(w->meta) == w->now_ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_copy_that_takes_long_becomes_what_the_volume_is),
		TEST(an_old_copy_is_brought_up_to_date_by_its_differences),
		TEST(other_volumes_sessions_and_answers_stay_where_they_are),
		TEST(names_and_attributes_are_found_in_it),
		TEST(it_is_there_after_a_restart),
		TEST(one_of_an_earlier_release_is_read),
		TEST(one_that_is_damaged_is_gone),
		TEST(nonsense_is_refused),
		TEST(the_end_of_a_replica_is_on_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
