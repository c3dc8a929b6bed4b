/* What changed in a replica, told to whoever keeps something of it: the kernel.  Making it forget may wait for requests that
 * are under way, and those for the stream (replica_await); so it has a thread of its own. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "client/state.h"

#define WAITING_MOST (1u << 18)
#define DENTRY_NAME 9u /* where the name begins in a value (meta/view.h) */

struct news_batch {
	struct news_batch *next;
	struct buf items; /* struct client_news; their names are offsets until they are told */
	struct buf names;
	size_t count;
};

struct news_batch *news_batch_new(void) { return calloc(1, sizeof(struct news_batch)); }

void news_batch_free(struct news_batch *b)
{
	if (!b)
		return;
	buf_free(&b->items);
	buf_free(&b->names);
	free(b);
}

static void add(struct news_batch *b, struct client_news item)
{
	buf_append(&b->items, &item, sizeof(item));
	b->count++;
}

static void name_note(struct news_batch *b, uint64_t directory, struct span value)
{
	size_t at = b->names.len, size = value.size - DENTRY_NAME;

	buf_append(&b->names, value.data + DENTRY_NAME, size);
	buf_le8(&b->names, 0);
	add(b, (struct client_news){ .inode = directory, .name = (const char *)at, .name_length = size });
}

static bool same_name(struct span a, struct span b)
{
	return a.size == b.size && memcmp(a.data + DENTRY_NAME, b.data + DENTRY_NAME, a.size - DENTRY_NAME) == 0;
}

/* One that is new is known to nobody.  Of one that is gone nobody can say more than what is known of it. */
static void inode_note(struct news_batch *b, const struct change *now, struct span before)
{
	struct attr was, is;

	if (!before.data || now->deleted || attr_unpack(before.data, before.size, &was) < 0 ||
	    attr_unpack(now->value.data, now->value.size, &is) < 0)
		return;
	add(b, (struct client_news){
		       .inode = is.inode, .cover = was.parent, .content = S_ISREG(is.mode) && was.version != is.version });
}

int news_note(void *batch, const struct change *now, struct span before)
{
	bool mark = now->table == TABLE_META;
	uint64_t inode = get_be64(now->key.data + mark) & INODE_MAX;
	struct news_batch *b = batch;

	if (mark) {
		add(b, (struct client_news){ .inode = inode, .content = true });
	} else if (now->table == TABLE_DENTRY) {
		if (before.data)
			name_note(b, inode, before);
		if (!now->deleted && (!before.data || !same_name(before, now->value)))
			name_note(b, inode, now->value);
	} else if (now->table == TABLE_INODE) {
		inode_note(b, now, before);
	}
	return b->items.failed || b->names.failed ? -ENOMEM : 0;
}

/* ---- The queue ---- */

void news_init(struct news *n)
{
	n->end = &n->first;
	pthread_mutex_init(&n->lock, NULL);
	pthread_cond_init(&n->changed, NULL);
}

void news_free(struct news *n)
{
	struct news_batch *b;

	while ((b = n->first)) {
		n->first = b->next;
		news_batch_free(b);
	}
	pthread_cond_destroy(&n->changed);
	pthread_mutex_destroy(&n->lock);
}

void news_add(struct client *c, struct news_batch *b)
{
	struct news *n = &c->replica->news;
	LOCKED(&n->lock);

	if (!b->count) {
		news_batch_free(b);
		return;
	}
	while (n->waiting > WAITING_MOST && !n->stopping)
		pthread_cond_wait(&n->changed, &n->lock);
	*n->end = b;
	n->end = &b->next;
	n->waiting += b->count;
	pthread_cond_broadcast(&n->changed);
}

/* A mark does not say where its file is. */
static void cover_find(struct client *c, struct client_news *n)
{
	struct attr a;

	if (!n->cover && replica_getattr(c->replica->meta, c->replica->who.volume, n->inode, &a) == 0)
		n->cover = a.parent;
}

static void batch_tell(struct client *c, struct news_batch *b)
{
	struct client_news *items = (struct client_news *)b->items.data;

	for (size_t i = 0; i < b->count; i++)
		if (items[i].name_length)
			items[i].name = (const char *)b->names.data + (size_t)items[i].name;
		else
			cover_find(c, &items[i]);
	pthread_rwlock_rdlock(&c->lease.events_lock);
	if (c->lease.events.changed)
		c->lease.events.changed(c->lease.events.context, items, b->count);
	pthread_rwlock_unlock(&c->lease.events_lock);
}

static void *news_run(void *context)
{
	struct client *c = context;
	struct news *n = &c->replica->news;
	struct news_batch *b;
	LOCKED(&n->lock);

	while (!n->stopping) {
		b = n->first;
		if (!b) {
			pthread_cond_wait(&n->changed, &n->lock);
			continue;
		}
		pthread_mutex_unlock(&n->lock);
		batch_tell(c, b);
		pthread_mutex_lock(&n->lock);
		n->first = b->next;
		if (!n->first)
			n->end = &n->first;
		n->waiting -= b->count;
		news_batch_free(b);
		pthread_cond_broadcast(&n->changed);
	}
	return NULL;
}

int news_start(struct client *c)
{
	int r = -pthread_create(&c->replica->news.thread, NULL, news_run, c);

	c->replica->news.started = r == 0;
	return r;
}

void news_bar(struct client *c)
{
	struct news *n = &c->replica->news;
	LOCKED(&n->lock);

	n->stopping = true;
	pthread_cond_broadcast(&n->changed);
}

void news_stop(struct client *c)
{
	struct news *n = &c->replica->news;

	if (!n->started)
		return;
	pthread_join(n->thread, NULL);
	n->started = false;
}
