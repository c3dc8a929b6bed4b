/* The lease of the whole volume, as this client holds it.
 *
 * A thread keeps one LEASE request under way at all times (proto/epochfs.proto); it
 * also tells the server that this mount is alive.  While the lease is held, nobody
 * else changes the volume: newborn.h and catalog.h rest on that.
 *
 *   state     until_ns          left by
 *   held      in the future     an answer that says so: recalled; until_ns passed: silent
 *   silent    in the past       an answer with the same number: held; with another one: recalled
 *   recalled  0                 the newborns are told, the catalog is cleared, then: none
 *   none      0                 an answer that says so: held
 *
 * until_ns counts from when the request was sent, the server's from when it came, so
 * ours is over first.  An answer whose number is not the one we know means that the
 * lease was lost meanwhile, also if we hold it again. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "rpc/caller.h"

struct client;

struct lease {
	_Atomic int64_t until_ns; /* steady clock; 0: not held */
	_Atomic bool session_lost;
	uint64_t number; /* the thread's: of the state it has acted upon */
	struct rpc_call call;
	bool started;
	_Atomic bool stopping;
	pthread_mutex_t recall_lock; /* guards the two below, and is held while it is called */
	void (*recalled)(void *context);
	void *context;
	pthread_t thread;
};

void lease_init(struct lease *l);
void lease_free(struct lease *l);
int lease_start(struct client *c);
void lease_stop(struct client *c);
bool lease_held(struct client *c);
uint32_t lease_left_ms(struct client *c);
/* The server ended our session, and with it the lease.  Calls nobody. */
void lease_session_lost(struct client *c);
