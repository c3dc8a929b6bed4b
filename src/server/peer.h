/* A peer: the server's end of a connection, with a thread that reads its frames.
 *
 * It lives as long as anybody refers to it: its thread, and each mutation on its
 * way through meta's writer, whose answer is sent from there.
 *
 * Answers are sent by one thread at a time.  The peer's own thread waits for its
 * turn; the writer never does: what it cannot send at once is left with whoever
 * is sending, and a peer that does not take its answers is cut off (it comes back
 * and is told the remembered ones). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "meta/meta.h"
#include "rpc/connection.h"

struct server;
struct session;
struct touch;

struct peers {
	pthread_mutex_t lock; /* guards the list, and peer.session for readers that are not its thread */
	pthread_cond_t gone;  /* one left the list */
	struct peer *first;
	int count;
	bool stopping;
};

/* A mutation on its way. */
struct pending {
	struct mutation mutation;
	struct arena arena; /* the request */
	struct frame frame;
	struct peer *peer;
	struct session *session; /* a reference; NULL: for administration */
	uint32_t recalled;       /* the volume whose lease is kept back until it is done; 0: none */
	uint32_t volume;         /* of what it touches */
	struct touch *touched;   /* between grants_change_begin and grants_change_end, if `changing` */
	size_t touched_count;
	bool changing;
	bool alone;  /* when it was looked for grants of others there was no company */
	bool queued; /* counts in session.queued */
};

struct peer {
	struct server *server;
	struct connection *connection;
	_Atomic int refs;
	struct peer *next, *before; /* in peers */

	/* Its thread's. */
	struct arena arena; /* of the request being served */
	bool greeted;
	bool local;              /* came by the unix socket */
	struct session *session; /* NULL: for administration */
	struct caller who;
	int refusal; /* what hello is answered: 0, or -errno with the text */
	const char *refusal_text;

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t quiet; /* not sending any more, or fewer pending */
	bool sending, broken;
	struct outgoing *first, *last; /* left by the writer */
	size_t outgoing_bytes;
	int pending_count;
	struct pending *spare;
};

void peers_init(struct peers *p);
/* Ends all: each finishes the request it is at.  Returns when the last thread is gone. */
void peers_stop(struct server *s);
void peers_free(struct peers *p);
/* Cuts off the peers of a session, but for one. */
void peers_cut(struct server *s, const struct session *session, const struct peer *but);

/* Takes the descriptor.  With a refusal the peer is told so and nothing else. */
int peer_start(struct server *s, int fd, bool local, int refusal, const char *refusal_text);
void peer_unref(struct peer *p);
void peer_join(struct peer *p, struct session *session); /* takes the reference; NULL leaves the session */

/* From the peer's thread.  0, or -errno: the connection is of no more use; but
 * -EMSGSIZE: too much for an answer, refuse it. */
int peer_answer(struct peer *p, const struct frame *request, const ProtobufCMessage *reply, const struct iovec *bulk,
		int bulk_count);
int peer_answer_file(struct peer *p, const struct frame *request, int file, uint64_t offset, uint32_t length);
int peer_answer_descriptor(struct peer *p, const struct frame *request, int descriptor);
int peer_refuse(struct peer *p, const struct frame *request, int error, const char *text);

/* Waits until not too many are on their way, then gives an empty one, to be
 * submitted or dropped; NULL: no memory.  It holds a reference to the peer. */
struct pending *pending_new(struct peer *p, const struct frame *request);
void pending_answer(struct pending *n, int status); /* from any thread: sends mutation.packed and drops it */
void pending_drop(struct pending *n);
