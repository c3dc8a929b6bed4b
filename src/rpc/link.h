/* Inside the caller: struct rpc, and the links it talks over.
 *
 * A call, when all is well: an idle link is taken from the pool, the request
 * sent, the reply received, the link put back (caller.c).
 *
 * When not: the link is dropped and the call begins again.  One thread at a time
 * makes new links (`connecting`), the others wait for it or for a link put back;
 * so a server that is away is knocked at by one thread, at growing intervals, and
 * a session that has ended is replaced once, not once a thread.  A new link says
 * hello; if the reply shows another instance or another session, `recovering`
 * holds up all other calls until `restarted` has succeeded on that link.
 *
 * `generation` counts the sessions we have had.  A mutation sent in one of them
 * cannot be asked for in the next: it may or may not have been done, so it fails. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "rpc/caller.h"

#define ATTEMPT_MS 7000 /* without a byte of an answer: then it is asked again over another connection */
#define BACKOFF_FIRST_MS 10
#define BACKOFF_LAST_MS 500

/* A connection of ours: in `all` from birth to death, in `idle` while nobody uses it. */
struct link {
	struct connection *c;
	struct link *all_next, *all_before;
	struct link *older, *newer; /* in the pool */
	int64_t idle_since_ns;
	uint64_t last_id;
	uint64_t instance, generation;
};

/* A numbered mutation that has not been answered. */
struct flight {
	uint64_t number; /* 0: not a mutation of a session */
	struct flight *next, *before;
	bool sent;
	uint64_t generation; /* of the session it was sent in */
};

struct rpc {
	char *servers; /* NUL-separated */
	const char **addresses;
	int address_count, address; /* `address`: the one that worked last */
	int64_t timeout_ms;
	Wire__HelloRequest hello; /* its strings are ours */
	int (*restarted)(void *, struct rpc *, struct connection *, bool);
	void *context;
	_Atomic int64_t clock_offset_ns; /* server's wall clock minus ours */
	_Atomic uint64_t exchanges;
	_Atomic int64_t heard_ns; /* of the last answer, steady */

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	bool aborted, connecting, recovering, away_logged;
	bool session_lost; /* the new one has not been told to `restarted` yet */
	uint64_t session, instance, generation;
	int backoff_ms;
	int64_t next_try_ns;
	struct link *all, *newest, *oldest;
	uint64_t next_number;
	struct flight *first, *last; /* in the order of their numbers */
};

/* What became of a request. */
enum outcome {
	OUTCOME_ANSWERED, /* the result is the server's; the connection is fine */
	OUTCOME_UNSENT,   /* could not be said at all; the connection is fine */
	OUTCOME_LOST,     /* no answer: the connection is of no more use */
	OUTCOME_UNUSABLE, /* an answer, but not one to the question: as LOST, but asking again is no use */
};

/* caller.c: one request and its reply on one connection.  0 or -errno, and what
 * became of it. */
int exchange(struct rpc *r, struct connection *c, uint64_t id, struct rpc_call *call, struct flight *flight, struct arena *arena,
	     enum outcome *outcome);

/* An idle link or a new one; -EIO: none until the deadline, aborted, or refused; or whoever tried last did not get one and it is
 * past `unreached_ns`. */
int link_take(struct rpc *r, int64_t deadline_ns, int64_t unreached_ns, struct link **out);
void link_put(struct rpc *r, struct link *l);
void link_lose(struct rpc *r, struct link *l);
void links_drop_all(struct rpc *r);
/* The lock is held.  Until something changed or it is `until_ns`, a second at most. */
void link_wait(struct rpc *r, int64_t until_ns);

/* Connects and says hello, by whoever is the only one to connect: one round over the addresses, until one answers.
 * `refused`: the server said no, in `error`; else it counts as away, and -ETIMEDOUT is one that does not answer.
 * `error` is for the user. */
int link_open(struct rpc *r, int64_t timeout_ms, struct arena *arena, Wire__HelloReply **reply, struct link **out, bool *refused,
	      char *error, size_t error_size);
