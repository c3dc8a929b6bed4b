#include "server/dispatch.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/state.h"

int request_explain(struct request *q, int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(q->why, sizeof(q->why), format, arguments);
	va_end(arguments);
	return error;
}

void *request_reply(struct request *q, const ProtobufCMessageDescriptor *type)
{
	q->reply = arena_take(q->arena, type->sizeof_message);
	if (q->reply)
		protobuf_c_message_init(type, q->reply);
	return q->reply;
}

char *arena_string(struct arena *a, const char *text) { return arena_copy(a, text, strlen(text) + 1); }

static request_handler handler_of(uint16_t op)
{
	switch (op) {
	case WIRE__OP__HELLO: return serve_hello;
	case WIRE__OP__GOODBYE: return serve_goodbye;
	case WIRE__OP__RECLAIM: return serve_reclaim;
	case WIRE__OP__LEASE: return serve_lease;
	case WIRE__OP__LOCK: return serve_lock;
	case WIRE__OP__LOCK_WAIT: return serve_lock_wait;
	case WIRE__OP__LOCK_RECLAIM: return serve_lock_reclaim;
	case WIRE__OP__RESERVE: return serve_reserve;
	case WIRE__OP__STATFS: return serve_statfs;
	case WIRE__OP__OPEN: return serve_open;
	case WIRE__OP__CLOSE: return serve_close;
	case WIRE__OP__OBJECT_PUT: return serve_object_put;
	case WIRE__OP__OBJECT_GET: return serve_object_get;
	case WIRE__OP__OBJECT_OPEN: return serve_object_open;
	case WIRE__OP__JOB_START: return serve_job_start;
	case WIRE__OP__JOB_POLL: return serve_job_poll;
	case WIRE__OP__JOB_CANCEL: return serve_job_cancel;
	case WIRE__OP__STATUS: return serve_status;
	default: return NULL;
	}
}

/* ---- Mutations ---- */

/* What makes something due for the reaper. */
static bool leaves_something_to_free(uint16_t op)
{
	switch (op) {
	case WIRE__OP__UNLINK:
	case WIRE__OP__RMDIR:
	case WIRE__OP__RENAME:
	case WIRE__OP__TRASH_EMPTY:
	case WIRE__OP__VOLUME_SET:
	case WIRE__OP__VOLUME_DELETE: return true;
	default: return false;
	}
}

/* The volume whose names or limits an administrator changes behind the back of its mounts; NULL: none. */
static const char *volume_changed(uint16_t op, const ProtobufCMessage *message)
{
	const Wire__Volume *set;

	switch (op) {
	case WIRE__OP__TRASH_RESTORE: return ((const Wire__TrashRestoreRequest *)message)->volume;
	case WIRE__OP__VOLUME_SET: set = ((const Wire__VolumeSetRequest *)message)->volume; return set ? set->name : NULL;
	default: return NULL;
	}
}

/* A volume that cannot be found is left to the mutation, which says so. */
static int recall_lease(struct request *q, struct pending *n, uint16_t op)
{
	const char *name = volume_changed(op, q->message);
	const struct session *session = q->peer->session;
	Wire__Volume *v;
	int r;

	if (!name || meta_volume_find(q->server->meta, name, q->arena, &v) || (session && session->volume == v->id))
		return 0;
	r = lease_recall(q->server, q->peer->connection, v->id);
	if (!r)
		n->recalled = v->id;
	return r;
}

static void release_lease(struct pending *n)
{
	if (n->recalled)
		lease_release(n->peer->server, n->recalled);
}

/* On the writer's thread. */
static void mutation_done(struct mutation *m)
{
	struct pending *n = m->context;

	release_lease(n);
	/* The session ended before its turn came: the client is to find out by saying hello again. */
	if (m->status == -ENOTCONN) {
		connection_shutdown(n->peer->connection);
		pending_drop(n);
		return;
	}
	if (leaves_something_to_free(m->op) && !m->status)
		reaper_wake(n->peer->server);
	pending_answer(n, m->status);
}

static int submit(struct request *q, const struct op_info *info, struct pending *n)
{
	struct peer *p = q->peer;

	n->mutation = (struct mutation){
		.who = p->who,
		.number = p->session ? q->frame->number : 0,
		.answered_below = q->frame->clock,
		.op = info->op,
		.request = q->message,
		.done = mutation_done,
		.context = n,
	};
	if (!p->session) {
		meta_submit(q->server->meta, &n->mutation);
		return 0;
	}
	/* A session that is being ended takes no more mutations: its end is the last of them. */
	LOCKED(&p->session->lock);
	if (p->session->ended)
		return -ECONNRESET;
	meta_submit(q->server->meta, &n->mutation);
	return 0;
}

static int mutate(struct request *q, const struct op_info *info, const uint8_t *message)
{
	struct pending *n;
	int r;

	if (q->peer->who.read_only && !info->admin)
		return request_explain(q, -EROFS, "the volume is mounted read-only");
	n = pending_new(q->peer, q->frame);
	if (!n)
		return -ENOMEM;
	q->message = protobuf_c_message_unpack(info->request, &n->arena.allocator, q->frame->message_length, message);
	if (!q->message) {
		pending_drop(n);
		return request_explain(q, -EBADMSG, "the message of a %s request cannot be read", info->name);
	}
	r = recall_lease(q, n, info->op);
	if (!r) {
		r = submit(q, info, n);
		if (!r)
			return REQUEST_ANSWERED;
		release_lease(n);
	}
	pending_drop(n);
	return r == -ECONNRESET ? REQUEST_BROKEN : r;
}

/* ---- Everything ---- */

static int refuse_to_serve(struct request *q, const struct op_info *info)
{
	if (!info)
		return request_explain(q, -ENOSYS,
				       "this server (version %s) does not know request %u; is it older than the client?",
				       EPOCHFS_VERSION, q->frame->op);
	if (info->internal)
		return request_explain(q, -ENOSYS, "%s is the server's own business", info->name);
	if (!q->peer->greeted && info->op != WIRE__OP__HELLO)
		return request_explain(q, -EPROTO, "a connection begins with hello, not with %s", info->name);
	if (!info->admin && !q->peer->session)
		return request_explain(q, -EINVAL, "%s needs a mounted volume; this connection is for administration",
				       info->name);
	if (q->frame->bulk_length && info->op != WIRE__OP__OBJECT_PUT)
		return request_explain(q, -EBADMSG, "%s takes no bulk bytes", info->name);
	return 0;
}

static int serve_read(struct request *q, uint16_t op)
{
	int r = meta_read(q->server->meta, &q->peer->who, op, q->message, q->arena, &q->reply);

	if (r && q->reply)
		return request_explain(q, r, "%s", ((const Wire__ErrorReply *)q->reply)->text);
	return r;
}

static int serve(struct request *q, const uint8_t *message)
{
	const struct op_info *info = op_find(q->frame->op);
	request_handler handler = handler_of(q->frame->op);
	int r = refuse_to_serve(q, info);

	if (r)
		return r;
	if (!handler && info->kind == OP_MUTATION)
		return mutate(q, info, message);
	q->message = protobuf_c_message_unpack(info->request, &q->arena->allocator, q->frame->message_length, message);
	if (!q->message)
		return request_explain(q, -EBADMSG, "the message of a %s request cannot be read", info->name);
	if (handler)
		return handler(q);
	if (info->kind == OP_READ)
		return serve_read(q, info->op);
	return request_explain(q, -ENOSYS, "this server does not serve %s", info->name);
}

int dispatch(struct peer *p, const struct frame *f, const uint8_t *message)
{
	struct request q = { .server = p->server, .peer = p, .frame = f, .arena = &p->arena };
	int r;

	if (f->flags & FRAME_REPLY)
		return -EBADMSG;
	if (p->session)
		session_heard(p->session);
	r = serve(&q, message);
	if (r == REQUEST_BROKEN)
		return -ECONNRESET;
	if (f->bulk_length && !q.bulk_taken && connection_skip_bulk(p->connection, f->bulk_length))
		return -ECONNRESET;
	if (r == REQUEST_ANSWERED)
		return 0;
	if (!r) {
		r = peer_answer(p, f, q.reply, NULL, 0);
		if (r != -EMSGSIZE)
			return r;
		request_explain(&q, r, "the answer is too long");
	}
	/* Who was not let in gets no second try. */
	return !peer_refuse(p, f, r, q.why) && p->greeted ? 0 : -ECONNRESET;
}
