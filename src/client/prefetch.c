#include "base/cleanup.h"
#include "client/state.h"

/* Read-ahead: threads that bring extents into the chunk cache before they are
 * asked for.  The queue is short; what does not fit is fetched on demand.  Errors
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
		struct extent e;
		while (!p->stopping && p->count == 0)
			pthread_cond_wait(&p->work, &p->lock);
		if (p->stopping)
			break;
		e = p->queue[p->head];
		p->head = (p->head + 1) % PREFETCH_QUEUE;
		p->count--;
		pthread_mutex_unlock(&p->lock);
		fetch(c, &e);
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
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->work);
}

void prefetch_extent(struct client *c, const struct extent *e)
{
	struct prefetcher *p = &c->prefetcher;
	LOCKED(&p->lock);
	for (uint32_t k = 0; k < p->count; k++) {
		const struct extent *queued = &p->queue[(p->head + k) % PREFETCH_QUEUE];
		if (queued->object == e->object && queued->object_offset == e->object_offset)
			return;
	}
	if (p->count == PREFETCH_QUEUE)
		return;
	p->queue[(p->head + p->count++) % PREFETCH_QUEUE] = *e;
	pthread_cond_signal(&p->work);
}
