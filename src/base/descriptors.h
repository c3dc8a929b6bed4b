/* Open descriptors of things that never change, by number, kept for the next use.
 * The least recently used one goes when there are too many.
 *
 *	d = descriptor_find(&all, number);
 *	if (!d)
 *		d = descriptor_add(&all, number, fd);
 *	... d->fd, d->size ...
 *	descriptor_put(&all, d);
 *
 * Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/intmap.h"

struct descriptor {
	int fd;
	uint64_t number, size; /* the file's, when it was added */
	int64_t since_ns;      /* when it was added, by the steady clock */
	int users;             /* guarded by the lock, as all below */
	bool forgotten;        /* closed when the last user is done */
	struct descriptor *newer, *older;
};

struct descriptors {
	pthread_mutex_t lock;
	size_t keep;
	struct intmap map; /* number -> descriptor */
	struct descriptor *newest, *oldest;
};

void descriptors_init(struct descriptors *all, size_t keep);
void descriptors_free(struct descriptors *all);
struct descriptor *descriptor_find(struct descriptors *all, uint64_t number); /* NULL: not here */
/* Takes the descriptor; closed if there is one of that number already, which is the
 * answer then.  NULL: no memory, or it cannot be looked at; closed too. */
struct descriptor *descriptor_add(struct descriptors *all, uint64_t number, int fd);
void descriptor_put(struct descriptors *all, struct descriptor *d);
void descriptor_forget(struct descriptors *all, uint64_t number);
/* Forgets those that were added before then, by the steady clock.  How many are left. */
size_t descriptors_trim(struct descriptors *all, int64_t before_ns);
void descriptors_allow_all(void); /* as many in this process as the administrator allows */
