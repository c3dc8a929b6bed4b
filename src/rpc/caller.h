/* The asking side: calls over a pool of connections to one server.
 *
 * A call takes an idle connection (or makes one), sends, waits for its reply on
 * the same thread, and puts the connection back: no thread is woken but the
 * caller's.  A connection that fails is dropped; the call is sent again over a
 * new one until `timeout_ms` have passed since it began, then it is -EIO
 * (-ETIMEDOUT is never shown to applications).  Mutations carry their number, so
 * a repeated one is answered, not repeated.
 *
 * Every new connection says hello first.  When the server's instance differs
 * from the one seen last, `restarted` is called once, alone, with a connection of
 * its own, before any other call goes on.
 *
 * A mutation whose answer was lost is -EIO where it cannot be asked for again:
 * when the session has ended meanwhile, or, without a session (administration),
 * at once.
 *
 * Any thread.  */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "epochfs.pb-c.h"
#include "rpc/connection.h"

struct rpc;

struct rpc_options {
	const char *servers; /* "unix:PATH|HOST:PORT[,...]": tried in turn */
	int64_t timeout_ms;
	int64_t open_timeout_ms;  /* of rpc_open; 0: timeout_ms */
	Wire__HelloRequest hello; /* strings are copied; session is filled in after the first reply */
	/* The server restarted (instance changed) and knows the session (`known`) or
	 * has ended it and a new one was begun (!known).  Use rpc_call_on. 0 or -errno. */
	int (*restarted)(void *context, struct rpc *rpc, struct connection *c, bool known);
	void *context;
	bool may_be_away; /* a server that cannot be reached is no error: *hello_reply is NULL then, and hello is said later */
};

/* Connects and says hello; *hello_reply comes from the arena.  Does not wait for
 * a server that is away: each address is tried once.  -ETIMEDOUT: one that is there
 * does not answer.  `error` is a sentence for the user, the server's own if it refused. */
int rpc_open(const struct rpc_options *options, struct arena *arena, Wire__HelloReply **hello_reply, struct rpc **out,
	     char *error, size_t error_size);
void rpc_close(struct rpc *r);
void rpc_abort(struct rpc *r); /* makes calls under way fail soon with -EIO: for unmounting */

struct rpc_call {
	uint16_t op;
	const ProtobufCMessage *request;
	const struct iovec *bulk_out;
	int bulk_out_count;
	const int *descriptor_out; /* goes along, where there is a unix socket; NULL: none */
	/* Where the reply's bulk goes: its length must match exactly, else -EBADMSG.  With bulk_in_length, and one part, it may be
	 * shorter: so long it was. */
	const struct iovec *bulk_in;
	int bulk_in_count;
	size_t *bulk_in_length;
	/* The reply, unpacked into the arena; NULL if not wanted. */
	ProtobufCMessage **reply;
	/* Where the descriptor goes that comes with the reply (the caller's from then on);
	 * NULL: none is wanted.  -EBADMSG if it is not exactly one. */
	int *descriptor;
	char *why;
	size_t why_size;      /* the server's sentence on an error, if wanted */
	int64_t timeout_ms;   /* of this call; 0: as given to rpc_open */
	int64_t unreached_ms; /* less than that, after a connection was tried in vain; 0: the same */
	/* The caller's own business: where it is under way, and rpc_cancel's wish. */
	struct link *link;
	bool cancelled;
};
int rpc_call(struct rpc *r, struct rpc_call *call, struct arena *arena);

/* What the calling thread does from here on is one piece of work, until it says so again.  Its calls share one time-out for as
 * long as the server is not heard of, because somebody waits for all of them: the first one waits, and the ones after it fail
 * at once.  A thread that never says so has a time-out for each call. */
void rpc_work_begin(void);
/* Whether this piece of work has waited for the server for as long as a call may.  For who waits for what other threads call. */
bool rpc_work_waited(struct rpc *r);
/* From another thread: the call ends soon with -ECANCELED and is not sent again, nor
 * are later ones with the same struct, until its owner clears `cancelled`. */
void rpc_cancel(struct rpc *r, struct rpc_call *call);
/* One try on this very connection: for `restarted`, which must not use rpc_call
 * (that waits for `restarted` to end). */
int rpc_call_on(struct rpc *r, struct connection *c, struct rpc_call *call, struct arena *arena);

int64_t rpc_server_clock_ns(struct rpc *r); /* our wall clock corrected by what replies said */
uint64_t rpc_session(struct rpc *r);
bool rpc_is_local(const struct rpc *r); /* one of the addresses is a unix socket */
uint64_t rpc_exchanges(struct rpc *r);  /* requests sent so far, repeated ones included */
