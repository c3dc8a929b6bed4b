/* Changes of content that store nothing new: FALLOCATE and CLONE. */
#include <errno.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include "meta/content.h"
#include "meta/handlers.h"

#define CLONE_WINDOW 512 /* extents of the source read before the first is put to the target */

static int regular_load(struct op *op, uint64_t inode, struct attr *out)
{
	int r = inode_load(op, inode, out);
	if (r < 0)
		return r;
	return S_ISREG(out->mode) ? 0 : S_ISDIR(out->mode) ? -EISDIR : -EINVAL;
}

/* Contents changed: what a write does to the attributes, and the answer. */
static int content_changed(struct op *op, struct attr *a, Wire__EntryReply *reply)
{
	inode_touch_content(op, a);
	int r = inode_kill_capability(op, a);
	if (r == 0)
		r = inode_store(op, a, NULL);
	return r < 0 ? r : entry_reply(op, a, reply);
}

int op_fallocate(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__FallocateRequest *q = (const Wire__FallocateRequest *)request;
	const uint32_t keep = FALLOC_FL_KEEP_SIZE, hole = FALLOC_FL_PUNCH_HOLE | keep, zero = FALLOC_FL_ZERO_RANGE;
	struct attr a;
	if (q->mode != 0 && q->mode != keep && q->mode != hole && q->mode != zero && q->mode != (zero | keep))
		return -EOPNOTSUPP;
	int r = regular_load(op, q->inode, &a);
	if (r < 0)
		return r;
	uint64_t end;
	if (q->length == 0)
		return -EINVAL;
	if (__builtin_add_overflow(q->offset, q->length, &end) || end > FILE_SIZE_MAX)
		return -EFBIG;
	bool cuts = q->mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
	if (!(q->mode & FALLOC_FL_PUNCH_HOLE)) {
		/* Nothing is set aside, but what cannot be there is refused now and not at the write. */
		r = content_may_fill(op, q->inode, q->offset, end);
		if (r < 0)
			return r;
	}
	if (cuts) {
		bool more;
		r = content_cut(op, &a, q->offset, end, UINT32_MAX, &more);
		if (r < 0)
			return r;
	}
	if (!(q->mode & keep) && end > a.size)
		a.size = end;
	return content_changed(op, &a, (Wire__EntryReply *)reply);
}

/* Up to CLONE_WINDOW slices of the source inside [from, to). */
static int clone_window(struct op *op, uint64_t source, uint64_t from, uint64_t to, struct extent *out, uint32_t *count)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, TABLE_EXTENT);
	uint64_t file = inode_key(op->volume, source);
	struct extent e;
	*count = 0;
	if (r == 0)
		r = extents_seek(&c, file, from, &e);
	for (; r == 0 && e.offset < to && *count < CLONE_WINDOW; r = extents_step(&c, file, &e))
		out[(*count)++] = extent_slice(&e, from, to);
	return r == -ENOENT ? 0 : r;
}

static int clone_write(struct op *op, const Wire__CloneRequest *q, uint64_t length, struct attr *target)
{
	CLEANUP_TALLY struct tally t;
	tally_begin(&t);
	struct extent *window = arena_take(op->arena, CLONE_WINDOW * sizeof(*window));
	if (!window)
		return -ENOMEM;
	uint64_t from = q->source_offset, to = from + length;
	uint32_t count = 0, budget = UINT32_MAX;
	bool more;
	int r = content_cut_tallied(op, target, q->target_offset, q->target_offset + length, &budget, &more, &t);
	do {
		if (r == 0)
			r = clone_window(op, q->source, from, to, window, &count);
		if (r < 0)
			return r;
		for (uint32_t i = 0; i < count && r == 0; i++) {
			from = extent_end(&window[i]);
			window[i].offset = window[i].offset - q->source_offset + q->target_offset;
			r = content_insert_tallied(op, target, &window[i], &t);
		}
	} while (count == CLONE_WINDOW);
	if (r == 0)
		r = tally_write(op, &t);
	if (q->target_offset + length > target->size)
		target->size = q->target_offset + length;
	return r;
}

static int clone_check(struct op *op, const Wire__CloneRequest *q, struct attr *target, uint64_t *length)
{
	struct attr source;
	int r = regular_load(op, q->source, &source);
	if (r == 0)
		r = regular_load(op, q->target, target);
	if (r < 0)
		return r;
	*length = 0;
	if (q->source_offset < source.size)
		*length = q->length < source.size - q->source_offset ? q->length : source.size - q->source_offset;
	uint64_t end;
	if (__builtin_add_overflow(q->target_offset, *length, &end) || end > FILE_SIZE_MAX)
		return -EFBIG;
	if (q->source == q->target && q->source_offset < end && q->target_offset < q->source_offset + *length)
		return op_explain(op, -EINVAL, "source and target overlap");
	if (*length == 0 || volume_may_add_bytes(op, *length) == 0)
		return 0;
	uint64_t added, replaced;
	r = content_covered(op, q->source, q->source_offset, q->source_offset + *length, &added);
	if (r == 0)
		r = content_covered(op, q->target, q->target_offset, end, &replaced);
	return r < 0 ? r : added > replaced ? volume_may_add_bytes(op, added - replaced) : 0;
}

/* The target shares the stored bytes of the source from now on.  A range past
 * the end of the source is cut to it; holes become holes. */
int op_clone(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__CloneRequest *q = (const Wire__CloneRequest *)request;
	struct attr target;
	uint64_t length;
	int r = clone_check(op, q, &target, &length);
	if (r < 0)
		return r;
	if (length == 0)
		return entry_reply(op, &target, (Wire__EntryReply *)reply);
	r = clone_write(op, q, length, &target);
	if (r == 0)
		r = content_changed(op, &target, (Wire__EntryReply *)reply);
	return r;
}
