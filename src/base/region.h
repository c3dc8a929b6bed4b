/* A region: memory of a fixed size that another process can be shown, by its descriptor (a memfd that cannot shrink or
 * grow).  Pieces of it are taken and given back; they begin on a page.  What is given back takes no memory.
 *
 * Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct region;

int region_new(size_t size, struct region **out); /* 0 or -errno; -EOPNOTSUPP: not on this system */
void region_free(struct region *r);               /* NULL is fine; all pieces must have come back */
void *region_take(struct region *r, size_t size); /* not zeroed; NULL: there is no room */
void region_give(struct region *r, void *piece, size_t size);
bool region_holds(const struct region *r, const void *bytes, size_t size); /* r may be NULL, which holds nothing */
uint64_t region_offset(const struct region *r, const void *bytes);         /* of what it holds, in the descriptor's file */
int region_descriptor(const struct region *r);                             /* stays the region's */
