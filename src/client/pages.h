/* Making the kernel forget its pages of a file, while programs go on asking for them.
 *
 * A request of the kernel holds pages (they are locked), and forgetting them waits for its
 * answer; so requests must be answered meanwhile.  But what is answered behind the
 * forgetting stays.  Two facts bring it to an end:
 *
 *   - A request that was there before forgetting its pages began is no harm: they go with the rest.
 *   - One that comes later can wait, unless the forgetting waits for it.
 *
 * So a file is forgotten stretch by stretch.  Requests that come wait here, until the turn of
 * a stretch comes that they touch: then they are let through.  One that has waited for
 * HOLD_NS may be what the forgetting waits for; it is let through, too, and its pages are
 * forgotten once more at the end.  Those come for single pages of a moment, not for a whole
 * file of a second, so it does not go on for ever.
 *
 * All of it with inode.lock held, which is given up meanwhile. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct inode;

/* Bytes of a file, up to but not including `to`. */
struct stretch {
	uint64_t from, to;
};
/* For what leaves nothing in the kernel's pages. */
#define NO_PAGES ((struct stretch){ 0, 0 })

struct pages {
	bool leaving;
	struct pages_request *waiting; /* requests that are held up */
	struct stretch *again;         /* what was let through, and is to be forgotten once more */
	size_t again_count;
};

/* From `from` on.  Until the lock is given up the kernel has nothing of it; one at a time. */
void pages_leave(struct inode *i, uint64_t from);
/* While they leave: a request waits for its turn.  False: they have left, and what the request rests upon may have gone. */
bool pages_admit(struct inode *i, struct stretch wanted);
/* Without any lock.  Once, whatever comes meanwhile. */
void pages_forget(struct client *c, uint64_t inode, uint64_t from, uint64_t to);
