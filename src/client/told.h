/* Orders that jobs have told (order.h): threads that fetch ahead of the readers.
 *
 * With a cache on the local disk large files go there, told (CACHE_TOLD), so that they take the place of others.  So do the packs
 * small ones are in, if the cache would take them in anyway: a pack is a hundred times as large as what is wanted of it, and
 * would cost others that will be read as well.  Otherwise, and without a cache, they go to memory, of which all orders together use at most
 * half.  Without a cache their windows are smaller than asked for, therefore.  What cannot be fetched is left to the reader, who meets
 * the error himself.
 *
 * Any number of orders at a time; threads take from each in turn.
 *
 * Any thread; an order is told by one. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct client;
struct told_order;

#define TOLD_THREADS 8
#define TOLD_ORDERS 16
#define TOLD_ENTRIES 65536u

struct told {
	pthread_mutex_t lock; /* guards all below, but `any`, and the orders; the last of all locks */
	pthread_cond_t work, room;
	_Atomic bool any; /* there are orders: also looked at without the lock */
	struct told_order *orders[TOLD_ORDERS];
	unsigned count, turn;
	bool stopping;
	pthread_t threads[TOLD_THREADS];
	int thread_count;
};

struct told_progress {
	uint64_t window, ahead;                          /* as they are */
	uint64_t added, seen, passed, failed;            /* files */
	uint64_t ready, ready_bytes;                     /* fetched, or found to be here, so far */
	uint64_t waiting;                                /* known, and not seen yet */
	uint64_t ahead_files, ahead_bytes, memory_bytes; /* ready, or on their way, and not seen yet */
};

void told_init(struct told *t);
void told_stop(struct client *c); /* all orders have been ended */

/* 0; -EMFILE: there are TOLD_ORDERS already; -ENOMEM, -EAGAIN. */
int told_begin(struct client *c, uint64_t window, uint64_t ahead, struct told_order **out);
void told_end(struct client *c, struct told_order *o);
/* The next file, and how large it is; -EAGAIN: there is no room, also after waiting for `wait_ms`; -ENOMEM. */
int told_add(struct client *c, struct told_order *o, uint64_t inode, uint64_t bytes, int64_t wait_ms);
void told_progress(struct client *c, struct told_order *o, struct told_progress *out);
unsigned told_progress_all(struct client *c, struct told_progress out[TOLD_ORDERS]); /* how many there are */

void told_look(struct client *c, uint64_t inode);
/* Somebody opens or reads the file. */
#define told_seen(c, inode) \
	do { \
		if (atomic_load_explicit(&(c)->told.any, memory_order_relaxed)) \
			told_look(c, inode); \
	} while (0)
