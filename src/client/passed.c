#include "client/passed.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define REFRESH_NS (20 * NS_PER_MS) /* those who write again and again get some work done in between */
#define RETRY_NS (1 * NS_PER_S)
/* Enough for most copies; who writes again and again beside another mount is not held up for ever. */
#define AWAIT_NS (500 * NS_PER_MS)
#define COPY_BYTES (1u << 20)
#define TRIES 100

/* ---- Life ---- */

/* The lock is held, and given up. */
static void passed_unref_unlock(struct inode *i)
{
	struct passed *p = i->passed;
	bool last = --p->refs == 0;

	if (last)
		i->passed = NULL;
	pthread_mutex_unlock(&i->lock);
	if (!last)
		return;
	backing_put(p->backing);
	free(p);
}

/* Or others' changes may be seen late. */
static bool is_nobody_elses(struct client *c) { return lease_held(c) || c->volume.relaxed; }

bool passed_is_possible(struct client *c) { return atomic_load(&c->passes) && is_nobody_elses(c); }

/* The lock is held.  It may be begun to be passed through, as far as others are concerned. */
static bool may_begin(struct inode *i, const struct backing *b)
{
	return is_nobody_elses(i->client) && !i->writers && !i->recalling && i->backing == b && backing_is_current(i);
}

/* The lock is held, and given up while the cache looks at the file. */
static int passed_begin(struct inode *i)
{
	struct backing *b = backing_get(i);
	struct passed *p = NULL;
	int fd = -ENOENT;

	if (!b || !may_begin(i, b)) {
		pthread_mutex_unlock(&i->lock);
		backing_put(b);
		pthread_mutex_lock(&i->lock);
		return -ENOENT;
	}
	pthread_mutex_unlock(&i->lock);
	fd = backing_whole(b);
	p = fd < 0 ? NULL : calloc(1, sizeof(*p));
	pthread_mutex_lock(&i->lock);
	if (p && !i->passed && may_begin(i, b)) {
		*p = (struct passed){ .inode = i, .backing = b, .fd = fd, .version = b->version, .recalls = i->recalls };
		i->passed = p;
		return 0;
	}
	pthread_mutex_unlock(&i->lock);
	free(p);
	backing_put(b);
	if (fd < 0)
		backing_complete(i, 0);
	pthread_mutex_lock(&i->lock);
	return i->passed ? 0 : -ENOENT;
}

/* ---- Before it ---- */

/* The lock is held. */
static bool is_due(struct inode *i)
{
	const struct backing *b = i->backing;

	return b && !i->opens && !i->passed && i->pages.read.to > 0 && atomic_load(&i->client->passes) && may_begin(i, b) &&
	       backing_is_complete(b);
}

bool passed_is_due(struct inode *i)
{
	LOCKED(&i->lock);
	return is_due(i);
}

/* Who opens it meanwhile, to write, learns from the removals that pages have left under his hands. */
void passed_prepare(struct inode *i)
{
	bool due;

	pthread_mutex_lock(&i->lock);
	due = is_due(i);
	if (due) {
		i->pages.read = NO_PAGES;
		pages_removal(i);
	}
	pthread_mutex_unlock(&i->lock);
	if (!due)
		return;
	pages_forget(i->client, i->number, 0, UINT64_MAX);
	pages_removal(i);
}

/* ---- Copying ---- */

static bool is_settled(const struct inode *i)
{
	const struct passed *p = i->passed;

	return !p->copying && !p->failed && p->recalls == i->recalls;
}

bool passed_settle(struct inode *i)
{
	struct passed *p = i->passed;

	if (!p || p->copying)
		return false;
	if (!is_settled(i)) {
		if (inode_has_unstored(i) || !i->attr_known || p->version != i->attr.version)
			return false;
		p->recalls = i->recalls;
		p->failed = false;
	}
	return true;
}

/* The lock is held, and the grant.  On a relaxed volume nobody is told of a newer version but who opens the file. */
static bool shows_all(struct inode *i)
{
	bool told = !i->client->volume.relaxed || lease_held(i->client) || i->grant == WIRE__GRANT__GRANT_WRITE;

	return (told || i->passed->version == i->attr.version) && passed_settle(i);
}

/* Without the lock.  Somebody reads it, besides who has a reference to change it. */
static bool is_read(struct inode *i, const struct passed *p)
{
	LOCKED(&i->lock);
	return p->refs > 1;
}

/* Without the lock; `copying` is set.  -ESTALE: it has another version by now; -ECANCELED: nobody wants it any more. */
static int copy(struct inode *i, struct passed *p, uint64_t version, uint64_t from, uint64_t to, uint64_t size)
{
	uint8_t *buffer = client_buffer_take(i->client);
	int r = buffer ? backing_detach(p->backing) : -ENOMEM;

	for (; r == 0 && from < to; from += COPY_BYTES) {
		size_t n = to - from < COPY_BYTES ? to - from : COPY_BYTES;

		r = is_read(i, p) ? read_version(i, version, from, n, buffer) : -ECANCELED;
		if (r == 0)
			r = backing_patch(p->backing, from, buffer, n);
	}
	if (r == 0)
		r = backing_cut(p->backing, size);
	if (buffer)
		client_buffer_give(i->client, buffer);
	return r;
}

/* The lock is held, and given up meanwhile; somebody has a reference. */
static int copy_now(struct inode *i, uint64_t from, uint64_t to)
{
	struct passed *p = i->passed;
	uint64_t version = i->attr.version, recalls = i->recalls, size = i->attr.size;
	int r;

	p->copying = true;
	pthread_mutex_unlock(&i->lock);
	r = copy(i, p, version, from, to < size ? to : size, size);
	pthread_mutex_lock(&i->lock);
	p->copying = false;
	pthread_cond_broadcast(&i->changed);
	if (r == 0 && (i->recalls != recalls || i->attr.version != version || inode_has_unstored(i)))
		r = -ESTALE;
	if (r < 0) {
		p->version = 0;
		p->recalls = i->recalls - 1; /* not settled */
		return r;
	}
	p->failed = false;
	p->version = version;
	p->recalls = recalls;
	return 0;
}

/* The lock is held, and given up meanwhile; somebody has a reference.  Until it shows what a read would. */
static int refresh(struct inode *i)
{
	struct passed *p = i->passed;

	for (int tries = 0; tries < TRIES; tries++) {
		int r;

		while (p->copying)
			pthread_cond_wait(&i->changed, &i->lock);
		r = inode_acquire(i, false, NO_PAGES);
		if (r < 0)
			return r;
		if (p->copying)
			continue;
		if (inode_has_unstored(i) && !is_settled(i)) {
			pthread_mutex_unlock(&i->lock);
			r = inode_flush(i);
			pthread_mutex_lock(&i->lock);
			if (r < 0)
				return r;
			continue;
		}
		if (shows_all(i))
			return 0;
		r = window_cover(i, 0, 1);
		if (r == 0 && !inode_has_unstored(i) && !p->copying)
			r = copy_now(i, 0, UINT64_MAX);
		if (r < 0 && r != -ESTALE)
			return r;
	}
	return -EAGAIN;
}

/* ---- The thread ---- */

/* The lock is held. */
static void refresh_later(struct inode *i)
{
	struct refresher *f = &i->client->refresher;
	struct passed *p = i->passed;

	if (p->queued)
		return;
	inode_ref(i);
	pthread_mutex_lock(&f->lock);
	p->queued = f->started && !f->stopping;
	if (p->queued) {
		p->refs++;
		p->next = NULL;
		*f->end = p;
		f->end = &p->next;
		pthread_cond_signal(&f->work);
	}
	pthread_mutex_unlock(&f->lock);
	if (!p->queued)
		inode_unref(i); /* not the last one: the caller has the lock */
}

static struct passed *refresher_next(struct refresher *f)
{
	struct passed *p;
	LOCKED(&f->lock);

	while (!f->first && !f->stopping)
		pthread_cond_wait(&f->work, &f->lock);
	p = f->first;
	if (p) {
		f->first = p->next;
		if (!f->first)
			f->end = &f->first;
	}
	return p;
}

/* False: it is to stop. */
static bool refresher_pause(struct refresher *f, int64_t ns)
{
	int64_t until = monotonic_ns() + ns;
	LOCKED(&f->lock);

	while (!f->stopping && monotonic_ns() < until)
		cond_wait_until(&f->work, &f->lock, until);
	return !f->stopping;
}

static void *refresher_run(void *context)
{
	struct client *c = context;
	struct passed *p;

	while ((p = refresher_next(&c->refresher))) {
		struct inode *i = p->inode;
		bool goes_on = refresher_pause(&c->refresher, REFRESH_NS);
		int r = 0;

		pthread_mutex_lock(&i->lock);
		p->queued = false;
		p->refreshing = true;
		if (p->refs > 1 && goes_on)
			r = refresh(i);
		p->refreshing = false;
		p->stuck = r < 0;
		pthread_cond_broadcast(&i->changed);
		if (r < 0 && r != -ESTALE && p->refs > 1) {
			log_warn("volume %s, inode %lu: it is open, and what others have changed cannot be shown: %s; trying "
				 "again",
				 c->volume.name, (unsigned long)i->number, strerror(-r));
			refresh_later(i);
		}
		passed_unref_unlock(i);
		inode_unref(i);
		if (r < 0)
			refresher_pause(&c->refresher, RETRY_NS);
	}
	return NULL;
}

int refresher_start(struct client *c)
{
	struct refresher *f = &c->refresher;
	int r;

	pthread_mutex_init(&f->lock, NULL);
	cond_init_monotonic(&f->work);
	f->end = &f->first;
	r = -pthread_create(&f->thread, NULL, refresher_run, c);
	f->started = r == 0;
	return r;
}

void refresher_stop(struct client *c)
{
	struct refresher *f = &c->refresher;

	if (!f->started)
		return;
	pthread_mutex_lock(&f->lock);
	f->stopping = true;
	pthread_cond_broadcast(&f->work);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->work);
	f->started = false;
}

/* ---- Changes ---- */

/* It is in doubt since a recall, or since the server was restarted; those who have it open here would see the change late.  Not while a
 * recall goes on: that waits for pages which whoever is here may hold, and a refresh for it.  Nor while it cannot be refreshed (a full
 * disk, say): each write would wait in vain. */
void passed_await(struct inode *i)
{
	int64_t until = monotonic_ns() + AWAIT_NS;

	while (i->passed && !is_settled(i) && !i->recalling && !i->passed->stuck &&
	       (i->passed->queued || i->passed->refreshing) && monotonic_ns() < until)
		cond_wait_until(&i->changed, &i->lock, until);
}

void passed_write(struct inode *i, bool settled, uint64_t offset, const void *bytes, size_t size)
{
	struct passed *p = i->passed;
	int r;

	if (!p || size == 0)
		return;
	r = settled ? backing_detach(p->backing) : -EAGAIN;
	if (r == 0 && !backing_is_alone(p->backing))
		r = -EAGAIN;
	if (r == 0)
		r = backing_patch(p->backing, offset, bytes, size);
	p->version = 0;
	if (r == 0)
		return;
	p->failed = true;
	refresh_later(i);
}

void passed_doubt(struct inode *i)
{
	struct passed *p = i->passed;

	if (!p)
		return;
	if (is_settled(i))
		p->version = inode_has_unstored(i) ? 0 : i->attr.version;
	refresh_later(i);
}

void passed_lost(struct inode *i)
{
	if (!i->passed)
		return;
	i->passed->version = 0;
	i->passed->failed = true;
	refresh_later(i);
}

/* The lock is held.  What is left of the content is as it was, stored or not. */
static int cut_now(struct inode *i)
{
	struct passed *p = i->passed;
	int r = backing_detach(p->backing);

	if (r == 0 && inode_has_unstored(i) && !backing_is_alone(p->backing))
		r = -EAGAIN;
	p->version = 0;
	return r < 0 ? r : backing_cut(p->backing, inode_size(i));
}

void passed_changed(struct inode *i, uint64_t from, uint64_t to)
{
	struct passed *p;
	int r = -EAGAIN;

	pthread_mutex_lock(&i->lock);
	p = i->passed;
	if (!p) {
		pthread_mutex_unlock(&i->lock);
		return;
	}
	p->refs++;
	if (is_settled(i) && from == to)
		r = cut_now(i);
	else if (is_settled(i) && !inode_has_unstored(i))
		r = copy_now(i, from, to);
	if (r < 0) {
		p->failed = true;
		p->version = 0;
		refresh_later(i);
		passed_await(i);
	}
	passed_unref_unlock(i);
}

/* ---- What the mount calls ---- */

void client_passing(struct client *c, bool possible) { atomic_store(&c->passes, possible); }

int client_pass(struct client_file *f, int *fd)
{
	struct inode *i = f->inode;
	int r = 0;

	if (!i->client->cache || f->writes)
		return -ENOENT;
	backing_ready(i);
	pthread_mutex_lock(&i->lock);
	if (!i->passed)
		r = passed_begin(i);
	if (r < 0) {
		pthread_mutex_unlock(&i->lock);
		return r;
	}
	i->passed->refs++;
	r = inode_acquire(i, false, NO_PAGES);
	if (r == 0 && !shows_all(i)) {
		refresh_later(i);
		r = -EAGAIN;
	}
	if (r < 0) {
		passed_unref_unlock(i);
		return r;
	}
	*fd = i->passed->fd;
	pthread_mutex_unlock(&i->lock);
	return 0;
}

void client_pass_end(struct client_file *f)
{
	pthread_mutex_lock(&f->inode->lock);
	passed_unref_unlock(f->inode);
}
