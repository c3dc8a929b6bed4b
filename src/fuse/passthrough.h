/* Passing files through: the kernel reads large files that are whole in the cache on the local disk by itself, at the speed of
 * that disk, and asks nobody (client/passed.h; modes.h has how that goes together with writing).
 *
 * From Linux 6.9 on, for a process with CAP_SYS_ADMIN, and if the cache is on a file system that is not stacked on another
 * one (overlayfs).  Where something is missing files are read through the kernel's pages, as ever.
 *
 * Any thread. */
#pragma once
#include "fuse/session.h"

void passthrough_init(struct session *s);
void passthrough_end(struct session *s);
/* Whether the kernel lets us, with a file in this directory (NULL: in memory): 0, or -errno.  After INIT. */
int passthrough_try(struct session *s, const char *directory);

/* Before a file is opened for writing: 0, or what to answer. */
int passthrough_open_write(struct session *s, uint64_t node, struct opened *out);
/* After it was opened for reading.  `due`: its access time is; that is then updated by the first read, if one reaches us. */
int passthrough_open_read(struct session *s, uint64_t node, struct handle *h, int flags, bool due);
int passthrough_create(struct session *s, uint64_t inode, struct opened *out);
void passthrough_close(struct session *s, struct handle *h); /* before its file is released */
