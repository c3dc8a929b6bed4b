/* A directory listing as packed bytes.  Per entry, little-endian:
 *
 *   inode 8 | cookie 8 | type 1 (DT_*) | what follows 1 | name length 2 | name | [EXTENT_PACKED bytes] | [ATTR_PACKED bytes]
 *
 * What follows: 0 nothing, 1 attributes, 3 attributes and the one extent that is all of the file.
 *
 * Cookies grow along the directory and belong to the name for as long as it
 * exists, so a listing can be taken up after any entry whatever happened since.
 * They are below 2^63.  "." and ".." are not in it (the mount makes them). */
#pragma once
#include <stdbool.h>
#include "block/extent.h"
#include "meta/attr.h"

struct listing_entry {
	uint64_t inode, cookie;
	uint8_t type;
	bool has_attr, has_extent;
	uint16_t name_length;
	const char *name; /* into the packed bytes, not terminated */
	struct attr attr;
	struct extent extent;
};

size_t listing_entry_size(const struct listing_entry *e);
void listing_append(struct buf *out, const struct listing_entry *e);
/* 1: an entry; 0: the end; -EBADMSG. */
int listing_next(struct reader *in, struct listing_entry *out);
