#include "filling.h"
#include "meta/content.h"
#include "meta/reap.h"

static struct attr new_file(struct world *w, const char *name)
{
	struct attr a;
	assert_int_equal(do_file(w, ROOT_INODE, name, &a), 0);
	return a;
}

static Wire__ReapReply *reap(struct world *w, const uint64_t *inodes, size_t count, uint32_t max_extents)
{
	Wire__ReapRequest q = WIRE__REAP_REQUEST__INIT;
	Wire__ReapReply *reply;
	q.volume = w->who.volume;
	q.inodes = (uint64_t *)inodes;
	q.n_inodes = count;
	q.max_extents = max_extents;
	assert_int_equal(admin_mutate(w, WIRE__OP__REAP, &q, &reply), 0);
	return reply;
}

static void expire(struct world *w) { w->now_ns += ((int64_t)w->retention_s + 1) * NS_PER_S; }

static void a_deleted_file_is_freed_when_its_time_has_come(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), gone;
	Wire__XattrRequest x = WIRE__XATTR_REQUEST__INIT;
	uint64_t object = do_write(w, a.inode, 0, 100);
	x.inode = a.inode;
	x.name = bytes_of("user.a");
	assert_int_equal(world_mutate(w, WIRE__OP__SETXATTR, &x, NULL), 0);
	x.name = bytes_of("user.b");
	assert_int_equal(world_mutate(w, WIRE__OP__SETXATTR, &x, NULL), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	w->now_ns += (int64_t)w->retention_s * NS_PER_S - 1;
	assert_int_equal(reap(w, NULL, 0, 0)->files, 0);
	assert_int_equal(reap(w, &a.inode, 1, 0)->files, 0); /* asking for it by name does not help */
	assert_int_equal(do_getattr(w, a.inode, &gone), 0);
	w->now_ns++;
	Wire__ReapReply *r = reap(w, NULL, 0, 0);
	assert_int_equal(r->files, 1);
	assert_int_equal(r->extents, 1);
	assert_false(r->more);
	assert_int_equal(do_getattr(w, a.inode, &gone), -ENOENT);
	assert_true(is_free(w, object));
	Wire__Volume *v = show_volume(w, "training");
	assert_true(v->trash_files == 0 && v->trash_bytes == 0 && v->used_files == 0);
	assert_clean(w);
}

static void an_open_file_waits_until_it_is_closed(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b"), gone;
	assert_int_equal(meta_opened(w->meta, SESSION, w->who.volume, a.inode, 0), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "b"), 0);
	expire(w);
	assert_int_equal(reap(w, NULL, 0, 0)->files, 1);
	assert_int_equal(reap(w, &a.inode, 1, 0)->files, 0);
	assert_int_equal(do_getattr(w, b.inode, &gone), -ENOENT);
	do_write(w, a.inode, 0, 100);
	meta_closed(w->meta, SESSION, w->who.volume, a.inode, 0);
	assert_int_equal(reap(w, NULL, 0, 0)->files, 1);
	assert_int_equal(do_getattr(w, a.inode, &gone), -ENOENT);
	assert_clean(w);
}

static void a_nameless_file_goes_as_soon_as_it_is_closed(void **state)
{
	struct world *w = *state;
	struct attr a, gone;
	assert_int_equal(do_tmpfile(w, ROOT_INODE, &a), 0);
	do_write(w, a.inode, 0, 100);
	assert_int_equal(reap(w, NULL, 0, 0)->files, 0);
	meta_closed(w->meta, SESSION, w->who.volume, a.inode, 0);
	assert_int_equal(reap(w, NULL, 0, 0)->files, 1);
	assert_int_equal(do_getattr(w, a.inode, &gone), -ENOENT);
	assert_clean(w);
}

static void a_large_file_goes_slice_by_slice_and_cannot_come_back(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), now;
	for (uint64_t i = 0; i < 30; i++)
		do_write(w, a.inode, i * 100, 50);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	expire(w);
	Wire__ReapReply *r = reap(w, NULL, 0, 12);
	assert_true(r->more);
	assert_int_equal(r->files, 0);
	assert_int_equal(r->extents, 11);
	assert_int_equal(do_getattr(w, a.inode, &now), 0);
	assert_int_equal(now.allocated, 19 * 50);
	assert_clean(w);

	/* kept longer all of a sudden: what is left is no file any more */
	Wire__VolumeSetRequest set = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *fields[] = { "retention" };
	v.name = "training";
	v.retention_s = 1000000;
	set.volume = &v;
	set.fields = fields;
	set.n_fields = 1;
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_SET, &set, NULL), 0);
	Wire__TrashRestoreRequest back = WIRE__TRASH_RESTORE_REQUEST__INIT;
	back.volume = "training";
	back.inode = a.inode;
	assert_int_equal(admin_mutate(w, WIRE__OP__TRASH_RESTORE, &back, NULL), -ENOENT);
	Wire__TrashListRequest list = WIRE__TRASH_LIST_REQUEST__INIT;
	Wire__TrashListReply *listed;
	list.volume = "training";
	assert_int_equal(world_read(w, WIRE__OP__TRASH_LIST, &list, &listed), 0);
	assert_int_equal(listed->n_entries, 0);

	do_reap_all(w, 7); /* its freeing goes on all the same */
	assert_int_equal(do_getattr(w, a.inode, &now), -ENOENT);
	assert_int_equal(count_free(w), 30);
	assert_clean(w);
}

static void many_small_files_are_bounded_too(void **state)
{
	struct world *w = *state;
	char name[] = "f00";
	for (int i = 0; i < 20; i++) {
		name[1] = (char)('0' + i / 10);
		name[2] = (char)('0' + i % 10);
		new_file(w, name);
		assert_int_equal(do_unlink(w, ROOT_INODE, name), 0);
	}
	expire(w);
	Wire__ReapReply *r = reap(w, NULL, 0, 8);
	assert_int_equal(r->files, 8);
	assert_true(r->more);
	do_reap_all(w, 8);
	assert_int_equal(show_volume(w, "training")->trash_files, 0);
	assert_clean(w);
}

static void a_file_deleted_again_after_a_restore_has_its_time_anew(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), now;
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	w->now_ns += (int64_t)w->retention_s * NS_PER_S / 2;
	Wire__TrashRestoreRequest back = WIRE__TRASH_RESTORE_REQUEST__INIT;
	back.volume = "training";
	back.inode = a.inode;
	assert_int_equal(admin_mutate(w, WIRE__OP__TRASH_RESTORE, &back, NULL), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	w->now_ns += (int64_t)w->retention_s * NS_PER_S / 2 + NS_PER_S;
	assert_int_equal(reap(w, &a.inode, 1, 0)->files, 0);
	assert_int_equal(do_getattr(w, a.inode, &now), 0);
	expire(w);
	assert_int_equal(reap(w, &a.inode, 1, 0)->files, 1);
	assert_clean(w);
}

static uint32_t make_other_volume(struct world *w)
{
	Wire__Volume v = WIRE__VOLUME__INIT;
	Wire__VolumeReply *reply;
	v.name = "other";
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_CREATE, &v, &reply), 0);
	return reply->volume->id;
}

static void a_deleted_volume_goes_with_everything_in_it(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "kept"), d, f;
	Wire__XattrRequest x = WIRE__XATTR_REQUEST__INIT;
	Wire__VolumeNameRequest name = WIRE__VOLUME_NAME_REQUEST__INIT;
	do_write(w, a.inode, 0, 10);
	uint32_t training = w->who.volume, other = make_other_volume(w);
	w->who.volume = other; /* the session's ranges serve any volume it is on */
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	for (int i = 0; i < 30; i++) {
		char file[] = { 'f', (char)('a' + i), 0 };
		assert_int_equal(do_file(w, d.inode, file, &f), 0);
		do_write(w, f.inode, 0, 100);
		if (i % 3 == 0)
			assert_int_equal(do_unlink(w, d.inode, file), 0);
	}
	x.inode = f.inode;
	x.name = bytes_of("user.a");
	assert_int_equal(world_mutate(w, WIRE__OP__SETXATTR, &x, NULL), 0);
	w->who.volume = training;
	assert_clean(w);

	name.name = "other";
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_DELETE, &name, NULL), 0);
	assert_clean(w);
	struct reap_counts counts = { 0 };
	bool more;
	assert_int_equal(reap_pass(w->meta, w->now_ns, 17, &counts, &more), 0);
	assert_true(more);
	assert_clean(w); /* also half-way */
	do_reap_all(w, 17);
	assert_clean(w);
	assert_int_equal(count_free(w), 30);
	for (enum table t = 0; t < TABLE_COUNT; t++) {
		struct view v;
		CLEANUP_CURSOR struct cursor c = { 0 };
		uint8_t key[8];
		put_be64(key, inode_key(other, 0));
		assert_int_equal(meta_view_begin(w->meta, &v), 0);
		assert_int_equal(cursor_open(&c, &v, t), 0);
		if (t == TABLE_INODE || t == TABLE_DENTRY || t == TABLE_EXTENT || t == TABLE_XATTR)
			assert_int_equal(cursor_seek(&c, key, 8), -ENOENT);
		cursor_close(&c);
		meta_view_end(&v);
	}
	assert_int_equal(make_other_volume(w), other + 1);
	assert_int_equal(do_lookup(w, ROOT_INODE, "kept", &a), 0);
}

static void reaping_a_volume_that_is_gone_does_nothing(void **state)
{
	struct world *w = *state;
	Wire__ReapRequest q = WIRE__REAP_REQUEST__INIT;
	Wire__ReapReply *reply;
	q.volume = 4711;
	assert_int_equal(admin_mutate(w, WIRE__OP__REAP, &q, &reply), 0);
	assert_false(reply->more);
	assert_int_equal(reply->files, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_deleted_file_is_freed_when_its_time_has_come),
		TEST(an_open_file_waits_until_it_is_closed),
		TEST(a_nameless_file_goes_as_soon_as_it_is_closed),
		TEST(a_large_file_goes_slice_by_slice_and_cannot_come_back),
		TEST(many_small_files_are_bounded_too),
		TEST(a_file_deleted_again_after_a_restore_has_its_time_anew),
		TEST(a_deleted_volume_goes_with_everything_in_it),
		TEST(reaping_a_volume_that_is_gone_does_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
