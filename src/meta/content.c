/* Changes to the extents of one file, and the tally of what they cost.
 *
 * Inserting cuts away what the new extent covers, so the records of a file never
 * overlap:
 *
 *      |-- old --------------------|           one reference
 *             |-- new --|
 *      |-- old'-|-- new --|- old'' -|          old has two references now
 *
 * The cut pieces keep naming the same stored bytes; only their slices shrink. */
#include <errno.h>
#include "base/log.h"
#include "meta/content.h"

#define CUT_WINDOW 128 /* extents read before the first of them is changed: a change ends the cursor */

void tally_begin(struct tally *t)
{
	*t = (struct tally){ .end = &t->first };
	arena_init(&t->memory, 0);
}

void tally_free(struct tally *t)
{
	intmap_free(&t->map);
	arena_free(&t->memory);
}

int tally_object(struct tally *t, uint64_t object, int64_t refs, int64_t live)
{
	struct tally_object *o = t->recent;
	if (!o || o->object != object)
		o = intmap_get(&t->map, object);
	if (!o) {
		o = arena_zero(&t->memory, sizeof(*o));
		if (!o || intmap_set(&t->map, object, o) < 0)
			return -ENOMEM;
		o->object = object;
		*t->end = o;
		t->end = &o->next;
	}
	t->recent = o;
	o->refs += refs;
	o->live += live;
	return 0;
}

int tally_write(struct op *op, struct tally *t)
{
	int r = 0;
	for (struct tally_object *o = t->first; o && r == 0; o = o->next) {
		if (o->refs > INT32_MAX || o->refs < -INT32_MAX)
			return -EOVERFLOW;
		r = object_reference(op, o->object, (int)o->refs, o->live);
	}
	if (r == 0 && t->live_bytes) {
		struct attr named = { 0 };
		r = volume_account(op, &named, t->live_bytes, 0);
	}
	if (r == 0 && t->trashed_bytes) {
		struct attr nameless = { .flags = ATTR_TRASHED };
		r = volume_account(op, &nameless, t->trashed_bytes, 0);
	}
	return r;
}

static void tally_bytes(struct tally *t, const struct attr *a, int64_t bytes)
{
	if (a->flags & ATTR_TRASHED)
		t->trashed_bytes += bytes;
	else
		t->live_bytes += bytes;
}

static int extent_put(struct op *op, uint64_t file, const struct extent *e)
{
	uint8_t key[EXTENT_KEY], value[EXTENT_VALUE];
	extent_key(key, file, e->offset);
	extent_value_pack(e, value);
	return view_put(op->view, TABLE_EXTENT, key, sizeof(key), value, sizeof(value));
}

/* Takes [from, to) out of one extent that overlaps it. */
static int extent_cut(struct op *op, struct attr *a, const struct extent *e, uint64_t from, uint64_t to, struct tally *t)
{
	uint64_t file = inode_key(op->volume, a->inode), end = extent_end(e);
	bool left = e->offset<from, right = end> to;
	int r;
	if (left) {
		struct extent kept = extent_slice(e, e->offset, from);
		r = extent_put(op, file, &kept);
	} else {
		uint8_t key[EXTENT_KEY];
		extent_key(key, file, e->offset);
		r = view_delete(op->view, TABLE_EXTENT, key, sizeof(key));
	}
	if (r == 0 && right) {
		struct extent kept = extent_slice(e, to, end);
		r = extent_put(op, file, &kept);
	}
	if (r < 0)
		return r;
	int64_t gone = (int64_t)((right ? to : end) - (left ? from : e->offset));
	if (a->allocated < (uint64_t)gone) {
		log_error("metadata is damaged: volume %u inode %llu has more extents than it accounts for", op->volume,
			  (unsigned long long)a->inode);
		return -EBADMSG;
	}
	a->allocated -= (uint64_t)gone;
	tally_bytes(t, a, -gone);
	return tally_object(t, e->object, (int)left + (int)right - 1, -gone);
}

/* Up to `max` extents that overlap [from, to). */
static int extents_window(struct op *op, uint64_t file, uint64_t from, uint64_t to, struct extent *out, uint32_t max,
			  uint32_t *count)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, TABLE_EXTENT);
	*count = 0;
	if (r < 0)
		return r;
	for (r = extents_seek(&c, file, from, &out[0]); r == 0 && out[*count].offset < to;) {
		if (++*count == max)
			return 0;
		r = extents_step(&c, file, &out[*count]);
	}
	return r == -ENOENT ? 0 : r;
}

int content_cut_tallied(struct op *op, struct attr *a, uint64_t from, uint64_t to, uint32_t *budget, bool *more, struct tally *t)
{
	uint64_t file = inode_key(op->volume, a->inode);
	struct extent window[CUT_WINDOW];
	uint32_t count;
	*more = false;
	while (from < to) {
		int r = extents_window(op, file, from, to, window, CUT_WINDOW, &count);
		if (r < 0)
			return r;
		for (uint32_t i = 0; i < count; i++) {
			if (*budget == 0) {
				*more = true;
				return 0;
			}
			--*budget;
			r = extent_cut(op, a, &window[i], from, to, t);
			if (r < 0)
				return r;
		}
		if (count < CUT_WINDOW)
			break;
		from = extent_end(&window[count - 1]);
	}
	return 0;
}

int content_insert_tallied(struct op *op, struct attr *a, const struct extent *e, struct tally *t)
{
	uint32_t budget = UINT32_MAX;
	bool more;
	int r = content_cut_tallied(op, a, e->offset, extent_end(e), &budget, &more, t);
	if (r < 0)
		return r;
	uint64_t allocated;
	if (__builtin_add_overflow(a->allocated, e->length, &allocated))
		return -EBADMSG;
	r = extent_put(op, inode_key(op->volume, a->inode), e);
	if (r < 0)
		return r;
	a->allocated = allocated;
	tally_bytes(t, a, e->length);
	return tally_object(t, e->object, 1, e->length);
}

int content_insert(struct op *op, struct attr *a, const struct extent *e)
{
	if (extent_check(e) < 0 || extent_end(e) > FILE_SIZE_MAX)
		return -EINVAL;
	CLEANUP_TALLY struct tally t;
	tally_begin(&t);
	int r = content_insert_tallied(op, a, e, &t);
	return r < 0 ? r : tally_write(op, &t);
}

int content_cut(struct op *op, struct attr *a, uint64_t from, uint64_t to, uint32_t max_extents, bool *more)
{
	CLEANUP_TALLY struct tally t;
	tally_begin(&t);
	int r = content_cut_tallied(op, a, from, to, &max_extents, more, &t);
	return r < 0 ? r : tally_write(op, &t);
}

int content_covered(struct op *op, uint64_t inode, uint64_t from, uint64_t to, uint64_t *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, TABLE_EXTENT);
	if (r < 0)
		return r;
	uint64_t file = inode_key(op->volume, inode), sum = 0;
	struct extent e;
	for (r = extents_seek(&c, file, from, &e); r == 0 && e.offset < to; r = extents_step(&c, file, &e))
		sum += extent_slice(&e, from, to).length;
	if (r < 0 && r != -ENOENT)
		return r;
	*out = sum;
	return 0;
}

int content_may_fill(struct op *op, uint64_t inode, uint64_t from, uint64_t to)
{
	if (from >= to || volume_may_add_bytes(op, to - from) == 0)
		return 0;
	uint64_t covered;
	int r = content_covered(op, inode, from, to, &covered);
	return r < 0 ? r : volume_may_add_bytes(op, to - from - covered);
}
