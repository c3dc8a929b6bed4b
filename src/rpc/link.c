#include "rpc/link.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define IDLE_NS (30 * NS_PER_S)
#define HELLO_ARENA (1u << 20)

/* ---- Links and their pool; the lock is held ---- */

static void link_unlist(struct rpc *r, struct link *l)
{
	*(l->all_before ? &l->all_before->all_next : &r->all) = l->all_next;
	if (l->all_next)
		l->all_next->all_before = l->all_before;
}

static void link_drop(struct rpc *r, struct link *l)
{
	link_unlist(r, l);
	connection_free(l->c);
	free(l);
}

static struct link *pool_remove(struct rpc *r, struct link *l)
{
	*(l->newer ? &l->newer->older : &r->newest) = l->older;
	*(l->older ? &l->older->newer : &r->oldest) = l->newer;
	l->older = l->newer = NULL;
	return l;
}

static void pool_expire(struct rpc *r, int64_t now_ns)
{
	while (r->oldest && now_ns - r->oldest->idle_since_ns > IDLE_NS)
		link_drop(r, pool_remove(r, r->oldest));
}

static void pool_empty(struct rpc *r)
{
	while (r->newest)
		link_drop(r, pool_remove(r, r->newest));
}

void link_put(struct rpc *r, struct link *l)
{
	LOCKED(&r->lock);
	if (r->aborted || l->instance != r->instance || l->generation != r->generation) {
		link_drop(r, l);
		return;
	}
	l->idle_since_ns = clock_steady_ns();
	l->older = r->newest;
	l->newer = NULL;
	*(r->newest ? &r->newest->newer : &r->oldest) = l;
	r->newest = l;
	pool_expire(r, l->idle_since_ns);
	pthread_cond_signal(&r->changed);
}

void link_lose(struct rpc *r, struct link *l)
{
	LOCKED(&r->lock);
	link_drop(r, l);
}

/* ---- Making links ---- */

static int link_new(struct rpc *r, const char *address, int64_t timeout_ms, struct link **out, char *why, size_t why_size)
{
	struct link *l = calloc(1, sizeof(*l));
	int fd, n;

	if (!l)
		return -ENOMEM;
	n = address_connect(address, timeout_ms, &fd, why, why_size);
	if (!n)
		n = connection_new(fd, &l->c);
	if (n) {
		free(l);
		return n;
	}
	connection_set_timeout(l->c, timeout_ms);
	LOCKED(&r->lock);
	l->all_next = r->all;
	if (r->all)
		r->all->all_before = l;
	r->all = l;
	if (r->aborted)
		connection_shutdown(l->c);
	*out = l;
	return 0;
}

/* -ETIMEDOUT: it did not answer.  `refused`: it did, and asking again is no use. */
static int hello(struct rpc *r, struct link *l, const char *address, struct arena *arena, Wire__HelloReply **reply, bool *refused,
		 char *error, size_t error_size)
{
	ProtobufCMessage *message = NULL;
	char why[400] = "";
	struct rpc_call call = {
		.op = WIRE__OP__HELLO, .request = &r->hello.base, .reply = &message, .why = why, .why_size = sizeof(why)
	};
	struct flight none = { 0 };
	enum outcome outcome;
	int n;

	r->hello.session = r->session;
	n = exchange(r, l->c, ++l->last_id, &call, &none, arena, &outcome);
	*reply = (Wire__HelloReply *)message;
	if (!n)
		return 0;
	if (why[0])
		snprintf(error, error_size, "%s", why);
	else
		snprintf(error, error_size, "the server at %s did not say hello: %s", address,
			 outcome == OUTCOME_LOST ? "the connection was cut" : strerror(-n));
	/* Refusals that pass by themselves count as a server that is away. */
	*refused = outcome == OUTCOME_ANSWERED && n != -EAGAIN && n != -EBUSY && n != -ESHUTDOWN;
	return *refused || (outcome == OUTCOME_LOST && n == -ETIMEDOUT) ? n : -ECONNRESET;
}

static int link_open_at(struct rpc *r, const char *address, int64_t timeout_ms, struct arena *arena, Wire__HelloReply **reply,
			struct link **out, bool *refused, char *error, size_t error_size)
{
	int64_t deadline_ns = clock_steady_ns() + timeout_ms * NS_PER_MS, left_ms;
	char why[400] = "";
	int n = link_new(r, address, timeout_ms, out, why, sizeof(why));

	if (n) {
		snprintf(error, error_size, "cannot reach the server at %s: %s", address, why[0] ? why : strerror(-n));
		return n == -ETIMEDOUT ? -EHOSTUNREACH : n;
	}
	left_ms = (deadline_ns - clock_steady_ns()) / NS_PER_MS;
	connection_set_timeout((*out)->c, left_ms > 0 ? left_ms : 1);
	n = hello(r, *out, address, arena, reply, refused, error, error_size);
	if (n == -ETIMEDOUT && !*refused)
		snprintf(error, error_size, "the server at %s did not answer within %" PRId64 " s", address,
			 (timeout_ms + 999) / 1000);
	if (n)
		link_lose(r, *out);
	return n;
}

/* The address that worked last comes first.  Each has its part of the time that is left. */
int link_open(struct rpc *r, int64_t timeout_ms, struct arena *arena, Wire__HelloReply **reply, struct link **out, bool *refused,
	      char *error, size_t error_size)
{
	int64_t deadline_ns = clock_steady_ns() + timeout_ms * NS_PER_MS;
	int n = -ECONNREFUSED;

	*refused = false;
	for (int i = 0; i < r->address_count && !*refused; i++) {
		int64_t left_ms = (deadline_ns - clock_steady_ns() + NS_PER_MS - 1) / NS_PER_MS / (r->address_count - i);
		int k = (r->address + i) % r->address_count;

		n = link_open_at(r, r->addresses[k], left_ms > 0 ? left_ms : 1, arena, reply, out, refused, error, error_size);
		if (!n) {
			r->address = k;
			return 0;
		}
	}
	return n;
}

/* Tells `restarted` where the server is not the one, or the session not the one,
 * that it was.  Others wait meanwhile. */
static int link_recover(struct rpc *r, struct link *l, const Wire__HelloReply *hello)
{
	bool known;
	int n = 0;

	pthread_mutex_lock(&r->lock);
	if (hello->session != r->session) {
		r->session = hello->session;
		r->generation++;
		r->session_lost = true;
	}
	l->instance = hello->instance;
	l->generation = r->generation;
	known = !r->session_lost;
	if (hello->instance == r->instance && known) {
		pthread_mutex_unlock(&r->lock);
		return 0;
	}
	r->recovering = true;
	pool_empty(r);
	pthread_mutex_unlock(&r->lock);

	if (r->restarted)
		n = r->restarted(r->context, r, l->c, known);

	pthread_mutex_lock(&r->lock);
	if (!n) {
		r->instance = hello->instance;
		r->session_lost = false;
	}
	r->recovering = false;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	return n ? -ECONNRESET : 0;
}

/* One try.  -ECONNRESET and the like: worth trying again; anything that the
 * server said: not. */
static int link_make(struct rpc *r, int64_t timeout_ms, struct link **out, bool *refused)
{
	int64_t deadline_ns = clock_steady_ns() + timeout_ms * NS_PER_MS, most_ms = (int64_t)ATTEMPT_MS * r->address_count,
		left_ms;
	char error[500] = "";
	struct arena arena;
	Wire__HelloReply *reply;
	struct link *l;
	int n;

	arena_init(&arena, HELLO_ARENA);
	/* A hello may be lost on its way, and all calls wait for it: who has a session can say it again. */
	n = link_open(r, r->hello.mount && most_ms < timeout_ms ? most_ms : timeout_ms, &arena, &reply, &l, refused, error,
		      sizeof(error));
	if (!n) {
		left_ms = (deadline_ns - clock_steady_ns()) / NS_PER_MS;
		connection_set_timeout(l->c, left_ms > 0 ? left_ms : 1);
		n = link_recover(r, l, reply);
		if (n)
			link_lose(r, l);
	}
	arena_free(&arena);
	if (n && (!r->away_logged || *refused)) {
		log_warn("%s", error[0] ? error : "could not take up the session again; trying on");
		r->away_logged = true;
	} else if (!n) {
		if (r->away_logged)
			log_info("connected to the server at %s again", r->addresses[r->address]);
		r->away_logged = false;
		*out = l;
	}
	return n;
}

/* ---- Taking a link ---- */

/* The lock is held.  Waits for a change until `until_ns`, but a second at most:
 * the condition's clock stands still while the machine sleeps, ours does not. */
void link_wait(struct rpc *r, int64_t until_ns)
{
	struct timespec t;
	int64_t left = until_ns - clock_steady_ns(), ns;

	if (left <= 0)
		return;
	clock_gettime(CLOCK_MONOTONIC, &t);
	ns = t.tv_nsec + (left < NS_PER_S ? left : NS_PER_S);
	t.tv_sec += ns / NS_PER_S;
	t.tv_nsec = ns % NS_PER_S;
	pthread_cond_timedwait(&r->changed, &r->lock, &t);
}

/* The lock is held, and released meanwhile. */
static int connect_as_the_only_one(struct rpc *r, int64_t deadline_ns, struct link **out, bool *refused)
{
	int64_t left_ms = (deadline_ns - clock_steady_ns()) / NS_PER_MS;
	int n;

	r->connecting = true;
	pthread_mutex_unlock(&r->lock);
	n = link_make(r, left_ms > 0 ? left_ms : 1, out, refused);
	pthread_mutex_lock(&r->lock);
	r->connecting = false;
	if (n) {
		r->backoff_ms = r->backoff_ms * 2 < BACKOFF_LAST_MS ? r->backoff_ms * 2 : BACKOFF_LAST_MS;
		if (r->backoff_ms < BACKOFF_FIRST_MS)
			r->backoff_ms = BACKOFF_FIRST_MS;
		r->next_try_ns = clock_steady_ns() + r->backoff_ms * NS_PER_MS;
	} else {
		r->backoff_ms = 0;
		r->next_try_ns = 0;
	}
	pthread_cond_broadcast(&r->changed);
	return n;
}

int link_take(struct rpc *r, int64_t deadline_ns, int64_t unreached_ns, struct link **out)
{
	LOCKED(&r->lock);
	for (;;) {
		int64_t now = clock_steady_ns();
		bool refused = false;

		if (r->aborted || now >= deadline_ns)
			return -EIO;
		pool_expire(r, now);
		if (r->recovering) {
			link_wait(r, deadline_ns);
		} else if (r->newest) {
			*out = pool_remove(r, r->newest);
			return 0;
		} else if (r->backoff_ms && now >= unreached_ns) {
			return -EIO; /* whoever tried last found nobody */
		} else if (r->connecting) {
			link_wait(r, deadline_ns);
		} else if (now < r->next_try_ns) {
			link_wait(r, r->next_try_ns < deadline_ns ? r->next_try_ns : deadline_ns);
		} else if (!connect_as_the_only_one(r, deadline_ns, out, &refused)) {
			return 0;
		} else if (refused) {
			return -EIO;
		}
	}
}

void links_drop_all(struct rpc *r)
{
	while (r->all)
		link_drop(r, r->all);
	r->newest = r->oldest = NULL;
}
