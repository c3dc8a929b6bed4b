/* WRITE.  The kernel has no writeback cache here: a write() is one or more WRITEs, each
 * answered once the client has buffered it and reserved its space.  Of a large one the
 * client keeps the buffer it came in. */
#include "fuse/handlers.h"

int handle_write(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_write_in *in = &q->in.write;
	struct fuse_write_out out = { 0 };
	struct client_file *file = handle_of(in->fh)->file;
	bool kill = in->write_flags & FUSE_WRITE_KILL_SUIDGID;
	ssize_t done = q->loan ? client_write_buffer(file, in->offset, (void *)q->data, q->data_size, kill, q->loan->buffer,
						     &q->loan->kept)
			       : client_write(file, in->offset, q->data, q->data_size, kill);

	if (done < 0)
		return (int)done;
	out.size = (uint32_t)done;
	reply_data(r, &out, sizeof(out));
	return 0;
}
