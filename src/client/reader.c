#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

/* Reading.  The bytes of [offset, offset + size) come, newest first, from the
 * segments not yet in a job, those being stored, the extents, and nothing (a
 * hole).  Unstored bytes are copied, under the inode's lock; stored ones are
 * pinned chunks that the mount writes to the kernel from where they are.
 *
 * All of it is looked at under the grant, with the lock held: what is found is true
 * at that moment.
 *
 * An extent whose object is gone was read from an old window (gc moved it): the
 * window is fetched again, once. */

#define ZEROES 65536
static const uint8_t zeroes[ZEROES];

struct part {
	uint64_t offset;
	uint32_t length;
	struct extent extent;
	const uint8_t *data;
};

struct client_read {
	struct chunks *cache;
	struct part *plan;
	size_t plan_count, plan_capacity;
	struct iovec *parts;
	size_t part_count, part_capacity;
	struct chunk **pinned;
	size_t pinned_count, pinned_capacity;
	uint8_t *copied;       /* unstored bytes, each at its place in the read */
	uint8_t *from_disk;    /* one of the client's buffers, with all of it */
	struct client *client; /* whose buffer that is */
	uint64_t offset;
	size_t bytes;
	uint64_t version; /* of the content; UINT64_MAX: some of it is unstored */
	uint64_t fetched; /* bytes that had to be */
	bool here_only;   /* nothing is to be fetched: -ENOENT */
	bool ours;        /* no program reads it now: one may come for it */
	bool around;      /* the kernel keeps nothing of it in its pages */
	bool once;        /* it is all of a small file, of which the kernel has the pages then */
	struct ahead_read ahead;
};

static int grow(void **array, size_t *capacity, size_t need, size_t item)
{
	size_t n = *capacity ? *capacity : 16;
	void *p;
	if (need <= *capacity)
		return 0;
	while (n < need)
		n *= 2;
	p = realloc(*array, n * item);
	if (!p)
		return -ENOMEM;
	*array = p;
	*capacity = n;
	return 0;
}

static int plan_add(struct client_read *r, uint64_t from, uint64_t to, const struct extent *e, const uint8_t *data)
{
	if (grow((void **)&r->plan, &r->plan_capacity, r->plan_count + 1, sizeof(*r->plan)) < 0)
		return -ENOMEM;
	struct part *p = &r->plan[r->plan_count++];
	*p = (struct part){ .offset = from, .length = (uint32_t)(to - from), .data = data };
	if (e)
		p->extent = *e;
	return 0;
}

static int plan_extents(struct client_read *r, const struct window *w, uint64_t from, uint64_t to)
{
	int error = 0;
	for (size_t k = window_find(w, from); from < to && !error; k++) {
		const struct extent *e = k < w->count && w->extents[k].offset < to ? &w->extents[k] : NULL;
		uint64_t hole_end = e ? e->offset : to;
		if (from < hole_end) {
			error = plan_add(r, from, hole_end, NULL, NULL);
			from = hole_end;
		}
		if (e && !error) {
			uint64_t end = extent_end(e) < to ? extent_end(e) : to;
			error = plan_add(r, from, end, e, NULL);
			from = end;
		}
	}
	return error;
}

static int copy_segment(struct client_read *r, const struct segments *all, struct segment *s, uint64_t from, uint64_t to,
			bool doubted)
{
	int error;
	if (!r->copied) {
		r->copied = malloc(r->bytes);
		if (!r->copied)
			return -ENOMEM;
	}
	error = segment_read(all, s, from, r->copied + (from - r->offset), to - from, doubted);
	return error ? error : plan_add(r, from, to, NULL, r->copied + (from - r->offset));
}

/* The segments of one layer, and what is between them from the layer below. */
static int plan_layer(struct client_read *r, const struct inode *i, int layer, uint64_t from, uint64_t to)
{
	const struct segments *s = layer == 0 ? &i->dirty : &i->storing;
	int error = 0;
	if (layer == 2)
		return plan_extents(r, &i->window, from, to);
	for (size_t k = segments_find(s, from); from < to && !error; k++) {
		struct segment *g = k < s->count && s->at[k]->offset < to ? s->at[k] : NULL;
		uint64_t gap_end = g ? g->offset : to;
		if (from < gap_end) {
			error = plan_layer(r, i, layer + 1, from, gap_end);
			from = gap_end;
		}
		if (g && !error) {
			uint64_t end = segment_end(g) < to ? segment_end(g) : to;
			error = copy_segment(r, s, g, from, end, i->damaged);
			from = end;
		}
	}
	return error;
}

/* Is all of it unstored?  Then the server need not be asked. */
static bool covered(const struct segments *s, uint64_t from, uint64_t to)
{
	for (size_t k = segments_find(s, from); k < s->count && s->at[k]->offset <= from && from < to; k++)
		from = segment_end(s->at[k]);
	return from >= to;
}

/* Pages of the kernel that the answer goes to. */
static struct stretch pages_filled(const struct client_read *r, size_t size)
{
	return r->around ? NO_PAGES : (struct stretch){ r->offset, r->offset + size };
}

static int plan_make(struct client_read *r, struct inode *i, size_t size)
{
	uint64_t end;
	int error;
	LOCKED(&i->lock);
	r->plan_count = 0;
	error = inode_acquire(i, false, pages_filled(r, size));
	if (error == 0 && !covered(&i->dirty, r->offset, r->offset + size)) {
		if (!r->here_only || i->client->replica) /* which has the extents here */
			error = window_cover(i, r->offset, r->offset + size);
		else if (!window_is_good(i) || i->window.from > r->offset || i->window.to < r->offset + size)
			error = -ENOENT;
	}
	if (error < 0)
		return error;
	end = inode_size(i);
	if (r->offset >= end) {
		r->bytes = 0;
		return 0;
	}
	if (end > r->offset + size)
		end = r->offset + size;
	r->bytes = end - r->offset;
	r->version = inode_has_unstored(i) ? UINT64_MAX : i->attr.version;
	r->ahead.size = inode_size(i);
	r->once = !r->ours && !r->around && r->offset == 0 && r->bytes == r->ahead.size && r->bytes <= BACKING_LEAST;
	r->ahead.known_to = i->window.known ? i->window.to : 0;
	r->ahead.to_disk = backing_fills(i);
	return plan_layer(r, i, 0, r->offset, end);
}

static int part_add(struct client_read *r, const uint8_t *data, size_t length)
{
	if (grow((void **)&r->parts, &r->part_capacity, r->part_count + 1, sizeof(*r->parts)) < 0)
		return -ENOMEM;
	r->parts[r->part_count++] = (struct iovec){ (void *)data, length };
	return 0;
}

static int parts_of_hole(struct client_read *r, size_t length)
{
	int error = 0;
	while (length > 0 && !error) {
		size_t n = length < ZEROES ? length : ZEROES;
		error = part_add(r, zeroes, n);
		length -= n;
	}
	return error;
}

static int parts_of_extent(struct client_read *r, const struct part *p)
{
	uint32_t at = p->extent.skip + (uint32_t)(p->offset - p->extent.offset), end = at + p->length;
	uint32_t first = at / CHUNK_BYTES, last = (end - 1) / CHUNK_BYTES;
	unsigned how = end % CHUNK_BYTES && end != p->extent.raw_length ? CHUNKS_LAST_IN_PART : 0;
	struct chunk **pinned;
	uint64_t fetched = 0;
	int error;
	if (grow((void **)&r->pinned, &r->pinned_capacity, r->pinned_count + (last - first + 1), sizeof(*r->pinned)) < 0)
		return -ENOMEM;
	pinned = &r->pinned[r->pinned_count];
	if (r->here_only)
		error = chunks_find(r->cache, &p->extent, first, last, how | (r->once ? CHUNKS_ONCE : 0), pinned);
	else
		error = chunks_read(r->cache, &p->extent, first, last, how | (r->once ? CHUNKS_ONCE : 0), pinned, &fetched);
	if (error < 0)
		return error;
	r->fetched += fetched;
	r->pinned_count += last - first + 1;
	for (uint32_t k = first; k <= last && !error; k++) {
		uint32_t begin = k == first ? at - k * CHUNK_BYTES : 0;
		uint32_t stop = k == last ? end - k * CHUNK_BYTES : CHUNK_BYTES;
		error = part_add(r, chunk_data(pinned[k - first]) + begin, stop - begin);
	}
	return error;
}

static void unpin_all(struct client_read *r)
{
	if (r->pinned_count)
		chunks_unpin(r->cache, r->pinned, (uint32_t)r->pinned_count);
	r->pinned_count = 0;
	r->part_count = 0;
}

/* For the log: where the inode is in the volume. */
static void path_of(struct inode *i, char *out, size_t size)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	Wire__BytesReply *reply;
	struct arena arena;
	request.inode = i->number;
	arena_init(&arena, 0);
	if (client_call(i->client, WIRE__OP__PATH, &request, &arena, &reply) == 0)
		snprintf(out, size, "%.*s", (int)reply->data.len, (const char *)reply->data.data);
	else
		snprintf(out, size, "inode %lu", (unsigned long)i->number);
	arena_free(&arena);
}

static void report(struct inode *i, const struct part *p, const char *what)
{
	char path[PATH_MAX];
	path_of(i, path, sizeof(path));
	log_error(
		"cannot read %s of volume %s, bytes %lu to %lu: object %016lx %s; see \"Corrupted object\" in docs/operations.md",
		path, i->client->volume.name, (unsigned long)p->offset, (unsigned long)(p->offset + p->length),
		(unsigned long)p->extent.object, what);
}

/* `last_try`: a missing object is not an old window any more. */
static int parts_make(struct client_read *r, struct inode *i, bool last_try)
{
	int error = 0;
	for (size_t k = 0; k < r->plan_count && !error; k++) {
		const struct part *p = &r->plan[k];
		if (p->data)
			error = part_add(r, p->data, p->length);
		else if (p->extent.length == 0)
			error = parts_of_hole(r, p->length);
		else
			error = parts_of_extent(r, p);
		if (error == -EBADMSG || error == -ERANGE) {
			report(i, p, "is damaged");
			error = -EIO;
		} else if (error == -ENOENT && last_try) {
			report(i, p, "is not in the store");
			error = -EIO;
		}
	}
	return error;
}

/* /dev/fuse takes at most 1,024 parts; a read of so many is copied together. */
#define PARTS_MAX 1000

static int flatten(struct client_read *r)
{
	uint8_t *whole;
	size_t at = 0;
	if (r->part_count <= PARTS_MAX)
		return 0;
	whole = malloc(r->bytes);
	if (!whole)
		return -ENOMEM;
	for (size_t k = 0; k < r->part_count; k++) {
		memcpy(whole + at, r->parts[k].iov_base, r->parts[k].iov_len);
		at += r->parts[k].iov_len;
	}
	unpin_all(r);
	free(r->copied);
	r->copied = whole;
	return part_add(r, whole, at);
}

/* ---- From the cache on the disk --------------------------------------------------- */

/* -ENOENT: not all of it is there, or the file is none for it. */
static int disk_read(struct client_read *r, struct inode *i, size_t size)
{
	struct backing *b;
	uint64_t end;
	int error;
	pthread_mutex_lock(&i->lock);
	error = inode_acquire(i, false, pages_filled(r, size));
	b = error ? NULL : backing_get(i);
	end = i->attr.size;
	pthread_mutex_unlock(&i->lock);
	if (error || !b)
		return error ? error : -ENOENT;
	r->bytes = r->offset >= end ? 0 : end - r->offset < size ? end - r->offset : size;
	r->ahead = (struct ahead_read){ .size = end, .to_disk = true };
	r->from_disk = client_buffer_take(i->client);
	error = r->from_disk ? 0 : -ENOENT;
	if (!error && r->bytes)
		error = backing_read(b, r->offset, r->from_disk, r->bytes);
	backing_put(b);
	if (error && r->from_disk) {
		client_buffer_give(i->client, r->from_disk);
		r->from_disk = NULL;
	}
	return error ? error : part_add(r, r->from_disk, r->bytes);
}

/* ---- From memory and the store --------------------------------------------------- */

static void read_reset(struct client_read *r)
{
	unpin_all(r);
	free(r->copied);
	r->copied = NULL;
}

/* -ENOENT: not all of it is in memory. */
static int memory_read(struct client_read *r, struct inode *i, size_t size)
{
	int error;
	r->here_only = true;
	r->bytes = size;
	error = plan_make(r, i, size);
	if (error == 0)
		error = parts_make(r, i, false);
	if (error == 0)
		error = flatten(r);
	if (error)
		read_reset(r);
	r->here_only = false;
	return error;
}

static int stored_read(struct client_read *r, struct inode *i, size_t size)
{
	int error;
	for (int tries = 0;; tries++) {
		r->bytes = size;
		error = plan_make(r, i, size);
		if (error)
			return error;
		error = parts_make(r, i, tries > 0);
		if (error != -ENOENT)
			return error ? error : flatten(r);
		read_reset(r);
		layouts_forget(&i->client->layouts, i->number);
		if (i->client->replica)
			replica_await(i->client);
		pthread_mutex_lock(&i->lock);
		window_drop(i);
		pthread_mutex_unlock(&i->lock);
	}
}

static struct client_read *read_new(struct inode *i, uint64_t offset)
{
	struct client_read *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->client = i->client;
	r->cache = i->client->chunks;
	r->offset = offset;
	return r;
}

int read_pinned(struct inode *i, uint64_t version, uint64_t offset, size_t size, struct client_read **out)
{
	struct client_read *r = read_new(i, offset);
	int error = -ENOMEM;
	if (r) {
		r->ours = true;
		error = stored_read(r, i, size);
	}
	if (error == 0 && (r->version != version || r->bytes != size))
		error = -ESTALE;
	if (error)
		client_read_release(r);
	else
		*out = r;
	return error;
}

int read_version(struct inode *i, uint64_t version, uint64_t offset, size_t size, void *into)
{
	struct client_read *r;
	uint8_t *to = into;
	int error = read_pinned(i, version, offset, size, &r);
	if (error)
		return error;
	for (size_t k = 0; k < r->part_count; to += r->parts[k++].iov_len)
		memcpy(to, r->parts[k].iov_base, r->parts[k].iov_len);
	client_read_release(r);
	return 0;
}

/* What was dropped when the file was opened is gone: for itself before it could be used. */
static void pages_are_new(struct client_file *f)
{
	struct inode *i = f->inode;
	LOCKED(&i->lock);
	i->pages_old = false;
	f->removals += f->removals == atomic_load(&i->pages.removals);
	pages_removal(i);
}

/* What is read again does not count, nor what is read from the end to the beginning: it need not be exact. */
static void count_once(struct client_file *f, uint64_t from, uint64_t to)
{
	uint64_t before = atomic_load_explicit(&f->read_to, memory_order_relaxed);
	if (to <= before)
		return;
	atomic_store_explicit(&f->read_to, to, memory_order_relaxed);
	atomic_fetch_add_explicit(&f->read_bytes, to - (from > before ? from : before), memory_order_relaxed);
}

static void count(struct client_file *f, struct client_read *r)
{
	struct counters *n = &r->client->counters;
	count_once(f, r->offset, r->offset + r->bytes);
	counter_add(&n->reads, 1);
	counter_add(&n->read_bytes, r->bytes);
	if (r->from_disk) {
		counter_add(&n->disk_reads, 1);
		counter_add(&n->disk_bytes, r->bytes);
	} else if (!r->fetched) {
		counter_add(&n->memory_reads, 1);
		counter_add(&n->memory_bytes, r->bytes);
	}
}

/* Whether the file has its place on the disk, or may have. */
static bool is_on_disk(struct inode *i, size_t size)
{
	if (!i->client->cache || size > CLIENT_BUFFER_BYTES)
		return false;
	backing_ready(i);
	LOCKED(&i->lock);
	return i->backing != NULL;
}

/* What is in memory was read a moment ago, or is being fetched for the disk: it costs a copy less than from there. */
static int cached_read(struct client_read *r, struct inode *i, size_t size)
{
	int error;
	if (!is_on_disk(i, size))
		return -ENOENT;
	error = memory_read(r, i, size);
	if (error != -ENOENT)
		return error;
	return disk_read(r, i, size);
}

/* Which version it is of may have come out only now: it was not uploaded before, or somebody else has changed it.  Then it has no place
 * yet, and what is read, and read ahead from here on, would be in memory only, where nobody looks for what is to be kept. */
static bool place_make(struct client_read *r, struct inode *i)
{
	if (!i->client->cache || r->ahead.size <= BACKING_LEAST)
		return false;
	backing_ready(i);
	LOCKED(&i->lock);
	r->ahead.to_disk = r->version == i->attr.version && backing_fills(i);
	return r->ahead.to_disk;
}

/* Whoever reads faster than it can be written does so himself: else it is gone from memory, and fetched again. */
static void keep(struct client_read *r, struct inode *i)
{
	if (!prefetch_is_behind(i->client) || !backing_keep(i, r->version, r->offset, r->parts, (int)r->part_count))
		prefetch_keep(i, r->offset, r->offset + r->bytes);
}

static int file_read(struct client_file *f, uint64_t offset, size_t size, bool around, struct client_read **out)
{
	struct client_read *r = read_new(f->inode, offset);
	bool is_new;
	int error;
	if (!r)
		return -ENOMEM;
	r->around = around;
	if (offset >= FILE_SIZE_MAX)
		size = 0;
	else if (size > FILE_SIZE_MAX - offset)
		size = FILE_SIZE_MAX - offset;
	if (atomic_load_explicit(&f->dropped, memory_order_relaxed) && atomic_exchange(&f->dropped, false))
		pages_are_new(f);
	error = cached_read(r, f->inode, size);
	is_new = error == -ENOENT;
	if (is_new)
		error = stored_read(r, f->inode, size);
	if (error < 0) {
		client_read_release(r);
		return error;
	}
	if (r->ahead.to_disk ? is_new : place_make(r, f->inode))
		keep(r, f->inode);
	count(f, r);
	r->ahead.offset = offset;
	r->ahead.bytes = r->bytes;
	r->ahead.found = !r->fetched;
	ahead_note(f, &r->ahead);
	*out = r;
	return 0;
}

static int read_unmarked(struct client_file *f, uint64_t offset, size_t size, bool around, struct client_read **out)
{
	struct client *c = f->inode->client;
	int64_t deadline = 0;
	int r;
	/* A replica, and the newest content of the file is not in the store yet. */
	while ((r = file_read(f, offset, size, around, out)) == -EBUSY && c->replica) {
		if (!deadline)
			deadline = monotonic_ns() + c->timeout_ms * NS_PER_MS;
		r = replica_await_unmarked(c, f->inode->number, deadline);
		if (r < 0)
			return r;
	}
	return r;
}

int client_read(struct client_file *f, uint64_t offset, size_t size, struct client_read **out)
{
	struct pages *p = &f->inode->pages;
	int r;
	atomic_fetch_add(&p->reading, 1);
	r = read_unmarked(f, offset, size, false, out);
	/* It is answered at once from here on, and then the file may be closed. */
	atomic_fetch_sub(&p->reading, 1);
	return r;
}

int client_read_around(struct client_file *f, uint64_t offset, size_t size, struct client_read **out)
{
	return read_unmarked(f, offset, size, true, out);
}

const struct iovec *client_read_parts(const struct client_read *r, int *count, size_t *bytes)
{
	*count = (int)r->part_count;
	*bytes = r->bytes;
	return r->parts;
}

uint64_t read_fetched(const struct client_read *r) { return r->fetched; }

void client_read_release(struct client_read *r)
{
	if (!r)
		return;
	unpin_all(r);
	free(r->plan);
	free(r->parts);
	free(r->pinned);
	free(r->copied);
	if (r->from_disk)
		client_buffer_give(r->client, r->from_disk);
	free(r);
}
