#include "client/ahead.h"
#include <stdlib.h>
#include "base/cleanup.h"
#include "client/pattern.h"
#include "client/state.h"

struct ahead {
	pthread_mutex_t lock; /* guards all below; nothing is taken under it */
	struct pattern pattern;
	int streams; /* as many of the client's are this file's */
};

/* Files that are read in one go have none. */
static struct ahead *ahead_of(struct client_file *f)
{
	struct ahead *a = atomic_load(&f->ahead), *none = NULL;

	if (a)
		return a;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	pthread_mutex_init(&a->lock, NULL);
	if (atomic_compare_exchange_strong(&f->ahead, &none, a))
		return a;
	pthread_mutex_destroy(&a->lock);
	free(a);
	return none;
}

static struct pattern_limits limits_of(struct client *c, const struct ahead_read *read)
{
	struct pattern_limits l = {
		.end = read->size, .most = c->readahead_bytes, .room = UINT64_MAX, .step = c->volume.block_size
	};
	uint64_t budget = chunks_limit(c->chunks) / 4 * 3, taken, share;
	int streams = atomic_load_explicit(&c->streams, memory_order_relaxed);

	if (read->to_disk)
		return l;
	if (l.end > read->known_to)
		l.end = read->known_to;
	share = budget / (uint64_t)(streams > 1 ? streams : 1);
	if (l.most > share)
		l.most = share;
	taken = chunks_unread(c->chunks) + prefetch_pending(c);
	l.room = taken < budget ? budget - taken : 0;
	return l;
}

void ahead_note(struct client_file *f, const struct ahead_read *read)
{
	struct client *c = f->inode->client;
	struct pattern_range ranges[PATTERN_RANGES];
	struct pattern_limits limits;
	struct ahead *a;
	uint64_t used;
	int count, streams;

	if (c->readahead_bytes == 0 || read->bytes == 0 || (read->offset == 0 && read->bytes == read->size))
		return;
	a = ahead_of(f);
	if (!a)
		return;
	limits = limits_of(c, read);
	pthread_mutex_lock(&a->lock);
	used = read->to_disk && read->found ? pattern_asked(&a->pattern, read->offset, read->bytes) : 0;
	count = pattern_note(&a->pattern, read->offset, read->bytes, &limits, ranges);
	streams = pattern_streams(&a->pattern, read->size);
	atomic_fetch_add_explicit(&c->streams, streams - a->streams, memory_order_relaxed);
	a->streams = streams;
	pthread_mutex_unlock(&a->lock);
	if (used)
		counter_add(&c->counters.disk_ahead_used, used);
	for (int i = 0; i < count; i++)
		prefetch_range(f, ranges[i].from, ranges[i].to);
}

void ahead_end(struct client_file *f)
{
	struct ahead *a = atomic_load(&f->ahead);

	if (!a)
		return;
	prefetch_forget(f);
	atomic_fetch_sub_explicit(&f->inode->client->streams, a->streams, memory_order_relaxed);
	pthread_mutex_destroy(&a->lock);
	free(a);
}
