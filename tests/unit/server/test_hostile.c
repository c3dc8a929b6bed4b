/* Peers that send what they should not, or do not take what they asked for. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "fixture.h"

static int dial(struct fixture *f)
{
	int fd;

	assert_int_equal(address_connect(f->address, 5000, &fd, f->why, sizeof(f->why)), 0);
	return fd;
}

/* The server's end is closed: reading gives its last words, then the end. */
static void await_end(int fd)
{
	struct timeval limit = { .tv_sec = 20 };
	char sink[4096];
	ssize_t n;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	while ((n = recv(fd, sink, sizeof(sink), 0)) > 0)
		;
	assert_true(n == 0 || errno == ECONNRESET);
	close(fd);
}

static void still_serves(struct fixture *f) { assert_true(status(f)->batch > 0); }

static void frame_bytes(uint8_t out[FRAME_HEADER], uint16_t op, uint32_t message, uint32_t bulk)
{
	frame_pack(&(struct frame){ .op = op, .message_length = message, .bulk_length = bulk, .id = 1 }, out);
}

static void noise_ends_the_connection_and_nothing_else(void **state)
{
	struct fixture *f = *state;
	uint32_t x = 12345;

	for (int i = 0; i < 50; i++) {
		uint8_t bytes[600];
		int fd = dial(f);

		for (size_t k = 0; k < sizeof(bytes); k++)
			bytes[k] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
		send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		shutdown(fd, SHUT_WR);
		await_end(fd);
	}
	still_serves(f);
}

static void frames_cut_off_anywhere_are_dropped(void **state)
{
	struct fixture *f = *state;
	uint8_t bytes[FRAME_HEADER + 60] = { 0 };

	frame_bytes(bytes, WIRE__OP__HELLO, 60, 0);
	for (size_t cut = 0; cut < sizeof(bytes); cut += 7) {
		int fd = dial(f);

		assert_int_equal(send(fd, bytes, cut, MSG_NOSIGNAL), cut);
		shutdown(fd, SHUT_WR);
		await_end(fd);
	}
	still_serves(f);
}

static void impossible_lengths_are_refused_at_once(void **state)
{
	struct fixture *f = *state;
	static const struct {
		uint32_t message, bulk;
	} sizes[] = { { UINT32_MAX, 0 }, { FRAME_MESSAGE_MAX + 1, 0 }, { 0, UINT32_MAX } };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		uint8_t bytes[FRAME_HEADER];
		int fd = dial(f);

		frame_bytes(bytes, WIRE__OP__HELLO, sizes[i].message, sizes[i].bulk);
		assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
		await_end(fd);
	}
	still_serves(f);
}

static struct connection *greeted(struct fixture *f, struct arena *arena)
{
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	struct frame frame = { .op = WIRE__OP__HELLO, .id = 1 };
	const uint8_t *message;
	struct connection *c;

	assert_int_equal(connection_new(dial(f), &c), 0);
	connection_set_timeout(c, 20000);
	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	assert_int_equal(connection_send(c, &frame, &q.base, NULL, 0), 0);
	assert_int_equal(connection_receive(c, &frame, arena, &message), 0);
	assert_int_equal(frame.status, 0);
	return c;
}

/* Every op with a message of noise: an answer or an end, never a crash. */
static void every_request_survives_a_message_of_noise(void **state)
{
	struct fixture *f = *state;
	struct arena arena;
	uint32_t x = 99;

	arena_init(&arena, 0);
	struct connection *c = greeted(f, &arena);
	for (int round = 0; round < 40; round++)
		for (uint16_t op = WIRE__OP__HELLO; op <= WIRE__OP__STATUS; op++) {
			struct frame frame = { .op = op, .id = 5, .number = (uint64_t)round + 1 };
			uint8_t bytes[40];
			const uint8_t *message;

			if (op == WIRE__OP__GOODBYE)
				continue;
			for (size_t k = 0; k < sizeof(bytes); k++)
				bytes[k] = (uint8_t)((x = x * 1664525 + 1013904223) >> (round % 2 ? 24 : 29));
			struct iovec bulk = { bytes, sizeof(bytes) };
			struct frame with_bulk = frame;
			int r = round % 5 ? connection_send_packed(c, &frame, bytes, (size_t)round % sizeof(bytes))
					  : connection_send(c, &with_bulk, NULL, &bulk, 1);
			assert_int_equal(r, 0);
			assert_int_equal(connection_receive(c, &frame, &arena, &message), 0);
			assert_int_equal(frame.id, 5);
			assert_int_equal(connection_skip_bulk(c, frame.bulk_length), 0);
			arena_reset(&arena);
		}
	connection_free(c);
	arena_free(&arena);
	still_serves(f);
}

/* It asks and asks and never reads: it is cut off, and others are served meanwhile. */
static void a_peer_that_does_not_take_its_answers_is_cut_off(void **state)
{
	struct fixture *f = *state;
	Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;
	struct rpc *r = fixture_mount(f, "training", false);
	struct arena arena;
	int sent = 0, n = 0;

	arena_init(&arena, 0);
	struct connection *c = greeted(f, &arena);
	connection_set_timeout(c, 20000);
	q.inode = 1;
	for (int i = 0; i < 200000 && !n; i++, sent++) {
		struct frame frame = { .op = WIRE__OP__SETATTR, .id = (uint64_t)i };

		n = connection_send(c, &frame, &q.base, NULL, 0);
		if (i % 1000 == 0)
			assert_int_equal(create(f, r, 1, (char[]){ 'f', (char)('0' + i / 1000 % 10), (char)('0' + i / 10000), 0 },
						S_IFREG | 0644, false, NULL),
					 0);
	}
	assert_int_equal(n, -ECONNRESET);
	connection_free(c);
	arena_free(&arena);
	still_serves(f);
	rpc_close(r);
}

static void a_peer_that_leaves_before_its_answer_harms_nobody(void **state)
{
	struct fixture *f = *state;
	struct arena arena;

	arena_init(&arena, 0);
	for (int i = 0; i < 100; i++) {
		struct connection *c = greeted(f, &arena);
		Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;

		q.inode = 1;
		for (int k = 0; k < 5; k++) {
			struct frame frame = {
				.op = WIRE__OP__SETATTR, .id = (uint64_t)k, .number = (uint64_t)k + 1, .clock = 1
			};
			assert_int_equal(connection_send(c, &frame, &q.base, NULL, 0), 0);
		}
		connection_free(c);
		arena_reset(&arena);
	}
	arena_free(&arena);
	still_serves(f);
}

static void one_connection_too_many_is_told_to_wait(void **state)
{
	struct fixture *f = *state;
	struct arena arena;
	struct rpc *r;

	fixture_stop(f);
	f->options.connections_max = 2;
	fixture_start(f);
	arena_init(&arena, 0);
	still_serves(f); /* the administrator has one */
	struct connection *c = greeted(f, &arena);
	assert_null(fixture_mount(f, "training", false));
	assert_string_equal(f->why, "the server has all the connections it can serve; try again later");
	connection_free(c);
	AWAIT((r = fixture_mount(f, "training", false)) != NULL);
	rpc_close(r);
	arena_free(&arena);
}

static void one_mount_does_not_get_all_connections(void **state)
{
	struct fixture *f = *state;
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	struct raw greedy[3], other;
	uint64_t session;

	fixture_stop(f);
	f->options.connections_max = 8;
	fixture_start(f);
	for (int i = 0; i < 3; i++) {
		raw_open(f, &greedy[i]);
		session = raw_hello(&greedy[i], i ? session : 0);
	}
	raw_open(f, &other);
	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	q.session = session;
	assert_int_equal(raw_ask(&other, WIRE__OP__HELLO, 0, 0, &q), EAGAIN);
	assert_string_equal(raw_why(&other), "this mount has its share of the server's connections; try again later");
	raw_close(&other);
	raw_open(f, &other);
	assert_int_not_equal(raw_hello(&other, 0), session);
	raw_close(&other);
	for (int i = 0; i < 3; i++)
		raw_close(&greedy[i]);
}

#define GREEDY_CONNECTIONS 32
#define GREEDY_WINDOW 64

/* Many requests under way at a time, for as long as it is let. */
struct greedy {
	struct raw talk;
	pthread_t thread;
	_Atomic bool *over;
	_Atomic unsigned *answered;
};

static void *greedy_run(void *context)
{
	struct greedy *g = context;
	Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;
	unsigned open = 0;

	q.inode = 1;
	q.valid = SET_MTIME_NOW;
	while (!atomic_load(g->over) || open) {
		for (; !atomic_load(g->over) && open < GREEDY_WINDOW; open++)
			raw_send(&g->talk, WIRE__OP__SETATTR, 0, 0, &q);
		if (open && raw_receive(&g->talk, WIRE__OP__SETATTR) != 0)
			break;
		open--;
		atomic_fetch_add(g->answered, 1);
	}
	return NULL;
}

/* 2,000 requests of one mount are under way: those of another wait for some hundred of them, not for all. */
static void thousands_of_requests_do_not_hold_up_others(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	struct greedy *all = calloc(GREEDY_CONNECTIONS, sizeof(*all));
	_Atomic bool over = false;
	_Atomic unsigned answered = 0;
	uint64_t session = 0;

	assert_non_null(all);
	for (int i = 0; i < GREEDY_CONNECTIONS; i++) {
		all[i].over = &over;
		all[i].answered = &answered;
		raw_open(f, &all[i].talk);
		session = raw_hello(&all[i].talk, session);
	}
	for (int i = 0; i < GREEDY_CONNECTIONS; i++)
		assert_int_equal(pthread_create(&all[i].thread, NULL, greedy_run, &all[i]), 0);
	AWAIT(atomic_load(&answered) > 4 * GREEDY_CONNECTIONS * GREEDY_WINDOW);
	for (int i = 0; i < 10; i++) {
		unsigned before = atomic_load(&answered);

		assert_int_equal(create(f, r, 1, (char[]){ 'f', (char)('0' + i), 0 }, S_IFREG | 0644, false, NULL), 0);
		assert_true(atomic_load(&answered) - before < GREEDY_CONNECTIONS * GREEDY_WINDOW / 2);
	}
	atomic_store(&over, true);
	for (int i = 0; i < GREEDY_CONNECTIONS; i++) {
		pthread_join(all[i].thread, NULL);
		raw_close(&all[i].talk);
	}
	free(all);
	rpc_close(r);
}

/* Only this thread becomes another user: the raw system call knows no processes. */
static void another_user_is_told_that_it_may_not_enter(void **state)
{
	struct fixture *f = *state;
	struct rpc *r;

	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(f->folder, 0755), 0);
	assert_int_equal(chmod(f->data, 0755), 0);
	assert_int_equal(syscall(SYS_setresuid, -1, 65534, -1), 0);
	r = fixture_mount(f, "training", false);
	int error = errno;
	assert_int_equal(syscall(SYS_setresuid, -1, 0, -1), 0);
	assert_null(r);
	assert_int_equal(error, EACCES);
	assert_string_equal(f->why, "only root and the user the server runs as may use its socket");
	still_serves(f);
}

static void a_server_that_stops_answers_what_was_asked(void **state)
{
	struct fixture *f = *state;
	struct arena arena;
	const uint8_t *message;

	arena_init(&arena, 0);
	struct connection *c = greeted(f, &arena);
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;
	struct frame frame = { .op = WIRE__OP__CREATE, .id = 3, .number = 1, .clock = 1 };

	q.parent = 1;
	q.name = (ProtobufCBinaryData){ 4, (uint8_t *)"last" };
	q.mode = S_IFREG | 0600;
	assert_int_equal(connection_send(c, &frame, &q.base, NULL, 0), 0);
	fixture_stop(f);
	assert_int_equal(connection_receive(c, &frame, &arena, &message), 0);
	assert_int_equal(frame.status, 0);
	assert_int_equal(connection_receive(c, &frame, &arena, &message), -ECONNRESET);
	connection_free(c);
	arena_free(&arena);
}

/* Sends one end of a pipe along with a STATUS and closes it here; the other end. */
static int descriptor_send(struct raw *w)
{
	Wire__Empty q = WIRE__EMPTY__INIT;
	struct frame frame = { .op = WIRE__OP__STATUS, .id = 7 };
	int pipes[2];

	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(connection_send_descriptor(w->c, &frame, &q.base, NULL, 0, pipes[1]), 0);
	close(pipes[1]);
	return pipes[0];
}

/* Nobody has the other end any more. */
static void await_closed(int fd)
{
	struct pollfd p = { .fd = fd };

	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_true(p.revents & POLLHUP);
	close(fd);
}

static void descriptors_that_nobody_asked_for_are_not_kept(void **state)
{
	Wire__Empty q = WIRE__EMPTY__INIT;
	struct fixture *f = *state;
	struct raw w;
	int stranger, mount;

	raw_open(f, &w);
	stranger = descriptor_send(&w);
	await_closed(stranger); /* while the connection is there */
	raw_close(&w);
	raw_open(f, &w);
	raw_hello(&w, 0);
	mount = descriptor_send(&w);
	raw_receive(&w, WIRE__OP__STATUS);
	raw_ask(&w, WIRE__OP__STATUS, 0, 0, &q); /* with the next request it goes */
	await_closed(mount);
	raw_close(&w);
	still_serves(f);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(noise_ends_the_connection_and_nothing_else),
		WITH_SERVER(frames_cut_off_anywhere_are_dropped),
		WITH_SERVER(impossible_lengths_are_refused_at_once),
		WITH_SERVER(every_request_survives_a_message_of_noise),
		WITH_SERVER(a_peer_that_does_not_take_its_answers_is_cut_off),
		WITH_SERVER(a_peer_that_leaves_before_its_answer_harms_nobody),
		WITH_SERVER(one_connection_too_many_is_told_to_wait),
		WITH_SERVER(one_mount_does_not_get_all_connections),
		WITH_SERVER(thousands_of_requests_do_not_hold_up_others),
		WITH_SERVER(another_user_is_told_that_it_may_not_enter),
		WITH_SERVER(a_server_that_stops_answers_what_was_asked),
		WITH_SERVER(descriptors_that_nobody_asked_for_are_not_kept),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
