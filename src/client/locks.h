/* The locks of this client: flock, fcntl and OFD.  The server grants them
 * (docs/protocol.md, "Locks"); this side knows which are held, so that a server that has
 * restarted can be told, and who waits for which.
 *
 * Requests about one file go through one of a few lanes, one at a time and numbered, so
 * that the server does each once and in order, and what is noted here is what holds there.
 *
 * A wait holds no thread.  A thread of this part has a LOCK_WAIT request under way as long
 * as there are waits; when it says that one was granted, the lock is set once more through
 * its lane, which is how it is taken.
 *
 * What could not be said because the server was away for longer than the time-out is owed
 * to it and said later.
 *
 * Lock order: a lane, held across calls > locks.lock, never held across calls. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"
#include "meta/locktable.h"
#include "rpc/caller.h"

#define LOCK_LANES 16

struct client;
struct lock_wait;
struct lock_debt;

struct locks {
	struct lock_lane {
		pthread_mutex_t lock;   /* held while a request is under way */
		uint64_t number;        /* of the last request */
		_Atomic uint64_t ended; /* of the last that was answered, or given up */
	} lanes[LOCK_LANES];

	pthread_mutex_t lock; /* guards all below */
	struct locktable *held;
	struct intmap doubtful; /* inodes on which the server may know of locks that are not in `held` */
	struct lock_wait *waits;
	struct lock_debt *debts;
	bool requeue; /* the server forgot who waits */
	bool ended;   /* nobody may wait any more */
	bool stopping;
	pthread_cond_t work;

	_Atomic bool any; /* ever: without, nothing needs to be looked at */
	_Atomic uint64_t tickets;
	struct rpc_call call; /* the thread's LOCK_WAIT; cancelled, and taken up again, under the lock */
	pthread_t thread;
	bool started;
};

int locks_init(struct locks *k);
void locks_free(struct locks *k);
int locks_start(struct client *c);
void locks_stop(struct client *c);
/* Tells a server that has restarted, or has begun a new session for us, what is held; before RECLAIM, on that connection. */
int locks_restarted(struct client *c, struct rpc *rpc, struct connection *connection);
