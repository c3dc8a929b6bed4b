/* Attributes: GETATTR, STATX, SETATTR, STATFS. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "fuse/handlers.h"

#define STATFS_BLOCK 4096u

/* Sends what was filled in, with the leave to keep it. */
static void attr_send(struct session *s, const struct entry *e, struct reply *r, uint64_t *valid, uint32_t *valid_nsec,
		      const void *out, size_t size)
{
	struct given_leave leave = given_enter(&s->given, r->leave, e->valid_ms);
	bool dual;
	uint64_t node = session_node(s, e->attr.inode, &dual);

	if (dual)
		leave.attr_ms = 0;
	else if (leave.attr_ms)
		given_note(&s->given, node);
	else if (!e->contested)
		leave.attr_ms = given_cover(&s->given, r->leave, node, &e->attr, e->granted_ms);
	*valid = leave.attr_ms / 1000;
	*valid_nsec = leave.attr_ms % 1000 * 1000000;
	reply_data(r, out, size);
	given_leave(&s->given);
}

static void attr_reply(struct session *s, const struct entry *e, struct reply *r)
{
	struct fuse_attr_out out = { 0 };

	bare_learn(&s->bare, r->begun, e);
	attr_fill(&out.attr, &e->attr);
	attr_send(s, e, r, &out.attr_valid, &out.attr_valid_nsec, &out, sizeof(out));
}

int handle_getattr(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct entry e;
	int error = client_getattr(s->client, session_inode(s, q->node), &e);

	if (!error)
		attr_reply(s, &e, r);
	return error;
}

/* The kernel asks by STATX instead of GETATTR when the caller wants the time of birth. */
int handle_statx(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct fuse_statx_out out = { 0 };
	struct entry e;
	int error = client_getattr(s->client, session_inode(s, q->node), &e);

	if (error)
		return error;
	statx_fill(&out.stat, &e.attr);
	attr_send(s, &e, r, &out.attr_valid, &out.attr_valid_nsec, &out, sizeof(out));
	return 0;
}

/* Times that 64 bits of nanoseconds cannot hold (before 1678, after 2262) become the
 * nearest that they can. */
static int64_t time_join(uint64_t seconds, uint32_t ns)
{
	int64_t s = (int64_t)seconds, joined;

	if (__builtin_mul_overflow(s, NS_PER_S, &joined) || __builtin_add_overflow(joined, (int64_t)ns, &joined))
		return s < 0 ? INT64_MIN : INT64_MAX;
	return joined;
}

static void setattr_translate(const struct fuse_setattr_in *in, struct client_setattr *out)
{
	static const struct {
		uint32_t kernel, ours;
	} plain[] = {
		{ FATTR_MODE, SET_MODE },
		{ FATTR_UID, SET_UID },
		{ FATTR_GID, SET_GID },
		{ FATTR_SIZE, SET_SIZE },
	};

	*out = (struct client_setattr){
		.mode = in->mode,
		.uid = in->uid,
		.gid = in->gid,
		.size = in->size,
		.kill_suidgid = in->valid & FATTR_KILL_SUIDGID,
	};
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		if (in->valid & plain[i].kernel)
			out->valid |= plain[i].ours;
	}
	/* "Now" is the server's, and comes with the plain bit set as well. */
	if (in->valid & FATTR_ATIME_NOW) {
		out->valid |= SET_ATIME_NOW;
	} else if (in->valid & FATTR_ATIME) {
		out->valid |= SET_ATIME;
		out->atime_ns = time_join(in->atime, in->atimensec);
	}
	if (in->valid & FATTR_MTIME_NOW) {
		out->valid |= SET_MTIME_NOW;
	} else if (in->valid & FATTR_MTIME) {
		out->valid |= SET_MTIME;
		out->mtime_ns = time_join(in->mtime, in->mtimensec);
	}
}

/* A SETATTR that sets nothing is how the kernel says that somebody without CAP_FSETID is
 * about to write, fallocate or copy into a set-user-ID file.  The bits must go before it
 * is answered: the kernel keeps the mode of the answer, and asks for it no more.  Root
 * gets here when a file capability is removed, and keeps the bits. */
static bool is_about_to_write(const struct fuse_request *q)
{
	return q->uid && !(q->in.setattr.valid & ~(uint32_t)(FATTR_FH | FATTR_LOCKOWNER | FATTR_CTIME));
}

/* The kernel tells the main group of who asks; the others are in /proc.  Who cannot be seen there is outside. */
static bool caller_is_in(const struct fuse_request *q, uint32_t gid)
{
	CLEANUP_FREE char *line = NULL; /* there may be thousands of them */
	char path[48];
	size_t room = 0;
	bool found = q->gid == gid;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%u/status", q->pid);
	f = found || !q->pid ? NULL : fopen(path, "re");
	while (f && !found && getline(&line, &room, f) > 0) {
		if (strncmp(line, "Groups:", 7) != 0)
			continue;
		for (char *at = line + 7, *end; !found; at = end) {
			unsigned long group = strtoul(at, &end, 10);

			if (end == at)
				break;
			found = group == gid;
		}
	}
	if (f)
		fclose(f);
	return found;
}

bool loses_sgid(const struct session *s, const struct fuse_request *q)
{
	struct entry e;

	return q->uid && !client_getattr(s->client, session_inode(s, q->node), &e) &&
	       (e.attr.mode & (S_IFMT | S_ISGID | S_IXGRP)) == (S_IFREG | S_ISGID) && !caller_is_in(q, e.attr.gid);
}

/* FATTR_CTIME comes only with the kernel's writeback cache; FATTR_FH and FATTR_LOCKOWNER
 * add nothing, as the client knows its open files by inode. */
int handle_setattr(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct client_setattr set;
	struct entry e;
	int error;

	/* A size that is set by name; the kernel looks that up again. */
	if ((q->in.setattr.valid & (FATTR_SIZE | FATTR_FH)) == FATTR_SIZE &&
	    modes_is_elsewhere(&s->modes, session_inode(s, q->node), (q->node & NODE_OTHER_SIDE) != 0))
		return -ESTALE;
	setattr_translate(&q->in.setattr, &set);
	set.kill_suidgid |= is_about_to_write(q);
	set.kill_sgid = set.kill_suidgid && loses_sgid(s, q);
	error = client_setattr(s->client, session_inode(s, q->node), &set, &e);
	if (error)
		return error;
	e.granted_ms = 0; /* unlike that of a GETATTR, the kernel takes this answer for true whatever it was told meanwhile */
	attr_reply(s, &e, r);
	return 0;
}

int handle_statfs(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct fuse_statfs_out out = { 0 };
	struct client_space space;
	uint64_t all, used, available;
	int error = client_statfs(s->client, &space);

	if (error)
		return error;
	all = space.total_bytes / STATFS_BLOCK;
	used = (space.used_bytes + STATFS_BLOCK - 1) / STATFS_BLOCK;
	available = space.free_bytes / STATFS_BLOCK;
	/* df shows as used what is not free.  What others use on the disk of the store is free here, and not available. */
	out.st = (struct fuse_kstatfs){
		.blocks = all,
		.bfree = used + available < all ? all - used : available,
		.bavail = available,
		.files = space.total_files,
		.ffree = space.free_files,
		.bsize = STATFS_BLOCK,
		.frsize = STATFS_BLOCK,
		.namelen = NAME_MAX,
	};
	reply_data(r, &out, sizeof(out));
	return 0;
}
