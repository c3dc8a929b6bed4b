#include "server/dispatch.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/marks.h"
#include "server/marks.h"
#include "server/state.h"
#include "server/touched.h"
#include "server/written.h"

#define LOOKS_MAX 100
#define QUEUED_MAX 256u

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
	case WIRE__OP__EXTENTS: return serve_extents;
	case WIRE__OP__CLOSE: return serve_close;
	case WIRE__OP__RETURN: return serve_return;
	case WIRE__OP__OBJECT_PUT: return serve_object_put;
	case WIRE__OP__OBJECT_GET: return serve_object_get;
	case WIRE__OP__OBJECT_OPEN: return serve_object_open;
	case WIRE__OP__JOB_START: return serve_job_start;
	case WIRE__OP__JOB_POLL: return serve_job_poll;
	case WIRE__OP__JOB_CANCEL: return serve_job_cancel;
	case WIRE__OP__STATUS: return serve_status;
	case WIRE__OP__STREAM_SNAPSHOT: return serve_stream_snapshot;
	case WIRE__OP__STREAM_FOLLOW: return serve_stream_follow;
	case WIRE__OP__MARKS_DROP: return serve_marks_drop;
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
	r = sessions_await(q->server, q->peer->connection, v->id, NULL);
	if (!r)
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

/* ---- Grants of others on what it touches ---- */

void retries_init(struct retries *t)
{
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->none, NULL);
}

void retries_free(struct retries *t)
{
	pthread_cond_destroy(&t->none);
	pthread_mutex_destroy(&t->lock);
}

static bool retry_begin(struct server *s)
{
	LOCKED(&s->retries.lock);
	s->retries.count += !s->retries.stopped;
	return !s->retries.stopped;
}

static void retry_end(struct server *s)
{
	LOCKED(&s->retries.lock);
	if (--s->retries.count == 0)
		pthread_cond_broadcast(&s->retries.none);
}

void retries_stop(struct server *s)
{
	LOCKED(&s->retries.lock);
	s->retries.stopped = true;
	while (s->retries.count)
		pthread_cond_wait(&s->retries.none, &s->retries.lock);
}

/* In company; an administrator's recalled the lease of the volume for it. */
static int touch_begin(struct pending *n)
{
	struct server *s = n->peer->server;
	struct mutation *m = &n->mutation;
	uint64_t *declared = arena_take(&n->arena, (n->touched_count + 1) * sizeof(*declared));
	int r;

	if (!declared)
		return -ENOMEM;
	m->declared_count = 0;
	for (size_t i = 0; i < n->touched_count; i++)
		if (n->touched[i].kind == TOUCH_DIRECTORY)
			declared[m->declared_count++] = n->touched[i].inode;
	/* These have GRANT_WRITE on what they change. */
	m->declared = m->op == WIRE__OP__COMMIT || m->op == WIRE__OP__MARK ? NULL : declared;
	r = grants_change_begin(s, n->peer->connection, n->session, n->volume, n->touched, n->touched_count);
	n->changing = !r;
	return r;
}

static void touch_end(struct pending *n)
{
	if (n->changing)
		grants_change_end(n->peer->server, n->volume, n->touched, n->touched_count);
	n->changing = false;
}

static int touch_find(struct request *q, struct pending *n, uint16_t op)
{
	struct session *session = q->peer->session;
	int r = 0;

	n->volume = session ? session->volume : n->recalled;
	n->touched_count = 0;
	n->mutation.op = op;
	n->mutation.declared = NULL;
	n->alone = session && !session_in_company(session);
	if (!n->volume || n->alone)
		return 0;
	r = touched_find(q->server, n->volume, op, q->message, &n->arena, &n->touched, &n->touched_count);
	return r ? r : touch_begin(n);
}

/* A file the session made is open.  Somebody else may have found and opened it already. */
static void made_grant(struct pending *n)
{
	static const uint8_t write_granted[] = { 4 << 3, WIRE__GRANT__GRANT_WRITE }; /* EntryReply.grant */
	struct mutation *m = &n->mutation;
	Wire__Grant got;

	if (m->op == WIRE__OP__CREATE && m->made && m->opened &&
	    grant_take(n->peer->server, NULL, n->session, m->opened, WIRE__GRANT__GRANT_WRITE, false, &got) == 0 &&
	    got == WIRE__GRANT__GRANT_WRITE)
		buf_append(&m->packed, write_granted, sizeof(write_granted));
}

/* Files the session makes by itself it may write to from the start: before anybody can find them.  What others have is there
 * already, and the mutation says what that means. */
static int many_grant(struct request *q, uint16_t op)
{
	const Wire__CreateManyRequest *many = (const Wire__CreateManyRequest *)q->message;
	int r = 0;

	for (size_t i = 0; op == WIRE__OP__CREATE_MANY && i < many->n_files && r != -ENOMEM; i++)
		r = grant_reclaim(q->server, q->peer->session, many->files[i]->inode, WIRE__GRANT__GRANT_WRITE);
	return r == -EBUSY || r == -EINVAL ? 0 : r;
}

static void mutation_submit(struct pending *n);
static void mutation_done(struct mutation *m);

/* What it would change is not what it was when we looked: what is missing is recalled, too, and it is tried again. */
static void *touch_again(void *context)
{
	struct pending *n = context;
	struct server *s = n->peer->server;
	struct touch *more = arena_take(&n->arena, (n->touched_count + 1) * sizeof(*more));
	int r = -ENOMEM;

	if (more) {
		if (n->touched_count)
			memcpy(more, n->touched, n->touched_count * sizeof(*more));
		more[n->touched_count++] = (struct touch){ n->mutation.undeclared, TOUCH_DIRECTORY };
		n->touched = more;
		r = touch_begin(n);
	}
	if (r) {
		n->mutation.status = r == -ECONNRESET ? -ENOTCONN : r;
		mutation_done(&n->mutation);
	} else {
		mutation_submit(n);
	}
	retry_end(s);
	return NULL;
}

static bool touch_retry(struct pending *n)
{
	struct server *s = n->peer->server;
	pthread_attr_t detached;
	pthread_t thread;
	int r;

	if (!retry_begin(s))
		return false;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &detached, touch_again, n);
	pthread_attr_destroy(&detached);
	if (r)
		retry_end(s);
	return r == 0;
}

/* Whoever has so many in the queue waits: however many requests a mount has, those of others come between. */
static void queue_room(struct session *session)
{
	while (session->queued >= QUEUED_MAX && !session->ended)
		pthread_cond_wait(&session->less, &session->lock);
}

static void queue_left(struct pending *n)
{
	if (!n->queued)
		return;
	LOCKED(&n->session->lock);
	n->queued = false;
	n->session->queued--;
	pthread_cond_signal(&n->session->less);
}

/* On the writer's thread. */
static void mutation_done(struct mutation *m)
{
	struct pending *n = m->context;

	queue_left(n);
	if (!m->status)
		made_grant(n);
	touch_end(n);
	if (m->status == -EREMCHG) {
		if (touch_retry(n))
			return;
		m->status = -ENOTCONN;
	}
	release_lease(n);
	/* The session ended before its turn came, or the server does: the client is to find out by saying hello again. */
	if (m->status == -ENOTCONN) {
		connection_shutdown(n->peer->connection);
		pending_drop(n);
		return;
	}
	if (leaves_something_to_free(m->op) && !m->status)
		reaper_wake(n->peer->server);
	pending_answer(n, m->status);
}

/* The session's lock is held: it is either queued before the session's grants are revoked, or refused here. */
static void commit_mark(const struct session *session, struct mutation *m)
{
	const Wire__CommitRequest *commit = (const Wire__CommitRequest *)m->request;
	const Wire__MarkRequest *marks = (const Wire__MarkRequest *)m->request;

	for (size_t i = 0; m->op == WIRE__OP__MARK && i < marks->n_marks; i++)
		marks->marks[i]->revoked = marks->marks[i]->lease < session->revoked;
	if (m->op != WIRE__OP__COMMIT)
		return;
	for (size_t i = 0; i < commit->n_files; i++)
		commit->files[i]->revoked = commit->files[i]->lease < session->revoked;
}

/* A session that is being ended takes no more mutations: its end is the last of them.  -EAGAIN: company came after it was
 * looked for; what is queued before it comes is done before it sees anything. */
static int mutation_queue(struct pending *n)
{
	struct session *session = n->session;

	if (session) {
		LOCKED(&session->lock);
		queue_room(session);
		if (session->ended)
			return -ECONNRESET;
		if (n->alone && session->company)
			return -EAGAIN;
		n->queued = true;
		session->queued++;
		commit_mark(session, &n->mutation);
		meta_submit(n->peer->server->meta, &n->mutation);
		return 0;
	}
	meta_submit(n->peer->server->meta, &n->mutation);
	return 0;
}

static void mutation_submit(struct pending *n)
{
	if (mutation_queue(n)) {
		n->mutation.status = -ENOTCONN;
		mutation_done(&n->mutation);
	}
}

static int submit(struct request *q, const struct op_info *info, struct pending *n)
{
	struct peer *p = q->peer;

	n->mutation.who = p->who;
	n->mutation.number = p->session ? q->frame->number : 0;
	n->mutation.answered_below = q->frame->clock;
	n->mutation.op = info->op;
	n->mutation.request = q->message;
	n->mutation.done = mutation_done;
	n->mutation.context = n;
	return mutation_queue(n);
}

/* Once the grants are back, or were given up, nobody can mark what it touches any more. */
static int touch_unmarked(struct request *q, struct pending *n, uint16_t op)
{
	for (;;) {
		int r = marks_await_mutation(q, op);

		if (!r)
			r = touch_find(q, n, op);
		if (r || !marks_bar_mutation(q, op))
			return r;
		touch_end(n);
	}
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
		do {
			r = touch_unmarked(q, n, info->op);
			if (!r)
				r = many_grant(q, info->op);
			if (!r)
				r = submit(q, info, n);
		} while (r == -EAGAIN && n->alone);
		if (!r)
			return REQUEST_ANSWERED;
		touch_end(n);
		release_lease(n);
	}
	pending_drop(n);
	return r == -ECONNRESET ? REQUEST_BROKEN : r;
}

/* ---- Everything ---- */

/* After a restart: what others may have said to somebody, or written, is not known yet. */
static bool has_time(uint16_t op)
{
	return op >= WIRE__OP__LOOKUP && op <= WIRE__OP__CLONE && op != WIRE__OP__CLOSE && op != WIRE__OP__RETURN &&
	       op != WIRE__OP__STATFS;
}

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
	if (q->peer->session && q->peer->session->replica && has_time(info->op))
		return request_explain(q, -EPERM, "a replica reads names and files from what it has itself, not by %s",
				       info->name);
	if (!info->admin && !q->peer->session)
		return request_explain(q, -EINVAL, "%s needs a mounted volume; this connection is for administration",
				       info->name);
	if (q->frame->bulk_length && info->op != WIRE__OP__OBJECT_PUT)
		return request_explain(q, -EBADMSG, "%s takes no bulk bytes", info->name);
	return 0;
}

static bool is_about_files(uint16_t op, const ProtobufCMessage *message)
{
	return op == WIRE__OP__LOOKUP || op == WIRE__OP__GETATTR ||
	       (op == WIRE__OP__READDIR && ((const Wire__ReaddirRequest *)message)->attributes);
}

/* In company only what a relaxed volume says may be kept; it is about what is stored. */
static bool may_be_kept(uint16_t op, const ProtobufCMessage *reply)
{
	return op == WIRE__OP__READDIR ? ((const Wire__ReaddirReply *)reply)->valid_ms
				       : ((const Wire__EntryReply *)reply)->valid_ms;
}

/* In company, and at the beginning of a listing. */
static int directory_take(struct request *q, uint16_t op, bool company, Wire__Grant *got)
{
	const Wire__ReaddirRequest *readdir = (const Wire__ReaddirRequest *)q->message;

	*got = WIRE__GRANT__GRANT_NONE;
	if (op != WIRE__OP__READDIR || !readdir->grant || readdir->cookie || !company || readdir->inode > INODE_MAX)
		return 0;
	return grant_take(q->server, q->peer->connection, q->peer->session, readdir->inode, WIRE__GRANT__GRANT_READ, false, got);
}

static int serve_read(struct request *q, uint16_t op)
{
	bool company = q->peer->session && session_in_company(q->peer->session);
	Wire__Grant got;
	uint64_t gone;
	int tries = 0, r = directory_take(q, op, company, &got);

	/* A writer that stored, and gave its grant back, between the two looks would be missed by both. */
	do {
		gone = company ? grants_writers_gone(q->server) : 0;
		q->reply = NULL;
		if (!r)
			r = meta_read(q->server->meta, &q->peer->who, op, q->message, q->arena, &q->reply);
		if (!r && company && is_about_files(op, q->message) &&
		    (!may_be_kept(op, q->reply) || meta_has_marks(q->server->meta)))
			r = written_complete(q, op);
	} while (!r && company && grants_writers_gone(q->server) != gone && ++tries < LOOKS_MAX);
	if (r && got != WIRE__GRANT__GRANT_NONE)
		grant_drop(q->server, q->peer->session, ((const Wire__ReaddirRequest *)q->message)->inode);
	if (r == -ECONNRESET)
		return REQUEST_BROKEN;
	if (r && q->reply)
		return request_explain(q, r, "%s", ((const Wire__ErrorReply *)q->reply)->text);
	if (!r && op == WIRE__OP__READDIR)
		((Wire__ReaddirReply *)q->reply)->granted = got != WIRE__GRANT__GRANT_NONE;
	return r;
}

static int serve(struct request *q, const uint8_t *message)
{
	const struct op_info *info = op_find(q->frame->op);
	request_handler handler = handler_of(q->frame->op);
	int r = refuse_to_serve(q, info);

	if (!r && q->peer->session && has_time(info->op) &&
	    sessions_await(q->server, q->peer->connection, q->peer->session->volume, q->peer->session))
		return REQUEST_BROKEN;
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
