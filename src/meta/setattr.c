#include <errno.h>
#include <sys/stat.h>
#include "meta/acl.h"
#include "meta/handlers.h"

static int change_size(struct op *op, struct attr *a, const Wire__SetattrRequest *request)
{
	bool more = false;
	int r = 0;

	if (request->size < a->size)
		r = content_cut(op, a, request->size, FILE_SIZE_MAX, UINT32_MAX, &more);
	if (r < 0)
		return r;
	a->size = request->size;
	r = inode_kill_capability(op, a);
	inode_touch_content(op, a);
	return r;
}

static int change_owner(struct op *op, struct attr *a, const Wire__SetattrRequest *request)
{
	if (request->valid & SET_UID)
		a->uid = request->uid;
	if (request->valid & SET_GID)
		a->gid = request->gid;
	if (S_ISDIR(a->mode))
		return 0;
	inode_kill_suidgid(a);
	return inode_kill_capability(op, a);
}

static int change_mode(struct op *op, struct attr *a, const Wire__SetattrRequest *request)
{
	a->mode = (a->mode & S_IFMT) | (request->mode & 07777);
	if (request->kill_sgid)
		a->mode &= ~(uint32_t)S_ISGID;
	return acl_chmod(op, a);
}

static void change_times(struct op *op, struct attr *a, const Wire__SetattrRequest *request)
{
	if (request->valid & SET_ATIME)
		a->atime_ns = request->atime_ns;
	if (request->valid & SET_ATIME_NOW)
		a->atime_ns = op->now_ns;
	if (request->valid & SET_MTIME)
		a->mtime_ns = request->mtime_ns;
	if (request->valid & SET_MTIME_NOW)
		a->mtime_ns = op->now_ns;
}

/* As the kernel does before somebody without CAP_FSETID changes contents. */
static void drop_privileges(struct attr *a, const Wire__SetattrRequest *request)
{
	if (!request->kill_suidgid)
		return;
	inode_kill_suidgid(a);
	if (request->kill_sgid)
		a->mode &= ~(uint32_t)S_ISGID;
}

/* Reading a file sets its access time and leaves its ctime alone.  That is so whatever the mount believes the ctime to be: it has
 * a later one while it has unstored data. */
static bool keeps_ctime(const Wire__SetattrRequest *request)
{
	return (request->valid & KEEP_CTIME) && !(request->valid & ~(uint32_t)(SET_ATIME | SET_ATIME_NOW | KEEP_CTIME));
}

int op_setattr(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__SetattrRequest *request = (const Wire__SetattrRequest *)message;
	struct attr a;
	int r = inode_load(op, request->inode, &a);

	if (r < 0)
		return r;
	if (request->valid & SET_SIZE) {
		if (!S_ISREG(a.mode))
			return S_ISDIR(a.mode) ? -EISDIR : -EINVAL;
		if (request->size > FILE_SIZE_MAX)
			return -EFBIG;
		r = change_size(op, &a, request);
	}
	if (r == 0 && (request->valid & (SET_UID | SET_GID)))
		r = change_owner(op, &a, request);
	if (r == 0 && (request->valid & SET_MODE))
		r = change_mode(op, &a, request);
	if (r < 0)
		return r;
	if (request->valid || request->kill_suidgid) {
		if (!(request->valid & SET_MODE) && S_ISREG(a.mode))
			drop_privileges(&a, request);
		change_times(op, &a, request);
		if (!keeps_ctime(request))
			a.ctime_ns = op->now_ns;
		r = inode_store(op, &a, NULL);
	}
	return r < 0 ? r : entry_reply(op, &a, (Wire__EntryReply *)reply);
}
