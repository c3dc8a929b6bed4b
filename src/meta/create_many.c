/* Files a session has made by itself while it held the lease of the volume: the
 * server hands out inode numbers first (ALLOC_INODES) and is told afterwards
 * (CREATE_MANY).
 *
 * What the server would refuse must be found out before the application is told
 * that the file is there; so numbers are only handed out while quota and disk have
 * room for a good many more files than are handed out at once.
 *
 * A number names one file for ever.  That makes telling twice harmless: the same
 * name with the same number is the file that was asked for. */
#include <errno.h>
#include <sys/stat.h>
#include "meta/acl.h"
#include "meta/handlers.h"
#include "meta/names.h"

#define NUMBERS_MAX 4096u
#define NUMBERS_MARGIN 4u /* room for so many times the numbers asked for */
#define FILES_MAX 1024u

int op_alloc_inodes(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__AllocInodesRequest *request = (const Wire__AllocInodesRequest *)message;
	Wire__AllocInodesReply *answer = (Wire__AllocInodesReply *)reply;
	uint32_t count = request->count < 1 ? 1 : request->count > NUMBERS_MAX ? NUMBERS_MAX : request->count;
	uint64_t left;
	int r = volume_files_left(op, &left);

	if (r == -ENOSPC || (r == 0 && left < (uint64_t)count * NUMBERS_MARGIN))
		return 0;
	if (r == 0)
		r = inode_take_numbers(op, count, &answer->first);
	if (r == 0)
		answer->count = count;
	return r;
}

/* The directory of the files before; they mostly share one. */
struct place {
	struct attr directory;
	bool loaded, changed;
};

static int place_leave(struct op *op, struct place *p)
{
	return p->loaded && p->changed ? inode_store(op, &p->directory, NULL) : 0;
}

static int place_enter(struct op *op, struct place *p, uint64_t inode)
{
	int r;

	if (p->loaded && p->directory.inode == inode)
		return 0;
	r = place_leave(op, p);
	*p = (struct place){ 0 };
	if (r == 0)
		r = directory_load(op, inode, &p->directory);
	p->loaded = r == 0;
	return r;
}

/* 1: to be made, `cookie` is where its name goes; 0: it is there already; -errno: it cannot be made. */
static int file_check(struct op *op, const Wire__NewFile *f, uint64_t *cookie)
{
	struct dentry d;
	struct attr a;
	int r = name_check(f->name.data, f->name.len);

	if (r < 0)
		return r;
	if (!inode_number_given(op, f->inode))
		return -EINVAL;
	r = dentry_find(op, f->parent, f->name.data, f->name.len, &d);
	if (r != -ENOENT)
		return r < 0 ? r : d.inode == f->inode ? 0 : -EEXIST;
	if (!d.cookie)
		return -ENOSPC;
	r = inode_load(op, f->inode, &a);
	if (r != -ENOENT)
		return r < 0 ? r : -ESTALE;
	*cookie = d.cookie;
	return 1;
}

static int file_make(struct op *op, const Wire__NewFile *f, struct place *p, uint64_t cookie)
{
	int64_t time_ns = f->time_ns > 0 && f->time_ns < op->now_ns ? f->time_ns : op->now_ns;
	struct attr *directory = &p->directory;
	struct attr a = {
		.inode = f->inode,
		.mode = S_IFREG | (f->mode & 07777),
		.uid = f->uid,
		.gid = directory->mode & S_ISGID ? directory->gid : f->gid,
		.nlink = 1,
		.atime_ns = time_ns,
		.mtime_ns = time_ns,
		.ctime_ns = time_ns,
		.btime_ns = time_ns,
		.parent = directory->inode,
	};
	int r = acl_inherit(op, directory, &a, 0);

	if (r == 0)
		r = inode_store(op, &a, NULL);
	if (r == 0)
		r = dentry_put(op, directory->inode, cookie, f->name.data, f->name.len, a.inode, a.mode);
	/* Told late, it does not set back what was changed since; a time from the future was set by somebody. */
	if (directory->mtime_ns < time_ns || directory->mtime_ns > op->now_ns)
		directory->mtime_ns = time_ns;
	if (directory->ctime_ns < time_ns)
		directory->ctime_ns = time_ns;
	directory->version++;
	p->changed = true;
	return r;
}

/* The status of one file in *status; -errno: the whole mutation fails. */
static int file_add(struct op *op, const Wire__NewFile *f, struct place *p, uint64_t *left, uint32_t *status)
{
	uint64_t cookie = 0;
	int r = place_enter(op, p, f->parent);

	if (r == 0)
		r = file_check(op, f, &cookie);
	if (r > 0 && *left == 0)
		r = -EDQUOT;
	if (r > 0) {
		r = file_make(op, f, p, cookie);
		if (r < 0)
			return r;
		--*left;
	}
	if (r == -EBADMSG || op->view->poisoned)
		return r < 0 ? r : op->view->poisoned;
	*status = (uint32_t)-r;
	return 0;
}

int op_create_many(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__CreateManyRequest *request = (const Wire__CreateManyRequest *)message;
	Wire__CreateManyReply *answer = (Wire__CreateManyReply *)reply;
	struct attr live = { .inode = 0 };
	struct place place = { 0 };
	uint64_t left, before;
	uint32_t failed = 0;
	int r = volume_files_left(op, &left);

	if (request->n_files > FILES_MAX)
		return -E2BIG;
	if (r < 0 && r != -ENOSPC)
		return r;
	before = left;
	answer->status = arena_take(op->arena, (request->n_files + 1) * sizeof(*answer->status));
	if (!answer->status)
		return -ENOMEM;
	for (size_t i = 0; i < request->n_files; i++) {
		r = file_add(op, request->files[i], &place, &left, &answer->status[i]);
		if (r < 0)
			return r;
		failed |= answer->status[i];
	}
	answer->n_status = failed ? request->n_files : 0;
	r = place_leave(op, &place);
	return r < 0 || left == before ? r : volume_account(op, &live, 0, (int64_t)(before - left));
}
