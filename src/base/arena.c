/* Chunks in a list, newest first; memory is cut from the newest.  A request too
 * big for a usual chunk gets one of its own behind the newest, so that the rest
 * of that one is not lost. */
#include "base/arena.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN 16u
#define CHUNK_FIRST (4u << 10)
#define CHUNK_MOST (64u << 10) /* what a reset may keep, so that one big message does not stay for ever */

struct arena_chunk {
	struct arena_chunk *next;
	size_t size, used;
	_Alignas(ARENA_ALIGN) uint8_t data[];
};

static void *allocator_take(void *context, size_t n) { return arena_take(context, n); }

static void allocator_free(void *context, void *p) {}

void arena_init(struct arena *a, size_t limit)
{
	*a = (struct arena){ .limit = limit };
	a->allocator = (ProtobufCAllocator){ .alloc = allocator_take, .free = allocator_free, .allocator_data = a };
}

static void chunks_free(struct arena_chunk *c)
{
	while (c) {
		struct arena_chunk *next = c->next;
		free(c);
		c = next;
	}
}

void arena_free(struct arena *a)
{
	chunks_free(a->chunk);
	a->chunk = NULL;
	a->taken = 0;
}

void arena_reset(struct arena *a)
{
	struct arena_chunk *keep = a->chunk;
	a->taken = 0;
	if (!keep)
		return;
	chunks_free(keep->next);
	keep->next = NULL;
	keep->used = 0;
	if (keep->size > CHUNK_MOST) {
		free(keep);
		a->chunk = NULL;
	}
}

static struct arena_chunk *chunk_new(size_t size)
{
	struct arena_chunk *c = malloc(sizeof *c + size);
	if (c) {
		c->next = NULL;
		c->size = size;
		c->used = 0;
	}
	return c;
}

static struct arena_chunk *chunk_add(struct arena *a, size_t n)
{
	size_t size = a->chunk ? a->chunk->size * 2 : CHUNK_FIRST;
	if (size > CHUNK_MOST)
		size = CHUNK_MOST;
	struct arena_chunk *c = chunk_new(n > size ? n : size);
	if (!c)
		return NULL;
	if (n > size && a->chunk) {
		c->next = a->chunk->next;
		a->chunk->next = c;
	} else {
		c->next = a->chunk;
		a->chunk = c;
	}
	return c;
}

void *arena_take(struct arena *a, size_t n)
{
	if (n > SIZE_MAX / 4)
		return NULL;
	n = (n + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
	if (a->limit && n > a->limit - a->taken)
		return NULL;
	struct arena_chunk *c = a->chunk;
	if (!c || n > c->size - c->used)
		c = chunk_add(a, n);
	if (!c)
		return NULL;
	void *at = c->data + c->used;
	c->used += n;
	a->taken += n;
	return at;
}

void *arena_zero(struct arena *a, size_t n)
{
	void *p = arena_take(a, n);
	return p ? memset(p, 0, n) : NULL;
}

void *arena_copy(struct arena *a, const void *from, size_t n)
{
	void *p = arena_take(a, n);
	if (p && n)
		memcpy(p, from, n);
	return p;
}
