/* A slot: a place for one request in one of the kernel's io_uring queues, with the memory that
 * the kernel writes the request to and reads the answer from.
 *
 *   registered --> armed --(a request comes)--> taken --(answered)--> committed = armed again
 *
 * Each command but the first answers one request and asks for the next.  The kernel does not
 * mind by which io_uring instance it comes, but the request is then delivered there, by the
 * thread that submitted it.  So a slot may wander from thread to thread, while it is taken.
 * There is no way back: once registered it is the kernel's until the mount ends.
 *
 *   memory:  one page   the kernel's header, this struct, and at its end room for the headers
 *            1 MiB      the payload: pages nobody has used cost nothing
 *
 * One thread at a time. */
#pragma once
#include <liburing.h>
#include <stdbool.h>
#include "fuse/request.h"

/* A request with no more payload than this is copied when it is decoded, so that its slot can be answered while somebody
 * still looks at it.  Any name fits. */
#define SLOT_COPIED_MAX 4096u
#define SLOT_COPY_BYTES (sizeof(struct fuse_in_header) + 128u + SLOT_COPIED_MAX)

struct slot {
	struct slot *next; /* in a list of whoever has it */
	struct slot *all;  /* the next one of the ring */
	struct fuse_uring_req_header *header;
	uint8_t *payload;
	struct iovec memory[2]; /* both, as the kernel is told of them */
	size_t used;            /* most bytes of the payload that were, since it was trimmed */
	uint16_t queue;
};

struct slot *slot_new(uint16_t queue);    /* NULL: no memory */
void slot_free(struct slot *s);           /* not while the kernel may use it */
bool slot_is_large(const struct slot *s); /* it has memory to give back */
void slot_trim(struct slot *s);           /* gives back memory behind the answer in it; not once it is committed */
/* The same for one whose commit was submitted, and that no request has come into: the answer is with the kernel. */
void slot_trim_sent(struct slot *s);

/* Fill in a submission for the device that is file 0 of the io_uring instance.  The completion's data is the slot; its result
 * is 0 when a request has come, -ENOTCONN when the mount is over. */
void slot_register(struct slot *s, struct io_uring_sqe *sqe);
void slot_commit(struct slot *s, struct io_uring_sqe *sqe);

uint64_t slot_unique(const struct slot *s); /* of the request in it */
uint32_t slot_opcode(const struct slot *s);
/* As fuse_request_decode.  `copy` has SLOT_COPY_BYTES; *copied: the request points into it and no longer into the slot. */
int slot_decode(struct slot *s, uint8_t *copy, struct fuse_request *out, bool *copied);

/* Puts in an answer: parts as for struct reply.  -EMSGSIZE, and nothing done: it is too large. */
int slot_answer(struct slot *s, const struct iovec *parts, int count);
void slot_answer_error(struct slot *s, int error);
