/* Answers to the kernel.  A handler answers through struct reply and does not know
 * how the answer travels: the transport that brought the request filled it in.
 *
 * One thread at a time per reply.  All return 0 or -errno; -ENOENT means that the
 * kernel no longer waits (the request was interrupted or the connection is going
 * down): whatever the answer would have handed over, such as an open file, must
 * then be taken back. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "client/client.h"
#include "fuse/given.h"
#include "fuse/protocol.h"

struct reply {
	uint64_t unique;
	/* What was known before it was asked, for bare.h and given.h; set by session_handle. */
	uint64_t begun, leave;
	/* Set by a handler before it answers, if it has something to do after that which may take long: nobody may have to
	 * wait for its thread then. */
	bool goes_on;
	/* The opposite: it holds nothing while it answers, and returns at once.  The answer may then go along with the
	 * thread's next wait for a request, which saves a system call. */
	bool ends;
	/* Sends the parts as one answer, the first being its struct fuse_out_header.  At most
	 * REPLY_PARTS parts. */
	int (*send)(struct reply *r, const struct iovec *parts, int count);
	/* From here on the transport may answer by itself, with EINTR, if `waiter` is being killed, though the handler is still at it;
	 * the handler's own answer is then -ENOENT.  Only for requests that change nothing.  What the handler uses must not depend
	 * on the kernel's waiting any more (handle.h). */
	void (*interrupts_allow)(struct reply *r, uint32_t waiter);
	/* A copy that is answered later, by any thread, instead of this one; NULL: no memory.  The
	 * transport cannot do that if there is no such function. */
	struct reply *(*keep)(const struct reply *r);
	void (*forget)(struct reply *kept); /* after it was answered, or instead */
};

#define REPLY_PARTS 1024

/* Preferred size of a read or write (st_blksize): what programs that size their buffers
 * by it (Python, cp) use, and large enough that a request's own cost does not matter. */
#define REPLY_BLKSIZE 131072u

int reply_error(struct reply *r, int error); /* error <= 0; 0: done */
int reply_data(struct reply *r, const void *data, size_t size);
int reply_pair(struct reply *r, const void *first, size_t first_size, const void *second, size_t second_size);
int reply_parts(struct reply *r, const struct iovec *parts, int count, size_t bytes); /* any number of parts */

/* Our types as the kernel's. */
void entry_fill(struct fuse_entry_out *out, uint64_t node, const struct attr *a, struct given_leave leave);
void attr_fill(struct fuse_attr *out, const struct attr *a);
void statx_fill(struct fuse_statx *out, const struct attr *a);
