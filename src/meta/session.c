#include <errno.h>
#include "meta/content.h"
#include "meta/handlers.h"
#include "meta/machine.h"

static int session_store(struct op *op, const Wire__SessionBegin *record)
{
	size_t size = wire__session_begin__get_packed_size(record);
	uint8_t key[8], *packed = arena_take(op->arena, size);

	if (!packed)
		return -ENOMEM;
	put_be64(key, record->session);
	wire__session_begin__pack(record, packed);
	return view_put(op->view, TABLE_SESSION, key, sizeof(key), packed, size);
}

int op_session_begin(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__SessionBegin *request = (const Wire__SessionBegin *)message;
	Wire__Volume *volume;
	struct span value;
	uint8_t key[8];
	int r;

	if (request->session == 0)
		return -EINVAL;
	r = volume_load(op, request->volume, &volume);
	if (r == -ENOENT || (r == 0 && !volume->name[0]))
		return op_explain(op, -ENOENT, "there is no such volume any more");
	if (r < 0)
		return r;
	put_be64(key, request->session);
	r = view_get(op->view, TABLE_SESSION, key, sizeof(key), &value);
	if (r != -ENOENT)
		return r < 0 ? r : -EEXIST;
	return session_store(op, request);
}

int op_session_revoke(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__SessionRevoke *request = (const Wire__SessionRevoke *)message;
	Wire__SessionBegin *record;
	struct span value;
	uint8_t key[8];
	int r;

	put_be64(key, request->session);
	r = view_get(op->view, TABLE_SESSION, key, sizeof(key), &value);
	if (r < 0)
		return r;
	record = wire__session_begin__unpack(&op->arena->allocator, value.size, value.data);
	if (!record)
		return -EBADMSG;
	if (record->revoked <= request->acknowledged)
		record->revoked = 0;
	if (record->revoked < request->revoked)
		record->revoked = request->revoked;
	return session_store(op, record);
}

/* Replicas go on reading for a while by what they know: what is freed meanwhile must stay (reaper.h). */
static int replica_note_end(struct op *op, struct span record)
{
	Wire__SessionBegin *s;
	uint8_t now[8];

	if (op_unpack(op, &wire__session_begin__descriptor, record, &s) < 0 || !s->replica)
		return 0;
	put_le64(now, (uint64_t)op->now_ns);
	return view_put(op->view, TABLE_META, REPLICA_ENDED_KEY, sizeof(REPLICA_ENDED_KEY) - 1, now, sizeof(now));
}

/* Session 0 is the server itself: it has no record and no answers, but gc has ranges. */
static int session_erase(struct op *op, uint64_t session)
{
	struct span record;
	uint8_t key[8];
	int r;

	if (session == 0)
		return ranges_revoke(op, 0);
	put_be64(key, session);
	r = view_get(op->view, TABLE_SESSION, key, sizeof(key), &record);
	if (r == 0)
		r = replica_note_end(op, record);
	if (r == 0)
		r = view_delete(op->view, TABLE_SESSION, key, sizeof(key));
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = ranges_revoke(op, session);
	return r < 0 ? r : answers_trim(op->view, session, UINT64_MAX, UINT32_MAX);
}

int op_session_end(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	return session_erase(op, ((const Wire__SessionEnd *)message)->session);
}

int op_goodbye(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	return op->who->session ? session_erase(op, op->who->session) : 0;
}
