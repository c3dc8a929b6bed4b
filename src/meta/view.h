/* Tables and transactions: the only door to LMDB.
 *
 * A view is a snapshot of all tables: read-only for a reader, or the open batch
 * of the writer, whose puts and deletes are also recorded in its write set.
 *
 * Keys are big-endian (see each table); values little-endian.  What view_get and
 * a cursor return points into LMDB's map and is good until the next put or
 * delete in a write view, or the end of a read view.  Values from LMDB are
 * checked by the codec of their table before use: -EBADMSG means damage.
 *
 * Volume-wide numbers: in keys, an inode is (volume << 40 | inode), so a volume's
 * keys are one range of each table.
 *
 *   META     "format"                      -> see format.c
 *            "batch"                       -> number le64 and time (ns) le64 of the last batch
 *            "volume.next"                 -> le32, the id the next volume gets
 *            "object.next"                 -> le64, the id the next object gets (object.c)
 *            "v", volume be32              -> the volume's counters, see volume.c
 *            "replica.ended"               -> time (ns) le64: when the last session of a replica ended
 *            "m", inode be64               -> packed Wire__MarkRecord, see marks.h
 *            "e", volume be32              -> time (ns) le64: what was deleted up to then is due (trash.h)
 *   VOLUME   volume be32                   -> packed Wire__Volume, without its counters; a volume with an
 *                                             empty name was deleted: all its inodes are due to be reaped
 *   INODE    inode be64                    -> packed attr, 2 zero bytes [+ target of a symbolic link], see inode.c
 *   DENTRY   parent be64, cookie be64      -> inode le64, type 1, name
 *   EXTENT   inode be64, file offset be64  -> extent value
 *   XATTR    inode be64, name              -> value
 *   OBJECT   object be64                   -> struct object_record
 *   RANGE    first object be64             -> count le32, session le64
 *   FREE     freed at (ns) be64, object be64 -> nothing
 *   TRASH    volume be32, deleted at (ns) be64, inode be64 -> parent le64, name
 *   SESSION  session be64                  -> packed Wire__SessionBegin
 *   ANSWER   session be64, number be64     -> status le32, packed reply
 *
 * Any function that writes may fail with -ENOSPC, -ENOMEM or -EIO; the batch is
 * then poisoned: the writer aborts it and applies its operations one by one.
 * So an operation checks everything it can refuse before its first write. */
#pragma once
#include <lmdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/bytes.h"

enum table {
	TABLE_META,
	TABLE_VOLUME,
	TABLE_INODE,
	TABLE_DENTRY,
	TABLE_EXTENT,
	TABLE_XATTR,
	TABLE_OBJECT,
	TABLE_RANGE,
	TABLE_FREE,
	TABLE_TRASH,
	TABLE_SESSION,
	TABLE_ANSWER,
	TABLE_COUNT,
};
extern const char *const table_names[TABLE_COUNT];

struct meta;

struct view {
	struct meta *meta;
	MDB_txn *txn;
	bool writable;
	int poisoned;            /* the first error of a write, or 0 */
	struct buf *write_set;   /* of the batch; NULL in a read view */
	uint32_t touched;        /* bit per table written to in the batch */
	struct view_tail *tails; /* per table, of the batch: see view.c; NULL in a read view */
};

struct span {
	const uint8_t *data;
	size_t size;
};

int view_get(struct view *v, enum table t, const void *key, size_t key_size, struct span *out); /* -ENOENT if none */
int view_put(struct view *v, enum table t, const void *key, size_t key_size, const void *value, size_t value_size);
int view_delete(struct view *v, enum table t, const void *key, size_t key_size); /* -ENOENT if none */

/* An LMDB result as -errno: -EBADMSG is damage. */
int view_error(int mdb_result);

int view_count(struct view *v, enum table t, uint64_t *out); /* records in it */

/* Walking a table:  for (r = cursor_seek(&c, key, n); r == 0; r = cursor_next(&c)) use c.key, c.value;
 * ends with -ENOENT.  In a write view, a put or delete anywhere ends the
 * cursor's position: seek again. */
struct cursor {
	struct view *view;
	enum table table;
	MDB_cursor *mdb;
	struct span key, value;
};
int cursor_open(struct cursor *c, struct view *v, enum table t);
int cursor_seek(struct cursor *c, const void *key, size_t key_size); /* the first at or after */
int cursor_next(struct cursor *c);
int cursor_previous(struct cursor *c);
int cursor_last(struct cursor *c);
void cursor_close(struct cursor *c);
#define CLEANUP_CURSOR __attribute__((cleanup(cursor_close)))

/* A write set: what a batch did, for replicas and the journal.
 *   batch number le64 | then per change: table 1, key length le16, value length le32 (2^32-1: deleted), key, value */

#define INODE_BITS 40
#define INODE_MAX (((uint64_t)1 << INODE_BITS) - 1)
#define ROOT_INODE 1
static inline uint64_t inode_key(uint32_t volume, uint64_t inode) { return (uint64_t)volume << INODE_BITS | inode; }
