/* WRITE.  The kernel has no writeback cache here: a write() is one or more WRITEs, each
 * answered once the client has buffered it and reserved its space.  Of a large one the
 * client keeps the buffer it came in. */
#include <errno.h>
#include <fcntl.h>
#include "fuse/handlers.h"

/* Only with direct I/O the kernel says whose it is: of our handles (open_directly), and with O_DIRECT. */
static bool is_around_pages(const struct fuse_write_in *in) { return in->write_flags & FUSE_WRITE_LOCKOWNER; }

/* The kernel appends at the end it knows of; other mounts may have moved that.  What is appended must not be in its pages
 * then, or they would have it at the wrong place (open_directly); what comes out of its pages has its place. */
static unsigned how_to_write(const struct fuse_request *q)
{
	const struct fuse_write_in *in = &q->in.write;
	unsigned how = in->write_flags & FUSE_WRITE_KILL_SUIDGID ? WRITE_KILL_SUIDGID : 0;

	if (in->write_flags & FUSE_WRITE_CACHE)
		return how | WRITE_OF_PAGES;
	if (q->handle->direct && in->flags & O_APPEND)
		return how | WRITE_APPEND;
	return how | (is_around_pages(in) ? WRITE_AROUND_PAGES : 0);
}

/* Of what does not go through its pages the kernel leaves it to us to make it durable (O_DSYNC, O_SYNC, RWF_DSYNC): always with our
 * handles for direct I/O, with O_DIRECT where the program does not wait (io_submit, io_uring).  Which of them it is cannot be seen. */
static bool is_synchronous(const struct fuse_write_in *in) { return (in->flags & O_DSYNC) && is_around_pages(in); }

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
	if (done >= 0 && is_synchronous(&q->in.write)) {
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
