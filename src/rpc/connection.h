/* A connection: one blocking stream socket that carries frames.
 *
 * One thread reads and one thread writes at a time; reading and writing may be
 * two threads.  connection_shutdown may be called by any thread and makes the
 * others fail with -ECONNRESET.  Bulk bytes go straight between the socket and
 * the caller's buffers.
 *
 * Errors: -ECONNRESET (peer gone, or cut off in mid-frame), -ETIMEDOUT (no
 * progress for the time-out), -EBADMSG (not our protocol: close it), -ENOMEM. */
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/arena.h"
#include "rpc/frame.h"

struct connection;

int connection_new(int fd, struct connection **out); /* takes the descriptor, also on failure */
void connection_free(struct connection *c);          /* NULL is fine */
void connection_shutdown(struct connection *c);
void connection_shutdown_reading(struct connection *c); /* the reader gets what has come, then -ECONNRESET */
int connection_fd(const struct connection *c);
void connection_set_timeout(struct connection *c, int64_t timeout_ms); /* per wait; -1: for ever */
/* A frame once begun must have come in whole after this long, however lively it trickles; -1: no bound. */
void connection_set_frame_limit(struct connection *c, int64_t limit_ms);

/* Sends header, message (packed here; may be NULL) and bulk in as few system
 * calls as possible (one, if it fits).  frame->message_length and bulk_length
 * are filled in. */
int connection_send(struct connection *c, struct frame *frame, const ProtobufCMessage *message, const struct iovec *bulk,
		    int bulk_count);
int connection_send_packed(struct connection *c, struct frame *frame, const void *message, size_t size);
/* The same for a thread that must not be held up: waits patience_ms at most in
 * all, then -ETIMEDOUT; part of the frame may be out, so close it. */
int connection_send_soon(struct connection *c, struct frame *frame, const void *message, size_t size, int patience_ms);
/* Header and message, the message followed by `file_length` bytes of a file, by
 * sendfile.  -EIO: the file could not give them all; the connection is cut. */
int connection_send_file(struct connection *c, struct frame *frame, const ProtobufCMessage *message, int file,
			 uint64_t file_offset, uint32_t file_length);

/* As connection_send, and with it a descriptor, which stays the caller's.  Other sockets than unix ones drop it. */
int connection_send_descriptor(struct connection *c, struct frame *frame, const ProtobufCMessage *message,
			       const struct iovec *bulk, int bulk_count, int descriptor);

/* From here on a descriptor that comes along with a frame is kept, until the next
 * call of connection_take_descriptor: one, or else -EBADF if none came or -EBADMSG
 * if there were several (all closed).  At other times the system drops them. */
void connection_want_descriptor(struct connection *c);
int connection_take_descriptor(struct connection *c);

/* Waits for the next frame's header, then its message, which is good until the
 * next receive or the end of the arena.  -EAGAIN: nothing at all came within the
 * time-out, and the connection is as good as before.  The bulk bytes must be
 * taken (or skipped) before the next receive. */
int connection_receive(struct connection *c, struct frame *frame, struct arena *arena, const uint8_t **message);
int connection_receive_bulk(struct connection *c, const struct iovec *into, int count);
int connection_skip_bulk(struct connection *c, uint32_t length);

/* Addresses: "unix:PATH" or "HOST:PORT" ("[::1]:PORT"). */
/* Whether it looks like one, whatever is there: 0 or -EINVAL. */
int address_check(const char *address);
/* -ENXIO: the host's name cannot be resolved.  `error` says why it failed, without the address. */
int address_connect(const char *address, int64_t timeout_ms, int *out_fd, char *error, size_t error_size);
int address_listen(const char *address, int *out_fd, char *error, size_t error_size); /* TCP: loopback only */
