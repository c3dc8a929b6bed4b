/* How much there is at and below some paths, counted by a thread of its own while the work on them goes on: for a progress that says how
 * long it will take.  However many files there are, it costs the memory of a walk (walk.h).
 *
 * A list (list.h) is read a second time; of one that cannot be, a pipe, the total is never known.
 *
 * All calls by one thread. */
#pragma once
#include <stdint.h>
#include <sys/types.h>

struct list;
struct tally;

/* Paths and list stay until tally_stop; the list's own place is not touched.  NULL: it cannot be counted, which is fine to pass on. */
struct tally *tally_start(dev_t device, char *const *paths, int path_count, const struct list *l);
uint64_t tally_bytes(const struct tally *t); /* 0: not known, or not yet */
void tally_stop(struct tally *t);
