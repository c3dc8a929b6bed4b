/* Bytes in memory: fixed-width integers in wire order, a growable buffer, and a
 * bounded reader for input that is hostile until checked.
 *
 * Integers are little-endian (le) on the wire and in values; keys are
 * big-endian (be) so that LMDB's order is numeric order.
 *
 * struct buf owns its memory.  A failed allocation makes it `failed` and every
 * later append a no-op, so a caller may append many times and check once.
 *
 * struct reader never reads past its end: a take beyond it returns zeroes and
 * sets `bad`, so a decoder may take many times and check once.
 *
 * No locking: one thread at a time per object. */
#pragma once
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* clang-format off */
static inline void put_le16(void *p, uint16_t v) { v = htole16(v); memcpy(p, &v, 2); }
static inline void put_le32(void *p, uint32_t v) { v = htole32(v); memcpy(p, &v, 4); }
static inline void put_le64(void *p, uint64_t v) { v = htole64(v); memcpy(p, &v, 8); }
static inline void put_be64(void *p, uint64_t v) { v = htobe64(v); memcpy(p, &v, 8); }
static inline void put_be32(void *p, uint32_t v) { v = htobe32(v); memcpy(p, &v, 4); }
static inline uint16_t get_le16(const void *p) { uint16_t v; memcpy(&v, p, 2); return le16toh(v); }
static inline uint32_t get_le32(const void *p) { uint32_t v; memcpy(&v, p, 4); return le32toh(v); }
static inline uint64_t get_le64(const void *p) { uint64_t v; memcpy(&v, p, 8); return le64toh(v); }
static inline uint64_t get_be64(const void *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }
static inline uint32_t get_be32(const void *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
/* clang-format on */

struct buf {
	uint8_t *data;
	size_t len, cap;
	bool failed;
};

void buf_free(struct buf *b);              /* also resets it to empty */
void buf_clear(struct buf *b);             /* keeps the memory, clears `failed` */
void *buf_extend(struct buf *b, size_t n); /* room for n more bytes, counted in len; NULL if failed */
void buf_append(struct buf *b, const void *p, size_t n);
void buf_le8(struct buf *b, uint8_t v);
void buf_le16(struct buf *b, uint16_t v);
void buf_le32(struct buf *b, uint32_t v);
void buf_le64(struct buf *b, uint64_t v);

struct reader {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct reader reader_of(const void *p, size_t n)
{
	return (struct reader){ .p = p, .end = n ? (const uint8_t *)p + n : p };
}
static inline size_t reader_left(const struct reader *r) { return (size_t)(r->end - r->p); }
const uint8_t *take_bytes(struct reader *r, size_t n); /* NULL and bad if there are fewer */
uint8_t take_le8(struct reader *r);
uint16_t take_le16(struct reader *r);
uint32_t take_le32(struct reader *r);
uint64_t take_le64(struct reader *r);
