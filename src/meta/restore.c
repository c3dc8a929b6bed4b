/* TRASH_RESTORE: a deleted inode gets a name again.
 *
 * Without a place given it goes back to where it was.  A directory on the way
 * that is gone as well is found by its name if somebody made a new one there, or
 * else restored from the trash; it outlives what was in it there, because it
 * could only be removed after. */
#include <errno.h>
#include <dirent.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "meta/content.h"
#include "meta/handlers.h"
#include "meta/names.h"
#include "meta/trash.h"

#define DEPTH_MAX 4096u

/* A name to make: that of a missing directory, or at last of the thing itself. */
struct restore_step {
	struct attr attr;
	uint8_t name[255];
	size_t size;
};

struct restore {
	uint64_t parent;             /* a live directory: the first name goes in there */
	struct restore_step **steps; /* the outermost last */
	size_t count;
};

static int restore_step_add(struct op *op, struct restore *plan, const struct attr *a, const void *name, size_t size)
{
	if (plan->count == DEPTH_MAX)
		return -ELOOP;
	if (size == 0 || size > 255)
		return op_explain(op, -ENOENT, "its name is not known; say where to put it (--to)");
	if (!plan->steps) {
		plan->steps = arena_take(op->arena, DEPTH_MAX * sizeof(*plan->steps));
		if (!plan->steps)
			return -ENOMEM;
	}
	struct restore_step *s = arena_take(op->arena, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->attr = *a;
	s->size = size;
	memcpy(s->name, name, size);
	plan->steps[plan->count++] = s;
	return 0;
}

/* Up from the thing to the first directory that is not in the trash. */
static int restore_climb(struct op *op, struct restore *plan, struct attr a)
{
	while (a.flags & ATTR_TRASHED) {
		struct trash_place place;
		int r = trash_place(op, &a, &place);
		if (r == 0)
			r = restore_step_add(op, plan, &a, place.name.data, place.name.size);
		if (r < 0)
			return r;
		plan->parent = place.parent;
		r = inode_load(op, place.parent, &a);
		if (r == -ENOENT || (r == 0 && !S_ISDIR(a.mode)) || (r == 0 && (a.flags & ATTR_NO_TRASH)))
			return op_explain(op, -ENOENT, "its directory is gone for good; say where to put it (--to)");
		if (r < 0)
			return r;
	}
	return 0;
}

/* Down again through directories that somebody has made anew under the old names. */
static int restore_descend(struct op *op, struct restore *plan)
{
	while (plan->count) {
		struct restore_step *s = plan->steps[plan->count - 1];
		struct dentry there;
		int r = dentry_find(op, plan->parent, s->name, s->size, &there);
		if (r == -ENOENT)
			return dentry_room(op, plan->parent, s->name, s->size);
		if (r < 0)
			return r;
		if (plan->count == 1 || there.type != DT_DIR)
			return op_explain(op, -EEXIST, "there is something called %.*s again; say where else to put it (--to)",
					  (int)(s->size < 80 ? s->size : 80), (const char *)s->name);
		plan->parent = there.inode;
		plan->count--;
	}
	return 0;
}

/* To a path from the root of the volume; the directories on it must be there. */
static int restore_to(struct op *op, struct restore *plan, const struct attr *a, const ProtobufCBinaryData *to)
{
	const uint8_t *at = to->data, *end = to->data + to->len;
	plan->parent = ROOT_INODE;
	for (;;) {
		while (at < end && *at == '/')
			at++;
		const uint8_t *slash = memchr(at, '/', (size_t)(end - at));
		const uint8_t *rest = slash ? slash : end;
		while (rest < end && *rest == '/')
			rest++;
		size_t size = (size_t)((slash ? slash : end) - at);
		int r = name_check(at, size);
		if (r < 0)
			return op_explain(op, r, "the place to put it is not a path");
		if (rest == end)
			return restore_step_add(op, plan, a, at, size);
		struct dentry d;
		r = dentry_find(op, plan->parent, at, size, &d);
		if (r == 0 && d.type != DT_DIR)
			r = -ENOTDIR;
		if (r < 0)
			return op_explain(op, r, "there is no directory %.*s", (int)(size < 80 ? size : 80), (const char *)at);
		plan->parent = d.inode;
		at = rest;
	}
}

static int restore_check(struct op *op, const Wire__TrashRestoreRequest *q, struct restore *plan)
{
	struct attr a;
	int64_t limit;
	int r = inode_load(op, q->inode, &a);
	if (r == 0)
		r = trash_limit(op, &limit);
	if (r == -ENOENT || (r == 0 && (!(a.flags & ATTR_TRASHED) || (a.flags & ATTR_NO_TRASH) || a.deleted_ns <= limit)))
		return op_explain(op, -ENOENT, "inode %llu is not in the trash", (unsigned long long)q->inode);
	if (r == 0)
		r = q->to.len ? restore_to(op, plan, &a, &q->to) : restore_climb(op, plan, a);
	if (r == 0)
		r = restore_descend(op, plan);
	if (r == 0)
		r = volume_may_add_bytes(op, a.allocated);
	if (r < 0)
		return r;
	Wire__Volume *v;
	r = volume_load(op, op->volume, &v);
	if (r == 0 && v->max_files && v->used_files + plan->count > v->max_files)
		return -EDQUOT;
	return r < 0 ? r : volume_may_add_file(op);
}

static int restore_write(struct op *op, const struct restore *plan)
{
	uint64_t parent = plan->parent;
	for (size_t i = plan->count; i-- > 0;) {
		struct restore_step *s = plan->steps[i];
		struct attr directory, a = s->attr;
		bool is_directory = S_ISDIR(a.mode);
		int r = trash_remove(op, &a);
		a.nlink = is_directory ? 2 : 1;
		a.parent = parent;
		a.ctime_ns = op->now_ns;
		if (r == 0)
			r = inode_store(op, &a, NULL);
		if (r == 0)
			r = dentry_add(op, parent, s->name, s->size, a.inode, a.mode);
		if (r == 0)
			r = inode_load(op, parent, &directory);
		if (r < 0)
			return r;
		directory.nlink += is_directory;
		r = directory_changed(op, &directory);
		if (r < 0)
			return r;
		parent = a.inode;
	}
	return 0;
}

int op_trash_restore(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__TrashRestoreRequest *q = (const Wire__TrashRestoreRequest *)request;
	Wire__TrashRestoreReply *answer = (Wire__TrashRestoreReply *)reply;
	struct restore plan = { 0 };
	int r = trash_volume(op, q->volume);
	if (r == 0)
		r = restore_check(op, q, &plan);
	if (r < 0)
		return r;
	CLEANUP_BUF struct buf path = { 0 };
	r = restore_write(op, &plan);
	if (r == 0)
		r = inode_path(op, q->inode, &path);
	if (r == 0) {
		answer->path.data = arena_copy(op->arena, path.data, path.len);
		answer->path.len = path.len;
		r = answer->path.data ? 0 : -ENOMEM;
	}
	return r;
}
