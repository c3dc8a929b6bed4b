#include "base/pool.h"
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/memory.h"

/* A spare buffer holds the link to the next one. */
struct pool_spare {
	struct pool_spare *next;
};

/* A huge page, cut into up to 32 buffers.  In the list of open ones while some are
 * free; those that are nearly full stand at its front and are filled first, so that
 * others become empty and can go. */
struct pool_slab {
	uint8_t *base;
	uint32_t free, all; /* a bit for each */
	struct pool_slab *next, *before;
};

static bool is_slabbed(const struct pool *p)
{
	return p->size >= POOL_ALIGNED && p->size <= POOL_SLAB / 4 && POOL_SLAB % p->size == 0;
}

void pool_init(struct pool *p, size_t size, size_t keep, struct region *region)
{
	*p = (struct pool){ .size = size < sizeof(struct pool_spare) ? sizeof(struct pool_spare) : size,
			    .keep = keep,
			    .region = region };
	pthread_mutex_init(&p->lock, NULL);
}

/* ---- Slabs; the lock is held ---- */

static void open_remove(struct pool *p, struct pool_slab *s)
{
	*(s->before ? &s->before->next : &p->first_open) = s->next;
	*(s->next ? &s->next->before : &p->last_open) = s->before;
	s->next = s->before = NULL;
}

static void open_add(struct pool *p, struct pool_slab *s, bool at_end)
{
	s->before = at_end ? p->last_open : NULL;
	s->next = at_end ? NULL : p->first_open;
	*(s->before ? &s->before->next : &p->first_open) = s;
	*(s->next ? &s->next->before : &p->last_open) = s;
}

static void slab_free(struct pool *p, struct pool_slab *s)
{
	open_remove(p, s);
	intmap_remove(&p->slabs, (uintptr_t)s->base / POOL_SLAB);
	memory_unmap(s->base, POOL_SLAB);
	free(s);
}

static struct pool_slab *slab_new(struct pool *p)
{
	struct pool_slab *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->all = s->free = UINT32_MAX >> (32 - POOL_SLAB / p->size);
	s->base = memory_map(POOL_SLAB);
	if (!s->base || intmap_set(&p->slabs, (uintptr_t)s->base / POOL_SLAB, s)) {
		if (s->base)
			memory_unmap(s->base, POOL_SLAB);
		free(s);
		return NULL;
	}
	p->count += POOL_SLAB / p->size;
	open_add(p, s, false);
	return s;
}

static void *slab_take(struct pool *p)
{
	struct pool_slab *s = p->first_open ? p->first_open : slab_new(p);
	int k;
	if (!s)
		return NULL;
	k = __builtin_ctz(s->free);
	s->free &= ~(UINT32_C(1) << k);
	p->count--;
	if (!s->free)
		open_remove(p, s);
	return s->base + (size_t)k * p->size;
}

static void slab_give(struct pool *p, uint8_t *buffer)
{
	struct pool_slab *s = intmap_get(&p->slabs, (uintptr_t)buffer / POOL_SLAB);
	bool was_full = !s->free;
	s->free |= UINT32_C(1) << ((size_t)(buffer - s->base) / p->size);
	p->count++;
	if (was_full)
		open_add(p, s, false);
	if (s->free != s->all)
		return;
	if (p->count > p->keep) {
		p->count -= POOL_SLAB / p->size;
		slab_free(p, s);
	} else {
		open_remove(p, s);
		open_add(p, s, true);
	}
}

/* ---- Both kinds ---- */

static void buffer_free(struct pool *p, void *buffer)
{
	if (buffer && region_holds(p->region, buffer, p->size))
		region_give(p->region, buffer, p->size);
	else if (buffer && p->size >= POOL_SLAB)
		memory_unmap(buffer, p->size);
	else
		free(buffer);
}

void pool_free(struct pool *p)
{
	while (p->spares) {
		struct pool_spare *spare = p->spares;
		p->spares = spare->next;
		buffer_free(p, spare);
	}
	while (p->first_open)
		slab_free(p, p->first_open);
	intmap_free(&p->slabs);
	pthread_mutex_destroy(&p->lock);
}

static void *buffer_new(struct pool *p)
{
	void *buffer = p->region ? region_take(p->region, p->size) : NULL;
	if (buffer)
		return buffer;
	if (p->size < POOL_ALIGNED)
		return malloc(p->size);
	if (p->size >= POOL_SLAB)
		return memory_map(p->size);
	return posix_memalign(&buffer, (size_t)sysconf(_SC_PAGESIZE), p->size) ? NULL : buffer;
}

void *pool_take(struct pool *p)
{
	struct pool_spare *spare;
	if (is_slabbed(p)) {
		LOCKED(&p->lock);
		return slab_take(p);
	}
	pthread_mutex_lock(&p->lock);
	spare = p->spares;
	if (spare) {
		p->spares = spare->next;
		p->count--;
	}
	pthread_mutex_unlock(&p->lock);
	return spare ? spare : buffer_new(p);
}

void pool_give(struct pool *p, void *buffer)
{
	struct pool_spare *spare = buffer;
	if (!spare)
		return;
	if (is_slabbed(p)) {
		LOCKED(&p->lock);
		slab_give(p, buffer);
		return;
	}
	pthread_mutex_lock(&p->lock);
	if (p->count < p->keep) {
		spare->next = p->spares;
		p->spares = spare;
		p->count++;
		spare = NULL;
	}
	pthread_mutex_unlock(&p->lock);
	buffer_free(p, spare);
}
