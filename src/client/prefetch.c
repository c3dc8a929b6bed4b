#include "base/cleanup.h"
#include "client/state.h"

/* Read-ahead: threads that bring extents into the chunk cache, or stretches of large files to the cache on the disk, before
 * they are asked for.  The queue is short; what does not fit is fetched on demand.  Errors
 * are not reported here: the read that needs the chunk meets them itself. */

static void fetch(struct client *c, const struct extent *e)
{
	uint32_t chunks = extent_chunks(e->raw_length);
	struct chunk *pinned[64];
	for (uint32_t first = 0; first < chunks; first += 64) {
		uint32_t last = first + 63 < chunks - 1 ? first + 63 : chunks - 1;
		if (chunks_get(c->chunks, e, first, last, pinned) < 0)
			return;
		chunks_unpin(c->chunks, pinned, last - first + 1);
	}
}

static void *prefetcher_run(void *context)
{
	struct client *c = context;
	struct prefetcher *p = &c->prefetcher;
	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct prefetch one;
		while (!p->stopping && p->count == 0)
			pthread_cond_wait(&p->work, &p->lock);
		if (p->stopping)
			break;
		one = p->queue[p->head];
		p->head = (p->head + 1) % PREFETCH_QUEUE;
		p->count--;
		pthread_mutex_unlock(&p->lock);
		if (one.inode) {
			backing_fill(one.inode, one.from, one.to);
			inode_unref(one.inode);
		} else {
			fetch(c, &one.extent);
		}
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int prefetcher_start(struct client *c)
{
	struct prefetcher *p = &c->prefetcher;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	for (; p->thread_count < PREFETCH_THREADS; p->thread_count++) {
		int r = pthread_create(&p->threads[p->thread_count], NULL, prefetcher_run, c);
		if (r)
			return -r;
	}
	return 0;
}

void prefetcher_stop(struct client *c)
{
	struct prefetcher *p = &c->prefetcher;
	pthread_mutex_lock(&p->lock);
	p->stopping = true;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (int k = 0; k < p->thread_count; k++)
		pthread_join(p->threads[k], NULL);
	for (; p->count > 0; p->count--, p->head = (p->head + 1) % PREFETCH_QUEUE)
		if (p->queue[p->head].inode)
			inode_unref(p->queue[p->head].inode);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->work);
}

static bool is_queued(const struct prefetcher *p, const struct prefetch *one)
{
	for (uint32_t k = 0; k < p->count; k++) {
		const struct prefetch *queued = &p->queue[(p->head + k) % PREFETCH_QUEUE];
		if (queued->inode != one->inode)
			continue;
		if (one->inode ? queued->from <= one->from && one->to <= queued->to
			       : queued->extent.object == one->extent.object &&
					 queued->extent.object_offset == one->extent.object_offset)
			return true;
	}
	return false;
}

/* False: it is there already, or there is no room. */
static bool enqueue(struct prefetcher *p, const struct prefetch *one)
{
	LOCKED(&p->lock);
	if (p->stopping || p->count == PREFETCH_QUEUE || is_queued(p, one))
		return false;
	p->queue[(p->head + p->count++) % PREFETCH_QUEUE] = *one;
	pthread_cond_signal(&p->work);
	return true;
}

void prefetch_extent(struct client *c, const struct extent *e) { enqueue(&c->prefetcher, &(struct prefetch){ .extent = *e }); }

void prefetch_stretch(struct inode *i, uint64_t from, uint64_t to)
{
	inode_ref(i);
	if (!enqueue(&i->client->prefetcher, &(struct prefetch){ .inode = i, .from = from, .to = to }))
		inode_unref(i);
}
