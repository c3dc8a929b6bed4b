/* Room: how much is taken, and whether there is room for more.  The protocol is in state.h. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <xxhash.h>
#include "cache/state.h"

#define FREE_AGAIN_NS (100 * NS_PER_MS)
#define FREE_AGAIN_BYTES (1 << 20)
#define ROUNDS 16             /* of evicting for one newcomer, while others take what was freed */
#define EVICT_STEP (64 << 20) /* in one go when the disk fills up, so that others get the lock */

/* A count that makes no sense must not overflow, either. */
#define SENSE_MAX ((int64_t)1 << 60)

static int64_t sensible(uint64_t sum)
{
	int64_t n = (int64_t)sum;
	return n > SENSE_MAX ? SENSE_MAX : n < -SENSE_MAX ? -SENSE_MAX : n;
}

/* Slots first: what moves from a slot to a bucket meanwhile is then counted twice, not left out. */
static int64_t slots_sum(struct cache_dir *d)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < CACHE_SLOTS; i++)
		sum += (uint64_t)atomic_load(&d->state->slots[i].reserved);
	return sensible(sum);
}

static int64_t buckets_sum(struct cache_dir *d)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < CACHE_BUCKETS; i++)
		sum += (uint64_t)atomic_load(&d->state->buckets[i].bytes);
	return sensible(sum);
}

int64_t cache_room_used(struct cache_dir *d)
{
	int64_t reserved = slots_sum(d);
	return reserved + buckets_sum(d);
}

bool cache_room_trusted(struct cache_dir *d) { return atomic_load(&d->state->boot) == d->cache->boot; }

void cache_room_doubt(struct cache_dir *d)
{
	if (atomic_load(&d->state->doubts) == atomic_load(&d->state->settled))
		atomic_fetch_add(&d->state->doubts, 1);
}

struct cache_volume *cache_volume_of(struct cache_dir *d, const uint8_t store[CACHE_STORE_ID], uint32_t volume)
{
	uint64_t key = XXH3_64bits_withSeed(store, CACHE_STORE_ID, volume) | 1;
	for (unsigned i = 0; i < CACHE_VOLUMES; i++) {
		struct cache_volume *v = &d->state->volumes[(key / 2 + i) % CACHE_VOLUMES];
		uint64_t there = atomic_load(&v->key);
		if (there == key || (there == 0 && (atomic_compare_exchange_strong(&v->key, &there, key) || there == key)))
			return v;
	}
	return NULL;
}

static void volume_change(struct cache_dir *d, const uint8_t store[CACHE_STORE_ID], uint32_t volume, int64_t bytes)
{
	struct cache_volume *v = cache_volume_of(d, store, volume);
	if (v)
		atomic_fetch_add(&v->bytes, bytes);
}

/* How far the free space is below min_free once all that is reserved is written. */
static int64_t free_shortage(struct cache_dir *d, int64_t reserved)
{
	int64_t now = clock_read(d->cache->options.clock), age = now - atomic_load(&d->free_ns);
	if (age < 0 || age > FREE_AGAIN_NS || atomic_load(&d->free_spent) > FREE_AGAIN_BYTES) {
		struct statvfs v;
		if (fstatvfs(d->root, &v) < 0)
			return cache_dir_error(d, errno), INT64_MAX / 2;
		atomic_store(&d->free_spent, 0);
		atomic_store(&d->free_bytes, (int64_t)((uint64_t)v.f_bavail * v.f_frsize) - d->min_free);
		atomic_store(&d->free_ns, now);
	}
	return reserved + atomic_load(&d->free_spent) - atomic_load(&d->free_bytes);
}

static int64_t share_shortage(struct cache_dir *d, uint32_t volume, int64_t bytes)
{
	for (int i = 0; i < d->cache->options.share_count; i++) {
		const struct cache_share *s = &d->cache->shares[i];
		struct cache_volume *v = s->volume == volume ? cache_volume_of(d, d->cache->options.store, volume) : NULL;
		if (v)
			return sensible((uint64_t)atomic_load(&v->bytes)) + bytes - d->limit / 100 * s->percent;
	}
	return 0;
}

struct shortage {
	int64_t bytes;
	bool of_share;
};

/* Reserves; if that is too much, gives back and tells by how much. */
static bool take(struct cache_dir *d, uint32_t volume, int64_t bytes, struct shortage *out)
{
	atomic_fetch_add(&d->state->slots[d->slot].reserved, bytes);
	int64_t reserved = slots_sum(d), over = reserved + buckets_sum(d) - d->limit;
	int64_t low = free_shortage(d, reserved), share = share_shortage(d, volume, bytes);
	int64_t most = over > low ? over : low;
	*out = (struct shortage){ .bytes = most > share ? most : share, .of_share = share > 0 && share >= most };
	/* So much too much is a count gone wrong rather than a full cache: nobody is evicted for that. */
	if (over > d->limit / 8 + bytes)
		cache_room_doubt(d);
	if (out->bytes <= 0)
		return true;
	atomic_fetch_sub(&d->state->slots[d->slot].reserved, bytes);
	return false;
}

static bool in_vain(struct cache_dir *d, const struct cache_newcomer *n)
{
	return atomic_load(&d->vain[n->level]) == cache_usage_tick(d) + 1 && atomic_load(&d->vain_limit[n->level]) <= n->limit;
}

static bool is_doubted(struct cache_dir *d) { return atomic_load(&d->state->doubts) != atomic_load(&d->state->settled); }

static bool take_by_eviction(struct cache_dir *d, int64_t bytes, const struct cache_newcomer *n)
{
	struct shortage s;
	bool taken = false, freed = true;
	if (!cache_removal_begin(d))
		return false;
	for (int round = 0; round < ROUNDS && freed && !(taken = take(d, n->volume, bytes, &s)); round++) {
		freed = s.bytes <= d->limit / 8 + bytes && cache_evict(d, s.bytes, n, s.of_share) > 0;
		if (!freed && !s.of_share) {
			atomic_store(&d->vain_limit[n->level], n->limit);
			atomic_store(&d->vain[n->level], cache_usage_tick(d) + 1);
		}
	}
	cache_removal_end(d);
	return taken;
}

int cache_room_take(struct cache_dir *d, int64_t bytes, const struct cache_newcomer *n)
{
	struct shortage s;
	if (bytes <= d->limit && cache_room_trusted(d)) {
		if (take(d, n->volume, bytes, &s))
			return 0;
		if (!in_vain(d, n) && take_by_eviction(d, bytes, n))
			return 0;
	}
	atomic_fetch_add(&d->cache->refusals, 1);
	return -ENOSPC;
}

void cache_room_give(struct cache_dir *d, int64_t bytes) { atomic_fetch_sub(&d->state->slots[d->slot].reserved, bytes); }

void cache_room_keep(struct cache_dir *d, unsigned bucket, const uint8_t store[CACHE_STORE_ID], uint32_t volume, int64_t bytes,
		     int entries)
{
	atomic_fetch_add(&d->state->buckets[bucket].bytes, bytes);
	atomic_fetch_add(&d->state->buckets[bucket].entries, entries);
	volume_change(d, store, volume, bytes);
	atomic_fetch_add(&d->free_spent, bytes);
	cache_room_give(d, bytes);
}

void cache_room_removed(struct cache_dir *d, unsigned bucket, const uint8_t store[CACHE_STORE_ID], uint32_t volume, int64_t bytes,
			int entries)
{
	atomic_fetch_sub(&d->state->buckets[bucket].bytes, bytes);
	atomic_fetch_sub(&d->state->buckets[bucket].entries, entries);
	volume_change(d, store, volume, -bytes);
	atomic_fetch_sub(&d->free_spent, bytes);
}

/* For min_free even those that are pinned go, when nobody else is left.  A count that is doubted evicts nobody, and
 * neither does what is reserved: that may be given back at once. */
void cache_room_tend(struct cache_dir *d)
{
	atomic_store(&d->free_spent, FREE_AGAIN_BYTES + 1); /* others may have written */
	for (;;) {
		int64_t low = free_shortage(d, 0), over = buckets_sum(d) - d->limit;
		bool is_over = over > 0 && cache_room_trusted(d) && !is_doubted(d);
		if (low <= 0 && !is_over)
			return;
		if (!cache_removal_begin(d))
			return;
		int64_t need = low > 0 ? low : over, step = need < EVICT_STEP ? need : EVICT_STEP;
		int64_t freed = cache_evict(d, step, &(struct cache_newcomer){ .level = LEVEL_ANY }, false);
		if (freed <= 0 && low > 0)
			freed = cache_evict(d, step, &(struct cache_newcomer){ .level = LEVEL_ALL }, false);
		cache_removal_end(d);
		if (freed <= 0)
			return;
	}
}
