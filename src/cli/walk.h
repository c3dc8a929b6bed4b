/* The regular files at and below a path, one after the other, without leaving the file system: symbolic links and other mounts below are
 * not followed.  Memory is that of the directories the walk is in, not of what they hold.
 *
 * One thread. */
#pragma once
#include <stdint.h>
#include <sys/types.h>

struct walk;

struct walk_file {
	uint64_t inode, size;
	const char *path; /* until the next call; also of what could not be looked at */
};

struct walk *walk_new(dev_t device); /* NULL: no memory */
void walk_free(struct walk *w);
/* Begins (anew) with this path, which may be a link.  0; -EXDEV: it is on another file system; -errno. */
int walk_begin(struct walk *w, const char *path);
/* 1: a file; 0: that was all; -errno: something could not be looked at, and the walk goes on without. */
int walk_next(struct walk *w, struct walk_file *out);
