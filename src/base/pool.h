/* Buffers of one size, recycled.  Allocating large buffers again and again costs
 * page faults and zeroing; a pool keeps up to `keep` of those given back.
 *
 * Those of POOL_ALIGNED bytes or more begin on a page.  Many to a huge page (of a
 * size that divides it) are cut from huge pages: fewer pages for the kernel to look
 * up when it reads or writes them, and neighbours that were taken one after the other
 * most often lie so.
 *
 * With a region, buffers that are not cut from huge pages are taken from there as long as it has room.  Any thread. */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include "base/intmap.h"
#include "base/memory.h"
#include "base/region.h"

#define POOL_ALIGNED ((size_t)64 << 10)
#define POOL_SLAB MEMORY_HUGE

struct pool {
	pthread_mutex_t lock;
	size_t size, count, keep; /* count: of the spares */
	struct pool_spare *spares;
	struct intmap slabs; /* address / POOL_SLAB -> slab */
	struct pool_slab *first_open, *last_open;
	struct region *region; /* outlives the pool; NULL: none */
};

void pool_init(struct pool *p, size_t size, size_t keep, struct region *region);
void pool_free(struct pool *p);  /* the spares; all others must have come back */
void *pool_take(struct pool *p); /* not zeroed; NULL: no memory */
void pool_give(struct pool *p, void *buffer);
