/* fsck finds each kind of damage, and repairs what is safe.  Damage is done behind
 * the back of the state machine, straight in LMDB. */
#include "filling.h"
#include <pthread.h>
#include <stdlib.h>
#include "block/object.h"
#include "meta/content.h"
#include "meta/machine.h"
#include "meta/trash.h"

static void damage_put(struct world *w, enum table t, const void *key, size_t key_size, const void *value, size_t value_size)
{
	MDB_txn *txn;
	MDB_val k = { key_size, (void *)key }, v = { value_size, (void *)value };
	assert_int_equal(mdb_txn_begin(w->meta->env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_put(txn, w->meta->tables[t], &k, &v, 0), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
}

static void damage_delete(struct world *w, enum table t, const void *key, size_t key_size)
{
	MDB_txn *txn;
	MDB_val k = { key_size, (void *)key };
	assert_int_equal(mdb_txn_begin(w->meta->env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_del(txn, w->meta->tables[t], &k, NULL), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
}

/* A copy of a record, to be changed and put back; its size. */
static size_t copy(struct world *w, enum table t, const void *key, size_t key_size, uint8_t *out, size_t room)
{
	struct view v;
	struct span value;
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(view_get(&v, t, key, key_size, &value), 0);
	assert_true(value.size <= room);
	memcpy(out, value.data, value.size);
	size_t size = value.size;
	meta_view_end(&v);
	return size;
}

static void change_inode(struct world *w, uint64_t inode, void (*change)(struct attr *a))
{
	uint8_t key[8], value[8192];
	struct attr a;
	put_be64(key, inode_key(w->who.volume, inode));
	size_t size = copy(w, TABLE_INODE, key, sizeof(key), value, sizeof(value));
	assert_int_equal(attr_unpack(value, size, &a), 0);
	change(&a);
	attr_pack(&a, value);
	damage_put(w, TABLE_INODE, key, sizeof(key), value, size);
}

static void change_object(struct world *w, uint64_t object, int refs, int64_t live)
{
	uint8_t key[8], value[OBJECT_RECORD];
	struct object_record r;
	put_be64(key, object);
	copy(w, TABLE_OBJECT, key, sizeof(key), value, sizeof(value));
	object_record_read(value, &r);
	r.refs += (uint32_t)refs;
	r.live_bytes += (uint64_t)live;
	object_record_pack(&r, value);
	damage_put(w, TABLE_OBJECT, key, sizeof(key), value, sizeof(value));
}

/* /d/sub, /d/f (a hard link of /g) with contents, a symlink, something in the trash. */
struct tree {
	struct attr d, sub, f, link, gone;
	uint64_t object, gone_object;
};

static struct tree make_tree(struct world *w)
{
	struct tree t;
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &t.d), 0);
	assert_int_equal(do_directory(w, t.d.inode, "sub", &t.sub), 0);
	assert_int_equal(do_file(w, t.d.inode, "f", &t.f), 0);
	assert_int_equal(do_link(w, t.f.inode, ROOT_INODE, "g", &t.f), 0);
	assert_int_equal(do_symlink(w, ROOT_INODE, "l", "d/f", &t.link), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "gone", &t.gone), 0);
	t.object = do_write(w, t.f.inode, 0, 1000);
	t.gone_object = do_write(w, t.gone.inode, 0, 500);
	assert_int_equal(do_unlink(w, ROOT_INODE, "gone"), 0);
	return t;
}

static void a_healthy_volume_is_clean_and_counted(void **state)
{
	struct world *w = *state;
	make_tree(w);
	struct check_options o = { 0 };
	struct check_result r;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_int_equal(r.problems, 0);
	assert_int_equal(r.volumes, 1);
	assert_int_equal(r.inodes, 6);
	assert_int_equal(r.names, 5);
	assert_int_equal(r.extents, 2);
	assert_int_equal(r.objects, 2);
	assert_int_equal(r.trashed, 1);
	assert_int_equal(r.sessions, 1);
	check_result_free(&r);
}

static void bump_links(struct attr *a) { a->nlink += 3; }
static void bump_allocated(struct attr *a) { a->allocated += 77; }
static void shrink_allocated(struct attr *a) { a->allocated -= 77; }
static void shrink(struct attr *a) { a->size = 10; }
static void be_a_fifo(struct attr *a) { a->mode = S_IFIFO | 0644; }
static void be_deleted(struct attr *a) { a->deleted_ns = 5; }
static void be_own_parent(struct attr *a) { a->parent = a->inode; }
static void claim_acl(struct attr *a) { a->flags |= ATTR_HAS_ACL; }

static void wrong_link_counts_are_found_and_repaired(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	change_inode(w, t.f.inode, bump_links);
	assert_finds_and_repairs(w, "training:/g (inode 4): nlink is 5, counted 2");
	change_inode(w, t.d.inode, bump_links);
	assert_finds_and_repairs(w, "/d (inode 2): nlink is 6, counted 3");
	change_inode(w, ROOT_INODE, bump_links);
	assert_finds_and_repairs(w, "/ (inode 1): nlink is 6, counted 3");
	change_inode(w, t.gone.inode, bump_links);
	assert_finds_and_repairs(w, "nlink is 3, counted 0");
}

static void wrong_byte_counts_are_found_and_repaired(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	change_inode(w, t.f.inode, bump_allocated);
	assert_finds_and_repairs(w, "allocated differs from its extents by 77");
	change_inode(w, t.gone.inode, shrink_allocated);
	assert_finds_and_repairs(w, "allocated differs from its extents by -77");
	struct attr a;
	assert_int_equal(do_file(w, ROOT_INODE, "empty", &a), 0);
	change_inode(w, a.inode, bump_allocated);
	assert_finds_and_repairs(w, "/empty");
}

static void wrong_references_are_found_and_repaired(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	change_object(w, t.object, 2, 100);
	assert_finds_and_repairs(w, "has 3 references, counted 1");
	change_object(w, t.object, 0, -10);
	assert_finds_and_repairs(w, "990 live bytes, counted 1000");
	change_object(w, t.object, -1, -1000); /* not even to be freed */
	assert_finds_and_repairs(w, "has 0 references, counted 1");
	assert_int_equal(get_object(w, t.object).refs, 1);
}

static void an_object_in_use_is_saved_from_deletion(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[16] = { 0 };
	put_be64(key + 8, t.object);
	damage_put(w, TABLE_FREE, key, sizeof(key), "", 0);
	assert_int_equal(count_free(w), 0); /* the server does not touch it either */
	assert_finds_and_repairs(w, "is in use, but to be deleted");
}

static void an_unused_object_that_was_forgotten_is_freed(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[16];
	assert_int_equal(do_truncate(w, t.f.inode, 0), 0);
	put_be64(key, (uint64_t)w->now_ns);
	put_be64(key + 8, t.object);
	damage_delete(w, TABLE_FREE, key, sizeof(key));
	assert_finds_and_repairs(w, "is not in use, but not to be deleted");
	assert_true(is_free(w, t.object));
	damage_put(w, TABLE_FREE, "0123456789abcdef", 16, "", 0);
	assert_finds(w, "is to be deleted, but does not exist");
}

static void wrong_counters_of_a_volume_are_found_and_repaired(void **state)
{
	struct world *w = *state;
	make_tree(w);
	uint8_t key[5] = { 'v' }, value[40];
	put_be32(key + 1, w->who.volume);
	copy(w, TABLE_META, key, sizeof(key), value, sizeof(value));
	for (int i = 1; i < 5; i++)
		put_le64(value + 8 * i, get_le64(value + 8 * i) + 1000);
	damage_put(w, TABLE_META, key, sizeof(key), value, sizeof(value));
	assert_finds_and_repairs(w, "used_bytes is 2000, counted 1000");
	Wire__Volume *v = show_volume(w, "training");
	assert_true(v->used_bytes == 1000 && v->used_files == 4 && v->trash_bytes == 500 && v->trash_files == 1);
}

static void a_repair_is_right_although_files_change_meanwhile(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	struct check_options o = { 0 };
	struct check_result r;
	change_inode(w, t.f.inode, bump_links);
	change_inode(w, t.f.inode, bump_allocated);
	change_object(w, t.object, 2, 100);
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_int_equal(r.problems, 4);
	assert_int_equal(r.repairable, 4);
	assert_int_equal(do_link(w, t.f.inode, ROOT_INODE, "h", NULL), 0);
	do_write(w, t.f.inode, 200, 50);
	do_write(w, t.f.inode, 5000, 50);
	assert_int_equal(admin_mutate(w, WIRE__OP__FIX, r.fix, NULL), 0);
	check_result_free(&r);
	assert_clean(w);
}

static void a_deleted_inode_that_left_the_trash_is_put_back(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[TRASH_KEY];
	trash_key(key, w->who.volume, w->now_ns, t.gone.inode);
	damage_delete(w, TABLE_TRASH, key, sizeof(key));
	assert_finds_and_repairs(w, "is deleted, but not in the trash");
	trash_key(key, w->who.volume, w->now_ns, t.f.inode);
	damage_put(w, TABLE_TRASH, key, sizeof(key), "01234567x", 9);
	assert_finds(w, "is in the trash, but is not deleted");
	damage_delete(w, TABLE_TRASH, key, sizeof(key));
	trash_key(key, w->who.volume, w->now_ns, 4711);
	damage_put(w, TABLE_TRASH, key, sizeof(key), "01234567x", 9);
	assert_finds(w, "is in the trash, but does not exist");
}

static void damaged_inodes_are_found(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[8];
	change_inode(w, t.f.inode, shrink);
	assert_finds(w, "an extent ends at 1000, the file at 10");
	change_inode(w, t.f.inode, be_a_fifo);
	assert_finds(w, "has extents, but is not a regular file");
	assert_finds(w, "has another type than its inode");
	change_inode(w, t.sub.inode, be_deleted);
	assert_finds(w, "deleted and not deleted");
	change_inode(w, t.link.inode, shrink);
	assert_finds(w, "the target of the link does not fit");
	change_inode(w, t.d.inode, claim_acl);
	assert_finds(w, "its flags do not tell its extended attributes");
	put_be64(key, inode_key(w->who.volume, 4000));
	damage_put(w, TABLE_INODE, key, sizeof(key), "short", 5);
	assert_finds(w, "a record in table inode cannot be read");
	put_be64(key, inode_key(w->who.volume, t.gone.inode));
	damage_delete(w, TABLE_INODE, key, sizeof(key));
	assert_finds(w, "has extents, but does not exist");
	put_be64(key, inode_key(w->who.volume, ROOT_INODE));
	damage_delete(w, TABLE_INODE, key, sizeof(key));
	assert_finds(w, "has no root directory");
}

static void directories_in_a_circle_are_found(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	change_inode(w, t.d.inode, be_own_parent);
	assert_finds(w, "cannot be reached from the root");
	assert_finds(w, "takes inode 2 for its parent");
}

/* The key of a name, by walking. */
static void name_key(struct world *w, uint64_t parent, uint64_t inode, uint8_t out[16])
{
	struct view v;
	struct cursor c;
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(cursor_open(&c, &v, TABLE_DENTRY), 0);
	int r = cursor_seek(&c, NULL, 0);
	while (r == 0 && (get_be64(c.key.data) != inode_key(w->who.volume, parent) || get_le64(c.value.data) != inode))
		r = cursor_next(&c);
	assert_int_equal(r, 0);
	memcpy(out, c.key.data, 16);
	cursor_close(&c);
	meta_view_end(&v);
}

static void damaged_names_are_found(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[16], value[300];
	name_key(w, t.d.inode, t.f.inode, key);
	size_t size = copy(w, TABLE_DENTRY, key, sizeof(key), value, sizeof(value));
	value[9] = 'x';
	damage_put(w, TABLE_DENTRY, key, sizeof(key), value, size);
	assert_finds(w, "the name x cannot be found by it");
	value[9] = '/';
	damage_put(w, TABLE_DENTRY, key, sizeof(key), value, size);
	assert_finds(w, "a name in it is damaged");
	value[9] = 'f';
	put_le64(value, 4711);
	damage_put(w, TABLE_DENTRY, key, sizeof(key), value, size);
	assert_finds(w, "leads to inode 4711, which does not exist");
	put_le64(value, t.gone.inode);
	damage_put(w, TABLE_DENTRY, key, sizeof(key), value, size);
	assert_finds(w, "which is deleted");
	damage_delete(w, TABLE_DENTRY, key, sizeof(key));
	assert_finds_and_repairs(w, "nlink is 2, counted 1");
	name_key(w, t.d.inode, t.sub.inode, key);
	damage_delete(w, TABLE_DENTRY, key, sizeof(key));
	assert_finds(w, "has 0 names");
}

static void damaged_extents_are_found(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[EXTENT_KEY], value[EXTENT_VALUE];
	extent_key(key, inode_key(w->who.volume, t.f.inode), 500);
	struct extent e = extent_of(500, 100, t.object, 0);
	extent_value_pack(&e, value);
	damage_put(w, TABLE_EXTENT, key, sizeof(key), value, sizeof(value));
	assert_finds(w, "two extents at 500");
	e = extent_of(500, 100, 4711, 0);
	extent_value_pack(&e, value);
	damage_put(w, TABLE_EXTENT, key, sizeof(key), value, sizeof(value));
	assert_finds(w, "is in object 4711, which does not exist");
	e = extent_of(500, 100, t.object, 950);
	extent_value_pack(&e, value);
	damage_put(w, TABLE_EXTENT, key, sizeof(key), value, sizeof(value));
	assert_finds(w, "is not inside object");
	value[0] = value[1] = value[2] = value[3] = 0xff;
	damage_put(w, TABLE_EXTENT, key, sizeof(key), value, sizeof(value));
	assert_finds(w, "a record in table extent cannot be read");
	damage_delete(w, TABLE_EXTENT, key, sizeof(key));
	assert_clean(w);
}

static void nothing_is_freed_because_a_record_cannot_be_read(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	uint8_t key[EXTENT_KEY];
	extent_key(key, inode_key(w->who.volume, t.f.inode), 0);
	damage_put(w, TABLE_EXTENT, key, sizeof(key), "rubbish", 7);
	struct check_options o = { 0 };
	struct check_result r;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_true(r.problems > 1);
	assert_int_equal(r.repairable, 0);
	assert_true(r.fix->n_inodes + r.fix->n_objects + r.fix->n_volumes == 0);
	assert_int_equal(admin_mutate(w, WIRE__OP__FIX, r.fix, NULL), 0);
	assert_int_equal(get_object(w, t.object).refs, 1);
	check_result_free(&r);
}

static void damaged_ranges_and_sessions_are_found(void **state)
{
	struct world *w = *state;
	make_tree(w);
	uint8_t key[8], value[12] = { 0 };
	put_be64(key, 100000);
	put_le32(value, 10);
	put_le64(value + 4, SESSION);
	damage_put(w, TABLE_RANGE, key, sizeof(key), value, sizeof(value));
	assert_finds(w, "the object ids from 100000 on are given out twice");
	put_le64(value + 4, 4711);
	damage_put(w, TABLE_RANGE, key, sizeof(key), value, sizeof(value));
	assert_finds(w, "given to session 4711, which does not exist");
	damage_delete(w, TABLE_RANGE, key, sizeof(key));
	put_be64(key, 12);
	damage_put(w, TABLE_SESSION, key, sizeof(key), "\xff", 1);
	assert_finds(w, "a session's record is damaged");
	damage_delete(w, TABLE_SESSION, key, sizeof(key));
	assert_clean(w);
}

static void another_volume_is_left_out_when_one_is_asked_for(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	Wire__Volume v = WIRE__VOLUME__INIT;
	Wire__VolumeReply *reply;
	v.name = "other";
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_CREATE, &v, &reply), 0);
	change_inode(w, t.f.inode, bump_allocated);
	struct check_options o = { .volume = reply->volume->id };
	struct check_result r;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_int_equal(r.problems, 0);
	assert_int_equal(r.inodes, 1);
	check_result_free(&r);
	o.volume = w->who.volume;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_int_equal(r.problems, 1);
	assert_int_equal(r.inodes, 6);
	check_result_free(&r);
}

static void note_phase(void *context, const char *phase, uint64_t done, uint64_t all) { ++*(int *)context; }
static bool always(void *context) { return true; }

static void a_long_check_tells_how_far_it_is_and_can_be_cancelled(void **state)
{
	struct world *w = *state;
	int calls = 0;
	make_tree(w);
	struct check_options o = { .progress = note_phase, .context = &calls };
	struct check_result r;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_true(calls >= 8);
	check_result_free(&r);
	MDB_txn *txn; /* enough names to notice */
	assert_int_equal(mdb_txn_begin(w->meta->env, NULL, 0, &txn), 0);
	for (uint64_t i = 0; i < 10000; i++) {
		uint8_t key[9] = { 0 };
		put_be64(key, i);
		MDB_val k = { sizeof(key), key }, d = { 1, key };
		assert_int_equal(mdb_put(txn, w->meta->tables[TABLE_XATTR], &k, &d, 0), 0);
	}
	assert_int_equal(mdb_txn_commit(txn), 0);
	o.cancelled = always;
	assert_int_equal(check_run(w->meta, &o, &r), -ECANCELED);
	check_result_free(&r);
	o = (struct check_options){ .max_findings = 10 };
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	assert_true(r.problems >= 9000);
	assert_int_equal(r.findings_count, 10);
	check_result_free(&r);
}

/* A writer of its own, until told to stop. */
struct changer {
	struct world w;
	const char *name;
	pthread_t thread;
	_Atomic bool stop;
	unsigned rounds;
};

static void *keep_changing(void *context)
{
	struct changer *c = context;
	while (!c->stop || c->rounds == 0) {
		struct attr a;
		assert_int_equal(do_file(&c->w, ROOT_INODE, c->name, &a), 0);
		for (uint64_t i = 0; i < 5; i++)
			do_write(&c->w, a.inode, i * 30, 50);
		assert_int_equal(do_clone(&c->w, a.inode, 0, a.inode, 1000, 120, NULL), 0);
		assert_int_equal(do_unlink(&c->w, ROOT_INODE, c->name), 0);
		arena_reset(&c->w.arena);
		c->rounds++;
	}
	return NULL;
}

static void a_check_is_clean_while_files_change(void **state)
{
	struct world *w = *state;
	struct changer changers[2] = { { .name = "one" }, { .name = "two" } };
	for (int i = 0; i < 2; i++) {
		changers[i].w = *w;
		arena_init(&changers[i].w.arena, 0);
		assert_int_equal(pthread_create(&changers[i].thread, NULL, keep_changing, &changers[i]), 0);
	}
	for (int n = 0; n < 30; n++) {
		assert_clean(w);
		do_reap_all(w, 3);
		__atomic_fetch_add(&w->now_ns, (int64_t)w->retention_s * NS_PER_S / 4, __ATOMIC_RELAXED);
	}
	for (int i = 0; i < 2; i++) {
		changers[i].stop = true;
		assert_int_equal(pthread_join(changers[i].thread, NULL), 0);
		arena_free(&changers[i].w.arena);
	}
	assert_clean(w);
}

struct told {
	uint64_t objects[64];
	size_t extents[64], count;
	uint32_t smallest;
};

static int tell(void *context, const struct check_object *o)
{
	struct told *t = context;
	for (size_t i = 0; i < o->count; i++) {
		assert_int_equal(o->extents[i].extent.object, o->object);
		assert_true(i == 0 || o->extents[i].extent.object_offset >= o->extents[i - 1].extent.object_offset);
	}
	assert_int_equal(o->count, o->record.refs);
	t->objects[t->count] = o->object;
	t->extents[t->count++] = o->count;
	return 0;
}

static bool only_large(void *context, uint64_t object, const struct object_record *record)
{
	return record->size >= ((struct told *)context)->smallest;
}
static int stop(void *context, const struct check_object *o) { return -EINTR; }

static void objects_are_told_with_their_extents_in_windows(void **state)
{
	struct world *w = *state;
	struct tree t = make_tree(w);
	for (uint64_t i = 0; i < 20; i++)
		do_write(w, t.f.inode, i * 10, 5);
	assert_int_equal(do_unlink(w, ROOT_INODE, "g"), 0);
	size_t windows[] = { 0, 1, 7 };
	for (int n = 0; n < 3; n++) {
		struct told told = { 0 };
		struct check_objects_options o = { .max_extents = windows[n], .each = tell, .context = &told };
		assert_int_equal(check_objects(w->meta, &o), 0);
		assert_int_equal(told.count, 22);
		assert_int_equal(told.objects[0], t.object);
		assert_int_equal(told.extents[0], 20);
		assert_int_equal(told.objects[1], t.gone_object);
	}
	struct told told = { .smallest = 500 };
	struct check_objects_options o = { .volume = w->who.volume, .each = tell, .wanted = only_large, .context = &told };
	assert_int_equal(check_objects(w->meta, &o), 0);
	assert_int_equal(told.count, 2);
	o.each = stop;
	assert_int_equal(check_objects(w->meta, &o), -EINTR);
	o.volume = 4711;
	assert_int_equal(check_objects(w->meta, &o), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_healthy_volume_is_clean_and_counted),
		TEST(wrong_link_counts_are_found_and_repaired),
		TEST(wrong_byte_counts_are_found_and_repaired),
		TEST(wrong_references_are_found_and_repaired),
		TEST(an_object_in_use_is_saved_from_deletion),
		TEST(an_unused_object_that_was_forgotten_is_freed),
		TEST(wrong_counters_of_a_volume_are_found_and_repaired),
		TEST(a_repair_is_right_although_files_change_meanwhile),
		TEST(a_deleted_inode_that_left_the_trash_is_put_back),
		TEST(damaged_inodes_are_found),
		TEST(directories_in_a_circle_are_found),
		TEST(damaged_names_are_found),
		TEST(damaged_extents_are_found),
		TEST(nothing_is_freed_because_a_record_cannot_be_read),
		TEST(damaged_ranges_and_sessions_are_found),
		TEST(another_volume_is_left_out_when_one_is_asked_for),
		TEST(a_long_check_tells_how_far_it_is_and_can_be_cancelled),
		TEST(a_check_is_clean_while_files_change),
		TEST(objects_are_told_with_their_extents_in_windows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
