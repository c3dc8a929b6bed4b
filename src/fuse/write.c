/* WRITE.  The kernel has no writeback cache here: a write() is one or more WRITEs, each
 * answered once the client has buffered it and reserved its space. */
#include "fuse/handlers.h"

int handle_write(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_write_in *in = &q->in.write;
	struct fuse_write_out out = { 0 };
	ssize_t done = client_write(handle_of(in->fh)->file, in->offset, q->data, q->data_size,
				    in->write_flags & FUSE_WRITE_KILL_SUIDGID);

	if (done < 0)
		return (int)done;
	out.size = (uint32_t)done;
	reply_data(r, &out, sizeof(out));
	return 0;
}
