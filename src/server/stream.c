#include "server/stream.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/stream.h"
#include "server/dispatch.h"
#include "server/state.h"

#define RANGE_BYTES (1u << 20)   /* of an answer to STREAM_SNAPSHOT, about */
#define FOLLOW_BYTES (1u << 20)  /* an answer to STREAM_FOLLOW ends with the batch that reaches it */
#define FOLLOW_MOST (16u << 20)  /* what clients have room for */
#define HEARTBEAT_NS NS_PER_S    /* an answer comes after this, news or not */
#define LOOK_NS (50 * NS_PER_MS) /* how often it is looked whether the replica is still there */

int64_t stream_grace_ns(struct server *s)
{
	int64_t seen = meta_replica_seen_ns(s->meta);
	bool wanted = seen && (seen == INT64_MAX || clock_read(&s->clock) - seen < s->replica_grace_ns);

	return wanted && s->replica_grace_ns > s->grace_ns ? s->replica_grace_ns : s->grace_ns;
}

/* Numbers of batches and inodes mean something within one history only, and a volume's name may be another's by now. */
static int stream_check(struct request *q, const ProtobufCBinaryData *history, uint32_t volume)
{
	const struct session *n = q->peer->session;

	if (!n->replica)
		return request_explain(q, -EPERM, "this mount is no replica");
	if (history->len != 16 || memcmp(history->data, meta_history(q->server->meta), 16) != 0 || volume != n->volume)
		return request_explain(q, -EXDEV, "the replica is one of other data");
	session_set_known(q->peer->session);
	return 0;
}

/* The reply is sent here, because of the bytes that go with it. */
static int stream_answer(struct request *q, const struct buf *records)
{
	struct iovec bulk = { records->data, records->len };
	int r = peer_answer(q->peer, q->frame, q->reply, &bulk, records->len ? 1 : 0);

	return r == -EMSGSIZE ? r : r ? REQUEST_BROKEN : REQUEST_ANSWERED;
}

/* ---- STREAM_SNAPSHOT ---- */

static bool table_is_streamed(uint32_t table)
{
	for (int i = 0; i < STREAM_TABLES; i++)
		if (stream_tables[i] == table)
			return true;
	return false;
}

/* The key of the last record, which ends the bytes with its value. */
static int last_key(const struct buf *records, struct arena *arena, ProtobufCBinaryData *out)
{
	struct reader in = reader_of(records->data, records->len);
	struct change c = { 0 };

	while (change_next(&in, &c) > 0)
		;
	out->len = c.key.size;
	out->data = arena_copy(arena, c.key.data, c.key.size);
	return out->data || !c.key.size ? 0 : -ENOMEM;
}

int serve_stream_snapshot(struct request *q)
{
	const Wire__StreamSnapshotRequest *ask = (const Wire__StreamSnapshotRequest *)q->message;
	Wire__StreamSnapshotReply *reply = request_reply(q, &wire__stream_snapshot_reply__descriptor);
	CLEANUP_BUF struct buf records = { 0 };
	struct change after = { .table = ask->table, .key = { ask->after.data, ask->after.len } };
	bool end = false;
	struct view view;
	int r = reply ? stream_check(q, &ask->history, ask->volume) : -ENOMEM;

	if (r)
		return r;
	/* A key of another volume would let the range begin outside of this one. */
	if (!table_is_streamed(ask->table) || (ask->after.len && !change_is_streamed(&after, ask->volume)))
		return request_explain(q, -EINVAL, "there is no such record in the stream");
	r = meta_view_begin(q->server->meta, &view);
	if (r)
		return r;
	r = stream_range(&view, ask->volume, ask->table, ask->after.data, ask->after.len, RANGE_BYTES, &records, &end,
			 &reply->batch);
	meta_view_end(&view);
	if (!r)
		r = last_key(&records, q->arena, &reply->last);
	reply->end = end;
	return r ? r : stream_answer(q, &records);
}

/* ---- STREAM_FOLLOW ---- */

struct following {
	uint32_t volume;
	uint64_t batch;  /* all up to this one is in it */
	uint64_t newest; /* of those that were there */
	struct buf changes;
};

/* 1: that is enough for an answer. */
static int batch_take(void *context, uint64_t batch, const void *data, size_t size)
{
	struct following *f = context;
	size_t before = f->changes.len;
	int r = stream_filter(data, size, f->volume, &f->changes);

	if (r)
		return r;
	if (f->changes.len > FOLLOW_MOST) {
		f->changes.len = before;
		return before ? 1 : -ESTALE;
	}
	f->batch = batch;
	return f->changes.len >= FOLLOW_BYTES;
}

/* `newest` is looked at first: who has all up to it was current when this began, whatever has come since. */
static int batches_take(struct server *s, struct following *f)
{
	int r;

	f->newest = meta_batch(s->meta);
	r = meta_write_sets(s->meta, f->batch, batch_take, f);
	if (f->newest < f->batch)
		f->newest = f->batch;
	return r == 1 ? 0 : r;
}

static bool replica_is_gone(struct request *q)
{
	struct pollfd connection = { .fd = connection_fd(q->peer->connection), .events = POLLRDHUP };

	return poll(&connection, 1, 0) > 0 || session_is_ended(q->peer->session);
}

static int space_fill(struct request *q, Wire__StreamFollowReply *reply)
{
	int r = serve_statfs(q);

	if (!r)
		reply->space = (Wire__StatfsReply *)q->reply;
	q->reply = &reply->base;
	return r;
}

int serve_stream_follow(struct request *q)
{
	const Wire__StreamFollowRequest *ask = (const Wire__StreamFollowRequest *)q->message;
	Wire__StreamFollowReply *reply = request_reply(q, &wire__stream_follow_reply__descriptor);
	struct following f = { .volume = ask->volume, .batch = ask->after };
	int64_t until = clock_steady_ns() + HEARTBEAT_NS;
	int r = reply ? stream_check(q, &ask->history, ask->volume) : -ENOMEM;

	if (!r)
		r = batches_take(q->server, &f);
	while (!r && ask->wait && !f.changes.len && clock_steady_ns() < until) {
		meta_await_batch(q->server->meta, f.batch, LOOK_NS);
		if (replica_is_gone(q))
			r = REQUEST_BROKEN;
		else
			r = batches_take(q->server, &f);
	}
	if (!r)
		r = space_fill(q, reply);
	if (!r) {
		reply->batch = f.batch;
		reply->newest = f.newest;
		r = stream_answer(q, &f.changes);
	} else if (r == -ESTALE) {
		request_explain(q, r, "the changes after batch %llu are not kept any more", (unsigned long long)ask->after);
	}
	buf_free(&f.changes);
	return r;
}
