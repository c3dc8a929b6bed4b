/* The attributes of an inode, as every part of EpochFS sees them, and their
 * packed form (ATTR_PACKED bytes, little-endian) on the wire and, as the head of
 * the value, in LMDB:
 *
 *   inode 8 | mode 4 | uid 4 | gid 4 | nlink 4 | rdev 8 | size 8 | allocated 8
 *   | atime 8 | mtime 8 | ctime 8 | btime 8 | version 8 | parent 8 | flags 4
 *   | deleted 8
 *
 * Times are nanoseconds since 1970, signed. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/bytes.h"

enum attr_flags {
	ATTR_TRASHED = 1,     /* no name left: in the trash, or open and nameless */
	ATTR_HAS_XATTR = 2,   /* there may be some; without it there are none */
	ATTR_HAS_ACL = 4,     /* an access ACL beyond the mode bits */
	ATTR_HAS_DEFAULT = 8, /* a directory with a default ACL */
	ATTR_NO_TRASH = 16,   /* never had a name (O_TMPFILE): freed when closed, not kept */
	/* Only in answers: another session has unstored data, or may have any moment; not to be kept. */
	ATTR_BEING_WRITTEN = 32,
};

struct attr {
	uint64_t inode;
	uint32_t mode, uid, gid, nlink;
	uint64_t rdev, size;
	uint64_t allocated; /* bytes of the extents' slices */
	int64_t atime_ns, mtime_ns, ctime_ns, btime_ns;
	uint64_t version; /* of the content: grows with every change of it */
	uint64_t parent;  /* the directory of the (last made) name; a directory's `..` */
	uint32_t flags;
	int64_t deleted_ns; /* with ATTR_TRASHED: the time in the key of its TRASH record; else 0 */
};

#define ATTR_PACKED 108u

void attr_pack(const struct attr *a, uint8_t out[ATTR_PACKED]);
/* From the first ATTR_PACKED of `size` bytes; 0 or -EBADMSG. */
int attr_unpack(const void *p, size_t size, struct attr *out);
/* The directory whose grant covers these attributes: see docs/architecture.md, "In company". */
uint64_t attr_cover(const struct attr *a);
uint8_t attr_type(uint32_t mode); /* DT_*; DT_UNKNOWN if it is no type of file */

/* ctime comes from the server: every change sets it, but for an access time with KEEP_CTIME and nothing else. */
enum setattr_valid {
	SET_MODE = 1,
	SET_UID = 2,
	SET_GID = 4,
	SET_SIZE = 8,
	SET_ATIME = 16,
	SET_MTIME = 32,
	SET_ATIME_NOW = 64,
	SET_MTIME_NOW = 128,
	KEEP_CTIME = 256,
};
