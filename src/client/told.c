#include "client/told.h"
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "client/order.h"
#include "client/state.h"
#include "client/warm.h"

struct told_order {
	struct order order;
	uint32_t users; /* threads that fetch for it, and who told it */
	_Atomic bool ended;
};

struct fetch {
	struct told_order *order;
	uint64_t position, inode, bytes;
};

void told_init(struct told *t)
{
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	cond_init_monotonic(&t->room);
}

/* ---- The lock is held ---- */

static void order_leave(struct told_order *o)
{
	if (--o->users > 0)
		return;
	order_free(&o->order);
	free(o);
}

static bool fetch_take(struct told *t, struct fetch *out)
{
	for (unsigned i = 0; i < t->count; i++) {
		struct told_order *o = t->orders[(t->turn + i) % t->count];

		if (!order_take(&o->order, &out->position, &out->inode, &out->bytes))
			continue;
		t->turn = (t->turn + i + 1) % t->count;
		out->order = o;
		o->users++;
		return true;
	}
	return false;
}

/* ---- Fetching ---- */

static bool is_ended(void *context)
{
	struct told_order *o = context;

	return atomic_load(&o->ended);
}

static enum order_outcome fetch(struct client *c, const struct fetch *f)
{
	struct warm_stretch s = { f->inode, 0, f->bytes, WARM_WANTED, is_ended, f->order };
	struct warm_result result;
	int r = c->cache ? warm_to_disk(c, &s, &result) : 0;

	if (r < 0)
		return ORDER_FAILED;
	if (c->cache && !result.missing)
		return ORDER_ON_DISK;
	if (c->cache && f->bytes > BACKING_LEAST)
		return ORDER_FAILED;
	return warm_to_memory(c, &s, &result) < 0 ? ORDER_FAILED : ORDER_IN_MEMORY;
}

static void *told_run(void *context)
{
	struct client *c = context;
	struct told *t = &c->told;
	LOCKED(&t->lock);

	while (!t->stopping) {
		enum order_outcome outcome;
		struct fetch f;

		if (!fetch_take(t, &f)) {
			pthread_cond_wait(&t->work, &t->lock);
			continue;
		}
		pthread_mutex_unlock(&t->lock);
		outcome = fetch(c, &f);
		pthread_mutex_lock(&t->lock);
		order_done(&f.order->order, f.position, f.bytes, outcome);
		order_leave(f.order);
	}
	return NULL;
}

/* The lock is held.  They stay: the next job comes. */
static int threads_start(struct client *c)
{
	struct told *t = &c->told;

	for (; t->thread_count < TOLD_THREADS; t->thread_count++)
		if (pthread_create(&t->threads[t->thread_count], NULL, told_run, c))
			break;
	return t->thread_count ? 0 : -EAGAIN;
}

void told_stop(struct client *c)
{
	struct told *t = &c->told;

	pthread_mutex_lock(&t->lock);
	t->stopping = true;
	pthread_cond_broadcast(&t->work);
	pthread_mutex_unlock(&t->lock);
	for (int k = 0; k < t->thread_count; k++)
		pthread_join(t->threads[k], NULL);
	pthread_cond_destroy(&t->work);
	pthread_cond_destroy(&t->room);
	pthread_mutex_destroy(&t->lock);
}

/* ---- Orders ---- */

/* One that comes gets half of what the others have left of one half; mostly there is one. */
static uint64_t memory_of(const struct client *c)
{
	uint64_t left = c->memory_bytes / 2;

	for (unsigned i = 0; i < c->told.count; i++)
		left -= c->told.orders[i]->order.memory;
	return left / 2;
}

int told_begin(struct client *c, uint64_t window, uint64_t ahead, struct told_order **out)
{
	struct told *t = &c->told;
	struct told_order *o;
	uint64_t memory;
	int r;
	LOCKED(&t->lock);

	if (t->count == TOLD_ORDERS)
		return -EMFILE;
	o = calloc(1, sizeof(*o));
	if (!o)
		return -ENOMEM;
	memory = memory_of(c);
	r = order_init(&o->order, TOLD_ENTRIES, c->cache || window < memory ? window : memory, ahead, memory);
	if (r == 0)
		r = threads_start(c);
	if (r < 0) {
		order_free(&o->order);
		free(o);
		return r;
	}
	o->users = 1;
	t->orders[t->count++] = o;
	atomic_store(&t->any, true);
	*out = o;
	return 0;
}

void told_end(struct client *c, struct told_order *o)
{
	struct told *t = &c->told;
	LOCKED(&t->lock);

	for (unsigned i = 0; i < t->count; i++)
		if (t->orders[i] == o)
			t->orders[i] = t->orders[--t->count];
	atomic_store(&t->any, t->count > 0);
	atomic_store(&o->ended, true);
	order_leave(o);
}

int told_add(struct client *c, struct told_order *o, uint64_t inode, uint64_t bytes, int64_t wait_ms)
{
	struct told *t = &c->told;
	int64_t deadline = monotonic_ns() + wait_ms * NS_PER_MS;
	int r;
	LOCKED(&t->lock);

	while ((r = order_add(&o->order, inode, bytes)) == -ENOSPC)
		if (cond_wait_until(&t->room, &t->lock, deadline) != 0)
			return -EAGAIN;
	if (r == 0)
		pthread_cond_signal(&t->work);
	return r;
}

void told_look(struct client *c, uint64_t inode)
{
	struct told *t = &c->told;
	bool changed = false;
	LOCKED(&t->lock);

	for (unsigned i = 0; i < t->count; i++)
		changed = order_seen(&t->orders[i]->order, inode) || changed;
	if (!changed)
		return;
	pthread_cond_broadcast(&t->work);
	pthread_cond_broadcast(&t->room);
}

/* ---- What there is to tell ---- */

static void progress_of(const struct order *o, struct told_progress *out)
{
	*out = (struct told_progress){ .window = o->window,
				       .ahead = o->ahead,
				       .added = o->added,
				       .seen = o->seen,
				       .passed = o->passed,
				       .ready = o->ready,
				       .ready_bytes = o->ready_bytes,
				       .failed = o->failed,
				       .waiting = o->added - o->seen - o->passed,
				       .ahead_files = o->ahead_files,
				       .ahead_bytes = o->ahead_bytes,
				       .memory_bytes = o->memory_bytes };
}

void told_progress(struct client *c, struct told_order *o, struct told_progress *out)
{
	LOCKED(&c->told.lock);
	progress_of(&o->order, out);
}

unsigned told_progress_all(struct client *c, struct told_progress out[TOLD_ORDERS])
{
	LOCKED(&c->told.lock);
	for (unsigned i = 0; i < c->told.count; i++)
		progress_of(&c->told.orders[i]->order, &out[i]);
	return c->told.count;
}
