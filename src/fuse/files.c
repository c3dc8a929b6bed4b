/* Open files: OPEN, CREATE, TMPFILE, RELEASE, and what works on them but is neither
 * reading nor writing. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>
#include "fuse/handlers.h"
#include "fuse/passthrough.h"

/* The answer to COPY_FILE_RANGE has 32 bits for the length. */
#define COPY_MAX_32 0xfffff000u

static bool reading_counts(const struct session *s, int flags)
{
	return atime_mode(s) != ATIME_NEVER && !(flags & O_NOATIME) && (flags & O_ACCMODE) != O_WRONLY;
}

/* With relatime, a file whose access time is due is opened without the pages the kernel
 * kept, so that its first read reaches us.  With strictatime it always is. */
static bool open_atime_due(const struct session *s, uint64_t inode, int flags)
{
	struct entry e;

	return reading_counts(s, flags) && !client_getattr(s->client, inode, &e) && atime_due(s, &e.attr);
}

/* Handles to append with: see write.c.  And, with write-back, those that only write: its data goes to a file of the local disk,
 * whose pages the kernel keeps anyway.  Copying it into a second set of pages is a third of what a checkpoint costs, and they
 * would take the place of the datasets'.  And, with strictatime, those that read: each read has to reach us. */
static bool open_directly(const struct session *s, int flags, bool due)
{
	int access = flags & O_ACCMODE;

	return atomic_load(&s->can_write_directly) &&
	       ((flags & O_APPEND && access != O_RDONLY) || (access == O_WRONLY && s->writes_back) ||
		(due && atime_mode(s) == ATIME_ALWAYS));
}

/* A file of the client's with a handle, counted among those that are open. */
static int open_counted(struct session *s, const struct fuse_request *q, struct handle **out, bool *unchanged, bool *due)
{
	uint64_t inode = session_inode(s, q->node);
	int flags = (int)q->in.open.flags, error;
	bool kill = q->in.open.open_flags & FUSE_OPEN_KILL_SUIDGID, writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
	struct opened opened = { 0 };
	struct client_file *file;
	struct handle *h = NULL;

	error = writes ? passthrough_open_write(s, q->node, &opened) : 0;
	if (error)
		return error;
	error = client_open(s->client, inode, flags, kill, kill && (flags & O_TRUNC) && loses_sgid(s, q), &file, unchanged);
	if (!error) {
		h = session_open(s, file, inode);
		error = h ? 0 : -ENOMEM;
	}
	if (error) {
		modes_close(&s->modes, inode, &opened);
		return error;
	}
	h->opened = opened;
	*due = open_atime_due(s, inode, flags);
	error = writes ? 0 : passthrough_open_read(s, q->node, h, flags, *due);
	if (error) {
		session_unopen(s, h);
		return error;
	}
	atomic_store(&h->other_side, h->opened.side);
	*out = h;
	return 0;
}

int handle_open(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int flags = (int)q->in.open.flags, error;
	struct fuse_open_out out = { 0 };
	bool unchanged = false, due = false;
	struct handle *h;

	if (atomic_load(&s->no_opens))
		return -ENOSYS; /* and is not asked again */
	given_opened(&s->given, s->device, q->node);
	error = open_counted(s, q, &h, &unchanged, &due);
	if (error)
		return error;
	out.fh = handle_fh(h);
	out.open_flags = locks_spare_flush(s, h->inode, flags, false) ? FOPEN_NOFLUSH : 0;
	if (h->opened.mode == OPEN_PASSED) {
		out.open_flags |= FOPEN_PASSTHROUGH | (flags & O_DIRECT ? FOPEN_DIRECT_IO : 0);
		fuse_open_out_backing(&out, h->opened.backing);
	} else {
		atomic_store(&h->atime_due, due);
		h->direct = open_directly(s, flags, due);
		out.open_flags |= (unchanged && !due && !h->opened.foreign ? FOPEN_KEEP_CACHE : 0) |
				  (h->direct ? FOPEN_DIRECT_IO : 0);
	}
	r->ends = true;
	if (reply_data(r, &out, sizeof(out)))
		session_unopen(s, h);
	return 0;
}

/* The kernel does not keep an interrupted CREATE's file open, so neither may we. */
static int created_reply(struct session *s, struct client_file *file, const struct entry *e, int flags, struct reply *r)
{
	struct given_leave leave;
	struct fuse_entry_out entry;
	struct fuse_open_out out = { 0 };
	struct handle *h = session_open(s, file, e->attr.inode);
	bool dual, due;
	uint64_t node;
	int error;

	if (!h)
		return -ENOMEM;
	error = passthrough_create(s, e->attr.inode, &h->opened);
	if (error) {
		session_unopen(s, h);
		return error;
	}
	atomic_store(&h->other_side, h->opened.side);
	node = session_node(s, e->attr.inode, &dual);
	bare_learn(&s->bare, r->begun, e);
	out.fh = handle_fh(h);
	due = reading_counts(s, flags) && atime_due(s, &e->attr);
	atomic_store(&h->atime_due, due);
	h->direct = open_directly(s, flags, due);
	out.open_flags = (h->direct ? FOPEN_DIRECT_IO : 0) |
			 (locks_spare_flush(s, e->attr.inode, flags, !e->attr.size && !e->attr.version) ? FOPEN_NOFLUSH : 0);
	leave = given_enter(&s->given, r->leave, e->valid_ms);
	if (dual)
		leave.attr_ms = 0;
	entry_fill(&entry, node, &e->attr, leave);
	if (leave.attr_ms)
		given_note(&s->given, node);
	error = reply_pair(r, &entry, sizeof(entry), &out, sizeof(out));
	given_leave(&s->given);
	if (error)
		session_unopen(s, h);
	return 0;
}

int handle_create(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct client_identity who = identity_of(q, q->in.create.umask);
	struct client_file *file;
	struct entry e;
	int error = client_create(s->client, session_inode(s, q->node), q->name, q->in.create.mode, (int)q->in.create.flags, &who,
				  &file, &e);

	return error ? error : created_reply(s, file, &e, (int)q->in.create.flags, r);
}

int handle_tmpfile(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct client_identity who = identity_of(q, q->in.create.umask);
	struct client_file *file;
	struct entry e;
	int error = client_tmpfile(s->client, session_inode(s, q->node), q->in.create.mode, &who, &file, &e);

	return error ? error : created_reply(s, file, &e, (int)q->in.create.flags, r);
}

int handle_release(struct session *s, const struct fuse_request *q, struct reply *r)
{
	session_close(s, handle_released(q));
	r->ends = true;
	reply_error(r, 0);
	return 0;
}

int handle_fsync(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int error = q->handle ? client_fsync(q->handle->file) : 0; /* without one the file was only read */

	if (!error)
		reply_error(r, 0);
	return error;
}

int handle_syncfs(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int error = client_fsync_all(s->client);

	if (!error)
		reply_error(r, 0);
	return error;
}

/* The kernel drops its own pages of what was punched or zeroed.  An unknown mode is
 * refused here, never with ENOSYS, which would end fallocate for the whole mount. */
int handle_fallocate(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_fallocate_in *in = &q->in.fallocate;
	int error;

	if (in->mode & ~(uint32_t)(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		return -EOPNOTSUPP;
	if (!q->handle)
		return -EROFS;
	error = client_fallocate(q->handle->file, (int)in->mode, in->offset, in->length);
	if (!error)
		reply_error(r, 0);
	return error;
}

int handle_lseek(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct fuse_lseek_out out = { 0 };
	struct client_file *file;
	int error;

	if (q->in.lseek.whence != SEEK_DATA && q->in.lseek.whence != SEEK_HOLE)
		return -EINVAL;
	error = session_use(s, q, &file);
	if (error)
		return error;
	error = client_lseek(file, q->in.lseek.offset, (int)q->in.lseek.whence, &out.offset);
	session_used(q, file);
	if (!error)
		reply_data(r, &out, sizeof(out));
	return error;
}

/* COPY_FILE_RANGE and COPY_FILE_RANGE_64, which differ in the width of the answer. */
int handle_copy(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_copy_file_range_in *in = &q->in.copy;
	bool wide = q->opcode == FUSE_COPY_FILE_RANGE_64;
	uint64_t length = wide || in->len < COPY_MAX_32 ? in->len : COPY_MAX_32;
	ssize_t done;

	if (in->flags)
		return -EINVAL;
	if (!q->handle || !q->target)
		return -EROFS;
	done = client_copy_range(q->handle->file, in->off_in, q->target->file, in->off_out, length);
	if (done < 0)
		return (int)done;
	if (wide) {
		struct fuse_copy_file_range_out out = { .bytes_copied = (uint64_t)done };

		reply_data(r, &out, sizeof(out));
	} else {
		struct fuse_write_out out = { .size = (uint32_t)done };

		reply_data(r, &out, sizeof(out));
	}
	return 0;
}
