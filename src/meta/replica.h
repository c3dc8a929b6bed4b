/* The file of a replica: tables as the server has them, with one volume's records in four of them (stream.h).  So what
 * reads the server's metadata reads a replica, too: meta_view_begin and meta_read, with a caller of that volume.  It has no
 * writer thread and takes no mutations; whoever follows the server changes it, in updates, one at a time:
 *
 *   replica_begin .. replica_apply, replica_range .. replica_commit or replica_abort
 *
 * Readers see all of an update or nothing.  A commit is durable, as the server's are; a file that is damaged nevertheless
 * is thrown away, as it can be made anew.
 *
 * META "replica", beside "format", which has the history and the seed of the server's:
 *
 *   "EPOCHFSR" | number le32 | volume le32 | batch le64 | as of (ns) le64 | whole 1
 *   | total bytes, free bytes, total files, free files, used bytes le64 each
 *
 * Format 1 had no used bytes; such a head is read with 0, and is replaced by the next update.
 *
 * VOLUME has the volume's record, as HELLO told it. */
#pragma once
#include "meta/attr.h"
#include "meta/stream.h"

struct replica_head {
	uint8_t history[16];
	uint64_t name_seed;
	uint32_t volume;
	uint64_t batch;    /* it is what the server had after this one .. */
	int64_t as_of_ns;  /* .. which was the newest then, by the server's clock */
	bool whole;        /* else it is still being copied */
	uint64_t space[5]; /* total and free bytes, total and free files, used bytes */
};

/* -ENOENT: there is none, or none that can be used.  Only while the process has a single thread (walk_check). */
int replica_open(const char *folder, struct meta **out, struct replica_head *head);
/* An empty one, in the place of what was there. */
int replica_make(const char *folder, const struct replica_head *head, struct meta **out, char *error, size_t error_size);

struct replica_update {
	struct meta *meta;
	MDB_txn *txn;
	uint32_t volume;
	/* Of each record that becomes another: `before` has no data if it was not there.  0 or -errno, which ends the update. */
	int (*each)(void *context, const struct change *now, struct span before);
	void *context;
};
int replica_begin(struct replica_update *u, struct meta *m, uint32_t volume);
/* Changes as they came from the server: -EBADMSG if they are not what such a stream holds. */
int replica_apply(struct replica_update *u, const void *changes, size_t size);
/* A range of a table, with all there is after one key up to and including another (`last` of size 0: to the volume's end): what
 * is here and not in it goes. */
int replica_range(struct replica_update *u, enum table t, const void *after, size_t after_size, const void *last,
		  size_t last_size, const void *records, size_t size);
int replica_commit(struct replica_update *u, const struct replica_head *head,
		   const Wire__Volume *volume); /* volume NULL: as it was */
void replica_abort(struct replica_update *u);

/* The volume's record; its memory is from the arena. */
int replica_volume(struct meta *m, uint32_t volume, struct arena *arena, Wire__Volume **out);

/* Looking names up, without memory and without a message: -ENOENT, -EBADMSG. */
int replica_lookup(struct meta *m, uint32_t volume, uint64_t parent, const char *name, size_t size, struct attr *out);
int replica_getattr(struct meta *m, uint32_t volume, uint64_t inode, struct attr *out);
