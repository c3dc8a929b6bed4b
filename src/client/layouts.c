#include "client/layouts.h"
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"

struct layouts_slot {
	uint64_t inode; /* 0: empty */
	uint64_t version;
	struct extent extent;
};

int layouts_init(struct layouts *l)
{
	pthread_mutex_init(&l->lock, NULL);
	l->slots = calloc(LAYOUTS_SLOTS, sizeof(*l->slots));
	return l->slots ? 0 : -ENOMEM;
}

void layouts_free(struct layouts *l)
{
	free(l->slots);
	pthread_mutex_destroy(&l->lock);
}

static struct layouts_slot *slot_of(struct layouts *l, uint64_t inode) { return &l->slots[inode % LAYOUTS_SLOTS]; }

void layouts_learn(struct layouts *l, const struct attr *a, const struct extent *e)
{
	if (e->offset != 0 || e->length != a->size)
		return;
	LOCKED(&l->lock);
	*slot_of(l, a->inode) = (struct layouts_slot){ a->inode, a->version, *e };
}

bool layouts_find(struct layouts *l, const struct attr *a, struct extent *out)
{
	const struct layouts_slot *s;
	LOCKED(&l->lock);
	s = slot_of(l, a->inode);
	if (s->inode != a->inode || s->version != a->version || s->extent.length != a->size)
		return false;
	*out = s->extent;
	return true;
}

void layouts_forget(struct layouts *l, uint64_t inode)
{
	LOCKED(&l->lock);
	if (slot_of(l, inode)->inode == inode)
		slot_of(l, inode)->inode = 0;
}
