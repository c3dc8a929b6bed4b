/* Walking and answering the extents of a file. */
#include <errno.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/content.h"
#include "meta/handlers.h"

#define EXTENTS_MAX 4096u

void extent_key(uint8_t out[EXTENT_KEY], uint64_t inode, uint64_t offset)
{
	put_be64(out, inode);
	put_be64(out + 8, offset);
}

/* What the cursor stands on, if it is of this file. */
static int extent_here(struct cursor *c, uint64_t inode, struct extent *out)
{
	if (c->key.size != EXTENT_KEY) {
		log_error("metadata is damaged: an extent's key has %zu bytes", c->key.size);
		return -EBADMSG;
	}
	if (get_be64(c->key.data) != inode)
		return -ENOENT;
	uint64_t offset = get_be64(c->key.data + 8);
	int r = extent_value_unpack(offset, c->value.data, c->value.size, out);
	if (r < 0)
		log_error("metadata is damaged: volume %u inode %llu, the extent at %llu", (unsigned)(inode >> INODE_BITS),
			  (unsigned long long)(inode & INODE_MAX), (unsigned long long)offset);
	return r;
}

int extents_seek(struct cursor *c, uint64_t inode, uint64_t from, struct extent *out)
{
	uint8_t key[EXTENT_KEY];
	extent_key(key, inode, from);
	int at = cursor_seek(c, key, sizeof(key));
	if (at < 0 && at != -ENOENT)
		return at;
	if (at == 0 && c->key.size == EXTENT_KEY && memcmp(c->key.data, key, EXTENT_KEY) == 0)
		return extent_here(c, inode, out);
	if (from > 0) {
		/* The one before may reach over `from`. */
		int r = at == 0 ? cursor_previous(c) : cursor_last(c);
		if (r == 0)
			r = extent_here(c, inode, out);
		if (r < 0 && r != -ENOENT)
			return r;
		if (r == 0 && extent_end(out) > from)
			return 0;
		if (at == 0)
			at = cursor_seek(c, key, sizeof(key));
	}
	return at < 0 ? at : extent_here(c, inode, out);
}

int extents_step(struct cursor *c, uint64_t inode, struct extent *out)
{
	int r = cursor_next(c);
	return r < 0 ? r : extent_here(c, inode, out);
}

struct extent extent_slice(const struct extent *e, uint64_t from, uint64_t to)
{
	uint64_t start = e->offset > from ? e->offset : from;
	uint64_t end = extent_end(e) < to ? extent_end(e) : to;
	struct extent s = *e;
	s.offset = start;
	s.skip = e->skip + (uint32_t)(start - e->offset);
	s.length = (uint32_t)(end - start);
	return s;
}

static int extents_collect(struct op *op, uint64_t inode, uint64_t from, uint32_t max, struct buf *packed, uint64_t *next)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, TABLE_EXTENT);
	if (r < 0)
		return r;
	uint64_t file = inode_key(op->volume, inode);
	struct extent e;
	uint32_t n = 0;
	*next = 0;
	for (r = extents_seek(&c, file, from, &e); r == 0; r = extents_step(&c, file, &e)) {
		if (n++ == max) {
			*next = e.offset;
			break;
		}
		extent_pack(packed, &e);
	}
	if (packed->failed)
		return -ENOMEM;
	return r == -ENOENT ? 0 : r;
}

int extents_fill(struct op *op, uint64_t inode, uint64_t from, uint32_t max, Wire__ExtentsReply *reply)
{
	struct attr a;
	int r = inode_load(op, inode, &a);
	if (r < 0)
		return r;
	if (S_ISDIR(a.mode))
		return -EISDIR;
	if (!S_ISREG(a.mode))
		return -EINVAL;
	if (max == 0 || max > EXTENTS_MAX)
		max = EXTENTS_MAX;
	uint8_t *attr = arena_take(op->arena, ATTR_PACKED);
	if (!attr)
		return -ENOMEM;
	attr_pack(&a, attr);

	CLEANUP_BUF struct buf packed = { 0 };
	uint64_t next;
	r = extents_collect(op, inode, from, max, &packed, &next);
	if (r < 0)
		return r;
	uint8_t *bytes = arena_copy(op->arena, packed.data, packed.len);
	if (packed.len && !bytes)
		return -ENOMEM;
	reply->attr = (ProtobufCBinaryData){ .len = ATTR_PACKED, .data = attr };
	reply->extents = (ProtobufCBinaryData){ .len = packed.len, .data = bytes };
	reply->version = a.version;
	reply->next = next;
	reply->valid_ms = valid_ms(op);
	return 0;
}

int op_extents(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__ExtentsRequest *q = (const Wire__ExtentsRequest *)request;
	return extents_fill(op, q->inode, q->from, q->max, (Wire__ExtentsReply *)reply);
}
