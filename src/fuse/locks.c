/* Locks: GETLK, SETLK, SETLKW, and FLUSH, which is how the kernel tells of a close().
 *
 * Which lock goes when, and how we learn of it:
 *
 *   fcntl   with any close() of the file by its process      FLUSH, which close() waits for
 *   OFD     with the last close() of the open file           RELEASE, which nobody waits for
 *   flock   the same                                         RELEASE
 *
 * A FLUSH costs a round-trip to this process at every close().  Few files are ever locked,
 * so it is spared (FOPEN_NOFLUSH, Linux 5.16) where a file is opened for reading only, or is new and for
 * writing only, unless it had locks lately.  Locks that are set through such an open
 * file nevertheless go with its RELEASE.  What is not seen then: the close() of one of
 * several descriptors of it (dup, fork), and that closing it releases locks of its process
 * that were set through another one.
 *
 * Between the last close() and its RELEASE.  The kernel queues the RELEASE before close() returns, but another thread may be
 * slow to handle it.  A program that knows of the close() must not find the lock.  A FLUSH comes before the RELEASE, and close()
 * waits for it.  It does not tell whether it is the last one; so it marks the open file as `closing` if that may have OFD locks or
 * a flock.
 *
 * Suppose a program asks for a lock and does not want to wait, and another open file of the inode was closing before that.  If
 * the lock is refused, the request waits for the RELEASE, and asks again.  If no RELEASE comes within CLOSING_NS, the FLUSH was not
 * of the last close(), and the mark goes.  From then on requests wait for this file for CLOSING_AGAIN_NS only, until it gets another
 * lock: a daemon may hold a flock and have children that inherit the descriptor, and each child that ends closes it.
 *
 * A request that waits for a RELEASE occupies its thread.  So at most CLOSING_WAITERS do; others are refused at once.
 *
 * A SETLKW that has to wait is parked: its thread goes on, and it is answered when the client
 * says so.  An INTERRUPT ends the wait. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "fuse/handlers.h"

/* A RELEASE is there already when a request waits for it, so only a machine that is very busy takes so long to handle it.  If the
 * holder of a lock has closed one of several descriptors, the next request for that lock waits for so long in vain. */
#define CLOSING_NS (1 * NS_PER_S)
#define CLOSING_AGAIN_NS (20 * NS_PER_MS)
#define CLOSING_WAITERS 2

/* Known from before the client is asked until it was answered. */
struct parked {
	struct parked *next, *previous;
	struct session *session;
	struct reply *reply;
	uint64_t unique, ticket;
	bool interrupted;
	int refs; /* the thread that asks, and the answer to come */
};

/* ---- Parked requests ---- */

static struct parked *parked_new(struct session *s, const struct reply *r)
{
	struct parked *p = r->keep ? calloc(1, sizeof(*p)) : NULL;

	if (!p)
		return NULL;
	p->reply = r->keep(r);
	if (!p->reply) {
		free(p);
		return NULL;
	}
	p->session = s;
	p->unique = r->unique;
	p->ticket = client_lock_ticket(s->client);
	p->refs = 2;
	LOCKED(&s->locks.lock);
	p->interrupted = session_interrupt_noted(s, p->unique);
	p->next = s->locks.parked;
	if (p->next)
		p->next->previous = p;
	s->locks.parked = p;
	return p;
}

static void parked_unref(struct parked *p, int count)
{
	struct lock_requests *k = &p->session->locks;

	{
		LOCKED(&k->lock);
		p->refs -= count;
		if (p->refs)
			return;
		if (p->next)
			p->next->previous = p->previous;
		*(p->previous ? &p->previous->next : &k->parked) = p->next;
	}
	p->reply->forget(p->reply);
	free(p);
}

static void parked_done(void *context, int status)
{
	struct parked *p = context;

	reply_error(p->reply, status);
	parked_unref(p, 1);
}

static bool parked_is_interrupted(struct parked *p)
{
	LOCKED(&p->session->locks.lock);
	return p->interrupted;
}

static uint64_t interrupted_ticket(struct session *s, uint64_t unique)
{
	struct parked *p;
	LOCKED(&s->locks.lock);

	for (p = s->locks.parked; p && p->unique != unique; p = p->next)
		;
	if (!p)
		return 0;
	p->interrupted = true;
	return p->ticket;
}

void session_interrupt(struct session *s, uint64_t unique)
{
	uint64_t ticket = interrupted_ticket(s, unique);

	if (ticket)
		client_lock_cancel(s->client, ticket);
}

/* ---- Requests ---- */

static int lock_read(const struct session *s, const struct fuse_request *q, struct lock *out)
{
	const struct fuse_lk_in *in = &q->in.lk;

	if (!q->handle)
		return -EBADF;
	*out = (struct lock){
		.file = session_inode(s, q->node),
		.owner = in->owner,
		.handle = q->handle->number,
		.start = in->lk.start,
		.end = in->lk.end,
		.pid = in->lk.pid,
		.flock = in->lk_flags & FUSE_LK_FLOCK,
	};
	switch (in->lk.type) {
	case F_RDLCK: out->type = LOCK_SHARED; break;
	case F_WRLCK: out->type = LOCK_EXCLUSIVE; break;
	case F_UNLCK: out->type = LOCK_NONE; break;
	default: return -EINVAL;
	}
	if (out->flock) {
		/* Not the kernel's number of its owner, an open file: of one that was closed, whose RELEASE is still to come, it is
		 * given to a new one, and that RELEASE would release the lock of the new one. */
		out->owner = out->handle;
		out->start = 0;
		out->end = LOCK_END_MAX;
	}
	return lock_is_sound(out) ? 0 : -EINVAL;
}

/* ---- Between close() and RELEASE; session.lock is held ---- */

static void closing_end(struct session *s, struct handle *h)
{
	if (!h->closing_at)
		return;
	*h->closing_at = h->closing_next;
	if (h->closing_next)
		h->closing_next->closing_at = h->closing_at;
	h->closing_at = NULL;
	pthread_cond_broadcast(&s->locks.closed);
}

void locks_handle_gone(struct session *s, struct handle *h) { closing_end(s, h); }

/* Its process closes a descriptor.  The range locks of that process are released already. */
static void closing_begin(struct session *s, struct handle *h, uint64_t process)
{
	if (h->closing_at || (!h->flocked && (!h->range_owner || h->range_owner == process)))
		return;
	h->closing_since_ns = clock_steady_ns();
	h->closing_at = &s->locks.closing;
	h->closing_next = s->locks.closing;
	if (h->closing_next)
		h->closing_next->closing_at = &h->closing_next;
	s->locks.closing = h;
}

/* From `h` on, another open file of the same inode. */
static struct handle *closing_find(struct handle *h, const struct handle *asking)
{
	while (h && (h == asking || h->inode != asking->inode))
		h = h->closing_next;
	return h;
}

/* No RELEASE has come of those that were closing at `since_ns`. */
static void closing_doubt(struct session *s, const struct handle *asking, int64_t since_ns)
{
	struct handle *h = closing_find(s->locks.closing, asking), *next;

	for (; h; h = next) {
		next = closing_find(h->closing_next, asking);
		if (h->closing_since_ns > since_ns)
			continue;
		h->stayed_open = true;
		closing_end(s, h);
	}
}

static int64_t closing_patience_ns(const struct session *s, const struct handle *asking)
{
	struct handle *h = closing_find(s->locks.closing, asking);

	if (!h)
		return s->locks.closing_ns;
	while (h && h->stayed_open)
		h = closing_find(h->closing_next, asking);
	return h ? s->locks.closing_ns : s->locks.closing_again_ns;
}

static void closing_await(struct session *s, const struct handle *asking, int64_t since_ns, int64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S };
	int error = 0;

	s->locks.closing_waiters++;
	while (!error && closing_find(s->locks.closing, asking))
		error = pthread_cond_timedwait(&s->locks.closed, &s->lock, &until);
	s->locks.closing_waiters--;
	if (error)
		closing_doubt(s, asking, since_ns);
}

/* ---- Asking for a lock that is not waited for ---- */

struct attempt {
	const struct handle *handle;
	bool closing;               /* another open file was, before this attempt */
	int64_t since_ns, until_ns; /* the first one was refused, the last one begins; 0: none was refused yet */
};

static void attempt_begin(struct session *s, struct attempt *a)
{
	LOCKED(&s->lock);
	a->closing = closing_find(s->locks.closing, a->handle);
}

/* It was refused.  Whether to ask again: the files that were closing are released, or open after all. */
static bool attempt_again(struct session *s, struct attempt *a)
{
	int64_t now = clock_steady_ns();
	LOCKED(&s->lock);

	if (!a->closing || (a->until_ns && now >= a->until_ns))
		return false;
	if (!a->until_ns) {
		a->since_ns = now;
		a->until_ns = now + closing_patience_ns(s, a->handle);
	}
	if (closing_find(s->locks.closing, a->handle)) {
		if (s->locks.closing_waiters == CLOSING_WAITERS)
			return false;
		closing_await(s, a->handle, a->since_ns, a->until_ns);
	}
	return true;
}

/* ---- Handlers ---- */

/* From before it is asked for. */
static void lock_note(struct session *s, const struct fuse_request *q, const struct lock *l)
{
	struct handle *h = q->handle;

	if (l->type == LOCK_NONE)
		return;
	atomic_store(&h->locked, true);
	atomic_store_explicit(&s->locks.locked[l->file % LOCKED_SLOTS], l->file, memory_order_relaxed);
	LOCKED(&s->lock);
	closing_end(s, h); /* it is open */
}

/* It was set, or released; or it may be set without our knowing when. */
static void lock_set_note(struct session *s, const struct fuse_request *q, const struct lock *l)
{
	struct handle *h = q->handle;
	LOCKED(&s->lock);

	if (l->flock)
		h->flocked = l->type != LOCK_NONE;
	else if (l->type != LOCK_NONE)
		h->range_owner = l->owner;
	if (l->type == LOCK_NONE)
		closing_end(s, h); /* not before: what waits for that asks for the lock now */
	else
		h->stayed_open = false;
}

int handle_getlk(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct fuse_lk_out out = { .lk = q->in.lk.lk };
	struct attempt a = { .handle = q->handle };
	struct lock l, found;
	int n = lock_read(s, q, &l);

	if (!n && l.type != LOCK_NONE)
		do {
			attempt_begin(s, &a);
			n = client_lock_test(s->client, &l, &found);
		} while (n > 0 && attempt_again(s, &a));
	if (n < 0)
		return n;
	if (n)
		out.lk = (struct fuse_file_lock){ .start = found.start,
						  .end = found.end,
						  .type = found.type == LOCK_EXCLUSIVE ? F_WRLCK : F_RDLCK,
						  .pid = found.pid };
	else
		out.lk.type = F_UNLCK;
	reply_data(r, &out, sizeof(out));
	return 0;
}

int handle_setlk(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct attempt a = { .handle = q->handle };
	struct lock l;
	int error = lock_read(s, q, &l);

	if (error)
		return error;
	lock_note(s, q, &l);
	do {
		attempt_begin(s, &a);
		error = client_lock(s->client, &l);
	} while (error == -EAGAIN && attempt_again(s, &a));
	if (!error) {
		lock_set_note(s, q, &l);
		reply_error(r, 0);
	}
	return error;
}

int handle_setlkw(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct parked *p;
	struct lock l;
	int error = lock_read(s, q, &l);

	if (error)
		return error;
	if (l.type == LOCK_NONE)
		return handle_setlk(s, q, r);
	lock_note(s, q, &l);
	lock_set_note(s, q, &l);
	p = parked_new(s, r);
	if (!p)
		return -ENOLCK;
	error = client_lock_wait(s->client, &l, p->ticket, parked_done, p);
	if (error == -EINPROGRESS) {
		if (parked_is_interrupted(p))
			client_lock_cancel(s->client, p->ticket);
		parked_unref(p, 1);
		return 0;
	}
	reply_error(p->reply, error);
	parked_unref(p, 2);
	return 0;
}

int handle_flush(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct handle *h = q->handle;
	int error;

	if (atomic_load(&s->no_opens))
		return -ENOSYS; /* and is not asked again */
	error = client_unlock_owner(s->client, session_inode(s, q->node), q->in.flush.lock_owner);
	if (h && atomic_load(&h->locked)) {
		LOCKED(&s->lock);
		closing_begin(s, h, q->in.flush.lock_owner);
	}
	reply_error(r, error);
	return 0;
}

/* ---- Life ---- */

bool locks_spare_flush(const struct session *s, uint64_t inode, int flags, bool made)
{
	int access = flags & O_ACCMODE;

	if (access != O_RDONLY && !(access == O_WRONLY && made))
		return false;
	return atomic_load_explicit(&s->locks.locked[inode % LOCKED_SLOTS], memory_order_relaxed) != inode;
}

void locks_handle_closed(struct session *s, const struct handle *h)
{
	if (atomic_load(&h->locked) && !s->locks.over)
		client_unlock_handle(s->client, h->inode, h->number);
}

void locks_begin(struct session *s)
{
	pthread_condattr_t a;

	s->locks.closing_ns = CLOSING_NS;
	s->locks.closing_again_ns = CLOSING_AGAIN_NS;
	pthread_mutex_init(&s->locks.lock, NULL);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&s->locks.closed, &a);
	pthread_condattr_destroy(&a);
}

void locks_end(struct session *s)
{
	s->locks.over = true;
	client_lock_cancel_all(s->client);
	pthread_mutex_destroy(&s->locks.lock);
}
