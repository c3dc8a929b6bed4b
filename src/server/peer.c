#include "server/peer.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/dispatch.h"
#include "server/state.h"

#define STACK_BYTES (256u << 10)
#define FRAME_LIMIT_MS 60000 /* a frame once begun must be there by then */
#define SEND_TIMEOUT_MS 60000
#define PATIENCE_MS 100 /* how long a peer may hold up meta's writer */
#define OUTGOING_MAX (8u << 20)
#define PENDING_MAX 64
#define REQUEST_MEMORY (64u << 20) /* most that decoding one request, or answering it, may take */

struct outgoing {
	struct outgoing *next;
	struct frame frame;
	size_t size;
	uint8_t bytes[];
};

/* ---- Sending ---- */

static struct frame answer_frame(const struct peer *p, const struct frame *request, int status)
{
	return (struct frame){
		.op = request->op,
		.flags = FRAME_REPLY,
		.status = (uint32_t)-status,
		.id = request->id,
		.number = request->number,
		.clock = (uint64_t)clock_read(&p->server->clock),
	};
}

static void peer_break(struct peer *p)
{
	pthread_mutex_lock(&p->lock);
	p->broken = true;
	pthread_mutex_unlock(&p->lock);
	connection_shutdown(p->connection);
}

static void sending_begin(struct peer *p)
{
	LOCKED(&p->lock);
	while (p->sending)
		pthread_cond_wait(&p->quiet, &p->lock);
	p->sending = true;
}

static struct outgoing *outgoing_take(struct peer *p)
{
	struct outgoing *o;
	LOCKED(&p->lock);

	o = p->first;
	if (o) {
		p->first = o->next;
		p->outgoing_bytes -= o->size;
		if (!p->first)
			p->last = NULL;
	} else {
		p->sending = false;
		pthread_cond_broadcast(&p->quiet);
	}
	return o;
}

/* Sends what others left meanwhile, too. */
static void sending_end(struct peer *p, int error)
{
	struct outgoing *o;

	if (error)
		peer_break(p);
	while ((o = outgoing_take(p))) {
		if (!error) {
			error = connection_send_soon(p->connection, &o->frame, o->bytes, o->size, PATIENCE_MS);
			if (error)
				peer_break(p);
		}
		free(o);
	}
}

int peer_answer(struct peer *p, const struct frame *request, const ProtobufCMessage *reply, const struct iovec *bulk,
		int bulk_count)
{
	struct frame f = answer_frame(p, request, 0);
	int r;

	sending_begin(p);
	r = connection_send(p->connection, &f, reply, bulk, bulk_count);
	sending_end(p, r == -EMSGSIZE ? 0 : r); /* nothing of it was sent */
	return r;
}

int peer_answer_file(struct peer *p, const struct frame *request, int file, uint64_t offset, uint32_t length)
{
	struct frame f = answer_frame(p, request, 0);
	int r;

	sending_begin(p);
	r = connection_send_file(p->connection, &f, NULL, file, offset, length);
	sending_end(p, r);
	return r;
}

int peer_answer_descriptor(struct peer *p, const struct frame *request, int descriptor)
{
	struct frame f = answer_frame(p, request, 0);
	int r;

	sending_begin(p);
	r = connection_send_descriptor(p->connection, &f, NULL, NULL, 0, descriptor);
	sending_end(p, r);
	return r;
}

int peer_refuse(struct peer *p, const struct frame *request, int error, const char *text)
{
	struct frame f = answer_frame(p, request, error);
	Wire__ErrorReply reply = WIRE__ERROR_REPLY__INIT;
	int r;

	reply.text = (char *)text;
	sending_begin(p);
	r = connection_send(p->connection, &f, text && *text ? &reply.base : NULL, NULL, 0);
	sending_end(p, r);
	return r;
}

/* True if somebody is sending, who will send this as well (or the peer is lost). */
static bool outgoing_leave(struct peer *p, const struct frame *f, const struct buf *packed)
{
	struct outgoing *o;
	LOCKED(&p->lock);

	if (p->broken)
		return true;
	if (!p->sending) {
		p->sending = true;
		return false;
	}
	o = p->outgoing_bytes + packed->len <= OUTGOING_MAX ? malloc(sizeof(*o) + packed->len) : NULL;
	if (!o) {
		p->broken = true;
		connection_shutdown(p->connection);
		return true;
	}
	*o = (struct outgoing){ .frame = *f, .size = packed->len };
	if (packed->len)
		memcpy(o->bytes, packed->data, packed->len);
	*(p->last ? &p->last->next : &p->first) = o;
	p->last = o;
	p->outgoing_bytes += o->size;
	return true;
}

void pending_answer(struct pending *n, int status)
{
	struct peer *p = n->peer;
	struct frame f;

	if (n->mutation.packed.len > FRAME_MESSAGE_MAX) {
		status = -EMSGSIZE;
		buf_free(&n->mutation.packed);
	}
	f = answer_frame(p, &n->frame, status);
	if (!outgoing_leave(p, &f, &n->mutation.packed)) {
		int r = connection_send_soon(p->connection, &f, n->mutation.packed.data, n->mutation.packed.len, PATIENCE_MS);

		if (r)
			log_warn("a client does not take its answers (%s): its connection is closed", strerror(-r));
		sending_end(p, r);
	}
	pending_drop(n);
}

/* ---- Mutations on their way ---- */

static struct pending *pending_take_spare(struct peer *p)
{
	struct pending *n;
	LOCKED(&p->lock);

	while (p->pending_count >= PENDING_MAX)
		pthread_cond_wait(&p->quiet, &p->lock);
	p->pending_count++;
	n = p->spare;
	p->spare = NULL;
	return n;
}

struct pending *pending_new(struct peer *p, const struct frame *request)
{
	struct pending *n = pending_take_spare(p);

	if (!n) {
		n = malloc(sizeof(*n));
		if (!n) {
			LOCKED(&p->lock);
			p->pending_count--;
			return NULL;
		}
		arena_init(&n->arena, REQUEST_MEMORY);
	}
	n->mutation = (struct mutation){ 0 };
	n->recalled = 0;
	n->changing = n->alone = n->queued = false;
	n->frame = *request;
	n->peer = p;
	n->session = p->session;
	if (n->session)
		atomic_fetch_add(&n->session->refs, 1);
	atomic_fetch_add(&p->refs, 1);
	return n;
}

static void pending_free(struct pending *n)
{
	if (!n)
		return;
	arena_free(&n->arena);
	free(n);
}

void pending_drop(struct pending *n)
{
	struct peer *p = n->peer;

	buf_free(&n->mutation.packed);
	arena_reset(&n->arena);
	session_unref(n->session);
	pthread_mutex_lock(&p->lock);
	if (!p->spare) {
		p->spare = n;
		n = NULL;
	}
	p->pending_count--;
	pthread_cond_broadcast(&p->quiet);
	pthread_mutex_unlock(&p->lock);
	pending_free(n);
	peer_unref(p);
}

/* ---- Life ---- */

void peer_unref(struct peer *p)
{
	if (atomic_fetch_sub(&p->refs, 1) != 1)
		return;
	while (p->first) {
		struct outgoing *o = p->first;

		p->first = o->next;
		free(o);
	}
	pending_free(p->spare);
	session_unref(p->session);
	arena_free(&p->arena);
	connection_free(p->connection);
	pthread_cond_destroy(&p->quiet);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void peer_join(struct peer *p, struct session *session)
{
	struct session *before;

	pthread_mutex_lock(&p->server->peers.lock);
	before = p->session;
	p->session = session;
	pthread_mutex_unlock(&p->server->peers.lock);
	if (session)
		session_joined(session, connection_fd(p->connection), p->local);
	if (before)
		session_left(before);
	session_unref(before);
	p->who = session ? session_caller(session) : (struct caller){ 0 };
}

static void peer_leave(struct peer *p)
{
	struct peers *all = &p->server->peers;

	if (p->session)
		session_left(p->session);
	pthread_mutex_lock(&all->lock);
	*(p->before ? &p->before->next : &all->first) = p->next;
	if (p->next)
		p->next->before = p->before;
	all->count--;
	/* The server may be gone as soon as the lock is: the last look at it was now. */
	pthread_cond_broadcast(&all->gone);
	pthread_mutex_unlock(&all->lock);
}

static void *peer_run(void *context)
{
	struct peer *p = context;
	struct frame f;
	const uint8_t *message;
	sigset_t pipe;
	int r;

	/* sendfile knows no MSG_NOSIGNAL. */
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, NULL);
	for (;;) {
		/* From nobody who is not let in: closing somebody's descriptor can take as long as he likes. */
		if (p->local && p->session)
			connection_want_descriptor(p->connection); /* one that came with the request before is closed */
		r = connection_receive(p->connection, &f, &p->arena, &message);
		if (r == -EAGAIN)
			continue; /* idle, which is allowed for ever */
		if (!r)
			r = dispatch(p, &f, message);
		if (r)
			break;
		arena_reset(&p->arena);
	}
	if (r == -EBADMSG)
		log_warn("a client sent what is not our protocol: its connection is closed");
	connection_shutdown_reading(p->connection);
	peer_leave(p);
	peer_unref(p);
	return NULL;
}

static int peer_thread(struct peer *p)
{
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attr, peer_run, p);
	pthread_attr_destroy(&attr);
	return -r;
}

int peer_start(struct server *s, int fd, bool local, int refusal, const char *refusal_text)
{
	struct peers *all = &s->peers;
	struct peer *p = calloc(1, sizeof(*p));
	int r;

	if (!p) {
		close(fd);
		return -ENOMEM;
	}
	r = connection_new(fd, &p->connection);
	if (r) {
		free(p);
		return r;
	}
	connection_set_timeout(p->connection, SEND_TIMEOUT_MS);
	connection_set_frame_limit(p->connection, FRAME_LIMIT_MS);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->quiet, NULL);
	arena_init(&p->arena, REQUEST_MEMORY);
	p->server = s;
	p->refs = 1;
	p->local = local;
	p->refusal = refusal;
	p->refusal_text = refusal_text;

	pthread_mutex_lock(&all->lock);
	r = all->stopping ? -ESHUTDOWN : peer_thread(p);
	if (!r) {
		p->next = all->first;
		if (p->next)
			p->next->before = p;
		all->first = p;
		all->count++;
	}
	pthread_mutex_unlock(&all->lock);
	if (r)
		peer_unref(p);
	return r;
}

/* ---- All of them ---- */

void peers_init(struct peers *p)
{
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->gone, NULL);
}

void peers_free(struct peers *p)
{
	pthread_cond_destroy(&p->gone);
	pthread_mutex_destroy(&p->lock);
}

void peers_cut(struct server *s, const struct session *session, const struct peer *but)
{
	LOCKED(&s->peers.lock);
	for (struct peer *p = s->peers.first; p; p = p->next)
		if (p->session == session && p != but)
			connection_shutdown(p->connection);
}

static void peers_cut_all(struct peers *all)
{
	for (struct peer *p = all->first; p; p = p->next)
		connection_shutdown(p->connection);
}

void peers_stop(struct server *s)
{
	struct peers *all = &s->peers;
	struct timespec until;
	bool patient = true;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10; /* for those in the middle of something; what hangs longer is cut off */
	LOCKED(&all->lock);
	all->stopping = true;
	for (struct peer *p = all->first; p; p = p->next)
		connection_shutdown_reading(p->connection);
	while (all->first) {
		if (!patient) {
			pthread_cond_wait(&all->gone, &all->lock);
		} else if (pthread_cond_timedwait(&all->gone, &all->lock, &until) == ETIMEDOUT) {
			peers_cut_all(all);
			patient = false;
		}
	}
}
