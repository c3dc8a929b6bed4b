#include "client/order.h"
#include <errno.h>
#include <stdlib.h>

#define LAG_MAX 1024u
#define FAR_ENOUGH 8u

struct order_entry {
	uint64_t inode, bytes;
	uint64_t again; /* the next position of the same inode, + 1; 0: none */
	bool taken, seen, in_memory;
};

static struct order_entry *at(const struct order *o, uint64_t position) { return &o->entries[position % o->capacity]; }

static uint64_t position_of(const struct intmap *m, uint64_t inode) { return (uint64_t)(uintptr_t)intmap_get(m, inode); }

int order_init(struct order *o, uint32_t capacity, uint64_t window, uint64_t ahead, uint64_t memory)
{
	*o = (struct order){
		.window = window, .ahead = ahead, .memory = memory, .lag = ahead < LAG_MAX ? ahead : LAG_MAX, .capacity = capacity
	};
	o->entries = calloc(capacity, sizeof(*o->entries));
	return o->entries ? 0 : -ENOMEM;
}

void order_free(struct order *o)
{
	free(o->entries);
	intmap_free(&o->waiting);
	intmap_free(&o->latest);
}

int order_add(struct order *o, uint64_t inode, uint64_t bytes)
{
	uint64_t position = o->first + o->count, before = position_of(&o->latest, inode);

	if (o->count == o->capacity)
		return -ENOSPC;
	if (!position_of(&o->waiting, inode) && intmap_set(&o->waiting, inode, (void *)(uintptr_t)(position + 1)) < 0)
		return -ENOMEM;
	if (intmap_set(&o->latest, inode, (void *)(uintptr_t)(position + 1)) < 0) {
		if (position_of(&o->waiting, inode) == position + 1)
			intmap_remove(&o->waiting, inode);
		return -ENOMEM;
	}
	*at(o, position) = (struct order_entry){ .inode = inode, .bytes = bytes < o->window ? bytes : o->window };
	if (before > o->first)
		at(o, before - 1)->again = position + 1;
	o->count++;
	o->added++;
	return 0;
}

bool order_take(struct order *o, uint64_t *position, uint64_t *inode, uint64_t *bytes)
{
	struct order_entry *e;

	while (o->next < o->first + o->count && at(o, o->next)->seen)
		o->next++;
	if (o->next == o->first + o->count || o->ahead_files >= o->ahead)
		return false;
	e = at(o, o->next);
	if (e->bytes > o->window - o->ahead_bytes ||
	    (o->memory_bytes && o->memory_bytes + o->flying_bytes + e->bytes > o->memory))
		return false;
	e->taken = true;
	o->flying_bytes += e->bytes;
	o->ahead_files++;
	o->ahead_bytes += e->bytes;
	*position = o->next++;
	*inode = e->inode;
	*bytes = e->bytes;
	return true;
}

void order_done(struct order *o, uint64_t position, uint64_t bytes, enum order_outcome outcome)
{
	struct order_entry *e = position >= o->first ? at(o, position) : NULL;

	o->flying_bytes -= bytes;
	o->failed += outcome == ORDER_FAILED;
	o->ready += outcome != ORDER_FAILED;
	o->ready_bytes += outcome != ORDER_FAILED ? bytes : 0;
	if (outcome != ORDER_IN_MEMORY || !e || e->seen)
		return;
	e->in_memory = true;
	o->memory_bytes += e->bytes;
}

/* It is not waited for any more. */
static void leave(struct order *o, uint64_t position)
{
	struct order_entry *e = at(o, position);

	if (e->taken) {
		o->ahead_files--;
		o->ahead_bytes -= e->bytes;
		o->memory_bytes -= e->in_memory ? e->bytes : 0;
	}
	if (position_of(&o->waiting, e->inode) != position + 1)
		return;
	/* Where there is one already, no memory is needed. */
	if (e->again)
		(void)intmap_set(&o->waiting, e->inode, (void *)(uintptr_t)e->again);
	else
		intmap_remove(&o->waiting, e->inode);
}

static void drop_first(struct order *o)
{
	struct order_entry *e = at(o, o->first);

	if (!e->seen) {
		leave(o, o->first);
		o->passed++;
	}
	if (position_of(&o->latest, e->inode) == o->first + 1)
		intmap_remove(&o->latest, e->inode);
	o->first++;
	o->count--;
	if (o->next < o->first)
		o->next = o->first;
}

/* So far ahead that it may be something else: an earlier reading of the same file that goes on, or somebody else's.  Some in a row
 * close to each other are the reader, who has left out the rest. */
static bool is_doubtful(struct order *o, uint64_t position)
{
	uint64_t apart = position > o->far ? position - o->far : o->far - position;

	if (position < o->furthest + o->ahead) {
		o->far_count = 0;
		return false;
	}
	if (o->far_count && apart == 0)
		return true;
	o->far_count = o->far_count && apart <= o->ahead ? o->far_count + 1 : 1;
	o->far = position;
	return o->far_count < (o->ahead < FAR_ENOUGH ? o->ahead : FAR_ENOUGH);
}

bool order_seen(struct order *o, uint64_t inode)
{
	uint64_t position = position_of(&o->waiting, inode);

	if (!position || is_doubtful(o, --position))
		return false;
	leave(o, position);
	at(o, position)->seen = true;
	o->seen++;
	if (o->furthest <= position)
		o->furthest = position + 1;
	while (o->count && (at(o, o->first)->seen || o->first + o->lag < o->furthest))
		drop_first(o);
	return true;
}
