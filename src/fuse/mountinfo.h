/* What is mounted where, from the kernel's list.  Any thread. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct mountinfo {
	int id;        /* of the mount, while it is there or is held open */
	dev_t device;  /* st_dev of what is mounted */
	char type[64]; /* "fuse.epochfs" */
	char source[PATH_MAX];
	char point[PATH_MAX];
	uid_t user; /* who mounted it, of a FUSE file system */
	bool read_only;
	bool others;         /* allow_other, of a FUSE file system */
	unsigned long flags; /* MS_NOSUID and so on, as mount(2) takes them; MS_RDONLY also if only this way to it is */
};

#define MOUNT_TYPE "fuse.epochfs"

/* What is mounted on exactly this (absolute, canonical) path; if several are, the one on
 * top.  0, -ENOENT if nothing is, or -errno. */
int mountinfo_find(const char *path, struct mountinfo *out);

/* What has this device number, wherever it is mounted. */
int mountinfo_find_device(dev_t device, struct mountinfo *out);

/* The same among what this process sees, which may be in another mount namespace. */
int mountinfo_find_device_of(pid_t process, dev_t device, struct mountinfo *out);

/* Whether what has this device number is mounted anywhere at all, in whatever mount namespace. */
bool mountinfo_device_lives(dev_t device);

/* What an open file or directory is on; not what is mounted there by now. */
int mountinfo_find_open(int fd, struct mountinfo *out);

/* One that is mounted somewhere beneath a path; if several are, the last one. */
int mountinfo_find_beneath(const char *path, struct mountinfo *out);

/* The same for text in the form of /proc/self/mountinfo. */
int mountinfo_parse(const char *text, const char *path, struct mountinfo *out);
int mountinfo_parse_id(const char *text, int id, struct mountinfo *out);
int mountinfo_parse_device(const char *text, dev_t device, struct mountinfo *out);
int mountinfo_parse_beneath(const char *text, const char *path, struct mountinfo *out);
