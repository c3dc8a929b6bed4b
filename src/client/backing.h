/* Large files in the cache on the local disk: their content at one version, in a file of the same layout.
 *
 * An inode has the one of its version once somebody has read it (backing_ready).  What is read is taken from it where it is
 * there; what is not is fetched and added by the threads that read ahead (backing_fill).  A file whose content changes gets
 * another one, under its new version.
 *
 * Any thread. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct inode;

#define BACKING_LEAST (1u << 20) /* smaller files come in packs */

struct backing {
	struct cache_file *file; /* NULL: it cannot be cached */
	uint64_t version;
	_Atomic int refs;
	_Atomic bool refused; /* there is no room for more of it at present */
	_Atomic bool finishing;
};

void backing_ready(struct inode *i);          /* opens it, if it should be and is not yet */
struct backing *backing_get(struct inode *i); /* inode.lock is held.  Of the version now, with a reference; or NULL */
void backing_put(struct backing *b);          /* NULL is fine */
int backing_read(struct backing *b, uint64_t offset, void *into, size_t size); /* 0; -ENOENT: not all of it is there */
bool backing_is_current(const struct inode *i); /* inode.lock is held.  What it is of is known to be the content now */
/* For files that are passed through (passed.h), as in cache/cache.h. */
bool backing_is_complete(const struct backing *b);
int backing_whole(struct backing *b);
int backing_detach(struct backing *b);
bool backing_is_alone(struct backing *b);
int backing_patch(struct backing *b, uint64_t offset, const void *bytes, size_t size);
int backing_cut(struct backing *b, uint64_t size);
/* Adds what was read of that version: parts that are chunks, from `offset` on.  False: they are not, and something else must be done. */
bool backing_keep(struct inode *i, uint64_t version, uint64_t offset, const struct iovec *parts, int count);
bool backing_fills(const struct inode *i); /* inode.lock is held.  What is read of it now goes there */
/* Fetches what is absent of the chunks that touch [from, to).  How many bytes were not in memory yet. */
uint64_t backing_fill(struct inode *i, uint64_t from, uint64_t to);
/* The same; if all of the file is there then, what another process has left of it is verified.  One at a time, until the client ends. */
void backing_finish(struct inode *i, uint64_t from, uint64_t to);
/* Fetches the rest of a file most of which is there or was read, `read` bytes, or verifies it, in the background.  What was read through
 * the kernel's pages is not read again; so what the queue of those that read ahead had no room for, or what was found in memory,
 * where it was since an earlier version, would be absent for ever. */
void backing_complete(struct inode *i, uint64_t read);
