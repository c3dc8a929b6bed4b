/* Which extents refer to an object.  The EXTENT table is ordered by file, so this
 * is found by walking all of it; a window of objects with not too many references
 * is collected in each walk.  Memory is bounded by the window, and the number of
 * walks is the number of references divided by it. */
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "meta/check.h"
#include "meta/content.h"

#define WINDOW_DEFAULT 1000000u

struct window_object {
	uint64_t object;
	struct object_record record;
};

struct window {
	struct buf objects; /* struct window_object, by id */
	struct buf extents; /* struct check_extent */
	uint64_t next;      /* where the next window begins */
	bool last;
};

static int window_objects(struct view *v, const struct check_objects_options *o, size_t max, struct window *w)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[8];
	size_t refs = 0;
	put_be64(key, w->next);
	w->last = true;
	int r = cursor_open(&c, v, TABLE_OBJECT);
	if (r == 0)
		r = cursor_seek(&c, key, sizeof(key));
	for (; r == 0; r = cursor_next(&c)) {
		struct window_object found;
		if (c.key.size != 8 || c.value.size != OBJECT_RECORD)
			continue;
		found.object = get_be64(c.key.data);
		object_record_read(c.value.data, &found.record);
		if (found.record.refs == 0 || (o->volume && found.record.volume != o->volume) ||
		    (o->wanted && !o->wanted(o->context, found.object, &found.record)))
			continue;
		if (refs && refs + found.record.refs > max) {
			w->next = found.object;
			w->last = false;
			break;
		}
		refs += found.record.refs;
		buf_append(&w->objects, &found, sizeof(found));
	}
	if (w->objects.failed)
		return -ENOMEM;
	return r == -ENOENT ? 0 : r;
}

static int compare_id(const void *key, const void *element)
{
	uint64_t a = *(const uint64_t *)key, b = ((const struct window_object *)element)->object;
	return a < b ? -1 : a > b;
}

static int window_extents(struct view *v, const struct check_objects_options *o, struct window *w)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[8];
	size_t count = w->objects.len / sizeof(struct window_object);
	put_be64(key, inode_key(o->volume, 0));
	int r = cursor_open(&c, v, TABLE_EXTENT);
	if (r == 0)
		r = cursor_seek(&c, key, sizeof(key));
	for (; r == 0; r = cursor_next(&c)) {
		struct check_extent e;
		if (c.key.size != EXTENT_KEY)
			continue;
		uint64_t inode = get_be64(c.key.data);
		e.volume = (uint32_t)(inode >> INODE_BITS);
		e.inode = inode & INODE_MAX;
		if (o->volume && e.volume != o->volume)
			break;
		if (extent_value_unpack(get_be64(c.key.data + 8), c.value.data, c.value.size, &e.extent) < 0)
			continue; /* check_run names it */
		if (bsearch(&e.extent.object, w->objects.data, count, sizeof(struct window_object), compare_id))
			buf_append(&w->extents, &e, sizeof(e));
	}
	if (w->extents.failed)
		return -ENOMEM;
	return r == -ENOENT ? 0 : r;
}

static int compare_u64(uint64_t x, uint64_t y) { return x < y ? -1 : x > y; }

/* Clones of one slice come one after the other, so that gc copies it once. */
static int compare_place(const void *a, const void *b)
{
	const struct check_extent *x = a, *y = b;
	int order = compare_u64(x->extent.object, y->extent.object);
	order = order ? order : compare_u64(x->extent.object_offset, y->extent.object_offset);
	order = order ? order : compare_u64(x->extent.skip, y->extent.skip);
	order = order ? order : compare_u64(x->extent.length, y->extent.length);
	order = order ? order : compare_u64(x->inode, y->inode);
	return order ? order : compare_u64(x->extent.offset, y->extent.offset);
}

static int window_tell(const struct check_objects_options *o, struct window *w)
{
	struct check_extent *extents = (struct check_extent *)w->extents.data;
	size_t count = w->extents.len / sizeof(*extents), objects = w->objects.len / sizeof(struct window_object), at = 0;
	if (count)
		qsort(extents, count, sizeof(*extents), compare_place);
	for (size_t i = 0; i < objects; i++) {
		struct window_object *found = (struct window_object *)w->objects.data + i;
		struct check_object told = { .object = found->object,
					     .record = found->record,
					     .extents = extents ? extents + at : NULL };
		while (at < count && extents[at].extent.object == found->object) {
			told.count++;
			at++;
		}
		int r = o->each(o->context, &told);
		if (r)
			return r;
	}
	return 0;
}

int check_objects(struct meta *m, const struct check_objects_options *o)
{
	struct window w = { 0 };
	size_t max = o->max_extents ? o->max_extents : WINDOW_DEFAULT;
	int r = 0;
	while (r == 0 && !w.last) {
		struct view v;
		buf_clear(&w.objects);
		buf_clear(&w.extents);
		r = meta_view_begin(m, &v);
		if (r < 0)
			break;
		r = window_objects(&v, o, max, &w);
		if (r == 0 && w.objects.len)
			r = window_extents(&v, o, &w);
		meta_view_end(&v);
		if (r == 0)
			r = window_tell(o, &w);
	}
	buf_free(&w.objects);
	buf_free(&w.extents);
	return r;
}
