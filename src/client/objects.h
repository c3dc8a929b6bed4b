/* Reading objects.
 *
 * A server on this host gives out the object's file (OBJECT_OPEN), and ranges of it
 * are read here, without the server and without passing through a socket.  From any
 * other server, and whenever anything about the file is not as it should be, they
 * are asked for (OBJECT_GET), and its answer counts.  Checksums are verified by whoever
 * asked, as the bytes may come from a damaged disk either way.
 *
 * Objects that are asked for and may be packs (extents of up to OBJECT_PACKED bytes, and less than a block) are read by way of packs.h.
 *
 * Large reads go past the page cache: what they bring is kept by the kernel in the pages
 * of the mounted file.
 *
 * A file stays open for some seconds, however much it is read, so that the disk of a
 * server that has stopped can be unmounted.  Any thread. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/descriptors.h"
#include "block/extent.h"

struct client;

#define OBJECT_PACKED (1u << 20)

struct objects {
	struct descriptors files;   /* by object */
	struct descriptors direct;  /* the same, opened again for O_DIRECT */
	_Atomic int64_t not_before; /* steady clock: there are no files to be had until then */
	_Atomic bool no_direct;     /* the file system said so */

	/* A thread that closes what has been open for long: it never waits for the server,
	 * which may be away just then. */
	pthread_mutex_t lock; /* guards all below; taken before those of the descriptors */
	pthread_cond_t work;
	pthread_t closer;
	bool closer_started, any_open, stopping;
};

void objects_init(struct objects *o);
void objects_free(struct objects *o);
/* A range of an object into the parts: 0, -ENOENT (no such object), -ERANGE, -errno. */
int object_fetch(void *client, const struct extent *e, uint32_t offset, uint32_t length, const struct iovec *into, int count);
void objects_count(struct client *c, uint64_t bytes);   /* so many came from a server (client_stats) */
bool object_is_here(struct client *c, uint64_t object); /* the server gives out its file: it needs no cache */
bool object_doubt(void *client, uint64_t object);       /* it came damaged; true: it may be another time */
