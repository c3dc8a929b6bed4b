/* Workers: threads that handle requests.  See ring.h.
 *
 * Each request has one answer.  It comes from the handler, in the worker's own thread; or later,
 * from any thread, if the handler has kept the reply; or from an INTERRUPT, while the handler
 * is still at it.  Who is first is decided by the worker's `unique`. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/ring_state.h"
#include "fuse/thread.h"
#include "fuse/waiter.h"

#define URING_ENTRIES 4 /* one slot, and a submission that the kernel had no memory for */

/* The transport's side of an answer. */
struct ring_reply {
	struct reply reply;
	struct ring *ring;
	struct worker *worker;
	struct slot *slot; /* of one that is kept: NULL once it is answered */
	bool copied;       /* the request is not in the slot, which can be answered while it is handled */
	unsigned queue;
};

static __thread struct worker *self;

/* ---- Answers ---- */

static bool answer_claim(struct worker *w, uint64_t unique) { return atomic_compare_exchange_strong(&w->unique, &unique, 0); }

/* Whether the next request of the slot shall come to this worker.  Not if others wait for a worker, which it can then be. */
static bool slot_is_wanted(const struct worker *w)
{
	return w->has_uring && !w->armed && !atomic_load_explicit(&w->ring->starved, memory_order_relaxed);
}

/* What some answers give leave to keep can be recalled as soon as the handler has sent them (given.h), and a recall waits until
 * READs have let go of what they sent: so an answer is with the kernel when this returns, unless the kernel was short of
 * memory.  Not that of a handler that `ends`: nobody could tell that from a thread that sends it a moment later.  Whether the kernel
 * takes it is then not known; it does, but where the mount is over, and all handles with it. */
static int slot_commit_here(struct worker *w, struct slot *s, bool ends)
{
	struct io_uring_cqe *cqe;

	slot_commit(s, io_uring_get_sqe(&w->uring));
	w->armed = s;
	if (ends)
		return 0;
	io_uring_submit(&w->uring);
	return !io_uring_peek_cqe(&w->uring, &cqe) && cqe->res < 0 ? -ENOENT : 0;
}

/* Sends what slot_answer put in. */
static int slot_send(struct worker *w, struct slot *s, const struct reply *r)
{
	if (!r->goes_on && slot_is_wanted(w))
		return slot_commit_here(w, s, r->ends);
	mail_send(w->ring, s);
	return 0;
}

static int ring_send(struct reply *r, const struct iovec *parts, int count)
{
	struct ring_reply *rr = (struct ring_reply *)r;
	struct worker *w = rr->worker;
	int error;

	if (!answer_claim(w, r->unique))
		return -ENOENT;
	error = slot_answer(rr->slot, parts, count);
	if (error) {
		atomic_store(&w->unique, r->unique);
		return error;
	}
	return slot_send(w, rr->slot, r);
}

static int ring_send_kept(struct reply *r, const struct iovec *parts, int count)
{
	struct ring_reply *kept = (struct ring_reply *)r;
	struct slot *s = kept->slot;
	int error = s ? slot_answer(s, parts, count) : -ENOENT;

	if (error)
		return error;
	kept->slot = NULL;
	/* The lock was free: its handler is still at it, and the worker can have its slot back. */
	if (self && self == kept->worker && self->kept == s) {
		self->kept = NULL;
		return slot_send(self, s, r);
	}
	mail_send(kept->ring, s);
	return 0;
}

static struct reply *ring_keep(const struct reply *r)
{
	const struct ring_reply *rr = (const struct ring_reply *)r;
	struct queue *q = &rr->ring->queues[rr->queue];
	struct ring_reply *kept = malloc(sizeof(*kept));

	if (!kept)
		return NULL;
	if (atomic_fetch_add(&q->kept, 1) >= RING_KEPT_MOST || !answer_claim(rr->worker, r->unique)) {
		atomic_fetch_sub(&q->kept, 1);
		free(kept);
		return NULL;
	}
	*kept = *rr;
	kept->reply.send = ring_send_kept;
	rr->worker->kept = rr->slot;
	return &kept->reply;
}

static void ring_forget(struct reply *r)
{
	struct ring_reply *kept = (struct ring_reply *)r;
	if (kept->slot)
		reply_error(r, -EIO);
	atomic_fetch_sub(&kept->ring->queues[kept->queue].kept, 1);
	free(kept);
}

/* ---- Interrupts ----
 *
 * The kernel sends no INTERRUPT (as of Linux 6.18) if the signal comes before the request was delivered to its slot.  But the
 * signal stays pending, and can be seen once the request is here.  Looking costs too much to do it for every request: it is done
 * for those that wait for a lock (kept_look_after), and for those that take long (workers_look_after). */

static void answer_early(struct worker *w, struct slot *s, uint64_t unique)
{
	if (!answer_claim(w, unique))
		return;
	slot_answer_error(s, -EINTR);
	mail_send(w->ring, s);
}

static struct worker *worker_find(struct ring *r, uint64_t unique)
{
	LOCKED(&r->lock);
	for (unsigned i = 0; i < r->workers_most; i++) {
		struct worker *w = r->workers[i];

		if (w && w->state == WORKER_RUNNING && atomic_load(&w->unique) == unique)
			return w;
	}
	return NULL;
}

bool ring_interrupt(struct ring *r, uint64_t unique)
{
	struct worker *w = worker_find(r, unique);
	uint32_t waiter = w ? atomic_load(&w->waiter) : 0;

	if (!waiter)
		return false;
	if (waiter_is_dying(waiter))
		answer_early(w, atomic_load(&w->slot), unique);
	return true;
}

static void kept_look_after(struct ring *r, uint64_t unique, uint32_t waiter)
{
	if (waiter_is_interrupted(waiter))
		session_interrupt(r->session, unique);
}

/* The worker at a place that is still at the request it was at in the last round. */
static struct worker *worker_long_at(struct ring *r, unsigned place, uint64_t *unique)
{
	struct worker *w;
	bool same;
	LOCKED(&r->lock);

	w = r->workers[place];
	if (!w || w->state != WORKER_RUNNING)
		return NULL;
	*unique = atomic_load(&w->unique);
	same = *unique && *unique == w->seen;
	w->seen = *unique;
	w->seen_handled = atomic_load_explicit(&w->handled, memory_order_relaxed);
	return same ? w : NULL;
}

void workers_look_after(struct ring *r)
{
	for (unsigned i = 0; i < r->workers_most; i++) {
		uint64_t unique;
		struct worker *w = worker_long_at(r, i, &unique);
		uint32_t waiter = w ? atomic_load(&w->waiter) : 0;

		if (waiter && waiter_is_dying(waiter))
			answer_early(w, atomic_load(&w->slot), unique);
	}
}

/* ---- Requests ---- */

/* `unique` goes last: whoever reads it and then `waiter` finds that of this request or a later one. */
static void request_begin(struct worker *w, struct slot *s, uint64_t unique)
{
	w->kept = NULL;
	atomic_store_explicit(&w->slot, s, memory_order_relaxed);
	atomic_store_explicit(&w->waiter, 0, memory_order_relaxed);
	atomic_store_explicit(&w->unique, unique, memory_order_release);
}

static void ring_interrupts_allow(struct reply *r, uint32_t waiter)
{
	struct ring_reply *rr = (struct ring_reply *)r;
	struct worker *w = rr->worker;

	if (!rr->copied)
		return;
	atomic_store(&w->waiter, waiter);
	if (waiter && session_interrupt_noted(w->ring->session, r->unique) && waiter_is_dying(waiter))
		answer_early(w, rr->slot, r->unique);
}

static void request_handle(struct worker *w, struct slot *s)
{
	uint64_t unique = slot_unique(s);
	struct ring_reply r = {
		.reply = { .unique = unique,
			   .send = ring_send,
			   .interrupts_allow = ring_interrupts_allow,
			   .keep = ring_keep,
			   .forget = ring_forget },
		.ring = w->ring,
		.worker = w,
		.slot = s,
		.queue = s->queue,
	};
	struct fuse_request q;
	bool poke = slot_opcode(s) == FUSE_NOTIFY_REPLY; /* the attendant's may come to anybody */
	int error = slot_decode(s, w->copy, &q, &r.copied);

	/* From ring_interrupts_allow on the slot may be answered, and have another request, at any time. */
	request_begin(w, s, unique);
	if (!poke && session_accept(&q, error, &r.reply))
		session_handle(w->ring->session, &q, &r.reply);
	/* Every request that comes by a ring has to be answered, also one that needs no answer. */
	if (atomic_load_explicit(&w->unique, memory_order_relaxed)) {
		r.reply.ends = true;
		reply_error(&r.reply, 0);
	}
	if (w->kept)
		kept_look_after(w->ring, unique, q.pid);
	w->kept = NULL;
}

/* ---- Waiting for requests ---- */

static struct slot *completion_take(struct worker *w, struct io_uring_cqe *cqe)
{
	struct slot *s = io_uring_cqe_get_data(cqe);
	int error = cqe->res;

	io_uring_cqe_seen(&w->uring, cqe);
	w->armed = NULL;
	if (error < 0 && error != -ENOTCONN && error != -ECONNABORTED)
		log_warn("fuse: a slot of queue %u is lost: %s", s->queue, strerror(-error));
	return error < 0 ? NULL : s;
}

/* The lock is held. */
static struct slot *waiting_take(struct ring *r, struct queue *q)
{
	struct slot *s = q->waiting;

	q->waiting = s->next;
	q->waiting_count--;
	if (!--r->given)
		atomic_store(&r->starved, false);
	return s;
}

/* Of any queue: threads that wait with slots of others would else be of no use to it. */
static struct slot *starved_take(struct ring *r)
{
	LOCKED(&r->lock);
	for (unsigned i = 0; r->given && i < r->queue_count; i++)
		if (r->queues[i].waiting)
			return waiting_take(r, &r->queues[i]);
	return NULL;
}

/* Where it waited for a while, the memory of its slot is not needed soon.  Nothing can be in it: the kernel takes an answer when it is
 * submitted, and writes a request only while this thread calls it. */
static void worker_sleep(struct worker *w)
{
	struct __kernel_timespec idle = { .tv_sec = 1 };
	struct io_uring_cqe *cqe;

	if (!w->ring->trims || !slot_is_large(w->armed)) {
		io_uring_submit_and_wait(&w->uring, 1);
		return;
	}
	io_uring_submit_and_wait_timeout(&w->uring, &cqe, 1, &idle, NULL);
	if (!io_uring_sq_ready(&w->uring) && !io_uring_cq_ready(&w->uring))
		slot_trim_sent(w->armed);
}

/* What has come to the worker.  False: nothing; else *s is its slot with a request, or NULL: it is lost. */
static bool completion_come(struct worker *w, struct slot **s)
{
	struct io_uring_cqe *cqe;

	while (!io_uring_peek_cqe(&w->uring, &cqe)) {
		if (io_uring_cqe_get_data(cqe)) {
			*s = completion_take(w, cqe);
			return true;
		}
		io_uring_cqe_seen(&w->uring, cqe);
		atomic_store(&w->nudged, false);
	}
	return false;
}

/* The next request that comes to the worker's own slot, or, where as many workers are there as may be, one that nobody else takes; what
 * comes into its slot meanwhile has to wait, therefore it looks first.  NULL: it has no slot any more. */
static struct slot *slot_wait(struct worker *w)
{
	struct ring *r = w->ring;
	struct slot *s;

	while (!completion_come(w, &s)) {
		if (atomic_load(&r->stopping))
			return NULL;
		if (atomic_load(&r->starved)) {
			io_uring_submit_and_get_events(&w->uring);
			if (completion_come(w, &s))
				return s;
			s = starved_take(r);
			if (s)
				return s;
		}
		atomic_store(&w->waiting, true);
		if (!atomic_load(&r->stopping))
			worker_sleep(w);
		atomic_store(&w->waiting, false);
	}
	return s;
}

/* A slot with a request, from the attendant; NULL: this worker is one too many, or the ring stops. */
static struct slot *slot_adopt(struct worker *w)
{
	struct ring *r = w->ring;
	struct queue *q = w->queue;
	struct slot *s = atomic_load(&r->starved) && !atomic_load(&r->stopping) ? starved_take(r) : NULL;

	if (s)
		return s;
	LOCKED(&r->lock);
	while (!q->waiting && r->phase != PHASE_STOPPING) {
		if (q->sleeping >= RING_SLEEPING_MOST)
			return NULL;
		q->sleeping++;
		pthread_cond_wait(&q->work, &r->lock);
		q->sleeping--;
	}
	return r->phase == PHASE_STOPPING ? NULL : waiting_take(r, q);
}

static struct slot *slot_next(struct worker *w)
{
	struct slot *s = w->armed ? slot_wait(w) : NULL;

	return s || atomic_load(&w->ring->stopping) ? s : slot_adopt(w);
}

/* ---- Life ---- */

/* A worker that fails here can still handle what it is given. */
static void slot_first(struct worker *w)
{
	struct queue *q = w->queue;
	struct slot *s = ring_slot_new(w->ring, q->number);

	if (!s)
		return;
	slot_register(s, io_uring_get_sqe(&w->uring));
	w->armed = s;
	io_uring_submit(&w->uring);
}

static void worker_serve(struct worker *w)
{
	struct ring *r = w->ring;
	int error = uring_open(&w->uring, URING_ENTRIES, r->device);
	struct slot *s;

	w->has_uring = !error;
	cpu_pin((int)w->queue->number);
	if (w->first) {
		ring_reached(r, error);
		if (!ring_wait(r, PHASE_OPEN))
			return;
		slot_first(w);
		ring_reached(r, 0);
	}
	while ((s = slot_next(w))) {
		atomic_store_explicit(&w->handled, atomic_load_explicit(&w->handled, memory_order_relaxed) + 1,
				      memory_order_relaxed);
		request_handle(w, s);
	}
}

static void *worker_run(void *argument)
{
	struct worker *w = self = argument;
	struct ring *r = w->ring;

	worker_serve(w);
	if (w->has_uring) {
		io_uring_submit(&w->uring); /* an answer that was to go with the next wait */
		io_uring_queue_exit(&w->uring);
	}
	LOCKED(&r->lock);
	w->state = WORKER_ENDED;
	r->running--;
	pthread_cond_broadcast(&r->moved);
	return NULL;
}

static struct worker *worker_free_one(struct ring *r)
{
	for (unsigned i = 0; i < r->workers_most; i++) {
		struct worker *w = r->workers[i];

		if (w && w->state == WORKER_RUNNING)
			continue;
		if (w && w->state == WORKER_ENDED)
			pthread_join(w->thread, NULL);
		if (!w)
			w = r->workers[i] = calloc(1, sizeof(*w));
		if (w)
			w->state = WORKER_FREE;
		return w;
	}
	return NULL;
}

int worker_start(struct ring *r, struct queue *q, bool first)
{
	struct worker *w = r->phase == PHASE_STOPPING ? NULL : worker_free_one(r);
	int error;

	if (!w)
		return -EAGAIN;
	w->ring = r;
	w->queue = q;
	w->first = first;
	w->armed = NULL;
	atomic_store(&w->nudged, false);
	error = thread_start(&w->thread, worker_run, w);
	if (error)
		return error;
	w->state = WORKER_RUNNING;
	r->running++;
	return 0;
}

void request_give(struct ring *r, struct slot *s)
{
	struct queue *q = &r->queues[s->queue];

	s->next = NULL;
	*(q->waiting ? &q->waiting_last->next : &q->waiting) = s;
	q->waiting_last = s;
	r->given++;
	if (++q->waiting_count <= q->sleeping)
		pthread_cond_signal(&q->work);
	else if (worker_start(r, q, false))
		atomic_store(&r->starved, true);
}

/* One that has waited since the last round is not likely to get a request of its own now. */
static bool may_be_nudged(struct worker *w, bool if_idle)
{
	return w && w->state == WORKER_RUNNING && atomic_load(&w->waiting) && !atomic_load(&w->nudged) &&
	       (!if_idle || atomic_load_explicit(&w->handled, memory_order_relaxed) == w->seen_handled);
}

void nudges_forget(struct ring *r)
{
	LOCKED(&r->lock);
	for (unsigned i = 0; i < r->workers_most; i++)
		if (r->workers[i])
			atomic_store(&r->workers[i]->nudged, false);
}

unsigned starved_choose(struct ring *r, int *fds, unsigned most)
{
	unsigned chosen = 0, started = 0;
	LOCKED(&r->lock);

	for (unsigned i = 0; i < r->queue_count; i++)
		started += r->queues[i].waiting && !worker_start(r, &r->queues[i], false);
	for (int any = 0; any < 2; any++) {
		for (unsigned i = 0; i < r->workers_most && chosen + started < r->given && chosen < most; i++) {
			if (!may_be_nudged(r->workers[i], !any))
				continue;
			atomic_store(&r->workers[i]->nudged, true);
			fds[chosen++] = r->workers[i]->uring.ring_fd;
		}
	}
	return chosen;
}
