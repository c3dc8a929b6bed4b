/* From an inode to its path: up through the parents, finding each name by walking
 * through the directory it is in.  Slow by nature and therefore bounded. */
#include <errno.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "meta/handlers.h"
#include "meta/trash.h"

#define SCAN_MAX (1u << 20) /* names looked at in one directory */
#define DEPTH_MAX 4096u

struct path_step {
	uint64_t parent;
	size_t size;
	uint8_t name[];
};

static int step_make(struct op *op, uint64_t parent, const void *name, size_t size, struct path_step **out)
{
	struct path_step *s = arena_take(op->arena, sizeof(*s) + size);
	if (!s)
		return -ENOMEM;
	s->parent = parent;
	s->size = size;
	memcpy(s->name, name, size);
	*out = s;
	return 0;
}

#define DENTRY_HEAD 9u /* inode 8, type 1; then the name */

static int step_scan(struct op *op, uint64_t parent, uint64_t inode, struct path_step **out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[16] = { 0 };
	uint64_t directory = inode_key(op->volume, parent);
	put_be64(key, directory);
	int r = cursor_open(&c, op->view, TABLE_DENTRY);
	if (r == 0)
		r = cursor_seek(&c, key, sizeof(key));
	for (uint32_t n = 0; r == 0 && n < SCAN_MAX; n++, r = cursor_next(&c)) {
		if (c.key.size != sizeof(key) || get_be64(c.key.data) != directory)
			break;
		if (c.value.size > DENTRY_HEAD && get_le64(c.value.data) == inode)
			return step_make(op, parent, c.value.data + DENTRY_HEAD, c.value.size - DENTRY_HEAD, out);
	}
	return r < 0 && r != -ENOENT ? r : step_make(op, ROOT_INODE, "?", 1, out);
}

static int step_find(struct op *op, uint64_t inode, struct path_step **out)
{
	struct attr a;
	int r = inode_load(op, inode, &a);
	if (r < 0)
		return r;
	if (!(a.flags & ATTR_TRASHED))
		return step_scan(op, a.parent, inode, out);
	struct trash_place place;
	r = trash_place(op, &a, &place);
	if (r < 0)
		return r;
	if (place.name.size == 0)
		return step_make(op, ROOT_INODE, "?", 1, out);
	return step_make(op, place.parent, place.name.data, place.name.size, out);
}

void paths_free(struct paths *p) { intmap_free(&p->names); }

int paths_append(struct op *op, struct paths *p, uint64_t inode, struct buf *out)
{
	CLEANUP_BUF struct buf steps = { 0 };
	for (uint32_t depth = 0; inode != ROOT_INODE && depth < DEPTH_MAX; depth++) {
		struct path_step *s = intmap_get(&p->names, inode);
		int r = 0;
		if (!s) {
			r = step_find(op, inode, &s);
			if (r == -ENOENT && depth > 0) /* its directory was freed before it */
				r = step_make(op, ROOT_INODE, "?", 1, &s);
			if (r == 0)
				r = intmap_set(&p->names, inode, s);
		}
		if (r < 0)
			return r;
		buf_append(&steps, &s, sizeof(s));
		inode = s->parent;
	}
	if (steps.failed)
		return -ENOMEM;
	if (steps.len == 0)
		buf_le8(out, '/');
	for (size_t at = steps.len; at > 0; at -= sizeof(struct path_step *)) {
		struct path_step *s;
		memcpy(&s, steps.data + at - sizeof(s), sizeof(s));
		buf_le8(out, '/');
		buf_append(out, s->name, s->size);
	}
	return out->failed ? -ENOMEM : 0;
}

int inode_path(struct op *op, uint64_t inode, struct buf *out)
{
	struct paths p = { 0 };
	int r = paths_append(op, &p, inode, out);
	paths_free(&p);
	return r;
}

int op_path(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	CLEANUP_BUF struct buf path = { 0 };
	Wire__BytesReply *answer = (Wire__BytesReply *)reply;
	int r = inode_path(op, ((const Wire__InodeRequest *)request)->inode, &path);
	if (r < 0)
		return r;
	answer->data.data = arena_copy(op->arena, path.data, path.len);
	answer->data.len = path.len;
	return answer->data.data ? 0 : -ENOMEM;
}
