/* Inside meta: the extents of files and what hangs on them.
 *
 * A file's EXTENT records never overlap and never reach past its size; what lies
 * between them reads as zeroes.  Each record is one reference to its object, and
 * its length is that many live bytes of it; so clones count a byte of an object
 * more than once, and live_bytes may pass raw_bytes.
 *
 * A tally collects what a mutation does to objects and to the volume's counters
 * and writes the net of it at the end: an object that loses its last reference
 * and gets a new one in the same mutation never passes through FREE, and a
 * commit of a thousand small files writes the record of their pack once.
 *
 * Writer's thread only, but for what takes a plain view or is named as a read. */
#pragma once
#include "base/intmap.h"
#include "meta/op.h"

struct tally_object {
	uint64_t object;
	int64_t refs, live;
	struct tally_object *next;
};

struct tally {
	struct intmap map;
	struct arena memory;
	struct tally_object *first, **end, *recent;
	int64_t live_bytes, trashed_bytes; /* of the volume: of files with and without a name */
};

void tally_begin(struct tally *t);
void tally_free(struct tally *t);
int tally_object(struct tally *t, uint64_t object, int64_t refs, int64_t live); /* 0 or -ENOMEM */
int tally_write(struct op *op, struct tally *t);                                /* objects, then the volume's counters */
#define CLEANUP_TALLY __attribute__((cleanup(tally_free)))

/* content_insert and content_cut without the accounts: they are the tally's.
 * `budget` is how many extents may be touched, and then how many are left of it. */
int content_insert_tallied(struct op *op, struct attr *a, const struct extent *e, struct tally *t);
int content_cut_tallied(struct op *op, struct attr *a, uint64_t from, uint64_t to, uint32_t *budget, bool *more, struct tally *t);
/* How many bytes of [from, to) have extents. */
int content_covered(struct op *op, uint64_t inode, uint64_t from, uint64_t to, uint64_t *out);
/* 0 if the volume may grow by what writing all of [from, to) would add, else -EDQUOT. */
int content_may_fill(struct op *op, uint64_t inode, uint64_t from, uint64_t to);

/* extents.c: walking the extents of one file, by its key (inode_key). */
#define EXTENT_KEY 16u
void extent_key(uint8_t out[EXTENT_KEY], uint64_t inode_key, uint64_t offset);
int extents_seek(struct cursor *c, uint64_t inode_key, uint64_t from,
		 struct extent *out);                                       /* the first that ends after `from`, or -ENOENT */
int extents_step(struct cursor *c, uint64_t inode_key, struct extent *out); /* the next one, or -ENOENT */
/* Fills an answer to EXTENTS or OPEN: attributes, up to `max` extents, where to go on. */
int extents_fill(struct op *op, uint64_t inode, uint64_t from, uint32_t max, Wire__ExtentsReply *reply);

/* The slice of `e` inside [from, to), which it must touch. */
struct extent extent_slice(const struct extent *e, uint64_t from, uint64_t to);

/* object.c */
/* Whether object_add would be refused: -ESTALE, -EEXIST or -EINVAL. */
int object_may_add(struct op *op, const Wire__NewObject *n);
/* Whether `e` lies in an object of `size` bytes, before the footer. */
bool extent_fits_object(const struct extent *e, uint32_t size);
void object_record_read(const uint8_t record[OBJECT_RECORD], struct object_record *out); /* unchecked: for fsck */
int object_peek(struct view *v, uint64_t object, struct object_record *out);             /* -ENOENT: none such */
/* Objects freed at or before `until_ns` whose record agrees, oldest first, for
 * the server to delete from the store and report as OBJECTS_DELETED. */
int objects_due(struct view *v, int64_t until_ns, uint64_t *objects, size_t max, size_t *count);
/* Objects that were freed and not deleted yet: how many, their bytes, and when the last one was freed (0: there is none). */
struct waiting_objects {
	uint64_t count, bytes;
	int64_t newest_ns;
};
int objects_waiting(struct view *v, struct waiting_objects *out);
/* Deletes the ranges of a session that ended; its late commits get -ESTALE. */
int ranges_revoke(struct op *op, uint64_t session);
/* Takes the objects of a sorted list out of FREE. */
int free_remove(struct op *op, const uint64_t *sorted, size_t count);
int free_add(struct op *op, uint64_t object);
