/* READ, and access times.
 *
 * The answer is sent straight from the buffers the client holds; nothing is copied
 * on our side.
 *
 * Access times are ours to keep, as the kernel leaves them to FUSE servers.  By default
 * (noatime) nobody does.  With relatime the first read after an open updates it if it
 * is not later than the last change or is a day old; with strictatime every read does. */
#include "base/clock.h"
#include "base/log.h"
#include "fuse/handlers.h"
#include <string.h>
#include <sys/stat.h>

#define ATIME_STALE_NS (86400 * NS_PER_S)

enum mountpoint_atime atime_mode(const struct session *s)
{
	return atomic_load_explicit(&s->read_only, memory_order_relaxed)
		       ? ATIME_NEVER
		       : (enum mountpoint_atime)atomic_load_explicit(&s->atime, memory_order_relaxed);
}

bool atime_due(const struct session *s, const struct attr *a)
{
	enum mountpoint_atime mode = atime_mode(s);

	if (mode == ATIME_NEVER || (S_ISDIR(a->mode) && atomic_load(&s->nodiratime)))
		return false;
	return mode == ATIME_ALWAYS || a->atime_ns <= a->mtime_ns || a->atime_ns <= a->ctime_ns ||
	       clock_wall_ns() - a->atime_ns >= ATIME_STALE_NS;
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

/* The first read after an open that found the access time due; with strictatime each. */
static bool atime_take(const struct session *s, struct handle *h)
{
	if (!h || !atomic_load_explicit(&h->atime_due, memory_order_relaxed))
		return false;
	switch (atime_mode(s)) {
	case ATIME_NEVER: return false;
	case ATIME_ALWAYS: return true;
	default: return atomic_exchange(&h->atime_due, false);
	}
}

/* As with WRITE, the kernel says whose it is with direct I/O only (fuse_send_read): of our handles (open_directly), and with O_DIRECT.
 * All else fills pages, which are locked until it is answered; also a fault in a mapping of a file that is open for direct I/O. */
static bool holds_pages(const struct fuse_read_in *in) { return !(in->read_flags & FUSE_READ_LOCKOWNER); }

/* Reads of mapped files come faster than their access times can be set where others have to forget the file each time.  All workers
 * would then wait for that, and the others for pages that no worker is left to read.  So one of them does it for all of a handle, and
 * once more if there were others meanwhile. */
static void atime_update_later(struct session *s, uint64_t inode, struct handle *h)
{
	unsigned reads = atomic_load(&h->unstamped);

	do {
		atime_update(s, inode);
		session_moved(s, inode); /* it may have looked in between */
	} while (!atomic_compare_exchange_strong(&h->unstamped, &reads, 0));
}

int handle_read(struct session *s, const struct fuse_request *q, struct reply *r)
{
	uint64_t inode = session_inode(s, q->node);
	const struct iovec *parts;
	struct client_file *file;
	struct client_read *read;
	size_t bytes;
	bool due, later = false;
	int count, error = session_use(s, q, &file);

	if (error)
		return error;
	error = (holds_pages(&q->in.read) ? client_read : client_read_around)(file, q->in.read.offset, q->in.read.size, &read);
	if (error) {
		session_used(q, file);
		return error;
	}
	due = atime_take(s, q->handle);
	/* Before the answer, so that whoever waits for it sees the new time.  But in company others may have to forget the file
	 * first, and we what they change: that waits for the pages this request holds. */
	if (due && (client_is_alone(s->client) || !holds_pages(&q->in.read)))
		atime_update(s, inode);
	else if (due)
		r->goes_on = later = !atomic_fetch_add(&q->handle->unstamped, 1);
	parts = client_read_parts(read, &count, &bytes);
	reply_parts(r, parts, count, bytes);
	client_read_release(read);
	session_used(q, file);
	if (later)
		atime_update_later(s, inode, q->handle);
	return 0;
}
