#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "epochfs.pb-c.h"
#include "rpc/connection.h"

struct pair {
	struct connection *a, *b;
	struct arena arena;
};

static int pair_setup(void **state)
{
	struct pair *p = calloc(1, sizeof(*p));
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	assert_int_equal(connection_new(fd[0], &p->a), 0);
	assert_int_equal(connection_new(fd[1], &p->b), 0);
	connection_set_timeout(p->a, 20000);
	connection_set_timeout(p->b, 20000);
	arena_init(&p->arena, 16 << 20);
	*state = p;
	return 0;
}

static int pair_teardown(void **state)
{
	struct pair *p = *state;

	connection_free(p->a);
	connection_free(p->b);
	arena_free(&p->arena);
	free(p);
	return 0;
}

static Wire__BytesReply bytes_of(uint8_t *data, size_t n)
{
	Wire__BytesReply m = WIRE__BYTES_REPLY__INIT;

	m.data.data = data;
	m.data.len = n;
	return m;
}

static void *noise(size_t n, unsigned seed)
{
	uint8_t *p = malloc(n ? n : 1);

	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
	return p;
}

/* ---- sending from a thread of its own, so that nothing depends on socket buffers ---- */

struct sending {
	struct connection *c;
	size_t message, bulk;
	int bulk_parts, frames, result;
	pthread_t thread;
};

static void *sending_run(void *arg)
{
	struct sending *s = arg;

	for (int i = 0; i < s->frames && !s->result; i++) {
		uint8_t *m = noise(s->message, 1), *b = noise(s->bulk, 2);
		Wire__BytesReply message = bytes_of(m, s->message);
		struct frame f = { .op = 5, .id = (uint64_t)i + 1 };
		struct iovec *parts = calloc((size_t)s->bulk_parts + 1, sizeof(*parts));

		for (int k = 0; k < s->bulk_parts; k++) {
			size_t from = s->bulk * (size_t)k / (size_t)s->bulk_parts,
			       to = s->bulk * ((size_t)k + 1) / (size_t)s->bulk_parts;
			parts[k] = (struct iovec){ b + from, to - from };
		}
		s->result = connection_send(s->c, &f, s->message ? &message.base : NULL, parts, s->bulk_parts);
		free(parts);
		free(m);
		free(b);
	}
	return NULL;
}

static void sending_start(struct sending *s) { assert_int_equal(pthread_create(&s->thread, NULL, sending_run, s), 0); }
static void sending_join(struct sending *s)
{
	pthread_join(s->thread, NULL);
	assert_int_equal(s->result, 0);
}

static void expect_frame(struct pair *p, uint64_t id, size_t message_size, size_t bulk_size)
{
	struct frame f;
	const uint8_t *message;

	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), 0);
	assert_int_equal(f.id, id);
	assert_int_equal(f.bulk_length, bulk_size);
	if (message_size) {
		uint8_t *want = noise(message_size, 1);
		Wire__BytesReply *m = wire__bytes_reply__unpack(NULL, f.message_length, message);

		assert_non_null(m);
		assert_int_equal(m->data.len, message_size);
		assert_memory_equal(m->data.data, want, message_size);
		wire__bytes_reply__free_unpacked(m, NULL);
		free(want);
	} else {
		assert_int_equal(f.message_length, 0);
	}
	if (bulk_size) {
		uint8_t *want = noise(bulk_size, 2), *got = calloc(1, bulk_size);
		size_t third = bulk_size / 3;
		struct iovec parts[4] = {
			{ got, third }, { got + third, 0 }, { got + third, third }, { got + 2 * third, bulk_size - 2 * third }
		};

		assert_int_equal(connection_receive_bulk(p->b, parts, 4), 0);
		assert_memory_equal(got, want, bulk_size);
		free(want);
		free(got);
	}
}

static void frames_of_every_size_arrive_whole(void **state)
{
	static const size_t sizes[] = { 0, 1, 100, 4095, 4097, 16 << 10, (16 << 10) + 1, 300000, 3 << 20 };
	struct pair *p = *state;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
			struct sending s = {
				.c = p->a, .message = sizes[i], .bulk = sizes[k], .bulk_parts = sizes[k] ? 5 : 0, .frames = 1
			};

			sending_start(&s);
			expect_frame(p, 1, sizes[i], sizes[k]);
			sending_join(&s);
			arena_reset(&p->arena);
		}
}

static void a_thousand_and_more_parts_are_sent_in_order(void **state)
{
	struct pair *p = *state;
	struct sending s = { .c = p->a, .message = 10, .bulk = 1 << 20, .bulk_parts = 3000, .frames = 1 };

	sending_start(&s);
	expect_frame(p, 1, 10, 1 << 20);
	sending_join(&s);
}

static void pipelined_frames_are_told_apart(void **state)
{
	struct pair *p = *state;
	struct sending s = { .c = p->a, .message = 700, .bulk = 1500, .bulk_parts = 2, .frames = 500 };

	sending_start(&s);
	for (int i = 0; i < 500; i++) {
		if (i % 3) {
			expect_frame(p, (uint64_t)i + 1, 700, 1500);
		} else {
			struct frame f;
			const uint8_t *message;

			assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), 0);
			assert_int_equal(connection_skip_bulk(p->b, f.bulk_length), 0);
		}
		arena_reset(&p->arena);
	}
	sending_join(&s);
}

static void a_file_is_sent_as_bulk(void **state)
{
	struct pair *p = *state;
	int file = memfd_create("object", MFD_CLOEXEC);
	uint8_t *all = noise(200000, 9), *got = malloc(50000);
	struct frame f = { .op = 81, .id = 3, .flags = FRAME_REPLY };
	const uint8_t *message;
	struct iovec into = { got, 50000 };

	assert_int_equal(write(file, all, 200000), 200000);
	assert_int_equal(connection_send_file(p->a, &f, NULL, file, 1234, 50000), 0);
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), 0);
	assert_int_equal(f.bulk_length, 50000);
	assert_int_equal(connection_receive_bulk(p->b, &into, 1), 0);
	assert_memory_equal(got, all + 1234, 50000);
	close(file);
	free(all);
	free(got);
}

static int receive_header(struct pair *p)
{
	struct frame f;
	const uint8_t *message;

	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), 0);
	return (int)f.id;
}

static void a_descriptor_comes_with_its_frame_to_who_wants_it(void **state)
{
	struct pair *p = *state;
	struct frame f = { .op = 82, .id = 3, .flags = FRAME_REPLY };
	int file = memfd_create("object", MFD_CLOEXEC), got;
	char text[6] = "";

	assert_int_equal(write(file, "bytes", 5), 5);
	connection_want_descriptor(p->b);
	assert_int_equal(connection_send_descriptor(p->a, &f, NULL, NULL, 0, file), 0);
	assert_int_equal(receive_header(p), 3);
	got = connection_take_descriptor(p->b);
	assert_true(got >= 0 && got != file);
	assert_true(fcntl(got, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(pread(got, text, 5, 0), 5);
	assert_string_equal(text, "bytes");
	close(got);
	/* Nobody wants the next: it goes nowhere. */
	assert_int_equal(connection_take_descriptor(p->b), -EBADF);
	assert_int_equal(connection_send_descriptor(p->a, &f, NULL, NULL, 0, file), 0);
	assert_int_equal(receive_header(p), 3);
	connection_want_descriptor(p->b);
	assert_int_equal(connection_take_descriptor(p->b), -EBADF);
	/* One that nobody takes is closed with the connection. */
	connection_want_descriptor(p->b);
	assert_int_equal(connection_send_descriptor(p->a, &f, NULL, NULL, 0, file), 0);
	assert_int_equal(receive_header(p), 3);
	close(file);
}

static int descriptors_open(void)
{
	int count = 0;

	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void more_than_one_descriptor_is_none(void **state)
{
	struct pair *p = *state;
	uint8_t header[FRAME_HEADER];
	struct frame f = { .op = 82, .id = 3, .flags = FRAME_REPLY };
	struct iovec part = { header, FRAME_HEADER };
	int file = memfd_create("object", MFD_CLOEXEC), before;

	frame_pack(&f, header);
	for (int count = 2; count <= 9; count += 7) {
		union {
			char bytes[CMSG_SPACE(9 * sizeof(int))];
			struct cmsghdr align;
		} control = { 0 };
		struct msghdr m = { .msg_iov = &part,
				    .msg_iovlen = 1,
				    .msg_control = &control,
				    .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
		struct cmsghdr *head = CMSG_FIRSTHDR(&m);

		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(count * sizeof(int));
		for (int k = 0; k < count; k++)
			memcpy(CMSG_DATA(head) + k * sizeof(int), &file, sizeof(int));
		before = descriptors_open();
		connection_want_descriptor(p->b);
		assert_int_equal(sendmsg(connection_fd(p->a), &m, 0), FRAME_HEADER);
		assert_int_equal(receive_header(p), 3);
		assert_int_equal(connection_take_descriptor(p->b), -EBADMSG);
		assert_int_equal(descriptors_open(), before);
	}
	close(file);
}

static void a_file_that_is_too_short_cuts_the_connection(void **state)
{
	struct pair *p = *state;
	int file = memfd_create("object", MFD_CLOEXEC);
	uint8_t got[5000];
	struct frame f = { .op = 81, .id = 3, .flags = FRAME_REPLY };
	const uint8_t *message;
	struct iovec into = { got, sizeof(got) };

	assert_int_equal(ftruncate(file, 1000), 0);
	assert_int_equal(connection_send_file(p->a, &f, NULL, file, 0, 5000), -EIO);
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), 0);
	assert_int_equal(connection_receive_bulk(p->b, &into, 1), -ECONNRESET);
	close(file);
}

static void a_peer_that_leaves_in_mid_frame_is_noticed(void **state)
{
	struct pair *p = *state;
	struct frame f = { .op = 5, .message_length = 100, .bulk_length = 1000 };
	uint8_t bytes[FRAME_HEADER + 100] = { 0 };
	const uint8_t *message;

	frame_pack(&f, bytes);
	for (size_t cut = 0; cut < sizeof(bytes); cut += 20) {
		int fd[2];
		struct connection *c;

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
		assert_int_equal(connection_new(fd[0], &c), 0);
		assert_int_equal(write(fd[1], bytes, cut), cut);
		close(fd[1]);
		assert_int_equal(connection_receive(c, &f, &p->arena, &message), -ECONNRESET);
		connection_free(c);
	}
}

static void oversized_lengths_are_refused_before_memory_is_taken(void **state)
{
	struct pair *p = *state;
	struct frame f = { .op = 5, .message_length = FRAME_MESSAGE_MAX + 1 };
	uint8_t bytes[FRAME_HEADER];
	const uint8_t *message;

	frame_pack(&f, bytes);
	assert_int_equal(write(connection_fd(p->a), bytes, sizeof(bytes)), sizeof(bytes));
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), -EBADMSG);
	assert_int_equal(p->arena.taken, 0);
}

static void a_message_beyond_the_arena_is_enomem(void **state)
{
	struct pair *p = *state;
	struct frame f = { .op = 5, .message_length = 1 << 20 };
	uint8_t bytes[FRAME_HEADER];
	struct arena tight;
	const uint8_t *message;

	arena_init(&tight, 64 << 10);
	frame_pack(&f, bytes);
	assert_int_equal(write(connection_fd(p->a), bytes, sizeof(bytes)), sizeof(bytes));
	assert_int_equal(connection_receive(p->b, &f, &tight, &message), -ENOMEM);
	arena_free(&tight);
}

static void silence_is_eagain_and_half_a_frame_is_a_timeout(void **state)
{
	struct pair *p = *state;
	struct frame f;
	const uint8_t *message;

	connection_set_timeout(p->b, 20);
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), -EAGAIN);
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), -EAGAIN);
	assert_int_equal(write(connection_fd(p->a), "x", 1), 1);
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), -ETIMEDOUT);
}

static void *trickle(void *arg)
{
	static const uint8_t byte;

	/* Ends when the reader gives up and the socket is closed. */
	while (send(*(int *)arg, &byte, 1, MSG_NOSIGNAL) == 1)
		usleep(5000);
	return NULL;
}

static void a_frame_that_trickles_runs_into_its_limit(void **state)
{
	struct pair *p = *state;
	struct frame f = { .op = 5, .message_length = 1 << 20 };
	uint8_t bytes[FRAME_HEADER];
	const uint8_t *message;
	pthread_t thread;
	int fd = connection_fd(p->a);

	frame_pack(&f, bytes);
	assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	connection_set_frame_limit(p->b, 50);
	assert_int_equal(pthread_create(&thread, NULL, trickle, &fd), 0);
	assert_int_equal(connection_receive(p->b, &f, &p->arena, &message), -ETIMEDOUT);
	connection_shutdown(p->b);
	pthread_join(thread, NULL);
}

static void a_reader_that_does_not_read_is_given_up_soon(void **state)
{
	struct pair *p = *state;
	uint8_t *big = noise(FRAME_MESSAGE_MAX, 1);
	struct frame f = { .op = 5, .flags = FRAME_REPLY };
	int r = 0;

	for (int i = 0; i < 64 && !r; i++)
		r = connection_send_soon(p->a, &f, big, FRAME_MESSAGE_MAX, 10);
	assert_int_equal(r, -ETIMEDOUT);
	free(big);
}

static void *receive_forever(void *arg)
{
	struct pair *p = arg;
	struct frame f;
	const uint8_t *message;

	return (void *)(intptr_t)connection_receive(p->b, &f, &p->arena, &message);
}

static void shutdown_wakes_the_reader(void **state)
{
	struct pair *p = *state;
	pthread_t thread;
	void *result;

	connection_set_timeout(p->b, -1);
	assert_int_equal(pthread_create(&thread, NULL, receive_forever, p), 0);
	connection_shutdown(p->b);
	pthread_join(thread, &result);
	assert_int_equal((intptr_t)result, -ECONNRESET);
}

static void too_much_to_send_is_refused_and_the_connection_stays_good(void **state)
{
	struct pair *p = *state;
	uint8_t *big = noise(FRAME_MESSAGE_MAX + 1, 1);
	struct iovec huge = { big, (size_t)FRAME_BULK_MAX + 1 };
	struct frame f = { .op = 5, .id = 1 };

	assert_int_equal(connection_send_packed(p->a, &f, big, FRAME_MESSAGE_MAX + 1), -EMSGSIZE);
	assert_int_equal(connection_send(p->a, &f, NULL, &huge, 1), -EMSGSIZE);
	assert_int_equal(connection_send_packed(p->a, &f, NULL, 0), 0);
	expect_frame(p, 1, 0, 0);
	free(big);
}

#define WITH_PAIR(test) cmocka_unit_test_setup_teardown(test, pair_setup, pair_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_PAIR(frames_of_every_size_arrive_whole),
		WITH_PAIR(a_thousand_and_more_parts_are_sent_in_order),
		WITH_PAIR(pipelined_frames_are_told_apart),
		WITH_PAIR(a_file_is_sent_as_bulk),
		WITH_PAIR(a_descriptor_comes_with_its_frame_to_who_wants_it),
		WITH_PAIR(more_than_one_descriptor_is_none),
		WITH_PAIR(a_file_that_is_too_short_cuts_the_connection),
		WITH_PAIR(a_peer_that_leaves_in_mid_frame_is_noticed),
		WITH_PAIR(oversized_lengths_are_refused_before_memory_is_taken),
		WITH_PAIR(a_message_beyond_the_arena_is_enomem),
		WITH_PAIR(silence_is_eagain_and_half_a_frame_is_a_timeout),
		WITH_PAIR(a_frame_that_trickles_runs_into_its_limit),
		WITH_PAIR(a_reader_that_does_not_read_is_given_up_soon),
		WITH_PAIR(shutdown_wakes_the_reader),
		WITH_PAIR(too_much_to_send_is_refused_and_the_connection_stays_good),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
