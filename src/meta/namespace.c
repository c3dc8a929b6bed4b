/* Looking names up, and giving and taking names of inodes that exist. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include "meta/handlers.h"
#include "meta/names.h"

#define LINKS_MAX 65000u

static int entry_of(struct op *op, uint64_t inode, ProtobufCMessage *reply)
{
	struct attr a;
	int r = inode_load(op, inode, &a);

	return r < 0 ? r : entry_reply(op, &a, (Wire__EntryReply *)reply);
}

/* The inode of a name in a directory; a name that leads nowhere is damage. */
static int child_load(struct op *op, uint64_t parent, const void *name, size_t size, struct dentry *d, struct attr *out)
{
	int r = dentry_find(op, parent, name, size, d);

	if (r < 0)
		return r;
	r = inode_load(op, d->inode, out);
	return r == -ENOENT ? op_damage(op, TABLE_DENTRY, "a name in directory %llu of volume %u has no inode",
					(unsigned long long)parent, op->volume)
			    : r;
}

static uint64_t root_of(const struct op *op) { return op->who->root ? op->who->root : ROOT_INODE; }

int op_lookup(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__NameRequest *request = (const Wire__NameRequest *)message;
	size_t size = request->name.len;
	const char *name = (const char *)request->name.data;
	struct attr parent, a;
	struct dentry d;
	int r = inode_load(op, request->parent, &parent);

	if (r < 0)
		return r;
	if (!S_ISDIR(parent.mode))
		return -ENOTDIR;
	if (size == 1 && name[0] == '.')
		return entry_reply(op, &parent, (Wire__EntryReply *)reply);
	if (size == 2 && memcmp(name, "..", 2) == 0) /* never above what the session sees */
		return entry_of(op, parent.inode == root_of(op) ? parent.inode : parent.parent, reply);
	r = name_check(name, size);
	if (r == 0)
		r = child_load(op, parent.inode, name, size, &d, &a);
	return r < 0 ? r : entry_reply(op, &a, (Wire__EntryReply *)reply);
}

int op_getattr(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	return entry_of(op, ((const Wire__InodeRequest *)message)->inode, reply);
}

int op_readlink(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__InodeRequest *request = (const Wire__InodeRequest *)message;
	Wire__BytesReply *answer = (Wire__BytesReply *)reply;
	struct span target;
	struct attr a;
	int r = inode_load(op, request->inode, &a);

	if (r < 0)
		return r;
	if (!S_ISLNK(a.mode))
		return -EINVAL;
	r = inode_target(op, a.inode, &target);
	if (r < 0)
		return r;
	answer->data.data = arena_copy(op->arena, target.data, target.size);
	answer->data.len = target.size;
	return answer->data.data ? 0 : -ENOMEM;
}

int op_resolve(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__ResolveRequest *request = (const Wire__ResolveRequest *)message;
	const char *p = request->path.len ? (const char *)request->path.data : "", *end = p + request->path.len, *slash;
	struct attr a;
	struct dentry d;
	int r = inode_load(op, root_of(op), &a);

	for (; r == 0 && p < end; p = slash < end ? slash + 1 : end) {
		slash = memchr(p, '/', (size_t)(end - p));
		slash = slash ? slash : end;
		if (slash == p || (slash - p == 1 && *p == '.'))
			continue;
		if (S_ISLNK(a.mode))
			return -ELOOP;
		if (!S_ISDIR(a.mode))
			return -ENOTDIR;
		r = name_check(p, (size_t)(slash - p));
		if (r == 0)
			r = child_load(op, a.inode, p, (size_t)(slash - p), &d, &a);
	}
	return r < 0 ? r : entry_reply(op, &a, (Wire__EntryReply *)reply);
}

int op_link(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__LinkRequest *request = (const Wire__LinkRequest *)message;
	struct attr parent, a;
	struct dentry d;
	int r = name_check(request->name.data, request->name.len);

	if (r == 0)
		r = directory_load(op, request->parent, &parent);
	if (r == 0)
		r = inode_load(op, request->inode, &a);
	if (r < 0)
		return r;
	if (S_ISDIR(a.mode))
		return -EPERM;
	if ((a.flags & ATTR_TRASHED) && !(a.flags & ATTR_NO_TRASH))
		return -ENOENT;
	r = dentry_find(op, parent.inode, request->name.data, request->name.len, &d);
	if (r != -ENOENT)
		return r < 0 ? r : -EEXIST;
	if (a.nlink >= LINKS_MAX)
		return -EMLINK;
	if (!d.cookie)
		return -ENOSPC;
	r = inode_uncover(op, &a);
	if (r < 0)
		return r;
	if (a.flags & ATTR_TRASHED) {
		r = volume_may_add_file(op);
		if (r == 0)
			r = trash_remove(op, &a);
		if (r < 0)
			return r;
	}
	a.nlink++;
	a.parent = parent.inode;
	a.ctime_ns = op->now_ns;
	r = inode_store(op, &a, NULL);
	if (r == 0)
		r = dentry_put(op, parent.inode, d.cookie, request->name.data, request->name.len, a.inode, a.mode);
	if (r == 0)
		r = directory_changed(op, &parent);
	if (r == 0)
		r = attr_reply(op, &parent, &((Wire__EntryReply *)reply)->parent);
	return r < 0 ? r : entry_reply(op, &a, (Wire__EntryReply *)reply);
}

int directory_changed(struct op *op, struct attr *directory)
{
	directory->mtime_ns = directory->ctime_ns = op->now_ns;
	directory->version++;
	return inode_store(op, directory, NULL);
}

int name_lost(struct op *op, struct attr *a, uint64_t parent, const void *name, size_t size)
{
	a->ctime_ns = op->now_ns;
	a->nlink = S_ISDIR(a->mode) ? 0 : a->nlink - 1;
	return a->nlink == 0 ? trash_add(op, a, parent, name, size) : inode_store(op, a, NULL);
}

/* Both removals: `want_directory` tells which. */
static int remove_name(struct op *op, const Wire__NameRequest *request, bool want_directory, Wire__RemovedReply *reply)
{
	struct attr parent, a;
	struct dentry d;
	int r = name_check(request->name.data, request->name.len);

	if (r == 0)
		r = directory_load(op, request->parent, &parent);
	if (r == 0)
		r = child_load(op, parent.inode, request->name.data, request->name.len, &d, &a);
	if (r < 0)
		return r;
	if (S_ISDIR(a.mode) != want_directory)
		return want_directory ? -ENOTDIR : -EISDIR;
	if (want_directory) {
		r = directory_is_empty(op, a.inode);
		if (r <= 0)
			return r < 0 ? r : -ENOTEMPTY;
		parent.nlink--;
	}
	r = dentry_remove(op, parent.inode, d.cookie);
	if (r == 0)
		r = name_lost(op, &a, parent.inode, request->name.data, request->name.len);
	if (r == 0)
		r = directory_changed(op, &parent);
	if (r == 0)
		r = attr_reply(op, &parent, &reply->parent);
	reply->valid_ms = valid_ms(op);
	reply->inode = a.inode;
	reply->gone = a.nlink == 0;
	return r;
}

int op_unlink(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	return remove_name(op, (const Wire__NameRequest *)message, false, (Wire__RemovedReply *)reply);
}

int op_rmdir(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	return remove_name(op, (const Wire__NameRequest *)message, true, (Wire__RemovedReply *)reply);
}
