/* WRITE.  The kernel has no writeback cache here: a write() is one or more WRITEs, each
 * answered once the client has buffered it and reserved its space.  Of a large one the
 * client keeps the buffer it came in. */
#include <errno.h>
#include <fcntl.h>
#include "fuse/handlers.h"

/* The kernel appends at the end it knows of; other mounts may have moved that.  What is appended must not be in its pages
 * then, or they would have it at the wrong place (open_directly); what comes out of its pages has its place. */
static unsigned how_to_write(const struct fuse_request *q)
{
	const struct fuse_write_in *in = &q->in.write;
	unsigned how = in->write_flags & FUSE_WRITE_KILL_SUIDGID ? WRITE_KILL_SUIDGID : 0;

	if (in->write_flags & FUSE_WRITE_CACHE)
		return how | WRITE_OF_PAGES;
	if (q->handle->direct)
		how |= in->flags & O_APPEND ? WRITE_APPEND : WRITE_AROUND_PAGES;
	return how;
}

/* Of what does not go through its pages the kernel leaves it to us to make it durable (O_DSYNC, O_SYNC, RWF_DSYNC). */
static bool is_synchronous(const struct fuse_request *q)
{
	return (q->in.write.flags & O_DSYNC) && q->handle->direct && !(q->in.write.write_flags & FUSE_WRITE_CACHE);
}

int handle_write(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_write_in *in = &q->in.write;
	struct fuse_write_out out = { 0 };
	struct client_file *file;
	unsigned how;
	ssize_t done;

	if (!q->handle) /* of a mount that only reads, though somebody told the kernel otherwise */
		return -EROFS;
	file = q->handle->file;
	how = how_to_write(q);
	if (q->loan && !(how & WRITE_APPEND))
		done = client_write_buffer(file, in->offset, (void *)q->data, q->data_size, how, q->loan->buffer, &q->loan->kept);
	else
		done = client_write(file, in->offset, q->data, q->data_size, how);
	if (done >= 0 && is_synchronous(q)) {
		int error = client_fsync(file);

		if (error)
			return error;
	}
	if (done < 0)
		return (int)done;
	out.size = (uint32_t)done;
	r->ends = true;
	reply_data(r, &out, sizeof(out));
	return 0;
}
