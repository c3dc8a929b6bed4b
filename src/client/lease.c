#include "client/lease.h"
#include <errno.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define LEASE_NS (10 * NS_PER_S)
#define CALL_TIMEOUT_MS 5000 /* answered within 3 s */
#define PAUSE_NS (100 * NS_PER_MS)
#define SIGN_OF_LIFE_MS 2000
#define AWAIT_NS (1 * NS_PER_MS)
#define FORGET_NS (1 * NS_PER_S) /* for making the kernel forget before others are let in */
#define WATCH_NS (100 * NS_PER_MS)

bool lease_held(struct client *c)
{
	int64_t until = atomic_load(&c->lease.until_ns);

	return until && clock_steady_ns() < until;
}

uint32_t lease_left_ms(struct client *c)
{
	int64_t left = atomic_load(&c->lease.until_ns) - clock_steady_ns();

	return left > 0 ? (uint32_t)(left / NS_PER_MS) : 0;
}

bool lease_in_contact(struct client *c) { return clock_steady_ns() < atomic_load(&c->lease.contact_ns); }

uint32_t lease_contact_ms(struct client *c)
{
	int64_t left = atomic_load(&c->lease.contact_ns) - clock_steady_ns();

	return left > 0 ? (uint32_t)(left / NS_PER_MS) : 0;
}

void lease_await(struct client *c)
{
	int64_t deadline = monotonic_ns() + c->timeout_ms * NS_PER_MS;

	while ((!lease_in_contact(c) || atomic_load(&c->holdings.forgetting)) && !atomic_load(&c->lease.stopping) &&
	       monotonic_ns() < deadline)
		nanosleep(&(struct timespec){ .tv_nsec = AWAIT_NS }, NULL);
}

uint64_t lease_number(struct client *c) { return atomic_load(&c->lease.number); }

/* The order matters: nobody makes a file by itself once newborns_bar has returned. */
static void bar(struct client *c)
{
	atomic_store(&c->lease.until_ns, 0);
	newborns_bar(c);
	catalog_clear(&c->catalog);
	attrs_forget_all(&c->attrs);
}

void lease_restarted(struct client *c)
{
	atomic_store(&c->lease.restarted, true);
	atomic_store(&c->lease.number, 0);
}

void lease_session_lost(struct client *c)
{
	atomic_store(&c->lease.session_lost, true);
	atomic_store(&c->lease.contact_ns, 0);
	bar(c);
	holdings_lost(c);
	kept_sweep(c, NULL);
}

void client_on_recall(struct client *c, const struct client_events *events)
{
	pthread_rwlock_wrlock(&c->lease.events_lock);
	c->lease.events = events ? *events : (struct client_events){ 0 };
	pthread_rwlock_unlock(&c->lease.events_lock);
}

static int written_list(struct arena *arena, const struct buf *told, Wire__LeaseRequest *request)
{
	Wire__Written *written = (Wire__Written *)told->data;
	size_t count = told->len / sizeof(*written);

	request->written = arena_take(arena, (count + 1) * sizeof(*request->written));
	if (!request->written)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		request->written[i] = &written[i];
	request->n_written = count;
	return 0;
}

/* The reply is in the arena. */
static int lease_call(struct client *c, struct arena *arena, Wire__LeaseReply **out)
{
	Wire__LeaseRequest request = WIRE__LEASE_REQUEST__INIT;
	struct lease *l = &c->lease;
	int r;

	request.seen = l->number;
	request.done = l->done;
	/* Also if it will only be over by the time the server answers again.  Not at the start: who opens a file then waits for the answer
	 * that gives the lease. */
	request.at_once = l->failed || (atomic_load(&l->contact_ns) && !lease_in_contact(c));
	r = written_list(arena, &l->told, &request);
	if (r < 0)
		return r;
	l->call.request = &request.base;
	l->call.reply = (ProtobufCMessage **)out;
	return rpc_call(c->rpc, &l->call, arena);
}

/* ---- Recalls ---- */

static void tell(struct client *c, uint64_t inode)
{
	Wire__Written written = WIRE__WRITTEN__INIT;

	written.inode = inode;
	holding_written(c, inode, &written);
	buf_append(&c->lease.told, &written, sizeof(written));
}

static void uncover(struct client *c, uint64_t directory)
{
	catalog_recall(&c->catalog, directory);
	pthread_rwlock_rdlock(&c->lease.events_lock);
	if (c->lease.events.uncovered)
		c->lease.events.uncovered(c->lease.events.context, directory);
	pthread_rwlock_unlock(&c->lease.events_lock);
}

/* Each is done at once, but for files: those are begun.  Without memory for an answer the rest comes again. */
static void recalls_take(struct client *c, const Wire__LeaseReply *reply)
{
	struct lease *l = &c->lease;

	buf_clear(&l->told);
	for (size_t i = 0; i < reply->n_recalls && !l->told.failed; i++) {
		const Wire__Recall *r = reply->recalls[i];

		if (r->kind == WIRE__RECALL_KIND__RECALL_DIRECTORY)
			uncover(c, r->inode);
		else if (r->kind == WIRE__RECALL_KIND__RECALL_TELL)
			tell(c, r->inode);
		else if (holding_recall(c, r->inode, r->kind == WIRE__RECALL_KIND__RECALL_FILE, r->number) < 0)
			return;
		if (!l->told.failed)
			l->done = r->number;
	}
}

void lease_kernel_forgets(struct client *c)
{
	pthread_rwlock_rdlock(&c->lease.events_lock);
	if (c->lease.events.recalled)
		c->lease.events.recalled(c->lease.events.context);
	pthread_rwlock_unlock(&c->lease.events_lock);
}

/* The number from before tells that we are at it.  What holds goes on holding, unless it is lost. */
static void sign_of_life(struct client *c)
{
	struct lease *l = &c->lease;
	int64_t sent_ns = clock_steady_ns();
	Wire__LeaseReply *reply;
	struct arena arena;

	arena_init(&arena, 0);
	if (lease_call(c, &arena, &reply) == 0 && reply->revoked <= l->number && lease_in_contact(c) &&
	    !atomic_load(&l->restarted) && !atomic_load(&l->session_lost))
		atomic_store(&l->contact_ns, sent_ns + LEASE_NS - FORGET_NS);
	arena_free(&arena);
}

/* Until the kernel has forgotten what it was told, and the server knows of everything we made or have open; a server that is
 * away keeps us here. */
static void recalled(struct client *c)
{
	bar(c);
	lease_kernel_forgets(c);
	while (newborns_settle_within(c, SIGN_OF_LIFE_MS) < 0 && !atomic_load(&c->lease.stopping))
		sign_of_life(c);
	kept_note_idle(c);
	opens_tell(c, sign_of_life);
}

static void answered(struct client *c, const Wire__LeaseReply *reply, int64_t sent_ns)
{
	struct lease *l = &c->lease;
	bool changed = reply->number != l->number;

	/* It may be of the server from before.  The next one tells the same. */
	if (atomic_load(&l->restarted))
		return;
	if (changed) {
		recalled(c);
		/* If that took long, the answer says nothing about now; the next one tells the same. */
		if (atomic_load(&l->restarted) || clock_steady_ns() - sent_ns > LEASE_NS / 3)
			return;
		if (reply->revoked > l->number)
			holdings_lost(c);
	}
	/* First: what makes the kernel forget may wait for requests that wait for this. */
	atomic_store(&l->contact_ns, sent_ns + LEASE_NS - FORGET_NS);
	if (changed) {
		kept_sweep(c, sign_of_life);
		if (atomic_load(&l->restarted))
			return;
		atomic_store(&l->number, reply->number); /* with the next request all is acknowledged */
	}
	recalls_take(c, reply);
	if (atomic_load(&l->session_lost))
		atomic_store(&l->contact_ns, 0);
	if (!reply->held)
		return;
	atomic_store(&l->until_ns, sent_ns + LEASE_NS);
	/* It went while we were at it: the next answer says what holds. */
	if (atomic_load(&l->session_lost))
		bar(c);
}

static int ask(struct client *c)
{
	struct lease *l = &c->lease;
	int64_t sent_ns = clock_steady_ns();
	Wire__LeaseReply *reply;
	struct arena arena;
	int r;

	atomic_store(&l->restarted, false);
	if (atomic_exchange(&l->session_lost, false))
		atomic_store(&l->number, 0);
	arena_init(&arena, 0);
	r = lease_call(c, &arena, &reply);
	l->failed = r < 0;
	if (r == 0)
		answered(c, reply, sent_ns);
	else if (r == -EINVAL)
		atomic_store(&l->number, 0); /* the server knows of no such state of ours */
	arena_free(&arena);
	return r;
}

static void *lease_run(void *context)
{
	struct client *c = context;

	while (!atomic_load(&c->lease.stopping))
		if (ask(c) < 0 && !atomic_load(&c->lease.stopping))
			nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
	return NULL;
}

/* ---- The watcher ---- */

struct lapses {
	int64_t end_ns; /* of the last contact that was seen to be over */
	uint64_t count;
};

static void lapse_notice(struct client *c, struct lapses *l)
{
	int64_t end_ns = atomic_load(&c->lease.contact_ns);

	if (end_ns == 0 || end_ns == l->end_ns || clock_steady_ns() < end_ns)
		return;
	l->end_ns = end_ns;
	log_warn("volume %s: the server is silent: what was read of open files is not kept until it is heard of again",
		 c->volume.name);
	holdings_lapsed(c, ++l->count);
	kept_sweep(c, NULL);
}

static void *watch_run(void *context)
{
	struct client *c = context;
	struct lease *l = &c->lease;
	struct lapses lapses = { 0 };
	LOCKED(&l->watch_lock);

	while (!atomic_load(&l->stopping)) {
		pthread_mutex_unlock(&l->watch_lock);
		lapse_notice(c, &lapses);
		pthread_mutex_lock(&l->watch_lock);
		if (!atomic_load(&l->stopping))
			cond_wait_until(&l->watch, &l->watch_lock, monotonic_ns() + WATCH_NS);
	}
	return NULL;
}

/* ---- Life ---- */

void lease_init(struct lease *l)
{
	pthread_rwlock_init(&l->events_lock, NULL);
	pthread_mutex_init(&l->watch_lock, NULL);
	cond_init_monotonic(&l->watch);
}

void lease_free(struct lease *l)
{
	buf_free(&l->told);
	pthread_cond_destroy(&l->watch);
	pthread_mutex_destroy(&l->watch_lock);
	pthread_rwlock_destroy(&l->events_lock);
}

int lease_start(struct client *c)
{
	struct lease *l = &c->lease;
	int r;

	l->call = (struct rpc_call){ .op = WIRE__OP__LEASE, .timeout_ms = CALL_TIMEOUT_MS };
	if (!c->volume.relaxed) {
		r = -pthread_create(&l->watcher, NULL, watch_run, c);
		l->watching = r == 0;
		if (r < 0)
			return r;
	}
	r = -pthread_create(&l->thread, NULL, lease_run, c);
	l->started = r == 0;
	return r;
}

void lease_stop(struct client *c)
{
	struct lease *l = &c->lease;

	pthread_mutex_lock(&l->watch_lock);
	atomic_store(&l->stopping, true);
	pthread_cond_signal(&l->watch);
	pthread_mutex_unlock(&l->watch_lock);
	if (l->watching)
		pthread_join(l->watcher, NULL);
	l->watching = false;
	if (!l->started)
		return;
	rpc_cancel(c->rpc, &l->call);
	pthread_join(l->thread, NULL);
	l->started = false;
}
