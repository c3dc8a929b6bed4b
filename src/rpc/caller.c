#include "rpc/caller.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "rpc/link.h"
#include "rpc/schema.h"

#define PUT_ATTEMPT_MS 30000 /* a slow disk is not a dead connection */
#define TIMEOUT_DEFAULT_MS 60000

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

uint64_t rpc_exchanges(struct rpc *r) { return atomic_load_explicit(&r->exchanges, memory_order_relaxed); }

uint64_t rpc_session(struct rpc *r)
{
	LOCKED(&r->lock);
	return r->session;
}

bool rpc_is_local(const struct rpc *r)
{
	for (int i = 0; i < r->address_count; i++)
		if (strncmp(r->addresses[i], "unix:", 5) == 0)
			return true;
	return false;
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

/* Set only if all is well: what came with a refusal is closed. */
static int descriptor_take(struct connection *c, struct rpc_call *call, int error)
{
	int descriptor = connection_take_descriptor(c);

	if (!error && descriptor >= 0)
		*call->descriptor = descriptor;
	else if (descriptor >= 0)
		close(descriptor);
	return error ? error : descriptor < 0 ? -EBADMSG : 0;
}

static bool bulk_fits(const struct rpc_call *call, size_t length)
{
	size_t room = parts_bytes(call->bulk_in, call->bulk_in_count);

	return call->bulk_in_length ? length <= room : length == room;
}

static int bulk_take(struct connection *c, const struct rpc_call *call, size_t length)
{
	struct iovec part;

	if (!call->bulk_in_length)
		return connection_receive_bulk(c, call->bulk_in, call->bulk_in_count);
	part = (struct iovec){ call->bulk_in->iov_base, length };
	*call->bulk_in_length = length;
	return connection_receive_bulk(c, &part, 1);
}

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
	if (!bulk_fits(call, f->bulk_length))
		return -EBADMSG;
	if (call->reply) {
		*call->reply = protobuf_c_message_unpack(schema->reply, &arena->allocator, f->message_length, message);
		if (!*call->reply)
			return -EBADMSG;
	}
	if (f->bulk_length && bulk_take(c, call, f->bulk_length)) {
		*outcome = OUTCOME_LOST;
		return -EIO;
	}
	*outcome = OUTCOME_ANSWERED;
	return 0;
}

int exchange(struct rpc *r, struct connection *c, uint64_t id, struct rpc_call *call, struct flight *flight, struct arena *arena,
	     enum outcome *outcome)
{
	const struct schema_op *schema = schema_find(call->op);
	struct frame f = { .op = call->op, .id = id, .number = flight->number };
	const uint8_t *message;
	int64_t sent_ns = clock_wall_ns();
	int n;

	if (f.number)
		f.clock = answered_below(r);
	if (call->descriptor)
		connection_want_descriptor(c);
	n = connection_send_descriptor(c, &f, call->request, call->bulk_out, call->bulk_out_count,
				       call->descriptor_out ? *call->descriptor_out : -1);
	if (n == -EMSGSIZE || n == -ENOMEM) {
		/* -ENOMEM may be the socket's, in mid-frame: that one is lost. */
		*outcome = n == -EMSGSIZE ? OUTCOME_UNSENT : OUTCOME_LOST;
		return n;
	}
	flight->sent = true;
	atomic_fetch_add_explicit(&r->exchanges, 1, memory_order_relaxed);
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
	atomic_store_explicit(&r->heard_ns, clock_steady_ns(), memory_order_relaxed);
	n = reply_take(c, call, schema, &f, message, arena, outcome);
	return call->descriptor ? descriptor_take(c, call, n) : n;
}

/* ---- Pieces of work ---- */

/* `since_ns`: since when it waits for the server; 0: it has not begun to. */
static _Thread_local struct work {
	bool begun;
	int64_t since_ns;
} work;

void rpc_work_begin(void) { work = (struct work){ .begun = true }; }

static int64_t waits_since(struct rpc *r)
{
	int64_t now = clock_steady_ns();

	if (!work.begun)
		return now;
	if (!work.since_ns || atomic_load_explicit(&r->heard_ns, memory_order_relaxed) >= work.since_ns)
		work.since_ns = now;
	return work.since_ns;
}

bool rpc_work_waited(struct rpc *r) { return clock_steady_ns() - waits_since(r) >= r->timeout_ms * NS_PER_MS; }

/* ---- Calls ---- */

/* An administrator's mutation has no session to remember its answer. */
static bool repeatable(struct rpc *r, struct rpc_call *call, const struct flight *flight, int error)
{
	if (!flight->sent || flight->number || !schema_find(call->op)->mutation)
		return true;
	if (call->why && call->why_size)
		snprintf(call->why, call->why_size, "%s; look whether it was done",
			 error == -ETIMEDOUT ? "the server did not answer in time"
					     : "the connection was cut before the answer came");
	return false;
}

/* A server that takes connections but gives no answers is not to be called in a
 * tight loop; the first loss is usually a link that died in the pool. */
static void pause_after(struct rpc *r, int losses, int64_t deadline_ns)
{
	int64_t ms = losses < 6 ? (int64_t)BACKOFF_FIRST_MS << losses : BACKOFF_LAST_MS,
		until = clock_steady_ns() + ms * NS_PER_MS;

	LOCKED(&r->lock);
	while (!r->aborted && clock_steady_ns() < until && clock_steady_ns() < deadline_ns)
		link_wait(r, until < deadline_ns ? until : deadline_ns);
}

/* Which link the call is on from here; false: it was cancelled. */
static bool call_is_on(struct rpc *r, struct rpc_call *call, struct link *l)
{
	LOCKED(&r->lock);
	call->link = call->cancelled ? NULL : l;
	return !call->cancelled;
}

void rpc_cancel(struct rpc *r, struct rpc_call *call)
{
	LOCKED(&r->lock);
	call->cancelled = true;
	if (call->link)
		connection_shutdown(call->link->c);
}

/* One connection may be dead without anybody noticing while others work.  A goodbye is heard sooner or later: by a server that was
 * silent for long, the hello of a second try would be taken for a new mount. */
static int64_t attempt_ms(const struct rpc *r, const struct rpc_call *call, int64_t wait_ms)
{
	int64_t most = call->bulk_out_count ? PUT_ATTEMPT_MS : ATTEMPT_MS;

	return r->hello.mount && most < wait_ms && call->op != WIRE__OP__GOODBYE ? most : wait_ms;
}

static int call_until(struct rpc *r, struct rpc_call *call, struct flight *flight, struct arena *arena)
{
	int64_t wait_ms = call->timeout_ms ? call->timeout_ms : r->timeout_ms;
	int64_t since_ns = waits_since(r), deadline_ns = since_ns + wait_ms * NS_PER_MS;
	int64_t unreached_ns = call->unreached_ms ? since_ns + call->unreached_ms * NS_PER_MS : deadline_ns;

	for (int fresh_losses = 0;;) {
		enum outcome outcome;
		struct link *l;
		int n = link_take(r, deadline_ns, unreached_ns, &l);
		bool fresh = !n && l->last_id <= 1;

		if (n)
			return n;
		if (flight->number && flight->sent && flight->generation != l->generation) {
			link_put(r, l);
			return -EIO;
		}
		flight->generation = l->generation;
		connection_set_timeout(l->c, attempt_ms(r, call, wait_ms));
		if (!call_is_on(r, call, l)) {
			link_put(r, l);
			return -ECANCELED;
		}
		n = exchange(r, l->c, ++l->last_id, call, flight, arena, &outcome);
		if (!call_is_on(r, call, NULL)) {
			link_lose(r, l);
			return -ECANCELED;
		}
		if (outcome == OUTCOME_ANSWERED || outcome == OUTCOME_UNSENT) {
			link_put(r, l);
			return n;
		}
		link_lose(r, l);
		if (outcome == OUTCOME_UNUSABLE)
			return n;
		if (!repeatable(r, call, flight, n))
			return -EIO;
		if (fresh)
			pause_after(r, fresh_losses++, deadline_ns);
		wait_ms = (deadline_ns - clock_steady_ns()) / NS_PER_MS;
	}
}

static int call_check(const struct rpc_call *call) { return schema_find(call->op) ? 0 : -ENOSYS; }

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
	to->writeback_dir = strdup(from->writeback_dir ? from->writeback_dir : "");
	return to->volume && to->subdir && to->host && to->mount_point && to->writeback_dir ? 0 : -ENOMEM;
}

static int rpc_first_link(struct rpc *r, int64_t timeout_ms, struct arena *arena, Wire__HelloReply **reply, bool *refused,
			  char *error, size_t error_size)
{
	struct link *l;
	int n = link_open(r, timeout_ms, arena, reply, &l, refused, error, error_size);

	if (n == -ETIMEDOUT && !*refused && r->hello.mount) {
		size_t length = strlen(error);

		snprintf(error + length, error_size - length,
			 ": it may be waiting for a mount that does not answer; mount again, or with a longer --timeout");
	}
	if (n)
		return n;
	r->session = (*reply)->session;
	r->instance = l->instance = (*reply)->instance;
	link_put(r, l);
	return 0;
}

int rpc_open(const struct rpc_options *options, struct arena *arena, Wire__HelloReply **hello_reply, struct rpc **out,
	     char *error, size_t error_size)
{
	struct rpc *r = calloc(1, sizeof(*r));
	pthread_condattr_t attr;
	bool refused = true;
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
		n = rpc_first_link(r, options->open_timeout_ms > 0 ? options->open_timeout_ms : r->timeout_ms, arena, hello_reply,
				   &refused, error, error_size);
	if (n && !refused && options->may_be_away) {
		*hello_reply = NULL;
		n = 0;
	}
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
	links_drop_all(r);
	free(r->servers);
	free(r->addresses);
	free(r->hello.volume);
	free(r->hello.subdir);
	free(r->hello.host);
	free(r->hello.mount_point);
	free(r->hello.writeback_dir);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
	free(r);
}
