/* Where the contents of small files are, as listings and answers to OPEN told: so that opening and reading one needs no call.
 *
 * Kept is one extent that is all of a file at one version of its content.  It is of use to whoever knows by other means
 * (attrs.h) that this is the version now.  The object may have been moved since (gc): who finds it gone asks for the extents,
 * and forgets it here.  A fixed number of slots, 72 bytes each, only touched when used; a slot taken by another
 * inode costs a call, nothing else.
 *
 * Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "block/extent.h"
#include "meta/attr.h"

#define LAYOUTS_SLOTS (1u << 17)

struct layouts {
	pthread_mutex_t lock; /* guards the slots */
	struct layouts_slot *slots;
};

int layouts_init(struct layouts *l);
void layouts_free(struct layouts *l);
/* `e`: an extent of the file with these attributes, taken in if it is all of it. */
void layouts_learn(struct layouts *l, const struct attr *a, const struct extent *e);
bool layouts_find(struct layouts *l, const struct attr *a, struct extent *out);
void layouts_forget(struct layouts *l, uint64_t inode);
