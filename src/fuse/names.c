/* Names: LOOKUP, what makes them, what takes them away, and READLINK. */
#include <errno.h>
#include <linux/fs.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include "fuse/handlers.h"

/* An inode the kernel is only about to make cannot be recalled: it may take any time until it is there. */
static int entry_reply(struct session *s, const struct entry *e, uint32_t granted_ms, struct reply *r)
{
	bool dual;
	uint64_t node = session_node(s, e->attr.inode, &dual);
	struct given_leave leave;
	/* Asked before the gate, because the kernel may have to wait for an inode that goes. */
	bool there = granted_ms && !e->contested && !dual && given_is_there(s->device, node);
	struct fuse_entry_out out;
	int error;

	bare_learn(&s->bare, r->begun, e);
	leave = given_of(&s->given, given_enter(&s->given, r->leave, e->valid_ms), &e->attr);
	if (dual)
		leave.attr_ms = 0;
	else if (leave.attr_ms)
		given_note(&s->given, node);
	else if (there)
		leave.attr_ms = given_cover(&s->given, r->leave, node, &e->attr, granted_ms);
	entry_fill(&out, node, &e->attr, leave);
	error = reply_data(r, &out, sizeof(out));
	given_leave(&s->given);
	return error;
}

int name_reply(struct session *s, const struct entry *e, struct reply *r) { return entry_reply(s, e, 0, r); }

/* Node 0: there is no such name, which the kernel keeps like one that is there. */
static int absence_reply(struct session *s, const struct entry *e, struct reply *r)
{
	struct given_leave leave = given_enter(&s->given, r->leave, e->valid_ms);
	struct fuse_entry_out out;

	leave.attr_ms = 0;
	entry_fill(&out, 0, &e->attr, leave);
	if (leave.name_ms)
		reply_data(r, &out, sizeof(out));
	given_leave(&s->given);
	return leave.name_ms ? 0 : -ENOENT;
}

/* "." and ".." come from file handles (name_to_handle_at, an NFS server) whose inode
 * the kernel has forgotten.  One that has no name left must not come back. */
static int lookup_by_number(struct session *s, const struct fuse_request *q, struct entry *e)
{
	uint64_t inode = session_inode(s, q->node);
	int error = client_getattr(s->client, inode, e);

	if (error)
		return error;
	if (e->attr.flags & ATTR_TRASHED)
		return -ENOENT;
	if (!strcmp(q->name, ".") || inode == s->root)
		return 0;
	return client_getattr(s->client, e->attr.parent, e);
}

int handle_lookup(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct entry e = { 0 };
	int error;

	if (!strcmp(q->name, ".") || !strcmp(q->name, ".."))
		error = lookup_by_number(s, q, &e);
	else
		error = client_lookup(s->client, session_inode(s, q->node), q->name, &e);
	if (!error)
		entry_reply(s, &e, e.granted_ms, r);
	if (error == -ENOENT && e.valid_ms)
		return absence_reply(s, &e, r);
	return error;
}

static uint64_t rdev_decode(uint32_t rdev) { return makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00)); }

int handle_mknod(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct client_identity who = identity_of(q, q->in.mknod.umask);
	struct entry e;
	int error = client_mknod(s->client, session_inode(s, q->node), q->name, q->in.mknod.mode, rdev_decode(q->in.mknod.rdev),
				 &who, &e);

	if (!error)
		name_reply(s, &e, r);
	return error;
}

int handle_mkdir(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct client_identity who = identity_of(q, q->in.mkdir.umask);
	struct entry e;
	int error = client_mkdir(s->client, session_inode(s, q->node), q->name, q->in.mkdir.mode, &who, &e);

	if (!error)
		name_reply(s, &e, r);
	return error;
}

int handle_symlink(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct client_identity who = identity_of(q, 0);
	struct entry e;
	int error = client_symlink(s->client, session_inode(s, q->node), q->name, q->second, &who, &e);

	if (!error)
		name_reply(s, &e, r);
	return error;
}

int handle_link(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct entry e;
	int error = client_link(s->client, session_inode(s, q->in.link.oldnodeid), session_inode(s, q->node), q->name, &e);

	if (!error)
		name_reply(s, &e, r);
	return error;
}

int handle_unlink(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int error = client_unlink(s->client, session_inode(s, q->node), q->name);

	if (!error)
		reply_error(r, 0);
	return error;
}

int handle_rmdir(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int error = client_rmdir(s->client, session_inode(s, q->node), q->name);

	if (!error)
		reply_error(r, 0);
	return error;
}

/* RENAME and RENAME2.  An unknown flag gets EINVAL, as from any file system; ENOSYS would
 * make the kernel forget about RENAME2 altogether. */
int handle_rename(struct session *s, const struct fuse_request *q, struct reply *r)
{
	uint32_t flags = q->in.rename.flags;
	int error;

	if (flags & ~(uint32_t)(RENAME_NOREPLACE | RENAME_EXCHANGE))
		return -EINVAL;
	error = client_rename(s->client, session_inode(s, q->node), q->name, session_inode(s, q->in.rename.newdir), q->second,
			      flags);
	if (!error)
		reply_error(r, 0);
	return error;
}

int handle_readlink(struct session *s, const struct fuse_request *q, struct reply *r)
{
	uint64_t inode = session_inode(s, q->node);
	struct entry e;
	char target[PATH_MAX];
	int length = client_readlink(s->client, inode, target, sizeof(target) - 1);

	if (length < 0)
		return length;
	if (atime_mode(s) != ATIME_NEVER && !client_getattr(s->client, inode, &e) && atime_due(s, &e.attr))
		atime_update(s, inode);
	reply_data(r, target, (size_t)length);
	return 0;
}
