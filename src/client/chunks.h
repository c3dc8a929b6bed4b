/* The memory cache of chunks read from objects, decoded and verified.
 *
 * A chunk is found by (object, offset of the extent in the object, number of the
 * chunk).  Objects never change, so a chunk is never stale.  chunks_get pins what
 * it returns; the caller unpins each.  Two threads that want the same missing
 * chunk fetch it once.  Unpinned chunks are evicted, least recently used first,
 * to stay below the limit; pinned ones may exceed it for as long as they are
 * pinned (a read pins at most its own length).
 *
 * What was fetched ahead (chunks_ahead) is counted until somebody reads it: `ahead_bytes` of it are here, unread.  Once it was read
 * to its end it is the first to go, before what was fetched ahead and not read yet.
 *
 * Any thread.  Locking: one mutex, never held while fetching. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include "block/extent.h"

struct chunks;
struct chunk;

/* Reads a range of the extent's object into the parts: 0 or -errno (-ENOENT: no such object). */
typedef int (*chunks_fetch)(void *context, const struct extent *e, uint32_t offset, uint32_t length, const struct iovec *into,
			    int count);
/* What was read of the object is damaged; true: another try may bring something else. */
typedef bool (*chunks_doubt)(void *context, uint64_t object);

int chunks_new(uint64_t limit_bytes, chunks_fetch fetch, chunks_doubt doubt, void *context, struct chunks **out);
void chunks_free(struct chunks *c); /* nothing may be pinned */

/* Pins chunks first..last of the extent into out[0..last-first], fetching what is
 * missing in as few requests as possible.  0, or -errno with nothing pinned;
 * -EBADMSG: what the store gave is damaged. */
int chunks_get(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, struct chunk **out);
/* The same for a reader, and how: what is read to its end, and kept by whoever has read it, is the first to be evicted. */
enum chunks_how {
	CHUNKS_LAST_IN_PART = 1, /* all are read to their end, but for the last one */
	CHUNKS_ONCE = 2,         /* even what was not fetched ahead is not worth keeping then */
};
/* Sets *fetched to the bytes that were not here, nor on their way. */
int chunks_read(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, unsigned how, struct chunk **out,
		uint64_t *fetched);
/* Likewise, but only if all of them are here or on their way: else -ENOENT, and nothing is pinned. */
int chunks_find(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, unsigned how, struct chunk **out);
/* Fetches those of them that are neither here nor on their way, and pins nothing.  Errors are for whoever reads them. */
void chunks_ahead(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last);
void chunks_unpin(struct chunks *c, struct chunk *const *chunks, uint32_t count);
const uint8_t *chunk_data(const struct chunk *k);
uint32_t chunk_length(const struct chunk *k);

struct chunks_stats {
	uint64_t hits, fetched_chunks, fetched_bytes, bytes;
	/* Of chunks_ahead: all that was fetched, was read since, was evicted unread; and is here unread. */
	uint64_t ahead_fetched, ahead_used, ahead_wasted, ahead_bytes;
};
uint64_t chunks_limit(const struct chunks *c);
uint64_t chunks_unread(const struct chunks *c); /* ahead_bytes, without waiting for the lock */
void chunks_stats(struct chunks *c, struct chunks_stats *out);
