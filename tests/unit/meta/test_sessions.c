#include "world.h"
#include "meta/machine.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static Wire__CreateRequest create_request(const char *name)
{
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;

	request.parent = ROOT_INODE;
	request.name = bytes_of(name);
	request.mode = S_IFREG | 0644;
	request.exclusive = true;
	return request;
}

static uint64_t inode_of(const Wire__EntryReply *reply)
{
	struct attr a;

	assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, &a), 0);
	return a.inode;
}

static uint64_t records(struct world *w, enum table t)
{
	struct view v;
	MDB_stat stat;

	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(mdb_stat(v.txn, w->meta->tables[t], &stat), 0);
	meta_view_end(&v);
	return stat.ms_entries;
}

static void begin(struct world *w, uint64_t session)
{
	Wire__SessionBegin request = WIRE__SESSION_BEGIN__INIT;
	static const struct caller server;

	request.session = session;
	request.volume = w->who.volume;
	assert_int_equal(meta_mutate(w->meta, &server, WIRE__OP__SESSION_BEGIN, &request.base, &w->arena, NULL), 0);
}

static int end(struct world *w, uint64_t session)
{
	Wire__SessionEnd request = WIRE__SESSION_END__INIT;
	static const struct caller server;

	request.session = session;
	return meta_mutate(w->meta, &server, WIRE__OP__SESSION_END, &request.base, &w->arena, NULL);
}

static int revoke(struct world *w, uint64_t session, uint64_t revoked, uint64_t acknowledged)
{
	Wire__SessionRevoke request = WIRE__SESSION_REVOKE__INIT;
	static const struct caller server;

	request.session = session;
	request.revoked = revoked;
	request.acknowledged = acknowledged;
	return meta_mutate(w->meta, &server, WIRE__OP__SESSION_REVOKE, &request.base, &w->arena, NULL);
}

static uint64_t revoked_on_record(struct world *w, uint64_t session)
{
	Wire__SessionBegin *record;
	struct span value;
	struct view v;
	uint8_t key[8];

	put_be64(key, session);
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(view_get(&v, TABLE_SESSION, key, sizeof(key), &value), 0);
	record = wire__session_begin__unpack(&w->arena.allocator, value.size, value.data);
	meta_view_end(&v);
	assert_non_null(record);
	assert_int_equal(record->session, session);
	assert_int_equal(record->volume, w->who.volume);
	return record->revoked;
}

static void a_revocation_is_on_record_until_it_is_acknowledged(void **state)
{
	struct world *w = *state;

	begin(w, 77);
	assert_int_equal(revoked_on_record(w, 77), 0);
	assert_int_equal(revoke(w, 77, 5, 0), 0);
	assert_int_equal(revoke(w, 77, 3, 0), 0);
	world_stop(w);
	world_start(w);
	assert_int_equal(revoked_on_record(w, 77), 5);
	assert_int_equal(revoke(w, 77, 0, 4), 0);
	assert_int_equal(revoked_on_record(w, 77), 5);
	assert_int_equal(revoke(w, 77, 6, 5), 0);
	assert_int_equal(revoked_on_record(w, 77), 6);
	assert_int_equal(revoke(w, 77, 0, 6), 0);
	assert_int_equal(revoked_on_record(w, 77), 0);
	assert_int_equal(end(w, 77), 0);
	assert_int_equal(revoke(w, 77, 7, 0), -ENOENT);
	assert_int_equal(revoke(w, 0, 7, 0), -ENOENT);
}

static void a_retried_mutation_gets_the_first_answer(void **state)
{
	struct world *w = *state;
	Wire__CreateRequest request = create_request("a");
	Wire__EntryReply *first, *again;

	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__CREATE, &request, &first), 0);
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__CREATE, &request, &again), 0);
	assert_int_equal(inode_of(first), inode_of(again));
	assert_int_equal(world_numbered(w, 2, 1, WIRE__OP__CREATE, &request, &again), -EEXIST);
	assert_int_equal(count_names(w, ROOT_INODE), 1);
}

static void answers_are_remembered_across_a_restart_and_reopen_the_file(void **state)
{
	struct world *w = *state;
	Wire__CreateRequest request = create_request("a");
	Wire__EntryReply *first, *again;

	request.open = true;
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__CREATE, &request, &first), 0);
	world_stop(w);
	world_start(w);
	assert_false(meta_is_open(w->meta, w->who.volume, inode_of(first)));
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__CREATE, &request, &again), 0);
	assert_int_equal(inode_of(first), inode_of(again));
	assert_true(meta_is_open(w->meta, w->who.volume, inode_of(first)));
}

static void a_refusal_changes_nothing_and_is_judged_anew(void **state)
{
	struct world *w = *state;
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;
	uint64_t batch = meta_batch(w->meta);

	request.parent = ROOT_INODE;
	request.name = bytes_of("a");
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__UNLINK, &request, NULL), -ENOENT);
	assert_int_equal(meta_batch(w->meta), batch);
	assert_int_equal(do_file(w, ROOT_INODE, "a", NULL), 0);
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__UNLINK, &request, NULL), 0);
}

static void answers_that_were_seen_are_forgotten(void **state)
{
	struct world *w = *state;
	Wire__CreateRequest request;

	for (uint64_t n = 1; n <= 50; n++) {
		request = create_request(numbered_name(w, "f%d", (int)n));
		assert_int_equal(world_numbered(w, n, n, WIRE__OP__CREATE, &request, NULL), 0);
		assert_in_range(records(w, TABLE_ANSWER), 1, 2);
	}
	request = create_request("late");
	assert_int_equal(world_numbered(w, 49, 49, WIRE__OP__CREATE, &request, NULL), -EBADMSG);
	assert_int_equal(world_numbered(w, 51, 60, WIRE__OP__CREATE, &request, NULL), -EBADMSG);
	assert_int_equal(do_lookup(w, ROOT_INODE, "late", NULL), -ENOENT);
}

static void the_end_of_a_session_takes_its_records_along(void **state)
{
	struct world *w = *state;
	Wire__CreateRequest request = create_request("a");
	Wire__AllocObjectsRequest alloc = WIRE__ALLOC_OBJECTS_REQUEST__INIT;

	begin(w, 8);
	request.open = true;
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__CREATE, &request, NULL), 0);
	alloc.count = 10;
	assert_int_equal(world_numbered(w, 2, 1, WIRE__OP__ALLOC_OBJECTS, &alloc, NULL), 0);
	assert_int_equal(world_numbered(w, 3, 1, WIRE__OP__ALLOC_OBJECTS, &alloc, NULL), 0);
	w->who.session = 8;
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__ALLOC_OBJECTS, &alloc, NULL), 0);
	assert_int_equal(records(w, TABLE_ANSWER), 4);
	assert_int_equal(records(w, TABLE_RANGE), 3);
	assert_int_equal(meta_open_count(w->meta, SESSION), 1);
	assert_int_equal(end(w, SESSION), 0);
	assert_int_equal(records(w, TABLE_ANSWER), 1);
	assert_int_equal(records(w, TABLE_RANGE), 1);
	assert_int_equal(records(w, TABLE_SESSION), 1);
	assert_int_equal(meta_open_count(w->meta, SESSION), 0);
	assert_int_equal(end(w, SESSION), 0);
	w->who.session = SESSION;
	assert_int_equal(do_file(w, ROOT_INODE, "b", NULL), -ENOTCONN);
}

static void goodbye_ends_the_session_however_often_it_is_said(void **state)
{
	struct world *w = *state;
	Wire__Empty empty = WIRE__EMPTY__INIT;

	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__GOODBYE, &empty, NULL), 0);
	assert_int_equal(world_numbered(w, 1, 1, WIRE__OP__GOODBYE, &empty, NULL), 0);
	assert_int_equal(records(w, TABLE_SESSION), 0);
	assert_int_equal(records(w, TABLE_ANSWER), 0);
	assert_int_equal(show_volume(w, "training")->sessions, 0);
}

static void a_read_only_session_can_only_say_goodbye(void **state)
{
	struct world *w = *state;
	Wire__Empty empty = WIRE__EMPTY__INIT;

	assert_int_equal(do_file(w, ROOT_INODE, "a", NULL), 0);
	w->who.read_only = true;
	assert_int_equal(do_file(w, ROOT_INODE, "b", NULL), -EROFS);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), -EROFS);
	assert_int_equal(do_lookup(w, ROOT_INODE, "a", NULL), 0);
	assert_int_equal(world_mutate(w, WIRE__OP__GOODBYE, &empty, NULL), 0);
}

static uint32_t validity(struct world *w)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	Wire__EntryReply *reply;

	request.inode = ROOT_INODE;
	assert_int_equal(world_read(w, WIRE__OP__GETATTR, &request, &reply), 0);
	return reply->valid_ms;
}

static void answers_are_good_for_long_only_for_a_lone_session(void **state)
{
	struct world *w = *state;
	Wire__VolumeSetRequest request = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *field = "consistency";

	assert_int_equal(validity(w), 10000);
	begin(w, 8);
	assert_int_equal(validity(w), 0);
	v.name = "training";
	v.relaxed = true;
	request.volume = &v;
	request.fields = &field;
	request.n_fields = 1;
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_SET, &request, NULL), 0);
	assert_int_equal(validity(w), 1000);
	assert_int_equal(end(w, 8), 0);
	assert_int_equal(validity(w), 10000);
}

static void opens_are_counted_per_session(void **state)
{
	struct world *w = *state;

	assert_int_equal(meta_opened(w->meta, 1, 1, 5, 0), 0);
	assert_int_equal(meta_opened(w->meta, 1, 1, 5, 0), 0);
	assert_int_equal(meta_opened(w->meta, 2, 1, 5, 0), 0);
	assert_int_equal(meta_opened(w->meta, 2, 1, 6, 0), 0);
	assert_false(meta_is_open(w->meta, 2, 5));
	assert_int_equal(meta_open_count(w->meta, 1), 1);
	assert_int_equal(meta_open_count(w->meta, 2), 2);
	meta_closed(w->meta, 1, 1, 5, 0);
	meta_closed(w->meta, 1, 1, 5, 0);
	assert_true(meta_is_open(w->meta, 1, 5));
	meta_session_forget(w->meta, 2);
	assert_false(meta_is_open(w->meta, 1, 5));
	assert_false(meta_is_open(w->meta, 1, 6));
	meta_session_forget(w->meta, 99);
}

static void a_close_that_comes_late_does_not_close_what_was_opened_since(void **state)
{
	struct world *w = *state;

	assert_int_equal(meta_opened(w->meta, 1, 1, 5, 7), 0);
	assert_false(meta_closed(w->meta, 1, 1, 5, 6));
	assert_true(meta_is_open(w->meta, 1, 5));
	assert_int_equal(meta_opened(w->meta, 1, 1, 5, 9), 0);
	assert_int_equal(meta_opened(w->meta, 1, 1, 5, 8), 0); /* late as well: the higher number stays */
	assert_false(meta_closed(w->meta, 1, 1, 5, 8));
	assert_true(meta_is_open(w->meta, 1, 5));
	assert_int_equal(meta_open_count(w->meta, 1), 1);
	assert_true(meta_closed(w->meta, 1, 1, 5, 9));
	assert_false(meta_is_open(w->meta, 1, 5));
	assert_false(meta_closed(w->meta, 1, 1, 5, 9));
	assert_false(meta_closed(w->meta, 3, 1, 5, 9));
	/* Reclaimed after a restart, without a number: any close is later. */
	assert_int_equal(meta_opened(w->meta, 1, 1, 5, 0), 0);
	assert_true(meta_closed(w->meta, 1, 1, 5, 0));
	assert_false(meta_is_open(w->meta, 1, 5));
	assert_int_equal(meta_opened(w->meta, 1, 1, 5, UINT64_MAX), -EINVAL);
	assert_false(meta_is_open(w->meta, 1, 5));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_revocation_is_on_record_until_it_is_acknowledged),
		TEST(a_retried_mutation_gets_the_first_answer),
		TEST(answers_are_remembered_across_a_restart_and_reopen_the_file),
		TEST(a_refusal_changes_nothing_and_is_judged_anew),
		TEST(answers_that_were_seen_are_forgotten),
		TEST(the_end_of_a_session_takes_its_records_along),
		TEST(goodbye_ends_the_session_however_often_it_is_said),
		TEST(a_read_only_session_can_only_say_goodbye),
		TEST(answers_are_good_for_long_only_for_a_lone_session),
		TEST(opens_are_counted_per_session),
		TEST(a_close_that_comes_late_does_not_close_what_was_opened_since),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
