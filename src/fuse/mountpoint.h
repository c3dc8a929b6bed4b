/* The directory a volume is mounted on: checked, mounted, unmounted.  Root mounts with
 * mount(2), others through fusermount3.
 *
 * Errors come as -errno with a text for the user, `why`, that completes "cannot mount
 * training on /mnt: ...".  One thread. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* An attribute of the mounted root directory, known only to the mount: the number of the
 * process that serves it.  "system.": for others the kernel looks first whether they may be read, and asks for the attributes of
 * the directory, which have to come from the server. */
#define MOUNT_PID_XATTR "system.epochfs.pid"
/* Likewise, how the kernel's requests reach it: "io_uring" or "classic". */
#define MOUNT_TRANSPORT_XATTR "epochfs.mount.transport"

struct mountpoint {
	char path[PATH_MAX]; /* absolute and canonical */
	dev_t device;        /* of what we mounted there */
};

enum mountpoint_others {
	OTHERS_WHERE_PERMITTED, /* allow_other for root, and for users if fuse.conf lets them */
	OTHERS_ALLOWED,
	OTHERS_NOT_ALLOWED,
};

/* When reading moves access times. */
enum mountpoint_atime {
	ATIME_NEVER,
	ATIME_RELATIVE, /* if it is not later than the last change, or is a day old */
	ATIME_ALWAYS,
};

struct mountpoint_flags {
	const char *source; /* what mount(8) and df show: the volume */
	enum mountpoint_others others;
	enum mountpoint_atime atime;
	bool read_only, nodiratime, nosuid, nodev, noexec;
};

/* The absolute path without following what is mounted there (it may be dead). */
int mountpoint_resolve(const char *directory, struct mountpoint *out, char *why, size_t why_size);

/* Where a symbolic link leads, which is fine in place of the directory, as for mount(8); nothing else is changed.  Looks at what is
 * mounted there. */
int mountpoint_follow(struct mountpoint *m, char *why, size_t why_size);

/* Resolves, takes away a dead mount of ours (ENOTCONN: its process was killed), and makes
 * sure that it is a directory no live volume is mounted on. */
int mountpoint_prepare(const char *directory, struct mountpoint *out, char *why, size_t why_size);

/* As mount(2) takes them, MS_RDONLY and so on. */
unsigned long mountpoint_bits(const struct mountpoint_flags *flags);

/* Mounts; the descriptor to talk to the kernel with, or -errno. */
int mountpoint_mount(struct mountpoint *m, const struct mountpoint_flags *flags, char *why, size_t why_size);

/* Takes away what is mounted there; lazily: also if it is in use, from the tree at once
 * and for good when the last file is closed. */
int mountpoint_unmount(const struct mountpoint *m, bool lazily, char *why, size_t why_size);

/* Whether a process that was killed left a mount there. */
bool mountpoint_is_dead(const struct mountpoint *m);

/* Whether what we mounted is (still) there and on top. */
bool mountpoint_is_ours(const struct mountpoint *m);

/* Lets the kernel read ahead further than its 128 KiB, where we may (root). */
void mountpoint_readahead(const struct mountpoint *m, unsigned kib);
