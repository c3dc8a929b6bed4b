#include "meta/listing.h"
#include <errno.h>

#define ENTRY_HEAD 20u

#define HAS_ATTR 1u
#define HAS_EXTENT 2u

size_t listing_entry_size(const struct listing_entry *e)
{
	return ENTRY_HEAD + e->name_length + (e->has_attr ? ATTR_PACKED : 0) + (e->has_extent ? EXTENT_PACKED : 0);
}

void listing_append(struct buf *out, const struct listing_entry *e)
{
	uint8_t *p = buf_extend(out, ENTRY_HEAD + e->name_length);

	if (!p)
		return;
	put_le64(p, e->inode);
	put_le64(p + 8, e->cookie);
	p[16] = e->type;
	p[17] = (uint8_t)((e->has_attr ? HAS_ATTR : 0) | (e->has_extent ? HAS_EXTENT : 0));
	put_le16(p + 18, e->name_length);
	memcpy(p + ENTRY_HEAD, e->name, e->name_length);
	if (e->has_extent)
		extent_pack(out, &e->extent);
	p = e->has_attr ? buf_extend(out, ATTR_PACKED) : NULL;
	if (p)
		attr_pack(&e->attr, p);
}

int listing_next(struct reader *in, struct listing_entry *out)
{
	struct listing_entry e = { 0 };
	const uint8_t *packed;
	uint8_t follows;

	if (reader_left(in) == 0)
		return 0;
	e.inode = take_le64(in);
	e.cookie = take_le64(in);
	e.type = take_le8(in);
	follows = take_le8(in);
	e.has_attr = follows & HAS_ATTR;
	e.has_extent = follows & HAS_EXTENT;
	e.name_length = take_le16(in);
	e.name = (const char *)take_bytes(in, e.name_length);
	if (in->bad || e.name_length == 0 || e.inode == 0 || e.cookie == 0 || e.cookie >> 63)
		return -EBADMSG;
	if (follows > (HAS_ATTR | HAS_EXTENT) || (e.has_extent && (!e.has_attr || extent_unpack(in, &e.extent) < 0)))
		return -EBADMSG;
	if (e.has_attr) {
		packed = take_bytes(in, ATTR_PACKED);
		if (!packed || attr_unpack(packed, ATTR_PACKED, &e.attr) < 0 || e.attr.inode != e.inode)
			return -EBADMSG;
	}
	*out = e;
	return 1;
}
