/* One mounted file system as the kernel talks to it: the handler of requests, the
 * same whatever transport brings them (channel.h: the classic /dev/fuse loop; ring.h:
 * io_uring).
 *
 * Node ids are inode numbers, so the kernel's FORGETs need no table; node 1 stands
 * for the client's root, which with --subdir is another inode.
 *
 * Any thread may handle requests, many at once. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "client/client.h"
#include "fuse/bare.h"
#include "fuse/given.h"
#include "fuse/handle.h"
#include "fuse/modes.h"
#include "fuse/mountpoint.h"
#include "fuse/reply.h"
#include "fuse/request.h"

/* Locks (locks.c).  Requests that wait for one are answered later. */
#define LOCKED_SLOTS 1024 /* a slot taken by another file costs exactness at its next close, nothing else */
struct parked;
struct lock_requests {
	bool over;            /* the end: the server drops all of them with the client's session */
	pthread_mutex_t lock; /* guards `parked`; nothing is called under it */
	struct parked *parked;
	_Atomic uint64_t locked[LOCKED_SLOTS]; /* files that had locks lately */
	_Atomic uint64_t handles;
	struct handle *closing;   /* session.lock: open files that may be about to be released */
	unsigned closing_waiters; /* session.lock: requests that wait for that */
	pthread_cond_t closed;    /* session.lock: the list is shorter */
	/* How long they wait; and how long for a file that others have waited for in vain.  Constant. */
	int64_t closing_ns, closing_again_ns;
};

/* Interrupts, perhaps of requests that nobody has begun with: an INTERRUPT and its request are read by two threads. */
#define EARLY_SLOTS 64
struct early_interrupts {
	_Atomic uint64_t unique[EARLY_SLOTS];
	atomic_uint count;
};

struct session {
	/* Set by the owner before the first request, constant from then on. */
	struct client *client;
	bool unopened; /* files are read without OPEN, if the kernel can; locks are its own then.  For clients that only read */
	int device;    /* for telling the kernel; negative: none */
	bool pass_wanted; /* large files are passed through, if the kernel can */
	bool ring_wanted; /* a ring is there to bring requests, if the kernel can */
	/* INIT was answered (error 0), or the kernel is one we cannot work with. */
	void (*ready)(void *context, int error);
	void *context;

	/* Root may change these of a live mount (remount.h). */
	atomic_int atime; /* enum mountpoint_atime */
	atomic_bool nodiratime, read_only;

	/* Set before `ready`: the kernel sends nothing before the ring is open.  The owner takes it back if that fails. */
	atomic_bool ring_agreed;
	/* Set before `ready`, too. */
	atomic_bool pass_agreed;

	/* Private. */
	uint64_t root;
	atomic_bool no_opens; /* so it is */
	bool writes_back;
	atomic_bool can_write_directly; /* the kernel can keep what is written out of its pages, while others map them */
	pthread_mutex_t lock;           /* guards handles; nothing is called under it */
	struct handle *handles;
	atomic_int pass_error; /* an errno: the kernel does not let us after all */
	struct modes modes;
	struct bare bare;
	struct given given;
	struct lock_requests locks;
	struct early_interrupts early;
};

int session_init(struct session *s, struct client *client, const struct mountpoint_flags *flags); /* 0 or -errno */
/* The client lost the leave to keep what it was told: so does the kernel, through its device. */
void session_recall(struct session *s);
void session_uncover(struct session *s, uint64_t directory); /* the same, of attributes that one directory covers */
void session_moved(struct session *s, uint64_t inode);       /* the same, of one inode; from any thread */
/* The kernel learns that a file is at least so long.  Not from a thread that handles a request which holds pages of it. */
void session_extend(struct session *s, uint64_t inode, uint64_t size);
/* The same for content of a file.  Not from a thread that handles a request which holds pages of it. */
void session_forget(struct session *s, uint64_t inode, uint64_t from, uint64_t to);
/* After the last request: closes what the kernel left open (it sends no RELEASE once the
 * connection goes down). */
void session_end(struct session *s);

/* Whether a request shall be handled that was decoded with this result; else it has been refused. */
bool session_accept(const struct fuse_request *q, int decoded, struct reply *r);

/* Handles one request as it came from the kernel and answers it. */
void session_handle(struct session *s, struct fuse_request *q, struct reply *r);

/* The kernel no longer wants the answer to a request.  Each INTERRUPT is noted before its request is looked for; who lets a
 * request be interrupted makes it known first and looks for a note afterwards.  So one of the two finds the other. */
void session_interrupt_note(struct session *s, uint64_t unique);
bool session_interrupt_noted(const struct session *s, uint64_t unique);
/* If the request waits for a lock, its wait ends. */
void session_interrupt(struct session *s, uint64_t unique);

static inline uint64_t session_inode(const struct session *s, uint64_t node)
{
	return node == FUSE_ROOT_ID ? s->root : node & ~NODE_OTHER_SIDE;
}

/* The node to tell of an inode; *dual: it has another one, so that its attributes must not be kept (modes.h). */
static inline uint64_t session_node(struct session *s, uint64_t inode, bool *dual)
{
	unsigned side = modes_side(&s->modes, inode, dual);

	return inode == s->root ? FUSE_ROOT_ID : inode | (side ? NODE_OTHER_SIDE : 0);
}
