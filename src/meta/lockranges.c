#include "meta/lockranges.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The first that ends at `offset` or later. */
static size_t range_from(const struct lock_ranges *all, uint64_t offset)
{
	size_t low = 0, high = all->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (all->items[middle].end < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct lock_range *lock_ranges_conflict(const struct lock_ranges *all, const struct lock *l)
{
	for (size_t i = range_from(all, l->start); i < all->count && all->items[i].start <= l->end; i++)
		if (l->type == LOCK_EXCLUSIVE || all->items[i].type == LOCK_EXCLUSIVE)
			return &all->items[i];
	return NULL;
}

/* What stands instead of the ranges `from` to `to` when *l is set: parts of the first and the last, the new one, and the
 * neighbours, which it may continue. */
struct change {
	size_t from, to;
	struct lock_range parts[5];
	size_t count;
};

static void change_add(struct change *c, struct lock_range r)
{
	struct lock_range *last = c->count ? &c->parts[c->count - 1] : NULL;

	if (last && last->end + 1 == r.start && last->type == r.type && last->handle == r.handle)
		last->end = r.end;
	else
		c->parts[c->count++] = r;
}

static void change_of(const struct lock_ranges *all, const struct lock *l, struct change *c)
{
	struct lock_range r;

	*c = (struct change){ .from = range_from(all, l->start) };
	for (c->to = c->from; c->to < all->count && all->items[c->to].start <= l->end;)
		c->to++;
	if (c->from > 0)
		change_add(c, all->items[c->from - 1]);
	if (c->from < c->to && all->items[c->from].start < l->start) {
		r = all->items[c->from];
		r.end = l->start - 1;
		change_add(c, r);
	}
	if (l->type != LOCK_NONE)
		change_add(c, (struct lock_range){ l->start, l->end, l->handle, l->pid, l->type });
	if (c->from < c->to && all->items[c->to - 1].end > l->end) {
		r = all->items[c->to - 1];
		r.start = l->end + 1;
		change_add(c, r);
	}
	if (c->to < all->count)
		change_add(c, all->items[c->to]);
	c->from -= c->from > 0;
	c->to += c->to < all->count;
}

static int reserve(struct lock_ranges *all, size_t count)
{
	size_t capacity = all->capacity ? all->capacity : 1;
	struct lock_range *bigger;

	while (capacity < count)
		capacity *= 2;
	if (capacity == all->capacity)
		return 0;
	bigger = reallocarray(all->items, capacity, sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	all->items = bigger;
	all->capacity = capacity;
	return 0;
}

int lock_ranges_set(struct lock_ranges *all, const struct lock *l, size_t most)
{
	struct change c;
	size_t count;
	int r;

	change_of(all, l, &c);
	count = all->count - (c.to - c.from) + c.count;
	if (count > all->count && count > most)
		return -ENOLCK;
	r = reserve(all, count);
	if (r)
		return r;
	memmove(all->items + c.from + c.count, all->items + c.to, (all->count - c.to) * sizeof(*all->items));
	memcpy(all->items + c.from, c.parts, c.count * sizeof(*all->items));
	all->count = count;
	return 0;
}

void lock_ranges_drop_handle(struct lock_ranges *all, uint64_t handle)
{
	size_t kept = 0;

	for (size_t i = 0; i < all->count; i++)
		if (all->items[i].handle != handle)
			all->items[kept++] = all->items[i];
	all->count = kept;
}
