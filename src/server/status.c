#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "server/dispatch.h"
#include "server/marks.h"
#include "server/state.h"

struct listing {
	struct request *q;
	Wire__StatusReply *reply;
	size_t room;
	int64_t now_ns, now_steady_ns;
	int error;
};

static void count_session(void *context, struct session *session) { ++*(size_t *)context; }

static void list_session(void *context, struct session *n)
{
	struct listing *l = context;
	struct arena *arena = l->q->arena;
	Wire__SessionInfo *info;

	if (l->error || l->reply->n_sessions == l->room)
		return; /* one that came after the count is seen next time */
	info = arena_take(arena, sizeof(*info));
	if (!info) {
		l->error = -ENOMEM;
		return;
	}
	wire__session_info__init(info);
	info->session = n->id;
	info->volume = arena_string(arena, n->volume_name);
	info->host = arena_string(arena, n->host);
	info->mount_point = arena_string(arena, n->mount_point);
	if (!info->volume || !info->host || !info->mount_point) {
		l->error = -ENOMEM;
		return;
	}
	info->pid = n->pid;
	info->read_only = n->read_only;
	info->replica = n->replica;
	info->since_ns = n->since_ns;
	info->last_contact_ns = l->now_ns - (l->now_steady_ns - atomic_load(&n->heard_steady_ns));
	info->unheard = !session_was_heard(n);
	info->open_files = meta_open_count(l->q->server->meta, n->id);
	l->reply->sessions[l->reply->n_sessions++] = info;
}

static int list_sessions(struct request *q, Wire__StatusReply *reply)
{
	struct listing l = {
		.q = q, .reply = reply, .now_ns = clock_read(&q->server->clock), .now_steady_ns = clock_steady_ns()
	};

	sessions_each(q->server, count_session, &l.room);
	reply->sessions = arena_take(q->arena, (l.room + 1) * sizeof(*reply->sessions));
	if (!reply->sessions)
		return -ENOMEM;
	sessions_each(q->server, list_session, &l);
	return l.error;
}

static int count_objects(struct server *s, uint64_t *out)
{
	struct view view;
	int r = meta_view_begin(s->meta, &view);

	if (r)
		return r;
	r = view_count(&view, TABLE_OBJECT, out);
	meta_view_end(&view);
	return r;
}

int serve_status(struct request *q)
{
	struct server *s = q->server;
	Wire__StatusReply *reply = request_reply(q, &wire__status_reply__descriptor);
	struct store_space space = { 0 };
	struct space_waiting waiting = { 0 };
	int r;

	if (!reply)
		return -ENOMEM;
	reply->version = EPOCHFS_VERSION;
	reply->instance = s->instance;
	reply->started_ns = s->started_ns;
	reply->store = (char *)store_url(s->store);
	reply->metadata_bytes = meta_file_bytes(s->meta);
	reply->batch = meta_batch(s->meta);
	reply->session_timeout_s = (uint64_t)(s->session_timeout_ns / NS_PER_S);
	r = space_of_store(s, &space);
	reply->store_total_bytes = space.total_bytes;
	reply->store_free_bytes = space.free_bytes;
	if (!r)
		r = count_objects(s, &reply->objects);
	if (!r)
		r = space_waiting(s, &waiting);
	reply->waiting_objects = waiting.objects;
	reply->waiting_bytes = waiting.bytes;
	reply->waiting_until_ns = waiting.until_ns;
	reply->grace_s = (uint64_t)(waiting.grace_ns / NS_PER_S);
	if (!r)
		r = list_sessions(q, reply);
	if (!r)
		r = marks_list(q, reply);
	return r ? r : losses_list(q, reply);
}
