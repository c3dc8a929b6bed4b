#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fixture.h"

#define FILE_MODE (S_IFREG | 0644)

static Wire__CreateRequest create_request(const char *name)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;

	q.parent = 1;
	q.name.data = (uint8_t *)name;
	q.name.len = strlen(name);
	q.mode = FILE_MODE;
	q.exclusive = true;
	return q;
}

/* ---- Hello ---- */

static void nothing_is_served_before_hello(void **state)
{
	struct fixture *f = *state;
	struct raw w;

	raw_open(f, &w);
	assert_int_equal(raw_ask(&w, WIRE__OP__STATUS, 0, 0, NULL), EPROTO);
	assert_string_equal(raw_why(&w), "a connection begins with hello, not with status");
	assert_int_equal(raw_ask(&w, WIRE__OP__STATUS, 0, 0, NULL), -ECONNRESET);
	raw_close(&w);
}

static void another_version_of_the_protocol_is_refused(void **state)
{
	struct fixture *f = *state;
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	struct raw w;

	q.version = PROTOCOL_VERSION + 1;
	raw_open(f, &w);
	assert_int_equal(raw_ask(&w, WIRE__OP__HELLO, 0, 0, &q), EPROTONOSUPPORT);
	assert_non_null(strstr(raw_why(&w), "version"));
	raw_close(&w);
}

static void a_mount_with_endless_names_is_refused(void **state)
{
	struct fixture *f = *state;
	char *endless = malloc(1 << 20);

	memset(endless, 'x', (1 << 20) - 1);
	endless[(1 << 20) - 1] = 0;
	for (int i = 0; i < 3; i++) {
		Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
		struct raw w;

		q.version = PROTOCOL_VERSION;
		q.mount = true;
		q.volume = "training";
		*(char **[]){ &q.host, &q.mount_point, &q.writeback_dir }[i] = endless;
		raw_open(f, &w);
		assert_int_equal(raw_ask(&w, WIRE__OP__HELLO, 0, 0, &q), ENAMETOOLONG);
		raw_close(&w);
	}
	free(endless);
}

static void an_unknown_volume_is_refused_with_what_to_do(void **state)
{
	struct fixture *f = *state;

	assert_null(fixture_mount(f, "nonesuch", false));
	assert_int_equal(errno, ENOENT);
	assert_string_equal(f->why, "there is no volume nonesuch; epochfs volume list shows those there are");
}

static void administration_cannot_touch_files(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(getattr(f, f->admin, 1, NULL), -EINVAL);
	assert_string_equal(f->why, "getattr needs a mounted volume; this connection is for administration");
}

static void what_is_unknown_or_internal_is_refused(void **state)
{
	struct fixture *f = *state;
	struct raw w;

	raw_open(f, &w);
	raw_hello(&w, 0);
	assert_int_equal(raw_ask(&w, 9999, 0, 0, NULL), ENOSYS);
	assert_non_null(strstr(raw_why(&w), "does not know request 9999"));
	for (uint16_t op = WIRE__OP__SESSION_BEGIN; op <= WIRE__OP__SESSION_REVOKE; op++) {
		assert_int_equal(raw_ask(&w, op, 0, 0, NULL), ENOSYS);
		assert_non_null(strstr(raw_why(&w), "the server's own business"));
	}
	assert_int_equal(raw_ask(&w, WIRE__OP__STATFS, 0, 0, NULL), 0); /* and it goes on */
	raw_close(&w);
}

static void a_mount_of_a_subdirectory_has_it_as_its_root(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	Wire__HelloReply *reply;
	struct attr dir, file;
	struct raw w;

	assert_int_equal(create(f, r, 1, "sets", S_IFDIR | 0755, false, &dir), 0);
	assert_int_equal(create(f, r, 1, "file", FILE_MODE, false, &file), 0);
	raw_open(f, &w);
	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	q.subdir = "file";
	assert_int_equal(raw_ask(&w, WIRE__OP__HELLO, 0, 0, &q), ENOTDIR);
	raw_close(&w);
	raw_open(f, &w);
	q.subdir = "/nowhere";
	assert_int_equal(raw_ask(&w, WIRE__OP__HELLO, 0, 0, &q), ENOENT);
	assert_non_null(strstr(raw_why(&w), "has no directory /nowhere"));
	raw_close(&w);
	raw_open(f, &w);
	q.subdir = "/sets";
	assert_int_equal(raw_ask(&w, WIRE__OP__HELLO, 0, 0, &q), 0);
	reply = wire__hello_reply__unpack(&w.arena.allocator, w.reply.message_length, w.message);
	assert_int_equal(reply->root, dir.inode);
	raw_close(&w);
	rpc_close(r);
}

static void a_read_only_mount_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", true);
	uint64_t id = 0;

	assert_int_equal(create(f, r, 1, "file", FILE_MODE, false, NULL), -EROFS);
	assert_int_equal(alloc(f, r, 1, &id), -EROFS);
	assert_int_equal(object_put(f, r, 1, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 40), -EROFS);
	assert_int_equal(getattr(f, r, 1, NULL), 0);
	rpc_close(r);
}

/* ---- Exactly once ---- */

static void a_mutation_asked_for_again_is_answered_not_repeated(void **state)
{
	struct fixture *f = *state;
	Wire__CreateRequest q = create_request("once");
	struct raw w, other;
	uint64_t session;
	uint8_t first[1000];
	size_t size;

	raw_open(f, &w);
	session = raw_hello(&w, 0);
	assert_int_equal(raw_ask(&w, WIRE__OP__CREATE, 1, 1, &q), 0);
	size = w.reply.message_length;
	assert_in_range(size, 1, sizeof(first));
	memcpy(first, w.message, size);
	/* On the same connection, on another one, and after a restart: the very same answer. */
	assert_int_equal(raw_ask(&w, WIRE__OP__CREATE, 1, 1, &q), 0);
	assert_memory_equal(w.message, first, size);
	raw_open(f, &other);
	assert_int_equal(raw_hello(&other, session), session);
	assert_int_equal(raw_ask(&other, WIRE__OP__CREATE, 1, 1, &q), 0);
	assert_memory_equal(other.message, first, size);
	raw_close(&other);
	fixture_stop(f);
	fixture_start(f);
	raw_open(f, &other);
	assert_int_equal(raw_hello(&other, session), session);
	assert_int_equal(raw_ask(&other, WIRE__OP__CREATE, 1, 1, &q), 0);
	assert_int_equal(other.reply.message_length, size);
	assert_memory_equal(other.message, first, size);
	/* A new number is a new request. */
	assert_int_equal(raw_ask(&other, WIRE__OP__CREATE, 2, 2, &q), EEXIST);
	/* And a number that was given up is refused. */
	assert_int_equal(raw_ask(&other, WIRE__OP__CREATE, 1, 2, &q), EBADMSG);
	raw_close(&other);
	raw_close(&w);
}

static void many_requests_may_be_under_way_on_one_connection(void **state)
{
	struct fixture *f = *state;
	bool seen[301] = { false };
	struct raw w;

	raw_open(f, &w);
	raw_hello(&w, 0);
	for (int i = 1; i <= 300; i++) {
		char name[20];
		Wire__InodeRequest get = WIRE__INODE_REQUEST__INIT;
		struct frame frame = { .op = i % 3 ? WIRE__OP__CREATE : WIRE__OP__GETATTR,
				       .id = (uint64_t)i,
				       .number = i % 3 ? (uint64_t)i : 0,
				       .clock = 1 };

		snprintf(name, sizeof(name), "file%d", i);
		Wire__CreateRequest q = create_request(name);
		get.inode = 1;
		assert_int_equal(connection_send(w.c, &frame, i % 3 ? &q.base : &get.base, NULL, 0), 0);
	}
	for (int i = 1; i <= 300; i++) {
		assert_int_equal(connection_receive(w.c, &w.reply, &w.arena, &w.message), 0);
		assert_int_equal(w.reply.status, 0);
		assert_in_range(w.reply.id, 1, 300);
		assert_false(seen[w.reply.id]);
		seen[w.reply.id] = true;
	}
	raw_close(&w);
}

/* ---- Open files, and the end of sessions ---- */

static int open_file(struct fixture *f, struct rpc *r, uint64_t inode)
{
	Wire__OpenRequest q = WIRE__OPEN_REQUEST__INIT;

	q.inode = inode;
	q.max_extents = 10;
	return ask(f, r, WIRE__OP__OPEN, &q, NULL);
}

static int close_file(struct fixture *f, struct rpc *r, uint64_t inode)
{
	Wire__CloseRequest q = WIRE__CLOSE_REQUEST__INIT;

	q.inodes = &inode;
	q.n_inodes = 1;
	return ask(f, r, WIRE__OP__CLOSE, &q, NULL);
}

static void an_open_file_outlives_its_name_until_it_is_closed(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	struct attr a, other;

	assert_int_equal(create(f, r, 1, "open", FILE_MODE, true, &a), 0);
	assert_int_equal(create(f, r, 1, "shut", FILE_MODE, false, &other), 0);
	assert_int_equal(status(f)->sessions[0]->open_files, 1);
	assert_int_equal(unlink_name(f, r, 1, "open"), 0);
	assert_int_equal(unlink_name(f, r, 1, "shut"), 0);
	AWAIT(getattr(f, r, other.inode, NULL) == -ENOENT); /* the reaper has been at work */
	assert_int_equal(getattr(f, r, a.inode, NULL), 0);
	assert_int_equal(open_file(f, r, a.inode), 0);
	assert_int_equal(open_file(f, r, other.inode), -ENOENT);
	assert_int_equal(close_file(f, r, a.inode), 0);
	AWAIT(getattr(f, r, a.inode, NULL) == -ENOENT);
	rpc_close(r);
}

struct reclaiming {
	uint64_t opens[2];
	size_t count;
};

static int reclaim(void *context, struct rpc *r, struct connection *c, bool known)
{
	struct reclaiming *opens = context;
	Wire__ReclaimRequest q = WIRE__RECLAIM_REQUEST__INIT;
	struct rpc_call call = { .op = WIRE__OP__RECLAIM, .request = &q.base };
	struct arena arena;
	int n;

	q.opens = opens->opens;
	q.n_opens = opens->count;
	arena_init(&arena, 0);
	n = rpc_call_on(r, c, &call, &arena);
	arena_free(&arena);
	return n;
}

static void what_is_open_is_reclaimed_after_a_restart(void **state)
{
	struct fixture *f = *state;
	struct rpc_options options = {
		.servers = f->address, .timeout_ms = 20000, .hello = WIRE__HELLO_REQUEST__INIT, .restarted = reclaim
	};
	struct reclaiming opens = { .count = 1 };
	Wire__HelloReply *hello;
	struct attr kept, lost;
	struct rpc *r;

	options.hello.mount = true;
	options.hello.volume = "training";
	options.context = &opens;
	assert_int_equal(rpc_open(&options, &f->arena, &hello, &r, f->why, sizeof(f->why)), 0);
	assert_int_equal(create(f, r, 1, "kept", FILE_MODE, true, &kept), 0);
	assert_int_equal(create(f, r, 1, "lost", FILE_MODE, true, &lost), 0);
	assert_int_equal(unlink_name(f, r, 1, "kept"), 0);
	assert_int_equal(unlink_name(f, r, 1, "lost"), 0);
	opens.opens[0] = kept.inode;
	fixture_stop(f);
	fixture_start(f);
	/* Nothing is freed before we had the chance to say what we have open. */
	assert_int_equal(getattr(f, r, kept.inode, NULL), 0);
	AWAIT(getattr(f, r, lost.inode, NULL) == -ENOENT);
	assert_int_equal(getattr(f, r, kept.inode, NULL), 0);
	assert_int_equal(status(f)->sessions[0]->open_files, 1);
	rpc_close(r);
}

static uint64_t hello_with(struct fixture *f, uint64_t nonce)
{
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	Wire__HelloReply *reply;
	struct raw w;
	uint64_t session;

	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	q.nonce = nonce;
	raw_open(f, &w);
	assert_int_equal(raw_ask(&w, WIRE__OP__HELLO, 0, 0, &q), 0);
	reply = wire__hello_reply__unpack(&w.arena.allocator, w.reply.message_length, w.message);
	assert_non_null(reply);
	session = reply->session;
	raw_close(&w);
	return session;
}

static void a_hello_that_comes_again_begins_no_second_session(void **state)
{
	struct fixture *f = *state;
	uint64_t session = hello_with(f, 77);

	assert_int_equal(hello_with(f, 77), session);
	assert_int_not_equal(hello_with(f, 78), session);
	assert_int_not_equal(hello_with(f, 0), hello_with(f, 0));
}

static void goodbye_ends_the_session_and_frees_what_it_had_open(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false), *other = fixture_mount(f, "training", false);
	struct attr a;

	assert_int_equal(create(f, r, 1, "open", FILE_MODE, true, &a), 0);
	assert_int_equal(unlink_name(f, r, 1, "open"), 0);
	assert_int_equal(status(f)->n_sessions, 2);
	assert_int_equal(getattr(f, other, a.inode, NULL), 0);
	assert_int_equal(ask(f, r, WIRE__OP__GOODBYE, NULL, NULL), 0);
	assert_int_equal(status(f)->n_sessions, 1);
	AWAIT(getattr(f, other, a.inode, NULL) == -ENOENT);
	rpc_close(r);
	rpc_close(other);
}

static void a_silent_session_is_ended_and_its_mount_begins_anew(void **state)
{
	struct fixture *f = *state;
	struct rpc *r;
	uint64_t before, first = 0;

	fixture_stop(f);
	f->options.session_timeout_s = 1;
	fixture_start(f);
	r = fixture_mount(f, "training", false);
	before = rpc_session(r);
	assert_int_equal(alloc(f, r, 10, &first), 0);
	AWAIT(status(f)->n_sessions == 0);
	/* The next call finds the connection cut, says hello, and gets a new session. */
	assert_int_equal(getattr(f, r, 1, NULL), 0);
	assert_int_not_equal(rpc_session(r), before);
	assert_int_equal(f->restarts, 1);
	assert_false(f->known);
	/* The ids of the old one are void. */
	assert_int_equal(object_put(f, r, first, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 40), -ESTALE);
	rpc_close(r);
}

static void a_mount_that_was_killed_is_soon_forgotten(void **state)
{
	struct fixture *f = *state;
	struct rpc *killed, *alive;

	fixture_stop(f);
	f->options.abandoned_s = 1;
	fixture_start(f);
	killed = fixture_mount(f, "training", false);
	alive = fixture_mount(f, "training", false);
	assert_int_equal(status(f)->n_sessions, 2);
	rpc_close(killed); /* without a goodbye */
	AWAIT(status(f)->n_sessions == 1);
	assert_int_equal(status(f)->sessions[0]->session, rpc_session(alive));
	rpc_close(alive);
}

static void a_volume_in_use_is_not_deleted(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	Wire__VolumeNameRequest q = WIRE__VOLUME_NAME_REQUEST__INIT;

	q.name = "training";
	assert_int_equal(ask(f, f->admin, WIRE__OP__VOLUME_DELETE, &q, NULL), -EBUSY);
	assert_int_equal(ask(f, r, WIRE__OP__GOODBYE, NULL, NULL), 0);
	assert_int_equal(ask(f, f->admin, WIRE__OP__VOLUME_DELETE, &q, NULL), 0);
	rpc_close(r);
}

static void status_tells_who_has_mounted_what(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", true);
	Wire__StatusReply *s = status(f);

	assert_int_equal(s->n_sessions, 1);
	assert_string_equal(s->sessions[0]->volume, "training");
	assert_string_equal(s->sessions[0]->host, "here");
	assert_string_equal(s->sessions[0]->mount_point, "/mnt/training");
	assert_true(s->sessions[0]->read_only);
	assert_true(s->sessions[0]->last_contact_ns >= s->sessions[0]->since_ns - NS_PER_S);
	assert_true(s->store_total_bytes > 0 && s->metadata_bytes > 0 && s->batch > 0);
	assert_non_null(strstr(s->store, "dir:"));
	rpc_close(r);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(nothing_is_served_before_hello),
		WITH_SERVER(another_version_of_the_protocol_is_refused),
		WITH_SERVER(an_unknown_volume_is_refused_with_what_to_do),
		WITH_SERVER(a_mount_with_endless_names_is_refused),
		WITH_SERVER(administration_cannot_touch_files),
		WITH_SERVER(what_is_unknown_or_internal_is_refused),
		WITH_SERVER(a_mount_of_a_subdirectory_has_it_as_its_root),
		WITH_SERVER(a_read_only_mount_changes_nothing),
		WITH_SERVER(a_mutation_asked_for_again_is_answered_not_repeated),
		WITH_SERVER(many_requests_may_be_under_way_on_one_connection),
		WITH_SERVER(an_open_file_outlives_its_name_until_it_is_closed),
		WITH_SERVER(what_is_open_is_reclaimed_after_a_restart),
		WITH_SERVER(a_hello_that_comes_again_begins_no_second_session),
		WITH_SERVER(goodbye_ends_the_session_and_frees_what_it_had_open),
		WITH_SERVER(a_silent_session_is_ended_and_its_mount_begins_anew),
		WITH_SERVER(a_mount_that_was_killed_is_soon_forgotten),
		WITH_SERVER(a_volume_in_use_is_not_deleted),
		WITH_SERVER(status_tells_who_has_mounted_what),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
