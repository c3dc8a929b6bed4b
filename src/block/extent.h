/* An extent: a run of a file's bytes and where they are stored.
 *
 * Stored form.  The raw bytes are cut into chunks of CHUNK_BYTES (the last one
 * shorter); each chunk is compressed on its own, or kept raw where that is not
 * smaller.  So a range of an extent can be read and verified without the rest.
 *
 *   one chunk:    | chunk |                              checksum = XXH3-64 of the chunk
 *   more:         | chunk 0 | chunk 1 | ... | table |    checksum = XXH3-64 of the table
 *                 table: per chunk  stored length le32, XXH3-64 of the stored bytes le64
 *
 * A chunk whose stored length equals its raw length is raw, whatever the codec.
 *
 * A file refers to a slice of the raw bytes: [skip, skip + length).  Overwriting
 * or truncating part of an extent only changes the slice.
 *
 * Packed (EXTENT_PACKED bytes, little-endian), on the wire:
 *   file offset 8 | then the value as in LMDB (EXTENT_VALUE bytes):
 *   length 4 | skip 4 | raw length 4 | stored length 4 | object offset 4 | codec 1 | object 8 | checksum 8
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/bytes.h"

#define CHUNK_BYTES 65536u
#define CHUNK_ENTRY 12u
#define BLOCK_MIN (64u << 10)
#define BLOCK_MAX (64u << 20)
#define BLOCK_DEFAULT (4u << 20)
#define FILE_SIZE_MAX ((uint64_t)1 << 60) /* bytes; offsets stay far from overflow */

enum codec { CODEC_NONE = 0, CODEC_LZ4 = 1, CODEC_ZSTD = 2 };

struct extent {
	uint64_t offset; /* in the file */
	uint32_t length; /* of the slice */
	uint32_t skip;   /* of the slice in the raw bytes */
	uint32_t raw_length;
	uint32_t stored_length; /* with the table */
	uint32_t object_offset;
	uint64_t object;
	uint64_t checksum;
	uint8_t codec;
};

#define EXTENT_VALUE 37u
#define EXTENT_PACKED (8u + EXTENT_VALUE)

void extent_value_pack(const struct extent *e, uint8_t out[EXTENT_VALUE]);
/* Both check every field against the others: 0 or -EBADMSG. */
int extent_value_unpack(uint64_t file_offset, const void *value, size_t size, struct extent *out);
void extent_pack(struct buf *out, const struct extent *e);
int extent_unpack(struct reader *in, struct extent *out);
int extent_check(const struct extent *e);
bool extent_equal(const struct extent *a, const struct extent *b);
static inline uint64_t extent_end(const struct extent *e) { return e->offset + e->length; }
static inline uint32_t extent_chunks(uint32_t raw_length) { return (raw_length + CHUNK_BYTES - 1) / CHUNK_BYTES; }
/* Bytes of the table at the end of the stored form: 0 for a single chunk. */
static inline uint32_t extent_table_bytes(uint32_t raw_length)
{
	return raw_length > CHUNK_BYTES ? extent_chunks(raw_length) * CHUNK_ENTRY : 0;
}

/* "none", "lz4", "zstd", "zstd:7" (1 to 19; 3 if not said). */
int codec_parse(const char *text, enum codec *codec, int *level);

/* Appends the stored form of raw bytes to `out` and fills raw_length,
 * stored_length, checksum and codec (CODEC_NONE where no chunk shrank) of *e (skip 0, length = raw_length;
 * object_offset = where in `out` it went).  0, -ENOMEM, -EINVAL (0 or over
 * BLOCK_MAX bytes).  Any thread; no state. */
int extent_encode(const void *raw, uint32_t raw_length, enum codec codec, int level, struct buf *out, struct extent *e);

/* Whether compressing is worth trying, by a look at some of it: slices, of which the codec makes at least one smaller by a
 * thirty-second part.  15 to 75 us for a block of 4 MiB, where compressing in vain takes 1 ms (lz4, zstd:3) to 15 (zstd:5 and on).
 * What is smaller than two chunks is always worth it. */
bool extent_may_shrink(const struct iovec *raw, size_t count, enum codec codec);

/* The same for raw bytes that are kept as they are and where they are: appends
 * only the table that follows them to `out` (nothing, for a single chunk).  Leaves
 * object_offset alone. */
int extent_describe(const struct iovec *raw, size_t count, struct buf *out, struct extent *e);

/* The chunk table of an extent (of no bytes, if it is a single chunk), checked: offsets[i] is where
 * chunk i starts in the stored form, offsets[chunks] where the table does.
 * `checksums` has room for as many chunks.  0 or -EBADMSG. */
int extent_table_check(const struct extent *e, const void *table, size_t size, uint32_t *offsets, uint64_t *checksums);
/* One chunk back to raw.  `raw` has room for the chunk's raw length.  A raw chunk
 * may be checked in place: stored == raw is allowed then.  0, -EBADMSG, -ENOMEM. */
int chunk_decode(enum codec codec, uint64_t checksum, const void *stored, uint32_t stored_length, void *raw, uint32_t raw_length);
/* The whole stored form back to raw (raw_length bytes).  0, -EBADMSG, -ENOMEM. */
int extent_decode(const struct extent *e, const void *stored, void *raw);
