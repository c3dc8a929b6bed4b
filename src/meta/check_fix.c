/* fsck --repair: making the FixRequest, and FIX, which applies it.
 *
 * All numbers are differences modulo their width.  FIX adds them to what is
 * recorded by then, so a file that grew between the check and the repair comes
 * out right as well.  Where an object belongs (in FREE or not) is decided by what
 * it has after that. */
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/check_state.h"
#include "meta/content.h"
#include "meta/handlers.h"
#include "meta/trash.h"

#define FIXES_MAX 100000u /* of each kind in one go: the rest is found by the next run */

static int fix_inodes(struct check *c, Wire__FixRequest *fix)
{
	size_t count = 0;
	for (size_t n = 0; n < c->inode_count; n++)
		count += (c->inodes[n].seen & SEEN_FIX) != 0;
	if (count > FIXES_MAX)
		count = FIXES_MAX;
	fix->inodes = arena_take(c->op.arena, (count + 1) * sizeof(*fix->inodes));
	for (size_t n = 0; fix->inodes && n < c->inode_count && fix->n_inodes < count; n++) {
		const struct check_inode *i = &c->inodes[n];
		if (!(i->seen & SEEN_FIX))
			continue;
		Wire__InodeFix *f = arena_take(c->op.arena, sizeof(*f));
		if (!f)
			return -ENOMEM;
		bool counted = (i->flags & ATTR_TRASHED) || i->names || (i->key & INODE_MAX) == ROOT_INODE;
		uint32_t expected = i->flags & ATTR_TRASHED          ? 0
				    : (i->mode & 0170000) == 0040000 ? 2 + i->subdirectories
								     : i->names;
		wire__inode_fix__init(f);
		f->volume = (uint32_t)(i->key >> INODE_BITS);
		f->inode = i->key & INODE_MAX;
		f->nlink = counted ? expected - i->nlink : 0;
		f->allocated = 0 - (uint64_t)i->unaccounted;
		fix->inodes[fix->n_inodes++] = f;
	}
	return fix->inodes ? 0 : -ENOMEM;
}

static bool object_needs_fix(const struct check *c, const struct check_object_count *o)
{
	return check_wants(c, o->volume) &&
	       (o->refs != o->found_refs || o->live != o->found_live || (o->found_refs == 0) != (o->free_entries > 0));
}

static int fix_objects(struct check *c, Wire__FixRequest *fix)
{
	size_t count = 0;
	for (size_t n = 0; n < c->object_count; n++)
		count += object_needs_fix(c, &c->objects[n]);
	if (count > FIXES_MAX)
		count = FIXES_MAX;
	fix->objects = arena_take(c->op.arena, (count + 1) * sizeof(*fix->objects));
	for (size_t n = 0; fix->objects && n < c->object_count && fix->n_objects < count; n++) {
		const struct check_object_count *o = &c->objects[n];
		if (!object_needs_fix(c, o))
			continue;
		Wire__ObjectFix *f = arena_take(c->op.arena, sizeof(*f));
		if (!f)
			return -ENOMEM;
		wire__object_fix__init(f);
		f->object = o->object;
		f->volume = o->volume;
		f->refs = o->found_refs - o->refs;
		f->live_bytes = o->found_live - o->live;
		fix->objects[fix->n_objects++] = f;
	}
	return fix->objects ? 0 : -ENOMEM;
}

static int fix_volumes(struct check *c, Wire__FixRequest *fix)
{
	fix->volumes = arena_take(c->op.arena, (c->volume_count + 1) * sizeof(*fix->volumes));
	for (size_t n = 0; fix->volumes && n < c->volume_count; n++) {
		const struct check_volume *v = &c->volumes[n];
		if (v->deleted || !check_wants(c, v->id) || memcmp(v->recorded, v->counted, sizeof(v->counted)) == 0)
			continue;
		Wire__Volume *f = arena_take(c->op.arena, sizeof(*f));
		if (!f)
			return -ENOMEM;
		wire__volume__init(f);
		f->id = v->id;
		f->used_bytes = v->counted[0] - v->recorded[0];
		f->used_files = v->counted[1] - v->recorded[1];
		f->trash_bytes = v->counted[2] - v->recorded[2];
		f->trash_files = v->counted[3] - v->recorded[3];
		fix->volumes[fix->n_volumes++] = f;
	}
	return fix->volumes ? 0 : -ENOMEM;
}

int check_fix_make(struct check *c)
{
	c->op.arena = &c->result->memory;
	Wire__FixRequest *fix = arena_take(c->op.arena, sizeof(*fix));
	if (!fix)
		return -ENOMEM;
	wire__fix_request__init(fix);
	c->result->fix = fix;
	if (c->unreadable) {
		/* Counts without what cannot be read would free what it refers to. */
		c->result->repairable = 0;
		check_report(c, false, "nothing is repaired as long as there are records that cannot be read; put a backup back");
		return 0;
	}
	int r = fix_inodes(c, fix);
	if (r == 0)
		r = fix_objects(c, fix);
	return r < 0 ? r : fix_volumes(c, fix);
}

/* ---- FIX ---- */

/* A difference that leads below zero was not taken from this record. */
static bool difference_add(uint64_t *value, uint64_t difference)
{
	uint64_t sum = *value + difference;
	if ((int64_t)sum < 0)
		return false;
	*value = sum;
	return true;
}

static int fix_volume(struct op *op, const Wire__Volume *f)
{
	Wire__Volume *v;
	int r = volume_load(op, f->id, &v);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (!difference_add(&v->used_bytes, f->used_bytes) || !difference_add(&v->used_files, f->used_files) ||
	    !difference_add(&v->trash_bytes, f->trash_bytes) || !difference_add(&v->trash_files, f->trash_files)) {
		log_error("fsck: a correction does not fit volume %u; check again", f->id);
		return 0;
	}
	return volume_store(op, v);
}

static int fix_inode(struct op *op, const Wire__InodeFix *f)
{
	struct attr a;
	op->volume = f->volume;
	int r = inode_load(op, f->inode, &a);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if ((int32_t)(a.nlink + f->nlink) < 0 || !difference_add(&a.allocated, f->allocated)) {
		log_error("fsck: a correction does not fit inode %llu of volume %u; check again", (unsigned long long)f->inode,
			  f->volume);
		return 0;
	}
	a.nlink += f->nlink;
	r = inode_store(op, &a, NULL);
	if (r < 0 || !(a.flags & ATTR_TRASHED))
		return r;
	uint8_t key[TRASH_KEY], value[8];
	struct span there;
	trash_key(key, op->volume, a.deleted_ns, a.inode);
	r = view_get(op->view, TABLE_TRASH, key, sizeof(key), &there);
	if (r != -ENOENT)
		return r;
	put_le64(value, a.parent);
	return view_put(op->view, TABLE_TRASH, key, sizeof(key), value, sizeof(value));
}

/* The record after the correction; *drop: it is to go. */
static int fix_object(struct op *op, const Wire__ObjectFix *f, uint32_t *refs, bool *drop)
{
	uint8_t key[8], value[OBJECT_RECORD];
	struct span there;
	struct object_record record = { .volume = f->volume, .size = f->size, .raw_bytes = f->raw_bytes };
	put_be64(key, f->object);
	*drop = false;
	int r = view_get(op->view, TABLE_OBJECT, key, sizeof(key), &there);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 && there.size == OBJECT_RECORD)
		object_record_read(there.data, &record);
	if ((int32_t)(record.refs + f->refs) < 0 || !difference_add(&record.live_bytes, f->live_bytes)) {
		log_error("fsck: a correction does not fit object %llu; check again", (unsigned long long)f->object);
	} else {
		record.refs += f->refs;
	}
	*refs = record.refs;
	if (f->remove && record.refs == 0) {
		*drop = true;
		return r == -ENOENT ? 0 : view_delete(op->view, TABLE_OBJECT, key, sizeof(key));
	}
	object_record_pack(&record, value);
	return view_put(op->view, TABLE_OBJECT, key, sizeof(key), value, sizeof(value));
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* All leave FREE, and those without references enter it anew: the grace begins again. */
static int fix_all_objects(struct op *op, const Wire__FixRequest *q)
{
	uint64_t *ids = arena_take(op->arena, (q->n_objects + 1) * sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	for (size_t i = 0; i < q->n_objects; i++)
		ids[i] = q->objects[i]->object;
	qsort(ids, q->n_objects, sizeof(*ids), compare_u64);
	int r = q->n_objects ? free_remove(op, ids, q->n_objects) : 0;
	for (size_t i = 0; i < q->n_objects && r == 0; i++) {
		uint32_t refs;
		bool drop;
		r = fix_object(op, q->objects[i], &refs, &drop);
		if (r == 0 && refs == 0 && !drop)
			r = free_add(op, q->objects[i]->object);
	}
	return r;
}

int op_fix(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__FixRequest *q = (const Wire__FixRequest *)request;
	int r = fix_all_objects(op, q);
	for (size_t i = 0; i < q->n_inodes && r == 0; i++)
		r = fix_inode(op, q->inodes[i]);
	for (size_t i = 0; i < q->n_volumes && r == 0; i++)
		r = fix_volume(op, q->volumes[i]);
	return r;
}
