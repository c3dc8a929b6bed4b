/* The lease of a volume: it is held by the one session that is alone on it, or by all
 * of them while none may write.  Sessions of replicas (stream.h) are nobody here: they never hold it, and are no company.
 *
 * The holder keeps what it has seen of the volume.  One that is alone may also make
 * files by itself and tell the server afterwards (CREATE_MANY).  So before anybody
 * else looks at the volume's names or changes them, the lease is recalled:
 *
 *   r = lease_recall(s, asking, volume);   waits until nothing is left to be told
 *   ... what the lease must not be held for ...
 *   lease_release(s, volume);              the last one to release gives it out again
 *
 * A session learns by LEASE requests (serve_lease, dispatch.h) whether it holds the
 * lease.  It keeps one under way on a connection of its own.
 *
 * Promises: while a volume has two sessions and one of them may write, or a recall of it has returned and is not
 * released, no session holds the lease, and none has files that it made under one: but
 * a session that was silent for the lease's time is not waited for, as it knows itself
 * that its lease has run out.
 *
 * Guarded by sessions.lock, which no wait holds.  lease_recall is for the threads of
 * peers, all else for any thread. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"

struct connection;
struct server;
struct session;
struct lease_waiter;

/* Of a session. */
struct lease {
	uint64_t number; /* of the state; grows with each change of `held` */
	bool held;
	uint64_t told;                   /* the last number told with `held`; 0: never held, as far as its mount knows */
	uint64_t acknowledged;           /* the last number its mount has acted upon */
	_Atomic int64_t heard_steady_ns; /* when the last LEASE request came */
	struct lease_waiter *waiters;    /* woken when anything of this changes, or the session ends */
};

struct leases {
	struct intmap recalls; /* volume -> how many recalls are not released */
	uint64_t first;        /* the number all leases begin with */
};

void leases_init(struct server *s, uint64_t start);
void leases_free(struct server *s);

/* With sessions.lock held, after a session was added or removed: who is alone gets the lease, others lose it. */
void lease_settle(struct server *s, uint32_t volume);
void lease_begin(struct server *s, struct session *n); /* of a session nobody knows yet */
void leases_recorded(struct server *s); /* the sessions have been loaded: they may hold what an earlier server gave */
void lease_ended(struct server *s, struct session *n); /* the session was marked as ended: it is not waited for any more */
void lease_news(struct server *s, struct session *n);  /* there is something to tell it: its LEASE request is answered */
/* Its grants are void from here on, and commits of what was written under them are refused.  The lease's number now. */
uint64_t lease_revoke(struct server *s, struct session *n);
uint64_t lease_void(struct session *n); /* the same, with sessions.lock held */

/* 0; -ECONNRESET: the connection that asks (NULL: none does) is gone, or the server stops; or -errno.  After anything but 0 there is
 * nothing to release.  Not for requests of a session on that volume: it is the holder, or there is none. */
int lease_recall(struct server *s, const struct connection *asking, uint32_t volume);
void lease_release(struct server *s, uint32_t volume); /* does not wait */
