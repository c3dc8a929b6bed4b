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
 * In company nobody holds it, and there are grants on single directories (catalog.h) and
 * files (holdings.h) instead.  They are good as long as the server was heard of lately,
 * counted in the same way (contact).  Recalls come with the answers.
 *
 * A second thread, the watcher, sees when the contact is lost, and has the kernel forget its pages.  It never calls the server, nor
 * waits for anything that does: a second later others may be let in.
 *
 * until_ns counts from when the request was sent, the server's from when it came, so
 * ours is over first.  An answer whose number is not the one we know means that the
 * lease was lost meanwhile, also if we hold it again. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/bytes.h"
#include "client/client.h"
#include "rpc/caller.h"

struct client;

struct lease {
	_Atomic int64_t until_ns;             /* steady clock; 0: not held */
	_Atomic int64_t contact_ns;           /* grants are good until then */
	_Atomic bool session_lost, restarted; /* since the request under way was made */
	_Atomic uint64_t number;              /* set by the thread: of the state it has acted upon */
	uint64_t done;                        /* the thread's: the last recall it has acted upon */
	bool failed;                          /* the thread's: the last request was not answered */
	struct buf told;                      /* Wire__Written structs to be sent with the next request */
	struct rpc_call call;
	bool started, watching;
	_Atomic bool stopping;
	pthread_rwlock_t events_lock; /* guards the one below, and is held (shared) while one of it is called */
	struct client_events events;
	pthread_t thread, watcher;
	pthread_mutex_t watch_lock; /* for the condition only */
	pthread_cond_t watch;       /* it stops */
};

void lease_init(struct lease *l);
void lease_free(struct lease *l);
int lease_start(struct client *c);
void lease_stop(struct client *c);
bool lease_held(struct client *c);
uint32_t lease_left_ms(struct client *c);
bool lease_in_contact(struct client *c);     /* what was granted still is */
uint32_t lease_contact_ms(struct client *c); /* for so long, if nothing is heard */
/* Until it is known, after a silence, whether grants were lost, and the kernel has forgotten what they were about. */
void lease_await(struct client *c);
uint64_t lease_number(struct client *c); /* of the state that is acted upon: for COMMIT */
/* Numbers of another server than the one that answers now mean nothing.  Calls nobody. */
void lease_restarted(struct client *c);
void lease_kernel_forgets(struct client *c); /* all names and attributes */
/* The server ended our session, and with it the lease.  Calls nobody. */
void lease_session_lost(struct client *c);
