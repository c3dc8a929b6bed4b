/* What a replica of one volume is made of: the records of four tables (inodes, names, extents, extended attributes) whose
 * keys are the volume's, and its marks (marks.h); and the changes of them, batch by batch.  Nothing else of the metadata ever leaves:
 * no other volume, no session, no remembered answer, no object's record.
 *
 * A replica begins with ranges of these tables, each read at a moment of its own, and the number of the batch it was
 * read after.  Then it takes in the changes of all batches after the first of those numbers.  Putting and deleting
 * keys gives the same whether done once or twice; so once it has come to the highest of the numbers it is what the
 * server had after that batch, to the byte, and from then on after every batch it has taken in.
 *
 * Records, in ranges and in changes, are as in a write set (view.h). */
#pragma once
#include "meta/meta.h"

#define STREAM_TABLES 5
extern const enum table stream_tables[STREAM_TABLES];

struct change {
	enum table table;
	struct span key, value; /* of a deleted one: no data */
	bool deleted;
};
/* 1: a change; 0: the end; -EBADMSG.  It points into the bytes that are read. */
int change_next(struct reader *in, struct change *out);
void change_append(struct buf *out, const struct change *c);
/* The lowest key that a record of the volume in the table can have; its size. */
#define STREAM_FIRST 9u
size_t stream_first(enum table t, uint32_t volume, uint8_t out[STREAM_FIRST]);
/* Whether it is a record of such a table, and of the volume. */
bool change_is_streamed(const struct change *c, uint32_t volume);

/* The changes in a write set (with its number) that are the volume's: 0, -ENOMEM, -EBADMSG. */
int stream_filter(const void *write_set, size_t size, uint32_t volume, struct buf *out);
/* Records of the volume in a table, after a key (size 0: from the first on), about `most` bytes of them; *end: these were
 * all.  *batch: the last one before. */
int stream_range(struct view *v, uint32_t volume, enum table t, const void *after, size_t after_size, size_t most,
		 struct buf *out, bool *end, uint64_t *batch);
