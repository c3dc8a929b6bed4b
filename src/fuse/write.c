/* WRITE.  The kernel has no writeback cache here: a write() is one or more WRITEs, each
 * answered once the client has buffered it and reserved its space.  Of a large one the
 * client keeps the buffer it came in. */
#include <fcntl.h>
#include "fuse/handlers.h"

/* The kernel appends at the end it knows of; other mounts may have moved that.  (What comes out of its pages has its place.) */
static bool is_append(const struct fuse_write_in *in) { return (in->flags & O_APPEND) && !(in->write_flags & FUSE_WRITE_CACHE); }

static ssize_t append(struct session *s, const struct fuse_request *q, struct client_file *file, bool kill)
{
	uint64_t offset = q->in.write.offset, at;
	ssize_t done = client_append(file, q->data, q->data_size, kill, &at);

	if (done > 0 && at != offset)
		session_misplaced(s, q->node, offset, q->data_size);
	return done;
}

int handle_write(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_write_in *in = &q->in.write;
	struct fuse_write_out out = { 0 };
	struct client_file *file = handle_of(in->fh)->file;
	bool kill = in->write_flags & FUSE_WRITE_KILL_SUIDGID;
	ssize_t done;

	if (is_append(in))
		done = append(s, q, file, kill);
	else if (q->loan)
		done = client_write_buffer(file, in->offset, (void *)q->data, q->data_size, kill, q->loan->buffer,
					   &q->loan->kept);
	else
		done = client_write(file, in->offset, q->data, q->data_size, kill);
	if (done < 0)
		return (int)done;
	out.size = (uint32_t)done;
	reply_data(r, &out, sizeof(out));
	return 0;
}
