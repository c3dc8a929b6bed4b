#include "client/backing.h"
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "cache/cache.h"
#include "client/state.h"

#define FILL_BYTES (1u << 20)
#define FINISH_STEP (1ull << 20)      /* no less is verified at a time ... */
#define FINISH_PASSES 4               /* ... nor more often than this in a row: somebody else may change it all the time */
#define COMPLETE_BYTES (256ull << 20) /* by one of those that read ahead, in one go */

/* The lock is held.  Something of its content is known, and that is the same for all who have it. */
static bool is_eligible(const struct inode *i)
{
	return i->client->cache && i->attr_known && i->attr.size > BACKING_LEAST && !inode_has_unstored(i) && !i->newborn;
}

bool backing_is_current(const struct inode *i)
{
	const struct backing *b = i->backing;

	return b && b->file && b->version == i->attr.version && is_eligible(i) && window_is_good(i);
}

struct backing *backing_get(struct inode *i)
{
	struct backing *b = i->backing;

	if (!backing_is_current(i))
		return NULL;
	atomic_fetch_add(&b->refs, 1);
	return b;
}

void backing_put(struct backing *b)
{
	if (!b || atomic_fetch_sub(&b->refs, 1) != 1)
		return;
	if (b->file)
		cache_file_close(b->file);
	free(b);
}

void backing_ready(struct inode *i)
{
	struct client *c = i->client;
	struct cache_file_key key;
	struct backing *b, *old;

	if (!c->cache)
		return;
	pthread_mutex_lock(&i->lock);
	if (!is_eligible(i) || (i->backing && i->backing->version == i->attr.version)) {
		pthread_mutex_unlock(&i->lock);
		return;
	}
	key = (struct cache_file_key){
		.volume = c->volume_id, .inode = i->number, .version = i->attr.version, .size = i->attr.size
	};
	pthread_mutex_unlock(&i->lock);
	b = calloc(1, sizeof(*b));
	if (!b)
		return;
	b->version = key.version;
	b->refs = 1;
	if (cache_file_open(c->cache, &key, 0, &b->file) < 0)
		b->file = NULL;
	/* Others may fill it, and this mount only look whether it is whole. */
	if (b->file)
		cache_file_keep_pages(b->file, passed_is_possible(c));
	pthread_mutex_lock(&i->lock);
	old = b;
	if (i->attr.version == key.version && !(i->backing && i->backing->version == key.version)) {
		old = i->backing;
		i->backing = b;
	}
	pthread_mutex_unlock(&i->lock);
	backing_put(old);
}

int backing_read(struct backing *b, uint64_t offset, void *into, size_t size)
{
	return cache_file_read(b->file, offset, &(struct iovec){ into, size }, 1);
}

bool backing_is_complete(const struct backing *b) { return b->file && cache_file_is_complete(b->file); }

int backing_whole(struct backing *b) { return cache_file_whole(b->file); }

int backing_detach(struct backing *b) { return cache_file_detach(b->file); }

bool backing_is_alone(struct backing *b) { return cache_file_is_alone(b->file); }

int backing_patch(struct backing *b, uint64_t offset, const void *bytes, size_t size)
{
	return cache_file_patch(b->file, offset, bytes, size);
}

int backing_cut(struct backing *b, uint64_t size) { return cache_file_cut(b->file, size); }

/* ---- Filling ---- */

bool backing_fills(const struct inode *i)
{
	struct backing *b = i->backing;

	return b && b->file && !atomic_load(&b->refused) && b->version == i->attr.version;
}

bool backing_keep(struct inode *i, uint64_t version, uint64_t offset, const struct iovec *parts, int count)
{
	struct backing *b;
	int r = -EINVAL;

	pthread_mutex_lock(&i->lock);
	b = backing_get(i);
	pthread_mutex_unlock(&i->lock);
	if (b && b->version == version) {
		cache_file_keep_pages(b->file, passed_is_possible(i->client));
		r = cache_file_add_chunks(b->file, offset, parts, count);
	}
	if (r == -ENOSPC)
		atomic_store(&b->refused, true);
	backing_put(b);
	return r != -EINVAL;
}

/* Extents that begin elsewhere than chunks do come in other pieces. */
static bool are_chunks(const struct iovec *parts, int count)
{
	for (int k = 0; k < count - 1; k++)
		if (parts[k].iov_len != CACHE_CHUNK)
			return false;
	return count > 0 && parts[count - 1].iov_len <= CACHE_CHUNK;
}

static int joined_add(struct inode *i, struct backing *b, uint64_t at, size_t size)
{
	uint8_t *buffer = client_buffer_take(i->client);
	int r = buffer ? read_version(i, b->version, at, size, buffer) : -ENOMEM;

	if (r == 0)
		r = cache_file_add(b->file, at, buffer, size);
	if (buffer)
		client_buffer_give(i->client, buffer);
	return r;
}

static int stretch_add(struct inode *i, struct backing *b, uint64_t at, size_t size, uint64_t *fetched)
{
	const struct iovec *parts;
	struct client_read *read;
	size_t bytes;
	int count, r = read_pinned(i, b->version, at, size, &read);

	if (r < 0)
		return r;
	*fetched += read_fetched(read);
	parts = client_read_parts(read, &count, &bytes);
	r = are_chunks(parts, count) ? cache_file_add_chunks(b->file, at, parts, count) : joined_add(i, b, at, size);
	client_read_release(read);
	return r;
}

static struct backing *current_get(struct inode *i)
{
	LOCKED(&i->lock);
	return backing_get(i);
}

/* Else each piece would wait for the server in turn. */
static bool server_is_there(struct client *c) { return c->replica ? !atomic_load(&c->replica->away) : lease_in_contact(c); }

static int fill(struct inode *i, struct backing *b, uint64_t from, uint64_t to, uint64_t *fetched)
{
	uint64_t at, length;
	int r = 0;

	cache_file_keep_pages(b->file, passed_is_possible(i->client));
	while (r == 0 && !atomic_load(&b->refused) && server_is_there(i->client) && !prefetch_is_stopping(i->client) &&
	       from < to && cache_file_absent(b->file, from, to - from, &at, &length)) {
		size_t n = length < FILL_BYTES ? length : FILL_BYTES;

		r = stretch_add(i, b, at, n, fetched);
		if (r == -ENOSPC)
			atomic_store(&b->refused, true);
		from = at + n;
	}
	return r;
}

uint64_t backing_fill(struct inode *i, uint64_t from, uint64_t to)
{
	struct backing *b = current_get(i);
	uint64_t fetched = 0;

	if (b)
		fill(i, b, from, to, &fetched);
	backing_put(b);
	return fetched;
}

void backing_finish(struct inode *i, uint64_t from, uint64_t to)
{
	struct backing *b;
	uint64_t fetched = 0, size;

	pthread_mutex_lock(&i->lock);
	b = backing_get(i);
	size = i->attr.size;
	pthread_mutex_unlock(&i->lock);
	if (b && from < to && !atomic_exchange(&b->finishing, true)) {
		int r = fill(i, b, from, to, &fetched);
		uint64_t steps = FINISH_PASSES * (size / FINISH_STEP + 1);

		while (r == 0 && steps-- > 0 && !prefetch_is_stopping(i->client) && cache_file_whole(b->file) == -EAGAIN)
			;
		atomic_store(&b->finishing, false);
	}
	backing_put(b);
}

void backing_complete(struct inode *i, uint64_t read)
{
	bool most_read, worth;
	uint64_t at = 0, length;
	struct backing *b;

	pthread_mutex_lock(&i->lock);
	b = backing_get(i);
	most_read = read >= i->attr.size / 2;
	pthread_mutex_unlock(&i->lock);
	if (b && !atomic_load(&b->refused)) {
		worth = cache_file_is_worth_completing(b->file);
		/* The map of a large file is long: it is not gone through for others. */
		if ((worth || most_read) && (cache_file_absent(b->file, 0, UINT64_MAX, &at, &length) || worth))
			prefetch_aside(i, at, at + COMPLETE_BYTES);
	}
	backing_put(b);
}
