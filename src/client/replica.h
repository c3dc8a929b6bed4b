/* A replica: this client keeps the whole namespace of its volume in a file of its own (meta/replica.h) and asks nobody for
 * names, attributes, listings and extents.  It only reads.
 *
 *   server --(STREAM_SNAPSHOT, STREAM_FOLLOW)--> the stream's thread --> the file --> look-ups, on any thread
 *                                                      |
 *                                                      +--> news --> the news' thread --> the kernel forgets what changed
 *
 * It is always what the server had after some batch, never a mixture of two.  How old that is at most is counted from
 * when the last request was sent whose answer said that nothing newer is there.  Past `max_lag` nothing is served any more
 * (-EIO) until the server is heard of again; that is an hour unless the user wants less, because the server keeps deleted
 * objects for an hour while there are replicas.
 *
 *   state         serves          left by
 *   copying       no              the first copy is whole
 *   following     yes             an error of the server's: away; ESTALE: copying again
 *   copying again yes, the old    it is whole: all of it is seen at once
 *   away          yes, to max_lag the server answers
 *   of other data yes, to max_lag unmounting: the server has another history, or another volume of that name
 *
 * It survives the mount.  Without a server a replica that is there and whole can be mounted, and serves what it has; contents
 * come from the cache on the disk or not at all.
 *
 * There is no lease and no grant here, and the server does not know what is open: a file deleted elsewhere can be
 * read on as long as its extents are known here, and its objects are in the store.
 *
 * Locks: `lock` after inode.lock; news.lock alone. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "client/client.h"
#include "meta/replica.h"
#include "rpc/caller.h"

struct inode;
struct entry;

#define REPLICA_LAG_MOST_MS (3600 * 1000LL)

/* What is to be told to the kernel, batch by batch, by a thread that may have to wait for it. */
struct news {
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	struct news_batch *first, **end;
	size_t waiting; /* how many are in them */
	bool stopping, started;
	pthread_t thread;
};

struct replica {
	char *folder;
	int in_use; /* a locked descriptor: one mount at a time */
	struct meta *meta;
	struct caller who;
	int64_t max_lag_ns;
	_Atomic int64_t as_of_steady_ns; /* it was current then */
	_Atomic bool refusing;           /* that was too long ago, and somebody was told */
	_Atomic bool away;               /* the server did not answer the last time */

	pthread_mutex_t lock;     /* guards all below */
	pthread_cond_t current;   /* as_of has moved */
	struct replica_head head; /* of what is committed; batch and as of may be ahead of the file's */
	bool bound;               /* it is known whose replica it is */
	bool copying, foreign;
	struct client_space space;

	/* The stream's thread's own. */
	struct rpc_call call;
	uint8_t *bulk;
	int64_t written_ns; /* when the head was last committed */
	/* The request sent at `mark_ns` (0: none) was told that `mark_batch` is the newest: once that is here, it is of then. */
	uint64_t mark_batch;
	int64_t mark_ns;
	struct news_batch *batch;
	pthread_t thread;
	bool started;
	_Atomic bool stopping;

	struct news news;
};

/* What is there already is opened.  Before the process has threads. */
int replica_prepare(struct client *c, const struct client_options *o, char *error, size_t error_size);
bool replica_can_do_without_server(const struct client *c);
/* What HELLO would have answered.  The memory is from the arena. */
int replica_hello(struct client *c, const struct client_options *o, struct arena *arena, Wire__HelloReply *out, char *error,
		  size_t error_size);
/* Makes it one of the server's that answered (NULL: none did), copies, and follows up to now. */
int replica_bind(struct client *c, const Wire__HelloReply *hello, char *error, size_t error_size);
int replica_start(struct client *c); /* the threads */
void replica_stop(struct client *c);
void replica_free(struct client *c);

/* replica_stream.c */
int replica_sync(struct client *c); /* until it is whole and there is nothing newer */
void *replica_run(void *context);
/* replica_news.c */
void news_init(struct news *n);
int news_start(struct client *c);
void news_bar(struct client *c); /* nobody waits to add any more, and no more is told */
void news_stop(struct client *c);
void news_free(struct news *n);
struct news_batch *news_batch_new(void);
void news_batch_free(struct news_batch *b);
int news_note(void *batch, const struct change *now, struct span before); /* for replica_update.each */
void news_add(struct client *c, struct news_batch *b);                    /* takes it over; waits while there are too many */

/* ---- Serving; any thread ---- */

int64_t replica_age_ns(const struct replica *r);
/* A call of the client's that reads: answered from here.  -EROFS for all that change something. */
int replica_call(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply);
int replica_find(struct client *c, uint64_t parent, const char *name, struct entry *out);
int replica_entry(struct client *c, uint64_t inode, struct entry *out);
/* Until the content is not marked any more (meta/marks.h); -EIO: that took too long.  Without any lock. */
int replica_await_unmarked(struct client *c, uint64_t inode, int64_t deadline_ns);
/* inode.lock is held: attributes are those of now, and the window is dropped if it is not of that content.  -EBUSY: it is marked. */
int replica_refresh(struct inode *i);
/* An object is gone: until what the server has now is here, or that takes too long.  Without any lock. */
void replica_await(struct client *c);
