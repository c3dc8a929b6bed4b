#include "client/lease.h"
#include <errno.h>
#include <time.h>
#include "base/cleanup.h"
#include "client/state.h"

#define LEASE_NS (10 * NS_PER_S)
#define CALL_TIMEOUT_MS 5000 /* answered within 3 s */
#define PAUSE_NS (100 * NS_PER_MS)
#define SIGN_OF_LIFE_MS 2000

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

/* The order matters: nobody makes a file by itself once newborns_bar has returned. */
static void bar(struct client *c)
{
	atomic_store(&c->lease.until_ns, 0);
	newborns_bar(c);
	catalog_clear(&c->catalog);
	attrs_forget_all(&c->attrs);
}

void lease_session_lost(struct client *c)
{
	atomic_store(&c->lease.session_lost, true);
	bar(c);
}

void client_on_recall(struct client *c, void (*recalled)(void *context), void *context)
{
	LOCKED(&c->lease.recall_lock);
	c->lease.recalled = recalled;
	c->lease.context = context;
}

static int lease_call(struct client *c, uint64_t seen, Wire__LeaseReply *out)
{
	Wire__LeaseRequest request = WIRE__LEASE_REQUEST__INIT;
	ProtobufCMessage *reply;
	struct arena arena;
	int r;

	request.seen = seen;
	c->lease.call.request = &request.base;
	c->lease.call.reply = &reply;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &c->lease.call, &arena);
	if (r == 0 && out)
		*out = *(const Wire__LeaseReply *)reply;
	arena_free(&arena);
	return r;
}

/* Until the kernel has forgotten what it was told, and the server knows of everything we made; a server that is away
 * keeps us here.  Meanwhile the number from before tells that we are at it. */
static void recalled(struct client *c)
{
	bar(c);
	pthread_mutex_lock(&c->lease.recall_lock);
	if (c->lease.recalled)
		c->lease.recalled(c->lease.context);
	pthread_mutex_unlock(&c->lease.recall_lock);
	while (newborns_settle_within(c, SIGN_OF_LIFE_MS) < 0 && !atomic_load(&c->lease.stopping))
		lease_call(c, c->lease.number, NULL);
}

static void answered(struct client *c, const Wire__LeaseReply *reply, int64_t sent_ns)
{
	struct lease *l = &c->lease;

	if (reply->number != l->number) {
		recalled(c);
		l->number = reply->number;
	}
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
	Wire__LeaseReply reply;
	int r;

	if (atomic_exchange(&l->session_lost, false))
		l->number = 0;
	r = lease_call(c, l->number, &reply);
	if (r == 0)
		answered(c, &reply, sent_ns);
	else if (r == -EINVAL)
		l->number = 0; /* the server knows of no such state of ours */
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

void lease_init(struct lease *l) { pthread_mutex_init(&l->recall_lock, NULL); }

void lease_free(struct lease *l) { pthread_mutex_destroy(&l->recall_lock); }

int lease_start(struct client *c)
{
	int r;

	c->lease.call = (struct rpc_call){ .op = WIRE__OP__LEASE, .timeout_ms = CALL_TIMEOUT_MS };
	r = -pthread_create(&c->lease.thread, NULL, lease_run, c);
	c->lease.started = r == 0;
	return r;
}

void lease_stop(struct client *c)
{
	if (!c->lease.started)
		return;
	atomic_store(&c->lease.stopping, true);
	rpc_cancel(c->rpc, &c->lease.call);
	pthread_join(c->lease.thread, NULL);
	c->lease.started = false;
}
