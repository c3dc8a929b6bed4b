#include "meta/listing.h"
#include <errno.h>

#define ENTRY_HEAD 20u

size_t listing_entry_size(size_t name_length, bool with_attr) { return ENTRY_HEAD + name_length + (with_attr ? ATTR_PACKED : 0); }

void listing_append(struct buf *out, const struct listing_entry *e)
{
	uint8_t *p = buf_extend(out, listing_entry_size(e->name_length, e->has_attr));

	if (!p)
		return;
	put_le64(p, e->inode);
	put_le64(p + 8, e->cookie);
	p[16] = e->type;
	p[17] = e->has_attr;
	put_le16(p + 18, e->name_length);
	memcpy(p + ENTRY_HEAD, e->name, e->name_length);
	if (e->has_attr)
		attr_pack(&e->attr, p + ENTRY_HEAD + e->name_length);
}

int listing_next(struct reader *in, struct listing_entry *out)
{
	struct listing_entry e = { 0 };
	const uint8_t *packed;

	if (reader_left(in) == 0)
		return 0;
	e.inode = take_le64(in);
	e.cookie = take_le64(in);
	e.type = take_le8(in);
	e.has_attr = take_le8(in) != 0;
	e.name_length = take_le16(in);
	e.name = (const char *)take_bytes(in, e.name_length);
	if (in->bad || e.name_length == 0 || e.inode == 0 || e.cookie == 0 || e.cookie >> 63)
		return -EBADMSG;
	if (e.has_attr) {
		packed = take_bytes(in, ATTR_PACKED);
		if (!packed || attr_unpack(packed, ATTR_PACKED, &e.attr) < 0 || e.attr.inode != e.inode)
			return -EBADMSG;
	}
	*out = e;
	return 1;
}
