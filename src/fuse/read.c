/* READ, and access times.
 *
 * The answer is sent straight from the buffers the client holds; nothing is copied
 * on our side.
 *
 * Access times are ours to keep, as the kernel leaves them to FUSE servers.  By default
 * (noatime) nobody does.  With relatime the first read after an open updates it if it
 * is not later than the last change or is a day old. */
#include "base/clock.h"
#include "base/log.h"
#include "fuse/handlers.h"
#include <string.h>

#define ATIME_STALE_NS (86400 * NS_PER_S)

bool atime_due(const struct session *s, const struct attr *a)
{
	if (!s->relatime)
		return false;
	return a->atime_ns <= a->mtime_ns || a->atime_ns <= a->ctime_ns || clock_wall_ns() - a->atime_ns >= ATIME_STALE_NS;
}

/* A failure does not fail the read: the file may be on a volume that is full or was
 * set read-only. */
void atime_update(const struct session *s, uint64_t inode)
{
	/* Reading changes nothing that ctime stands for. */
	struct client_setattr set = { .valid = SET_ATIME_NOW | KEEP_CTIME };
	struct entry e;
	int error = client_setattr(s->client, inode, &set, &e);

	if (error)
		log_debug("cannot update the access time of inode %llu: %s", (unsigned long long)inode, strerror(-error));
}

/* The first read after an open that finds the access time due. */
static bool atime_take(struct handle *h)
{
	return h && atomic_load_explicit(&h->atime_due, memory_order_relaxed) && atomic_exchange(&h->atime_due, false);
}

int handle_read(struct session *s, const struct fuse_request *q, struct reply *r)
{
	uint64_t inode = session_inode(s, q->node);
	const struct iovec *parts;
	struct client_file *file;
	struct client_read *read;
	size_t bytes;
	bool due, later = false;
	int count, error = session_use(s, q->node, q->in.read.fh, &file);

	if (error)
		return error;
	error = client_read(file, q->in.read.offset, q->in.read.size, &read);
	if (error) {
		session_used(q->in.read.fh, file);
		return error;
	}
	due = atime_take(handle_of(q->in.read.fh));
	/* Before the answer, so that whoever waits for it sees the new time.  But in company others may have to forget the file
	 * first, and we what they change: that waits for the pages this request holds. */
	if (due && client_is_alone(s->client))
		atime_update(s, inode);
	else if (due)
		r->goes_on = later = true;
	parts = client_read_parts(read, &count, &bytes);
	reply_parts(r, parts, count, bytes);
	client_read_release(read);
	session_used(q->in.read.fh, file);
	if (later) {
		atime_update(s, inode);
		session_moved(s, inode); /* it may have looked in between */
	}
	return 0;
}
