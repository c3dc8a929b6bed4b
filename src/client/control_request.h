/* The lines that come by the control socket.
 *
 *   {"op": "status", "pinned": true}                         pinned: look at each file of the cache for that, which takes a moment
 *   {"op": "store"}                                          answered when all that was written so far is stored, also what is only in
 *                                                            a write-back directory;
 *                                                            says whether the kernel still has the mount
 *   {"op": "warm", "files": [[inode, from, to], ...], "pin": true, "unpin": true, "verify": true}
 *   {"op": "order", "window": bytes, "ahead": files}         the order that the rest of this connection is about
 *   {"op": "next", "files": [[inode, size], ...]}            goes on like this
 *   {"op": "progress"}                                       of it
 *
 * Files are named by their inodes: names need not be text, and whoever asks has found them by himself.  Unknown
 * fields are ignored. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum control_op { CONTROL_STATUS, CONTROL_STORE, CONTROL_WARM, CONTROL_ORDER, CONTROL_NEXT, CONTROL_PROGRESS };

#define CONTROL_FILES 1024u /* in one request */

struct control_request {
	enum control_op op;
	bool pinned;
	unsigned flags; /* of warm.h */
	uint64_t window, ahead;
	uint32_t count;
	struct control_file {
		uint64_t inode, from, to;
	} files[CONTROL_FILES];
};

/* A line, without its end.  0, or -EBADMSG and what is wrong with it. */
int control_decode(const char *line, size_t length, struct control_request *out, const char **why);
