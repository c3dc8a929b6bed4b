/* fusermount3, the set-user-ID helper of libfuse: it mounts and unmounts for users who
 * are not root, and hands the device over a socket.  One thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* `options` as in mount -o.  The descriptor of the device, or -errno with a text. */
int fusermount_mount(const char *path, const char *options, char *why, size_t why_size);
int fusermount_unmount(const char *path, bool lazily, char *why, size_t why_size);
