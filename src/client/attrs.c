#include "client/attrs.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/clock.h"

struct attrs_slot {
	struct attr attr; /* inode 0: empty */
	int64_t until_ns; /* without the lease; 0: empty */
	uint64_t grant;   /* or as long as this one holds; 0: none */
};

int attrs_init(struct attrs *a)
{
	memset(a, 0, sizeof(*a));
	pthread_mutex_init(&a->lock, NULL);
	a->slots = calloc(ATTRS_SLOTS, sizeof(*a->slots));
	return a->slots ? 0 : -ENOMEM;
}

void attrs_free(struct attrs *a)
{
	free(a->slots);
	pthread_mutex_destroy(&a->lock);
}

static struct attrs_slot *slot_of(struct attrs *a, uint64_t inode) { return &a->slots[inode % ATTRS_SLOTS]; }

static bool holds(const struct attrs_slot *s, uint64_t inode) { return s->attr.inode == inode && s->until_ns; }

uint64_t attrs_begin(struct attrs *a)
{
	LOCKED(&a->lock);
	return a->generation;
}

static bool forgotten_since(const struct attrs *a, uint64_t begun, uint64_t inode)
{
	if (begun < a->oldest || a->generation - begun > ATTRS_FORGOTTEN)
		return true;
	for (uint64_t g = begun; g < a->generation; g++)
		if (a->forgotten[g % ATTRS_FORGOTTEN] == inode)
			return true;
	return false;
}

static bool learn(struct attrs *a, uint64_t begun, const struct attr *attr, uint32_t valid_ms, uint64_t grant)
{
	struct attrs_slot *s;
	LOCKED(&a->lock);
	s = slot_of(a, attr->inode);
	if (forgotten_since(a, begun, attr->inode))
		return false;
	/* Two answers may arrive in the other order than they were given: what is there is as good. */
	if (holds(s, attr->inode) && s->attr.version > attr->version && s->grant == grant)
		return true;
	a->used += !s->until_ns;
	s->attr = *attr;
	s->until_ns = clock_steady_ns() + (int64_t)valid_ms * NS_PER_MS;
	s->grant = grant;
	return true;
}

bool attrs_learn(struct attrs *a, uint64_t begun, const struct attr *attr, uint32_t valid_ms)
{
	return valid_ms && learn(a, begun, attr, valid_ms, 0);
}

bool attrs_learn_granted(struct attrs *a, uint64_t begun, const struct attr *attr, uint64_t grant)
{
	return learn(a, begun, attr, 0, grant);
}

uint64_t attrs_find_granted(struct attrs *a, uint64_t inode, struct attr *out)
{
	const struct attrs_slot *s;
	LOCKED(&a->lock);
	s = slot_of(a, inode);
	if (!holds(s, inode))
		return 0;
	*out = s->attr;
	return s->grant;
}

uint32_t attrs_find(struct attrs *a, uint64_t inode, uint32_t lease_ms, struct attr *out)
{
	const struct attrs_slot *s;
	int64_t left_ms;
	LOCKED(&a->lock);
	s = slot_of(a, inode);
	if (!holds(s, inode))
		return 0;
	*out = s->attr;
	if (lease_ms)
		return lease_ms;
	left_ms = (s->until_ns - clock_steady_ns()) / NS_PER_MS;
	return left_ms > 0 ? (uint32_t)left_ms : 0;
}

static void forget(struct attrs *a, uint64_t inode)
{
	struct attrs_slot *s = slot_of(a, inode);
	a->forgotten[a->generation++ % ATTRS_FORGOTTEN] = inode;
	if (holds(s, inode)) {
		s->until_ns = 0;
		a->used--;
	}
}

bool attrs_have_room(struct attrs *a)
{
	LOCKED(&a->lock);
	return a->used < ATTRS_SLOTS / 4 * 3;
}

void attrs_forget(struct attrs *a, uint64_t inode)
{
	LOCKED(&a->lock);
	forget(a, inode);
}

void attrs_forget_all(struct attrs *a)
{
	struct attrs_slot *fresh = calloc(ATTRS_SLOTS, sizeof(*fresh)), *old;
	pthread_mutex_lock(&a->lock);
	a->oldest = ++a->generation;
	a->used = 0;
	old = fresh ? a->slots : NULL;
	if (fresh)
		a->slots = fresh;
	else
		for (size_t i = 0; i < ATTRS_SLOTS; i++)
			a->slots[i].until_ns = 0;
	pthread_mutex_unlock(&a->lock);
	free(old);
}

void attrs_grown(struct attrs *a, uint64_t directory, int64_t time_ns)
{
	struct attrs_slot *s;
	LOCKED(&a->lock);
	s = slot_of(a, directory);
	if (!holds(s, directory)) {
		forget(a, directory);
		return;
	}
	s->attr.mtime_ns = s->attr.ctime_ns = time_ns;
	s->attr.version++;
}
