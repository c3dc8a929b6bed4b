/* Recalls: what a session is told with the answer to its LEASE request, in the order of their numbers.
 *
 *   RECALL_DIRECTORY              done when the session says so, with its next LEASE request
 *   RECALL_FILE, RECALL_WRITE     then it is begun; done with RETURN (grants.h)
 *   RECALL_TELL                   answered with the next LEASE request: size and times of a file it writes to
 *
 * Guarded by grants.lock; functions take it but where they say otherwise. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "epochfs.pb-c.h"

struct arena;
struct connection;
struct grants;
struct server;
struct session;

/* Of a session: what it is still to be told. */
struct recall;
struct recalls {
	struct recall *first, **end;
};

/* The lock is held.  Its number; 0: no memory. */
uint64_t recall_add(struct grants *g, struct session *n, uint64_t inode, Wire__RecallKind kind);

/* The session's LEASE request: all up to `done` are done, and these are its answers.  Then what it is told. */
void recalls_done(struct server *s, struct session *n, uint64_t done, Wire__Written *const *written, size_t count);
bool recalls_wait(struct server *s, struct session *n); /* is there something to be told? */
int recalls_fill(struct server *s, struct session *n, struct arena *arena, Wire__LeaseReply *reply);
void recalls_unask(struct session *n); /* the lock is held: it will not answer */
void recalls_drop(struct session *n);  /* nobody else knows the session any more */

/* Asks writers for size and times of inodes, all at once:
 *   grant_asks_begin, grant_asks_add for each (takes over the reference to the writer), grant_asks_wait, then ask.written of
 *   each (unstored false: there is nothing, or it cannot be asked any more), grant_asks_end. */
struct grant_asks {
	int event;
	unsigned open; /* not answered */
	struct grant_ask *first;
};
struct grant_ask {
	struct grant_asks *all;
	struct grant_ask *next;
	struct session *writer;
	struct recall *recall; /* NULL: it was answered */
	Wire__Written written;
};
int grant_asks_begin(struct grant_asks *all);
int grant_asks_add(struct server *s, struct grant_asks *all, struct grant_ask *a, struct session *writer, uint64_t inode);
int grant_asks_wait(struct server *s, const struct connection *asking, struct grant_asks *all);
void grant_asks_end(struct server *s, struct grant_asks *all);
