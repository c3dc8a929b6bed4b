#include "filling.h"
#include <stdio.h>

static Wire__TrashListReply *list(struct world *w, ProtobufCBinaryData from, uint32_t max)
{
	Wire__TrashListRequest q = WIRE__TRASH_LIST_REQUEST__INIT;
	Wire__TrashListReply *reply;
	q.volume = "training";
	q.from = from;
	q.max = max;
	assert_int_equal(world_read(w, WIRE__OP__TRASH_LIST, &q, &reply), 0);
	return reply;
}

static Wire__TrashListReply *list_all(struct world *w) { return list(w, (ProtobufCBinaryData){ 0 }, 0); }

static void assert_bytes(const ProtobufCBinaryData *b, const char *text)
{
	assert_int_equal(b->len, strlen(text));
	assert_memory_equal(b->data, text, b->len);
}

static int restore(struct world *w, uint64_t inode, const char *to, Wire__TrashRestoreReply **reply)
{
	Wire__TrashRestoreRequest q = WIRE__TRASH_RESTORE_REQUEST__INIT;
	q.volume = "training";
	q.inode = inode;
	q.to = bytes_of(to);
	return admin_mutate(w, WIRE__OP__TRASH_RESTORE, &q, reply);
}

static Wire__TrashEmptyReply *empty(struct world *w, int64_t before_ns)
{
	Wire__TrashEmptyRequest q = WIRE__TRASH_EMPTY_REQUEST__INIT;
	Wire__TrashEmptyReply *reply;
	q.volume = "training";
	q.before_ns = before_ns;
	assert_int_equal(admin_mutate(w, WIRE__OP__TRASH_EMPTY, &q, &reply), 0);
	return reply;
}

static void set_volume(struct world *w, const char *field, Wire__Volume *v)
{
	Wire__VolumeSetRequest q = WIRE__VOLUME_SET_REQUEST__INIT;
	char *fields[] = { (char *)field };
	v->name = "training";
	q.volume = v;
	q.fields = fields;
	q.n_fields = 1;
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_SET, &q, NULL), 0);
}

static void set_retention(struct world *w, uint64_t seconds)
{
	Wire__Volume v = WIRE__VOLUME__INIT;
	v.retention_s = seconds;
	set_volume(w, "retention", &v);
}

/* /data/deep/file with 100 bytes; all of it deleted again. */
struct deleted {
	struct attr data, deep, file;
};

static struct deleted make_and_delete(struct world *w)
{
	struct deleted t;
	assert_int_equal(do_directory(w, ROOT_INODE, "data", &t.data), 0);
	assert_int_equal(do_directory(w, t.data.inode, "deep", &t.deep), 0);
	assert_int_equal(do_file(w, t.deep.inode, "file", &t.file), 0);
	do_write(w, t.file.inode, 0, 100);
	w->now_ns += NS_PER_S;
	assert_int_equal(do_unlink(w, t.deep.inode, "file"), 0);
	w->now_ns += NS_PER_S;
	assert_int_equal(do_rmdir(w, t.data.inode, "deep"), 0);
	w->now_ns += NS_PER_S;
	assert_int_equal(do_rmdir(w, ROOT_INODE, "data"), 0);
	return t;
}

static void what_is_deleted_is_listed_with_the_path_it_had(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	Wire__TrashListReply *l = list_all(w);
	assert_int_equal(l->n_entries, 3);
	assert_bytes(&l->entries[0]->path, "/data/deep/file");
	assert_bytes(&l->entries[1]->path, "/data/deep");
	assert_bytes(&l->entries[2]->path, "/data");
	assert_int_equal(l->entries[0]->inode, t.file.inode);
	assert_int_equal(l->entries[0]->size, 100);
	assert_int_equal(l->entries[0]->mode, S_IFREG | 0644);
	assert_int_equal(l->entries[0]->deleted_ns, START_NS + NS_PER_S);
	assert_int_equal(l->entries[0]->expires_ns, START_NS + NS_PER_S + 3600 * NS_PER_S);
	assert_int_equal(l->next.len, 0);
	Wire__Volume *v = show_volume(w, "training");
	assert_true(v->used_files == 0 && v->used_bytes == 0 && v->trash_files == 3 && v->trash_bytes == 100);
	assert_clean(w);
}

static void a_path_through_a_renamed_directory_is_its_new_one(void **state)
{
	struct world *w = *state;
	struct attr d, f;
	assert_int_equal(do_directory(w, ROOT_INODE, "old", &d), 0);
	assert_int_equal(do_file(w, d.inode, "f", &f), 0);
	assert_int_equal(do_unlink(w, d.inode, "f"), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "old", ROOT_INODE, "new", 0), 0);
	assert_bytes(&list_all(w)->entries[0]->path, "/new/f");
}

static void a_long_list_comes_in_pages(void **state)
{
	struct world *w = *state;
	char name[16];
	ProtobufCBinaryData from = { 0 };
	struct attr a;
	for (int i = 0; i < 25; i++) {
		snprintf(name, sizeof(name), "f%02d", i);
		assert_int_equal(do_file(w, ROOT_INODE, name, &a), 0);
		assert_int_equal(do_unlink(w, ROOT_INODE, name), 0);
		w->now_ns += i % 3; /* some at the same moment */
	}
	size_t seen = 0;
	do {
		Wire__TrashListReply *l = list(w, from, 10);
		for (size_t i = 0; i < l->n_entries; i++) {
			snprintf(name, sizeof(name), "/f%02zu", seen++);
			assert_bytes(&l->entries[i]->path, name);
		}
		from = l->next;
	} while (from.len);
	assert_int_equal(seen, 25);
	Wire__TrashListRequest q = WIRE__TRASH_LIST_REQUEST__INIT;
	q.volume = "training";
	q.from = bytes_of("x");
	assert_int_equal(world_read(w, WIRE__OP__TRASH_LIST, &q, NULL), -EINVAL);
	q.volume = "nosuch";
	assert_int_equal(world_read(w, WIRE__OP__TRASH_LIST, &q, NULL), -ENOENT);
}

static void a_nameless_file_is_not_listed(void **state)
{
	struct world *w = *state;
	struct attr a;
	assert_int_equal(do_tmpfile(w, ROOT_INODE, &a), 0);
	assert_int_equal(list_all(w)->n_entries, 0);
	assert_int_equal(restore(w, a.inode, "x", NULL), -ENOENT);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "named", &a), 0);
	assert_int_equal(a.flags & (ATTR_TRASHED | ATTR_NO_TRASH), 0);
	assert_int_equal(show_volume(w, "training")->used_files, 1);
	assert_int_equal(show_volume(w, "training")->trash_files, 0);
	assert_clean(w);
}

static void a_file_comes_back_with_the_directories_it_was_in(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	Wire__TrashRestoreReply *reply;
	struct attr a, root;
	assert_int_equal(restore(w, t.file.inode, "", &reply), 0);
	assert_bytes(&reply->path, "/data/deep/file");
	assert_int_equal(do_resolve(w, "data/deep/file", &a), 0);
	assert_int_equal(a.inode, t.file.inode);
	assert_int_equal(a.nlink, 1);
	assert_int_equal(a.allocated, 100);
	assert_int_equal(do_resolve(w, "data", &a), 0);
	assert_int_equal(a.inode, t.data.inode);
	assert_int_equal(a.nlink, 3);
	assert_int_equal(do_getattr(w, ROOT_INODE, &root), 0);
	assert_int_equal(root.nlink, 3);
	assert_int_equal(list_all(w)->n_entries, 0);
	assert_clean(w);
	assert_int_equal(restore(w, t.file.inode, "", &reply), -ENOENT);
}

static void a_directory_made_anew_takes_the_restored_file(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	struct attr fresh, a;
	assert_int_equal(do_directory(w, ROOT_INODE, "data", &fresh), 0);
	assert_int_equal(restore(w, t.file.inode, "", NULL), 0);
	assert_int_equal(do_resolve(w, "data", &a), 0);
	assert_int_equal(a.inode, fresh.inode);
	assert_int_equal(do_resolve(w, "data/deep", &a), 0);
	assert_int_equal(a.inode, t.deep.inode);
	assert_int_equal(list_all(w)->n_entries, 1);
	assert_clean(w);
}

static void a_taken_name_needs_another_place(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	struct attr a, d;
	Wire__TrashRestoreReply *reply;
	assert_int_equal(do_file(w, ROOT_INODE, "data", &a), 0); /* not a directory any more */
	assert_int_equal(restore(w, t.file.inode, "", NULL), -EEXIST);
	assert_non_null(strstr(w->why, "--to"));
	assert_int_equal(restore(w, t.file.inode, "data", NULL), -EEXIST);
	assert_int_equal(restore(w, t.file.inode, "data/x", NULL), -ENOTDIR);
	assert_int_equal(restore(w, t.file.inode, "nosuch/x", NULL), -ENOENT);
	assert_int_equal(restore(w, t.file.inode, "a/../x", NULL), -ENOENT);
	assert_int_equal(restore(w, t.file.inode, "..", NULL), -EINVAL);
	assert_int_equal(restore(w, t.file.inode, "/", NULL), -EINVAL);
	assert_clean(w);
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(restore(w, t.file.inode, "//d//back/", &reply), 0);
	assert_bytes(&reply->path, "/d/back");
	assert_int_equal(do_resolve(w, "d/back", &a), 0);
	assert_int_equal(a.inode, t.file.inode);
	assert_int_equal(a.parent, d.inode);
	assert_clean(w);
}

static void restoring_respects_the_limits(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	Wire__Volume v = WIRE__VOLUME__INIT;
	v.max_files = 2;
	set_volume(w, "max_files", &v);
	assert_int_equal(restore(w, t.file.inode, "", NULL), -EDQUOT); /* needs three */
	assert_int_equal(restore(w, t.file.inode, "file", NULL), 0);
	assert_clean(w);
}

static void what_has_expired_is_neither_listed_nor_restored(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	w->now_ns = START_NS + 3601 * NS_PER_S;
	struct attr a;
	assert_int_equal(do_file(w, ROOT_INODE, "tick", &a), 0); /* a batch takes the time */
	Wire__TrashListReply *l = list_all(w);
	assert_int_equal(l->n_entries, 2);
	assert_bytes(&l->entries[0]->path, "/data/deep");
	assert_int_equal(restore(w, t.file.inode, "", NULL), -ENOENT);
	set_retention(w, 7200); /* kept longer: it is back */
	assert_int_equal(list_all(w)->n_entries, 3);
	set_retention(w, 0);
	assert_int_equal(list_all(w)->n_entries, 0);
	assert_int_equal(restore(w, t.file.inode, "", NULL), -ENOENT);
	assert_clean(w);
}

static void emptying_takes_what_was_deleted_before(void **state)
{
	struct world *w = *state;
	struct deleted t = make_and_delete(w);
	Wire__TrashEmptyReply *e = empty(w, START_NS + 2 * NS_PER_S);
	assert_int_equal(e->files, 1);
	assert_int_equal(e->bytes, 100);
	assert_int_equal(list_all(w)->n_entries, 2);
	assert_int_equal(restore(w, t.file.inode, "", NULL), -ENOENT);
	e = empty(w, START_NS); /* never back */
	assert_int_equal(e->files, 0);
	assert_int_equal(list_all(w)->n_entries, 2);
	e = empty(w, 0);
	assert_int_equal(e->files, 2);
	assert_int_equal(list_all(w)->n_entries, 0);
	assert_clean(w);
}

static void what_is_deleted_right_after_emptying_is_kept(void **state)
{
	struct world *w = *state;
	struct attr a, b;
	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "b", &b), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	assert_int_equal(empty(w, 0)->files, 1);
	assert_int_equal(do_unlink(w, ROOT_INODE, "b"), 0); /* the clock has not moved */
	assert_int_equal(list_all(w)->n_entries, 1);
	do_reap_all(w, 0);
	assert_int_equal(do_getattr(w, a.inode, &a), -ENOENT);
	assert_int_equal(do_getattr(w, b.inode, &b), 0);
	assert_int_equal(empty(w, 0)->files, 1); /* and emptied again at the same moment */
	do_reap_all(w, 0);
	w->now_ns += NS_PER_S;
	do_reap_all(w, 0);
	assert_int_equal(do_getattr(w, b.inode, &b), -ENOENT);
	assert_clean(w);
}

static void a_file_whose_directory_is_gone_for_good_needs_a_place(void **state)
{
	struct world *w = *state;
	struct attr d, f;
	set_retention(w, 0);
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(do_file(w, d.inode, "f", &f), 0);
	assert_int_equal(do_unlink(w, d.inode, "f"), 0);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "d"), 0);
	assert_int_equal(meta_opened(w->meta, SESSION, w->who.volume, f.inode, 0), 0);
	do_reap_all(w, 0); /* takes the directory, not the open file */
	meta_closed(w->meta, SESSION, w->who.volume, f.inode, 0);
	set_retention(w, 3600);
	assert_bytes(&list_all(w)->entries[0]->path, "/?/f");
	assert_int_equal(restore(w, f.inode, "", NULL), -ENOENT);
	assert_non_null(strstr(w->why, "--to"));
	assert_int_equal(restore(w, f.inode, "f", NULL), 0);
	assert_clean(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_deleted_is_listed_with_the_path_it_had),
		TEST(a_path_through_a_renamed_directory_is_its_new_one),
		TEST(a_long_list_comes_in_pages),
		TEST(a_nameless_file_is_not_listed),
		TEST(a_file_comes_back_with_the_directories_it_was_in),
		TEST(a_directory_made_anew_takes_the_restored_file),
		TEST(a_taken_name_needs_another_place),
		TEST(restoring_respects_the_limits),
		TEST(what_has_expired_is_neither_listed_nor_restored),
		TEST(emptying_takes_what_was_deleted_before),
		TEST(what_is_deleted_right_after_emptying_is_kept),
		TEST(a_file_whose_directory_is_gone_for_good_needs_a_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
