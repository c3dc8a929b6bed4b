/* Bringing content here before anybody reads it: to the cache on the local disk, or, where told to or where there is none, to memory.
 *
 * Of a small file the packs it is in, whole; of a large one (over BACKING_LEAST bytes) the stretch, in its backing file.  What is
 * there already is not fetched again.  Of packs that came since the volume was mounted, the files asked for are compared with their
 * checksums: -EBADMSG is damage in the store.  A file this client has written to, and not yet stored, is -EBUSY.
 *
 * Files are opened for it without the kernel's knowledge, as any reader here opens them: one that is removed meanwhile is read to the
 * end; of one that changes meanwhile the old content is cached, or the new, or it is -ESTALE.
 *
 * Any thread.  Blocks; `stop` is asked between pieces of about a MiB. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct client;

enum {
	WARM_PIN = 1,
	WARM_UNPIN = 2,  /* instead: nothing is fetched */
	WARM_VERIFY = 4, /* what is there is compared with its checksums; damaged parts are fetched anew */
	WARM_WANTED = 8, /* packs only if the cache would take them in anyway; else there is no room */
};

struct warm_stretch {
	uint64_t inode, from, to;
	unsigned flags;
	bool (*stop)(void *context); /* NULL: never */
	void *context;
};

struct warm_result {
	bool here;        /* its objects are files of the server, on this host; they are not cached */
	uint64_t bytes;   /* of the file that are cached now */
	uint64_t fetched; /* bytes that came for it, of packs too */
	uint64_t missing; /* bytes there was no room for */
	uint64_t damaged; /* parts that were, and were fetched anew */
};

/* 0, also where there was no room; -ECANCELED: stopped; -EFBIG: its pack is too large for the cache; -errno.  *out is filled in
 * any case. */
int warm_to_disk(struct client *c, const struct warm_stretch *s, struct warm_result *out);
int warm_to_memory(struct client *c, const struct warm_stretch *s, struct warm_result *out);
