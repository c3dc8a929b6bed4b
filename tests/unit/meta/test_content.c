#include "filling.h"
#include <linux/falloc.h>
#include <sys/xattr.h>
#include "block/object.h"
#include "meta/content.h"

static struct attr new_file(struct world *w, const char *name)
{
	struct attr a;
	assert_int_equal(do_file(w, ROOT_INODE, name, &a), 0);
	return a;
}

static struct attr attr_of(struct world *w, uint64_t inode)
{
	struct attr a;
	assert_int_equal(do_getattr(w, inode, &a), 0);
	return a;
}

static void assert_extent(const struct extent *e, uint64_t offset, uint32_t length, uint64_t object, uint32_t skip)
{
	assert_int_equal(e->offset, offset);
	assert_int_equal(e->length, length);
	assert_int_equal(e->object, object);
	assert_int_equal(e->skip, skip);
}

static void a_commit_makes_the_object_the_content_of_the_file(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), after;
	struct extent e[4];
	w->now_ns += NS_PER_S;
	uint64_t object = do_write(w, a.inode, 100, 50);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 1);
	assert_extent(&e[0], 100, 50, object, 0);
	after = attr_of(w, a.inode);
	assert_int_equal(after.size, 150);
	assert_int_equal(after.allocated, 50);
	assert_int_equal(after.version, a.version + 1);
	assert_true(after.mtime_ns == w->now_ns && after.ctime_ns == w->now_ns);
	struct object_record record = get_object(w, object);
	assert_int_equal(record.refs, 1);
	assert_int_equal(record.live_bytes, 50);
	assert_int_equal(show_volume(w, "training")->used_bytes, 50);
	assert_clean(w);
}

static void a_newer_extent_cuts_an_older_one_in_two(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct extent e[4];
	uint64_t old = do_write(w, a.inode, 0, 1000), new = do_write(w, a.inode, 400, 100);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 3);
	assert_extent(&e[0], 0, 400, old, 0);
	assert_extent(&e[1], 400, 100, new, 0);
	assert_extent(&e[2], 500, 500, old, 500);
	assert_int_equal(get_object(w, old).refs, 2);
	assert_int_equal(get_object(w, old).live_bytes, 900);
	assert_int_equal(attr_of(w, a.inode).allocated, 1000);
	assert_clean(w);
}

static void an_object_that_is_wholly_overwritten_is_freed(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	uint64_t old = do_write(w, a.inode, 10, 100), new = do_write(w, a.inode, 0, 200);
	assert_true(is_free(w, old));
	assert_false(is_free(w, new));
	assert_int_equal(get_object(w, old).refs, 0);
	assert_int_equal(attr_of(w, a.inode).allocated, 200);
	assert_clean(w);
}

static void later_extents_of_one_commit_win(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct filling f;
	struct extent e[4];
	fill_begin(&f);
	uint64_t first = fill_object(w, &f, 100), second = fill_object(w, &f, 100);
	fill_file(&f, a.inode);
	fill_extent(&f, 0, 100, first, 0);
	fill_extent(&f, 0, 100, second, 0);
	fill_extent(&f, 40, 20, first, 40); /* the first one had no reference left in between */
	assert_int_equal(fill_commit(w, &f, NULL), 0);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 3);
	assert_extent(&e[1], 40, 20, first, 0);
	assert_int_equal(get_object(w, first).refs, 1);
	assert_int_equal(get_object(w, second).refs, 2);
	assert_int_equal(count_free(w), 0);
	assert_clean(w);
}

static void a_pack_is_shared_by_many_files(void **state)
{
	struct world *w = *state;
	struct filling f;
	Wire__CommitReply *reply;
	char name[8] = "f0";
	fill_begin(&f);
	uint64_t pack = fill_object(w, &f, 1000);
	for (int i = 0; i < 10; i++, name[1]++) {
		fill_file(&f, new_file(w, name).inode);
		fill_extent(&f, 0, 100, pack, (uint32_t)i * 100);
	}
	assert_int_equal(fill_commit(w, &f, &reply), 0);
	assert_int_equal(reply->n_files, 10);
	assert_int_equal(get_object(w, pack).refs, 10);
	assert_int_equal(get_object(w, pack).live_bytes, 1000);
	assert_clean(w);
}

static void one_file_given_twice_in_a_commit_counts_once(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct filling f;
	fill_begin(&f);
	uint64_t object = fill_object(w, &f, 100);
	for (uint32_t i = 0; i < 2; i++) {
		fill_file(&f, a.inode);
		fill_extent(&f, i * 50, 50, object, i * 50);
	}
	assert_int_equal(fill_commit(w, &f, NULL), 0);
	assert_int_equal(attr_of(w, a.inode).allocated, 100);
	assert_int_equal(attr_of(w, a.inode).version, a.version + 2);
	assert_clean(w);
}

static void a_file_that_is_gone_does_not_hold_back_the_others(void **state)
{
	struct world *w = *state;
	struct attr there = new_file(w, "there");
	struct filling f;
	Wire__CommitReply *reply;
	fill_begin(&f);
	uint64_t shared = fill_object(w, &f, 100), lonely = fill_object(w, &f, 100);
	fill_file(&f, 4711);
	fill_extent(&f, 0, 50, shared, 0);
	fill_extent(&f, 50, 100, lonely, 0);
	fill_file(&f, there.inode);
	fill_extent(&f, 0, 50, shared, 50);
	assert_int_equal(fill_commit(w, &f, &reply), 0);
	assert_int_equal(reply->files[0]->status, ENOENT);
	assert_int_equal(reply->files[1]->status, 0);
	assert_int_equal(get_object(w, shared).refs, 1);
	assert_true(is_free(w, lonely));
	assert_clean(w);
}

static void an_unlinked_file_takes_commits_while_it_is_open(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	assert_int_equal(meta_opened(w->meta, SESSION, w->who.volume, a.inode, 0), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	do_write(w, a.inode, 0, 500);
	assert_int_equal(attr_of(w, a.inode).allocated, 500);
	assert_int_equal(show_volume(w, "training")->used_bytes, 0);
	assert_int_equal(show_volume(w, "training")->trash_bytes, 500);
	assert_clean(w);
}

static void a_commit_sets_times_and_takes_capabilities(void **state)
{
	struct world *w = *state;
	struct attr a, after;
	struct filling f;
	Wire__XattrRequest x = WIRE__XATTR_REQUEST__INIT;
	assert_int_equal(do_create(w, ROOT_INODE, "a", S_IFREG | 06755, &a), 0);
	x.inode = a.inode;
	x.name = bytes_of("security.capability");
	x.value = bytes_of("cap");
	assert_int_equal(world_mutate(w, WIRE__OP__SETXATTR, &x, NULL), 0);
	w->now_ns += 10 * NS_PER_S;
	fill_begin(&f);
	Wire__FileCommit *c = fill_file(&f, a.inode);
	c->size = 77;
	c->mtime_ns = 42;
	c->ctime_ns = w->now_ns - 3 * NS_PER_S;
	assert_int_equal(fill_commit(w, &f, NULL), 0);
	after = attr_of(w, a.inode);
	assert_int_equal(after.size, 77);
	assert_int_equal(after.mtime_ns, 42);
	assert_int_equal(after.ctime_ns, w->now_ns - 3 * NS_PER_S);
	assert_int_equal(after.mode, S_IFREG | 06755); /* the kernel takes these, with a SETATTR */
	Wire__BytesReply *value;
	assert_int_equal(world_read(w, WIRE__OP__GETXATTR, &x, &value), -ENODATA);

	/* ctime neither goes back nor ahead of the clock */
	fill_begin(&f);
	fill_file(&f, a.inode)->ctime_ns = 1;
	assert_int_equal(fill_commit(w, &f, NULL), 0);
	assert_int_equal(attr_of(w, a.inode).ctime_ns, w->now_ns - 3 * NS_PER_S);
	fill_begin(&f);
	fill_file(&f, a.inode)->ctime_ns = INT64_MAX;
	assert_int_equal(fill_commit(w, &f, NULL), 0);
	assert_int_equal(attr_of(w, a.inode).ctime_ns, w->now_ns);
}

static int commit_extent(struct world *w, uint64_t inode, const struct extent *e, uint32_t payload)
{
	struct filling f;
	fill_begin(&f);
	fill_object_as(&f, e->object, payload);
	fill_file(&f, inode);
	fill_extent_as(&f, e);
	return fill_commit(w, &f, NULL);
}

static void a_commit_that_makes_no_sense_is_refused_whole(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), directory;
	uint64_t object = do_alloc(w, 10);
	struct extent good = extent_of(0, 100, object, 0), e;
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &directory), 0);

	e = good;
	e.skip = 1;
	assert_int_equal(commit_extent(w, a.inode, &e, 100), -EINVAL);
	e = good;
	e.codec = 9;
	assert_int_equal(commit_extent(w, a.inode, &e, 100), -EINVAL);
	assert_int_equal(commit_extent(w, a.inode, &good, 99), -EINVAL); /* into the footer */
	e = extent_of(FILE_SIZE_MAX - 50, 100, object, 0);
	assert_int_equal(commit_extent(w, a.inode, &e, 100), -EINVAL);
	assert_int_equal(commit_extent(w, directory.inode, &good, 100), -EINVAL);

	struct filling f;
	fill_begin(&f);
	fill_object_as(&f, object, 100);
	fill_object_as(&f, object, 100);
	assert_int_equal(fill_commit(w, &f, NULL), -EINVAL);
	fill_begin(&f);
	fill_object_as(&f, object, 100);
	fill_file(&f, a.inode)->extents = bytes_of("cut off");
	assert_int_equal(fill_commit(w, &f, NULL), -EINVAL);
	fill_begin(&f);
	fill_file(&f, a.inode)->size = FILE_SIZE_MAX + 1;
	assert_int_equal(fill_commit(w, &f, NULL), -EFBIG);
	fill_begin(&f);
	fill_object_as(&f, object, 100);
	f.objects[0].size = OBJECT_FOOTER;
	assert_int_equal(fill_commit(w, &f, NULL), -EINVAL);

	struct object_record record;
	assert_int_equal(find_object(w, object, &record), -ENOENT);
	assert_int_equal(attr_of(w, a.inode).version, a.version);
	assert_int_equal(commit_extent(w, a.inode, &good, 100), 0);
	assert_clean(w);
}

static void extents_may_name_objects_committed_before(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b");
	struct filling f;
	uint64_t pack = do_write(w, a.inode, 0, 100);
	fill_begin(&f);
	fill_file(&f, b.inode);
	fill_extent(&f, 7, 100, pack, 0);
	assert_int_equal(fill_commit(w, &f, NULL), 0);
	assert_int_equal(get_object(w, pack).refs, 2);

	/* but not once they are waiting to be deleted, nor unknown ones */
	assert_int_equal(do_truncate(w, a.inode, 0), 0);
	assert_int_equal(do_truncate(w, b.inode, 0), 0);
	assert_true(is_free(w, pack));
	fill_begin(&f);
	fill_file(&f, b.inode);
	fill_extent(&f, 0, 100, pack, 0);
	assert_int_equal(fill_commit(w, &f, NULL), -ESTALE);
	fill_begin(&f);
	fill_file(&f, b.inode);
	fill_extent(&f, 0, 100, 4711, 0);
	assert_int_equal(fill_commit(w, &f, NULL), -ESTALE);
	assert_clean(w);
}

static void set_limit(struct world *w, uint64_t max_bytes)
{
	Wire__VolumeSetRequest q = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *fields[] = { "max_bytes" };
	v.name = "training";
	v.max_bytes = max_bytes;
	q.volume = &v;
	q.fields = fields;
	q.n_fields = 1;
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_SET, &q, NULL), 0);
}

static void a_full_volume_takes_overwrites_but_nothing_more(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b");
	const uint32_t full = BLOCK_DEFAULT;
	set_limit(w, full);
	do_write(w, a.inode, 0, full);
	do_write(w, a.inode, 0, full);
	do_write(w, a.inode, 1000, 5000);
	struct extent e = extent_of(full - 1, 2, do_alloc(w, 1), 0);
	assert_int_equal(commit_extent(w, a.inode, &e, 2), -EDQUOT);
	e.offset = full - 2;
	assert_int_equal(commit_extent(w, a.inode, &e, 2), 0);
	assert_int_equal(do_clone(w, a.inode, 0, b.inode, 0, 1, NULL), -EDQUOT);
	assert_int_equal(do_fallocate(w, b.inode, 0, 0, 1, NULL), -EDQUOT);
	assert_int_equal(do_truncate(w, a.inode, 10), 0);
	assert_int_equal(do_clone(w, a.inode, 0, b.inode, 0, 10, NULL), 0);
	assert_clean(w);
}

static void truncating_and_growing_again_reads_zeroes(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct extent e[4];
	uint64_t object = do_write(w, a.inode, 0, 1000);
	assert_int_equal(do_truncate(w, a.inode, 300), 0);
	assert_int_equal(do_truncate(w, a.inode, 2000), 0);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 1);
	assert_extent(&e[0], 0, 300, object, 0);
	assert_int_equal(get_extents(w, a.inode, 300, 0, e, 4, NULL), 0);
	assert_int_equal(attr_of(w, a.inode).size, 2000);
	assert_clean(w);
}

static void extents_come_in_pages_from_any_offset(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct extent e[16];
	uint64_t next;
	new_file(w, "neighbour");
	do_write(w, a.inode + 1, 0, 10);
	for (uint64_t i = 0; i < 10; i++)
		do_write(w, a.inode, i * 100, 50);
	assert_int_equal(get_extents(w, a.inode, 0, 4, e, 16, &next), 4);
	assert_int_equal(next, 400);
	assert_int_equal(get_extents(w, a.inode, next, 16, e, 16, &next), 6);
	assert_int_equal(next, 0);
	assert_int_equal(get_extents(w, a.inode, 149, 1, e, 16, &next), 1);
	assert_int_equal(e[0].offset, 100);
	assert_int_equal(next, 200);
	assert_int_equal(get_extents(w, a.inode, 150, 1, e, 16, &next), 1);
	assert_int_equal(e[0].offset, 200);
	assert_int_equal(get_extents(w, a.inode, 950, 1, e, 16, &next), 0);
	Wire__ExtentsRequest q = WIRE__EXTENTS_REQUEST__INIT;
	q.inode = ROOT_INODE;
	assert_int_equal(world_read(w, WIRE__OP__EXTENTS, &q, NULL), -EISDIR);
	q.inode = 4711;
	assert_int_equal(world_read(w, WIRE__OP__EXTENTS, &q, NULL), -ENOENT);
}

static void fallocate_extends_punches_and_zeroes(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), after;
	struct extent e[4];
	uint64_t object = do_write(w, a.inode, 0, 1000);
	assert_int_equal(do_fallocate(w, a.inode, 0, 500, 1500, &after), 0);
	assert_int_equal(after.size, 2000);
	assert_int_equal(after.allocated, 1000);
	assert_int_equal(do_fallocate(w, a.inode, FALLOC_FL_KEEP_SIZE, 5000, 1500, &after), 0);
	assert_int_equal(after.size, 2000);
	uint64_t version = after.version;
	assert_int_equal(do_fallocate(w, a.inode, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 200, &after), 0);
	assert_int_equal(after.allocated, 800);
	assert_int_equal(after.version, version + 1);
	assert_int_equal(do_fallocate(w, a.inode, FALLOC_FL_ZERO_RANGE, 900, 2000, &after), 0);
	assert_int_equal(after.size, 2900);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 2);
	assert_extent(&e[0], 0, 100, object, 0);
	assert_extent(&e[1], 300, 600, object, 300);
	assert_int_equal(do_fallocate(w, a.inode, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 2000, 2000, &after), 0);
	assert_int_equal(after.size, 2900);

	assert_int_equal(do_fallocate(w, a.inode, FALLOC_FL_PUNCH_HOLE, 0, 10, NULL), -EOPNOTSUPP);
	assert_int_equal(do_fallocate(w, a.inode, FALLOC_FL_COLLAPSE_RANGE, 0, 10, NULL), -EOPNOTSUPP);
	assert_int_equal(do_fallocate(w, a.inode, 0, 0, 0, NULL), -EINVAL);
	assert_int_equal(do_fallocate(w, a.inode, 0, FILE_SIZE_MAX, 1, NULL), -EFBIG);
	assert_int_equal(do_fallocate(w, a.inode, 0, UINT64_MAX, 2, NULL), -EFBIG);
	assert_int_equal(do_fallocate(w, ROOT_INODE, 0, 0, 1, NULL), -EISDIR);
	assert_clean(w);
}

static void a_clone_shares_the_bytes_until_one_side_is_overwritten(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b"), after;
	struct extent e[8];
	uint64_t object = do_write(w, a.inode, 0, 1000), old = do_write(w, b.inode, 0, 700);
	do_write(w, a.inode, 2000, 100);
	/* [500, 2050) of a to 100 of b: a slice, a hole, a slice */
	assert_int_equal(do_clone(w, a.inode, 500, b.inode, 100, 1550, &after), 0);
	assert_int_equal(after.size, 1650);
	assert_int_equal(get_extents(w, b.inode, 0, 0, e, 8, NULL), 3);
	assert_extent(&e[0], 0, 100, old, 0);
	assert_extent(&e[1], 100, 500, object, 500);
	assert_int_equal(e[2].offset, 1600);
	assert_int_equal(e[2].length, 50);
	assert_int_equal(get_object(w, object).refs, 2);
	assert_int_equal(get_object(w, object).live_bytes, 1500);
	do_write(w, a.inode, 0, 1000);
	assert_int_equal(get_object(w, object).refs, 1);
	assert_int_equal(do_unlink(w, ROOT_INODE, "b"), 0);
	assert_clean(w);
}

static void a_clone_ends_where_its_source_ends(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b"), after;
	do_write(w, a.inode, 0, 100);
	assert_int_equal(do_clone(w, a.inode, 40, b.inode, 0, UINT64_MAX, &after), 0);
	assert_int_equal(after.size, 60);
	assert_int_equal(do_clone(w, a.inode, 100, b.inode, 0, 5, &after), 0);
	assert_int_equal(after.size, 60);
	assert_int_equal(do_clone(w, a.inode, UINT64_MAX, b.inode, 0, UINT64_MAX, &after), 0);
	assert_int_equal(do_clone(w, a.inode, 0, b.inode, UINT64_MAX - 5, 100, NULL), -EFBIG);
	assert_int_equal(do_clone(w, a.inode, 0, b.inode, FILE_SIZE_MAX - 99, 100, NULL), -EFBIG);
	assert_int_equal(do_clone(w, a.inode, 0, ROOT_INODE, 0, 100, NULL), -EISDIR);
	assert_int_equal(do_clone(w, a.inode, 0, 4711, 0, 100, NULL), -ENOENT);
	assert_clean(w);
}

static void a_file_may_be_cloned_into_itself_where_it_does_not_overlap(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), after;
	struct extent e[4];
	uint64_t object = do_write(w, a.inode, 0, 1000);
	assert_int_equal(do_clone(w, a.inode, 0, a.inode, 999, 1000, NULL), -EINVAL);
	assert_int_equal(do_clone(w, a.inode, 500, a.inode, 1, 500, NULL), -EINVAL);
	assert_int_equal(do_clone(w, a.inode, 0, a.inode, 500, 500, &after), 0); /* within one extent */
	assert_int_equal(after.size, 1000);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 2);
	assert_extent(&e[0], 0, 500, object, 0);
	assert_extent(&e[1], 500, 500, object, 0);
	assert_int_equal(do_clone(w, a.inode, 0, a.inode, 1000, 1000, &after), 0);
	assert_int_equal(after.size, 2000);
	assert_int_equal(get_object(w, object).refs, 4);
	assert_clean(w);
}

static void a_clone_of_thousands_of_extents_is_whole(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b"), after;
	static struct extent e[4096];
	for (uint64_t n = 0; n < 1500; n += 15) {
		struct filling f;
		fill_begin(&f);
		uint64_t object = fill_object(w, &f, 150);
		fill_file(&f, a.inode);
		for (uint32_t i = 0; i < 15; i++)
			fill_extent(&f, (n + i) * 20, 10, object, i * 10);
		assert_int_equal(fill_commit(w, &f, NULL), 0);
	}
	assert_int_equal(do_clone(w, a.inode, 5, b.inode, 0, FILE_SIZE_MAX, &after), 0);
	assert_int_equal(after.allocated, 15000 - 5);
	assert_int_equal(get_extents(w, b.inode, 0, 0, e, 4096, NULL), 1500);
	assert_int_equal(do_fallocate(w, b.inode, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, FILE_SIZE_MAX, &after), 0);
	assert_int_equal(after.allocated, 0);
	assert_clean(w);
}

static void a_path_is_found_for_any_inode(void **state)
{
	struct world *w = *state;
	struct attr d, a;
	struct buf path = { 0 };
	assert_int_equal(do_directory(w, ROOT_INODE, "data", &d), 0);
	assert_int_equal(do_file(w, d.inode, "train.bin", &a), 0);
	assert_int_equal(meta_path(w->meta, w->who.volume, a.inode, &path), 0);
	assert_memory_equal(path.data, "/data/train.bin", path.len);
	buf_clear(&path);
	assert_int_equal(meta_path(w->meta, w->who.volume, ROOT_INODE, &path), 0);
	assert_memory_equal(path.data, "/", path.len);
	buf_clear(&path);
	assert_int_equal(do_unlink(w, d.inode, "train.bin"), 0);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "data"), 0);
	assert_int_equal(meta_path(w->meta, w->who.volume, a.inode, &path), 0);
	assert_memory_equal(path.data, "/data/train.bin", path.len);
	assert_int_equal(meta_path(w->meta, w->who.volume, 4711, &path), -ENOENT);
	buf_free(&path);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_commit_makes_the_object_the_content_of_the_file),
		TEST(a_newer_extent_cuts_an_older_one_in_two),
		TEST(an_object_that_is_wholly_overwritten_is_freed),
		TEST(later_extents_of_one_commit_win),
		TEST(a_pack_is_shared_by_many_files),
		TEST(one_file_given_twice_in_a_commit_counts_once),
		TEST(a_file_that_is_gone_does_not_hold_back_the_others),
		TEST(an_unlinked_file_takes_commits_while_it_is_open),
		TEST(a_commit_sets_times_and_takes_capabilities),
		TEST(a_commit_that_makes_no_sense_is_refused_whole),
		TEST(extents_may_name_objects_committed_before),
		TEST(a_full_volume_takes_overwrites_but_nothing_more),
		TEST(truncating_and_growing_again_reads_zeroes),
		TEST(extents_come_in_pages_from_any_offset),
		TEST(fallocate_extends_punches_and_zeroes),
		TEST(a_clone_shares_the_bytes_until_one_side_is_overwritten),
		TEST(a_clone_ends_where_its_source_ends),
		TEST(a_file_may_be_cloned_into_itself_where_it_does_not_overlap),
		TEST(a_clone_of_thousands_of_extents_is_whole),
		TEST(a_path_is_found_for_any_inode),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
