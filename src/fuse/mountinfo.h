/* What is mounted where, from the kernel's list.  Any thread. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct mountinfo {
	dev_t device;  /* st_dev of what is mounted */
	char type[64]; /* "fuse.epochfs" */
	char source[PATH_MAX];
};

#define MOUNT_TYPE "fuse.epochfs"

/* What is mounted on exactly this (absolute, canonical) path; if several are, the one on
 * top.  0, -ENOENT if nothing is, or -errno. */
int mountinfo_find(const char *path, struct mountinfo *out);

/* The same for text in the form of /proc/self/mountinfo. */
int mountinfo_parse(const char *text, const char *path, struct mountinfo *out);
