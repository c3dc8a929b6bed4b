#include "client/locks.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define CALL_TIMEOUT_MS 5000       /* LOCK_WAIT is answered within 3 s */
#define LATER_NS (20 * NS_PER_MS)  /* how soon to ask again while a server that restarted gathers what was held */
#define PAUSE_NS (100 * NS_PER_MS) /* after a call that failed */
#define DEBT_NS (1 * NS_PER_S)     /* how often to try to say what is owed */
#define STRANGE_NS (2 * NS_PER_MS) /* a grant of a wait that is only just being noted */
#define RECLAIM_AT_ONCE 8192u

struct lock_wait {
	struct lock_wait *next;
	struct lock lock;
	uint64_t ticket;
	void (*done)(void *context, int status);
	void *context;
};

/* What the server is still to be told. */
struct lock_debt {
	struct lock_debt *next;
	Wire__LockAction action;
	struct lock lock;
	uint64_t ticket;
};

static void nap(int64_t ns) { nanosleep(&(struct timespec){ .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S }, NULL); }

/* ---- Asking ---- */

static struct lock_lane *lane_of(struct client *c, uint64_t inode) { return &c->locks.lanes[inode % LOCK_LANES]; }

static void lock_fill(Wire__Lock *out, const struct lock *l)
{
	wire__lock__init(out);
	out->inode = l->file;
	out->owner = l->owner;
	out->handle = l->handle;
	out->start = l->start;
	out->end = l->end;
	out->type = l->type;
	out->flock = l->flock;
	out->pid = l->pid;
}

/* With the file's lane held.  An enum lock_result, or -errno: it was refused; -EIO: perhaps it was done. */
static int lane_ask(struct client *c, Wire__LockAction action, const struct lock *l, uint64_t ticket)
{
	struct lock_lane *lane = lane_of(c, l->file);
	Wire__LockRequest request = WIRE__LOCK_REQUEST__INIT;
	Wire__Lock lock;
	ProtobufCMessage *reply;
	struct rpc_call call = { .op = WIRE__OP__LOCK, .request = &request.base, .reply = &reply };
	struct arena arena;
	int r;

	lock_fill(&lock, l);
	request.action = action;
	request.lock = &lock;
	request.wait = ticket;
	request.lane = (uint32_t)(lane - c->locks.lanes);
	request.number = ++lane->number;
	atomic_store(&c->locks.any, true);
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &call, &arena);
	if (r == 0)
		r = (int)((const Wire__LockReply *)reply)->status;
	arena_free(&arena);
	atomic_store(&lane->ended, lane->number);
	/* Whoever gets a lock looks at the file next: what was kept of it from before may be untrue. */
	if (r == LOCK_RESULT_DONE && l->type != LOCK_NONE)
		lease_await(c);
	return r;
}

/* ---- What is held ---- */

/* What the server has done is done here.  Without memory to note it, it is asked whenever it may matter. */
static void held_note(struct client *c, const struct lock *l)
{
	LOCKED(&c->locks.lock);
	if (locktable_note(c->locks.held, l) && intmap_set(&c->locks.doubtful, l->file, c))
		log_error("no memory to note a lock on inode %llu; it is held until unmounting", (unsigned long long)l->file);
}

static void held_doubt(struct client *c, const struct lock *l)
{
	LOCKED(&c->locks.lock);
	if (intmap_set(&c->locks.doubtful, l->file, c))
		log_error("no memory to note a lock on inode %llu; it may be held until unmounting", (unsigned long long)l->file);
}

/* Brings what is noted in line with what the server answered to LOCK_SET.  The lane is held. */
static int held_follow(struct client *c, const struct lock *l, int result)
{
	struct lock none = *l;

	none.type = LOCK_NONE;
	if (result == LOCK_RESULT_DONE)
		held_note(c, l);
	else if (l->flock && (result == LOCK_RESULT_BUSY || result == LOCK_RESULT_QUEUED))
		held_note(c, &none); /* the old one was given up for the new one */
	return result;
}

static int result_error(int result)
{
	switch (result) {
	case LOCK_RESULT_DONE: return 0;
	case LOCK_RESULT_QUEUED: return -EINPROGRESS;
	case LOCK_RESULT_DEADLOCK: return -EDEADLK;
	default: return result < 0 ? result : -EAGAIN;
	}
}

/* ---- Debts ---- */

static void debt_add(struct client *c, Wire__LockAction action, const struct lock *l, uint64_t ticket)
{
	struct lock_debt *d = malloc(sizeof(*d));

	if (!d) {
		log_error("no memory: a lock on inode %llu may be held until unmounting", (unsigned long long)l->file);
		return;
	}
	LOCKED(&c->locks.lock);
	*d = (struct lock_debt){ .next = c->locks.debts, .action = action, .lock = *l, .ticket = ticket };
	c->locks.debts = d;
	pthread_cond_signal(&c->locks.work);
}

/* A wait that nobody wants any more may have been granted. */
static int debt_pay(struct client *c, const struct lock_debt *d)
{
	struct lock none = d->lock;
	int r;
	LOCKED(&lane_of(c, d->lock.file)->lock);

	none.type = LOCK_NONE;
	r = lane_ask(c, d->action, &d->lock, d->ticket);
	if (r == LOCK_RESULT_DONE && d->action == WIRE__LOCK_ACTION__LOCK_CANCEL)
		r = held_follow(c, &none, lane_ask(c, WIRE__LOCK_ACTION__LOCK_SET, &none, 0));
	return r < 0 ? r : 0;
}

/* Until one fails; the lock is held, and released meanwhile. */
static bool debts_pay(struct client *c)
{
	struct lock_debt *d;
	int r = 0;

	while (!r && !c->locks.stopping && (d = c->locks.debts)) {
		c->locks.debts = d->next;
		pthread_mutex_unlock(&c->locks.lock);
		r = debt_pay(c, d);
		pthread_mutex_lock(&c->locks.lock);
		if (r) {
			d->next = c->locks.debts;
			c->locks.debts = d;
		} else {
			free(d);
		}
	}
	return !r;
}

/* ---- Waits ---- */

static struct lock_wait **wait_find(struct client *c, uint64_t ticket)
{
	struct lock_wait **at = &c->locks.waits;

	while (*at && (*at)->ticket != ticket)
		at = &(*at)->next;
	return at;
}

/* What is waited for under the ticket; false: nothing. */
static bool wait_lock(struct client *c, uint64_t ticket, struct lock *out)
{
	struct lock_wait *w;
	LOCKED(&c->locks.lock);

	w = *wait_find(c, ticket);
	if (w)
		*out = w->lock;
	return w;
}

static void wait_end(struct client *c, uint64_t ticket, int status)
{
	struct lock_wait **at, *w;
	LOCKED(&c->locks.lock);

	at = wait_find(c, ticket);
	w = *at;
	if (!w)
		return;
	*at = w->next;
	w->done(w->context, status);
	free(w);
}

/* The server says that it was granted, or has forgotten it: setting it again takes it, or queues it again. */
static int wait_confirm(struct client *c, uint64_t ticket)
{
	struct lock l;
	int r;

	if (!wait_lock(c, ticket, &l))
		return -ENOENT;
	LOCKED(&lane_of(c, l.file)->lock);
	if (!wait_lock(c, ticket, &l))
		return 0;
	r = held_follow(c, &l, lane_ask(c, WIRE__LOCK_ACTION__LOCK_SET, &l, ticket));
	if (r != LOCK_RESULT_QUEUED && r != -EIO)
		wait_end(c, ticket, result_error(r));
	return r < 0 ? r : 0;
}

void client_lock_cancel(struct client *c, uint64_t ticket)
{
	struct lock l;
	int r;

	if (!wait_lock(c, ticket, &l))
		return;
	LOCKED(&lane_of(c, l.file)->lock);
	if (!wait_lock(c, ticket, &l))
		return;
	r = lane_ask(c, WIRE__LOCK_ACTION__LOCK_CANCEL, &l, ticket);
	if (r == LOCK_RESULT_DONE)
		held_note(c, &l);
	else if (r < 0)
		debt_add(c, WIRE__LOCK_ACTION__LOCK_CANCEL, &l, ticket);
	wait_end(c, ticket, r == LOCK_RESULT_DONE ? 0 : -EINTR);
}

/* Their places at the server go with the session. */
void client_lock_cancel_all(struct client *c)
{
	struct lock_wait *w;
	LOCKED(&c->locks.lock);

	c->locks.ended = true;
	while ((w = c->locks.waits)) {
		c->locks.waits = w->next;
		w->done(w->context, -EINTR);
		free(w);
	}
}

/* -EINTR: nobody may wait any more. */
static int wait_add(struct client *c, struct lock_wait *w)
{
	LOCKED(&c->locks.lock);
	if (c->locks.ended)
		return -EINTR;
	w->next = c->locks.waits;
	c->locks.waits = w;
	pthread_cond_signal(&c->locks.work);
	return -EINPROGRESS;
}

/* ---- The calls ---- */

uint64_t client_lock_ticket(struct client *c) { return atomic_fetch_add(&c->locks.tickets, 1) + 1; }

int client_lock_wait(struct client *c, const struct lock *l, uint64_t ticket, void (*done)(void *context, int status),
		     void *context)
{
	struct lock_wait *w = malloc(sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	*w = (struct lock_wait){ .lock = *l, .ticket = ticket, .done = done, .context = context };
	LOCKED(&lane_of(c, l->file)->lock);
	r = result_error(held_follow(c, l, lane_ask(c, WIRE__LOCK_ACTION__LOCK_SET, l, ticket)));
	if (r == -EIO)
		debt_add(c, WIRE__LOCK_ACTION__LOCK_CANCEL, l, ticket);
	if (r == -EINPROGRESS)
		r = wait_add(c, w);
	if (r != -EINPROGRESS)
		free(w);
	return r;
}

static int lock_once(struct client *c, const struct lock *l)
{
	int r;
	LOCKED(&lane_of(c, l->file)->lock);

	r = held_follow(c, l, lane_ask(c, WIRE__LOCK_ACTION__LOCK_SET, l, 0));
	if (r == -EIO && l->type != LOCK_NONE)
		held_doubt(c, l);
	return r;
}

/* The kernel does not wait for us when an open file goes that has a flock or an OFD lock, so who finds one taken may
 * have heard of its release before the server has. */
static const int64_t busy_naps_ns[] = { 300000, 700000 };

int client_lock(struct client *c, const struct lock *l)
{
	int64_t deadline = clock_steady_ns() + c->timeout_ms * NS_PER_MS;
	size_t naps = 0;

	for (;;) {
		int r = lock_once(c, l);

		if (r == LOCK_RESULT_FROZEN && clock_steady_ns() < deadline)
			nap(LATER_NS);
		else if (r == LOCK_RESULT_BUSY && naps < sizeof(busy_naps_ns) / sizeof(busy_naps_ns[0]))
			nap(busy_naps_ns[naps++]);
		else
			return result_error(r);
	}
}

static int test_once(struct client *c, const struct lock *l, struct lock *found)
{
	Wire__LockRequest request = WIRE__LOCK_REQUEST__INIT;
	Wire__Lock lock;
	const Wire__LockReply *reply;
	ProtobufCMessage *message;
	struct rpc_call call = { .op = WIRE__OP__LOCK, .request = &request.base, .reply = &message };
	struct arena arena;
	int r;

	lock_fill(&lock, l);
	request.action = WIRE__LOCK_ACTION__LOCK_TEST;
	request.lock = &lock;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &call, &arena);
	reply = (const Wire__LockReply *)message;
	if (r == 0)
		r = (int)reply->status;
	if (r == LOCK_RESULT_BUSY && !reply->found)
		r = -EBADMSG;
	if (r == LOCK_RESULT_BUSY)
		*found = (struct lock){ .file = l->file,
					.start = reply->found->start,
					.end = reply->found->end,
					.type = reply->found->type == LOCK_EXCLUSIVE ? LOCK_EXCLUSIVE : LOCK_SHARED,
					.flock = reply->found->flock,
					.pid = reply->found->pid };
	arena_free(&arena);
	return r;
}

int client_lock_test(struct client *c, const struct lock *l, struct lock *found)
{
	int64_t deadline = clock_steady_ns() + c->timeout_ms * NS_PER_MS;
	int r;

	while ((r = test_once(c, l, found)) == LOCK_RESULT_FROZEN && clock_steady_ns() < deadline)
		nap(LATER_NS);
	if (r == LOCK_RESULT_BUSY && !lock_is_sound(found))
		return -EIO;
	return r == LOCK_RESULT_DONE || r == LOCK_RESULT_BUSY ? r : result_error(r);
}

/* ---- Closing ---- */

static bool owner_may_have_any(struct client *c, uint64_t inode, uint64_t owner)
{
	LOCKED(&c->locks.lock);
	return locktable_owns(c->locks.held, inode, 0, owner) || intmap_get(&c->locks.doubtful, inode);
}

/* Whether or not the server hears it now: nobody is left to ask again. */
static int drop(struct client *c, Wire__LockAction action, const struct lock *like)
{
	int r;
	LOCKED(&lane_of(c, like->file)->lock);

	r = lane_ask(c, action, like, 0);
	if (r < 0)
		debt_add(c, action, like, 0);
	LOCKED(&c->locks.lock);
	if (action == WIRE__LOCK_ACTION__LOCK_DROP_OWNER)
		locktable_drop_owner(c->locks.held, like->file, 0, like->owner);
	else
		locktable_drop_handle(c->locks.held, like->file, 0, like->handle);
	return r;
}

int client_unlock_owner(struct client *c, uint64_t inode, uint64_t owner)
{
	if (!atomic_load(&c->locks.any) || !owner_may_have_any(c, inode, owner))
		return 0;
	return drop(c, WIRE__LOCK_ACTION__LOCK_DROP_OWNER, &(struct lock){ .file = inode, .owner = owner });
}

void client_unlock_handle(struct client *c, uint64_t inode, uint64_t handle)
{
	drop(c, WIRE__LOCK_ACTION__LOCK_DROP_HANDLE, &(struct lock){ .file = inode, .handle = handle });
}

/* ---- The server's restart ---- */

static void held_lost(struct client *c, const struct lock *l)
{
	struct lock none = *l;

	none.type = LOCK_NONE;
	held_note(c, &none);
}

static int reclaim_some(struct client *c, struct rpc *rpc, struct connection *connection, const struct lock *locks, size_t count,
			size_t *lost)
{
	Wire__LockReclaimRequest request = WIRE__LOCK_RECLAIM_REQUEST__INIT;
	const Wire__LockReclaimReply *reply;
	ProtobufCMessage *message;
	struct rpc_call call = { .op = WIRE__OP__LOCK_RECLAIM, .request = &request.base, .reply = &message };
	CLEANUP_FREE Wire__Lock *wire = calloc(count + 1, sizeof(*wire));
	CLEANUP_FREE Wire__Lock **pointers = calloc(count + 1, sizeof(*pointers));
	uint64_t numbers[LOCK_LANES];
	struct arena arena;
	int r;

	if (!wire || !pointers)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		lock_fill(&wire[i], &locks[i]);
		pointers[i] = &wire[i];
	}
	for (int i = 0; i < LOCK_LANES; i++)
		numbers[i] = atomic_load(&c->locks.lanes[i].ended);
	request.locks = pointers;
	request.n_locks = count;
	request.numbers = numbers;
	request.n_numbers = LOCK_LANES;
	arena_init(&arena, 0);
	r = rpc_call_on(rpc, connection, &call, &arena);
	reply = (const Wire__LockReclaimReply *)message;
	for (size_t i = 0; r == 0 && i < reply->n_lost; i++) {
		if (reply->lost[i] < count)
			held_lost(c, &locks[reply->lost[i]]);
		++*lost;
	}
	arena_free(&arena);
	return r;
}

static int held_list(struct client *c, struct lock **out, size_t *count)
{
	LOCKED(&c->locks.lock);
	*count = locktable_held(c->locks.held, 0);
	*out = malloc((*count + 1) * sizeof(**out));
	if (!*out)
		return -ENOMEM;
	locktable_list(c->locks.held, 0, *out, *count);
	return 0;
}

/* The new server knows of no waits.  The LOCK_WAIT under way would listen for them in vain. */
static void waits_forgotten(struct client *c)
{
	LOCKED(&c->locks.lock);
	c->locks.requeue = true;
	rpc_cancel(c->rpc, &c->locks.call);
	pthread_cond_signal(&c->locks.work);
}

int locks_restarted(struct client *c, struct rpc *rpc, struct connection *connection)
{
	CLEANUP_FREE struct lock *locks = NULL;
	size_t count, done = 0, lost = 0;
	int r;

	if (!atomic_load(&c->locks.any))
		return 0;
	waits_forgotten(c);
	r = held_list(c, &locks, &count);
	while (r == 0 && (done < count || !done)) {
		size_t some = count - done < RECLAIM_AT_ONCE ? count - done : RECLAIM_AT_ONCE;

		r = reclaim_some(c, rpc, connection, locks + done, some, &lost);
		done += some;
		if (!some)
			break;
	}
	if (lost)
		log_error("volume %s: %zu of %zu locks were lost, as others had them when the server came back", c->volume.name,
			  lost, count);
	return r;
}

/* ---- The thread ---- */

/* The numbers of what was granted; how many, or -errno. */
static int granted_ask(struct client *c, struct arena *arena, uint64_t **out)
{
	Wire__Empty request = WIRE__EMPTY__INIT;
	ProtobufCMessage *reply;
	int r;

	c->locks.call.request = &request.base;
	c->locks.call.reply = &reply;
	r = rpc_call(c->rpc, &c->locks.call, arena);
	if (r < 0)
		return r;
	*out = ((Wire__LockWaitReply *)reply)->granted;
	return (int)((Wire__LockWaitReply *)reply)->n_granted;
}

static int64_t granted_confirm(struct client *c)
{
	struct arena arena;
	uint64_t *granted;
	int64_t pause = 0;
	int n;

	arena_init(&arena, 0);
	n = granted_ask(c, &arena, &granted);
	if (n < 0)
		pause = n == -ECANCELED ? 0 : PAUSE_NS;
	for (int i = 0; i < n; i++) {
		int r = wait_confirm(c, granted[i]);

		if (r < 0)
			pause = r == -ENOENT ? STRANGE_NS : PAUSE_NS;
	}
	arena_free(&arena);
	return pause;
}

/* The tickets of all waits; the lock is held. */
static uint64_t *waits_list(struct client *c, size_t *count)
{
	uint64_t *out;

	*count = 0;
	for (const struct lock_wait *w = c->locks.waits; w; w = w->next)
		++*count;
	out = malloc((*count + 1) * sizeof(*out));
	if (out)
		*count = 0;
	for (const struct lock_wait *w = c->locks.waits; w && out; w = w->next)
		out[(*count)++] = w->ticket;
	return out;
}

/* The lock is held, and released meanwhile. */
static int64_t waits_requeue(struct client *c)
{
	size_t count;
	CLEANUP_FREE uint64_t *tickets = waits_list(c, &count);
	int64_t pause = 0;

	c->locks.requeue = !tickets;
	if (!tickets)
		return PAUSE_NS;
	pthread_mutex_unlock(&c->locks.lock);
	for (size_t i = 0; i < count; i++)
		if (wait_confirm(c, tickets[i]) == -EIO)
			pause = PAUSE_NS;
	pthread_mutex_lock(&c->locks.lock);
	c->locks.requeue |= pause != 0;
	return pause;
}

static void *locks_run(void *context)
{
	struct client *c = context;
	struct locks *k = &c->locks;

	pthread_mutex_lock(&k->lock);
	while (!k->stopping) {
		int64_t pause = debts_pay(c) ? 0 : DEBT_NS;

		if (k->requeue && !pause) {
			pause = waits_requeue(c);
		} else if (k->waits && !k->stopping) {
			k->call.cancelled = false;
			pthread_mutex_unlock(&k->lock);
			pause = granted_confirm(c);
			pthread_mutex_lock(&k->lock);
		} else if (!pause && !k->stopping) {
			pthread_cond_wait(&k->work, &k->lock);
		}
		if (pause && !k->stopping)
			cond_wait_until(&k->work, &k->lock, monotonic_ns() + pause);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

/* ---- Life ---- */

int locks_init(struct locks *k)
{
	for (int i = 0; i < LOCK_LANES; i++)
		pthread_mutex_init(&k->lanes[i].lock, NULL);
	pthread_mutex_init(&k->lock, NULL);
	cond_init_monotonic(&k->work);
	k->held = locktable_new(NULL, NULL);
	return k->held ? 0 : -ENOMEM;
}

void locks_free(struct locks *k)
{
	struct lock_debt *d;

	if (!k->held)
		return;
	while ((d = k->debts)) {
		k->debts = d->next;
		free(d);
	}
	locktable_free(k->held);
	intmap_free(&k->doubtful);
	for (int i = 0; i < LOCK_LANES; i++)
		pthread_mutex_destroy(&k->lanes[i].lock);
	pthread_mutex_destroy(&k->lock);
	pthread_cond_destroy(&k->work);
}

int locks_start(struct client *c)
{
	int r;

	c->locks.call = (struct rpc_call){ .op = WIRE__OP__LOCK_WAIT, .timeout_ms = CALL_TIMEOUT_MS };
	r = -pthread_create(&c->locks.thread, NULL, locks_run, c);
	c->locks.started = r == 0;
	return r;
}

void locks_stop(struct client *c)
{
	client_lock_cancel_all(c);
	if (!c->locks.started)
		return;
	pthread_mutex_lock(&c->locks.lock);
	c->locks.stopping = true;
	pthread_cond_signal(&c->locks.work);
	rpc_cancel(c->rpc, &c->locks.call);
	pthread_mutex_unlock(&c->locks.lock);
	pthread_join(c->locks.thread, NULL);
	c->locks.started = false;
}
