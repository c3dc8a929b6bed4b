/* Written but not yet stored bytes of one file: segments that do not overlap, in
 * the order of their offsets.  A segment never crosses a block boundary, so that
 * it can become one extent.
 *
 * The caller holds the inode's lock.  A segment's bytes belong to it; pools
 * recycle the large ones. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/pool.h"
#include "client/spool.h"

struct segment {
	uint64_t offset;
	uint32_t length, capacity;
	uint64_t first_write; /* number of the oldest write in it: what fsync waits for */
	uint8_t *data;
	void *buffer;      /* what `data` lies in; most often the same */
	struct pool *pool; /* where the buffer goes back to; NULL: free */
	/* With a reference, if its bytes are on the local disk: then `data` is NULL. */
	struct spool *spool;
	uint64_t place;             /* in it */
	struct spool_record record; /* that they are all of, or a part */
	bool verified;              /* it was, since it is there */
};
static inline uint64_t segment_end(const struct segment *s) { return s->offset + s->length; }

struct segments {
	struct segment **at; /* sorted by offset */
	size_t count, capacity;
	uint64_t bytes;      /* in all of them */
	struct pool *blocks; /* buffers of a whole block; NULL: none, as in tests */
};

/* Memory a segment costs, for the limit on unstored data. */
static inline uint64_t segment_cost(const struct segment *s) { return sizeof(*s) + s->capacity; }

/* Writes over what is there and into the gaps.  *cost grows by the memory taken.
 * 0 or -ENOMEM; what was written before the failure stays (and *written tells
 * how much that was), and so does what was there behind it. */
int segments_write(struct segments *s, uint32_t block_size, uint64_t offset, const uint8_t *data, size_t size,
		   uint64_t write_number, int64_t *cost, size_t *written);
/* Takes over a buffer of the pool, with the data in it, as a segment: for writes of
 * which copying is most of the cost.  -EINVAL: it would not fit in a block, overlaps
 * what is there, or fills too little of the buffer; copy it then.  -ENOMEM. */
int segments_adopt(struct segments *s, uint32_t block_size, uint64_t offset, uint8_t *data, size_t size, uint64_t write_number,
		   void *buffer, struct pool *pool, int64_t *cost);
/* Takes in bytes that are on the local disk, the whole record or a part of it, instead of whatever is there.  They lie within a
 * block.  -ENOMEM: nothing has changed. */
int segments_put_spooled(struct segments *s, uint64_t offset, uint32_t length, struct spool *spool, uint64_t place,
			 const struct spool_record *record, uint64_t write_number, int64_t *cost);
/* The segment's bytes are on the disk from now on; its memory goes. */
void segment_set_spooled(struct segment *segment, struct spool *spool, const struct spool_record *record, int64_t *cost);
/* Of the bytes of one of them.  What is on the local disk is verified when something of it is read for the first time, or if it is `doubted`, the record
 * as a whole: later reads mostly come from the kernel's pages.  0, -EIO or -ENOMEM. */
int segment_read(const struct segments *s, struct segment *segment, uint64_t from, void *into, size_t length, bool doubted);
/* Index of the first segment that ends after offset. */
size_t segments_find(const struct segments *s, uint64_t offset);
bool segments_overlap(const struct segments *s, uint64_t from, uint64_t to);
uint64_t segments_end(const struct segments *s); /* the end of the last one, 0 if none */
/* Drops everything at or after `from`. */
void segments_cut(struct segments *s, uint64_t from, int64_t *cost);
int segments_add(struct segments *s, struct segment *segment);   /* must not overlap; 0 or -ENOMEM */
struct segment *segments_take(struct segments *s, size_t index); /* out of the list, now the caller's */
void segments_drop(struct segments *s, struct segment *segment); /* out of the list, not freed */
void segments_free(struct segments *s);
struct segment *segment_new(uint64_t offset, uint32_t capacity);
void segment_free(struct segment *segment);
/* Takes back a segment whose upload failed: only where nothing newer is.  Frees it, unless it is -ENOMEM: then some of
 * it may be there. */
int segments_restore(struct segments *s, uint32_t block_size, struct segment *segment, int64_t *cost);
