#include "client/catalog.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>
#include "base/cleanup.h"

/* A table of names: linear probing, a power of two of slots, at most three quarters
 * full.  A slot is empty when `rest` is 0. */
#define INODE_BITS 40
#define INODE_MASK ((1ull << INODE_BITS) - 1)
#define INODE_OTHER INODE_MASK /* present, whatever its inode */
#define FIRST_SLOTS 16u

struct slot {
	uint64_t hash;
	uint64_t rest; /* 24 more bits of the hash, 40 of the inode */
};

struct catalog_directory {
	uint64_t inode, id;
	uint64_t since; /* catalog_clock when it was taken in */
	struct catalog_directory *newer, *older;
	struct slot *slots;
	size_t used, capacity;
	unsigned changing; /* changes under way */
	uint64_t changed;  /* the last one begun */
};

static struct slot slot_of(const struct catalog *c, const char *name, size_t size, uint64_t inode)
{
	XXH128_hash_t h = XXH3_128bits_withSeed(name, size, c->seed);

	return (struct slot){ h.low64, (h.high64 & ~INODE_MASK) | (inode ? inode & INODE_MASK : INODE_OTHER) };
}

static bool slot_same(const struct slot *a, const struct slot *b)
{
	return a->rest && a->hash == b->hash && !((a->rest ^ b->rest) & ~INODE_MASK);
}

/* Where it is, or the empty slot where it would go. */
static size_t slot_find(const struct catalog_directory *d, const struct slot *s)
{
	size_t i = s->hash & (d->capacity - 1);

	while (d->slots[i].rest && !slot_same(&d->slots[i], s))
		i = (i + 1) & (d->capacity - 1);
	return i;
}

static int directory_grow(struct catalog_directory *d)
{
	struct catalog_directory bigger = { .capacity = d->capacity ? d->capacity * 2 : FIRST_SLOTS };

	bigger.slots = calloc(bigger.capacity, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < d->capacity; i++)
		if (d->slots[i].rest)
			bigger.slots[slot_find(&bigger, &d->slots[i])] = d->slots[i];
	free(d->slots);
	d->slots = bigger.slots;
	d->capacity = bigger.capacity;
	return 0;
}

static bool directory_is_full(const struct catalog_directory *d) { return d->used >= d->capacity / 4 * 3; }

static int directory_put(struct catalog_directory *d, const struct slot *s)
{
	size_t i;

	if (directory_is_full(d) && directory_grow(d) < 0)
		return -ENOMEM;
	i = slot_find(d, s);
	d->used += !d->slots[i].rest;
	d->slots[i] = *s;
	return 0;
}

/* Those behind it that would not be found any more move up. */
static void directory_take(struct catalog_directory *d, const struct slot *s)
{
	size_t mask = d->capacity - 1, hole, i;

	if (!d->capacity)
		return;
	hole = slot_find(d, s);
	if (!d->slots[hole].rest)
		return;
	d->used--;
	for (i = (hole + 1) & mask; d->slots[i].rest; i = (i + 1) & mask) {
		size_t home = d->slots[i].hash & mask;

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			d->slots[hole] = d->slots[i];
			hole = i;
		}
	}
	d->slots[hole] = (struct slot){ 0 };
}

static size_t directory_bytes(const struct catalog_directory *d) { return sizeof(*d) + d->capacity * sizeof(*d->slots); }

static void directory_free(struct catalog_directory *d)
{
	if (d)
		free(d->slots);
	free(d);
}

/* ---- The list, the newest first; the lock is held ---- */

static void list_add(struct catalog *c, struct catalog_directory *d)
{
	d->newer = NULL;
	d->older = c->newest;
	*(c->newest ? &c->newest->newer : &c->oldest) = d;
	c->newest = d;
}

static void list_remove(struct catalog *c, struct catalog_directory *d)
{
	*(d->newer ? &d->newer->older : &c->newest) = d->older;
	*(d->older ? &d->older->newer : &c->oldest) = d->newer;
}

static struct catalog_directory *use(struct catalog *c, uint64_t inode)
{
	struct catalog_directory *d = intmap_get(&c->directories, inode);

	if (d && d != c->newest) {
		list_remove(c, d);
		list_add(c, d);
	}
	return d;
}

static void drop(struct catalog *c, struct catalog_directory *d)
{
	intmap_remove(&c->directories, d->inode);
	list_remove(c, d);
	c->bytes -= directory_bytes(d);
	directory_free(d);
}

/* Takes the directory in; it may be forgotten at once if it is too large. */
static bool take_in(struct catalog *c, struct catalog_directory *d)
{
	struct catalog_directory *before = intmap_get(&c->directories, d->inode);

	if (before)
		drop(c, before);
	if (intmap_set(&c->directories, d->inode, d) < 0) {
		directory_free(d);
		return false;
	}
	if (!d->id)
		d->id = ++c->next_id;
	d->since = ++c->next_id;
	list_add(c, d);
	c->bytes += directory_bytes(d);
	return true;
}

static bool shrink(struct catalog *c, const struct catalog_directory *keep)
{
	while (c->bytes > c->limit && c->oldest != keep)
		drop(c, c->oldest);
	if (c->bytes <= c->limit)
		return true;
	drop(c, c->oldest);
	return false;
}

/* False: the directory is no longer known.  One that would become too large is dropped before it is: for a while there
 * are two tables of it. */
static bool put(struct catalog *c, struct catalog_directory *d, const struct slot *s)
{
	size_t before = directory_bytes(d);

	if ((directory_is_full(d) && before * 2 > c->limit) || directory_put(d, s) < 0) {
		drop(c, d);
		return false;
	}
	c->bytes += directory_bytes(d) - before;
	return shrink(c, d);
}

/* ---- What others call ---- */

int catalog_init(struct catalog *c, size_t limit)
{
	memset(c, 0, sizeof(*c));
	c->limit = limit;
	pthread_mutex_init(&c->lock, NULL);
	return getrandom(&c->seed, sizeof(c->seed), 0) == sizeof(c->seed) ? 0 : -EIO;
}

void catalog_clear(struct catalog *c)
{
	LOCKED(&c->lock);
	c->clears++;
	while (c->oldest)
		drop(c, c->oldest);
}

void catalog_free(struct catalog *c)
{
	catalog_clear(c);
	intmap_free(&c->directories);
	pthread_mutex_destroy(&c->lock);
}

void catalog_drop(struct catalog *c, uint64_t directory)
{
	struct catalog_directory *d;
	LOCKED(&c->lock);

	d = intmap_get(&c->directories, directory);
	if (d)
		drop(c, d);
}

void catalog_recall(struct catalog *c, uint64_t directory)
{
	struct catalog_directory *d;
	LOCKED(&c->lock);

	d = intmap_get(&c->directories, directory);
	if (d)
		drop(c, d);
	c->changed[c->changes++ % CATALOG_CHANGED] = directory; /* listings under way are not taken in */
}

uint64_t catalog_clock(struct catalog *c)
{
	LOCKED(&c->lock);
	return c->next_id;
}

uint64_t catalog_grant(struct catalog *c, uint64_t directory, uint64_t since)
{
	const struct catalog_directory *d;
	LOCKED(&c->lock);

	d = intmap_get(&c->directories, directory);
	return d && d->since <= since ? d->id : 0;
}

enum catalog_answer catalog_find(struct catalog *c, uint64_t directory, const char *name, uint64_t *inode)
{
	const struct catalog_directory *d;
	struct slot s;
	size_t i;
	LOCKED(&c->lock);

	d = use(c, directory);
	/* While a change is under way nobody can say. */
	if (!d || d->changing)
		return CATALOG_UNKNOWN;
	if (!d->capacity)
		return CATALOG_ABSENT;
	s = slot_of(c, name, strlen(name), 0);
	i = slot_find(d, &s);
	if (!d->slots[i].rest)
		return CATALOG_ABSENT;
	*inode = (d->slots[i].rest & INODE_MASK) == INODE_OTHER ? 0 : d->slots[i].rest & INODE_MASK;
	return CATALOG_PRESENT;
}

uint64_t catalog_cleared(struct catalog *c)
{
	LOCKED(&c->lock);
	return c->clears;
}

bool catalog_claim(struct catalog *c, uint64_t directory, const char *name, uint64_t inode, uint64_t *clears)
{
	struct slot s = slot_of(c, name, strlen(name), inode);
	struct catalog_directory *d;
	LOCKED(&c->lock);

	d = use(c, directory);
	if (!d || d->changing || (d->capacity && d->slots[slot_find(d, &s)].rest))
		return false;
	c->changed[c->changes++ % CATALOG_CHANGED] = directory;
	*clears = c->clears;
	return put(c, d, &s);
}

void catalog_begin(struct catalog *c, uint64_t directory, struct catalog_change *change)
{
	struct catalog_directory *d;
	LOCKED(&c->lock);

	c->changing[directory % CATALOG_CHANGING]++;
	c->changed[c->changes % CATALOG_CHANGED] = directory;
	d = use(c, directory);
	*change = (struct catalog_change){ .directory = directory, .changes = ++c->changes, .clears = c->clears };
	if (!d)
		return;
	change->id = d->id;
	change->alone = d->changing++ == 0;
	d->changed = change->changes;
}

/* The directory of a change, if it is still the one it was. */
static struct catalog_directory *changing(struct catalog *c, const struct catalog_change *change)
{
	struct catalog_directory *d = intmap_get(&c->directories, change->directory);

	return d && d->id == change->id ? d : NULL;
}

/* Nobody else changed the directory since the change began. */
static bool is_only(const struct catalog_directory *d, const struct catalog_change *change)
{
	return change->alone && d->changed == change->changes;
}

static bool changed_since(const struct catalog *c, uint64_t changes, uint64_t directory)
{
	if (c->changes - changes > CATALOG_CHANGED)
		return true;
	for (; changes < c->changes; changes++)
		if (c->changed[changes % CATALOG_CHANGED] == directory)
			return true;
	return false;
}

void catalog_added(struct catalog *c, const struct catalog_change *change, const char *name, uint64_t inode)
{
	struct slot s;
	struct catalog_directory *d;
	LOCKED(&c->lock);

	d = changing(c, change);
	if (!d)
		return;
	s = slot_of(c, name, strlen(name), is_only(d, change) ? inode : 0);
	put(c, d, &s);
}

void catalog_doubted(struct catalog *c, const struct catalog_change *change, const char *name)
{
	struct slot s = slot_of(c, name, strlen(name), 0);
	struct catalog_directory *d;
	size_t i;
	LOCKED(&c->lock);

	d = changing(c, change);
	if (!d || !d->capacity)
		return;
	i = slot_find(d, &s);
	if (d->slots[i].rest)
		d->slots[i] = s;
}

void catalog_removed(struct catalog *c, const struct catalog_change *change, const char *name)
{
	struct slot s = slot_of(c, name, strlen(name), 0);
	struct catalog_directory *d;
	LOCKED(&c->lock);

	d = changing(c, change);
	if (d && is_only(d, change))
		directory_take(d, &s);
	else if (d)
		put(c, d, &s);
}

void catalog_made(struct catalog *c, const struct catalog_change *change, uint64_t directory)
{
	struct catalog_directory *d;
	LOCKED(&c->lock);

	/* Somebody may have found the directory and made something in it before we got here. */
	if (change->clears != c->clears || changed_since(c, change->changes, directory))
		return;
	d = calloc(1, sizeof(*d));
	if (!d)
		return;
	d->inode = directory;
	if (take_in(c, d))
		shrink(c, d);
}

void catalog_end(struct catalog *c, const struct catalog_change *change)
{
	struct catalog_directory *d;
	LOCKED(&c->lock);

	c->changing[change->directory % CATALOG_CHANGING]--;
	d = changing(c, change);
	if (d)
		d->changing--;
}

bool catalog_has_room(struct catalog *c)
{
	LOCKED(&c->lock);
	return c->bytes <= c->limit / 2;
}

bool catalog_listing_begin(struct catalog *c, uint64_t directory, struct catalog_listing *l)
{
	LOCKED(&c->lock);

	if (c->changing[directory % CATALOG_CHANGING] || intmap_get(&c->directories, directory))
		return false;
	l->directory = calloc(1, sizeof(*l->directory));
	if (!l->directory)
		return false;
	l->directory->inode = directory;
	l->directory->id = l->id = ++c->next_id;
	l->changes = c->changes;
	l->clears = c->clears;
	return true;
}

int catalog_listing_add(struct catalog *c, struct catalog_listing *l, const char *name, size_t size, uint64_t inode)
{
	struct slot s = slot_of(c, name, size, inode);

	return directory_put(l->directory, &s);
}

bool catalog_listing_end(struct catalog *c, struct catalog_listing *l, bool complete)
{
	LOCKED(&c->lock);

	if (!complete || l->clears != c->clears || changed_since(c, l->changes, l->directory->inode)) {
		directory_free(l->directory);
		return false;
	}
	return take_in(c, l->directory) && shrink(c, l->directory);
}
