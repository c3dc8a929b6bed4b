#include "client/pages.h"
#include <errno.h>
#include "base/cleanup.h"
#include "client/state.h"

#define HOLD_NS (20 * NS_PER_MS)
/* The kernel writes nothing back while a call that sets the size is under way.  A program that stores through a mapping may wait for that
 * with the last page locked, and whoever tells the size waits for that page: so this wait has to end. */
#define CUT_MOST_NS (100 * NS_PER_MS)
#define STRETCH_LEAST (1u << 20) /* not below the kernel's largest folio: it is locked as a whole */
#define STRETCHES_MOST 256u      /* of a large file: each is a call to the kernel */
#define AGAIN_MOST 256u
#define PAGE 4096u

/* On the stack of who waits. */
struct pages_request {
	struct pages_request *next;
	struct stretch wanted;
	bool admitted;
};

void pages_forget(struct client *c, uint64_t inode, uint64_t from, uint64_t to)
{
	struct lease *l = &c->lease;

	pthread_rwlock_rdlock(&l->events_lock);
	if (l->events.forget)
		l->events.forget(l->events.context, inode, from, to);
	pthread_rwlock_unlock(&l->events_lock);
}

/* ---- The end of the file ---- */

void pages_extend(struct inode *i)
{
	struct lease *l = &i->client->lease;
	uint64_t size;

	while (i->pages.extending)
		pthread_cond_wait(&i->changed, &i->lock);
	size = inode_size(i);
	/* Without a grant the size is not known; under the lease of the volume nobody else has changed it. */
	if (i->grant == WIRE__GRANT__GRANT_NONE || lease_held(i->client) || i->pages.cutting || !size)
		return;
	i->pages.extending = true;
	pthread_mutex_unlock(&i->lock);
	pthread_rwlock_rdlock(&l->events_lock);
	if (l->events.extend)
		l->events.extend(l->events.context, i->number, size);
	pthread_rwlock_unlock(&l->events_lock);
	pthread_mutex_lock(&i->lock);
	i->pages.extending = false;
	pthread_cond_broadcast(&i->changed);
}

void pages_cut_begin(struct inode *i)
{
	int64_t until = monotonic_ns() + CUT_MOST_NS;
	LOCKED(&i->lock);

	i->pages.cutting++;
	while (i->pages.extending && cond_wait_until(&i->changed, &i->lock, until) != -ETIMEDOUT)
		;
}

void pages_cut_end(struct inode *i)
{
	LOCKED(&i->lock);
	i->pages.cutting--;
}

/* ---- Waiting ---- */

static void again_add(struct pages *p, struct stretch s)
{
	struct stretch *last;

	if (p->again_count < AGAIN_MOST) {
		p->again[p->again_count++] = s;
		return;
	}
	last = &p->again[AGAIN_MOST - 1];
	if (s.from < last->from)
		last->from = s.from;
	if (s.to > last->to)
		last->to = s.to;
}

static void request_remove(struct pages *p, const struct pages_request *q)
{
	struct pages_request **at = &p->waiting;

	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
}

static struct stretch whole_pages(struct stretch s)
{
	return (struct stretch){ s.from / PAGE * PAGE, s.to > UINT64_MAX - PAGE ? UINT64_MAX : (s.to + PAGE - 1) / PAGE * PAGE };
}

bool pages_admit(struct inode *i, struct stretch wanted)
{
	struct pages *p = &i->pages;
	struct pages_request q = { .next = p->waiting, .wanted = whole_pages(wanted) };
	int64_t until = monotonic_ns() + HOLD_NS;

	if (wanted.to <= wanted.from)
		return true;
	p->waiting = &q;
	while (p->leaving && !q.admitted)
		/* Telling the kernel the size waits for the last page, which this request has locked. */
		if ((p->extending && q.wanted.to >= inode_size(i)) ||
		    (cond_wait_until(&i->changed, &i->lock, until) == -ETIMEDOUT && p->leaving && !q.admitted)) {
			again_add(p, q.wanted);
			q.admitted = true;
		}
	request_remove(p, &q);
	return p->leaving;
}

/* ---- Leaving ---- */

static bool stretches_touch(struct stretch a, struct stretch b) { return a.from < b.to && b.from < a.to; }

/* `end`: up to there all will be forgotten, this stretch first.  A request has pages elsewhere, too: those are forgotten again. */
static void stretch_leave(struct inode *i, struct stretch s, uint64_t end)
{
	bool any = false;

	for (struct pages_request *q = i->pages.waiting; q; q = q->next) {
		if (q->admitted || !stretches_touch(q->wanted, s))
			continue;
		if (q->wanted.from < s.from || q->wanted.to > end)
			again_add(&i->pages, q->wanted);
		any = q->admitted = true;
	}
	if (any)
		pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
	pages_forget(i->client, i->number, s.from, s.to);
	pthread_mutex_lock(&i->lock);
}

static uint64_t stretch_size(uint64_t file_size)
{
	uint64_t least = file_size / STRETCHES_MOST;

	return least <= STRETCH_LEAST ? STRETCH_LEAST : (least + STRETCH_LEAST - 1) / STRETCH_LEAST * STRETCH_LEAST;
}

void pages_leave(struct inode *i, uint64_t from)
{
	struct stretch again[AGAIN_MOST];
	struct pages *p = &i->pages;
	uint64_t size = inode_size(i), step = stretch_size(size);
	struct stretch s = { .to = from };

	p->again = again;
	p->again_count = 0;
	p->leaving = true;
	if (!from)
		p->read = NO_PAGES;
	pages_removal(i);
	pages_extend(i);
	while (s.to != UINT64_MAX) {
		s.from = s.to;
		s.to = (s.from / step + 1) * step < size ? (s.from / step + 1) * step : UINT64_MAX;
		stretch_leave(i, s, UINT64_MAX);
	}
	while (p->again_count) {
		s = again[--p->again_count];
		stretch_leave(i, s, s.to);
	}
	p->leaving = false;
	pages_removal(i);
	pthread_cond_broadcast(&i->changed);
}

/* ---- Written meanwhile ---- */

void pages_removal(struct inode *i) { atomic_fetch_add(&i->pages.removals, 1); }

void pages_note_read(struct inode *i, struct stretch s)
{
	struct stretch *all = &i->pages.read;

	if (s.to <= s.from)
		return;
	s = whole_pages(s);
	if (all->to <= all->from) {
		*all = s;
		return;
	}
	if (s.from < all->from)
		all->from = s.from;
	if (s.to > all->to)
		all->to = s.to;
}

bool pages_doubt(const struct client_file *f, struct stretch s, bool around)
{
	struct pages *p = &f->inode->pages;
	uint64_t removals = atomic_load(&p->removals);
	bool gone = around || (removals != p->written && removals != f->removals);

	/* Of those around the pages several are under way at a time, beside one of the others. */
	if (!around)
		p->written = removals;
	return gone && stretches_touch(whole_pages(s), p->read);
}
