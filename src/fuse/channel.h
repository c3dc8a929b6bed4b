/* The classic transport: threads that read requests from /dev/fuse, handle them and
 * write the answers back.
 *
 * Each thread has its own clone of the device where the caller may open it, so that
 * answers do not meet in one queue; else all share one.  A request holds its thread
 * until it is answered, also while the client waits for a server that is away; when all
 * that read are busy, one that is parked takes over, or another one is started, up to a
 * limit, and those too many end again.
 *
 * A process that is being killed does not wait for requests that change nothing: an
 * INTERRUPT for one of them is answered with EINTR while the request still runs (handle.h has
 * what that means for its file).  Other signals interrupt nothing, as on any disk file system.
 *
 * Beside a ring (ring.h) it still brings INIT, FORGETs and INTERRUPTs. */
#pragma once
#include "fuse/session.h"

struct channel;

struct channel_options {
	int fd;                 /* a mounted /dev/fuse; stays the caller's */
	unsigned threads_first; /* 0: CHANNEL_THREADS_FIRST */
	unsigned threads_most;  /* 0: CHANNEL_THREADS_MOST, which is the limit */
	/* Unmounted: there will be no more requests.  May come more than once, and from several threads; others may still be at theirs. */
	void (*unmounted)(void *context);
	/* The last thread has ended: unmounted (error 0), stopped (0), or the device failed. */
	void (*ended)(void *context, int error);
	/* The kernel no longer wants the answer to a request that did not come by this channel: whether one such is known
	 * that another transport works on.  NULL: there is no other. */
	bool (*interrupt)(void *context, uint64_t unique);
	void *context;
};

#define CHANNEL_THREADS_FIRST 8u
#define CHANNEL_THREADS_MOST 512u

int channel_start(struct session *s, const struct channel_options *options, struct channel **out);

/* Takes no more requests, waits for those being handled, and frees the channel.  Not from
 * a thread of the channel. */
void channel_stop(struct channel *c);

unsigned channel_threads(struct channel *c); /* how many there are now */
