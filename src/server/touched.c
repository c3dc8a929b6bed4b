#include "server/touched.h"
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include "meta/attr.h"
#include "server/state.h"

#define FEW 8u /* most a mutation of single names touches */

struct finding {
	struct server *server;
	uint32_t volume;
	struct arena *arena;
	struct touch *touched;
	size_t count;
};

static int attr_read(struct server *s, uint32_t volume, uint16_t op, const ProtobufCMessage *request, struct arena *arena,
		     struct attr *out)
{
	struct caller who = { .volume = volume, .root = ROOT_INODE };
	ProtobufCMessage *reply;
	int r = meta_read(s->meta, &who, op, request, arena, &reply);

	if (!r) {
		const Wire__EntryReply *entry = (const Wire__EntryReply *)reply;

		r = attr_unpack(entry->attr.data, entry->attr.len, out);
	}
	return r;
}

static int inode_read(struct server *s, uint32_t volume, uint64_t inode, struct arena *arena, struct attr *out)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;

	request.inode = inode;
	return attr_read(s, volume, WIRE__OP__GETATTR, &request.base, arena, out);
}

int touched_cover(struct server *s, uint32_t volume, uint64_t inode, struct touch *out)
{
	struct arena arena;
	struct attr a;
	int r;

	arena_init(&arena, 0);
	r = inode_read(s, volume, inode, &arena, &a);
	arena_free(&arena);
	if (!r)
		*out = (struct touch){ attr_cover(&a), TOUCH_DIRECTORY };
	return r;
}

static void add(struct finding *f, uint64_t inode, enum touch_kind kind)
{
	for (size_t i = 0; i < f->count; i++)
		if (f->touched[i].inode == inode && f->touched[i].kind == kind)
			return;
	f->touched[f->count++] = (struct touch){ inode, kind };
}

/* What is said of it changes, and, of a file, perhaps what is in it. */
static int add_inode(struct finding *f, uint64_t inode, bool content)
{
	struct attr a;
	int r = inode_read(f->server, f->volume, inode, f->arena, &a);

	if (r)
		return r == -ENOENT ? 0 : r;
	add(f, attr_cover(&a), TOUCH_DIRECTORY);
	if (content && S_ISREG(a.mode))
		add(f, inode, TOUCH_CONTENT);
	return 0;
}

/* The inode of a name; `source`: what is unstored of it is stored first. */
static int add_child(struct finding *f, uint64_t parent, ProtobufCBinaryData name, bool source)
{
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;
	struct attr a;
	int r;

	add(f, parent, TOUCH_DIRECTORY);
	request.parent = parent;
	request.name = name;
	r = attr_read(f->server, f->volume, WIRE__OP__LOOKUP, &request.base, f->arena, &a);
	if (r)
		return r == -EBADMSG || r == -ENOMEM ? r : 0;
	add(f, attr_cover(&a), TOUCH_DIRECTORY);
	if (source && S_ISREG(a.mode))
		add(f, a.inode, TOUCH_SOURCE);
	return 0;
}

static int add_rename(struct finding *f, const Wire__RenameRequest *q)
{
	int r = add_child(f, q->old_parent, q->old_name, true);

	return r ? r : add_child(f, q->new_parent, q->new_name, q->flags & RENAME_EXCHANGE);
}

static int add_link(struct finding *f, const Wire__LinkRequest *q)
{
	add(f, q->parent, TOUCH_DIRECTORY);
	add(f, q->inode, TOUCH_SOURCE);
	return add_inode(f, q->inode, false);
}

static int add_clone(struct finding *f, const Wire__CloneRequest *q)
{
	if (q->source != q->target)
		add(f, q->source, TOUCH_SOURCE);
	return add_inode(f, q->target, true);
}

static int add_many(struct finding *f, const Wire__CreateManyRequest *q)
{
	for (size_t i = 0; i < q->n_files; i++)
		if (i == 0 || q->files[i]->parent != q->files[i - 1]->parent)
			add(f, q->files[i]->parent, TOUCH_DIRECTORY);
	return 0;
}

static int find(struct finding *f, uint16_t op, const ProtobufCMessage *m)
{
	const Wire__NameRequest *name = (const Wire__NameRequest *)m;

	switch (op) {
	case WIRE__OP__CREATE: add(f, ((const Wire__CreateRequest *)m)->parent, TOUCH_DIRECTORY); return 0;
	case WIRE__OP__CREATE_MANY: return add_many(f, (const Wire__CreateManyRequest *)m);
	case WIRE__OP__LINK: return add_link(f, (const Wire__LinkRequest *)m);
	case WIRE__OP__UNLINK:
	case WIRE__OP__RMDIR: return add_child(f, name->parent, name->name, false);
	case WIRE__OP__RENAME: return add_rename(f, (const Wire__RenameRequest *)m);
	case WIRE__OP__SETATTR: return add_inode(f, ((const Wire__SetattrRequest *)m)->inode, true);
	case WIRE__OP__SETXATTR:
	case WIRE__OP__REMOVEXATTR: return add_inode(f, ((const Wire__XattrRequest *)m)->inode, true);
	case WIRE__OP__FALLOCATE: return add_inode(f, ((const Wire__FallocateRequest *)m)->inode, true);
	case WIRE__OP__CLONE: return add_clone(f, (const Wire__CloneRequest *)m);
	default: return 0;
	}
}

int touched_find(struct server *s, uint32_t volume, uint16_t op, const ProtobufCMessage *message, struct arena *arena,
		 struct touch **out, size_t *count)
{
	struct finding f = { .server = s, .volume = volume, .arena = arena };
	size_t room = op == WIRE__OP__CREATE_MANY ? ((const Wire__CreateManyRequest *)message)->n_files + 1 : FEW;
	int r;

	f.touched = arena_take(arena, room * sizeof(*f.touched));
	if (!f.touched)
		return -ENOMEM;
	r = find(&f, op, message);
	if (r)
		return r;
	*out = f.touched;
	*count = f.count;
	return 0;
}
