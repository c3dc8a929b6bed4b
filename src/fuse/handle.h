/* Open files as the kernel knows them: its file handles (fh) are addresses of these.
 *
 * Who may use one, and for how long.  The kernel sends RELEASE once the last descriptor is closed and no request that names
 * the handle is unanswered.  That is not the end of our work for it: a handler may go on after its answer, and when a program
 * is killed, its request is answered with EINTR while the handler is still at it (struct reply, interrupts_allow).  The
 * program's files are closed then, and RELEASE comes while its FSYNC, say, still waits for the server.  So handles are counted:
 *
 *   the kernel's reference    from session_open to session_close
 *   a request's               on each handle it names, while it is handled (handles_hold, handles_drop)
 *
 * RELEASE ends what others could notice, which is the locks and the way the file is open (modes.h), and drops the kernel's
 * reference.  The file is released with the last reference.
 *
 * A request's reference is sound because of the order: session_handle takes it first, and only then may anybody else answer the
 * request.  Until then the kernel waits for this answer and keeps its own reference; so a handle that comes with a request is
 * always there, and none has to be looked up in a table.  Handlers do not see file handles, only the held ones (q->handle,
 * q->target).  It costs an atomic increment and a decrement a request, and no lock.
 *
 * Requests without a handle are about an inode, by its number; the client counts references on those itself.  A directory's
 * handle is 0 and refers to nothing.
 *
 * Any thread. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "client/client.h"
#include "fuse/modes.h"
#include "fuse/request.h"

struct session;

struct handle {
	atomic_uint refs;
	struct client_file *file;
	uint64_t inode;
	uint64_t number;       /* never used again */
	atomic_bool atime_due; /* the next read must update the access time */
	atomic_uint unstamped; /* reads that were answered, or are about to be, and whose access time one of them is setting */
	bool direct;           /* reads and writes do not go through the kernel's pages */
	atomic_bool locked;    /* a lock was set through it */
	/* session.lock: who set a range lock through it last, and whether it has a flock. */
	uint64_t range_owner;
	bool flocked;
	/* session.lock: its place in the list of the files that are closing (locks.c), NULL if it is not; and since when it is. */
	struct handle *closing_next, **closing_at;
	int64_t closing_since_ns;
	bool stayed_open;        /* somebody waited in vain for its RELEASE */
	struct opened opened;    /* how (passthrough.h) */
	_Atomic bool other_side; /* of its node, once that is known: for session_open_nodes */
	struct handle *next, *previous;
};

/* A new handle for `file`, which it takes over, with the kernel's reference; NULL: no memory, and `file` is released. */
struct handle *session_open(struct session *s, struct client_file *file, uint64_t inode);
void session_close(struct session *s, struct handle *h);  /* the kernel has closed it */
void session_unopen(struct session *s, struct handle *h); /* the kernel has never heard of it, as its open failed */
/* Nodes of files that are open: how many of at most `most`. */
unsigned session_open_nodes(struct session *s, uint64_t *nodes, unsigned most);

void handles_hold(struct fuse_request *q);
void handles_drop(const struct fuse_request *q);

/* The file a request is about: that of its handle, or, without one, of its node.  Until session_used. */
int session_use(struct session *s, const struct fuse_request *q, struct client_file **file);
void session_used(const struct fuse_request *q, struct client_file *file);

/* The kernel's name for it. */
static inline uint64_t handle_fh(const struct handle *h) { return (uintptr_t)h; }
struct handle *handle_released(const struct fuse_request *q); /* of a RELEASE */
