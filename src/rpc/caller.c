/* A call, when all is well: an idle link is taken from the pool, the request
 * sent, the reply received, the link put back.
 *
 * When not: the link is dropped and the call begins again.  One thread at a time
 * makes new links (`connecting`), the others wait for it or for a link put back;
 * so a server that is away is knocked at by one thread, at growing intervals, and
 * a session that has ended is replaced once, not once a thread.  A new link says
 * hello; if the reply shows another instance or another session, `recovering`
 * holds up all other calls until `restarted` has succeeded on that link.
 *
 * `generation` counts the sessions we have had.  A mutation sent in one of them
 * cannot be asked for in the next: it may or may not have been done, so it fails. */
#include "rpc/caller.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "rpc/schema.h"

#define IDLE_NS (30 * NS_PER_S)
#define BACKOFF_FIRST_MS 10
#define BACKOFF_LAST_MS 500
#define TIMEOUT_DEFAULT_MS 60000
#define HELLO_ARENA (1u << 20)

/* A connection of ours: in `all` from birth to death, in `idle` while nobody uses it. */
struct link {
	struct connection *c;
	struct link *all_next, *all_before;
	struct link *older, *newer;         /* in the pool */
	int64_t idle_since_ns;
	uint64_t last_id;
	uint64_t instance, generation;
};

/* A numbered mutation that has not been answered. */
struct flight {
	uint64_t number;                    /* 0: not a mutation of a session */
	struct flight *next, *before;
	bool sent;
	uint64_t generation;                /* of the session it was sent in */
};

struct rpc {
	char *servers;                      /* NUL-separated */
	const char **addresses;
	int address_count, address;         /* `address`: the one that worked last */
	int64_t timeout_ms;
	Wire__HelloRequest hello;           /* its strings are ours */
	int (*restarted)(void *, struct rpc *, struct connection *, bool);
	void *context;
	_Atomic int64_t clock_offset_ns;    /* server's wall clock minus ours */

	pthread_mutex_t lock;               /* guards all below */
	pthread_cond_t changed;
	bool aborted, connecting, recovering, away_logged;
	bool session_lost;                  /* the new one has not been told to `restarted` yet */
	uint64_t session, instance, generation;
	int backoff_ms;
	int64_t next_try_ns;
	struct link *all, *newest, *oldest;
	uint64_t next_number;
	struct flight *first, *last;        /* in the order of their numbers */
};

/* ---- Numbers ---- */

static void flight_begin(struct rpc *r, struct flight *f)
{
	LOCKED(&r->lock);
	f->number = r->next_number++;
	f->before = r->last;
	*(r->last ? &r->last->next : &r->first) = f;
	r->last = f;
}

static void flight_end(struct rpc *r, struct flight *f)
{
	LOCKED(&r->lock);
	*(f->before ? &f->before->next : &r->first) = f->next;
	*(f->next ? &f->next->before : &r->last) = f->before;
}

static uint64_t answered_below(struct rpc *r)
{
	LOCKED(&r->lock);
	return r->first ? r->first->number : r->next_number;
}

/* ---- The server's clock ---- */

/* The reply's clock was read between `sent` and now, both by our clock: that
 * bounds the difference.  The estimate moves only when it is out of bounds, so it
 * is exactly 0 where both sides read the same clock. */
static void clock_learn(struct rpc *r, int64_t server_ns, int64_t sent_ns)
{
	int64_t low = server_ns - clock_wall_ns(), high = server_ns - sent_ns;
	int64_t offset = atomic_load_explicit(&r->clock_offset_ns, memory_order_relaxed);

	if (server_ns <= 0 || low > high)
		return;
	if (offset < low || offset > high)
		atomic_store_explicit(&r->clock_offset_ns, offset < low ? low : high, memory_order_relaxed);
}

int64_t rpc_server_clock_ns(struct rpc *r)
{
	return clock_wall_ns() + atomic_load_explicit(&r->clock_offset_ns, memory_order_relaxed);
}

uint64_t rpc_session(struct rpc *r)
{
	LOCKED(&r->lock);
	return r->session;
}

/* ---- One exchange on one connection ---- */

static size_t parts_bytes(const struct iovec *parts, int count)
{
	size_t n = 0;

	for (int i = 0; i < count; i++)
		n += parts[i].iov_len;
	return n;
}

static void why_take(struct rpc_call *call, const uint8_t *message, uint32_t size, struct arena *arena)
{
	Wire__ErrorReply *e;

	if (!call->why || !call->why_size)
		return;
	call->why[0] = 0;
	e = size ? wire__error_reply__unpack(&arena->allocator, size, message) : NULL;
	if (e)
		snprintf(call->why, call->why_size, "%s", e->text);
}

/* What became of a request. */
enum outcome {
	OUTCOME_ANSWERED,           /* the result is the server's; the connection is fine */
	OUTCOME_UNSENT,             /* could not be said at all; the connection is fine */
	OUTCOME_LOST,               /* no answer: the connection is of no more use */
	OUTCOME_UNUSABLE,           /* an answer, but not one to the question: as LOST, but asking again is no use */
};

static int reply_take(struct connection *c, struct rpc_call *call, const struct schema_op *schema, const struct frame *f,
		      const uint8_t *message, struct arena *arena, enum outcome *outcome)
{
	*outcome = OUTCOME_UNUSABLE;
	if (f->status) {
		why_take(call, message, f->message_length, arena);
		if (f->bulk_length && connection_skip_bulk(c, f->bulk_length))
			*outcome = OUTCOME_LOST;
		else
			*outcome = OUTCOME_ANSWERED;
		return -(int)f->status;
	}
	if (f->bulk_length != parts_bytes(call->bulk_in, call->bulk_in_count))
		return -EBADMSG;
	if (call->reply) {
		*call->reply = protobuf_c_message_unpack(schema->reply, &arena->allocator, f->message_length, message);
		if (!*call->reply)
			return -EBADMSG;
	}
	if (f->bulk_length && connection_receive_bulk(c, call->bulk_in, call->bulk_in_count)) {
		*outcome = OUTCOME_LOST;
		return -EIO;
	}
	*outcome = OUTCOME_ANSWERED;
	return 0;
}

static int exchange(struct rpc *r, struct connection *c, uint64_t id, struct rpc_call *call, struct flight *flight,
		    struct arena *arena, enum outcome *outcome)
{
	const struct schema_op *schema = schema_find(call->op);
	struct frame f = { .op = call->op, .id = id, .number = flight->number };
	const uint8_t *message;
	int64_t sent_ns = clock_wall_ns();
	int n;

	if (f.number)
		f.clock = answered_below(r);
	n = connection_send(c, &f, call->request, call->bulk_out, call->bulk_out_count);
	if (n == -EMSGSIZE || n == -ENOMEM) {
		/* -ENOMEM may be the socket's, in mid-frame: that one is lost. */
		*outcome = n == -EMSGSIZE ? OUTCOME_UNSENT : OUTCOME_LOST;
		return n;
	}
	flight->sent = true;
	if (!n)
		n = connection_receive(c, &f, arena, &message);
	if (n == -ENOMEM) {
		*outcome = OUTCOME_UNUSABLE;
		return n;
	}
	if (n || !(f.flags & FRAME_REPLY) || f.id != id || f.op != call->op) {
		*outcome = OUTCOME_LOST;
		return n == -EAGAIN ? -ETIMEDOUT : n ? n : -EBADMSG;
	}
	clock_learn(r, (int64_t)f.clock, sent_ns);
	return reply_take(c, call, schema, &f, message, arena, outcome);
}

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

static void link_put(struct rpc *r, struct link *l)
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

static void link_lose(struct rpc *r, struct link *l)
{
	LOCKED(&r->lock);
	link_drop(r, l);
}

/* ---- Making links ---- */

static int link_new(struct rpc *r, const char *address, int64_t timeout_ms, struct link **out)
{
	struct link *l = calloc(1, sizeof(*l));
	int fd, n;

	if (!l)
		return -ENOMEM;
	n = address_connect(address, timeout_ms, &fd);
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

/* Any of the addresses, the one that worked last first. */
static int link_connect(struct rpc *r, int64_t timeout_ms, struct link **out, char *error, size_t error_size)
{
	int n = -ECONNREFUSED;

	for (int i = 0; i < r->address_count; i++) {
		int k = (r->address + i) % r->address_count;

		n = link_new(r, r->addresses[k], timeout_ms, out);
		if (!n) {
			r->address = k;
			return 0;
		}
		snprintf(error, error_size, "cannot reach the server at %s: %s", r->addresses[k], strerror(-n));
	}
	return n;
}

static int link_hello(struct rpc *r, struct link *l, struct arena *arena, Wire__HelloReply **reply, char *error, size_t error_size)
{
	ProtobufCMessage *message = NULL;
	char why[400] = "";
	struct rpc_call call = { .op = WIRE__OP__HELLO, .request = &r->hello.base, .reply = &message, .why = why, .why_size = sizeof(why) };
	struct flight none = { 0 };
	enum outcome outcome;
	int n;

	r->hello.session = r->session;
	n = exchange(r, l->c, ++l->last_id, &call, &none, arena, &outcome);
	if (n) {
		if (why[0])
			snprintf(error, error_size, "%s", why);
		else
			snprintf(error, error_size, "the server at %s did not say hello: %s", r->addresses[r->address],
				 outcome == OUTCOME_LOST ? "the connection was cut" : strerror(-n));
		/* Refusals that pass by themselves count as a server that is away. */
		return outcome != OUTCOME_ANSWERED || n == -EAGAIN || n == -EBUSY || n == -ESHUTDOWN ? -ECONNRESET : n;
	}
	*reply = (Wire__HelloReply *)message;
	return 0;
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
	char error[500] = "";
	struct arena arena;
	Wire__HelloReply *hello;
	struct link *l;
	int n = link_connect(r, timeout_ms, &l, error, sizeof(error));

	*refused = false;
	if (!n) {
		arena_init(&arena, HELLO_ARENA);
		n = link_hello(r, l, &arena, &hello, error, sizeof(error));
		*refused = n && n != -ECONNRESET;
		if (!n)
			n = link_recover(r, l, hello);
		arena_free(&arena);
		if (n)
			link_lose(r, l);
	}
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
static void wait_until(struct rpc *r, int64_t until_ns)
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

static int link_take(struct rpc *r, int64_t deadline_ns, struct link **out)
{
	LOCKED(&r->lock);
	for (;;) {
		int64_t now = clock_steady_ns();
		bool refused = false;

		if (r->aborted || now >= deadline_ns)
			return -EIO;
		pool_expire(r, now);
		if (r->recovering) {
			wait_until(r, deadline_ns);
		} else if (r->newest) {
			*out = pool_remove(r, r->newest);
			return 0;
		} else if (r->connecting) {
			wait_until(r, deadline_ns);
		} else if (now < r->next_try_ns) {
			wait_until(r, r->next_try_ns < deadline_ns ? r->next_try_ns : deadline_ns);
		} else if (!connect_as_the_only_one(r, deadline_ns, out, &refused)) {
			return 0;
		} else if (refused) {
			return -EIO;
		}
	}
}

/* ---- Calls ---- */

/* An administrator's mutation has no session to remember its answer. */
static bool repeatable(struct rpc *r, struct rpc_call *call, const struct flight *flight)
{
	if (!flight->sent || flight->number || !schema_find(call->op)->mutation)
		return true;
	if (call->why && call->why_size)
		snprintf(call->why, call->why_size, "the connection was cut before the answer came; look whether it was done");
	return false;
}

/* A server that takes connections but gives no answers is not to be called in a
 * tight loop; the first loss is usually a link that died in the pool. */
static void pause_after(struct rpc *r, int losses, int64_t deadline_ns)
{
	int64_t ms = losses < 6 ? (int64_t)BACKOFF_FIRST_MS << losses : BACKOFF_LAST_MS, until = clock_steady_ns() + ms * NS_PER_MS;

	LOCKED(&r->lock);
	while (!r->aborted && clock_steady_ns() < until && clock_steady_ns() < deadline_ns)
		wait_until(r, until < deadline_ns ? until : deadline_ns);
}

static int call_until(struct rpc *r, struct rpc_call *call, struct flight *flight, struct arena *arena)
{
	int64_t deadline_ns = clock_steady_ns() + r->timeout_ms * NS_PER_MS;
	int64_t wait_ms = r->timeout_ms;

	for (int fresh_losses = 0;;) {
		enum outcome outcome;
		struct link *l;
		int n = link_take(r, deadline_ns, &l);
		bool fresh = !n && l->last_id <= 1;

		if (n)
			return n;
		if (flight->number && flight->sent && flight->generation != l->generation) {
			link_put(r, l);
			return -EIO;
		}
		flight->generation = l->generation;
		connection_set_timeout(l->c, wait_ms);
		n = exchange(r, l->c, ++l->last_id, call, flight, arena, &outcome);
		if (outcome == OUTCOME_ANSWERED || outcome == OUTCOME_UNSENT) {
			link_put(r, l);
			return n;
		}
		link_lose(r, l);
		if (outcome == OUTCOME_UNUSABLE)
			return n;
		if (!repeatable(r, call, flight))
			return -EIO;
		if (fresh)
			pause_after(r, fresh_losses++, deadline_ns);
		wait_ms = (deadline_ns - clock_steady_ns()) / NS_PER_MS;
	}
}

static int call_check(const struct rpc_call *call)
{
	return schema_find(call->op) ? 0 : -ENOSYS;
}

int rpc_call(struct rpc *r, struct rpc_call *call, struct arena *arena)
{
	struct flight flight = { 0 };
	int n = call_check(call);

	if (n)
		return n;
	if (call->why && call->why_size)
		call->why[0] = 0;
	if (!r->hello.mount || !schema_find(call->op)->mutation)
		return call_until(r, call, &flight, arena);
	flight_begin(r, &flight);
	n = call_until(r, call, &flight, arena);
	flight_end(r, &flight);
	return n;
}

int rpc_call_on(struct rpc *r, struct connection *c, struct rpc_call *call, struct arena *arena)
{
	struct flight flight = { 0 };
	struct link *l;
	enum outcome outcome;
	int n = call_check(call);

	if (n)
		return n;
	pthread_mutex_lock(&r->lock);
	for (l = r->all; l && l->c != c; l = l->all_next)
		;
	pthread_mutex_unlock(&r->lock);
	if (!l)
		return -EINVAL;
	if (r->hello.mount && schema_find(call->op)->mutation) {
		flight_begin(r, &flight);
		n = exchange(r, c, ++l->last_id, call, &flight, arena, &outcome);
		flight_end(r, &flight);
	} else {
		n = exchange(r, c, ++l->last_id, call, &flight, arena, &outcome);
	}
	return outcome == OUTCOME_LOST ? -EIO : n;
}

/* ---- Opening and closing ---- */

static int servers_split(struct rpc *r, const char *servers)
{
	char *rest, *one;
	size_t most = 1;

	for (const char *s = servers; *s; s++)
		most += *s == ',';
	rest = r->servers = strdup(servers);
	r->addresses = calloc(most, sizeof(*r->addresses));
	if (!r->servers || !r->addresses)
		return -ENOMEM;
	while ((one = strsep(&rest, ",")))
		if (*one)
			r->addresses[r->address_count++] = one;
	return r->address_count ? 0 : -EINVAL;
}

static int hello_copy(Wire__HelloRequest *to, const Wire__HelloRequest *from)
{
	*to = *from;
	to->version = PROTOCOL_VERSION;
	to->volume = strdup(from->volume ? from->volume : "");
	to->subdir = strdup(from->subdir ? from->subdir : "");
	to->host = strdup(from->host ? from->host : "");
	to->mount_point = strdup(from->mount_point ? from->mount_point : "");
	return to->volume && to->subdir && to->host && to->mount_point ? 0 : -ENOMEM;
}

static int rpc_first_link(struct rpc *r, struct arena *arena, Wire__HelloReply **reply, char *error, size_t error_size)
{
	struct link *l;
	int n = link_connect(r, r->timeout_ms, &l, error, error_size);

	if (n)
		return n;
	n = link_hello(r, l, arena, reply, error, error_size);
	if (n) {
		link_lose(r, l);
		return n;
	}
	r->session = (*reply)->session;
	r->instance = l->instance = (*reply)->instance;
	link_put(r, l);
	return 0;
}

int rpc_open(const struct rpc_options *options, struct arena *arena, Wire__HelloReply **hello_reply,
	     struct rpc **out, char *error, size_t error_size)
{
	struct rpc *r = calloc(1, sizeof(*r));
	pthread_condattr_t attr;
	int n;

	if (!r) {
		snprintf(error, error_size, "no memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&r->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->changed, &attr);
	pthread_condattr_destroy(&attr);
	r->timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : TIMEOUT_DEFAULT_MS;
	r->restarted = options->restarted;
	r->context = options->context;
	r->next_number = 1;
	n = hello_copy(&r->hello, &options->hello);
	if (!n)
		n = servers_split(r, options->servers);
	if (n)
		snprintf(error, error_size, n == -EINVAL ? "no server address given" : "no memory");
	else
		n = rpc_first_link(r, arena, hello_reply, error, error_size);
	if (n) {
		rpc_close(r);
		return n;
	}
	*out = r;
	return 0;
}

void rpc_abort(struct rpc *r)
{
	LOCKED(&r->lock);
	r->aborted = true;
	for (struct link *l = r->all; l; l = l->all_next)
		connection_shutdown(l->c);
	pthread_cond_broadcast(&r->changed);
}

void rpc_close(struct rpc *r)
{
	if (!r)
		return;
	while (r->all) {
		struct link *l = r->all;

		link_unlist(r, l);
		connection_free(l->c);
		free(l);
	}
	free(r->servers);
	free(r->addresses);
	free(r->hello.volume);
	free(r->hello.subdir);
	free(r->hello.host);
	free(r->hello.mount_point);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
	free(r);
}
