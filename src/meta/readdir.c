#include <errno.h>
#include <sys/stat.h>
#include "meta/content.h"
#include "meta/handlers.h"
#include "meta/listing.h"
#include "meta/machine.h"

#define LISTING_MAX (1u << 20) /* bytes a reply, well within a frame */
#define LISTING_DEFAULT (64u << 10)

/* Growing a buffer of the arena would leave the old ones in it, so the whole size is taken at once. */
static size_t listing_bytes(uint32_t wanted)
{
	if (wanted == 0)
		return LISTING_DEFAULT;
	return wanted < LISTING_MAX ? wanted : LISTING_MAX;
}

/* The extent, if there is one that is all of the file. */
static int extent_read(struct op *op, struct cursor *extents, struct listing_entry *e)
{
	int r;

	if (!S_ISREG(e->attr.mode) || e->attr.size == 0 || e->attr.size > BLOCK_MAX)
		return 0;
	r = extents_seek(extents, inode_key(op->volume, e->inode), 0, &e->extent);
	e->has_extent = r == 0 && e->extent.offset == 0 && e->extent.length == e->attr.size;
	return r == -ENOENT ? 0 : r;
}

/* A name whose inode is missing (damage) is listed without attributes: looking it up then says what is wrong. */
static int entry_read(struct op *op, const struct cursor *c, bool attributes, struct listing_entry *e)
{
	int r = -ENOENT;

	if (c->key.size != 16 || c->value.size <= DENTRY_HEAD || c->value.size > DENTRY_HEAD + 255)
		return op_damage(op, TABLE_DENTRY, "a name cannot be read");
	*e = (struct listing_entry){
		.inode = get_le64(c->value.data),
		.cookie = get_be64(c->key.data + 8),
		.type = c->value.data[8],
		.name = (const char *)c->value.data + DENTRY_HEAD,
		.name_length = (uint16_t)(c->value.size - DENTRY_HEAD),
	};
	if (attributes)
		r = inode_load(op, e->inode, &e->attr);
	e->has_attr = r == 0;
	return r == -ENOENT ? 0 : r;
}

static int listing_fill(struct op *op, const Wire__ReaddirRequest *request, struct buf *out, bool *end)
{
	CLEANUP_CURSOR struct cursor c = { 0 }, extents = { 0 };
	struct listing_entry e;
	uint8_t key[16];
	int r = cursor_open(&c, op->view, TABLE_DENTRY);

	if (r == 0)
		r = cursor_open(&extents, op->view, TABLE_EXTENT);
	if (r < 0)
		return r;
	put_be64(key, inode_key(op->volume, request->inode));
	put_be64(key + 8, request->cookie + 1);
	for (r = cursor_seek(&c, key, sizeof(key)); r == 0 && memcmp(c.key.data, key, 8) == 0; r = cursor_next(&c)) {
		r = entry_read(op, &c, request->attributes, &e);
		if (r == 0 && request->extents && e.has_attr)
			r = extent_read(op, &extents, &e);
		if (r < 0)
			return r;
		if (out->len && out->len + listing_entry_size(&e) > out->cap) {
			*end = false;
			return 0;
		}
		listing_append(out, &e);
	}
	*end = true;
	return r == -ENOENT ? 0 : r;
}

int op_readdir(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__ReaddirRequest *request = (const Wire__ReaddirRequest *)message;
	Wire__ReaddirReply *answer = (Wire__ReaddirReply *)reply;
	const struct listing_entry largest = { .name_length = 255, .has_attr = true, .has_extent = request->extents };
	size_t least = listing_entry_size(&largest), size = listing_bytes(request->max_bytes);
	struct buf out = { .cap = size > least ? size : least };
	struct attr directory;
	bool end;
	int r = inode_load(op, request->inode, &directory);

	if (r < 0)
		return r;
	if (!S_ISDIR(directory.mode))
		return -ENOTDIR;
	if (request->cookie >> 63)
		return -EINVAL;
	out.data = arena_take(op->arena, out.cap);
	if (!out.data)
		return -ENOMEM;
	r = listing_fill(op, request, &out, &end);
	if (r < 0)
		return r;
	answer->entries.data = out.data;
	answer->entries.len = out.len;
	answer->end = end;
	answer->valid_ms = valid_ms(op);
	return request->attributes && !request->cookie ? attr_reply(op, &directory, &answer->attr) : 0;
}
