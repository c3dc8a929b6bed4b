/* Buffers of one size, recycled.  Allocating large buffers again and again costs
 * page faults and zeroing; a pool keeps up to `keep` of those given back.  Those
 * of POOL_ALIGNED bytes or more begin on a page.
 * Any thread. */
#pragma once
#include <pthread.h>
#include <stddef.h>

#define POOL_ALIGNED ((size_t)64 << 10)

struct pool {
	pthread_mutex_t lock;
	size_t size, count, keep;
	struct pool_spare *spares;
};

void pool_init(struct pool *p, size_t size, size_t keep);
void pool_free(struct pool *p);  /* the spares; all others must have come back */
void *pool_take(struct pool *p); /* not zeroed; NULL: no memory */
void pool_give(struct pool *p, void *buffer);
