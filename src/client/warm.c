#include "client/warm.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "cache/cache.h"
#include "client/state.h"

#define PIECE_BYTES (1u << 20)
#define MEND_TRIES 3

/* One file while it is brought here. */
struct warming {
	struct client *client;
	const struct warm_stretch *stretch;
	struct warm_result *result;
	struct inode *inode;
	uint64_t version, size, from, to;
	unsigned cache_flags;
	uint8_t *buffer; /* of PIECE_BYTES, at least */
};

static bool is_stopped(const struct warming *w) { return w->stretch->stop && w->stretch->stop(w->stretch->context); }

/* ---- Small files ---- */

/* The extents that touch the stretch, copied. */
static int extents_of(struct warming *w, struct extent **out, size_t *count)
{
	struct inode *i = w->inode;
	struct extent *copy;
	size_t first, n = 0;
	int r;
	LOCKED(&i->lock);

	r = window_cover(i, w->from, w->to);
	if (r < 0)
		return r;
	first = window_find(&i->window, w->from);
	while (first + n < i->window.count && i->window.extents[first + n].offset < w->to)
		n++;
	copy = malloc((n + 1) * sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	for (size_t k = 0; k < n; k++)
		copy[k] = i->window.extents[first + k];
	*out = copy;
	*count = n;
	return 0;
}

/* -EBADMSG: what is in the cache is not what was stored; -ENOENT: it is not in the cache any more. */
static int extent_verify(struct warming *w, const struct extent *e)
{
	CLEANUP_FREE uint8_t *stored = malloc(e->stored_length), *raw = malloc(e->raw_length);
	int r;

	if (!stored || !raw)
		return -ENOMEM;
	r = cache_object_peek(w->client->cache, e->object, e->object_offset, &(struct iovec){ stored, e->stored_length }, 1);
	if (r == 0)
		r = extent_decode(e, stored, raw);
	return r;
}

/* Whoever comes while another does the same waits, and finds what that one fetched: it must not be dropped as what was there before. */
static int pack_mend(struct warming *w, const struct extent *e)
{
	struct client *c = w->client;
	bool damaged = false;
	int kept;
	LOCKED(&c->packs.mending);

	for (int tries = 0;; tries++) {
		int r = extent_verify(w, e);

		if (r != -EBADMSG && r != -ENOENT)
			return r;
		if (r == -EBADMSG && damaged)
			return r; /* also in the store */
		if (r == -EBADMSG) {
			damaged = true;
			w->result->damaged++;
			cache_object_drop(c->cache, e->object);
		} else if (!damaged && !(w->stretch->flags & WARM_VERIFY)) {
			return 0; /* evicted: others were worth more */
		}
		if (tries == MEND_TRIES)
			return -ENOSPC; /* each time it was evicted at once */
		kept = pack_keep(c, e->object, w->cache_flags, &w->result->fetched);
		if (kept < 0)
			return kept;
	}
}

static int pack_verify(struct warming *w, const struct extent *e)
{
	int r = extent_verify(w, e);

	return r == -EBADMSG || r == -ENOENT ? pack_mend(w, e) : r;
}

/* Without pushing out what the cache would rather keep.  It is marked only once it is there: being told is what would let it. */
static int pack_keep_wanted(struct warming *w, const struct extent *e)
{
	struct client *c = w->client;
	int r;

	if (cache_object_has(c->cache, e->object, w->cache_flags))
		return 0;
	r = pack_keep(c, e->object, 0, &w->result->fetched);
	if (r == 0)
		cache_object_has(c->cache, e->object, w->cache_flags);
	return r;
}

/* A pack comes as it is in the store: of each file in it that is asked for it is made sure that it can be read.  Where another reader
 * follows at once, he finds out. */
static bool must_verify(const struct warming *w, const struct extent *e)
{
	return (w->stretch->flags & WARM_VERIFY) ||
	       (!(w->stretch->flags & WARM_WANTED) && pack_was_fetched(w->client, e->object));
}

static int extent_keep(struct warming *w, const struct extent *e)
{
	struct client *c = w->client;
	int r;

	if (object_is_here(c, e->object)) {
		w->result->here = true;
		return 0;
	}
	if (w->stretch->flags & WARM_UNPIN) {
		cache_object_unpin(c->cache, e->object);
		return 0;
	}
	r = w->stretch->flags & WARM_WANTED ? pack_keep_wanted(w, e)
					    : pack_keep(c, e->object, w->cache_flags, &w->result->fetched);
	if (r == 0 && must_verify(w, e))
		r = pack_verify(w, e);
	if (r == 0)
		w->result->bytes += e->length;
	if (r == -ENOSPC) {
		w->result->missing += e->length;
		r = 0;
	}
	return r;
}

static int extents_keep(struct warming *w)
{
	CLEANUP_FREE struct extent *extents = NULL;
	size_t count = 0;
	int r = extents_of(w, &extents, &count);

	for (size_t k = 0; k < count && r == 0; k++)
		r = is_stopped(w) ? -ECANCELED : extent_keep(w, &extents[k]);
	return r;
}

static int small_keep(struct warming *w)
{
	int r = extents_keep(w);

	if (r != -ENOENT)
		return r;
	/* The objects were moved since (gc). */
	layouts_forget(&w->client->layouts, w->inode->number);
	pthread_mutex_lock(&w->inode->lock);
	window_drop(w->inode);
	pthread_mutex_unlock(&w->inode->lock);
	*w->result = (struct warm_result){ 0 };
	r = extents_keep(w);
	return r == -ENOENT ? -EIO : r;
}

/* ---- Large files ---- */

/* Reads what is there, which drops what is damaged. */
static int file_verify(struct warming *w, struct cache_file *f)
{
	for (uint64_t at = w->from; at < w->to;) {
		uint64_t n = w->to - at < PIECE_BYTES ? w->to - at : PIECE_BYTES, absent, length;

		if (is_stopped(w))
			return -ECANCELED;
		if (!cache_file_absent(f, at, n, &absent, &length) &&
		    cache_file_read(f, at, &(struct iovec){ w->buffer, n }, 1) < 0)
			w->result->damaged++;
		at += n;
	}
	return 0;
}

static int file_fill(struct warming *w, struct cache_file *f)
{
	uint64_t from = w->from, at, length;
	int r = 0;

	while (r == 0 && from < w->to && cache_file_absent(f, from, w->to - from, &at, &length)) {
		size_t n = length < PIECE_BYTES ? length : PIECE_BYTES;

		if (is_stopped(w))
			return -ECANCELED;
		r = read_version(w->inode, w->version, at, n, w->buffer);
		if (r == 0) {
			w->result->fetched += n;
			r = cache_file_add(f, at, w->buffer, n);
		}
		from = at + n;
	}
	return r;
}

static uint64_t file_absent(const struct warming *w, struct cache_file *f)
{
	uint64_t from = w->from, at, length, sum = 0;

	while (from < w->to && cache_file_absent(f, from, w->to - from, &at, &length)) {
		uint64_t end = at + length < w->to ? at + length : w->to;

		sum += end - (at > w->from ? at : w->from);
		from = at + length;
	}
	return sum;
}

static int large_keep(struct warming *w)
{
	struct client *c = w->client;
	struct cache_file_key key = { c->volume_id, w->inode->number, w->version, w->size };
	struct cache_file *f;
	uint64_t absent;
	int r = cache_file_open(c->cache, &key, w->cache_flags, &f);

	if (r < 0) {
		/* What there was no room for is not pinned, either. */
		w->result->missing = r == -ENOSPC && !(w->stretch->flags & WARM_UNPIN) ? w->to - w->from : 0;
		return r == -ENOSPC ? 0 : r;
	}
	if (w->stretch->flags & WARM_UNPIN) {
		cache_file_pin(f, false);
	} else {
		if (w->stretch->flags & WARM_VERIFY)
			r = file_verify(w, f);
		if (r == 0)
			r = file_fill(w, f);
		absent = file_absent(w, f);
		w->result->bytes = w->to - w->from - absent;
		w->result->missing = r == -ENOSPC ? absent : 0;
		r = r == -ENOSPC ? 0 : r;
	}
	cache_file_close(f);
	return r;
}

/* ---- Both ---- */

static int to_disk(struct warming *w)
{
	if (!w->client->cache)
		return -ENODEV;
	return w->size > BACKING_LEAST ? large_keep(w) : small_keep(w);
}

static int to_memory(struct warming *w)
{
	int r = 0;

	for (uint64_t at = w->from; at < w->to && r == 0;) {
		size_t n = w->to - at < PIECE_BYTES ? w->to - at : PIECE_BYTES;

		r = is_stopped(w) ? -ECANCELED : read_version(w->inode, w->version, at, n, w->buffer);
		w->result->bytes += r == 0 ? n : 0;
		at += n;
	}
	w->result->fetched = w->result->bytes;
	return r;
}

/* The file is open.  What there is of it, and which version that is. */
static int look(struct warming *w)
{
	struct inode *i = w->inode;
	int r;
	LOCKED(&i->lock);

	if (i->newborn || inode_has_unstored(i))
		return -EBUSY;
	r = window_cover(i, w->stretch->from, w->stretch->from + 1);
	if (r < 0)
		return r;
	if (!S_ISREG(i->attr.mode))
		return -EINVAL;
	w->version = i->attr.version;
	w->size = i->attr.size;
	w->from = w->stretch->from < w->size ? w->stretch->from / CACHE_CHUNK * CACHE_CHUNK : w->size;
	w->to = w->stretch->to < w->size ? w->stretch->to : w->size;
	return 0;
}

static int with_file(struct client *c, const struct warm_stretch *s, struct warm_result *out, int (*keep)(struct warming *w))
{
	struct warming w = { .client = c, .stretch = s, .result = out, .cache_flags = CACHE_TOLD };
	struct client_file *file;
	int r;

	*out = (struct warm_result){ 0 };
	if (s->flags & WARM_PIN)
		w.cache_flags |= CACHE_PIN;
	if (s->flags & WARM_UNPIN)
		w.cache_flags = 0;
	r = open_unseen(c, s->inode, &file);
	if (r < 0)
		return r;
	w.inode = file->inode;
	w.buffer = client_buffer_take(c);
	r = w.buffer ? look(&w) : -ENOMEM;
	if (r == 0 && w.from < w.to)
		r = keep(&w);
	if (w.buffer)
		client_buffer_give(c, w.buffer);
	client_release(file);
	return r;
}

int warm_to_disk(struct client *c, const struct warm_stretch *s, struct warm_result *out)
{
	return with_file(c, s, out, to_disk);
}

int warm_to_memory(struct client *c, const struct warm_stretch *s, struct warm_result *out)
{
	return with_file(c, s, out, to_memory);
}
