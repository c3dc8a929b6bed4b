/* Locks as mounts ask for them: numbers and repetitions, waits, the end of a session, restarts. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "fixture.h"
#include "meta/locktable.h"

#define DONE ((int)WIRE__LOCK_STATUS__LOCK_DONE)
#define BUSY ((int)WIRE__LOCK_STATUS__LOCK_BUSY)
#define QUEUED ((int)WIRE__LOCK_STATUS__LOCK_QUEUED)
#define LATER ((int)WIRE__LOCK_STATUS__LOCK_LATER)
#define DEADLOCK ((int)WIRE__LOCK_STATUS__LOCK_DEADLOCK)

static uint64_t number; /* grows over all lanes and mounts */

struct asked {
	Wire__LockRequest request;
	Wire__Lock lock;
};

static const void *request_of(struct asked *a, Wire__LockAction action, uint64_t owner, enum lock_type type, uint64_t start,
			      uint64_t end)
{
	wire__lock_request__init(&a->request);
	wire__lock__init(&a->lock);
	a->request.action = action;
	a->request.lock = &a->lock;
	a->request.number = ++number;
	a->lock.inode = 5;
	a->lock.owner = owner;
	a->lock.handle = 1;
	a->lock.type = type;
	a->lock.start = start;
	a->lock.end = end;
	a->lock.pid = 77;
	return &a->request;
}

static int send_lock(struct fixture *f, struct rpc *r, const void *request)
{
	Wire__LockReply *reply;
	int n = ask(f, r, WIRE__OP__LOCK, request, &reply);

	return n ? n : (int)reply->status;
}

static int set(struct fixture *f, struct rpc *r, enum lock_type type, uint64_t start, uint64_t end, uint64_t wait)
{
	struct asked a;

	request_of(&a, WIRE__LOCK_ACTION__LOCK_SET, 1, type, start, end);
	a.request.wait = wait;
	return send_lock(f, r, &a.request);
}

static int act(struct fixture *f, struct rpc *r, Wire__LockAction action, uint64_t wait)
{
	struct asked a;

	request_of(&a, action, 1, LOCK_EXCLUSIVE, 0, 9);
	a.request.wait = wait;
	return send_lock(f, r, &a.request);
}

/* The first of what was granted; 0: nothing was, for three seconds. */
static uint64_t granted(struct fixture *f, struct rpc *r)
{
	Wire__LockWaitReply *reply;

	assert_int_equal(ask(f, r, WIRE__OP__LOCK_WAIT, NULL, &reply), 0);
	return reply->n_granted ? reply->granted[0] : 0;
}

static void two_mounts_exclude_each_other_and_are_told_who_has_it(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false), *two = fixture_mount(f, "training", true);
	Wire__LockReply *reply;
	struct asked a;

	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(f, two, LOCK_SHARED, 9, 9, 0), BUSY);
	assert_int_equal(set(f, two, LOCK_SHARED, 10, LOCK_END_MAX, 0), DONE);
	assert_int_equal(ask(f, two, WIRE__OP__LOCK, request_of(&a, WIRE__LOCK_ACTION__LOCK_TEST, 1, LOCK_SHARED, 0, 99), &reply),
			 0);
	assert_int_equal(reply->status, BUSY);
	assert_int_equal(reply->found->start, 0);
	assert_int_equal(reply->found->end, 9);
	assert_int_equal(reply->found->type, LOCK_EXCLUSIVE);
	assert_int_equal(reply->found->pid, 0);
	assert_int_equal(ask(f, one, WIRE__OP__LOCK, request_of(&a, WIRE__LOCK_ACTION__LOCK_TEST, 2, LOCK_SHARED, 0, 5), &reply),
			 0);
	assert_int_equal(reply->found->pid, 77);
	assert_int_equal(act(f, one, WIRE__LOCK_ACTION__LOCK_DROP_OWNER, 0), DONE);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(act(f, two, WIRE__LOCK_ACTION__LOCK_DROP_HANDLE, 0), DONE);
	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, LOCK_END_MAX, 0), DONE);
	rpc_close(one);
	rpc_close(two);
}

static void a_request_that_comes_again_is_answered_and_an_old_one_does_nothing(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false), *two = fixture_mount(f, "training", false);
	struct asked lock, release;

	request_of(&lock, WIRE__LOCK_ACTION__LOCK_SET, 1, LOCK_EXCLUSIVE, 0, 9);
	assert_int_equal(send_lock(f, one, &lock.request), DONE);
	request_of(&release, WIRE__LOCK_ACTION__LOCK_SET, 1, LOCK_NONE, 0, 9);
	assert_int_equal(send_lock(f, one, &release.request), DONE);
	assert_int_equal(send_lock(f, one, &release.request), DONE);
	assert_int_equal(send_lock(f, one, &lock.request), -EBADMSG);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(f, two, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	/* The release that was long under way must not release what was locked since. */
	assert_int_equal(send_lock(f, one, &release.request), -EBADMSG);
	assert_int_equal(set(f, two, LOCK_SHARED, 0, 0, 0), BUSY);
	/* Other lanes have numbers of their own. */
	release.request.lane = 15;
	assert_int_equal(send_lock(f, one, &release.request), DONE);
	/* An answer is remembered as it was. */
	request_of(&lock, WIRE__LOCK_ACTION__LOCK_SET, 1, LOCK_EXCLUSIVE, 0, 9);
	assert_int_equal(send_lock(f, one, &lock.request), DONE);
	assert_int_equal(act(f, two, WIRE__LOCK_ACTION__LOCK_CANCEL, 3), BUSY);
	lock.request.number = number;
	assert_int_equal(send_lock(f, two, &lock.request), BUSY);
	rpc_close(one);
	rpc_close(two);
}

static void nonsense_is_refused(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false);
	struct asked a;

	assert_int_equal(set(f, one, LOCK_SHARED, 5, 4, 0), -EINVAL);
	assert_string_equal(f->why, "a lock cannot be on the bytes 5 to 4");
	assert_int_equal(set(f, one, LOCK_SHARED, 5, UINT64_MAX, 0), -EINVAL);
	assert_int_equal(set(f, one, 3, 0, 9, 0), -EINVAL);
	request_of(&a, WIRE__LOCK_ACTION__LOCK_SET, 1, LOCK_SHARED, 0, 9);
	a.lock.flock = true;
	assert_int_equal(send_lock(f, one, &a.request), -EINVAL);
	a.lock.flock = false;
	a.request.lane = 16;
	assert_int_equal(send_lock(f, one, &a.request), -EINVAL);
	a.request.lane = 0;
	a.request.number = 0;
	assert_int_equal(send_lock(f, one, &a.request), -EINVAL);
	a.request.number = 1;
	a.lock.inode = 1ull << 40;
	assert_int_equal(send_lock(f, one, &a.request), -EINVAL);
	a.request.lock = NULL;
	assert_int_equal(send_lock(f, one, &a.request), -EINVAL);
	request_of(&a, (Wire__LockAction)99, 1, LOCK_SHARED, 0, 9);
	assert_int_equal(send_lock(f, one, &a.request), -ENOSYS);
	rpc_close(one);
}

static void there_are_no_more_locks_than_the_limit(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false);

	for (unsigned i = 0; i < LOCKS_PER_SESSION; i++) {
		assert_int_equal(set(f, one, LOCK_SHARED, 2ull * i, 2ull * i, 0), DONE);
		arena_reset(&f->arena);
	}
	assert_int_equal(set(f, one, LOCK_SHARED, 1ull << 40, 1ull << 41, 0), -ENOLCK);
	assert_non_null(strstr(f->why, "65536"));
	rpc_close(one);
}

static void who_waits_is_told_until_it_takes_the_lock(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false), *two = fixture_mount(f, "training", false);

	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 9, 41), QUEUED);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 9, 41), QUEUED);
	assert_int_equal(granted(f, two), 0);
	assert_int_equal(set(f, one, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(granted(f, two), 41);
	assert_int_equal(granted(f, two), 41);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 9, 41), DONE);
	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, 9, 7), QUEUED);
	assert_int_equal(act(f, one, WIRE__LOCK_ACTION__LOCK_CANCEL, 7), BUSY);
	assert_int_equal(set(f, two, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(granted(f, one), 0);
	rpc_close(one);
	rpc_close(two);
}

static void a_circle_over_two_mounts_is_refused(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false), *two = fixture_mount(f, "training", false);

	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, 0, 0), DONE);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 1, 1, 0), DONE);
	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 1, 1, 1), QUEUED);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 0, 1), DEADLOCK);
	rpc_close(one);
	rpc_close(two);
}

struct listener {
	struct fixture *f;
	struct rpc *r;
	uint64_t got;
};

static void *listen_for_grants(void *context)
{
	struct listener *l = context;
	Wire__Empty none = WIRE__EMPTY__INIT;
	ProtobufCMessage *reply;
	struct rpc_call call = { .op = WIRE__OP__LOCK_WAIT, .request = &none.base, .reply = &reply };
	struct arena arena;

	arena_init(&arena, 0);
	while (!l->got && !rpc_call(l->r, &call, &arena))
		if (((Wire__LockWaitReply *)reply)->n_granted)
			l->got = ((Wire__LockWaitReply *)reply)->granted[0];
	arena_free(&arena);
	return NULL;
}

static void a_mount_that_says_goodbye_leaves_its_locks_to_who_waits(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false), *two = fixture_mount(f, "training", false);
	struct listener l = { .f = f, .r = two };
	pthread_t thread;

	assert_int_equal(set(f, one, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(set(f, two, LOCK_EXCLUSIVE, 0, 9, 5), QUEUED);
	assert_int_equal(pthread_create(&thread, NULL, listen_for_grants, &l), 0);
	assert_int_equal(ask(f, one, WIRE__OP__GOODBYE, NULL, NULL), 0);
	pthread_join(thread, NULL);
	assert_int_equal(l.got, 5);
	rpc_close(one);
	rpc_close(two);
}

/* ---- Restarts ---- */

/* With hand-made connections: what the callers of the fixture do after a restart is no business of theirs. */
static int raw_set(struct raw *w, enum lock_type type, uint64_t start, uint64_t end, uint64_t wait)
{
	struct asked a;
	int r;

	request_of(&a, WIRE__LOCK_ACTION__LOCK_SET, 1, type, start, end);
	a.request.wait = wait;
	r = raw_ask(w, WIRE__OP__LOCK, 0, 0, &a.request);
	return r ? -r : (int)wire__lock_reply__unpack(&w->arena.allocator, w->reply.message_length, w->message)->status;
}

/* One lock; how many were lost. */
static size_t raw_reclaim(struct raw *w, enum lock_type type, uint64_t start, uint64_t end)
{
	Wire__LockReclaimRequest q = WIRE__LOCK_RECLAIM_REQUEST__INIT;
	struct asked a;
	Wire__Lock *locks[1] = { &a.lock };

	request_of(&a, WIRE__LOCK_ACTION__LOCK_SET, 1, type, start, end);
	q.locks = locks;
	q.n_locks = 1;
	assert_int_equal(raw_ask(w, WIRE__OP__LOCK_RECLAIM, 0, 0, &q), 0);
	return wire__lock_reclaim_reply__unpack(&w->arena.allocator, w->reply.message_length, w->message)->n_lost;
}

static void raw_settle(struct raw *w)
{
	Wire__ReclaimRequest q = WIRE__RECLAIM_REQUEST__INIT;

	assert_int_equal(raw_ask(w, WIRE__OP__RECLAIM, 0, 0, &q), 0);
}

struct pair {
	struct raw one, two;
	uint64_t first, second;
};

/* Two mounts, and a server that has just come back. */
static void pair_restarted(struct fixture *f, struct pair *p)
{
	raw_open(f, &p->one);
	raw_open(f, &p->two);
	p->first = raw_hello(&p->one, 0);
	p->second = raw_hello(&p->two, 0);
	assert_int_equal(raw_set(&p->one, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	raw_close(&p->one);
	raw_close(&p->two);
	fixture_stop(f);
	fixture_start(f);
	raw_open(f, &p->one);
	raw_open(f, &p->two);
	assert_int_equal(raw_hello(&p->one, p->first), p->first);
	assert_int_equal(raw_hello(&p->two, p->second), p->second);
}

static void after_a_restart_nothing_is_granted_before_all_mounts_said_what_they_hold(void **state)
{
	struct fixture *f = *state;
	struct pair p;

	pair_restarted(f, &p);
	raw_settle(&p.two);
	assert_int_equal(raw_set(&p.two, LOCK_SHARED, 5, 5, 0), LATER);
	assert_int_equal(raw_set(&p.two, LOCK_SHARED, 50, 59, 8), QUEUED);
	assert_int_equal(raw_reclaim(&p.one, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(raw_reclaim(&p.one, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(raw_set(&p.two, LOCK_SHARED, 5, 5, 0), LATER);
	raw_settle(&p.one);
	assert_int_equal(raw_set(&p.two, LOCK_SHARED, 5, 5, 0), BUSY);
	assert_int_equal(raw_ask(&p.two, WIRE__OP__LOCK_WAIT, 0, 0, NULL), 0);
	assert_int_equal(
		wire__lock_wait_reply__unpack(&p.two.arena.allocator, p.two.reply.message_length, p.two.message)->granted[0], 8);
	/* A reclaim that was long under way brings nothing back. */
	assert_int_equal(raw_set(&p.one, LOCK_NONE, 0, 9, 0), DONE);
	assert_int_equal(raw_reclaim(&p.one, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(raw_set(&p.two, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	raw_close(&p.one);
	raw_close(&p.two);
}

static void a_mount_that_does_not_come_back_in_time_may_lose_its_locks(void **state)
{
	struct fixture *f = *state;
	struct pair p;

	f->options.lease_ms = 300;
	pair_restarted(f, &p);
	raw_settle(&p.two);
	AWAIT(raw_set(&p.two, LOCK_SHARED, 5, 5, 0) == DONE);
	assert_int_equal(raw_reclaim(&p.one, LOCK_EXCLUSIVE, 0, 9), 1);
	raw_settle(&p.one);
	assert_int_equal(raw_set(&p.one, LOCK_EXCLUSIVE, 0, 9, 0), BUSY);
	raw_close(&p.one);
	raw_close(&p.two);
}

static void a_session_that_ended_meanwhile_gets_back_what_is_free(void **state)
{
	struct fixture *f = *state;
	struct raw one, two;
	uint64_t first;

	raw_open(f, &one);
	raw_open(f, &two);
	first = raw_hello(&one, 0);
	raw_hello(&two, 0);
	assert_int_equal(raw_set(&one, LOCK_EXCLUSIVE, 0, 9, 0), DONE);
	assert_int_equal(raw_ask(&one, WIRE__OP__GOODBYE, 0, 0, NULL), 0);
	raw_close(&one);
	assert_int_equal(raw_set(&two, LOCK_SHARED, 5, 5, 0), DONE);
	raw_open(f, &one);
	assert_int_not_equal(raw_hello(&one, first), first);
	assert_int_equal(raw_reclaim(&one, LOCK_EXCLUSIVE, 0, 9), 1);
	assert_int_equal(raw_reclaim(&one, LOCK_EXCLUSIVE, 10, 19), 0);
	raw_settle(&one);
	assert_int_equal(raw_set(&two, LOCK_SHARED, 12, 12, 0), BUSY);
	raw_close(&one);
	raw_close(&two);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
		TEST(two_mounts_exclude_each_other_and_are_told_who_has_it),
		TEST(a_request_that_comes_again_is_answered_and_an_old_one_does_nothing),
		TEST(nonsense_is_refused),
		TEST(there_are_no_more_locks_than_the_limit),
		TEST(who_waits_is_told_until_it_takes_the_lock),
		TEST(a_circle_over_two_mounts_is_refused),
		TEST(a_mount_that_says_goodbye_leaves_its_locks_to_who_waits),
		TEST(after_a_restart_nothing_is_granted_before_all_mounts_said_what_they_hold),
		TEST(a_mount_that_does_not_come_back_in_time_may_lose_its_locks),
		TEST(a_session_that_ended_meanwhile_gets_back_what_is_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
