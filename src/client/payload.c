#include "client/payload.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "block/object.h"

/* Below this, on average, copying a part costs less than naming it. */
#define REFER_BYTES 16384u

/* `own` moves when it grows, so its pieces are offsets until the end. */
struct payload_piece {
	const uint8_t *data; /* NULL: in `own`, at the offset */
	size_t offset, length;
};

void payload_free(struct payload *p)
{
	buf_free(&p->own);
	free(p->pieces);
	free(p->parts);
	*p = (struct payload){ 0 };
}

void payload_clear(struct payload *p)
{
	buf_clear(&p->own);
	p->count = 0;
	p->bytes = 0;
}

static int piece_add(struct payload *p, const void *data, size_t offset, size_t length)
{
	struct payload_piece *last = p->count ? &p->pieces[p->count - 1] : NULL;
	if (length == 0)
		return 0;
	p->bytes += length;
	if (last && !data && !last->data && last->offset + last->length == offset) {
		last->length += length;
		return 0;
	}
	if (p->count == p->capacity) {
		size_t capacity = p->capacity ? p->capacity * 2 : 16;
		struct payload_piece *pieces = realloc(p->pieces, capacity * sizeof(*pieces));
		if (!pieces)
			return -ENOMEM;
		p->pieces = pieces;
		p->capacity = capacity;
	}
	p->pieces[p->count++] = (struct payload_piece){ data, offset, length };
	return 0;
}

static int raw_refer(struct payload *p, const struct iovec *raw, size_t count, struct extent *e)
{
	size_t table = p->own.len;
	int r = extent_describe(raw, count, &p->own, e);
	for (size_t k = 0; k < count && !r; k++)
		r = piece_add(p, raw[k].iov_base, 0, raw[k].iov_len);
	return r ? r : piece_add(p, NULL, table, p->own.len - table);
}

static int raw_encode(struct payload *p, const struct iovec *raw, size_t count, enum codec codec, int level, struct extent *e)
{
	CLEANUP_BUF struct buf joined = { 0 };
	size_t at = p->own.len;
	struct iovec whole = raw[0];
	int r;
	if (count > 1) {
		for (size_t k = 0; k < count; k++)
			buf_append(&joined, raw[k].iov_base, raw[k].iov_len);
		if (joined.failed)
			return -ENOMEM;
		whole = (struct iovec){ joined.data, joined.len };
	}
	r = extent_encode(whole.iov_base, (uint32_t)whole.iov_len, codec, level, &p->own, e);
	return r ? r : piece_add(p, NULL, at, p->own.len - at);
}

int payload_add(struct payload *p, const struct iovec *raw, size_t count, enum codec codec, int level, struct extent *e)
{
	uint64_t bytes = 0, at = p->bytes;
	int r;
	for (size_t k = 0; k < count; k++)
		bytes += raw[k].iov_len;
	if (bytes == 0 || bytes > BLOCK_MAX || at + bytes > OBJECT_SIZE_MAX - OBJECT_FOOTER)
		return -EINVAL;
	/* What will not shrink is not even copied. */
	if (bytes / count >= REFER_BYTES && !extent_may_shrink(raw, count, codec))
		r = raw_refer(p, raw, count, e);
	else
		r = raw_encode(p, raw, count, codec, level, e);
	e->object_offset = (uint32_t)at;
	return r;
}

int payload_finish(struct payload *p, uint64_t object, const struct iovec **parts, size_t *count)
{
	uint64_t content = p->bytes;
	size_t at = p->own.len;
	uint8_t *footer = buf_extend(&p->own, OBJECT_FOOTER);
	if (!footer || piece_add(p, NULL, at, OBJECT_FOOTER) < 0)
		return -ENOMEM;
	object_footer_make(object, content, footer);
	if (p->part_capacity < p->count) {
		struct iovec *grown = realloc(p->parts, p->capacity * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		p->parts = grown;
		p->part_capacity = p->capacity;
	}
	for (size_t k = 0; k < p->count; k++) {
		const struct payload_piece *piece = &p->pieces[k];
		p->parts[k].iov_base = (void *)(piece->data ? piece->data : p->own.data + piece->offset);
		p->parts[k].iov_len = piece->length;
	}
	*parts = p->parts;
	*count = p->count;
	return 0;
}
