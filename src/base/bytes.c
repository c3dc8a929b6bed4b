#include "base/bytes.h"
#include <stdlib.h>

#define BUF_FIRST 256u

void buf_free(struct buf *b)
{
	free(b->data);
	*b = (struct buf){ 0 };
}

void buf_clear(struct buf *b)
{
	b->len = 0;
	b->failed = false;
}

static bool buf_reserve(struct buf *b, size_t n)
{
	if (n > SIZE_MAX / 2 - b->len)
		return false;
	size_t cap = b->cap ? b->cap : BUF_FIRST;
	while (cap < b->len + n)
		cap *= 2;
	uint8_t *data = realloc(b->data, cap);
	if (!data)
		return false;
	b->data = data;
	b->cap = cap;
	return true;
}

void *buf_extend(struct buf *b, size_t n)
{
	if (b->failed)
		return NULL;
	if ((!b->data || n > b->cap - b->len) && !buf_reserve(b, n)) {
		b->failed = true;
		return NULL;
	}
	void *at = b->data + b->len;
	b->len += n;
	return at;
}

void buf_append(struct buf *b, const void *p, size_t n)
{
	void *at = n ? buf_extend(b, n) : NULL;
	if (at)
		memcpy(at, p, n);
}

void buf_le8(struct buf *b, uint8_t v) { buf_append(b, &v, 1); }

void buf_le16(struct buf *b, uint16_t v)
{
	v = htole16(v);
	buf_append(b, &v, sizeof v);
}

void buf_le32(struct buf *b, uint32_t v)
{
	v = htole32(v);
	buf_append(b, &v, sizeof v);
}

void buf_le64(struct buf *b, uint64_t v)
{
	v = htole64(v);
	buf_append(b, &v, sizeof v);
}

const uint8_t *take_bytes(struct reader *r, size_t n)
{
	if (r->bad || n > reader_left(r)) {
		r->bad = true;
		r->p = r->end;
		return NULL;
	}
	if (n == 0)
		return r->p ? r->p : (const uint8_t *)"";
	const uint8_t *at = r->p;
	r->p += n;
	return at;
}

uint8_t take_le8(struct reader *r)
{
	const uint8_t *p = take_bytes(r, 1);
	return p ? *p : 0;
}

uint16_t take_le16(struct reader *r)
{
	const uint8_t *p = take_bytes(r, 2);
	return p ? get_le16(p) : 0;
}

uint32_t take_le32(struct reader *r)
{
	const uint8_t *p = take_bytes(r, 4);
	return p ? get_le32(p) : 0;
}

uint64_t take_le64(struct reader *r)
{
	const uint8_t *p = take_bytes(r, 8);
	return p ? get_le64(p) : 0;
}
