/* Objects: their records, who may make them, and how they go.
 *
 *   ALLOC_OBJECTS      ids of a new RANGE belong to the session until it ends
 *   the client puts the object into the store
 *   COMMIT             OBJECT record with its references; only for ids in a RANGE of the session
 *   last reference goes: FREE(now, id); the record stays, with 0 references, and is never referenced again
 *   grace passes       the server deletes it from the store
 *   OBJECTS_DELETED    record and FREE entry go
 *
 * What goes wrong in between: a client dies after the put (its range is revoked
 * when its session ends, then nothing can ever name the id: an orphan, which gc
 * claims by FREE_ORPHANS and which from there on goes the way of any freed one);
 * a commit comes after its session ended (-ESTALE, the client uploads again); the
 * server dies between deletion and OBJECTS_DELETED (it deletes again, which is
 * fine).  Ids are never handed out twice. */
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "block/object.h"
#include "meta/content.h"
#include "meta/handlers.h"

#define RANGE_MAX 65536u
#define OBJECT_ID_MAX ((uint64_t)1 << 62)
#define RANGE_VALUE 12u
#define FREE_KEY 16u

static const char next_object_key[] = "object.next";

void object_record_pack(const struct object_record *r, uint8_t out[OBJECT_RECORD])
{
	put_le32(out, r->volume);
	put_le32(out + 4, r->size);
	put_le32(out + 8, r->raw_bytes);
	put_le32(out + 12, r->refs);
	put_le64(out + 16, r->live_bytes);
}

void object_record_read(const uint8_t b[OBJECT_RECORD], struct object_record *out)
{
	*out = (struct object_record){ .volume = get_le32(b),
				       .size = get_le32(b + 4),
				       .raw_bytes = get_le32(b + 8),
				       .refs = get_le32(b + 12),
				       .live_bytes = get_le64(b + 16) };
}

int object_record_unpack(const void *p, size_t size, struct object_record *out)
{
	struct object_record r;
	if (size != OBJECT_RECORD)
		return -EBADMSG;
	object_record_read(p, &r);
	if (r.size > OBJECT_SIZE_MAX || (r.refs == 0) != (r.live_bytes == 0) || (r.refs && r.size <= OBJECT_FOOTER))
		return -EBADMSG;
	*out = r;
	return 0;
}

int object_peek(struct view *v, uint64_t object, struct object_record *out)
{
	uint8_t key[8];
	struct span value;
	put_be64(key, object);
	int r = view_get(v, TABLE_OBJECT, key, sizeof(key), &value);
	if (r < 0)
		return r;
	r = object_record_unpack(value.data, value.size, out);
	if (r < 0)
		log_error("metadata is damaged: the record of object %llu", (unsigned long long)object);
	return r;
}

int object_load(struct op *op, uint64_t object, struct object_record *out) { return object_peek(op->view, object, out); }

static int object_store(struct op *op, uint64_t object, const struct object_record *record)
{
	uint8_t key[8], value[OBJECT_RECORD];
	put_be64(key, object);
	object_record_pack(record, value);
	return view_put(op->view, TABLE_OBJECT, key, sizeof(key), value, sizeof(value));
}

/* ---- Ranges ---- */

static int next_object_load(struct op *op, uint64_t *out)
{
	struct span value;
	int r = view_get(op->view, TABLE_META, next_object_key, sizeof(next_object_key) - 1, &value);
	if (r == -ENOENT) {
		*out = 1;
		return 0;
	}
	if (r < 0)
		return r;
	if (value.size != 8)
		return -EBADMSG;
	*out = get_le64(value.data);
	return 0;
}

static int next_object_store(struct op *op, uint64_t next)
{
	uint8_t value[8];
	put_le64(value, next);
	return view_put(op->view, TABLE_META, next_object_key, sizeof(next_object_key) - 1, value, sizeof(value));
}

/* The session whose range holds the id; -ENOENT: nobody's. */
static int range_find(struct op *op, uint64_t object, uint64_t *session)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, TABLE_RANGE);
	if (r < 0)
		return r;
	uint8_t key[8];
	put_be64(key, object);
	r = cursor_seek(&c, key, sizeof(key));
	if (r == -ENOENT)
		r = cursor_last(&c);
	else if (r == 0 && (c.key.size != 8 || get_be64(c.key.data) != object))
		r = cursor_previous(&c);
	if (r < 0)
		return r;
	if (c.key.size != 8 || c.value.size != RANGE_VALUE) {
		log_error("metadata is damaged: a range of object ids");
		return -EBADMSG;
	}
	if (object - get_be64(c.key.data) >= get_le32(c.value.data))
		return -ENOENT;
	*session = get_le64(c.value.data + 4);
	return 0;
}

int op_alloc_objects(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__AllocObjectsRequest *q = (const Wire__AllocObjectsRequest *)request;
	Wire__AllocObjectsReply *answer = (Wire__AllocObjectsReply *)reply;
	uint32_t count = q->count < 1 ? 1 : q->count > RANGE_MAX ? RANGE_MAX : q->count;
	uint64_t first;
	int r = next_object_load(op, &first);
	if (r < 0)
		return r;
	if (first > OBJECT_ID_MAX)
		return op_explain(op, -ENOSPC, "all object ids have been used");
	uint8_t key[8], value[RANGE_VALUE];
	put_be64(key, first);
	put_le32(value, count);
	put_le64(value + 4, op->who->session);
	r = next_object_store(op, first + count);
	if (r == 0)
		r = view_put(op->view, TABLE_RANGE, key, sizeof(key), value, sizeof(value));
	if (r < 0)
		return r;
	answer->first = first;
	answer->count = count;
	return 0;
}

int ranges_revoke(struct op *op, uint64_t session)
{
	CLEANUP_BUF struct buf keys = { 0 };
	{
		CLEANUP_CURSOR struct cursor c = { 0 };
		int r = cursor_open(&c, op->view, TABLE_RANGE);
		if (r == 0)
			r = cursor_seek(&c, "", 0);
		for (; r == 0; r = cursor_next(&c))
			if (c.key.size == 8 && c.value.size == RANGE_VALUE && get_le64(c.value.data + 4) == session)
				buf_append(&keys, c.key.data, 8);
		if (r != -ENOENT)
			return r;
	}
	if (keys.failed)
		return -ENOMEM;
	for (size_t i = 0; i < keys.len; i += 8) {
		int r = view_delete(op->view, TABLE_RANGE, keys.data + i, 8);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- Records ---- */

int object_may_add(struct op *op, const Wire__NewObject *n)
{
	uint64_t session;
	if (n->size <= OBJECT_FOOTER || n->size > OBJECT_SIZE_MAX)
		return op_explain(op, -EINVAL, "object %llu cannot have %u bytes", (unsigned long long)n->object, n->size);
	int r = range_find(op, n->object, &session);
	if (r == -ENOENT || (r == 0 && session != op->who->session))
		return op_explain(op, -ESTALE, "object id %llu is not in a range of this session", (unsigned long long)n->object);
	if (r < 0)
		return r;
	struct object_record there;
	r = object_load(op, n->object, &there);
	if (r == 0)
		return op_explain(op, -EEXIST, "object %llu is already there", (unsigned long long)n->object);
	return r == -ENOENT ? 0 : r;
}

int object_add(struct op *op, const Wire__NewObject *n)
{
	int r = object_may_add(op, n);
	if (r < 0)
		return r;
	struct object_record record = { .volume = op->volume, .size = n->size, .raw_bytes = n->raw_bytes };
	return object_store(op, n->object, &record);
}

bool extent_fits_object(const struct extent *e, uint32_t size)
{
	return size > OBJECT_FOOTER && (uint64_t)e->object_offset + e->stored_length <= size - OBJECT_FOOTER;
}

int object_reference(struct op *op, uint64_t object, int refs_delta, int64_t live_delta)
{
	struct object_record record;
	int r = object_load(op, object, &record);
	if (r < 0) {
		if (r == -ENOENT)
			log_error("metadata is damaged: no record of object %llu, which is in use", (unsigned long long)object);
		return r == -ENOENT ? -EBADMSG : r;
	}
	uint32_t refs;
	uint64_t live;
	if (__builtin_add_overflow(record.refs, refs_delta, &refs) ||
	    __builtin_add_overflow(record.live_bytes, live_delta, &live) || (refs == 0) != (live == 0)) {
		log_error("metadata is damaged: object %llu has %u references and %llu live bytes, now %+d and %+lld",
			  (unsigned long long)object, record.refs, (unsigned long long)record.live_bytes, refs_delta,
			  (long long)live_delta);
		return -EBADMSG;
	}
	record.refs = refs;
	record.live_bytes = live;
	r = object_store(op, object, &record);
	return r == 0 && refs == 0 ? free_add(op, object) : r;
}

/* ---- FREE ---- */

static void free_key(uint8_t out[FREE_KEY], int64_t freed_ns, uint64_t object)
{
	put_be64(out, (uint64_t)(freed_ns < 0 ? 0 : freed_ns));
	put_be64(out + 8, object);
}

int free_add(struct op *op, uint64_t object)
{
	uint8_t key[FREE_KEY];
	free_key(key, op->now_ns, object);
	return view_put(op->view, TABLE_FREE, key, sizeof(key), "", 0);
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x, y;
	memcpy(&x, a, 8);
	memcpy(&y, b, 8);
	return x < y ? -1 : x > y;
}

static bool sorted_has(const uint64_t *sorted, size_t count, uint64_t object)
{
	return count && bsearch(&object, sorted, count, sizeof(*sorted), compare_u64);
}

/* The server deletes the oldest first, so what it reports stands at the front
 * and the walk is about as long as the list. */
int free_remove(struct op *op, const uint64_t *sorted, size_t count)
{
	CLEANUP_BUF struct buf keys = { 0 };
	{
		CLEANUP_CURSOR struct cursor c = { 0 };
		int r = cursor_open(&c, op->view, TABLE_FREE);
		if (r == 0)
			r = cursor_seek(&c, "", 0);
		for (; r == 0 && keys.len / FREE_KEY < count; r = cursor_next(&c))
			if (c.key.size == FREE_KEY && sorted_has(sorted, count, get_be64(c.key.data + 8)))
				buf_append(&keys, c.key.data, FREE_KEY);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	if (keys.failed)
		return -ENOMEM;
	for (size_t i = 0; i < keys.len; i += FREE_KEY) {
		int r = view_delete(op->view, TABLE_FREE, keys.data + i, FREE_KEY);
		if (r < 0)
			return r;
	}
	return 0;
}

int objects_waiting(struct view *v, struct waiting_objects *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, v, TABLE_FREE);
	*out = (struct waiting_objects){ 0 };
	if (r == 0)
		r = cursor_seek(&c, "", 0);
	for (; r == 0; r = cursor_next(&c)) {
		struct object_record record;
		if (c.key.size != FREE_KEY)
			return -EBADMSG;
		int there = object_peek(v, get_be64(c.key.data + 8), &record);
		if (there < 0 && there != -ENOENT)
			return there;
		out->count++;
		out->bytes += there == 0 ? record.size : 0;
		out->newest_ns = (int64_t)get_be64(c.key.data);
	}
	return r == -ENOENT ? 0 : r;
}

int objects_due(struct view *v, int64_t until_ns, uint64_t *objects, size_t max, size_t *count)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, v, TABLE_FREE);
	*count = 0;
	if (r == 0)
		r = cursor_seek(&c, "", 0);
	for (; r == 0 && *count < max; r = cursor_next(&c)) {
		if (c.key.size != FREE_KEY)
			return -EBADMSG;
		if (until_ns < 0 || get_be64(c.key.data) > (uint64_t)until_ns)
			return 0;
		uint64_t object = get_be64(c.key.data + 8);
		struct object_record record;
		int there = object_peek(v, object, &record);
		if (there == -ENOENT || (there == 0 && record.refs == 0))
			objects[(*count)++] = object;
		else if (there == 0)
			log_error("metadata is damaged: object %llu is to be freed but in use; kept (epochfs fsck --repair)",
				  (unsigned long long)object);
		else
			return there;
	}
	return r == -ENOENT ? 0 : r;
}

/* The ids of a request that satisfy `wanted`, sorted, each once; from the arena. */
static int objects_select(struct op *op, const Wire__ObjectList *list, int (*wanted)(struct op *, uint64_t), uint64_t **out,
			  size_t *count)
{
	*count = 0;
	*out = arena_take(op->arena, (list->n_objects + 1) * sizeof(**out));
	if (!*out)
		return -ENOMEM;
	for (size_t i = 0; i < list->n_objects; i++) {
		int r = wanted(op, list->objects[i]);
		if (r < 0)
			return r;
		if (r > 0)
			(*out)[(*count)++] = list->objects[i];
	}
	qsort(*out, *count, sizeof(**out), compare_u64);
	size_t kept = 0;
	for (size_t i = 0; i < *count; i++)
		if (i == 0 || (*out)[i] != (*out)[kept - 1])
			(*out)[kept++] = (*out)[i];
	*count = kept;
	return 0;
}

static int object_is_unused(struct op *op, uint64_t object)
{
	struct object_record record;
	int r = object_load(op, object, &record);
	if (r < 0)
		return r == -ENOENT ? 1 : r;
	if (record.refs)
		log_error("object %llu was reported as deleted but is in use", (unsigned long long)object);
	return record.refs == 0;
}

int op_objects_deleted(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	uint64_t *ids;
	size_t count;
	int r = objects_select(op, (const Wire__ObjectList *)request, object_is_unused, &ids, &count);
	if (r == 0)
		r = free_remove(op, ids, count);
	for (size_t i = 0; i < count && r == 0; i++) {
		uint8_t key[8];
		put_be64(key, ids[i]);
		r = view_delete(op->view, TABLE_OBJECT, key, sizeof(key));
		if (r == -ENOENT)
			r = 0;
	}
	return r;
}

static int object_is_orphan(struct op *op, uint64_t object)
{
	struct object_record record;
	uint64_t session;
	if (object == 0 || object > OBJECT_ID_MAX)
		return 0;
	int r = object_load(op, object, &record);
	if (r == 0)
		return 0;
	if (r == -ENOENT)
		r = range_find(op, object, &session);
	if (r == 0)
		return session == 0; /* of the server's own gc, perhaps of a server before: a late REPACK gets -EEXIST */
	return r == -ENOENT ? 1 : r;
}

/* Claims what is in the store and nowhere else: from now on it is an object
 * without references that waits in FREE.  Ids that are in use, or that a session
 * may still commit, are left out.  An id beyond the counter comes from a store
 * that is newer than this metadata (a backup was put back): the counter moves
 * past it, so that it is never handed out while it is being deleted. */
int op_free_orphans(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	uint64_t *ids, next;
	size_t count;
	int r = objects_select(op, (const Wire__ObjectList *)request, object_is_orphan, &ids, &count);
	if (r == 0)
		r = next_object_load(op, &next);
	if (r < 0)
		return r;
	if (count && ids[count - 1] >= next)
		r = next_object_store(op, ids[count - 1] + 1);
	for (size_t i = 0; i < count && r == 0; i++) {
		struct object_record record = { 0 };
		r = object_store(op, ids[i], &record);
		if (r == 0)
			r = free_add(op, ids[i]);
	}
	return r;
}
