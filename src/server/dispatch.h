/* From a frame to its answer.
 *
 * Reads are answered on the peer's thread from a snapshot of meta, mutations are
 * queued to its writer, the rest is served by the parts of the server: a handler
 * gets the decoded request and gives a reply from its arena. */
#pragma once
#include "server/peer.h"

/* Mutations that are tried again, each on a thread of its own. */
struct retries {
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t none;
	unsigned count;
	bool stopped;
};
void retries_init(struct retries *t);
void retries_stop(struct server *s); /* after the peers: from the return on there are none */
void retries_free(struct retries *t);

/* 0; or -errno, when the connection is to be closed. */
int dispatch(struct peer *p, const struct frame *f, const uint8_t *message);

struct request {
	struct server *server;
	struct peer *peer;
	const struct frame *frame;
	const ProtobufCMessage *message;
	struct arena *arena;
	ProtobufCMessage *reply; /* set by the handler */
	bool bulk_taken;         /* the handler received (or skipped) the bulk bytes */
	char why[240];           /* for the ErrorReply */
};

/* 0 with a reply, -errno, REQUEST_ANSWERED (the handler sent the answer itself)
 * or REQUEST_BROKEN (the connection failed: close it). */
enum { REQUEST_ANSWERED = 1, REQUEST_BROKEN = 2 };
typedef int (*request_handler)(struct request *q);

int request_explain(struct request *q, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4))); /* returns error */
/* A zeroed reply of the type, from the arena, also set as q->reply; NULL: no memory. */
void *request_reply(struct request *q, const ProtobufCMessageDescriptor *type);
char *arena_string(struct arena *a, const char *text); /* NULL: no memory */

/* session.c */
int serve_hello(struct request *q);
int serve_goodbye(struct request *q);
int serve_reclaim(struct request *q);
/* files.c */
int serve_open(struct request *q);
int serve_extents(struct request *q);
int serve_close(struct request *q);
int serve_return(struct request *q);
int file_reclaim(struct request *q, uint64_t inode, Wire__Grant grant);
/* lease.c */
int serve_lease(struct request *q);
/* locks.c */
int serve_lock(struct request *q);
int serve_lock_wait(struct request *q);
int serve_lock_reclaim(struct request *q);
/* space.c */
int serve_reserve(struct request *q);
int serve_statfs(struct request *q);
/* gateway.c */
int serve_object_put(struct request *q);
int serve_object_get(struct request *q);
int serve_object_open(struct request *q);
/* jobs.c */
int serve_job_start(struct request *q);
int serve_job_poll(struct request *q);
int serve_job_cancel(struct request *q);
/* stream.c */
int serve_stream_snapshot(struct request *q);
int serve_stream_follow(struct request *q);
/* status.c */
int serve_status(struct request *q);
