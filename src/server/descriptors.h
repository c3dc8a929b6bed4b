/* Open descriptors of objects read lately, so that a read costs no open and
 * close.  The least recently used one goes when there are too many.
 *
 *	struct descriptor *d;
 *	r = descriptor_get(&g->descriptors, store, object, &d);
 *	... d->fd, d->size ...
 *	descriptor_put(&g->descriptors, d);
 *
 * Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"
#include "store/store.h"

#define DESCRIPTORS_KEPT 256

struct descriptor {
	int fd;
	uint64_t object, size;
	int users;      /* guarded by the lock, as all below */
	bool forgotten; /* closed when the last user is done */
	struct descriptor *newer, *older;
};

struct descriptors {
	pthread_mutex_t lock;
	struct intmap map; /* object -> descriptor */
	struct descriptor *newest, *oldest;
};

void descriptors_init(struct descriptors *all);
void descriptors_free(struct descriptors *all);
/* -ENOENT: no such object; -EOPNOTSUPP: the store has no descriptors to give. */
int descriptor_get(struct descriptors *all, struct store *store, uint64_t object, struct descriptor **out);
void descriptor_put(struct descriptors *all, struct descriptor *d);
void descriptor_forget(struct descriptors *all, uint64_t object); /* it is about to be deleted */
