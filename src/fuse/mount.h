/* A mount from beginning to end: connect, mount, serve the kernel, unmount, store what is
 * left, disconnect.
 *
 * What ends it: SIGTERM, SIGINT or SIGHUP (it unmounts, lazily if files are still open,
 * answers what is being handled, stores all and ends; a second signal ends it at once),
 * or somebody else unmounting it.  umount(2) returns before what was written is in the
 * store; the process lives until then, and `epochfs umount` waits for it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "client/client.h"
#include "fuse/mountpoint.h"

/* Whether the kernel's requests come by io_uring (ring.h). */
enum mount_ring {
	RING_WHERE_POSSIBLE,
	RING_ALWAYS, /* else the mount fails */
	RING_NEVER,
};

/* Whether large files in the cache on the local disk are read by the kernel itself (passthrough.h). */
enum mount_pass {
	PASS_WHERE_POSSIBLE, /* of a read-only mount not: there opening without a message comes first */
	PASS_ALWAYS,         /* else the mount fails */
	PASS_NEVER,
};

/* What is meant where nothing is said. */
#define MOUNT_TIMEOUT_S 60
#define MOUNT_MEMORY (64ull << 20) /* for reading; and for writing */
#define MOUNT_READAHEAD (64ull << 20)
#define MOUNT_PARALLEL 8
#define MOUNT_CACHE_SIZE_PERCENT 80
#define MOUNT_CACHE_FREE_PERCENT 10
#define MOUNT_REPLICA_LAG_S 3600 /* servers keep deleted objects for so long */

struct mount_options {
	struct client_options client;  /* host and mount_point are filled in */
	struct mountpoint_flags flags; /* source, read_only too */
	bool shared_locks; /* of a read-only mount: locks exclude other mounts, too, and files are opened with a message each */
	enum mount_ring ring;
	enum mount_pass pass;
	const char *directory;
	const char *log_file; /* that the user named, to be told; NULL: none */
	/* Called once the mount is up, from the thread of mount_run; an error from it ends the
	 * mount again.  NULL: nothing to do. */
	int (*up)(void *context);
	void *context;
};

/* Runs the mount and returns when it is over: 0, or -errno with a text that completes
 * "cannot mount training: ...".  Must be called before the process has other threads
 * (it blocks signals for all of them). */
int mount_run(const struct mount_options *options, char *why, size_t why_size);
