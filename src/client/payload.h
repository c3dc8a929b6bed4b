/* An object on its way to the store, as parts: bytes of its own (what was encoded,
 * tables, the footer) and, where a volume does not compress, bytes that stay where
 * they are, in the segments.  Those must not change or go before the object is
 * stored.
 *
 *	payload_clear(&p);
 *	r = payload_add(&p, raw, count, codec, level, &extent);   one or more times
 *	r = payload_finish(&p, object, &parts, &part_count);
 *
 * One thread at a time.  The memory is kept for the next object. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/bytes.h"
#include "block/extent.h"

struct payload {
	struct buf own;
	struct payload_piece *pieces;
	size_t count, capacity;
	struct iovec *parts;
	size_t part_capacity;
	uint64_t bytes; /* of all pieces */
};

void payload_free(struct payload *p); /* also resets it to empty */
void payload_clear(struct payload *p);
/* Adds the stored form of the raw bytes; fills what extent_encode fills.  0 or -errno. */
int payload_add(struct payload *p, const struct iovec *raw, size_t count, enum codec codec, int level, struct extent *e);
/* Adds the footer.  The parts are the payload's, until it is cleared. */
int payload_finish(struct payload *p, uint64_t object, const struct iovec **parts, size_t *count);
