#include "rpc/connection.h"
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"

#define RECEIVE_BUFFER (16u << 10) /* most frames' header and message fit: one recv a frame */
#define PACK_ON_STACK 4096
#define PARTS 64                /* iovecs handed to one system call */
#define SOCKET_BUFFER (4 << 20) /* a whole block on its way wakes each side once */
#define NO_DESCRIPTOR (-1)

struct connection {
	int fd;
	int64_t timeout_ms; /* what SO_RCVTIMEO and SO_SNDTIMEO are set to */
	int64_t frame_limit_ms;
	int64_t frame_begun_ns; /* 0: between frames, or no limit */
	bool wants_descriptor;
	int descriptor;    /* that came, -EBADF or -EBADMSG */
	size_t begin, end; /* the bytes of buffer not taken yet */
	uint8_t buffer[RECEIVE_BUFFER];
};

int connection_new(int fd, struct connection **out)
{
	struct connection *c = malloc(sizeof(*c));
	int on = 1, size = SOCKET_BUFFER, domain = 0;
	socklen_t domain_size = sizeof(domain);

	if (!c) {
		close(fd);
		return -ENOMEM;
	}
	c->fd = fd;
	c->timeout_ms = c->frame_limit_ms = -1;
	c->frame_begun_ns = 0;
	c->wants_descriptor = false;
	c->descriptor = -EBADF;
	c->begin = c->end = 0;
	/* Tuning only: a socket that refuses any of this works all the same.
	 * TCP sizes its buffers itself, and better, if it is not told. */
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_size);
	if (domain == AF_UNIX) {
		if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
			setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	} else {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	}
	*out = c;
	return 0;
}

void connection_free(struct connection *c)
{
	if (!c)
		return;
	if (c->descriptor >= 0)
		close(c->descriptor);
	close(c->fd);
	free(c);
}

void connection_shutdown(struct connection *c) { shutdown(c->fd, SHUT_RDWR); }

void connection_shutdown_reading(struct connection *c) { shutdown(c->fd, SHUT_RD); }

int connection_fd(const struct connection *c) { return c->fd; }

void connection_set_timeout(struct connection *c, int64_t timeout_ms)
{
	if (timeout_ms == c->timeout_ms)
		return;
	/* A zero timeval means for ever, so no time at all becomes a microsecond. */
	int64_t us = timeout_ms < 0 ? 0 : timeout_ms ? timeout_ms * 1000 : 1;
	struct timeval tv = { .tv_sec = us / 1000000, .tv_usec = us % 1000000 };

	setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	c->timeout_ms = timeout_ms;
}

void connection_set_frame_limit(struct connection *c, int64_t limit_ms) { c->frame_limit_ms = limit_ms; }

/* ---- Sending ---- */

/* Sent bytes off the front of an array of parts. */
struct parts {
	const struct iovec *at;
	int count;
	size_t skip; /* bytes of *at already done */
};

static int parts_window(const struct parts *p, struct iovec window[PARTS])
{
	int n = p->count < PARTS ? p->count : PARTS;

	for (int i = 0; i < n; i++)
		window[i] = p->at[i];
	if (n) {
		window[0].iov_base = (char *)window[0].iov_base + p->skip;
		window[0].iov_len -= p->skip;
	}
	return n;
}

static void parts_advance(struct parts *p, size_t n)
{
	while (p->count && n >= p->at->iov_len - p->skip) {
		n -= p->at->iov_len - p->skip;
		p->skip = 0;
		p->at++;
		p->count--;
	}
	p->skip += n;
}

static int socket_error(int error)
{
	switch (error) {
	case EAGAIN: return -ETIMEDOUT;
	case ENOMEM:
	case ENOBUFS: return -ENOMEM;
	default: return -ECONNRESET;
	}
}

/* Waits until the socket takes bytes again, up to the deadline. */
static int wait_writable(int fd, int64_t deadline_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	int64_t left_ms = (deadline_ns - clock_steady_ns()) / NS_PER_MS;
	int n = poll(&p, 1, left_ms < 0 ? 0 : (int)left_ms);

	if (n < 0 && errno != EINTR)
		return -ECONNRESET;
	return n == 0 ? -ETIMEDOUT : 0;
}

/* Room for more descriptors than there should be, so that a peer that sends more
 * is found out; what is beyond it the system closes. */
union control {
	char bytes[CMSG_SPACE(4 * sizeof(int))];
	struct cmsghdr align;
};

static void descriptor_put(struct msghdr *m, union control *control, int descriptor)
{
	struct cmsghdr *head;

	*control = (union control){ 0 };
	m->msg_control = control->bytes;
	m->msg_controllen = CMSG_SPACE(sizeof(int));
	head = CMSG_FIRSTHDR(m);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
}

/* `deadline_ns` 0: waits as the socket's time-out says; else never past it.  A descriptor, if it is one, goes along. */
static int send_parts(struct connection *c, struct parts p, int flags, int64_t deadline_ns, int descriptor)
{
	struct iovec window[PARTS];
	union control control;

	while (parts_advance(&p, 0), p.count) {
		struct msghdr m = { .msg_iov = window, .msg_iovlen = (size_t)parts_window(&p, window) };
		ssize_t n;

		if (descriptor >= 0)
			descriptor_put(&m, &control, descriptor);
		n = sendmsg(c->fd, &m, MSG_NOSIGNAL | flags | (deadline_ns ? MSG_DONTWAIT : 0));
		if (n >= 0) {
			parts_advance(&p, (size_t)n);
			descriptor = NO_DESCRIPTOR; /* it went with the first byte */
		} else if (errno == EAGAIN && deadline_ns) {
			int r = wait_writable(c->fd, deadline_ns);
			if (r)
				return r;
		} else if (errno != EINTR) {
			return socket_error(errno);
		}
	}
	return 0;
}

static int send_all(struct connection *c, struct frame *frame, const void *message, const struct iovec *bulk, int bulk_count,
		    struct iovec *all, int64_t deadline_ns, int descriptor)
{
	uint8_t header[FRAME_HEADER];
	int n = 0;

	frame_pack(frame, header);
	all[n++] = (struct iovec){ header, FRAME_HEADER };
	if (frame->message_length)
		all[n++] = (struct iovec){ (void *)message, frame->message_length };
	if (bulk_count)
		memcpy(all + n, bulk, (size_t)bulk_count * sizeof(*bulk));
	return send_parts(c, (struct parts){ all, n + bulk_count, 0 }, 0, deadline_ns, descriptor);
}

static int send_frame(struct connection *c, struct frame *frame, const void *message, size_t message_size,
		      const struct iovec *bulk, int bulk_count, int64_t deadline_ns, int descriptor)
{
	struct iovec on_stack[PARTS];
	uint64_t bulk_bytes = 0;

	for (int i = 0; i < bulk_count; i++)
		bulk_bytes += bulk[i].iov_len;
	if (message_size > FRAME_MESSAGE_MAX || bulk_bytes > FRAME_BULK_MAX)
		return -EMSGSIZE;
	frame->message_length = (uint32_t)message_size;
	frame->bulk_length = (uint32_t)bulk_bytes;
	if (bulk_count + 2 <= PARTS)
		return send_all(c, frame, message, bulk, bulk_count, on_stack, deadline_ns, descriptor);

	CLEANUP_FREE struct iovec *on_heap = malloc(((size_t)bulk_count + 2) * sizeof(*on_heap));
	return on_heap ? send_all(c, frame, message, bulk, bulk_count, on_heap, deadline_ns, descriptor) : -ENOMEM;
}

/* The message's bytes: in `small`, or in *heap. */
static int message_pack(const ProtobufCMessage *message, uint8_t small[PACK_ON_STACK], uint8_t **heap, const uint8_t **out,
			size_t *out_size)
{
	size_t size = message ? protobuf_c_message_get_packed_size(message) : 0;
	uint8_t *to = small;

	if (size > FRAME_MESSAGE_MAX)
		return -EMSGSIZE;
	if (size > PACK_ON_STACK) {
		to = *heap = malloc(size);
		if (!to)
			return -ENOMEM;
	}
	if (size)
		protobuf_c_message_pack(message, to);
	*out = to;
	*out_size = size;
	return 0;
}

int connection_send_descriptor(struct connection *c, struct frame *frame, const ProtobufCMessage *message,
			       const struct iovec *bulk, int bulk_count, int descriptor)
{
	uint8_t small[PACK_ON_STACK];
	CLEANUP_FREE uint8_t *heap = NULL;
	const uint8_t *bytes;
	size_t size;
	int r = message_pack(message, small, &heap, &bytes, &size);

	return r ? r : send_frame(c, frame, bytes, size, bulk, bulk_count, 0, descriptor);
}

int connection_send(struct connection *c, struct frame *frame, const ProtobufCMessage *message, const struct iovec *bulk,
		    int bulk_count)
{
	return connection_send_descriptor(c, frame, message, bulk, bulk_count, NO_DESCRIPTOR);
}

int connection_send_packed(struct connection *c, struct frame *frame, const void *message, size_t size)
{
	return send_frame(c, frame, message, size, NULL, 0, 0, NO_DESCRIPTOR);
}

int connection_send_soon(struct connection *c, struct frame *frame, const void *message, size_t size, int patience_ms)
{
	return send_frame(c, frame, message, size, NULL, 0, clock_steady_ns() + patience_ms * NS_PER_MS, NO_DESCRIPTOR);
}

int connection_send_file(struct connection *c, struct frame *frame, const ProtobufCMessage *message, int file,
			 uint64_t file_offset, uint32_t file_length)
{
	uint8_t header[FRAME_HEADER], small[PACK_ON_STACK];
	CLEANUP_FREE uint8_t *heap = NULL;
	const uint8_t *bytes;
	size_t size, left = file_length;
	off_t at = (off_t)file_offset;
	int r = message_pack(message, small, &heap, &bytes, &size);

	if (r)
		return r;
	if (file_length > FRAME_BULK_MAX)
		return -EMSGSIZE;
	frame->message_length = (uint32_t)size;
	frame->bulk_length = file_length;
	frame_pack(frame, header);
	struct iovec parts[2] = { { header, FRAME_HEADER }, { (void *)bytes, size } };
	r = send_parts(c, (struct parts){ parts, 2, 0 }, file_length ? MSG_MORE : 0, 0, NO_DESCRIPTOR);
	while (!r && left) {
		ssize_t n = sendfile(c->fd, file, &at, left);

		if (n > 0) {
			left -= (size_t)n;
		} else if (n == 0 || errno == EIO || errno == EINVAL || errno == EOVERFLOW) {
			/* The header has promised bytes that do not exist: only cutting tells. */
			connection_shutdown(c);
			return -EIO;
		} else if (errno != EINTR) {
			r = socket_error(errno);
		}
	}
	return r;
}

/* ---- Receiving ---- */

void connection_want_descriptor(struct connection *c)
{
	if (c->descriptor >= 0)
		close(c->descriptor);
	c->descriptor = -EBADF;
	c->wants_descriptor = true;
}

int connection_take_descriptor(struct connection *c)
{
	int descriptor = c->descriptor;

	c->wants_descriptor = false;
	c->descriptor = -EBADF;
	return descriptor;
}

static void descriptor_keep(struct connection *c, int descriptor)
{
	if (c->descriptor == -EBADF) {
		c->descriptor = descriptor;
		return;
	}
	if (c->descriptor >= 0)
		close(c->descriptor);
	close(descriptor);
	c->descriptor = -EBADMSG;
}

static void descriptors_take(struct connection *c, struct msghdr *m)
{
	for (struct cmsghdr *head = CMSG_FIRSTHDR(m); head; head = CMSG_NXTHDR(m, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = 0; at + sizeof(int) <= head->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
			int descriptor;

			memcpy(&descriptor, CMSG_DATA(head) + at, sizeof(int));
			descriptor_keep(c, descriptor);
		}
	}
}

static bool frame_is_late(const struct connection *c)
{
	return c->frame_begun_ns && clock_steady_ns() - c->frame_begun_ns > c->frame_limit_ms * NS_PER_MS;
}

/* At least one byte into the parts.  0 bytes is the peer's end. */
static ssize_t receive_some(struct connection *c, struct iovec *parts, int count)
{
	for (;;) {
		union control control;
		struct msghdr m = { .msg_iov = parts, .msg_iovlen = (size_t)count };
		ssize_t n;

		if (c->wants_descriptor) {
			m.msg_control = control.bytes;
			m.msg_controllen = sizeof(control.bytes);
		}
		n = recvmsg(c->fd, &m, MSG_CMSG_CLOEXEC);
		if (n >= 0 && m.msg_controllen)
			descriptors_take(c, &m);
		if (n > 0)
			return n;
		if (n == 0)
			return -ECONNRESET;
		if (errno != EINTR)
			return socket_error(errno);
	}
}

static int receive_parts(struct connection *c, struct parts p)
{
	struct iovec window[PARTS];

	while (parts_advance(&p, 0), p.count) {
		int count = parts_window(&p, window);

		if (frame_is_late(c))
			return -ETIMEDOUT;
		ssize_t n = receive_some(c, window, count);
		if (n < 0)
			return (int)n;
		parts_advance(&p, (size_t)n);
	}
	return 0;
}

/* Makes at least `want` (<= RECEIVE_BUFFER) bytes stand in the buffer. */
static int buffer_fill(struct connection *c, size_t want)
{
	if (c->begin + want > RECEIVE_BUFFER) {
		memmove(c->buffer, c->buffer + c->begin, c->end - c->begin);
		c->end -= c->begin;
		c->begin = 0;
	}
	while (c->end - c->begin < want) {
		struct iovec room = { c->buffer + c->end, RECEIVE_BUFFER - c->end };

		if (frame_is_late(c))
			return -ETIMEDOUT;
		ssize_t n = receive_some(c, &room, 1);
		if (n < 0)
			return (int)n;
		c->end += (size_t)n;
		if (!c->frame_begun_ns && c->frame_limit_ms >= 0)
			c->frame_begun_ns = clock_steady_ns();
	}
	return 0;
}

static size_t buffer_take(struct connection *c, void *into, size_t most)
{
	size_t n = c->end - c->begin < most ? c->end - c->begin : most;

	if (n)
		memcpy(into, c->buffer + c->begin, n);
	c->begin += n;
	return n;
}

int connection_receive(struct connection *c, struct frame *frame, struct arena *arena, const uint8_t **message)
{
	struct frame f;
	int r;

	c->frame_begun_ns = 0;
	if (c->begin == c->end)
		c->begin = c->end = 0;
	r = buffer_fill(c, FRAME_HEADER);
	if (r)
		return r == -ETIMEDOUT && c->begin == c->end ? -EAGAIN : r;
	if (frame_unpack(c->buffer + c->begin, &f))
		return -EBADMSG;
	c->begin += FRAME_HEADER;
	if (f.message_length <= RECEIVE_BUFFER) {
		r = buffer_fill(c, f.message_length);
		if (r)
			return r;
		*message = c->buffer + c->begin;
		c->begin += f.message_length;
	} else {
		uint8_t *whole = arena_take(arena, f.message_length);

		if (!whole)
			return -ENOMEM;
		size_t had = buffer_take(c, whole, f.message_length);
		struct iovec rest = { whole + had, f.message_length - had };
		r = receive_parts(c, (struct parts){ &rest, 1, 0 });
		if (r)
			return r;
		*message = whole;
	}
	*frame = f;
	return 0;
}

int connection_receive_bulk(struct connection *c, const struct iovec *into, int count)
{
	struct parts p = { into, count, 0 };

	while (parts_advance(&p, 0), p.count && c->begin < c->end) {
		size_t n = buffer_take(c, (char *)p.at->iov_base + p.skip, p.at->iov_len - p.skip);
		parts_advance(&p, n);
	}
	return receive_parts(c, p);
}

int connection_skip_bulk(struct connection *c, uint32_t length)
{
	uint8_t sink[8192];
	size_t left = length, n = c->end - c->begin < left ? c->end - c->begin : left;

	c->begin += n;
	left -= n;
	while (left) {
		struct iovec part = { sink, left < sizeof(sink) ? left : sizeof(sink) };
		int r = receive_parts(c, (struct parts){ &part, 1, 0 });
		if (r)
			return r;
		left -= part.iov_len;
	}
	return 0;
}
