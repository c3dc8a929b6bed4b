#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "client/state.h"

/* Fetching before it is asked for: threads (--parallel) that bring chunks into memory, or stretches of large files to the cache on
 * the disk.  In the order it was asked for; what does not fit into the queue is fetched on demand.  Errors
 * are not reported here: the read that needs the data meets them itself.
 *
 * What is done aside takes long, and nobody waits for it: it has a queue of its own, which is looked at when there is nothing in the other,
 * and half of the threads at most are at it. */

#define PIECE_CHUNKS 64u /* at most so much at a time: 4 MiB */
#define PARALLEL_DEFAULT 8
#define QUEUE_MIN 64u
#define QUEUE_MAX 16384u /* 64 GiB in pieces of 4 MiB */

/* A stretch of a file that goes to the disk, or (inode NULL) chunks of an extent that go to memory. */
struct prefetch {
	const struct client_file *owner; /* it is not wanted any more when that is closed; NULL: it always is */
	struct inode *inode;             /* with a reference */
	uint64_t from, to;
	struct extent extent;
	uint32_t first, last;
	bool aside; /* nobody has it in memory for that */
};

static bool is_kept(const struct prefetch *p) { return p->owner == NULL && !p->aside; }

static uint64_t memory_of(const struct prefetch *p) { return p->inode ? 0 : (uint64_t)(p->last - p->first + 1) * CHUNK_BYTES; }

static struct prefetch *queue_at(struct prefetch_queue *q, uint32_t k) { return &q->items[(q->head + k) % q->capacity]; }

static void pending_begin(struct prefetcher *p, const struct prefetch *one)
{
	atomic_fetch_add_explicit(&p->pending, memory_of(one), memory_order_relaxed);
	if (is_kept(one))
		atomic_fetch_add_explicit(&p->pending_kept, one->to - one->from, memory_order_relaxed);
}

static void pending_end(struct prefetcher *p, const struct prefetch *one)
{
	atomic_fetch_sub_explicit(&p->pending, memory_of(one), memory_order_relaxed);
	if (is_kept(one))
		atomic_fetch_sub_explicit(&p->pending_kept, one->to - one->from, memory_order_relaxed);
}

static struct prefetch queue_take(struct prefetch_queue *q)
{
	struct prefetch one = *queue_at(q, 0);
	q->head = (q->head + 1) % q->capacity;
	q->count--;
	return one;
}

/* The lock is held. */
static bool next_take(struct prefetcher *p, struct prefetch *out)
{
	if (p->queue.count)
		*out = queue_take(&p->queue);
	else if (p->asides.count && p->asides_busy < p->asides_most)
		*out = queue_take(&p->asides);
	else
		return false;
	p->busy++;
	p->asides_busy += out->aside;
	return true;
}

static void fetch(struct client *c, const struct prefetch *one)
{
	if (one->aside) {
		backing_finish(one->inode, one->from, one->to);
	} else if (one->inode) {
		uint64_t fetched = backing_fill(one->inode, one->from, one->to);
		if (one->owner)
			counter_add(&c->counters.disk_ahead_fetched, fetched);
	} else {
		chunks_ahead(c->chunks, &one->extent, one->first, one->last);
	}
	if (one->inode) {
		passed_prepare(one->inode);
		inode_unref(one->inode);
	}
}

static void *prefetcher_run(void *context)
{
	struct client *c = context;
	struct prefetcher *p = &c->prefetcher;
	LOCKED(&p->lock);
	while (!p->stopping) {
		struct prefetch one;
		if (!next_take(p, &one)) {
			pthread_cond_wait(&p->work, &p->lock);
			continue;
		}
		pthread_mutex_unlock(&p->lock);
		fetch(c, &one);
		pending_end(p, &one);
		pthread_mutex_lock(&p->lock);
		p->busy--;
		p->asides_busy -= one.aside;
	}
	return NULL;
}

int prefetcher_start(struct client *c, unsigned parallel)
{
	struct prefetcher *p = &c->prefetcher;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	if (parallel == 0)
		parallel = PARALLEL_DEFAULT;
	p->asides_most = parallel > 1 ? parallel / 2 : 1;
	p->threads = calloc(parallel, sizeof(*p->threads));
	if (!p->threads)
		return -ENOMEM;
	for (; p->thread_count < parallel; p->thread_count++) {
		int r = pthread_create(&p->threads[p->thread_count], NULL, prefetcher_run, c);
		if (r)
			return -r;
	}
	return 0;
}

/* The lock is held, if there are threads. */
static void drop(struct prefetcher *p, const struct prefetch *one)
{
	pending_end(p, one);
	if (one->inode)
		inode_unref(one->inode);
}

static void drop_all(struct prefetcher *p, struct prefetch_queue *q)
{
	for (; q->count; q->count--)
		drop(p, queue_at(q, q->count - 1));
}

void prefetcher_stop(struct client *c)
{
	struct prefetcher *p = &c->prefetcher;
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->stopping, true);
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (unsigned k = 0; k < p->thread_count; k++)
		pthread_join(p->threads[k], NULL);
	drop_all(p, &p->queue);
	drop_all(p, &p->asides);
}

void prefetcher_free(struct client *c)
{
	struct prefetcher *p = &c->prefetcher;
	free(p->queue.items);
	free(p->asides.items);
	free(p->threads);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->work);
}

/* ---- The queue ---- */

/* The lock is held. */
static bool queue_grow(struct prefetch_queue *q)
{
	uint32_t capacity = q->capacity ? q->capacity * 2 : QUEUE_MIN;
	struct prefetch *items;
	if (q->count < q->capacity)
		return true;
	if (capacity > QUEUE_MAX)
		return false;
	items = malloc(capacity * sizeof(*items));
	if (!items)
		return false;
	for (uint32_t k = 0; k < q->count; k++)
		items[k] = *queue_at(q, k);
	free(q->items);
	q->items = items;
	q->capacity = capacity;
	q->head = 0;
	return true;
}

/* The lock is held.  Nobody asks twice for the same to be fetched ahead; but what was read goes to the disk read by read. */
static bool is_queued(struct prefetcher *p, const struct prefetch *one)
{
	for (uint32_t k = 0; k < p->queue.count && is_kept(one) && is_kept(queue_at(&p->queue, k)); k++) {
		const struct prefetch *queued = queue_at(&p->queue, k);
		if (queued->inode == one->inode && queued->from <= one->from && one->to <= queued->to)
			return true;
	}
	for (uint32_t k = 0; k < p->asides.count && one->aside; k++)
		if (queue_at(&p->asides, k)->inode == one->inode)
			return true;
	return false;
}

/* False: it is there already, or there is no room. */
static bool enqueue(struct prefetcher *p, const struct prefetch *one)
{
	struct prefetch_queue *q = one->aside ? &p->asides : &p->queue;
	LOCKED(&p->lock);
	if (p->stopping || is_queued(p, one) || !queue_grow(q))
		return false;
	q->count++;
	/* What was read goes to the disk first, while it is in memory. */
	if (is_kept(one))
		q->head = (q->head + q->capacity - 1) % q->capacity;
	*queue_at(q, is_kept(one) ? 0 : q->count - 1) = *one;
	pending_begin(p, one);
	pthread_cond_signal(&p->work);
	return true;
}

uint64_t prefetch_pending(struct client *c) { return atomic_load_explicit(&c->prefetcher.pending, memory_order_relaxed); }

void prefetch_forget(const struct client_file *owner)
{
	struct prefetcher *p = &owner->inode->client->prefetcher;
	struct prefetch_queue *q = &p->queue; /* what is aside is nobody's */
	uint32_t kept = 0;
	LOCKED(&p->lock);
	for (uint32_t k = 0; k < q->count; k++) {
		struct prefetch one = *queue_at(q, k);
		if (one.owner == owner)
			drop(p, &one);
		else
			*queue_at(q, kept++) = one;
	}
	q->count = kept;
}

/* ---- What is put into it ---- */

/* inode.lock is held.  In pieces, so that several threads have something to do. */
static void stretch_queue(struct inode *i, const struct client_file *owner, uint64_t from, uint64_t to)
{
	uint64_t step = PIECE_CHUNKS * CHUNK_BYTES;
	for (uint64_t end; from < to; from = end) {
		end = (from / step + 1) * step < to ? (from / step + 1) * step : to;
		inode_ref(i);
		if (!enqueue(&i->client->prefetcher, &(struct prefetch){ .owner = owner, .inode = i, .from = from, .to = end }))
			inode_unref(i);
	}
}

static void extent_queue(struct client *c, const struct client_file *owner, const struct extent *e, uint64_t from, uint64_t to)
{
	uint32_t first, last;
	from = from > e->offset ? from : e->offset;
	to = to < extent_end(e) ? to : extent_end(e);
	first = (e->skip + (uint32_t)(from - e->offset)) / CHUNK_BYTES;
	last = (e->skip + (uint32_t)(to - e->offset) - 1) / CHUNK_BYTES;
	for (uint32_t end; first <= last; first = end + 1) {
		end = last - first < PIECE_CHUNKS ? last : first + PIECE_CHUNKS - 1;
		enqueue(&c->prefetcher, &(struct prefetch){ .owner = owner, .extent = *e, .first = first, .last = end });
	}
}

void prefetch_range(const struct client_file *f, uint64_t from, uint64_t to)
{
	struct inode *i = f->inode;
	LOCKED(&i->lock);
	struct window *w = &i->window;
	if (!w->known)
		return;
	if (backing_fills(i)) {
		stretch_queue(i, f, from, to < i->attr.size ? to : i->attr.size);
		return;
	}
	for (size_t k = window_find(w, from); k < w->count && w->extents[k].offset < to; k++)
		extent_queue(i->client, f, &w->extents[k], from, to);
}

bool prefetch_is_stopping(struct client *c) { return atomic_load_explicit(&c->prefetcher.stopping, memory_order_relaxed); }

bool prefetch_is_behind(struct client *c)
{
	return atomic_load_explicit(&c->prefetcher.pending_kept, memory_order_relaxed) > chunks_limit(c->chunks) / 4;
}

void prefetch_keep(struct inode *i, uint64_t from, uint64_t to)
{
	LOCKED(&i->lock);
	if (backing_fills(i))
		stretch_queue(i, NULL, from, to < i->attr.size ? to : i->attr.size);
}

void prefetch_aside(struct inode *i, uint64_t from, uint64_t to)
{
	LOCKED(&i->lock);
	if (!backing_fills(i))
		return;
	inode_ref(i);
	if (!enqueue(&i->client->prefetcher, &(struct prefetch){ .inode = i, .from = from, .to = to, .aside = true }))
		inode_unref(i);
}
