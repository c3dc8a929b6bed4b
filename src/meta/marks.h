/* Marks: files of which a mount's write-back directory holds data that is not stored yet.
 *
 * A mark is made before the fsync that it stands for returns, and goes when all of that
 * data is committed.  It outlives the session that made it: as long as it is there
 * nobody but a mount with the same write-back directory may see or change the content
 * (src/server/marks.h), because the newest of it is on that mount's disk only.
 *
 *   META  "m", inode_key be64  -> packed Wire__MarkRecord
 *
 * `generation` names the spool file that holds the data (src/client/spool.h): a mount that is
 * back uploads what has a mark, and nothing else; a spool without one was stored, or its
 * fsync never returned. */
#pragma once
#include "meta/op.h"

#define WRITEBACK_ID 16u
#define MARK_KEY 9u
#define MARK_LETTER 'm'

/* Of op->volume.  When the inode goes; -ENOENT is no error. */
int mark_forget(struct op *op, uint64_t inode);

/* For the server: from a snapshot of now.  -ENOENT: none. */
int meta_mark_find(struct meta *m, uint32_t volume, uint64_t inode, struct arena *arena, Wire__MarkRecord **out);
bool meta_has_marks(const struct meta *m);                     /* false: there are none; true: perhaps */
bool meta_has_orphaned_marks(struct meta *m, uint32_t volume); /* of mounts that have no session on the volume now */

/* Every mark from a key on; `each` may end it with anything but 0. */
int marks_walk(struct view *v, uint32_t volume, uint64_t after, struct arena *arena,
	       int (*each)(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark), void *context);
