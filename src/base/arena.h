/* Memory with one life: everything taken from an arena goes with arena_free (or
 * is reused after arena_reset).  It doubles as a ProtobufCAllocator, so that
 * unpacking a message costs no malloc per field.  One thread at a time.
 * `limit` bounds what a hostile message can make us take (0: no bound). */
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct arena {
	struct arena_chunk *chunk;
	size_t taken, limit;
	ProtobufCAllocator allocator;
};

void arena_init(struct arena *a, size_t limit);
void arena_free(struct arena *a);
void arena_reset(struct arena *a);           /* keeps one chunk */
void *arena_take(struct arena *a, size_t n); /* 16-byte aligned, not zeroed; NULL if none */
void *arena_zero(struct arena *a, size_t n);
void *arena_copy(struct arena *a, const void *p, size_t n);
