#include "meta/locktable.h"
#include <errno.h>
#include <stdlib.h>
#include "base/intmap.h"

/* A wait counts for itself, its lock, and the one that may be cut in two by it: so there is room when it is granted. */
#define WAIT_COST 3u

/* What an owner holds, or waits for.  Locks and waits are in two lists each: of their file, in the order they came, and
 * of their party.  A wait that was granted is in the party's list alone. */
struct node {
	struct lock lock;
	struct party *party;
	struct node *next, *before;             /* of the file */
	struct node *party_next, *party_before; /* of the party */
	uint64_t wait;                          /* its number; 0: a lock */
	uint64_t searched;                      /* the last search for a circle that came here */
	struct node *to_search;
};

struct list {
	struct node *first, *last;
};

/* A session. */
struct party {
	uint64_t session;
	struct node *locks, *waits, *granted;
	size_t held, count; /* locks; what counts for LOCKS_PER_SESSION */
};

struct file {
	uint64_t key;
	struct list locks, waits;
};

struct locktable {
	struct intmap files, parties, frozen;
	uint64_t searches;
	void (*granted)(void *context, uint64_t session);
	void *context;
};

/* ---- Lists ---- */

static void list_add(struct list *l, struct node *n)
{
	n->next = NULL;
	n->before = l->last;
	*(l->last ? &l->last->next : &l->first) = n;
	l->last = n;
}

static void list_remove(struct list *l, struct node *n)
{
	*(n->before ? &n->before->next : &l->first) = n->next;
	*(n->next ? &n->next->before : &l->last) = n->before;
}

static void chain_add(struct node **first, struct node *n)
{
	n->party_before = NULL;
	n->party_next = *first;
	if (n->party_next)
		n->party_next->party_before = n;
	*first = n;
}

static void chain_remove(struct node **first, struct node *n)
{
	*(n->party_before ? &n->party_before->party_next : first) = n->party_next;
	if (n->party_next)
		n->party_next->party_before = n->party_before;
}

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
	if (f->locks.first || f->waits.first)
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

/* ---- Locks ---- */

bool lock_is_sound(const struct lock *l)
{
	if (l->flock && (l->start != 0 || l->end != LOCK_END_MAX))
		return false;
	return l->start <= l->end && l->end <= LOCK_END_MAX;
}

static bool same_owner(const struct lock *a, const struct lock *b)
{
	return a->session == b->session && a->owner == b->owner && a->flock == b->flock;
}

static bool overlap(const struct lock *a, const struct lock *b) { return a->start <= b->end && b->start <= a->end; }

static bool conflict(const struct lock *a, const struct lock *b)
{
	return a->flock == b->flock && overlap(a, b) && (a->type == LOCK_EXCLUSIVE || b->type == LOCK_EXCLUSIVE) &&
	       !same_owner(a, b);
}

static struct node *conflict_from(struct node *n, const struct lock *l)
{
	while (n && !conflict(&n->lock, l))
		n = n->next;
	return n;
}

static struct node *conflict_find(const struct file *f, const struct lock *l)
{
	return f ? conflict_from(f->locks.first, l) : NULL;
}

static void lock_add(struct file *f, struct party *p, struct node *n, const struct lock *l)
{
	n->lock = *l;
	n->party = p;
	n->wait = 0;
	list_add(&f->locks, n);
	chain_add(&p->locks, n);
	p->held++;
	p->count++;
}

static void lock_remove(struct file *f, struct node *n)
{
	list_remove(&f->locks, n);
	chain_remove(&n->party->locks, n);
	n->party->held--;
	n->party->count--;
	free(n);
}

/* ---- Setting ---- */

/* What the owner has in the range goes.  `spare` is for the one lock that may be cut in two. */
static void range_clear(struct file *f, const struct lock *l, struct node *spare)
{
	struct node *next;

	for (struct node *n = f->locks.first; n; n = next) {
		struct lock before = n->lock;

		next = n->next;
		if (!same_owner(&n->lock, l) || !overlap(&n->lock, l))
			continue;
		if (before.start < l->start)
			n->lock.end = l->start - 1;
		if (before.end > l->end && before.start < l->start) {
			before.start = l->end + 1;
			lock_add(f, n->party, spare, &before);
		} else if (before.end > l->end) {
			n->lock.start = l->end + 1;
		} else if (before.start >= l->start) {
			lock_remove(f, n);
		}
	}
}

static bool is_split_by(const struct file *f, const struct lock *l)
{
	for (const struct node *n = f->locks.first; n; n = n->next)
		if (same_owner(&n->lock, l) && n->lock.start < l->start && n->lock.end > l->end)
			return true;
	return false;
}

/* Takes in the neighbours it continues. */
static void range_join(struct file *f, struct lock *l)
{
	struct node *next;

	for (struct node *n = f->locks.first; n; n = next) {
		next = n->next;
		if (!same_owner(&n->lock, l) || n->lock.type != l->type || n->lock.handle != l->handle)
			continue;
		if (n->lock.end + 1 == l->start)
			l->start = n->lock.start;
		else if (l->end + 1 == n->lock.start)
			l->end = n->lock.end;
		else
			continue;
		lock_remove(f, n);
	}
}

static int range_put(struct file *f, struct party *p, const struct lock *l)
{
	bool split = is_split_by(f, l), adds = l->type != LOCK_NONE;
	struct node *cut, *made;
	struct lock whole = *l;

	if ((split || adds) && p->count + split + adds > LOCKS_PER_SESSION)
		return -ENOLCK;
	cut = split ? calloc(1, sizeof(*cut)) : NULL;
	made = adds ? calloc(1, sizeof(*made)) : NULL;
	if ((split && !cut) || (adds && !made)) {
		free(cut);
		free(made);
		return -ENOMEM;
	}
	range_clear(f, l, cut);
	if (made) {
		range_join(f, &whole);
		lock_add(f, p, made, &whole);
	}
	return 0;
}

/* A lock of the owner; of a flock there is one at most. */
static struct node *owned_find(const struct file *f, const struct lock *l)
{
	struct node *n = f->locks.first;

	while (n && !same_owner(&n->lock, l))
		n = n->next;
	return n;
}

/* The old one has gone before this. */
static int flock_put(struct file *f, struct party *p, const struct lock *l)
{
	struct node *n = owned_find(f, l);

	if (n && l->type == LOCK_NONE)
		lock_remove(f, n);
	else if (n)
		n->lock = *l;
	if (n || l->type == LOCK_NONE)
		return 0;
	if (p->count >= LOCKS_PER_SESSION)
		return -ENOLCK;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	lock_add(f, p, n, l);
	return 0;
}

static int lock_put(struct file *f, struct party *p, const struct lock *l)
{
	return l->flock ? flock_put(f, p, l) : range_put(f, p, l);
}

/* ---- Granting ---- */

static struct node *wait_find(struct node *n, uint64_t wait)
{
	while (n && n->wait != wait)
		n = n->party_next;
	return n;
}

static void wait_remove(struct file *f, struct node *n)
{
	list_remove(&f->waits, n);
	chain_remove(&n->party->waits, n);
	n->party->count -= WAIT_COST - 1;
}

/* Of one that was granted; one that still waits costs WAIT_COST. */
static void wait_free(struct party *p, struct node *n)
{
	p->count--;
	free(n);
}

/* Without memory it goes on waiting, until something is released again. */
static bool wait_grant(struct locktable *t, struct file *f, struct node *n)
{
	int r;

	if (conflict_find(f, &n->lock))
		return false;
	n->party->count -= WAIT_COST - 1;
	r = lock_put(f, n->party, &n->lock);
	n->party->count += WAIT_COST - 1;
	if (r)
		return false;
	wait_remove(f, n);
	chain_add(&n->party->granted, n);
	if (t->granted)
		t->granted(t->context, n->party->session);
	return true;
}

/* A grant may release something, too: who waits to have less than it has. */
static void file_grant(struct locktable *t, struct file *f)
{
	bool again = !locktable_is_frozen(t, (uint32_t)(f->key >> 40));

	while (again) {
		struct node *next;

		again = false;
		for (struct node *n = f->waits.first; n; n = next) {
			next = n->next;
			again |= wait_grant(t, f, n);
		}
	}
}

/* ---- Circles ---- */

/* What the owner of `held` waits for is to be searched, too. */
static struct node *search_add(struct locktable *t, const struct node *held, struct node *to_search)
{
	for (struct node *n = held->party->waits; n; n = n->party_next) {
		if (n->lock.flock || n->lock.owner != held->lock.owner || n->searched == t->searches)
			continue;
		n->searched = t->searches;
		n->to_search = to_search;
		to_search = n;
	}
	return to_search;
}

/* Whether somebody who is in the way of *l waits, over any number of others, for its owner. */
static bool closes_a_circle(struct locktable *t, const struct file *f, const struct lock *l)
{
	struct node *to_search = NULL;

	t->searches++;
	for (struct node *n = conflict_find(f, l); n; n = conflict_from(n->next, l))
		to_search = search_add(t, n, to_search);
	while (to_search) {
		const struct lock *wanted = &to_search->lock;
		const struct file *there = file_find(t, wanted->file);

		to_search = to_search->to_search;
		for (struct node *n = conflict_find(there, wanted); n; n = conflict_from(n->next, wanted)) {
			if (same_owner(&n->lock, l))
				return true;
			to_search = search_add(t, n, to_search);
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

void locktable_free(struct locktable *t)
{
	uint64_t key;
	void *value;

	if (!t)
		return;
	for (size_t i = 0; intmap_next(&t->parties, &i, &key, &value);) {
		struct party *p = value;
		struct node *lists[] = { p->locks, p->waits, p->granted };

		for (int k = 0; k < 3; k++)
			for (struct node *n = lists[k], *next; n; n = next) {
				next = n->party_next;
				free(n);
			}
		free(p);
	}
	for (size_t i = 0; intmap_next(&t->files, &i, &key, &value);)
		free(value);
	intmap_free(&t->files);
	intmap_free(&t->parties);
	intmap_free(&t->frozen);
	free(t);
}

static int enqueue(struct file *f, struct party *p, const struct lock *l, uint64_t wait)
{
	struct node *n;

	if (p->count + WAIT_COST > LOCKS_PER_SESSION)
		return -ENOLCK;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	n->lock = *l;
	n->party = p;
	n->wait = wait;
	list_add(&f->waits, n);
	chain_add(&p->waits, n);
	p->count += WAIT_COST;
	return LOCK_RESULT_QUEUED;
}

static int lock_try(struct locktable *t, struct file *f, struct party *p, const struct lock *l, uint64_t wait)
{
	struct node *old = l->flock ? owned_find(f, l) : NULL;

	if (l->type == LOCK_NONE)
		return lock_put(f, p, l);
	if (old && old->lock.type == l->type)
		return LOCK_RESULT_DONE;
	if (locktable_is_frozen(t, (uint32_t)(f->key >> 40)))
		return wait ? enqueue(f, p, l, wait) : LOCK_RESULT_FROZEN;
	if (old)
		lock_remove(f, old);
	if (!conflict_find(f, l))
		return lock_put(f, p, l);
	if (!wait)
		return LOCK_RESULT_BUSY;
	if (!l->flock && closes_a_circle(t, f, l))
		return LOCK_RESULT_DEADLOCK;
	return enqueue(f, p, l, wait);
}

int locktable_set(struct locktable *t, const struct lock *l, uint64_t wait)
{
	struct party *p = party_make(t, l->session);
	struct node *known = p && wait ? wait_find(p->granted, wait) : NULL;
	struct file *f;
	int r = -ENOMEM;

	if (p && wait && wait_find(p->waits, wait))
		return LOCK_RESULT_QUEUED;
	if (known) {
		chain_remove(&p->granted, known);
		wait_free(p, known);
	}
	f = p ? file_make(t, l->file) : NULL;
	if (f) {
		r = lock_try(t, f, p, l, wait);
		file_grant(t, f);
		file_settle(t, f);
	}
	if (p)
		party_settle(t, p);
	return r;
}

bool locktable_test(const struct locktable *t, const struct lock *l, struct lock *found)
{
	const struct node *n = conflict_find(file_find(t, l->file), l);

	if (n)
		*found = n->lock;
	return !n;
}

static int put_new(struct locktable *t, const struct lock *l)
{
	struct party *p = party_make(t, l->session);
	struct file *f = p ? file_make(t, l->file) : NULL;
	int r = f ? lock_put(f, p, l) : -ENOMEM;

	if (f) {
		file_grant(t, f);
		file_settle(t, f);
	}
	if (p)
		party_settle(t, p);
	return r;
}

int locktable_note(struct locktable *t, const struct lock *l) { return put_new(t, l); }

int locktable_reclaim(struct locktable *t, const struct lock *l)
{
	return conflict_find(file_find(t, l->file), l) ? LOCK_RESULT_BUSY : put_new(t, l);
}

/* One that was granted may have been released since by another thread of its process: then it is not. */
int locktable_cancel(struct locktable *t, uint64_t session, uint64_t wait)
{
	struct party *p = party_find(t, session);
	struct node *n = p ? wait_find(p->waits, wait) : NULL;
	int r = LOCK_RESULT_BUSY;

	if (n) {
		struct file *f = file_find(t, n->lock.file);

		wait_remove(f, n);
		file_settle(t, f);
	} else {
		n = p ? wait_find(p->granted, wait) : NULL;
		if (!n)
			return LOCK_RESULT_BUSY;
		chain_remove(&p->granted, n);
		r = locktable_set(t, &n->lock, 0) == LOCK_RESULT_DONE ? LOCK_RESULT_DONE : LOCK_RESULT_BUSY;
	}
	wait_free(p, n);
	party_settle(t, p);
	return r;
}

/* ---- Many at once ---- */

static void file_drop(struct locktable *t, struct file *f, bool (*matches)(const struct lock *l, const struct lock *like),
		      const struct lock *like)
{
	struct node *next;

	if (!f)
		return;
	for (struct node *n = f->locks.first; n; n = next) {
		struct party *p = n->party;

		next = n->next;
		if (!matches(&n->lock, like))
			continue;
		lock_remove(f, n);
		party_settle(t, p);
	}
	file_grant(t, f);
	file_settle(t, f);
}

static bool is_of_handle(const struct lock *l, const struct lock *like)
{
	return l->session == like->session && l->handle == like->handle;
}

static bool is_of_session(const struct lock *l, const struct lock *like) { return l->session == like->session; }

void locktable_drop_owner(struct locktable *t, uint64_t file, uint64_t session, uint64_t owner)
{
	file_drop(t, file_find(t, file), same_owner, &(struct lock){ .session = session, .owner = owner });
}

void locktable_drop_handle(struct locktable *t, uint64_t file, uint64_t session, uint64_t handle)
{
	file_drop(t, file_find(t, file), is_of_handle, &(struct lock){ .session = session, .handle = handle });
}

/* Its waits first, lest they be granted when its locks go. */
void locktable_drop_session(struct locktable *t, uint64_t session)
{
	struct party *p = party_find(t, session);
	struct node *n;

	if (!p)
		return;
	while ((n = p->waits)) {
		struct file *f = file_find(t, n->lock.file);

		wait_remove(f, n);
		wait_free(p, n);
		file_settle(t, f);
	}
	while ((n = p->granted)) {
		chain_remove(&p->granted, n);
		wait_free(p, n);
	}
	p->count++; /* it stays until all are gone */
	while (p->locks)
		file_drop(t, file_find(t, p->locks->lock.file), is_of_session, &(struct lock){ .session = session });
	p->count--;
	party_settle(t, p);
}

bool locktable_owns(const struct locktable *t, uint64_t file, uint64_t session, uint64_t owner)
{
	const struct file *f = file_find(t, file);

	return f && owned_find(f, &(struct lock){ .session = session, .owner = owner });
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

	for (const struct node *n = p ? p->granted : NULL; n && count < most; n = n->party_next)
		out[count++] = n->wait;
	return count;
}

size_t locktable_list(const struct locktable *t, uint64_t session, struct lock *out, size_t most)
{
	const struct party *p = party_find(t, session);
	size_t count = 0;

	for (const struct node *n = p ? p->locks : NULL; n && count < most; n = n->party_next)
		out[count++] = n->lock;
	return count;
}

/* ---- Freezing ---- */

int locktable_freeze(struct locktable *t, uint32_t volume) { return intmap_set(&t->frozen, volume, t); }

bool locktable_is_frozen(const struct locktable *t, uint32_t volume)
{
	return t->frozen.used && intmap_get(&t->frozen, volume);
}

/* Granting takes waits off their file, never the file off the table while it has locks: the map does not change. */
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
	t->frozen = (struct intmap){ 0 };
	grant_all(t);
}
