/* The attendant: the thread that holds the reserve of slots.  See ring.h.
 *
 * Its slots are there for when no worker waits.  As the kernel uses the slot first that was armed last, one that is committed here is
 * the next to be used, though workers wait; the worker that gets it keeps it, so that the one after comes straight to it.
 *
 * It must never wait for anything but its own io_uring instance, which brings it
 *   a slot of the reserve with a request   given to a worker
 *   mail                                   answered slots, to be committed: they become part of the reserve
 *
 * A new slot does not take over what the kernel has queued already; only an answer makes the
 * kernel look there.  So after slots were added to a queue the attendant makes the kernel send it
 * requests that mean nothing (NOTIFY_RETRIEVE of no bytes, which is answered with a
 * NOTIFY_REPLY), as many as there are new slots, and answers them.  That needs a file that is
 * open.  Without one, what is queued has to wait for the next answer or the next request in that
 * queue; but then none of those that are being handled waits for a lock, and all end by themselves. */
#include <errno.h>
#include <string.h>
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "fuse/ring_state.h"

#define URING_ENTRIES 64
/* Room for all that may be kept or being handled at once, and the reserve. */
#define SLOTS_MOST (RING_KEPT_MOST + RING_THREADS_MOST + 256)
#define POKED_FILES 4 /* tried: one that is only just being made is not known to the kernel */
#define PAUSE_US 1000
#define ROUND_NS NS_PER_S
#define NUDGE_NS (10 * NS_PER_MS) /* whoever was nudged may have got a request of its own */
#define NUDGED_AT_ONCE 32

struct attendant {
	struct ring *ring;
	struct io_uring uring;
	uint64_t mails;   /* read from the event */
	uint64_t pokes;   /* requests that mean nothing so far */
	int64_t round_ns; /* when it last looked after the workers */
};

/* ---- Mail ---- */

void mail_wake(struct ring *r)
{
	uint64_t one = 1;

	if (write(r->mail_event, &one, sizeof(one)) < 0)
		log_error("fuse: cannot wake the attendant: %s", strerror(errno));
}

void mail_send(struct ring *r, struct slot *answered)
{
	bool first;

	{
		LOCKED(&r->lock);
		first = !r->mail;
		answered->next = r->mail;
		r->mail = answered;
	}
	if (first)
		mail_wake(r);
}

static struct slot *mail_take(struct ring *r)
{
	struct slot *all;
	LOCKED(&r->lock);

	all = r->mail;
	r->mail = NULL;
	return all;
}

/* ---- Submissions ---- */

static struct io_uring_sqe *sqe_next(struct attendant *a)
{
	struct io_uring_sqe *sqe;

	while (!(sqe = io_uring_get_sqe(&a->uring))) {
		if (io_uring_submit(&a->uring) < 0)
			usleep(PAUSE_US);
	}
	return sqe;
}

static void mail_await(struct attendant *a)
{
	struct io_uring_sqe *sqe = sqe_next(a);

	io_uring_prep_read(sqe, a->ring->mail_event, &a->mails, sizeof(a->mails), 0);
	io_uring_sqe_set_data(sqe, NULL);
}

static void slot_rearm(struct attendant *a, struct slot *s)
{
	slot_commit(s, sqe_next(a));
	a->ring->queues[s->queue].reserve++;
}

/* ---- The reserve ---- */

static unsigned slots_add(struct attendant *a, struct queue *q)
{
	unsigned added = 0;
	struct slot *s;

	while (added < a->ring->reserve_batch && q->slots < SLOTS_MOST && (s = ring_slot_new(a->ring, q->number))) {
		slot_register(s, sqe_next(a));
		q->slots++;
		q->reserve++;
		added++;
	}
	return added;
}

/* Its unique number must be none of the kernel's, which count up from 2, and even. */
static int node_poke(struct attendant *a, uint64_t node)
{
	struct fuse_notify_retrieve_out out = { .notify_unique = 1ull << 63 | ++a->pokes << 1, .nodeid = node };
	struct fuse_out_header h = { .len = sizeof(h) + sizeof(out), .error = FUSE_NOTIFY_RETRIEVE };
	struct iovec parts[] = { { &h, sizeof(h) }, { &out, sizeof(out) } };

	return writev(a->ring->device, parts, 2) < 0 ? -errno : 0;
}

/* The kernel sends the request to the queue of the CPU that asks for it. */
static void queue_poke(struct attendant *a, const struct queue *q, unsigned times)
{
	uint64_t nodes[POKED_FILES];
	unsigned count = session_open_nodes(a->ring->session, nodes, POKED_FILES), poked = 0;

	io_uring_submit(&a->uring);
	cpu_pin((int)q->number);
	for (unsigned i = 0; i < count && !poked; i++) {
		while (poked < times && !node_poke(a, nodes[i]))
			poked++;
	}
	cpu_pin(-1);
	log_debug("fuse: queue %u has %u slots now; poked %u times", q->number, q->slots, poked);
}

/* Ahead of need: a worker that has to be started takes longer than new slots. */
static void reserve_fill(struct attendant *a, struct queue *q)
{
	unsigned added = q->reserve < a->ring->reserve_batch / 2 ? slots_add(a, q) : 0;

	if (added)
		queue_poke(a, q, added);
}

/* The kernel begins to use the ring as soon as the last queue has its first slot. */
static int reserve_register(struct attendant *a)
{
	struct ring *r = a->ring;
	struct io_uring_cqe *cqe;
	int n;

	for (unsigned i = 0; i < r->queue_count; i++) {
		if (!slots_add(a, &r->queues[i]))
			return -ENOMEM;
	}
	n = io_uring_submit(&a->uring);
	if (n < 0)
		return n;
	if (!io_uring_peek_cqe(&a->uring, &cqe) && cqe->res < 0)
		return cqe->res == -ENOTCONN ? -ENOTCONN : -EOPNOTSUPP;
	return 0;
}

/* ---- The loop ---- */

static void request_taken(struct attendant *a, struct slot *s)
{
	struct ring *r = a->ring;
	struct queue *q = &r->queues[s->queue];

	q->reserve--;
	if (slot_opcode(s) == FUSE_NOTIFY_REPLY) {
		slot_answer_error(s, 0);
		slot_rearm(a, s);
		return;
	}
	{
		LOCKED(&r->lock);
		request_give(r, s);
	}
	reserve_fill(a, q);
}

static void completions_handle(struct attendant *a)
{
	struct io_uring_cqe *cqe;

	while (!io_uring_peek_cqe(&a->uring, &cqe)) {
		struct slot *s = io_uring_cqe_get_data(cqe);
		int error = cqe->res;

		io_uring_cqe_seen(&a->uring, cqe);
		if (!s)
			mail_await(a);
		else if ((void *)s == a)
			nudges_forget(a->ring);
		else if (error >= 0)
			request_taken(a, s);
		else if (error != -ENOTCONN && error != -ECONNABORTED)
			log_warn("fuse: a slot of queue %u is lost: %s", s->queue, strerror(-error));
	}
}

static void mail_handle(struct attendant *a)
{
	struct slot *s = mail_take(a->ring), *next;

	for (; s; s = next) {
		next = s->next;
		if (a->ring->trims)
			slot_trim(s);
		slot_rearm(a, s);
	}
}

/* A message to a worker that has ended goes nowhere. */
static void starved_nudge(struct attendant *a)
{
	int fds[NUDGED_AT_ONCE];
	unsigned count = starved_choose(a->ring, fds, NUDGED_AT_ONCE);

	for (unsigned i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = sqe_next(a);

		io_uring_prep_msg_ring(sqe, fds[i], 0, 0, 0);
		io_uring_sqe_set_flags(sqe, IOSQE_CQE_SKIP_SUCCESS);
		io_uring_sqe_set_data(sqe, a);
	}
}

static void round_make(struct attendant *a)
{
	int64_t now = clock_steady_ns();

	if (now - a->round_ns < ROUND_NS)
		return;
	a->round_ns = now;
	workers_look_after(a->ring);
}

static void attendant_serve(struct attendant *a)
{
	struct __kernel_timespec round = { .tv_nsec = ROUND_NS % NS_PER_S, .tv_sec = ROUND_NS / NS_PER_S };
	struct __kernel_timespec nudge = { .tv_nsec = NUDGE_NS };

	mail_await(a);
	while (!atomic_load(&a->ring->closing)) {
		struct io_uring_cqe *cqe;
		bool starved = atomic_load(&a->ring->starved);
		int n = io_uring_submit_and_wait_timeout(&a->uring, &cqe, 1, starved ? &nudge : &round, NULL);

		if (n < 0 && n != -EINTR && n != -ETIME)
			usleep(PAUSE_US);
		completions_handle(a);
		mail_handle(a);
		if (atomic_load(&a->ring->starved))
			starved_nudge(a);
		round_make(a);
	}
	io_uring_submit(&a->uring);
}

static void attendant_live(struct attendant *a)
{
	struct ring *r = a->ring;
	int error = uring_open(&a->uring, URING_ENTRIES, r->device);

	ring_reached(r, error);
	if (error)
		return;
	if (ring_wait(r, PHASE_RESERVE)) {
		error = reserve_register(a);
		ring_reached(r, error);
		if (!error)
			attendant_serve(a);
	}
	io_uring_queue_exit(&a->uring);
}

void *attendant_run(void *argument)
{
	struct ring *r = argument;
	struct attendant a = { .ring = r };

	attendant_live(&a);
	return NULL;
}
