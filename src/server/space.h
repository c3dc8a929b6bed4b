/* Space: what the volumes and the store have left, and what mounts have reserved
 * of it.
 *
 * A mount reserves before write(2) returns, so that what an application was told
 * is written also fits.  Reservations are in memory only; after a restart a mount
 * says again what it has.  A part of the store is kept back for metadata and for
 * deleting, which needs space, too. */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include "store/store.h"

struct server;
struct session;

struct space {
	pthread_mutex_t lock;     /* guards all below, and session.reserved */
	uint64_t reserved;        /* by all sessions */
	struct store_space store; /* as of looked_ns */
	int64_t looked_steady_ns;
	int64_t full_steady_ns; /* when it was last logged that it is full; 0: never */
};

/* What was freed stays in the store for a while, for those who still read it. */
struct space_waiting {
	uint64_t objects, bytes;
	int64_t until_ns; /* when the last of it is deleted; 0: there is none */
	int64_t grace_ns; /* for so long it stays */
};
int space_waiting(struct server *s, struct space_waiting *out);

void space_init(struct space *sp);
void space_free(struct space *sp);
int space_may_put(struct server *s, uint64_t bytes);                           /* 0 or -ENOSPC */
void space_reclaim(struct server *s, struct session *session, uint64_t bytes); /* what it says it has */
void space_forget(struct server *s, struct session *session);
int space_of_store(struct server *s, struct store_space *out); /* a second old at most */
int space_of_store_now(struct server *s, struct store_space *out);
uint64_t space_usable(const struct store_space *store); /* what of the free bytes is there for data */
