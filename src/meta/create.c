/* LMDB work for a new file: 5 puts (inode, name, parent, and the volume's counters
 * twice: for its number and for the count), one more for the remembered answer and
 * one delete of an older answer; and one put per batch for the batch's number.
 * They touch about 10 pages, whatever the size of the directory. */
#include <errno.h>
#include <sys/stat.h>
#include "meta/acl.h"
#include "meta/handlers.h"
#include "meta/names.h"

#define TARGET_MAX 4095u
#define DIRECTORY_SIZE 4096u /* what stat shows; it means nothing */

/* What can be refused from the request alone. */
static int request_check(struct op *op, const Wire__CreateRequest *request)
{
	uint32_t type = request->mode & S_IFMT;

	if (attr_type(request->mode) == 0)
		return -EINVAL;
	if (type == S_IFLNK && (request->target.len == 0 || memchr(request->target.data, 0, request->target.len)))
		return -EINVAL;
	if (type == S_IFLNK && request->target.len > TARGET_MAX)
		return -ENAMETOOLONG;
	if (request->name.len == 0)
		return type == S_IFREG ? 0 : -EINVAL;
	return name_check(request->name.data, request->name.len);
}

/* The name is there already. */
static int create_existing(struct op *op, const Wire__CreateRequest *request, const struct dentry *d, Wire__EntryReply *reply)
{
	struct attr a;
	int r;

	if (request->exclusive || !S_ISREG(request->mode))
		return -EEXIST;
	r = inode_load(op, d->inode, &a);
	if (r < 0)
		return r;
	if (!S_ISREG(a.mode))
		return -EEXIST;
	if (request->open)
		op->opened = a.inode;
	return entry_reply(op, &a, reply);
}

static void attr_begin(struct op *op, const Wire__CreateRequest *request, const struct attr *parent, struct attr *a)
{
	*a = (struct attr){
		.mode = request->mode & (S_IFMT | 07777),
		.uid = request->uid,
		.gid = request->gid,
		.nlink = 1,
		.atime_ns = op->now_ns,
		.mtime_ns = op->now_ns,
		.ctime_ns = op->now_ns,
		.btime_ns = op->now_ns,
		.parent = parent->inode,
	};
	if (parent->mode & S_ISGID)
		a->gid = parent->gid;
	if (S_ISDIR(a->mode)) {
		a->nlink = 2;
		a->size = DIRECTORY_SIZE;
		a->mode |= parent->mode & S_ISGID;
	} else if (S_ISLNK(a->mode)) {
		a->mode = S_IFLNK | 0777;
		a->size = request->target.len;
	} else if (S_ISCHR(a->mode) || S_ISBLK(a->mode)) {
		a->rdev = request->rdev;
	}
}

/* Gives the inode its number, its ACL and its record. */
static int inode_make(struct op *op, const Wire__CreateRequest *request, const struct attr *parent, struct attr *a)
{
	struct span target = { request->target.data, request->target.len };
	int r;

	attr_begin(op, request, parent, a);
	r = inode_take_numbers(op, 1, &a->inode);
	if (r == 0 && op->mutation)
		op->mutation->made = a->inode;
	if (r == 0 && !S_ISLNK(a->mode))
		r = acl_inherit(op, parent, a, request->umask);
	if (r == 0)
		r = volume_account(op, a, 0, 1);
	return r < 0 ? r : inode_store(op, a, S_ISLNK(a->mode) ? &target : NULL);
}

static int create_nameless(struct op *op, const Wire__CreateRequest *request, const struct attr *parent, Wire__EntryReply *reply)
{
	struct attr a;
	int r = volume_may_add_file(op);

	if (r == 0)
		r = inode_make(op, request, parent, &a);
	if (r < 0)
		return r;
	a.nlink = 0;
	a.flags |= ATTR_NO_TRASH;
	r = trash_add(op, &a, parent->inode, "", 0);
	if (r < 0)
		return r;
	op->opened = request->open ? a.inode : 0;
	return entry_reply(op, &a, reply);
}

int op_create(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__CreateRequest *request = (const Wire__CreateRequest *)message;
	struct attr parent, a;
	struct dentry d;
	int r = request_check(op, request);

	if (r == 0)
		r = directory_load(op, request->parent, &parent);
	if (r < 0)
		return r;
	if (request->name.len == 0)
		return create_nameless(op, request, &parent, (Wire__EntryReply *)reply);
	r = dentry_find(op, parent.inode, request->name.data, request->name.len, &d);
	if (r != -ENOENT)
		return r < 0 ? r : create_existing(op, request, &d, (Wire__EntryReply *)reply);
	if (!d.cookie)
		return -ENOSPC;
	r = volume_may_add_file(op);
	if (r == 0)
		r = inode_make(op, request, &parent, &a);
	if (r == 0)
		r = dentry_put(op, parent.inode, d.cookie, request->name.data, request->name.len, a.inode, a.mode);
	if (r < 0)
		return r;
	parent.nlink += S_ISDIR(a.mode);
	r = directory_changed(op, &parent);
	if (r == 0)
		r = attr_reply(op, &parent, &((Wire__EntryReply *)reply)->parent);
	if (r < 0)
		return r;
	op->opened = request->open ? a.inode : 0;
	return entry_reply(op, &a, (Wire__EntryReply *)reply);
}
