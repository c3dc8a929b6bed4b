/* The locks of one owner on one file: ranges that do not overlap, in order, so that however many there are, what is
 * in the way of somebody else's is found at once.
 *
 * No lock of its own: one thread at a time. */
#pragma once
#include "meta/locktable.h"

struct lock_range {
	uint64_t start, end, handle;
	uint32_t pid;
	enum lock_type type;
};

struct lock_ranges {
	struct lock_range *items; /* free() them at the end */
	size_t count, capacity;
};

/* The first that is in the way of *l; NULL: none. */
const struct lock_range *lock_ranges_conflict(const struct lock_ranges *all, const struct lock *l);
/* Sets, changes or releases: what was in the range goes, and neighbours of the same type and handle become one.  Nothing
 * has changed after -ENOLCK (there would be more than `most`, and more than before) and -ENOMEM. */
int lock_ranges_set(struct lock_ranges *all, const struct lock *l, size_t most);
void lock_ranges_drop_handle(struct lock_ranges *all, uint64_t handle);
