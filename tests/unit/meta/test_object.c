#include "filling.h"
#include "block/object.h"
#include "meta/content.h"

static struct attr new_file(struct world *w, const char *name)
{
	struct attr a;
	assert_int_equal(do_file(w, ROOT_INODE, name, &a), 0);
	return a;
}

static int commit_as(struct world *w, uint64_t inode, uint64_t object)
{
	struct filling f;
	fill_begin(&f);
	fill_object_as(&f, object, 100);
	fill_file(&f, inode);
	fill_extent(&f, 0, 100, object, 0);
	return fill_commit(w, &f, NULL);
}

static void end_session(struct world *w)
{
	Wire__SessionEnd q = WIRE__SESSION_END__INIT;
	q.session = SESSION;
	assert_int_equal(admin_mutate(w, WIRE__OP__SESSION_END, &q, NULL), 0);
}

static void a_record_is_packed_as_the_header_says(void **state)
{
	struct object_record r = { .volume = 1, .size = 1000, .raw_bytes = 3, .refs = 4, .live_bytes = 5 }, back;
	uint8_t packed[OBJECT_RECORD];
	object_record_pack(&r, packed);
	assert_int_equal(packed[0], 1);
	assert_int_equal(packed[16], 5);
	assert_int_equal(object_record_unpack(packed, sizeof(packed), &back), 0);
	assert_memory_equal(&back, &r, sizeof(r));
	assert_int_equal(object_record_unpack(packed, sizeof(packed) - 1, &back), -EBADMSG);
	put_le32(packed + 12, 0);
	assert_int_equal(object_record_unpack(packed, sizeof(packed), &back), -EBADMSG);
	put_le32(packed + 12, 1);
	put_le32(packed + 4, OBJECT_SIZE_MAX + 1);
	assert_int_equal(object_record_unpack(packed, sizeof(packed), &back), -EBADMSG);
}

static void ids_are_given_out_once_and_in_bounded_ranges(void **state)
{
	struct world *w = *state;
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *reply;
	uint64_t first = do_alloc(w, 1024);
	assert_true(first > 0);
	assert_int_equal(do_alloc(w, 1), first + 1024);
	assert_int_equal(world_mutate(w, WIRE__OP__ALLOC_OBJECTS, &q, &reply), 0);
	assert_int_equal(reply->count, 1);
	q.count = UINT32_MAX;
	assert_int_equal(world_mutate(w, WIRE__OP__ALLOC_OBJECTS, &q, &reply), 0);
	assert_int_equal(reply->count, 65536);
	world_stop(w);
	world_start(w);
	assert_int_equal(do_alloc(w, 1), reply->first + 65536);
	assert_clean(w);
}

static void an_id_outside_the_sessions_ranges_is_stale(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *servers;
	assert_int_equal(commit_as(w, a.inode, 5), -ESTALE); /* no range at all */
	uint64_t first = do_alloc(w, 10);
	assert_int_equal(commit_as(w, a.inode, first + 10), -ESTALE); /* one past the end */
	assert_int_equal(commit_as(w, a.inode, 0), -ESTALE);
	assert_int_equal(admin_mutate(w, WIRE__OP__ALLOC_OBJECTS, &q, &servers), 0);
	assert_int_equal(commit_as(w, a.inode, servers->first), -ESTALE);
	assert_int_equal(commit_as(w, a.inode, first), 0);
	assert_int_equal(commit_as(w, a.inode, first + 9), 0);
	assert_clean(w);
}

static void a_late_commit_of_a_session_that_ended_is_refused(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	uint64_t object = do_alloc(w, 10);
	end_session(w);
	assert_int_equal(commit_as(w, a.inode, object), -ENOTCONN);
	world_stop(w);
	world_start(w); /* begins a session of the same number anew */
	assert_int_equal(commit_as(w, a.inode, object), -ESTALE);
	assert_clean(w);
}

static void an_object_is_committed_once(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	uint64_t object = do_alloc(w, 10);
	assert_int_equal(commit_as(w, a.inode, object), 0);
	assert_int_equal(commit_as(w, a.inode, object), -EEXIST);
	assert_int_equal(do_truncate(w, a.inode, 0), 0);
	assert_int_equal(commit_as(w, a.inode, object), -EEXIST); /* also while it waits to be deleted */
	assert_clean(w);
}

static void a_freed_object_goes_after_the_server_has_deleted_it(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	Wire__ObjectList q = WIRE__OBJECT_LIST__INIT;
	uint64_t ids[8];
	struct view v;
	struct object_record record;
	uint64_t first = do_write(w, a.inode, 0, 10), kept = do_write(w, a.inode, 100, 10);
	w->now_ns += NS_PER_S;
	assert_int_equal(do_truncate(w, a.inode, 0), 0);
	do_write(w, a.inode, 100, 10);

	/* within the grace it stays */
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(objects_due(&v, w->now_ns - 1, ids, 8, &q.n_objects), 0);
	assert_int_equal(q.n_objects, 0);
	assert_int_equal(objects_due(&v, w->now_ns, ids, 8, &q.n_objects), 0);
	assert_int_equal(q.n_objects, 2);
	meta_view_end(&v);
	assert_true(ids[0] == first && ids[1] == kept);

	uint64_t reported[] = { kept + 1, first, 4711, first }; /* one in use, one unknown, one twice */
	q.objects = reported;
	q.n_objects = 4;
	assert_int_equal(admin_mutate(w, WIRE__OP__OBJECTS_DELETED, &q, NULL), 0);
	assert_int_equal(find_object(w, first, &record), -ENOENT);
	assert_false(is_free(w, first));
	assert_true(is_free(w, kept));
	assert_int_equal(get_object(w, kept + 1).refs, 1);
	assert_clean(w);
}

static void orphans_are_claimed_unless_somebody_may_still_commit_them(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	uint64_t dead = do_alloc(w, 10);
	struct object_record record;
	end_session(w);
	world_stop(w);
	world_start(w);
	uint64_t used = do_write(w, a.inode, 0, 10), pending = do_alloc(w, 10);
	uint64_t ids[] = { pending + 3, dead + 4, used, dead + 4, 0, UINT64_MAX };
	Wire__ObjectList q = WIRE__OBJECT_LIST__INIT;
	q.objects = ids;
	q.n_objects = 6;
	assert_int_equal(admin_mutate(w, WIRE__OP__FREE_ORPHANS, &q, NULL), 0);
	assert_int_equal(count_free(w), 1);
	assert_true(is_free(w, dead + 4));
	assert_int_equal(find_object(w, pending + 3, &record), -ENOENT);
	assert_int_equal(get_object(w, used).refs, 1);
	assert_int_equal(admin_mutate(w, WIRE__OP__FREE_ORPHANS, &q, NULL), 0); /* again changes nothing */
	assert_int_equal(count_free(w), 1);
	assert_clean(w);
}

static void an_orphan_from_the_future_is_never_given_out(void **state)
{
	struct world *w = *state;
	uint64_t ids[] = { 5000 };
	Wire__ObjectList q = WIRE__OBJECT_LIST__INIT;
	q.objects = ids;
	q.n_objects = 1;
	assert_int_equal(admin_mutate(w, WIRE__OP__FREE_ORPHANS, &q, NULL), 0);
	assert_true(is_free(w, 5000));
	assert_int_equal(do_alloc(w, 1), 5001);
	assert_clean(w);
}

/* ---- Repacking ---- */

struct repacking {
	Wire__RepackRequest request;
	Wire__NewObject object;
	Wire__Move moves[4], *pointers[4];
	struct buf bytes[8];
};

static void repack_begin(struct world *w, struct repacking *p, uint32_t payload)
{
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *range;
	assert_int_equal(admin_mutate(w, WIRE__OP__ALLOC_OBJECTS, &q, &range), 0);
	memset(p, 0, sizeof(*p));
	wire__repack_request__init(&p->request);
	wire__new_object__init(&p->object);
	p->object.object = range->first;
	p->object.size = payload + OBJECT_FOOTER;
	p->request.object = &p->object;
	p->request.moves = p->pointers;
}

static void repack_move(struct world *w, struct repacking *p, uint64_t inode, const struct extent *from, const struct extent *to)
{
	size_t n = p->request.n_moves++;
	wire__move__init(&p->moves[n]);
	extent_pack(&p->bytes[2 * n], from);
	extent_pack(&p->bytes[2 * n + 1], to);
	p->moves[n].volume = w->who.volume;
	p->moves[n].inode = inode;
	p->moves[n].from = (ProtobufCBinaryData){ p->bytes[2 * n].len, p->bytes[2 * n].data };
	p->moves[n].to = (ProtobufCBinaryData){ p->bytes[2 * n + 1].len, p->bytes[2 * n + 1].data };
	p->pointers[n] = &p->moves[n];
}

static int repack_end(struct world *w, struct repacking *p, uint32_t *moved)
{
	Wire__RepackReply *reply = NULL;
	int r = admin_mutate(w, WIRE__OP__REPACK, &p->request, &reply);
	for (int i = 0; i < 8; i++)
		buf_free(&p->bytes[i]);
	if (r == 0 && moved)
		*moved = reply->moved;
	return r;
}

static void repacking_moves_what_has_not_changed(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a"), b = new_file(w, "b"), after;
	struct repacking p;
	struct extent from[2], e[4];
	uint32_t moved;
	uint64_t old = do_write(w, a.inode, 0, 1000);
	assert_int_equal(do_clone(w, a.inode, 0, b.inode, 0, 1000, NULL), 0);
	assert_int_equal(do_truncate(w, a.inode, 300), 0);
	get_extents(w, a.inode, 0, 0, &from[0], 1, NULL);
	get_extents(w, b.inode, 0, 0, &from[1], 1, NULL);
	assert_int_equal(do_getattr(w, a.inode, &after), 0);
	uint64_t version = after.version;

	repack_begin(w, &p, 1300);
	struct extent to = extent_of(0, 1000, p.object.object, 0), to_a = extent_of(0, 300, p.object.object, 1000);
	repack_move(w, &p, b.inode, &from[1], &to);
	repack_move(w, &p, a.inode, &from[0], &to_a);
	repack_move(w, &p, a.inode, &from[0], &to_a);      /* twice, and out of order */
	assert_int_equal(do_truncate(w, b.inode, 999), 0); /* b changed after it was copied */
	assert_int_equal(repack_end(w, &p, &moved), 0);
	assert_int_equal(moved, 1);
	assert_int_equal(get_extents(w, a.inode, 0, 0, e, 4, NULL), 1);
	assert_true(extent_equal(&e[0], &to_a));
	get_extents(w, b.inode, 0, 0, e, 4, NULL);
	assert_int_equal(e[0].object, old);
	assert_int_equal(get_object(w, old).refs, 1);
	assert_int_equal(get_object(w, p.object.object).refs, 1);
	assert_int_equal(do_getattr(w, a.inode, &after), 0);
	assert_int_equal(after.version, version);
	assert_clean(w);
}

static void a_repacked_object_that_nobody_wants_is_freed(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct repacking p;
	struct extent from;
	uint32_t moved;
	do_write(w, a.inode, 0, 1000);
	get_extents(w, a.inode, 0, 0, &from, 1, NULL);
	repack_begin(w, &p, 1000);
	struct extent to = extent_of(0, 1000, p.object.object, 0);
	repack_move(w, &p, a.inode, &from, &to);
	do_write(w, a.inode, 0, 2000);
	assert_int_equal(repack_end(w, &p, &moved), 0);
	assert_int_equal(moved, 0);
	assert_true(is_free(w, p.object.object));
	assert_clean(w);
}

static void repacking_to_other_places_is_refused(void **state)
{
	struct world *w = *state;
	struct attr a = new_file(w, "a");
	struct repacking p;
	struct extent from, to;
	do_write(w, a.inode, 0, 1000);
	get_extents(w, a.inode, 0, 0, &from, 1, NULL);
	for (int wrong = 0; wrong < 4; wrong++) {
		repack_begin(w, &p, 1000);
		to = extent_of(0, 1000, p.object.object, 0);
		to.offset += wrong == 0;
		to.length -= wrong == 1;
		to.object += wrong == 2;
		to.object_offset += wrong == 3;
		repack_move(w, &p, a.inode, &from, &to);
		assert_int_equal(repack_end(w, &p, NULL), -EINVAL);
	}
	repack_begin(w, &p, 1000);
	p.object.object = do_alloc(w, 1); /* the session's, not the server's */
	assert_int_equal(repack_end(w, &p, NULL), -ESTALE);
	assert_clean(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_record_is_packed_as_the_header_says),
		TEST(ids_are_given_out_once_and_in_bounded_ranges),
		TEST(an_id_outside_the_sessions_ranges_is_stale),
		TEST(a_late_commit_of_a_session_that_ended_is_refused),
		TEST(an_object_is_committed_once),
		TEST(a_freed_object_goes_after_the_server_has_deleted_it),
		TEST(orphans_are_claimed_unless_somebody_may_still_commit_them),
		TEST(an_orphan_from_the_future_is_never_given_out),
		TEST(repacking_moves_what_has_not_changed),
		TEST(a_repacked_object_that_nobody_wants_is_freed),
		TEST(repacking_to_other_places_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
