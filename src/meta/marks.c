#include "meta/marks.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "meta/handlers.h"
#include "meta/machine.h"
#include "meta/trash.h"

#define MARKS_MAX 4096u /* in one request */
#define LISTED_MAX 256u

static void mark_key(uint8_t out[MARK_KEY], uint32_t volume, uint64_t inode)
{
	out[0] = MARK_LETTER;
	put_be64(out + 1, inode_key(volume, inode));
}

static int mark_unpack(struct span value, struct arena *arena, Wire__MarkRecord **out)
{
	Wire__MarkRecord *mark = wire__mark_record__unpack(&arena->allocator, value.size, value.data);

	if (!mark || mark->writeback.len != WRITEBACK_ID)
		return -EBADMSG;
	*out = mark;
	return 0;
}

static int mark_load(struct op *op, uint64_t inode, Wire__MarkRecord **out)
{
	uint8_t key[MARK_KEY];
	struct span value;
	int r;

	mark_key(key, op->volume, inode);
	r = view_get(op->view, TABLE_META, key, sizeof(key), &value);
	if (r == 0 && mark_unpack(value, op->arena, out) < 0)
		return op_damage(op, TABLE_META, "the mark of inode %llu", (unsigned long long)inode);
	return r;
}

static int mark_store(struct op *op, uint64_t inode, const Wire__MarkRecord *mark)
{
	size_t size = wire__mark_record__get_packed_size(mark);
	uint8_t key[MARK_KEY], *packed = arena_take(op->arena, size);

	if (!packed)
		return -ENOMEM;
	mark_key(key, op->volume, inode);
	wire__mark_record__pack(mark, packed);
	atomic_store(&op->meta->marked, true);
	return view_put(op->view, TABLE_META, key, sizeof(key), packed, size);
}

int mark_forget(struct op *op, uint64_t inode)
{
	uint8_t key[MARK_KEY];
	int r;

	mark_key(key, op->volume, inode);
	r = view_delete(op->view, TABLE_META, key, sizeof(key));
	return r == -ENOENT ? 0 : r;
}

static bool same_writeback(ProtobufCBinaryData a, ProtobufCBinaryData b)
{
	return a.len == WRITEBACK_ID && b.len == WRITEBACK_ID && !memcmp(a.data, b.data, WRITEBACK_ID);
}

/* The session's own record; -EINVAL: it has no write-back directory. */
static int session_load(struct op *op, Wire__SessionBegin **out)
{
	struct span value;
	uint8_t key[8];
	int r;

	put_be64(key, op->who->session);
	r = view_get(op->view, TABLE_SESSION, key, sizeof(key), &value);
	if (r == 0)
		r = op_unpack(op, &wire__session_begin__descriptor, value, out);
	if (r == 0 && (*out)->writeback.len != WRITEBACK_ID)
		return op_explain(op, -EINVAL, "the mount has no write-back directory");
	return r;
}

/* ---- MARK, UNMARK ---- */

/* The status of one, as an errno; *old: what is there already, or NULL. */
static int mark_judge(struct op *op, const Wire__SessionBegin *session, const Wire__Mark *m, Wire__MarkRecord **old,
		      uint32_t *status)
{
	struct attr a;
	int r = inode_load(op, m->inode, &a);

	*old = NULL;
	*status = 0;
	if (r == -ENOENT || m->revoked) {
		*status = r == -ENOENT ? ENOENT : ESTALE;
		return 0;
	}
	if (r == 0 && !S_ISREG(a.mode))
		return op_explain(op, -EINVAL, "inode %llu is not a regular file", (unsigned long long)m->inode);
	if (r == 0)
		r = mark_load(op, m->inode, old);
	if (r == 0 && (!same_writeback((*old)->writeback, session->writeback) || (*old)->generation != m->generation))
		*status = EEXIST;
	return r == -ENOENT ? 0 : r;
}

/* The file was written to, though what was written comes later. */
static int capability_kill(struct op *op, const Wire__Mark *m)
{
	struct attr a;
	int r = inode_load(op, m->inode, &a);

	return r < 0 || m->ctime_ns <= a.ctime_ns ? r : inode_kill_capability(op, &a); /* one that was given later stays */
}

int op_mark(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__MarkRequest *q = (const Wire__MarkRequest *)request;
	Wire__MarkReply *answer = (Wire__MarkReply *)reply;
	Wire__MarkRecord **old;
	Wire__SessionBegin *session = NULL;
	int r;

	if (q->n_marks > MARKS_MAX)
		return -EINVAL;
	r = session_load(op, &session);
	old = arena_take(op->arena, (q->n_marks + 1) * sizeof(*old));
	answer->status = arena_take(op->arena, (q->n_marks + 1) * sizeof(*answer->status));
	if (r == 0 && (!old || !answer->status))
		r = -ENOMEM;
	for (size_t i = 0; i < q->n_marks && r == 0; i++)
		r = mark_judge(op, session, q->marks[i], &old[i], &answer->status[i]);
	if (r < 0)
		return r;
	answer->n_status = q->n_marks;
	for (size_t i = 0; i < q->n_marks && r == 0; i++) {
		Wire__MarkRecord mark = WIRE__MARK_RECORD__INIT;

		if (answer->status[i])
			continue;
		mark.writeback = session->writeback;
		mark.generation = q->marks[i]->generation;
		mark.size = q->marks[i]->size;
		mark.since_ns = old[i] ? old[i]->since_ns : op->now_ns;
		mark.host = session->host;
		mark.mount_point = session->mount_point;
		mark.directory = session->writeback_dir;
		r = capability_kill(op, q->marks[i]);
		if (r == 0)
			r = mark_store(op, q->marks[i]->inode, &mark);
	}
	return r;
}

int op_unmark(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__MarkRequest *q = (const Wire__MarkRequest *)request;
	Wire__SessionBegin *session;
	int r = q->n_marks > MARKS_MAX ? -EINVAL : session_load(op, &session);

	for (size_t i = 0; i < q->n_marks && r == 0; i++) {
		Wire__MarkRecord *mark;

		r = mark_load(op, q->marks[i]->inode, &mark);
		if (r == 0 && mark->generation == q->marks[i]->generation && same_writeback(mark->writeback, session->writeback))
			r = mark_forget(op, q->marks[i]->inode);
		else if (r == -ENOENT)
			r = 0;
	}
	return r;
}

/* ---- Looking ---- */

int marks_walk(struct view *v, uint32_t volume, uint64_t after, struct arena *arena,
	       int (*each)(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark), void *context)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[MARK_KEY];
	int r = cursor_open(&c, v, TABLE_META);

	mark_key(key, volume, after + 1);
	if (r == 0)
		r = cursor_seek(&c, key, sizeof(key));
	for (; r == 0; r = cursor_next(&c)) {
		Wire__MarkRecord *mark;
		uint64_t found;

		if (c.key.size == 0 || c.key.data[0] != 'm')
			break;
		if (c.key.size != MARK_KEY || mark_unpack(c.value, arena, &mark) < 0)
			return -EBADMSG;
		found = get_be64(c.key.data + 1);
		r = each(context, (uint32_t)(found >> INODE_BITS), found & INODE_MAX, mark);
		if (r)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

int meta_mark_find(struct meta *m, uint32_t volume, uint64_t inode, struct arena *arena, Wire__MarkRecord **out)
{
	uint8_t key[MARK_KEY];
	struct span value;
	struct view view;
	int r;

	if (!meta_has_marks(m) || inode > INODE_MAX)
		return -ENOENT;
	r = meta_view_begin(m, &view);
	if (r < 0)
		return r;
	mark_key(key, volume, inode);
	r = view_get(&view, TABLE_META, key, sizeof(key), &value);
	if (r == 0)
		r = mark_unpack(value, arena, out);
	meta_view_end(&view);
	return r;
}

bool meta_has_marks(const struct meta *m) { return atomic_load(&m->marked); }

bool meta_has_orphaned_marks(struct meta *m, uint32_t volume)
{
	struct roster_volume v;

	return roster_find(m, volume, &v) && v.orphaned;
}

struct listing {
	struct op *op;
	const Wire__MarksRequest *request;
	Wire__MarksReply *reply;
};

static int list_path(struct op *op, uint32_t volume, uint64_t inode, Wire__MarkInfo *out)
{
	CLEANUP_BUF struct buf path = { 0 };
	uint32_t own = op->volume;
	struct attr a;
	int r;

	op->volume = volume;
	r = inode_load(op, inode, &a);
	if (r == 0)
		r = inode_path(op, inode, &path);
	op->volume = own;
	out->deleted = r == -ENOENT || (r == 0 && (a.flags & ATTR_TRASHED));
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	out->path.data = arena_copy(op->arena, path.data, path.len);
	out->path.len = out->path.data ? path.len : 0;
	return out->path.data ? 0 : -ENOMEM;
}

static int list_one(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark)
{
	struct listing *l = context;
	Wire__MarkInfo *info;
	Wire__Volume *v;
	int r;

	if (l->op->who->session && volume != l->op->volume)
		return 1;
	if (l->request->writeback.len && !same_writeback(l->request->writeback, mark->writeback))
		return 0;
	if (l->reply->n_marks == LISTED_MAX) {
		l->reply->more = true;
		return 1;
	}
	info = arena_take(l->op->arena, sizeof(*info));
	if (!info)
		return -ENOMEM;
	wire__mark_info__init(info);
	info->volume = volume;
	info->inode = inode;
	info->mark = mark;
	r = list_path(l->op, volume, inode, info);
	if (r == 0 && volume_load(l->op, volume, &v) == 0)
		info->volume_name = v->name;
	l->reply->marks[l->reply->n_marks] = info;
	l->reply->n_marks += r == 0;
	return r;
}

int op_marks(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	struct listing l = { op, (const Wire__MarksRequest *)request, (Wire__MarksReply *)reply };
	uint32_t volume = l.request->volume;
	int r;

	if (l.request->after >= INODE_MAX)
		return -EINVAL;
	if (op->who->session)
		volume = op->volume;
	l.reply->marks = arena_take(op->arena, LISTED_MAX * sizeof(*l.reply->marks));
	if (!l.reply->marks)
		return -ENOMEM;
	r = marks_walk(op->view, volume, l.request->after, op->arena, list_one, &l);
	return r > 0 ? 0 : r;
}

/* ---- Giving up ---- */

struct dropping {
	struct op *op;
	ProtobufCBinaryData writeback;
	struct buf keys;
};

static int drop_collect(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark)
{
	struct dropping *d = context;
	uint64_t key = inode_key(volume, inode);

	if (same_writeback(d->writeback, mark->writeback))
		buf_append(&d->keys, &key, sizeof(key));
	return d->keys.failed ? -ENOMEM : 0;
}

int op_marks_drop(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	struct dropping d = { .op = op, .writeback = ((const Wire__MarksDropRequest *)request)->writeback };
	Wire__MarksDropReply *answer = (Wire__MarksDropReply *)reply;
	int r;

	if (d.writeback.len != WRITEBACK_ID)
		return op_explain(op, -EINVAL, "the id of a write-back directory has %u bytes", WRITEBACK_ID);
	r = marks_walk(op->view, 0, 0, op->arena, drop_collect, &d);
	for (size_t at = 0; r == 0 && at < d.keys.len; at += sizeof(uint64_t)) {
		uint64_t key;

		memcpy(&key, d.keys.data + at, sizeof(key));
		op->volume = (uint32_t)(key >> INODE_BITS);
		r = mark_forget(op, key & INODE_MAX);
		answer->files++;
	}
	/* The roster counts volumes with marks that nobody's session stands for. */
	if (r == 0 && answer->files)
		op->view->touched |= 1u << TABLE_SESSION;
	buf_free(&d.keys);
	return r;
}
