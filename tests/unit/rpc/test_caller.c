/* The caller against a server made of a few lines that misbehaves on demand. */
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

#define CONNECTIONS 256

/* What the fake does with the next `trouble_count` requests that are not HELLO. */
enum trouble {
	NONE,
	CUT_BEFORE_ANSWER,
	CUT_IN_MID_FRAME,
	GARBAGE,
	OVERSIZED_LENGTH,
	ANSWER_TWICE,
	WRONG_ID,
	SILENCE,
	BULK_TOO_SHORT,
	MESSAGE_GARBAGE,
};

struct fake {
	char folder[40], address[120];
	int listening;
	pthread_t acceptor;
	pthread_t threads[CONNECTIONS];
	struct connection *connections[CONNECTIONS];
	_Atomic uint64_t instance, session; /* session: what HELLO answers to a mount */
	_Atomic int count, hellos, mutations, asked, refuse_hello;
	_Atomic bool ignore_hello;
	_Atomic int trouble, trouble_count;
	_Atomic uint64_t last_number, last_answered_below;
	_Atomic bool hold; /* GETATTR is answered only after this is false */
	_Atomic int held;
	pthread_mutex_t lock;
	uint64_t done[4096]; /* numbers applied, to notice a repetition */
	int done_count, repeated;
};

struct one {
	struct fake *fake;
	struct connection *c;
};

static bool answer_hello(struct fake *fake, struct connection *c, struct frame *f, const uint8_t *message)
{
	Wire__HelloRequest *q = wire__hello_request__unpack(NULL, f->message_length, message);
	Wire__HelloReply reply = WIRE__HELLO_REPLY__INIT;
	Wire__ErrorReply error = WIRE__ERROR_REPLY__INIT;
	int r;

	fake->hellos++;
	assert_non_null(q);
	if (fake->ignore_hello) {
		wire__hello_request__free_unpacked(q, NULL);
		return true;
	}
	f->flags = FRAME_REPLY;
	f->clock = (uint64_t)clock_wall_ns();
	if (fake->refuse_hello) {
		f->status = (uint32_t)fake->refuse_hello;
		error.text = "no volume of that name";
		connection_send(c, f, &error.base, NULL, 0);
		wire__hello_request__free_unpacked(q, NULL);
		return true;
	}
	reply.version = 1;
	reply.instance = fake->instance;
	reply.session = q->mount ? (uint64_t)fake->session : 0;
	r = connection_send(c, f, &reply.base, NULL, 0);
	wire__hello_request__free_unpacked(q, NULL);
	return r == 0;
}

static void apply(struct fake *fake, const struct frame *f)
{
	if (!f->number)
		return;
	pthread_mutex_lock(&fake->lock);
	fake->last_number = f->number;
	fake->last_answered_below = f->clock;
	for (int i = 0; i < fake->done_count; i++)
		if (fake->done[i] == f->number) {
			fake->repeated++;
			pthread_mutex_unlock(&fake->lock);
			return;
		}
	fake->mutations++;
	fake->done[fake->done_count++] = f->number;
	pthread_mutex_unlock(&fake->lock);
}

static bool misbehave(struct connection *c, struct frame *f, enum trouble trouble)
{
	uint8_t bytes[FRAME_HEADER + 10];
	int fd = connection_fd(c);
	Wire__EntryReply reply = WIRE__ENTRY_REPLY__INIT;

	memset(bytes, 0xee, sizeof(bytes));
	f->flags = FRAME_REPLY;
	f->clock = 0;
	switch (trouble) {
	case CUT_IN_MID_FRAME:
		f->message_length = 100;
		f->bulk_length = 0;
		frame_pack(f, bytes);
		send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		return false;
	case GARBAGE: send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL); return true;
	case OVERSIZED_LENGTH:
		f->message_length = 0xffffffff;
		frame_pack(f, bytes);
		send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		return true;
	case ANSWER_TWICE:
		connection_send(c, f, &reply.base, NULL, 0);
		connection_send(c, f, &reply.base, NULL, 0);
		return true;
	case WRONG_ID:
		f->id += 1000;
		connection_send(c, f, &reply.base, NULL, 0);
		return true;
	case BULK_TOO_SHORT: connection_send(c, f, NULL, &(struct iovec){ bytes, 3 }, 1); return true;
	case MESSAGE_GARBAGE: connection_send_packed(c, f, bytes, sizeof(bytes)); return true;
	case SILENCE: return true;
	default: return false;
	}
}

static bool answer(struct fake *fake, struct connection *c, struct frame *f)
{
	Wire__EntryReply reply = WIRE__ENTRY_REPLY__INIT;
	uint8_t bulk[64];
	uint32_t bulk_in = f->bulk_length;

	for (uint32_t left = bulk_in; left;) {
		struct iovec part = { bulk, left < sizeof(bulk) ? left : sizeof(bulk) };

		if (connection_receive_bulk(c, &part, 1))
			return false;
		left -= part.iov_len;
	}
	fake->asked++;
	apply(fake, f);
	if (fake->trouble_count > 0) {
		fake->trouble_count--;
		return misbehave(c, f, (enum trouble)(int)fake->trouble);
	}
	if (f->op == WIRE__OP__GETATTR) {
		fake->held++;
		while (fake->hold)
			usleep(1000);
		fake->held--;
	}
	f->flags = FRAME_REPLY;
	f->clock = (uint64_t)(clock_wall_ns() + 3600 * NS_PER_S);
	reply.valid_ms = 77;
	if (f->op == WIRE__OP__OBJECT_GET) {
		memset(bulk, 'g', sizeof(bulk));
		return connection_send(c, f, NULL, &(struct iovec){ bulk, sizeof(bulk) }, 1) == 0;
	}
	if (f->op == WIRE__OP__RMDIR) {
		Wire__ErrorReply error = WIRE__ERROR_REPLY__INIT;

		error.text = "it is not empty";
		f->status = ENOTEMPTY;
		return connection_send(c, f, &error.base, NULL, 0) == 0;
	}
	return connection_send(c, f, &reply.base, NULL, 0) == 0;
}

static void *serve_one(void *arg)
{
	struct one one = *(struct one *)arg;
	struct arena arena;
	struct frame f;
	const uint8_t *message;
	bool go_on = true;

	free(arg);
	arena_init(&arena, 1 << 20);
	while (go_on && !connection_receive(one.c, &f, &arena, &message)) {
		go_on = f.op == WIRE__OP__HELLO ? answer_hello(one.fake, one.c, &f, message) : answer(one.fake, one.c, &f);
		arena_reset(&arena);
	}
	connection_shutdown(one.c);
	arena_free(&arena);
	return NULL;
}

static void *accept_all(void *arg)
{
	struct fake *fake = arg;
	int fd;

	while ((fd = accept(fake->listening, NULL, NULL)) >= 0) {
		struct one *one = malloc(sizeof(*one));
		int k = fake->count;

		assert_true(k < CONNECTIONS);
		connection_new(fd, &fake->connections[k]);
		*one = (struct one){ fake, fake->connections[k] };
		pthread_create(&fake->threads[k], NULL, serve_one, one);
		fake->count = k + 1;
	}
	return NULL;
}

static void fake_start(struct fake *fake)
{
	char error[200];

	assert_int_equal(address_listen(fake->address, &fake->listening, error, sizeof(error)), 0);
	assert_int_equal(pthread_create(&fake->acceptor, NULL, accept_all, fake), 0);
}

/* As kill -9: nothing more is answered. */
static void fake_stop(struct fake *fake)
{
	shutdown(fake->listening, SHUT_RDWR);
	pthread_join(fake->acceptor, NULL);
	close(fake->listening);
	unlink(fake->address + 5);
	for (int i = 0; i < fake->count; i++)
		connection_shutdown(fake->connections[i]);
	for (int i = 0; i < fake->count; i++) {
		pthread_join(fake->threads[i], NULL);
		connection_free(fake->connections[i]);
	}
	fake->count = 0;
}

static int fake_setup(void **state)
{
	struct fake *fake = calloc(1, sizeof(*fake));

	snprintf(fake->folder, sizeof(fake->folder), "/tmp/epochfs-caller-XXXXXX");
	assert_non_null(mkdtemp(fake->folder));
	snprintf(fake->address, sizeof(fake->address), "unix:%s/s", fake->folder);
	pthread_mutex_init(&fake->lock, NULL);
	fake->instance = 1;
	fake->session = 100;
	fake_start(fake);
	*state = fake;
	return 0;
}

static int fake_teardown(void **state)
{
	struct fake *fake = *state;

	fake_stop(fake);
	rmdir(fake->folder);
	free(fake);
	return 0;
}

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

static void make_trouble(struct fake *fake, enum trouble trouble, int count)
{
	fake->trouble = trouble;
	fake->trouble_count = count;
}

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
	char silent[60], error[100];
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
