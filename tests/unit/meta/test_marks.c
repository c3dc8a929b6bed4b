#include "world.h"
#include "meta/check.h"
#include "meta/marks.h"
#include "meta/reap.h"

#define MAKER 77

static uint8_t id[WRITEBACK_ID] = "one directory ..", other[WRITEBACK_ID] = "another one ....";

static ProtobufCBinaryData id_bytes(uint8_t *of) { return (ProtobufCBinaryData){ .len = WRITEBACK_ID, .data = of }; }

static void begin(struct world *w, uint64_t session, uint8_t *writeback)
{
	Wire__SessionBegin request = WIRE__SESSION_BEGIN__INIT;
	struct caller server = { 0 };

	request.session = session;
	request.volume = w->who.volume;
	request.host = "node";
	request.mount_point = "/mnt";
	request.writeback = id_bytes(writeback);
	assert_int_equal(meta_mutate(w->meta, &server, WIRE__OP__SESSION_BEGIN, &request.base, &w->arena, NULL), 0);
}

static void end(struct world *w, uint64_t session)
{
	Wire__SessionEnd request = WIRE__SESSION_END__INIT;
	struct caller server = { 0 };

	request.session = session;
	request.reason = "";
	assert_int_equal(meta_mutate(w->meta, &server, WIRE__OP__SESSION_END, &request.base, &w->arena, NULL), 0);
}

static int mark_by(struct world *w, uint64_t session, uint16_t op, uint64_t inode, uint64_t generation, bool revoked)
{
	Wire__MarkRequest request = WIRE__MARK_REQUEST__INIT;
	Wire__Mark mark = WIRE__MARK__INIT, *marks[1] = { &mark };
	struct caller who = w->who;
	ProtobufCMessage *reply;
	int r;

	who.session = session;
	mark.inode = inode;
	mark.generation = generation;
	mark.size = 1000 + generation;
	mark.revoked = revoked;
	request.n_marks = 1;
	request.marks = marks;
	r = meta_mutate(w->meta, &who, op, &request.base, &w->arena, &reply);
	if (r || op == WIRE__OP__UNMARK)
		return r;
	assert_int_equal(((Wire__MarkReply *)reply)->n_status, 1);
	return (int)((Wire__MarkReply *)reply)->status[0];
}

static Wire__MarkRecord *found(struct world *w, uint64_t inode)
{
	Wire__MarkRecord *mark;
	int r = meta_mark_find(w->meta, w->who.volume, inode, &w->arena, &mark);

	assert_true(r == 0 || r == -ENOENT);
	return r ? NULL : mark;
}

static void a_mark_outlives_session_and_server_and_goes_with_its_own_generation_only(void **state)
{
	struct world *w = *state;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	begin(w, MAKER, id);
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, a.inode, 5, true), ESTALE);
	assert_null(found(w, a.inode));
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, a.inode, 5, false), 0);
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, a.inode, 5, false), 0);
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, a.inode, 6, false), EEXIST);
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, 12345, 5, false), ENOENT);
	assert_false(meta_has_orphaned_marks(w->meta, w->who.volume));
	end(w, MAKER);
	assert_true(meta_has_orphaned_marks(w->meta, w->who.volume));
	world_stop(w);
	world_start(w);
	assert_true(meta_has_marks(w->meta));
	assert_true(meta_has_orphaned_marks(w->meta, w->who.volume));
	assert_int_equal(found(w, a.inode)->generation, 5);
	assert_int_equal(found(w, a.inode)->size, 1005);
	assert_string_equal(found(w, a.inode)->host, "node");
	begin(w, 78, other);
	assert_true(meta_has_orphaned_marks(w->meta, w->who.volume));
	assert_int_equal(mark_by(w, 78, WIRE__OP__MARK, a.inode, 5, false), EEXIST);
	assert_int_equal(mark_by(w, 78, WIRE__OP__UNMARK, a.inode, 5, false), 0);
	assert_non_null(found(w, a.inode));
	begin(w, 79, id);
	assert_false(meta_has_orphaned_marks(w->meta, w->who.volume));
	assert_int_equal(mark_by(w, 79, WIRE__OP__UNMARK, a.inode, 6, false), 0);
	assert_non_null(found(w, a.inode));
	assert_int_equal(mark_by(w, 79, WIRE__OP__UNMARK, a.inode, 5, false), 0);
	assert_null(found(w, a.inode));
	assert_int_equal(mark_by(w, 79, WIRE__OP__UNMARK, a.inode, 5, false), 0);
}

static void a_session_without_a_directory_marks_nothing(void **state)
{
	struct world *w = *state;
	struct attr a, directory;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &directory), 0);
	assert_int_equal(mark_by(w, SESSION, WIRE__OP__MARK, a.inode, 5, false), -EINVAL);
	begin(w, MAKER, id);
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, directory.inode, 5, false), -EINVAL);
}

static Wire__MarksReply *list(struct world *w, uint8_t *of)
{
	Wire__MarksRequest request = WIRE__MARKS_REQUEST__INIT;
	struct caller admin = { 0 };
	ProtobufCMessage *reply;

	if (of)
		request.writeback = id_bytes(of);
	assert_int_equal(meta_read(w->meta, &admin, WIRE__OP__MARKS, &request.base, &w->arena, &reply), 0);
	return (Wire__MarksReply *)reply;
}

static void marks_are_listed_with_their_paths_and_given_up_by_directory(void **state)
{
	struct world *w = *state;
	Wire__MarksDropRequest request = WIRE__MARKS_DROP_REQUEST__INIT;
	struct caller admin = { 0 };
	ProtobufCMessage *reply;
	struct attr a[3];
	char name[2] = "a";

	begin(w, MAKER, id);
	begin(w, 78, other);
	for (int k = 0; k < 3; k++, name[0]++) {
		assert_int_equal(do_file(w, ROOT_INODE, name, &a[k]), 0);
		assert_int_equal(mark_by(w, k == 1 ? 78 : MAKER, WIRE__OP__MARK, a[k].inode, 5, false), 0);
	}
	assert_int_equal(list(w, NULL)->n_marks, 3);
	assert_int_equal(list(w, id)->n_marks, 2);
	assert_memory_equal(list(w, other)->marks[0]->path.data, "/b", 2);
	assert_string_equal(list(w, other)->marks[0]->volume_name, "training");
	end(w, MAKER);
	end(w, 78);
	request.writeback = id_bytes(id);
	assert_int_equal(meta_mutate(w->meta, &admin, WIRE__OP__MARKS_DROP, &request.base, &w->arena, &reply), 0);
	assert_int_equal(((Wire__MarksDropReply *)reply)->files, 2);
	assert_int_equal(list(w, NULL)->n_marks, 1);
	assert_true(meta_has_orphaned_marks(w->meta, w->who.volume));
	request.writeback = id_bytes(other);
	assert_int_equal(meta_mutate(w->meta, &admin, WIRE__OP__MARKS_DROP, &request.base, &w->arena, &reply), 0);
	assert_false(meta_has_orphaned_marks(w->meta, w->who.volume));
	request.writeback.len = 3;
	assert_int_equal(meta_mutate(w->meta, &admin, WIRE__OP__MARKS_DROP, &request.base, &w->arena, &reply), -EINVAL);
}

static void a_mark_goes_with_its_file_and_fsck_knows_marks(void **state)
{
	struct world *w = *state;
	struct check_options options = { 0 };
	struct reap_counts done = { 0 };
	struct check_result result;
	struct attr a;
	bool more;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	begin(w, MAKER, id);
	assert_int_equal(mark_by(w, MAKER, WIRE__OP__MARK, a.inode, 5, false), 0);
	assert_int_equal(check_run(w->meta, &options, &result), 0);
	assert_int_equal(result.problems, 0);
	check_result_free(&result);
	assert_int_equal(do_unlink(w, ROOT_INODE, "f"), 0);
	assert_non_null(found(w, a.inode));
	w->now_ns += 400LL * 86400 * NS_PER_S;
	assert_int_equal(reap_pass(w->meta, w->now_ns, 1000, &done, &more), 0);
	assert_int_equal(done.files, 1);
	assert_null(found(w, a.inode));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
		TEST(a_mark_outlives_session_and_server_and_goes_with_its_own_generation_only),
		TEST(a_session_without_a_directory_marks_nothing),
		TEST(marks_are_listed_with_their_paths_and_given_up_by_directory),
		TEST(a_mark_goes_with_its_file_and_fsck_knows_marks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
