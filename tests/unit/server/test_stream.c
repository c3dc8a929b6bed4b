#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/bytes.h"
#include "fixture.h"
#include "meta/stream.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
#define ROOM (1u << 20)

struct stream {
	struct rpc *rpc;
	Wire__HelloReply *hello;
	uint8_t history[16];
	uint32_t volume;
	uint8_t *bulk;
	size_t bytes;
};

static int restarted(void *context, struct rpc *r, struct connection *c, bool known) { return 0; }

static void stream_open(struct fixture *f, struct stream *s)
{
	struct rpc_options options = {
		.servers = f->address, .timeout_ms = 10000, .hello = WIRE__HELLO_REQUEST__INIT, .restarted = restarted
	};

	options.hello.mount = options.hello.read_only = options.hello.replica = true;
	options.hello.volume = "training";
	options.hello.host = "here";
	options.hello.mount_point = "/replica";
	assert_int_equal(rpc_open(&options, &f->arena, &s->hello, &s->rpc, f->why, sizeof(f->why)), 0);
	memcpy(s->history, s->hello->store.data, 16);
	s->volume = s->hello->volume->id;
	s->bulk = malloc(ROOM);
	assert_non_null(s->bulk);
}

static void stream_close(struct stream *s)
{
	rpc_close(s->rpc);
	free(s->bulk);
}

static int stream_ask(struct fixture *f, struct stream *s, uint16_t op, const void *request, void *reply)
{
	struct iovec bulk = { s->bulk, ROOM };
	struct rpc_call call = { .op = op,
				 .request = request,
				 .reply = reply,
				 .bulk_in = &bulk,
				 .bulk_in_count = 1,
				 .bulk_in_length = &s->bytes,
				 .why = f->why,
				 .why_size = sizeof(f->why) };

	s->bytes = 0;
	return rpc_call(s->rpc, &call, &f->arena);
}

static int follow(struct fixture *f, struct stream *s, uint64_t after, bool wait, Wire__StreamFollowReply **reply)
{
	Wire__StreamFollowRequest q = WIRE__STREAM_FOLLOW_REQUEST__INIT;

	q.history = (ProtobufCBinaryData){ 16, s->history };
	q.volume = s->volume;
	q.after = after;
	q.wait = wait;
	return stream_ask(f, s, WIRE__OP__STREAM_FOLLOW, &q, reply);
}

static int snapshot(struct fixture *f, struct stream *s, uint32_t table, const void *after, size_t size,
		    Wire__StreamSnapshotReply **reply)
{
	Wire__StreamSnapshotRequest q = WIRE__STREAM_SNAPSHOT_REQUEST__INIT;

	q.history = (ProtobufCBinaryData){ 16, s->history };
	q.volume = s->volume;
	q.table = table;
	q.after = (ProtobufCBinaryData){ size, (uint8_t *)after };
	return stream_ask(f, s, WIRE__OP__STREAM_SNAPSHOT, &q, reply);
}

static size_t count_changes(struct stream *s)
{
	struct reader in = reader_of(s->bulk, s->bytes);
	struct change c;
	size_t n = 0;
	int more;

	while ((more = change_next(&in, &c)) > 0) {
		assert_true(change_is_streamed(&c, s->volume));
		n++;
	}
	assert_int_equal(more, 0);
	return n;
}

static uint64_t now(struct fixture *f, struct stream *s)
{
	Wire__StreamFollowReply *reply;
	uint64_t batch = status(f)->batch;

	assert_int_equal(follow(f, s, batch, false, &reply), 0);
	return reply->batch;
}

static void make_volume(struct fixture *f, const char *name)
{
	Wire__Volume v = WIRE__VOLUME__INIT;

	v.name = (char *)name;
	assert_int_equal(ask(f, f->admin, WIRE__OP__VOLUME_CREATE, &v, NULL), 0);
}

/* ---- Tests ---- */

static void changes_come_as_they_are_made_and_of_this_volume_alone(void **state)
{
	struct fixture *f = *state;
	Wire__StreamFollowReply *reply;
	struct rpc *mine = fixture_mount(f, "training", false), *other;
	struct stream s;
	uint64_t at;

	make_volume(f, "secret");
	other = fixture_mount(f, "secret", false);
	stream_open(f, &s);
	assert_true(s.hello->name_seed != 0);
	at = now(f, &s);
	for (int i = 0; i < 20; i++) {
		char name[20];
		snprintf(name, sizeof(name), "secret%d", i);
		assert_int_equal(create(f, other, 1, name, S_IFREG | 0600, false, NULL), 0);
	}
	assert_int_equal(follow(f, &s, at, false, &reply), 0);
	assert_true(reply->batch >= at + 20);
	assert_int_equal(reply->batch, reply->newest);
	assert_int_equal(s.bytes, 0);
	at = reply->batch;
	assert_int_equal(create(f, mine, 1, "f", S_IFREG | 0600, false, NULL), 0);
	assert_int_equal(follow(f, &s, at, true, &reply), 0);
	assert_int_equal(count_changes(&s), 3); /* the inode, its name, the directory */
	assert_non_null(reply->space);
	assert_true(reply->space->total_bytes > 0);
	/* Without news the answer comes after a second. */
	assert_int_equal(follow(f, &s, reply->batch, true, &reply), 0);
	assert_int_equal(s.bytes, 0);
	rpc_close(mine);
	rpc_close(other);
	stream_close(&s);
}

static void a_range_ends_where_the_volume_does(void **state)
{
	struct fixture *f = *state;
	struct rpc *mine = fixture_mount(f, "training", false), *other;
	Wire__StreamSnapshotReply *reply;
	struct stream s;
	uint8_t key[8];
	struct attr a;

	make_volume(f, "secret");
	other = fixture_mount(f, "secret", false);
	for (int i = 0; i < 5; i++) {
		char name[20];
		snprintf(name, sizeof(name), "f%d", i);
		assert_int_equal(create(f, mine, 1, name, S_IFREG | 0600, false, &a), 0);
		assert_int_equal(create(f, other, 1, name, S_IFREG | 0600, false, NULL), 0);
	}
	stream_open(f, &s);
	assert_int_equal(snapshot(f, &s, TABLE_INODE, NULL, 0, &reply), 0);
	assert_true(reply->end);
	assert_int_equal(count_changes(&s), 6);
	assert_int_equal(snapshot(f, &s, TABLE_DENTRY, NULL, 0, &reply), 0);
	assert_int_equal(count_changes(&s), 5);
	put_be64(key, inode_key(s.volume, a.inode - 1));
	assert_int_equal(snapshot(f, &s, TABLE_INODE, key, sizeof(key), &reply), 0);
	assert_int_equal(count_changes(&s), 1);
	/* Neither other tables, nor other volumes' keys to begin with. */
	for (uint32_t t = 0; t < TABLE_COUNT + 2; t++)
		if (t != TABLE_INODE && t != TABLE_DENTRY && t != TABLE_EXTENT && t != TABLE_XATTR && t != TABLE_META)
			assert_int_equal(snapshot(f, &s, t, NULL, 0, &reply), -EINVAL);
	/* Of what is no table of volumes only marks. */
	assert_int_equal(snapshot(f, &s, TABLE_META, NULL, 0, &reply), 0);
	assert_true(reply->end);
	assert_int_equal(count_changes(&s), 0);
	assert_int_equal(snapshot(f, &s, TABLE_META, "format", 6, &reply), -EINVAL);
	put_be64(key, inode_key(s.volume + 1, 1));
	assert_int_equal(snapshot(f, &s, TABLE_INODE, key, sizeof(key), &reply), -EINVAL);
	assert_int_equal(snapshot(f, &s, TABLE_INODE, key, 3, &reply), -EINVAL);
	rpc_close(mine);
	rpc_close(other);
	stream_close(&s);
}

static void what_is_not_kept_is_said_to_be_gone(void **state)
{
	struct fixture *f = *state;
	struct rpc *mine = fixture_mount(f, "training", false);
	Wire__StreamFollowReply *reply;
	struct stream s;
	uint64_t at;

	stream_open(f, &s);
	at = now(f, &s);
	assert_int_equal(create(f, mine, 1, "f", S_IFREG | 0600, false, NULL), 0);
	assert_int_equal(follow(f, &s, at + 1000, false, &reply), -ESTALE); /* more than there ever was */
	fixture_stop(f);
	fixture_start(f);
	assert_int_equal(follow(f, &s, at, false, &reply), -ESTALE);
	s.history[3] ^= 1;
	assert_int_equal(follow(f, &s, at, false, &reply), -EXDEV);
	s.history[3] ^= 1;
	s.volume++;
	assert_int_equal(follow(f, &s, at, false, &reply), -EXDEV);
	rpc_close(mine);
	stream_close(&s);
}

static void only_replicas_may_follow_and_they_may_nothing_else(void **state)
{
	struct fixture *f = *state;
	struct rpc *mine = fixture_mount(f, "training", true);
	Wire__StreamFollowRequest q = WIRE__STREAM_FOLLOW_REQUEST__INIT;
	struct stream s;
	struct attr a;

	assert_int_equal(ask(f, mine, WIRE__OP__STREAM_FOLLOW, &q, NULL), -EPERM);
	assert_int_equal(ask(f, f->admin, WIRE__OP__STREAM_FOLLOW, &q, NULL), -EINVAL);
	stream_open(f, &s);
	assert_int_equal(create(f, s.rpc, 1, "f", S_IFREG | 0600, false, NULL), -EPERM);
	assert_int_equal(lookup(f, s.rpc, 1, "f", &a), -EPERM);
	assert_int_equal(getattr(f, s.rpc, 1, &a), -EPERM);
	rpc_close(mine);
	stream_close(&s);
}

static Wire__LeaseReply *lease(struct fixture *f, struct rpc *r, uint64_t seen)
{
	Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;
	Wire__LeaseReply *reply;

	q.seen = seen;
	assert_int_equal(ask(f, r, WIRE__OP__LEASE, &q, &reply), 0);
	return reply;
}

static void a_mount_stays_alone_beside_a_replica(void **state)
{
	struct fixture *f = *state;
	struct rpc *mine = fixture_mount(f, "training", false);
	Wire__LeaseReply *l = lease(f, mine, 0);
	uint64_t number = l->number;
	struct stream s;

	assert_true(l->held);
	stream_open(f, &s);
	l = lease(f, mine, number);
	assert_true(l->held);
	assert_int_equal(l->number, number);
	/* After a restart as well, and nobody waits for the replica. */
	fixture_stop(f);
	fixture_start(f);
	l = lease(f, mine, 0);
	l = lease(f, mine, l->number);
	assert_true(l->held);
	stream_close(&s);
	rpc_close(mine);
}

static void freed_objects_stay_an_hour_while_there_are_replicas(void **state)
{
	struct fixture *f = *state;
	struct rpc *mine = fixture_mount(f, "training", false);
	char path[200];
	struct extent e;
	struct stream s;
	struct attr a;
	Wire__Empty bye = WIRE__EMPTY__INIT;

	stream_open(f, &s);
	assert_int_equal(create(f, mine, 1, "f", S_IFREG | 0600, false, &a), 0);
	assert_int_equal(write_file(f, mine, a.inode, 0, "hello", 5, &e), 0);
	object_path(f, e.object, path, sizeof(path));
	assert_true(exists(path));
	assert_int_equal(unlink_name(f, mine, 1, "f"), 0);
	AWAIT(getattr(f, mine, a.inode, &a) == -ENOENT);
	job(f, "gc", false, false);
	assert_true(exists(path));
	/* And an hour longer: replicas go on for so long without a word. */
	assert_int_equal(ask(f, s.rpc, WIRE__OP__GOODBYE, &bye, NULL), 0);
	f->clock_ahead_ns += 3500 * NS_PER_S;
	fixture_stop(f);
	fixture_start(f);
	job(f, "gc", false, false);
	assert_true(exists(path));
	f->clock_ahead_ns += 200 * NS_PER_S;
	AWAIT(!exists(path));
	stream_close(&s);
	rpc_close(mine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(changes_come_as_they_are_made_and_of_this_volume_alone),
		TEST(a_range_ends_where_the_volume_does),
		TEST(what_is_not_kept_is_said_to_be_gone),
		TEST(only_replicas_may_follow_and_they_may_nothing_else),
		TEST(a_mount_stays_alone_beside_a_replica),
		TEST(freed_objects_stay_an_hour_while_there_are_replicas),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
