/* Who is used, and who is not any more.
 *
 * Time is counted in bytes requested of the directory, hits and misses alike; a tick is
 * 1/64 of its size.  Each key, in the cache or not, has a cell by its hash:
 *
 *   bits 0-14   tick of its last use, modulo 32767, plus 1; 0: none known
 *   bit 15      told, and not read since
 *
 * Two keys with the same cell make each other look younger, which does little harm: there
 * are four cells (8 bytes) for each 256 KiB of the cache's size, the size that a million
 * entries have in a cache of 256 GB.  A hit writes to memory only.
 *
 * What is out of use?  In random epochs over a set of E bytes an entry is used again after
 * 0 to 2 E, E on average, so one that was not used for less than 2 E tells nothing; with
 * E unknown, any fixed limit is either too short for a large set (and replaces those that would
 * have been used next) or too long for a small one.  So intervals between two uses of a
 * key are observed, and the limit is one and a half of what 95 % of them stay below:
 * 1.5 x 1.68 E in random epochs, 1.5 E if the order is always the same.  Intervals below 1/8 of
 * the size are left out: what is hot says nothing about the others.  The last 512 or so
 * count, in the cache or not, so a change to a set with shorter epochs is seen in
 * its second one.  The limit is at least the size (a set that fits in the
 * cache stays), at most 32 times the size, and 4 times the size while nothing is known.
 *
 * A newcomer may be hotter than those inside.  One that was used again after an interval d
 * takes the place of one that was not used for 16 d (but for the size, at least).  In random epochs of objects
 * read once that is one in 130 by chance, which costs half a percent of the hits; where a
 * part of the set is used more often, it gets in.  Intervals below 1/8 of the
 * size do not count here, either: several reads of one object in a row are one use. */
#include <stdint.h>
#include "cache/state.h"

#define TICKS 64u /* of one cache size */
#define STAMPS 32767u
#define STAMP_BITS 0x7fffu
#define TOLD_BIT 0x8000u
#define FORGET_TICKS 16384u /* half the stamps, so that an old one is not taken for a new one */
#define SWEEP_TICKS 8192u   /* the whole table is looked at in that time */
#define SHORT_TICKS (TICKS / 8)
#define LIMIT_UNKNOWN (4 * TICKS)
#define LIMIT_MIN TICKS
#define LIMIT_MAX (32 * TICKS)
#define HOTTER 16u
#define OBSERVED_MIN 16u
#define OBSERVED_MAX 512u

uint64_t cache_usage_tick_bytes(uint64_t size) { return size / TICKS + 1; }

uint64_t cache_usage_cells(uint64_t size)
{
	uint64_t cells = 32768;
	while (cells < (1u << 24) && cells < size / (64 << 10))
		cells *= 2;
	return cells;
}

uint64_t cache_usage_tick(const struct cache_dir *d)
{
	return atomic_load_explicit(&d->state->clock, memory_order_relaxed) / d->tick_bytes;
}

static uint16_t stamp_of(uint64_t tick) { return (uint16_t)(tick % STAMPS + 1); }

static _Atomic uint16_t *cell_of(const struct cache_dir *d, uint64_t hash) { return &d->state->cell[hash & (d->cells - 1)]; }

static uint32_t cell_age(uint16_t cell, uint64_t tick)
{
	uint32_t stamp = cell & STAMP_BITS;
	if (!stamp) /* since the beginning, or for too long to be told apart */
		return tick < FORGET_TICKS ? (uint32_t)tick : FORGET_TICKS;
	return (stamp_of(tick) + STAMPS - stamp) % STAMPS;
}

uint32_t cache_usage_age(const struct cache_dir *d, uint64_t hash, bool *told)
{
	uint16_t cell = atomic_load_explicit(cell_of(d, hash), memory_order_relaxed);
	*told = cell & TOLD_BIT;
	return cell_age(cell, cache_usage_tick(d));
}

/* Bins of a quarter of an octave. */
static unsigned bin_of(uint32_t interval)
{
	unsigned octave = 31 - (unsigned)__builtin_clz(interval);
	unsigned quarter = octave >= 2 ? interval >> (octave - 2) & 3 : 0;
	return octave * 4 + quarter;
}

static uint32_t bin_end(unsigned bin) { return (uint32_t)((5 + bin % 4) * (1ULL << (bin / 4)) / 4); }

static void interval_observe(struct cache_dir *d, uint32_t interval)
{
	struct cache_state *s = d->state;
	uint64_t sum = 0;
	atomic_fetch_add_explicit(&s->intervals[bin_of(interval)], 1, memory_order_relaxed);
	for (unsigned i = 0; i < CACHE_INTERVALS; i++)
		sum += atomic_load_explicit(&s->intervals[i], memory_order_relaxed);
	for (unsigned i = 0; sum > OBSERVED_MAX && i < CACHE_INTERVALS; i++) {
		uint32_t n = atomic_load_explicit(&s->intervals[i], memory_order_relaxed);
		atomic_store_explicit(&s->intervals[i], n / 2, memory_order_relaxed);
	}
}

uint32_t cache_usage_limit(const struct cache_dir *d)
{
	const struct cache_state *s = d->state;
	uint64_t counts[CACHE_INTERVALS], sum = 0, above = 0;
	unsigned bin = CACHE_INTERVALS - 1;
	for (unsigned i = 0; i < CACHE_INTERVALS; i++)
		sum += counts[i] = atomic_load_explicit(&s->intervals[i], memory_order_relaxed);
	if (sum < OBSERVED_MIN)
		return LIMIT_UNKNOWN;
	while (bin > 0 && (above += counts[bin]) * 20 <= sum)
		bin--;
	uint64_t limit = (uint64_t)bin_end(bin) * 3 / 2;
	return limit < LIMIT_MIN ? LIMIT_MIN : limit > LIMIT_MAX ? LIMIT_MAX : (uint32_t)limit;
}

uint32_t cache_usage_limit_for(const struct cache_dir *d, uint32_t interval)
{
	uint32_t limit = cache_usage_limit(d), hotter = interval * HOTTER < LIMIT_MIN ? LIMIT_MIN : interval * HOTTER;
	return interval && hotter < limit ? hotter : limit;
}

/* Forgets stamps before they come round again: a part of the table each tick. */
static void sweep(struct cache_dir *d, uint64_t tick)
{
	uint64_t part = d->cells / SWEEP_TICKS, from = tick * part;
	for (uint64_t i = 0; i < part; i++) {
		_Atomic uint16_t *cell = cell_of(d, from + i);
		uint16_t value = atomic_load_explicit(cell, memory_order_relaxed);
		if (value && cell_age(value, tick) > FORGET_TICKS)
			atomic_store_explicit(cell, 0, memory_order_relaxed);
	}
}

static uint32_t stamp(struct cache_dir *d, uint64_t hash, uint16_t told)
{
	_Atomic uint16_t *cell = cell_of(d, hash);
	uint64_t tick = cache_usage_tick(d);
	uint16_t was = atomic_load_explicit(cell, memory_order_relaxed), is = stamp_of(tick) | told;
	if (was == is)
		return 0; /* no cache line is written in vain */
	atomic_store_explicit(cell, is, memory_order_relaxed);
	uint32_t interval = cell_age(was, tick);
	if (told || !(was & STAMP_BITS) || (was & TOLD_BIT) || interval < SHORT_TICKS || interval > FORGET_TICKS)
		return 0;
	interval_observe(d, interval);
	return interval;
}

void cache_usage_tell(struct cache_dir *d, uint64_t hash) { (void)stamp(d, hash, TOLD_BIT); }

uint32_t cache_usage_touch(struct cache_dir *d, uint64_t hash, uint64_t bytes)
{
	uint64_t before, tick;
	uint32_t interval = stamp(d, hash, 0);
	before = atomic_fetch_add_explicit(&d->state->clock, bytes, memory_order_relaxed);
	tick = (before + bytes) / d->tick_bytes;
	for (uint64_t t = before / d->tick_bytes; t != tick && tick - t <= TICKS; t++)
		sweep(d, t + 1);
	return interval;
}

/* 48 bits of the hash, 16 of the interval. */
void cache_usage_miss(struct cache_dir *d, uint64_t hash, uint32_t interval)
{
	if (interval)
		atomic_store_explicit(&d->missed[hash % CACHE_MISSED], (hash & ~0xffffULL) | interval, memory_order_relaxed);
}

uint32_t cache_usage_missed(struct cache_dir *d, uint64_t hash)
{
	uint64_t there = atomic_load_explicit(&d->missed[hash % CACHE_MISSED], memory_order_relaxed);
	return (there ^ hash) >> 16 ? 0 : (uint32_t)(there & 0xffff);
}
