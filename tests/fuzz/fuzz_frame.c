/* Frame headers, and whole frames as they come in over a connection: any bytes
 * from a socket, cut off anywhere. */
#include <errno.h>
#include <sys/socket.h>
#include "base/arena.h"
#include "rpc/connection.h"
#include "rpc/frame.h"
#include "tests/fuzz/fuzz.h"

static void header_try(const uint8_t in[FRAME_HEADER])
{
	struct frame f, again;
	uint8_t out[FRAME_HEADER];
	int status = frame_unpack(in, &f);
	REQUIRE(status == 0 || status == -EBADMSG);
	if (status)
		return;
	REQUIRE(f.message_length <= FRAME_MESSAGE_MAX && f.bulk_length <= FRAME_BULK_MAX);
	frame_pack(&f, out);
	REQUIRE(frame_unpack(out, &again) == 0 && memcmp(in, out, FRAME_HEADER) == 0);
}

static void frames_receive(struct connection *c)
{
	struct arena arena;
	arena_init(&arena, 2 * FRAME_MESSAGE_MAX);
	for (;;) {
		struct frame f;
		const uint8_t *message = NULL;
		uint8_t bulk[16];
		struct iovec part = { .iov_base = bulk };
		if (connection_receive(c, &f, &arena, &message) != 0)
			break;
		for (uint32_t i = 0; i < f.message_length; i++)
			REQUIRE(message[i] == message[i]); /* all of it can be read */
		part.iov_len = f.bulk_length;
		int status = f.bulk_length <= sizeof bulk ? connection_receive_bulk(c, &part, 1)
							  : connection_skip_bulk(c, f.bulk_length);
		if (status)
			break;
		arena_reset(&arena);
	}
	arena_free(&arena);
}

static void stream_try(const uint8_t *data, size_t size)
{
	int pair[2];
	struct connection *c;
	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	REQUIRE(send(pair[0], data, size, MSG_NOSIGNAL) == (ssize_t)size);
	shutdown(pair[0], SHUT_WR);
	REQUIRE(connection_new(pair[1], &c) == 0);
	connection_set_timeout(c, 1000);
	frames_receive(c);
	connection_free(c);
	close(pair[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size >= FRAME_HEADER)
		header_try(data);
	if (size <= 65536)
		stream_try(data, size);
	return 0;
}
