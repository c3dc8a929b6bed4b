/* Freeing what was deleted, a bounded slice at a time.
 *
 * The server's reaper takes a short view, finds what is due (reap_due) and sends
 * it as REAP mutations; reap_pass does both for all volumes.  Nothing that a
 * session has open is freed.  After a start the server must not call this before
 * every recorded session has reclaimed its opens or is given up. */
#pragma once
#include "meta/meta.h"

/* The inodes of a volume that are due and not open, oldest first. */
int reap_due(struct meta *m, struct view *v, uint32_t volume, int64_t now_ns, uint64_t *inodes, size_t max, size_t *count);

struct reap_counts {
	uint64_t files, extents, volumes;
};
/* One REAP for each volume that has something due, each of up to max_extents
 * (0: 10,000).  *more: there was more than that, call again.  Any thread but the
 * writer's; waits for the mutations. */
int reap_pass(struct meta *m, int64_t now_ns, uint32_t max_extents, struct reap_counts *done, bool *more);
