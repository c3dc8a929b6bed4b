#include "meta/locktable.h"
#include <errno.h>
#include <stdlib.h>
#include "base/intmap.h"
#include "meta/lockranges.h"

/* A wait counts for itself, its lock, and the one that may be cut in two by it: so there is room when it is granted. */
#define WAIT_COST 3u

/* What one owner has on one file. */
struct holder {
	struct party *party;
	uint64_t owner;
	bool flock;
	struct holder *next, *before;             /* of the file */
	struct holder *party_next, *party_before; /* of the party */
	struct file *file;
	struct lock_ranges ranges;
};

/* It is in the list of its file, in the order they came, and in that of its party; once granted, in the latter alone. */
struct wait {
	struct lock lock;
	struct party *party;
	struct wait *next, *before;
	struct wait *party_next, *party_before;
	uint64_t number;
	uint64_t searched; /* the last search for a circle that came here */
	struct wait *to_search;
};

/* A session. */
struct party {
	uint64_t session;
	struct holder *holders;
	struct wait *waits, *granted;
	size_t held, count; /* locks; what counts for LOCKS_PER_SESSION */
};

struct file {
	uint64_t key;
	struct holder *holders;
	struct wait *first, *last; /* who waits */
};

struct locktable {
	struct intmap files, parties, frozen;
	uint64_t searches;
	void (*granted)(void *context, uint64_t session);
	void *context;
};

/* ---- Files and parties ---- */

static struct file *file_find(const struct locktable *t, uint64_t key) { return intmap_get(&t->files, key); }

static struct party *party_find(const struct locktable *t, uint64_t session) { return intmap_get(&t->parties, session); }

static void *map_make(struct intmap *m, uint64_t key, size_t size)
{
	void *made = intmap_get(m, key);

	if (made)
		return made;
	made = calloc(1, size);
	if (made && intmap_set(m, key, made)) {
		free(made);
		return NULL;
	}
	return made;
}

static struct file *file_make(struct locktable *t, uint64_t key)
{
	struct file *f = map_make(&t->files, key, sizeof(*f));

	if (f)
		f->key = key;
	return f;
}

static struct party *party_make(struct locktable *t, uint64_t session)
{
	struct party *p = map_make(&t->parties, session, sizeof(*p));

	if (p)
		p->session = session;
	return p;
}

static void file_settle(struct locktable *t, struct file *f)
{
	if (f->holders || f->first)
		return;
	intmap_remove(&t->files, f->key);
	free(f);
}

static void party_settle(struct locktable *t, struct party *p)
{
	if (p->count)
		return;
	intmap_remove(&t->parties, p->session);
	free(p);
}

/* ---- Holders ---- */

static bool is_holder_of(const struct holder *h, const struct lock *l)
{
	return h->party->session == l->session && h->owner == l->owner && h->flock == l->flock;
}

static struct holder *holder_find(const struct file *f, const struct lock *l)
{
	struct holder *h = f->holders;

	while (h && !is_holder_of(h, l))
		h = h->next;
	return h;
}

static struct holder *holder_make(struct file *f, struct party *p, const struct lock *l)
{
	struct holder *h = holder_find(f, l);

	if (h)
		return h;
	h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	h->party = p;
	h->owner = l->owner;
	h->flock = l->flock;
	h->file = f;
	h->next = f->holders;
	if (h->next)
		h->next->before = h;
	f->holders = h;
	h->party_next = p->holders;
	if (h->party_next)
		h->party_next->party_before = h;
	p->holders = h;
	return h;
}

/* One that has nothing is no holder. */
static void holder_settle(struct holder *h)
{
	if (h->ranges.count)
		return;
	*(h->before ? &h->before->next : &h->file->holders) = h->next;
	if (h->next)
		h->next->before = h->before;
	*(h->party_before ? &h->party_before->party_next : &h->party->holders) = h->party_next;
	if (h->party_next)
		h->party_next->party_before = h->party_before;
	free(h->ranges.items);
	free(h);
}

/* There were so many before. */
static void holder_count(struct holder *h, size_t before)
{
	h->party->held += h->ranges.count - before;
	h->party->count += h->ranges.count - before;
}

static void holder_clear(struct holder *h)
{
	size_t before = h->ranges.count;

	h->ranges.count = 0;
	holder_count(h, before);
	holder_settle(h);
}

/* The first of its ranges that is in the way of *l; NULL: none. */
static const struct lock_range *range_in_the_way(const struct holder *h, const struct lock *l)
{
	return h->flock != l->flock || is_holder_of(h, l) ? NULL : lock_ranges_conflict(&h->ranges, l);
}

static struct holder *conflict_from(struct holder *h, const struct lock *l)
{
	while (h && !range_in_the_way(h, l))
		h = h->next;
	return h;
}

static struct holder *conflict_find(const struct file *f, const struct lock *l)
{
	return f ? conflict_from(f->holders, l) : NULL;
}

bool lock_is_sound(const struct lock *l)
{
	if (l->flock && (l->start != 0 || l->end != LOCK_END_MAX))
		return false;
	return l->start <= l->end && l->end <= LOCK_END_MAX;
}

/* ---- Setting ---- */

static int holder_change(struct holder *h, const struct lock *l)
{
	struct party *p = h->party;
	size_t before = h->ranges.count;
	size_t room = p->count < LOCKS_PER_SESSION ? LOCKS_PER_SESSION - p->count : 0;
	int r = lock_ranges_set(&h->ranges, l, before + room);

	holder_count(h, before);
	return r;
}

static int lock_put(struct file *f, struct party *p, const struct lock *l)
{
	struct holder *h = l->type == LOCK_NONE ? holder_find(f, l) : holder_make(f, p, l);
	int r;

	if (!h)
		return l->type == LOCK_NONE ? 0 : -ENOMEM;
	r = holder_change(h, l);
	holder_settle(h);
	return r;
}

/* ---- Waits ---- */

static void chain_add(struct wait **first, struct wait *w)
{
	w->party_before = NULL;
	w->party_next = *first;
	if (w->party_next)
		w->party_next->party_before = w;
	*first = w;
}

static void chain_remove(struct wait **first, struct wait *w)
{
	*(w->party_before ? &w->party_before->party_next : first) = w->party_next;
	if (w->party_next)
		w->party_next->party_before = w->party_before;
}

static struct wait *wait_find(struct wait *w, uint64_t number)
{
	while (w && w->number != number)
		w = w->party_next;
	return w;
}

static int wait_add(struct file *f, struct party *p, const struct lock *l, uint64_t number)
{
	struct wait *w;

	if (p->count + WAIT_COST > LOCKS_PER_SESSION)
		return -ENOLCK;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->lock = *l;
	w->party = p;
	w->number = number;
	w->before = f->last;
	*(f->last ? &f->last->next : &f->first) = w;
	f->last = w;
	chain_add(&p->waits, w);
	p->count += WAIT_COST;
	return LOCK_RESULT_QUEUED;
}

/* From among those that wait: it then counts as one that was granted. */
static void wait_remove(struct file *f, struct wait *w)
{
	*(w->before ? &w->before->next : &f->first) = w->next;
	*(w->next ? &w->next->before : &f->last) = w->before;
	chain_remove(&w->party->waits, w);
	w->party->count -= WAIT_COST - 1;
}

static void wait_free(struct wait *w)
{
	w->party->count--;
	free(w);
}

/* Without memory it goes on waiting, until something is released again. */
static bool wait_grant(struct locktable *t, struct file *f, struct wait *w)
{
	int r;

	if (conflict_find(f, &w->lock))
		return false;
	w->party->count -= WAIT_COST - 1;
	r = lock_put(f, w->party, &w->lock);
	w->party->count += WAIT_COST - 1;
	if (r)
		return false;
	wait_remove(f, w);
	chain_add(&w->party->granted, w);
	if (t->granted)
		t->granted(t->context, w->party->session);
	return true;
}

/* A grant may release something, too: who waits to have less than it has. */
static void file_grant(struct locktable *t, struct file *f)
{
	bool again = !locktable_is_frozen(t, (uint32_t)(f->key >> 40));

	while (again) {
		struct wait *next;

		again = false;
		for (struct wait *w = f->first; w; w = next) {
			next = w->next;
			again |= wait_grant(t, f, w);
		}
	}
}

/* ---- Circles ---- */

/* What the owner waits for is to be searched, too. */
static struct wait *search_add(struct locktable *t, const struct holder *h, struct wait *to_search)
{
	for (struct wait *w = h->party->waits; w; w = w->party_next) {
		if (w->lock.flock || w->lock.owner != h->owner || w->searched == t->searches)
			continue;
		w->searched = t->searches;
		w->to_search = to_search;
		to_search = w;
	}
	return to_search;
}

/* Whether somebody who is in the way of *l waits, over any number of others, for its owner. */
static bool closes_a_circle(struct locktable *t, const struct file *f, const struct lock *l)
{
	struct wait *to_search = NULL;

	t->searches++;
	for (struct holder *h = conflict_find(f, l); h; h = conflict_from(h->next, l))
		to_search = search_add(t, h, to_search);
	while (to_search) {
		const struct lock *wanted = &to_search->lock;
		const struct file *there = file_find(t, wanted->file);

		to_search = to_search->to_search;
		for (struct holder *h = conflict_find(there, wanted); h; h = conflict_from(h->next, wanted)) {
			if (is_holder_of(h, l))
				return true;
			to_search = search_add(t, h, to_search);
		}
	}
	return false;
}

/* ---- The table ---- */

struct locktable *locktable_new(void (*granted)(void *context, uint64_t session), void *context)
{
	struct locktable *t = calloc(1, sizeof(*t));

	if (t) {
		t->granted = granted;
		t->context = context;
	}
	return t;
}

static void waits_free(struct wait *w)
{
	while (w) {
		struct wait *next = w->party_next;

		free(w);
		w = next;
	}
}

void locktable_free(struct locktable *t)
{
	uint64_t key;
	void *value;

	if (!t)
		return;
	for (size_t i = 0; intmap_next(&t->parties, &i, &key, &value);) {
		struct party *p = value;

		while (p->holders)
			holder_clear(p->holders);
		waits_free(p->waits);
		waits_free(p->granted);
		free(p);
	}
	for (size_t i = 0; intmap_next(&t->files, &i, &key, &value);)
		free(value);
	intmap_free(&t->files);
	intmap_free(&t->parties);
	intmap_free(&t->frozen);
	free(t);
}

static int lock_try(struct locktable *t, struct file *f, struct party *p, const struct lock *l, uint64_t wait)
{
	struct holder *old = l->flock ? holder_find(f, l) : NULL;

	if (l->type == LOCK_NONE)
		return lock_put(f, p, l);
	if (old && old->ranges.items[0].type == l->type)
		return LOCK_RESULT_DONE;
	if (locktable_is_frozen(t, (uint32_t)(f->key >> 40)))
		return wait ? wait_add(f, p, l, wait) : LOCK_RESULT_FROZEN;
	if (old)
		holder_clear(old);
	if (!conflict_find(f, l))
		return lock_put(f, p, l);
	if (!wait)
		return LOCK_RESULT_BUSY;
	if (!l->flock && closes_a_circle(t, f, l))
		return LOCK_RESULT_DEADLOCK;
	return wait_add(f, p, l, wait);
}

/* What was done to the file may have made room for others, or left nothing of it. */
static void file_done(struct locktable *t, struct file *f)
{
	file_grant(t, f);
	file_settle(t, f);
}

int locktable_set(struct locktable *t, const struct lock *l, uint64_t wait)
{
	struct party *p = party_make(t, l->session);
	struct wait *known = p && wait ? wait_find(p->granted, wait) : NULL;
	struct file *f;
	int r = -ENOMEM;

	if (p && wait && wait_find(p->waits, wait))
		return LOCK_RESULT_QUEUED;
	if (known) {
		chain_remove(&p->granted, known);
		wait_free(known);
	}
	f = p ? file_make(t, l->file) : NULL;
	if (f) {
		r = lock_try(t, f, p, l, wait);
		file_done(t, f);
	}
	if (p)
		party_settle(t, p);
	return r;
}

bool locktable_test(const struct locktable *t, const struct lock *l, struct lock *found)
{
	const struct holder *h = conflict_find(file_find(t, l->file), l);
	const struct lock_range *r = h ? range_in_the_way(h, l) : NULL;

	if (r)
		*found = (struct lock){ l->file, h->party->session, h->owner, r->handle, r->start, r->end,
					r->pid,  h->flock,          r->type };
	return !r;
}

int locktable_note(struct locktable *t, const struct lock *l)
{
	struct party *p = party_make(t, l->session);
	struct file *f = p ? file_make(t, l->file) : NULL;
	int r = f ? lock_put(f, p, l) : -ENOMEM;

	if (f)
		file_done(t, f);
	if (p)
		party_settle(t, p);
	return r;
}

int locktable_reclaim(struct locktable *t, const struct lock *l)
{
	return conflict_find(file_find(t, l->file), l) ? LOCK_RESULT_BUSY : locktable_note(t, l);
}

/* One that was granted may have been released since by another thread of its process: then it is not. */
int locktable_cancel(struct locktable *t, uint64_t session, uint64_t wait)
{
	struct party *p = party_find(t, session);
	struct wait *w = p ? wait_find(p->waits, wait) : NULL;
	int r = LOCK_RESULT_BUSY;

	if (w) {
		struct file *f = file_find(t, w->lock.file);

		wait_remove(f, w);
		file_settle(t, f);
	} else {
		w = p ? wait_find(p->granted, wait) : NULL;
		if (!w)
			return LOCK_RESULT_BUSY;
		chain_remove(&p->granted, w);
		r = locktable_set(t, &w->lock, 0) == LOCK_RESULT_DONE ? LOCK_RESULT_DONE : LOCK_RESULT_BUSY;
	}
	wait_free(w);
	party_settle(t, p);
	return r;
}

/* ---- Many at once ---- */

void locktable_drop_owner(struct locktable *t, uint64_t file, uint64_t session, uint64_t owner)
{
	struct file *f = file_find(t, file);
	struct holder *h = f ? holder_find(f, &(struct lock){ .session = session, .owner = owner }) : NULL;
	struct party *p = h ? h->party : NULL;

	if (!h)
		return;
	holder_clear(h);
	file_done(t, f);
	party_settle(t, p);
}

static void holder_drop_handle(struct holder *h, uint64_t handle)
{
	size_t before = h->ranges.count;

	lock_ranges_drop_handle(&h->ranges, handle);
	holder_count(h, before);
	holder_settle(h);
}

void locktable_drop_handle(struct locktable *t, uint64_t file, uint64_t session, uint64_t handle)
{
	struct file *f = file_find(t, file);
	struct party *p = party_find(t, session);
	struct holder *next;

	if (!f || !p)
		return;
	for (struct holder *h = f->holders; h; h = next) {
		next = h->next;
		if (h->party == p)
			holder_drop_handle(h, handle);
	}
	file_done(t, f);
	party_settle(t, p);
}

/* The waits go first, lest they be granted when the locks go; and all locks on a file before somebody else is granted any. */
void locktable_drop_session(struct locktable *t, uint64_t session)
{
	struct party *p = party_find(t, session);
	struct wait *w;

	if (!p)
		return;
	while ((w = p->waits)) {
		struct file *f = file_find(t, w->lock.file);

		wait_remove(f, w);
		wait_free(w);
		file_settle(t, f);
	}
	while ((w = p->granted)) {
		chain_remove(&p->granted, w);
		wait_free(w);
	}
	while (p->holders) {
		struct file *f = p->holders->file;
		struct holder *next;

		for (struct holder *h = f->holders; h; h = next) {
			next = h->next;
			if (h->party == p)
				holder_clear(h);
		}
		file_done(t, f);
	}
	party_settle(t, p);
}

bool locktable_owns(const struct locktable *t, uint64_t file, uint64_t session, uint64_t owner)
{
	const struct file *f = file_find(t, file);

	return f && holder_find(f, &(struct lock){ .session = session, .owner = owner });
}

size_t locktable_held(const struct locktable *t, uint64_t session)
{
	const struct party *p = party_find(t, session);

	return p ? p->held : 0;
}

size_t locktable_granted(const struct locktable *t, uint64_t session, uint64_t *out, size_t most)
{
	const struct party *p = party_find(t, session);
	size_t count = 0;

	for (const struct wait *w = p ? p->granted : NULL; w && count < most; w = w->party_next)
		out[count++] = w->number;
	return count;
}

size_t locktable_list(const struct locktable *t, uint64_t session, struct lock *out, size_t most)
{
	const struct party *p = party_find(t, session);
	size_t count = 0;

	for (const struct holder *h = p ? p->holders : NULL; h; h = h->party_next)
		for (size_t i = 0; i < h->ranges.count && count < most; i++) {
			const struct lock_range *r = &h->ranges.items[i];

			out[count++] = (struct lock){ h->file->key, session, h->owner, r->handle, r->start,
						      r->end,       r->pid,  h->flock, r->type };
		}
	return count;
}

/* ---- Freezing ---- */

int locktable_freeze(struct locktable *t, uint32_t volume) { return intmap_set(&t->frozen, volume, t); }

bool locktable_is_frozen(const struct locktable *t, uint32_t volume) { return t->frozen.used && intmap_get(&t->frozen, volume); }

/* A file that has somebody to be granted a lock has one afterwards: the map does not change. */
static void grant_all(struct locktable *t)
{
	uint64_t key;
	void *value;

	for (size_t i = 0; intmap_next(&t->files, &i, &key, &value);)
		file_grant(t, value);
}

void locktable_thaw(struct locktable *t, uint32_t volume)
{
	if (intmap_remove(&t->frozen, volume))
		grant_all(t);
}

void locktable_thaw_all(struct locktable *t)
{
	intmap_free(&t->frozen);
	grant_all(t);
}
