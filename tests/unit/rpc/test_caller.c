/* The caller against a server that misbehaves on demand (fake.h). */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "rpc/caller.h"
#include "rpc/link.h"
#include "fake.h"

/* ---- Callers ---- */

struct told {
	_Atomic int count, known, fail, calls_while_told;
	struct fake *fake;
};

static int call(struct rpc *r, uint16_t op);

static int restarted(void *context, struct rpc *r, struct connection *c, bool known)
{
	struct told *told = context;
	Wire__ReclaimRequest q = WIRE__RECLAIM_REQUEST__INIT;
	struct rpc_call reclaim = { .op = WIRE__OP__RECLAIM, .request = &q.base };
	struct arena arena;
	int n;

	told->count++;
	told->known = known;
	if (told->fail > 0) {
		told->fail--;
		return -EIO;
	}
	arena_init(&arena, 0);
	n = rpc_call_on(r, c, &reclaim, &arena);
	arena_free(&arena);
	return n;
}

static struct rpc *opened(struct fake *fake, bool mount, int64_t timeout_ms, struct told *told)
{
	struct rpc_options options = { .servers = fake->address, .timeout_ms = timeout_ms, .hello = WIRE__HELLO_REQUEST__INIT };
	Wire__HelloReply *hello;
	struct arena arena;
	struct rpc *r;
	char error[300] = "";

	options.hello.mount = mount;
	options.hello.volume = "training";
	if (told) {
		options.restarted = restarted;
		options.context = told;
	}
	arena_init(&arena, 0);
	assert_int_equal(rpc_open(&options, &arena, &hello, &r, error, sizeof(error)), 0);
	assert_int_equal(hello->instance, fake->instance);
	arena_free(&arena);
	return r;
}

static int call_full(struct rpc *r, uint16_t op, uint32_t *valid_ms, char *why, size_t why_size)
{
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;
	ProtobufCMessage *reply = NULL;
	struct rpc_call c = { .op = op, .request = &q.base, .reply = &reply, .why = why, .why_size = why_size };
	struct arena arena;
	int n;

	q.inode = 5;
	arena_init(&arena, 1 << 20);
	n = rpc_call(r, &c, &arena);
	if (!n && valid_ms)
		*valid_ms = ((Wire__EntryReply *)reply)->valid_ms;
	arena_free(&arena);
	return n;
}

static int call(struct rpc *r, uint16_t op) { return call_full(r, op, NULL, NULL, 0); }

/* ---- Tests ---- */

static void a_call_is_answered_and_the_connection_used_again(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);
	uint32_t valid_ms = 0;

	for (int i = 0; i < 20; i++)
		assert_int_equal(call_full(r, WIRE__OP__GETATTR, &valid_ms, NULL, 0), 0);
	assert_int_equal(valid_ms, 77);
	assert_int_equal(fake->hellos, 1);
	assert_int_equal(rpc_session(r), 100);
	rpc_close(r);
}

static void an_error_comes_with_its_sentence(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);
	char why[100];

	assert_int_equal(call_full(r, WIRE__OP__RMDIR, NULL, why, sizeof(why)), -ENOTEMPTY);
	assert_string_equal(why, "it is not empty");
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	assert_int_equal(fake->hellos, 1);
	rpc_close(r);
}

static void bulk_bytes_land_in_the_callers_buffers(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	char got[64] = "", big[50000] = "";
	struct iovec in[2] = { { got, 10 }, { got + 10, 54 } }, out = { big, sizeof(big) };
	struct rpc_call get = { .op = WIRE__OP__OBJECT_GET, .request = &q.base, .bulk_in = in, .bulk_in_count = 2 };
	struct rpc_call put = { .op = WIRE__OP__OBJECT_PUT, .request = &q.base, .bulk_out = &out, .bulk_out_count = 1 };
	struct arena arena;

	arena_init(&arena, 0);
	assert_int_equal(rpc_call(r, &put, &arena), 0);
	assert_int_equal(rpc_call(r, &get, &arena), 0);
	for (size_t i = 0; i < sizeof(got); i++)
		assert_int_equal(got[i], 'g');
	make_trouble(fake, BULK_TOO_SHORT, 1);
	assert_int_equal(rpc_call(r, &get, &arena), -EBADMSG);
	assert_int_equal(rpc_call(r, &get, &arena), 0);
	arena_free(&arena);
	rpc_close(r);
}

static void a_reply_without_the_descriptor_is_ebadmsg(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	int descriptor = -77;
	struct rpc_call open = { .op = WIRE__OP__OBJECT_OPEN, .request = &q.base, .descriptor = &descriptor };
	struct rpc_call refused = { .op = WIRE__OP__RMDIR, .request = &q.base, .descriptor = &descriptor };
	struct arena arena;

	arena_init(&arena, 0);
	assert_int_equal(rpc_call(r, &open, &arena), -EBADMSG);
	assert_int_equal(rpc_call(r, &refused, &arena), -ENOTEMPTY);
	assert_int_equal(descriptor, -77);
	assert_int_equal(fake->hellos, 1); /* the connection is as good as before */
	arena_free(&arena);
	rpc_close(r);
}

static void whatever_goes_wrong_a_mutation_is_done_once(void **state)
{
	static const enum trouble troubles[] = { CUT_BEFORE_ANSWER, CUT_IN_MID_FRAME, GARBAGE, OVERSIZED_LENGTH, WRONG_ID };
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 20000, NULL);
	int n = sizeof(troubles) / sizeof(*troubles);

	for (int i = 0; i < n; i++) {
		make_trouble(fake, troubles[i], 2);
		assert_int_equal(call(r, WIRE__OP__CREATE), 0);
	}
	assert_int_equal(fake->mutations, n);
	assert_int_equal(fake->repeated, 2 * n);
	assert_int_equal(fake->done[n - 1], n);
	rpc_close(r);
}

static void an_answer_that_came_twice_is_not_taken_for_the_next_one(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);
	uint32_t valid_ms = 0;

	make_trouble(fake, ANSWER_TWICE, 1);
	assert_int_equal(call_full(r, WIRE__OP__GETATTR, &valid_ms, NULL, 0), 0);
	assert_int_equal(valid_ms, 0);
	assert_int_equal(call_full(r, WIRE__OP__GETATTR, &valid_ms, NULL, 0), 0);
	assert_int_equal(valid_ms, 77);
	rpc_close(r);
}

static void a_reply_that_cannot_be_decoded_is_ebadmsg(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);

	make_trouble(fake, MESSAGE_GARBAGE, 1);
	assert_int_equal(call(r, WIRE__OP__GETATTR), -EBADMSG);
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	rpc_close(r);
}

static void a_silent_server_is_eio_after_the_timeout(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 1000, NULL);
	int64_t begin = clock_steady_ns();

	make_trouble(fake, SILENCE, 1000);
	assert_int_equal(call(r, WIRE__OP__GETATTR), -EIO);
	assert_true(clock_steady_ns() - begin >= 990 * NS_PER_MS);
	make_trouble(fake, NONE, 0);
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	rpc_close(r);
}

static void a_piece_of_work_waits_for_a_server_that_is_away_once(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 500, NULL);
	int64_t began;

	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	fake_stop(fake);
	rpc_work_begin();
	assert_false(rpc_work_waited(r));
	began = clock_steady_ns();
	for (int i = 0; i < 5; i++)
		assert_int_equal(call(r, WIRE__OP__GETATTR), -EIO);
	assert_in_range(clock_steady_ns() - began, 450 * NS_PER_MS, 900 * NS_PER_MS);
	assert_true(rpc_work_waited(r));
	rpc_work_begin(); /* the next one waits for itself */
	assert_false(rpc_work_waited(r));
	assert_int_equal(call(r, WIRE__OP__GETATTR), -EIO);
	assert_true(clock_steady_ns() - began >= 950 * NS_PER_MS);
	/* Once it was heard of, a call has its time again, and so has who waits for others. */
	fake_start(fake);
	rpc_work_begin();
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	assert_false(rpc_work_waited(r));
	fake_stop(fake);
	began = clock_steady_ns();
	assert_int_equal(call(r, WIRE__OP__GETATTR), -EIO);
	assert_true(clock_steady_ns() - began >= 450 * NS_PER_MS);
	fake_start(fake);
	rpc_close(r);
}

static void an_administrators_mutation_is_not_repeated_blindly(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, false, 10000, NULL);
	char why[200] = "";

	make_trouble(fake, CUT_BEFORE_ANSWER, 1);
	assert_int_equal(call_full(r, WIRE__OP__VOLUME_DELETE, NULL, why, sizeof(why)), -EIO);
	assert_non_null(strstr(why, "look whether it was done"));
	assert_int_equal(fake->asked, 1);
	assert_int_equal(fake->last_number, 0);
	rpc_close(r);
}

/* A server that did not hear the first one would take the mount for alive. */
static void a_goodbye_whose_answer_was_lost_is_said_again(void **state)
{
	struct fake *fake = *state;
	struct told told = { .fake = fake };
	struct rpc *r = opened(fake, true, 10000, &told);

	make_trouble(fake, CUT_BEFORE_ANSWER, 1);
	fake->session = 200; /* it was heard: the next hello begins another session */
	assert_int_equal(call(r, WIRE__OP__GOODBYE), 0);
	assert_int_equal(told.count, 1);
	assert_int_equal(fake->asked, 3); /* with the RECLAIM */
	rpc_close(r);
}

static int call_with_limits(struct rpc *r, int64_t timeout_ms, int64_t unreached_ms)
{
	Wire__Empty q = WIRE__EMPTY__INIT;
	struct rpc_call c = {
		.op = WIRE__OP__STATFS, .request = &q.base, .timeout_ms = timeout_ms, .unreached_ms = unreached_ms
	};
	struct arena arena;
	int n;

	rpc_work_begin();
	arena_init(&arena, 0);
	n = rpc_call(r, &c, &arena);
	arena_free(&arena);
	return n;
}

static void a_server_that_is_gone_may_be_given_less_time_than_a_slow_one(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 60000, NULL);
	int64_t began = clock_steady_ns();

	make_trouble(fake, SILENCE, 1000);
	assert_int_equal(call_with_limits(r, 1000, 100), -EIO);
	assert_true(clock_steady_ns() - began >= 990 * NS_PER_MS);
	fake_stop(fake);
	began = clock_steady_ns();
	assert_int_equal(call_with_limits(r, 60000, 100), -EIO);
	assert_in_range(clock_steady_ns() - began, 90 * NS_PER_MS, 30 * NS_PER_S);
	make_trouble(fake, NONE, 0);
	fake_start(fake);
	assert_int_equal(call_with_limits(r, 60000, 10000), 0);
	rpc_close(r);
}

struct async {
	struct rpc *r;
	uint16_t op;
	_Atomic int result;
	_Atomic bool ended;
	pthread_t thread;
};

static void *async_run(void *arg)
{
	struct async *a = arg;

	a->result = call(a->r, a->op);
	a->ended = true;
	return NULL;
}

static void async_start(struct async *a) { assert_int_equal(pthread_create(&a->thread, NULL, async_run, a), 0); }
static int async_join(struct async *a)
{
	pthread_join(a->thread, NULL);
	return a->result;
}

/* Others may be at it all the time, and be the ones who find nobody. */
static void a_server_that_is_gone_is_not_waited_for_longer_because_others_try(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 60000, NULL);
	struct async other = { .r = r, .op = WIRE__OP__GETATTR };
	int64_t began;

	fake_stop(fake);
	assert_int_equal(call_with_limits(r, 60000, 100), -EIO);
	fake->ignore_hello = true;
	fake->hellos = 0;
	fake_start(fake);
	async_start(&other);
	while (!fake->hellos)
		usleep(1000);
	began = clock_steady_ns();
	assert_int_equal(call_with_limits(r, 60000, 100), -EIO);
	assert_in_range(clock_steady_ns() - began, 90 * NS_PER_MS, 30 * NS_PER_S);
	rpc_abort(r);
	assert_int_equal(async_join(&other), -EIO);
	rpc_close(r);
}

/* As on a network that was broken while it was sent. */
static void a_hello_that_was_lost_is_said_again_before_the_calls_run_out_of_time(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 60000, NULL);
	struct async other = { .r = r, .op = WIRE__OP__GETATTR };

	fake->hellos = 0;
	fake->ignore_hello = true;
	make_trouble(fake, CUT_BEFORE_ANSWER, 1);
	async_start(&other);
	while (!fake->hellos)
		usleep(1000);
	fake->ignore_hello = false;
	assert_int_equal(async_join(&other), 0);
	assert_true(fake->hellos > 1);
	rpc_close(r);
}

/* By the time it is heard, the mount may be gone. */
static void a_goodbye_to_a_silent_server_is_said_once(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 8000, NULL); /* another call would be made again after 7 */

	make_trouble(fake, SILENCE, 1000);
	assert_int_equal(call(r, WIRE__OP__GOODBYE), -EIO);
	assert_int_equal(fake->asked, 1);
	assert_int_equal(fake->hellos, 1);
	rpc_close(r);
}

static void a_server_that_comes_back_is_found_and_told(void **state)
{
	struct fake *fake = *state;
	struct told told = { .fake = fake };
	struct rpc *r = opened(fake, true, 30000, &told);
	struct async calls[8];

	assert_int_equal(call(r, WIRE__OP__CREATE), 0);
	fake_stop(fake);
	for (int i = 0; i < 8; i++) {
		calls[i] = (struct async){ .r = r, .op = i % 2 ? WIRE__OP__GETATTR : WIRE__OP__CREATE };
		async_start(&calls[i]);
	}
	fake->instance = 2;
	told.fail = 2; /* the first tries to take up the session fail */
	fake_start(fake);
	for (int i = 0; i < 8; i++)
		assert_int_equal(async_join(&calls[i]), 0);
	assert_int_equal(told.count, 3);
	assert_int_equal(told.known, 1);
	assert_int_equal(fake->mutations, 5);
	rpc_close(r);
}

static void a_session_that_ended_is_replaced_and_the_unanswered_fail(void **state)
{
	struct fake *fake = *state;
	struct told told = { .fake = fake };
	struct rpc *r = opened(fake, true, 30000, &told);

	assert_int_equal(call(r, WIRE__OP__CREATE), 0);
	/* The answer is lost and the session is gone when we come back: was it done? Nobody knows. */
	fake->session = 200;
	make_trouble(fake, CUT_BEFORE_ANSWER, 1);
	assert_int_equal(call(r, WIRE__OP__CREATE), -EIO);
	assert_int_equal(told.count, 1);
	assert_int_equal(told.known, 0);
	assert_int_equal(rpc_session(r), 200);
	assert_int_equal(call(r, WIRE__OP__CREATE), 0);
	/* What changes nothing goes on as if nothing had happened. */
	fake->session = 300;
	make_trouble(fake, CUT_BEFORE_ANSWER, 1);
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	assert_int_equal(told.count, 2);
	assert_int_equal(rpc_session(r), 300);
	rpc_close(r);
}

static void a_lost_session_stays_lost_until_it_was_told(void **state)
{
	struct fake *fake = *state;
	struct told told = { .fake = fake, .fail = 1 };
	struct rpc *r = opened(fake, true, 30000, &told);

	fake->session = 200;
	make_trouble(fake, CUT_BEFORE_ANSWER, 1);
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	assert_int_equal(told.count, 2);
	assert_int_equal(told.known, 0); /* the second time, too, although the server knows session 200 */
	rpc_close(r);
}

/* Or more: whoever knocks goes on while we sleep. */
static void await(_Atomic int *what, int value)
{
	while (*what < value)
		usleep(1000);
}

static void answered_below_is_the_lowest_number_in_flight(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 20000, NULL);
	struct async slow = { .r = r, .op = WIRE__OP__SETATTR };

	assert_int_equal(call(r, WIRE__OP__CREATE), 0); /* 1 */
	assert_int_equal(fake->last_answered_below, 1);
	make_trouble(fake, SILENCE, 1);
	async_start(&slow); /* 2, held up */
	await(&fake->asked, 2);
	for (uint64_t n = 3; n < 10; n++) {
		assert_int_equal(call(r, WIRE__OP__CREATE), 0);
		assert_int_equal(fake->last_number, n);
		assert_int_equal(fake->last_answered_below, 2);
	}
	rpc_abort(r);
	assert_int_equal(async_join(&slow), -EIO);
	assert_int_equal(call(r, WIRE__OP__CREATE), -EIO);
	rpc_close(r);
}

static void abort_ends_calls_that_wait_for_an_answer_or_a_server(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 60000, NULL);
	struct async waiting = { .r = r, .op = WIRE__OP__GETATTR }, knocking = { .r = r, .op = WIRE__OP__LOOKUP };
	int64_t begin = clock_steady_ns();

	fake->hold = true;
	async_start(&waiting);
	await(&fake->held, 1);
	fake->refuse_hello = EAGAIN;
	async_start(&knocking);
	await(&fake->hellos, 3);
	rpc_abort(r);
	assert_int_equal(async_join(&waiting), -EIO);
	assert_int_equal(async_join(&knocking), -EIO);
	assert_true(clock_steady_ns() - begin < 30 * NS_PER_S);
	fake->hold = false;
	rpc_close(r);
}

static void a_refused_hello_is_told_in_the_servers_words(void **state)
{
	struct fake *fake = *state;
	struct rpc_options options = { .servers = fake->address, .timeout_ms = 1000, .hello = WIRE__HELLO_REQUEST__INIT };
	Wire__HelloReply *hello;
	struct arena arena;
	struct rpc *r;
	char error[300] = "";

	arena_init(&arena, 0);
	fake->refuse_hello = ENOENT;
	assert_int_equal(rpc_open(&options, &arena, &hello, &r, error, sizeof(error)), -ENOENT);
	assert_string_equal(error, "no volume of that name");
	options.servers = "unix:/nonexistent/s,,unix:/nonexistent/t";
	assert_int_equal(rpc_open(&options, &arena, &hello, &r, error, sizeof(error)), -ENOENT);
	assert_non_null(strstr(error, "cannot reach the server at unix:/nonexistent/t"));
	options.servers = "";
	assert_int_equal(rpc_open(&options, &arena, &hello, &r, error, sizeof(error)), -EINVAL);
	arena_free(&arena);
}

static void a_hello_that_is_not_answered_is_not_waited_for_longer_than_said(void **state)
{
	struct fake *fake = *state;
	struct rpc_options options = {
		.servers = fake->address, .timeout_ms = 60000, .open_timeout_ms = 300, .hello = WIRE__HELLO_REQUEST__INIT
	};
	int64_t begin = clock_steady_ns();
	Wire__HelloReply *hello;
	struct arena arena;
	struct rpc *r;
	char error[300] = "";

	arena_init(&arena, 0);
	fake->ignore_hello = true;
	assert_int_equal(rpc_open(&options, &arena, &hello, &r, error, sizeof(error)), -ETIMEDOUT);
	assert_true(clock_steady_ns() - begin < 30 * NS_PER_S);
	assert_non_null(strstr(error, "did not answer within 1 s"));
	options.may_be_away = true;
	assert_int_equal(rpc_open(&options, &arena, &hello, &r, error, sizeof(error)), 0);
	assert_null(hello);
	rpc_close(r);
	arena_free(&arena);
}

/* The first is not there; the second accepts, as the kernel does for a process that is stopped, and says nothing. */
static void every_address_is_tried(void **state)
{
	struct fake *fake = *state, there = *fake;
	char silent[80], error[100];
	struct rpc *r;
	int fd;

	snprintf(silent, sizeof(silent), "unix:%s/silent", fake->folder);
	assert_int_equal(address_listen(silent, &fd, error, sizeof(error)), 0);
	snprintf(there.address, sizeof(there.address), "unix:/none,%s,unix:%s/s", silent, fake->folder);
	r = opened(&there, true, 6000, NULL);
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	r->address = 0;
	links_drop_all(r);
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	rpc_close(r);
	close(fd);
}

static void the_servers_clock_is_learned(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 10000, NULL);
	int64_t ahead;

	ahead = rpc_server_clock_ns(r) - clock_wall_ns();
	assert_true(ahead < NS_PER_S); /* HELLO said the same time as ours */
	assert_int_equal(call(r, WIRE__OP__GETATTR), 0);
	ahead = rpc_server_clock_ns(r) - clock_wall_ns();
	assert_true(ahead > 3590 * NS_PER_S && ahead <= 3601 * NS_PER_S);
	rpc_close(r);
}

static void *hammer(void *arg)
{
	struct async *a = arg;

	for (int i = 0; i < 200 && !a->result; i++)
		a->result = call(a->r, i % 2 ? WIRE__OP__GETATTR : WIRE__OP__CREATE);
	return NULL;
}

static void many_threads_share_the_pool_while_connections_are_cut(void **state)
{
	struct fake *fake = *state;
	struct rpc *r = opened(fake, true, 60000, NULL);
	struct async calls[8];

	for (int i = 0; i < 8; i++) {
		calls[i] = (struct async){ .r = r };
		assert_int_equal(pthread_create(&calls[i].thread, NULL, hammer, &calls[i]), 0);
	}
	for (int i = 1; i <= 20; i++) {
		while (fake->asked < i * 50)
			usleep(500);
		make_trouble(fake, i % 2 ? CUT_BEFORE_ANSWER : CUT_IN_MID_FRAME, 1);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(calls[i].thread, NULL);
		assert_int_equal(calls[i].result, 0);
	}
	assert_int_equal(fake->mutations, 800);
	rpc_close(r);
}

#define WITH_FAKE(test) cmocka_unit_test_setup_teardown(test, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FAKE(a_call_is_answered_and_the_connection_used_again),
		WITH_FAKE(an_error_comes_with_its_sentence),
		WITH_FAKE(bulk_bytes_land_in_the_callers_buffers),
		WITH_FAKE(a_reply_without_the_descriptor_is_ebadmsg),
		WITH_FAKE(whatever_goes_wrong_a_mutation_is_done_once),
		WITH_FAKE(an_answer_that_came_twice_is_not_taken_for_the_next_one),
		WITH_FAKE(a_reply_that_cannot_be_decoded_is_ebadmsg),
		WITH_FAKE(a_silent_server_is_eio_after_the_timeout),
		WITH_FAKE(a_piece_of_work_waits_for_a_server_that_is_away_once),
		WITH_FAKE(an_administrators_mutation_is_not_repeated_blindly),
		WITH_FAKE(a_goodbye_whose_answer_was_lost_is_said_again),
		WITH_FAKE(a_server_that_is_gone_may_be_given_less_time_than_a_slow_one),
		WITH_FAKE(a_server_that_is_gone_is_not_waited_for_longer_because_others_try),
		WITH_FAKE(a_hello_that_was_lost_is_said_again_before_the_calls_run_out_of_time),
		WITH_FAKE(a_goodbye_to_a_silent_server_is_said_once),
		WITH_FAKE(a_server_that_comes_back_is_found_and_told),
		WITH_FAKE(a_session_that_ended_is_replaced_and_the_unanswered_fail),
		WITH_FAKE(a_lost_session_stays_lost_until_it_was_told),
		WITH_FAKE(answered_below_is_the_lowest_number_in_flight),
		WITH_FAKE(abort_ends_calls_that_wait_for_an_answer_or_a_server),
		WITH_FAKE(a_refused_hello_is_told_in_the_servers_words),
		WITH_FAKE(a_hello_that_is_not_answered_is_not_waited_for_longer_than_said),
		WITH_FAKE(every_address_is_tried),
		WITH_FAKE(the_servers_clock_is_learned),
		WITH_FAKE(many_threads_share_the_pool_while_connections_are_cut),
	};
	log_set_level(LOG_LEVEL_OFF);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
