#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../temporary.h"
#include "base/clock.h"
#include "rpc/caller.h"
#include "fake.h"

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

void fake_start(struct fake *fake)
{
	char error[200];

	assert_int_equal(address_listen(fake->address, &fake->listening, error, sizeof(error)), 0);
	assert_int_equal(pthread_create(&fake->acceptor, NULL, accept_all, fake), 0);
}

void fake_stop(struct fake *fake)
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

int fake_setup(void **state)
{
	struct fake *fake = calloc(1, sizeof(*fake));

	temporary_template(fake->folder, sizeof(fake->folder), "caller");
	assert_non_null(mkdtemp(fake->folder));
	snprintf(fake->address, sizeof(fake->address), "unix:%s/s", fake->folder);
	pthread_mutex_init(&fake->lock, NULL);
	fake->instance = 1;
	fake->session = 100;
	fake_start(fake);
	*state = fake;
	return 0;
}

int fake_teardown(void **state)
{
	struct fake *fake = *state;

	fake_stop(fake);
	rmdir(fake->folder);
	free(fake);
	return 0;
}

void make_trouble(struct fake *fake, enum trouble trouble, int count)
{
	fake->trouble = trouble;
	fake->trouble_count = count;
}
