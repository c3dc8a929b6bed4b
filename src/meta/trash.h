/* Inside meta: what was deleted and is not freed yet, and the paths of things.
 *
 * An inode without a name has one TRASH record, under the time in its
 * attr.deleted_ns.  It is *due* to be freed when that time is at or before the
 * volume's limit: retention ago, or the moment the trash was last emptied.
 * Nameless files (ATTR_NO_TRASH) stand under time 0 and so are always due; a file
 * whose freeing has begun becomes one of them and cannot be restored any more.
 * What is due but open somewhere is not freed until it is closed. */
#pragma once
#include "base/intmap.h"
#include "meta/op.h"

#define TRASH_KEY 20u
#define TRASH_KEY_TIME 4u
#define TRASH_KEY_INODE 12u
#define EMPTIED_KEY 5u
void trash_key(uint8_t out[TRASH_KEY], uint32_t volume, int64_t deleted_ns, uint64_t inode);
/* META: "e", volume be32 -> le64, everything deleted up to then is due. */
void emptied_key(uint8_t out[EMPTIED_KEY], uint32_t volume);
int emptied_load(struct op *op, int64_t *out); /* of op->volume; 0 if never */

/* Makes op->volume the one named; an administrator has none, a mount's session
 * may leave the name empty. */
int trash_volume(struct op *op, const char *name);

/* The time up to which what was deleted from op->volume is due. */
int trash_limit(struct op *op, int64_t *out);

struct trash_place {
	uint64_t parent;
	struct span name;
};
int trash_place(struct op *op, const struct attr *a, struct trash_place *out); /* where it had its last name; into the map */
int trash_forget(struct op *op, const struct attr *a);                         /* its record goes, counters stay */
/* A part of it is gone: from now on it is always due, like a nameless file.  The caller stores *a. */
int trash_begin_freeing(struct op *op, struct attr *a);

/* path.c: for people: list, restore and log lines. */

/* Remembers the names of directories between calls, since finding one means
 * walking through its parent. */
struct paths {
	struct intmap names;
};
void paths_free(struct paths *p);
/* Appends the path from the root of the volume ("/a/b", "/" for the root).  What
 * cannot be known any more is "?".  A deleted file or directory has the path it
 * had.  0, -ENOENT (no such inode), -ENOMEM. */
int paths_append(struct op *op, struct paths *p, uint64_t inode, struct buf *out);
int inode_path(struct op *op, uint64_t inode, struct buf *out);
