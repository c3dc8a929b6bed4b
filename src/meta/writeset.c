/* The write sets of the newest batches, WRITE_SETS_KEPT bytes of them.  Readers
 * hold a reference while they use one, so that the writer never waits for them. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "base/cleanup.h"
#include "meta/machine.h"

#define WRITE_SETS_KEPT (16u << 20)

struct write_set {
	struct write_set *newer, *older;
	uint64_t batch;
	unsigned references; /* guarded by recent.lock */
	size_t size;
	uint8_t *data;
};

static void write_set_release(struct write_set *s)
{
	if (--s->references > 0)
		return;
	free(s->data);
	free(s);
}

void recent_init(struct recent *r)
{
	pthread_condattr_t steady;

	pthread_mutex_init(&r->lock, NULL);
	pthread_condattr_init(&steady);
	pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
	pthread_cond_init(&r->added, &steady);
	pthread_condattr_destroy(&steady);
}

static void oldest_drop(struct recent *r)
{
	struct write_set *s = r->oldest;

	r->oldest = s->newer;
	if (r->oldest)
		r->oldest->older = NULL;
	else
		r->newest = NULL;
	r->bytes -= s->size;
	write_set_release(s);
}

void recent_free(struct recent *r)
{
	while (r->oldest)
		oldest_drop(r);
	pthread_cond_destroy(&r->added);
	pthread_mutex_destroy(&r->lock);
}

/* One that cannot be kept leaves a gap, so everything before it goes as well. */
static struct write_set *write_set_new(uint64_t batch, struct buf *data)
{
	struct write_set *s = calloc(1, sizeof(*s));
	uint8_t *fitted;

	if (!s) {
		buf_free(data);
		return NULL;
	}
	fitted = realloc(data->data, data->len);
	*s = (struct write_set){ .batch = batch, .references = 1, .size = data->len, .data = fitted ? fitted : data->data };
	*data = (struct buf){ 0 };
	return s;
}

void recent_add(struct recent *r, uint64_t batch, struct buf *data)
{
	struct write_set *s = write_set_new(batch, data);
	LOCKED(&r->lock);

	r->last_batch = batch;
	pthread_cond_broadcast(&r->added);
	if (!s) {
		while (r->oldest)
			oldest_drop(r);
		return;
	}
	s->older = r->newest;
	if (r->newest)
		r->newest->newer = s;
	else
		r->oldest = s;
	r->newest = s;
	r->bytes += s->size;
	while (r->bytes > WRITE_SETS_KEPT && r->oldest != r->newest)
		oldest_drop(r);
}

/* The one after batch `after`, referenced; NULL with 0 if that was the last.  Who follows is near the newest. */
static int write_set_after(struct recent *r, uint64_t after, struct write_set **out)
{
	struct write_set *s;
	LOCKED(&r->lock);

	*out = NULL;
	if (after == r->last_batch)
		return 0;
	if (after > r->last_batch || !r->oldest || after + 1 < r->oldest->batch)
		return -ESTALE;
	for (s = r->newest; s->batch != after + 1;)
		s = s->older;
	s->references++;
	*out = s;
	return 0;
}

static void write_set_done(struct recent *r, struct write_set *s)
{
	LOCKED(&r->lock);
	write_set_release(s);
}

int meta_write_sets(struct meta *m, uint64_t after, int (*each)(void *context, uint64_t batch, const void *data, size_t size),
		    void *context)
{
	struct write_set *s;
	int r = write_set_after(&m->recent, after, &s);

	while (r == 0 && s) {
		after = s->batch;
		r = each(context, s->batch, s->data, s->size);
		write_set_done(&m->recent, s);
		if (r == 0)
			r = write_set_after(&m->recent, after, &s);
	}
	return r;
}

void meta_await_batch(struct meta *m, uint64_t after, int64_t ns)
{
	struct recent *r = &m->recent;
	struct timespec until;
	int64_t at;

	clock_gettime(CLOCK_MONOTONIC, &until);
	at = until.tv_nsec + ns;
	until.tv_sec += at / NS_PER_S;
	until.tv_nsec = at % NS_PER_S;
	LOCKED(&r->lock);
	while (r->last_batch <= after)
		if (pthread_cond_timedwait(&r->added, &r->lock, &until))
			break;
}
