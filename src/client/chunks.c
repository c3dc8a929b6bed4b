#include "client/chunks.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/cleanup.h"
#include "base/pool.h"

/* A chunk is ABSENT (not in the table), FILLING (in the table, one thread is
 * fetching it, others wait on `filled`) or READY.  A fill that fails takes the
 * chunk out of the table; waiters that still hold it see FAILED and try again
 * themselves, once, so that the error they report is their own.
 *
 *   absent -> FILLING -> READY -> (evicted) absent
 *                     -> FAILED -> freed by the last holder */
enum chunk_state { CHUNK_FILLING, CHUNK_READY, CHUNK_FAILED };

/* The table of an extent's chunks is kept like a chunk, under this number. */
#define TABLE_CHUNK UINT32_MAX
#define AHEAD_CHUNKS 64u

struct chunk {
	uint64_t object;
	uint32_t extent_offset, number;
	uint32_t length; /* raw bytes; of the table: bytes of the decoded table */
	uint32_t pins;
	enum chunk_state state;
	int error;
	bool ahead;  /* fetched ahead of its readers, */
	bool unread; /* and none has come; */
	bool spent;  /* read to its end, and kept elsewhere */
	struct chunk *hash_next;
	struct chunk *newer, *older; /* in the LRU list while READY and unpinned */
	uint8_t *data;
};

struct chunks {
	pthread_mutex_t lock; /* guards all below and every chunk's links, pins and state */
	pthread_cond_t filled;
	struct chunk **buckets;
	uint32_t bucket_mask;
	struct chunk *newest, *oldest;
	uint64_t bytes, limit;
	struct chunks_stats stats;
	_Atomic uint64_t unread; /* bytes of unread chunks; also read without the lock */
	chunks_fetch fetch;
	chunks_doubt doubt;
	void *context;
	struct pool buffers; /* of whole chunks; its own lock */
};

/* What the table chunk holds, decoded: offsets[chunks + 1], then checksums[chunks]. */
static uint64_t *table_checksums(const struct chunk *t, uint32_t count)
{
	size_t at = ((count + 1) * sizeof(uint32_t) + 7) & ~(size_t)7;
	return (uint64_t *)(t->data + at);
}

static uint32_t table_size(uint32_t count)
{
	return (uint32_t)((((count + 1) * sizeof(uint32_t) + 7) & ~(size_t)7) + count * sizeof(uint64_t));
}

static uint32_t bucket_of(const struct chunks *c, uint64_t object, uint32_t extent_offset, uint32_t number)
{
	uint64_t key[2] = { object, (uint64_t)extent_offset << 32 | number };
	return (uint32_t)XXH3_64bits(key, sizeof(key)) & c->bucket_mask;
}

int chunks_new(uint64_t limit_bytes, chunks_fetch fetch, chunks_doubt doubt, void *context, struct chunks **out)
{
	struct chunks *c = calloc(1, sizeof(*c));
	uint32_t buckets = 1024;
	if (!c)
		return -ENOMEM;
	while (buckets < limit_bytes / 8192 && buckets < (1u << 20))
		buckets *= 2;
	c->buckets = calloc(buckets, sizeof(*c->buckets));
	if (!c->buckets) {
		free(c);
		return -ENOMEM;
	}
	c->bucket_mask = buckets - 1;
	c->limit = limit_bytes;
	c->fetch = fetch;
	c->doubt = doubt;
	c->context = context;
	pool_init(&c->buffers, CHUNK_BYTES, limit_bytes / CHUNK_BYTES / 4, NULL);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->filled, NULL);
	*out = c;
	return 0;
}

static void chunk_free(struct chunks *c, struct chunk *k)
{
	c->bytes -= sizeof(*k) + k->length;
	if (k->length == CHUNK_BYTES)
		pool_give(&c->buffers, k->data);
	else
		free(k->data);
	free(k);
}

void chunks_free(struct chunks *c)
{
	if (!c)
		return;
	for (uint32_t i = 0; i <= c->bucket_mask; i++) {
		while (c->buckets[i]) {
			struct chunk *k = c->buckets[i];
			c->buckets[i] = k->hash_next;
			chunk_free(c, k);
		}
	}
	free(c->buckets);
	pool_free(&c->buffers);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->filled);
	free(c);
}

static void lru_remove(struct chunks *c, struct chunk *k)
{
	if (k->newer)
		k->newer->older = k->older;
	else if (c->newest == k)
		c->newest = k->older;
	if (k->older)
		k->older->newer = k->newer;
	else if (c->oldest == k)
		c->oldest = k->newer;
	k->newer = k->older = NULL;
}

static void lru_add(struct chunks *c, struct chunk *k)
{
	k->older = c->newest;
	k->newer = NULL;
	if (c->newest)
		c->newest->newer = k;
	c->newest = k;
	if (!c->oldest)
		c->oldest = k;
}

static void lru_add_oldest(struct chunks *c, struct chunk *k)
{
	k->newer = c->oldest;
	k->older = NULL;
	if (c->oldest)
		c->oldest->older = k;
	c->oldest = k;
	if (!c->newest)
		c->newest = k;
}

/* It is read, evicted, or could not be fetched. */
static void unread_end(struct chunks *c, struct chunk *k, uint64_t *count)
{
	if (!k->unread)
		return;
	k->unread = false;
	atomic_fetch_sub_explicit(&c->unread, k->length, memory_order_relaxed);
	*count += k->length;
}

static void table_remove(struct chunks *c, struct chunk *k)
{
	struct chunk **at = &c->buckets[bucket_of(c, k->object, k->extent_offset, k->number)];
	while (*at != k)
		at = &(*at)->hash_next;
	*at = k->hash_next;
}

static void evict(struct chunks *c)
{
	while (c->bytes > c->limit && c->oldest) {
		struct chunk *k = c->oldest;
		lru_remove(c, k);
		table_remove(c, k);
		unread_end(c, k, &c->stats.ahead_wasted);
		chunk_free(c, k);
	}
}

static struct chunk *find(struct chunks *c, const struct extent *e, uint32_t number)
{
	struct chunk *k = c->buckets[bucket_of(c, e->object, e->object_offset, number)];
	while (k && !(k->object == e->object && k->extent_offset == e->object_offset && k->number == number))
		k = k->hash_next;
	return k;
}

static void pin(struct chunks *c, struct chunk *k)
{
	if (k->pins++ == 0 && k->state == CHUNK_READY)
		lru_remove(c, k);
}

static void unpin(struct chunks *c, struct chunk *k)
{
	if (--k->pins > 0)
		return;
	if (k->state != CHUNK_READY)
		chunk_free(c, k);
	else if (k->spent)
		lru_add_oldest(c, k);
	else
		lru_add(c, k);
}

static struct chunk *add_filling(struct chunks *c, const struct extent *e, uint32_t number, uint32_t length)
{
	struct chunk *k = calloc(1, sizeof(*k));
	uint32_t b = bucket_of(c, e->object, e->object_offset, number);
	if (!k)
		return NULL;
	k->data = length == CHUNK_BYTES ? pool_take(&c->buffers) : malloc(length);
	if (!k->data) {
		free(k);
		return NULL;
	}
	k->object = e->object;
	k->extent_offset = e->object_offset;
	k->number = number;
	k->length = length;
	k->pins = 1;
	k->hash_next = c->buckets[b];
	c->buckets[b] = k;
	c->bytes += sizeof(*k) + length;
	return k;
}

static void fill_done(struct chunks *c, struct chunk *k, int error)
{
	uint64_t failed = 0;
	k->error = error;
	if (error) {
		unread_end(c, k, &failed);
		table_remove(c, k);
		k->state = CHUNK_FAILED;
	} else {
		k->state = CHUNK_READY;
	}
}

static uint32_t chunk_raw_length(const struct extent *e, uint32_t number)
{
	uint32_t left = e->raw_length - number * CHUNK_BYTES;
	return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

/* Fetches the table of the extent (several chunks) into t, a FILLING chunk. */
static int table_fetch(struct chunks *c, const struct extent *e, struct chunk *t)
{
	uint32_t count = extent_chunks(e->raw_length), size = extent_table_bytes(e->raw_length);
	CLEANUP_FREE uint8_t *packed = malloc(size);
	int r;
	if (!packed)
		return -ENOMEM;
	struct iovec into = { packed, size };
	r = c->fetch(c->context, e, e->object_offset + e->stored_length - size, size, &into, 1);
	if (r < 0)
		return r;
	return extent_table_check(e, packed, size, (uint32_t *)t->data, table_checksums(t, count));
}

/* Stays pinned if all is well. */
static void table_done(struct chunks *c, struct chunk *t, int error)
{
	LOCKED(&c->lock);
	fill_done(c, t, error);
	if (error)
		unpin(c, t);
	pthread_cond_broadcast(&c->filled);
}

/* The extent's table, for us to fill; NULL: it is here, or on its way, or there is no memory. */
static struct chunk *table_claim(struct chunks *c, const struct extent *e)
{
	LOCKED(&c->lock);
	if (find(c, e, TABLE_CHUNK))
		return NULL;
	return add_filling(c, e, TABLE_CHUNK, table_size(extent_chunks(e->raw_length)));
}

/* Pins the extent's table, fetching it if it is not here. */
static int table_get(struct chunks *c, const struct extent *e, struct chunk **out)
{
	for (int tries = 0; tries < 2; tries++) {
		struct chunk *t;
		int r;
		pthread_mutex_lock(&c->lock);
		t = find(c, e, TABLE_CHUNK);
		if (t) {
			pin(c, t);
			while (t->state == CHUNK_FILLING)
				pthread_cond_wait(&c->filled, &c->lock);
			if (t->state == CHUNK_READY) {
				pthread_mutex_unlock(&c->lock);
				*out = t;
				return 0;
			}
			unpin(c, t);
			pthread_mutex_unlock(&c->lock);
			continue;
		}
		t = add_filling(c, e, TABLE_CHUNK, table_size(extent_chunks(e->raw_length)));
		pthread_mutex_unlock(&c->lock);
		if (!t)
			return -ENOMEM;
		r = table_fetch(c, e, t);
		table_done(c, t, r);
		if (r < 0)
			return r;
		*out = t;
		return 0;
	}
	return -EIO;
}

/* `stored` holds the run's stored bytes; NULL: each chunk is raw and in its place. */
static int run_decode(const struct extent *e, const uint32_t *offsets, const uint64_t *checksums, const uint8_t *stored,
		      struct chunk *const *run, uint32_t count)
{
	uint32_t first = run[0]->number;
	int r = 0;
	for (uint32_t i = 0; i < count && r == 0; i++) {
		uint32_t n = first + i;
		r = chunk_decode(e->codec, checksums[n], stored ? stored + (offsets[n] - offsets[first]) : run[i]->data,
				 offsets[n + 1] - offsets[n], run[i]->data, run[i]->length);
	}
	return r;
}

/* Fetches stored bytes [from, to) of the extent, which are those of `count`
 * chunks, and decodes them.  Uncompressed chunks arrive in their place. */
static int run_fetch(struct chunks *c, const struct extent *e, const uint32_t *offsets, const uint64_t *checksums,
		     struct chunk *const *run, uint32_t count)
{
	uint32_t first = run[0]->number, from = offsets[first], to = offsets[first + count];
	bool raw = true;
	CLEANUP_FREE struct iovec *parts = malloc(count * sizeof(*parts));
	CLEANUP_FREE uint8_t *stored = NULL;
	int r;
	if (!parts)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t stored_length = offsets[first + i + 1] - offsets[first + i];
		parts[i] = (struct iovec){ run[i]->data, run[i]->length };
		raw = raw && stored_length == run[i]->length;
	}
	if (!raw) {
		stored = malloc(to - from);
		if (!stored)
			return -ENOMEM;
		parts[0] = (struct iovec){ stored, to - from };
	}
	r = c->fetch(c->context, e, e->object_offset + from, to - from, parts, raw ? (int)count : 1);
	return r < 0 ? r : run_decode(e, offsets, checksums, stored, run, count);
}

/* Chunks that are not compressed are where one expects them, and after the last of
 * them comes the table: both in one fetch. */
static int run_fetch_with_table(struct chunks *c, const struct extent *e, struct chunk *t, struct chunk *const *run,
				uint32_t count)
{
	uint32_t from = run[0]->number * CHUNK_BYTES, size = extent_table_bytes(e->raw_length);
	uint32_t *offsets = (uint32_t *)t->data;
	uint64_t *checksums = table_checksums(t, extent_chunks(e->raw_length));
	CLEANUP_FREE struct iovec *parts = malloc((count + 1) * sizeof(*parts));
	CLEANUP_FREE uint8_t *packed = malloc(size);
	int r = parts && packed ? 0 : -ENOMEM;
	if (r == 0) {
		for (uint32_t i = 0; i < count; i++)
			parts[i] = (struct iovec){ run[i]->data, run[i]->length };
		parts[count] = (struct iovec){ packed, size };
		r = c->fetch(c->context, e, e->object_offset + from, e->stored_length - from, parts, (int)count + 1);
	}
	if (r == 0)
		r = extent_table_check(e, packed, size, offsets, checksums);
	table_done(c, t, r);
	if (r < 0)
		return r;
	r = run_decode(e, offsets, checksums, NULL, run, count);
	chunks_unpin(c, &t, 1);
	return r;
}

static int run_fill(struct chunks *c, const struct extent *e, struct chunk *const *run, uint32_t count)
{
	struct chunk *table;
	int r;
	if (extent_table_bytes(e->raw_length) == 0) {
		uint32_t offsets[2] = { 0, e->stored_length };
		return run_fetch(c, e, offsets, &e->checksum, run, count);
	}
	if (e->codec == CODEC_NONE && run[count - 1]->number == extent_chunks(e->raw_length) - 1) {
		table = table_claim(c, e);
		if (table)
			return run_fetch_with_table(c, e, table, run, count);
	}
	r = table_get(c, e, &table);
	if (r < 0)
		return r;
	r = run_fetch(c, e, (uint32_t *)table->data, table_checksums(table, extent_chunks(e->raw_length)), run, count);
	chunks_unpin(c, &table, 1);
	return r;
}

/* Pins or adds each chunk; those added are ours to fill (marked in `ours`). */
static int claim(struct chunks *c, const struct extent *e, uint32_t first, uint32_t count, struct chunk **out, uint8_t *ours)
{
	LOCKED(&c->lock);
	for (uint32_t i = 0; i < count; i++) {
		struct chunk *k = find(c, e, first + i);
		ours[i] = !k;
		if (k) {
			pin(c, k);
			c->stats.hits++;
			out[i] = k;
			continue;
		}
		out[i] = add_filling(c, e, first + i, chunk_raw_length(e, first + i));
		if (out[i])
			continue;
		while (i-- > 0) {
			if (ours[i])
				fill_done(c, out[i], -ENOMEM);
			unpin(c, out[i]);
		}
		pthread_cond_broadcast(&c->filled);
		return -ENOMEM;
	}
	return 0;
}

/* Fills the runs of chunks that are ours.  After an error the rest of ours is
 * marked failed too: nobody else would fill it. */
static int fill_ours(struct chunks *c, const struct extent *e, uint32_t count, struct chunk *const *chunks, const uint8_t *ours)
{
	int error = 0;
	for (uint32_t i = 0; i < count;) {
		uint32_t n = 1;
		if (!ours[i]) {
			i++;
			continue;
		}
		while (i + n < count && ours[i + n])
			n++;
		if (!error)
			error = run_fill(c, e, &chunks[i], n);
		if (error == -EBADMSG && c->doubt(c->context, e->object))
			error = run_fill(c, e, &chunks[i], n);
		pthread_mutex_lock(&c->lock);
		for (uint32_t j = i; j < i + n; j++) {
			if (chunks[j]->ahead && !error)
				c->stats.ahead_fetched += chunks[j]->length;
			fill_done(c, chunks[j], error);
			c->stats.fetched_chunks += !error;
			c->stats.fetched_bytes += error ? 0 : chunks[j]->length;
		}
		pthread_cond_broadcast(&c->filled);
		evict(c);
		pthread_mutex_unlock(&c->lock);
		i += n;
	}
	return error;
}

/* A reader has come for it. */
static void use(struct chunks *c, struct chunk *k, bool to_its_end, bool once)
{
	unread_end(c, k, &c->stats.ahead_used);
	k->spent = k->spent || ((k->ahead || once) && to_its_end);
}

/* And takes note that they are read. */
static int wait_for_others(struct chunks *c, uint32_t count, struct chunk *const *chunks, unsigned how)
{
	int error = 0;
	LOCKED(&c->lock);
	for (uint32_t i = 0; i < count; i++) {
		while (chunks[i]->state == CHUNK_FILLING)
			pthread_cond_wait(&c->filled, &c->lock);
		if (chunks[i]->state == CHUNK_FAILED)
			error = chunks[i]->error;
		else
			use(c, chunks[i], i < count - 1 || !(how & CHUNKS_LAST_IN_PART), how & CHUNKS_ONCE);
	}
	return error;
}

int chunks_read(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, unsigned how, struct chunk **out,
		uint64_t *fetched)
{
	uint32_t count = last - first + 1;
	CLEANUP_FREE uint8_t *ours = NULL;
	if (last < first || last >= extent_chunks(e->raw_length))
		return -EINVAL;
	ours = calloc(count, 1);
	if (!ours)
		return -ENOMEM;
	for (int tries = 0;; tries++) {
		int own, others, r = claim(c, e, first, count, out, ours);
		if (r < 0)
			return r;
		own = fill_ours(c, e, count, out, ours);
		others = wait_for_others(c, count, out, how);
		if (!others) {
			*fetched = 0;
			for (uint32_t i = 0; i < count; i++)
				*fetched += ours[i] ? out[i]->length : 0;
			return 0;
		}
		chunks_unpin(c, out, count);
		/* Another thread's failure need not be ours: try once ourselves. */
		if (own || tries)
			return own ? own : others;
	}
}

int chunks_get(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, struct chunk **out)
{
	uint64_t fetched;
	return chunks_read(c, e, first, last, CHUNKS_LAST_IN_PART, out, &fetched);
}

static bool pin_all(struct chunks *c, const struct extent *e, uint32_t first, uint32_t count, struct chunk **out)
{
	LOCKED(&c->lock);
	for (uint32_t i = 0; i < count; i++) {
		out[i] = find(c, e, first + i);
		if (!out[i])
			return false;
	}
	for (uint32_t i = 0; i < count; i++)
		pin(c, out[i]);
	c->stats.hits += count;
	return true;
}

int chunks_find(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, unsigned how, struct chunk **out)
{
	uint32_t count = last - first + 1;
	if (!pin_all(c, e, first, count, out))
		return -ENOENT;
	if (!wait_for_others(c, count, out, how))
		return 0;
	chunks_unpin(c, out, count);
	return -ENOENT;
}

/* ---- Ahead of readers ------------------------------------------------------------- */

/* Adds the first run of absent chunks from `first` on; how many, and what comes after it. */
static uint32_t claim_absent(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last, struct chunk **out,
			     uint32_t *next)
{
	uint32_t count = 0, at = first;
	LOCKED(&c->lock);
	while (at <= last && find(c, e, at))
		at++;
	for (; at <= last && count < AHEAD_CHUNKS && !find(c, e, at); at++) {
		struct chunk *k = add_filling(c, e, at, chunk_raw_length(e, at));
		if (!k)
			break;
		k->ahead = k->unread = true;
		atomic_fetch_add_explicit(&c->unread, k->length, memory_order_relaxed);
		out[count++] = k;
	}
	*next = at;
	return count;
}

void chunks_ahead(struct chunks *c, const struct extent *e, uint32_t first, uint32_t last)
{
	struct chunk *run[AHEAD_CHUNKS] = { NULL };
	uint8_t ours[AHEAD_CHUNKS];
	uint32_t count, next;
	int error = 0;
	memset(ours, 1, sizeof(ours));
	if (last >= extent_chunks(e->raw_length))
		return;
	while (first <= last && !error && (count = claim_absent(c, e, first, last, run, &next)) > 0) {
		error = fill_ours(c, e, count, run, ours);
		chunks_unpin(c, run, count);
		first = next;
	}
}

void chunks_unpin(struct chunks *c, struct chunk *const *chunks, uint32_t count)
{
	LOCKED(&c->lock);
	for (uint32_t i = 0; i < count; i++)
		unpin(c, chunks[i]);
	evict(c);
}

const uint8_t *chunk_data(const struct chunk *k) { return k->data; }

uint32_t chunk_length(const struct chunk *k) { return k->length; }

uint64_t chunks_limit(const struct chunks *c) { return c->limit; }

uint64_t chunks_unread(const struct chunks *c) { return atomic_load_explicit(&c->unread, memory_order_relaxed); }

void chunks_stats(struct chunks *c, struct chunks_stats *out)
{
	LOCKED(&c->lock);
	*out = c->stats;
	out->bytes = c->bytes;
	out->ahead_bytes = chunks_unread(c);
}
