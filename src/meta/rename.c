/* Renaming.  Everything is looked up and checked first, into struct move; then it
 * is written.  Where both names are in one directory, `to` and `from` are the
 * same struct attr, so that its links and times are counted once. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include "meta/handlers.h"
#include "meta/names.h"

#define DEPTH_MAX 1000000u /* far beyond any path; a longer chain of parents is a loop */

struct move {
	const Wire__RenameRequest *request;
	struct attr old_parent, new_parent_apart;
	struct attr *new_parent;
	struct dentry old_name, new_name;
	struct attr moved, other; /* other: what has the new name now, if `replaces` */
	bool replaces;
};

/* Whether `ancestor` is `inode` or above it: 1, 0 or -errno. */
static int is_above(struct op *op, uint64_t ancestor, uint64_t inode)
{
	struct attr a;
	int r;

	for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
		if (inode == ancestor)
			return 1;
		if (inode == ROOT_INODE)
			return 0;
		r = inode_load(op, inode, &a);
		if (r < 0)
			return r;
		inode = a.parent;
	}
	return op_damage(op, TABLE_INODE, "the parents of inode %llu of volume %u go in a circle", (unsigned long long)inode,
			 op->volume);
}

static int no_loop(struct op *op, const struct attr *moved, uint64_t into)
{
	int r = S_ISDIR(moved->mode) ? is_above(op, moved->inode, into) : 0;

	return r > 0 ? -EINVAL : r;
}

static int move_find(struct op *op, struct move *m)
{
	const Wire__RenameRequest *q = m->request;
	int r = directory_load(op, q->old_parent, &m->old_parent);

	if (r < 0)
		return r;
	if (q->new_parent != q->old_parent) {
		m->new_parent = &m->new_parent_apart;
		r = directory_load(op, q->new_parent, m->new_parent);
		if (r < 0)
			return r;
	}
	r = dentry_find(op, q->old_parent, q->old_name.data, q->old_name.len, &m->old_name);
	if (r == 0)
		r = inode_load(op, m->old_name.inode, &m->moved);
	if (r < 0)
		return r;
	r = dentry_find(op, q->new_parent, q->new_name.data, q->new_name.len, &m->new_name);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	m->replaces = true;
	return inode_load(op, m->new_name.inode, &m->other);
}

/* Whether `other` may go to make room. */
static int may_replace(struct op *op, const struct move *m)
{
	int r;

	if (S_ISDIR(m->moved.mode) && !S_ISDIR(m->other.mode))
		return -ENOTDIR;
	if (!S_ISDIR(m->moved.mode) && S_ISDIR(m->other.mode))
		return -EISDIR;
	if (!S_ISDIR(m->other.mode))
		return 0;
	r = directory_is_empty(op, m->other.inode);
	return r == 0 ? -ENOTEMPTY : r < 0 ? r : 0;
}

static int move_check(struct op *op, const struct move *m)
{
	uint32_t flags = m->request->flags;
	bool apart = m->new_parent != &m->old_parent;
	int r = 0;

	if ((flags & RENAME_NOREPLACE) && m->replaces)
		return -EEXIST;
	if ((flags & RENAME_EXCHANGE) && !m->replaces)
		return -ENOENT;
	if (apart)
		r = no_loop(op, &m->moved, m->new_parent->inode);
	if (r == 0 && apart && (flags & RENAME_EXCHANGE))
		r = no_loop(op, &m->other, m->old_parent.inode);
	if (r == 0 && m->replaces && !(flags & RENAME_EXCHANGE))
		r = may_replace(op, m);
	if (r == 0 && !m->replaces && !m->new_name.cookie)
		r = -ENOSPC;
	return r;
}

static int arrive(struct op *op, struct attr *a, uint64_t parent)
{
	a->parent = parent;
	a->ctime_ns = op->now_ns;
	return inode_store(op, a, NULL);
}

static int parents_changed(struct op *op, struct move *m)
{
	int r = directory_changed(op, &m->old_parent);

	return r < 0 || m->new_parent == &m->old_parent ? r : directory_changed(op, m->new_parent);
}

static int move_exchange(struct op *op, struct move *m, Wire__RemovedReply *reply)
{
	const Wire__RenameRequest *q = m->request;
	int difference = (int)S_ISDIR(m->other.mode) - (int)S_ISDIR(m->moved.mode);
	int r = dentry_put(op, q->old_parent, m->old_name.cookie, q->old_name.data, q->old_name.len, m->other.inode,
			   m->other.mode);

	if (r == 0)
		r = dentry_put(op, q->new_parent, m->new_name.cookie, q->new_name.data, q->new_name.len, m->moved.inode,
			       m->moved.mode);
	if (r == 0)
		r = arrive(op, &m->moved, q->new_parent);
	if (r == 0)
		r = arrive(op, &m->other, q->old_parent);
	reply->inode = m->other.inode;
	m->old_parent.nlink += (uint32_t)difference;
	m->new_parent->nlink -= (uint32_t)difference;
	return r < 0 ? r : parents_changed(op, m);
}

static int move_over(struct op *op, struct move *m, Wire__RemovedReply *reply)
{
	const Wire__RenameRequest *q = m->request;
	int r = dentry_put(op, q->new_parent, m->new_name.cookie, q->new_name.data, q->new_name.len, m->moved.inode,
			   m->moved.mode);

	if (r == 0)
		r = dentry_remove(op, q->old_parent, m->old_name.cookie);
	if (r == 0 && m->replaces) {
		m->new_parent->nlink -= S_ISDIR(m->other.mode);
		r = name_lost(op, &m->other, q->new_parent, q->new_name.data, q->new_name.len);
		reply->inode = m->other.inode;
		reply->gone = m->other.nlink == 0;
	}
	if (r == 0)
		r = arrive(op, &m->moved, q->new_parent);
	if (S_ISDIR(m->moved.mode)) {
		m->old_parent.nlink--;
		m->new_parent->nlink++;
	}
	return r < 0 ? r : parents_changed(op, m);
}

int op_rename(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	struct move m = { .request = (const Wire__RenameRequest *)message, .new_parent = &m.old_parent };
	Wire__RemovedReply *answer = (Wire__RemovedReply *)reply;
	uint32_t flags = m.request->flags;
	int r;

	if ((flags & ~(uint32_t)(RENAME_NOREPLACE | RENAME_EXCHANGE)) || flags == (RENAME_NOREPLACE | RENAME_EXCHANGE))
		return -EINVAL;
	r = name_check(m.request->old_name.data, m.request->old_name.len);
	if (r == 0)
		r = name_check(m.request->new_name.data, m.request->new_name.len);
	if (r == 0)
		r = move_find(op, &m);
	if (r < 0)
		return r;
	if (m.replaces && m.moved.inode == m.other.inode) /* two names of one file: POSIX wants nothing done */
		return flags & RENAME_NOREPLACE ? -EEXIST : 0;
	r = move_check(op, &m);
	if (r == 0)
		r = inode_uncover(op, &m.moved);
	if (r == 0 && m.replaces)
		r = inode_uncover(op, &m.other);
	if (r < 0)
		return r;
	answer->moved = m.moved.inode;
	return flags & RENAME_EXCHANGE ? move_exchange(op, &m, answer) : move_over(op, &m, answer);
}
