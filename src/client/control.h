/* The control socket of a mount: what tools of the same host ask and tell it.
 *
 * A unix socket in a directory of the user who mounted, named after the device number of what is mounted (st_dev), which is the same for
 * whoever looks at the mount, in whatever namespace, and nobody else's while it is mounted:
 *
 *   root      /run/epochfs/MAJOR-MINOR.sock
 *   others    $XDG_RUNTIME_DIR/epochfs/MAJOR-MINOR.sock, without that /tmp/epochfs-UID/MAJOR-MINOR.sock
 *
 * Root and that user are let in, nobody else, whatever the permissions say (SO_PEERCRED).  The socket of a mount that was killed
 * is removed by the next one of the same user, or when it is unmounted (epochfs umount).  While it is made or removed the directory is locked (flock).
 *
 * Each request is one line of JSON (control_request.h), and so is each answer, in order.  An answer to one that was refused is
 * {"error": "..."}.  A connection has a thread: one that sends half a line, or does not read, holds up itself alone, and is closed after a
 * while; there are CONTROL_CONNECTIONS of them.  An order that was told ends with its connection. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/bytes.h"

struct client;

#define CONTROL_CONNECTIONS 64
#define CONTROL_LINE (64u << 10) /* of a request, at most */
#define CONTROL_ANSWER (1u << 20)

/* Files the kernel reads by itself: it does not tell how much. */
struct control_passing {
	const char *obstacle; /* why there are none at present, for people; NULL: nothing is in the way */
	uint64_t files;       /* open that way */
	uint64_t opens;       /* since it was mounted */
};

/* How it is mounted at present. */
struct control_mounted {
	struct buf options; /* as a user would write them, with a 0 at the end; given up by who asked */
	bool read_only;
};

/* What whoever mounts knows, and the client does not; copied. */
struct control_options {
	dev_t device;
	const char *mount_point;
	void (*mounted)(void *context, struct control_mounted *out);
	const char *(*transport)(void *context); /* "io_uring", "/dev/fuse": as long as the client lives */
	void (*passing)(void *context, struct control_passing *out);
	bool (*lives)(void *context); /* false: the kernel has let go of it */
	void *context;
};

/* The client serves without one, should this fail: 0 or -errno, and what went wrong. */
int control_start(struct client *c, const struct control_options *options, char *why, size_t why_size);
void control_stop(struct client *c); /* nothing, if there is none */

/* Removes the sockets of mounts of this user that were killed. */
void control_clear(uid_t user);

/* Where the socket of a user's mount may be, most probable first: the n-th place.  False: there are no more. */
bool control_place(unsigned n, uid_t user, dev_t device, char *out, size_t size);

/* control_status.c: all there is to tell. */
struct told_progress;
json_t *control_progress(const struct told_progress *p);
json_t *control_status(struct client *c, const struct control_options *options, bool pinned);
