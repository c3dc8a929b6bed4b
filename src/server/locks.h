/* The locks of all sessions: flock, fcntl and OFD (meta/locktable.h has the rules).
 *
 * They live in memory.  A session that ends loses its own; after a restart each mount says
 * what it held (LOCK_RECLAIM, then RECLAIM), and until all mounts of a volume have, or the
 * time of a lease has passed, nothing new is granted on that volume.
 *
 * Requests are numbered, in lanes (proto/epochfs.proto): a repeated one is answered, not
 * done again, and one that was long under way and is overtaken by its own repetition does
 * nothing any more.  So a release that comes twice cannot release what was locked since.
 *
 * Who waits holds no thread: LOCK is answered "queued", and the session's LOCK_WAIT request,
 * which does hold the thread of its connection, as soon as something was granted.
 *
 * Any thread.  locks.lock guards all of it. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define LOCK_LANES 16

struct locktable;
struct lock_listener;
struct server;
struct session;

struct locks {
	pthread_mutex_t lock;
	struct locktable *table;
	struct lock_listener *listeners; /* LOCK_WAIT requests under way */
	bool frozen;                     /* some volume is */
	int64_t frozen_until_steady_ns;
};

/* Of a session. */
struct session_locks {
	struct {
		uint64_t number; /* the last that was served */
		int result;      /* and what came of it */
	} lanes[LOCK_LANES];
	bool settled; /* it has reclaimed, or has set locks: nothing is reclaimed any more */
};

int locks_open(struct server *s); /* the mutex is there already */
void locks_close(struct server *s);
int locks_recorded(struct server *s);                        /* the sessions have been loaded: they may hold locks */
void locks_reclaimed(struct server *s, struct session *n);   /* RECLAIM came */
void locks_ended(struct server *s, const struct session *n); /* the session was marked as ended */
void locks_settle(struct server *s, uint32_t volume);        /* fewer sessions are waited for */
void locks_tick(struct server *s);                           /* from time to time */
