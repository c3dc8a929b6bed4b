/* Reading ahead of an open file's readers (pattern.h says when and how far).
 *
 * What is fetched goes to memory, or to the cache on the local disk if the file has its place there.  In memory it must still be
 * there when the reader comes: all files together have three quarters of the memory cache for it, each reader an equal share of that,
 * up to --readahead.
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct client_file;

/* What a read has found out about the file, under its lock. */
struct ahead_read {
	uint64_t offset, bytes;
	uint64_t size;     /* of the file */
	uint64_t known_to; /* so far its extents are known */
	bool to_disk;      /* it has its place there */
	bool found;        /* it was here, in memory or on the disk */
};

void ahead_note(struct client_file *f, const struct ahead_read *read);
void ahead_end(struct client_file *f); /* it is closed: what was not fetched yet is not */
