#include "fuse/handle.h"
#include <stdlib.h>
#include "base/cleanup.h"
#include "fuse/handlers.h"
#include "fuse/passthrough.h"

static struct handle *handle_of(uint64_t fh) { return (struct handle *)(uintptr_t)fh; }

/* ---- References ---- */

static struct handle *handle_hold(uint64_t fh)
{
	struct handle *h = handle_of(fh);

	if (h)
		atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
	return h;
}

static void handle_drop(struct handle *h)
{
	if (!h || atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1)
		return;
	client_release(h->file);
	free(h);
}

void handles_hold(struct fuse_request *q)
{
	switch (q->opcode) {
	case FUSE_READ: q->handle = handle_hold(q->in.read.fh); break;
	case FUSE_WRITE: q->handle = handle_hold(q->in.write.fh); break;
	case FUSE_FLUSH: q->handle = handle_hold(q->in.flush.fh); break;
	case FUSE_FSYNC: q->handle = handle_hold(q->in.fsync.fh); break;
	case FUSE_FALLOCATE: q->handle = handle_hold(q->in.fallocate.fh); break;
	case FUSE_LSEEK: q->handle = handle_hold(q->in.lseek.fh); break;
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW: q->handle = handle_hold(q->in.lk.fh); break;
	case FUSE_COPY_FILE_RANGE:
	case FUSE_COPY_FILE_RANGE_64:
		q->handle = handle_hold(q->in.copy.fh_in);
		q->target = handle_hold(q->in.copy.fh_out);
		break;
	default: break;
	}
}

void handles_drop(const struct fuse_request *q)
{
	handle_drop(q->handle);
	handle_drop(q->target);
}

/* ---- Opening and closing ---- */

struct handle *session_open(struct session *s, struct client_file *file, uint64_t inode)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h) {
		client_open_untold(file);
		client_release(file);
		return NULL;
	}
	h->refs = 1;
	h->file = file;
	h->inode = inode;
	h->number = atomic_fetch_add(&s->locks.handles, 1) + 1;
	LOCKED(&s->lock);
	h->next = s->handles;
	if (h->next)
		h->next->previous = h;
	s->handles = h;
	return h;
}

static void handle_unlink_from(struct session *s, struct handle *h)
{
	LOCKED(&s->lock);
	locks_handle_gone(s, h);
	if (h->next)
		h->next->previous = h->previous;
	if (h->previous)
		h->previous->next = h->next;
	else
		s->handles = h->next;
}

void session_close(struct session *s, struct handle *h)
{
	locks_handle_closed(s, h);
	handle_unlink_from(s, h);
	passthrough_close(s, h);
	handle_drop(h);
}

void session_unopen(struct session *s, struct handle *h)
{
	client_open_untold(h->file);
	session_close(s, h);
}

struct handle *handle_released(const struct fuse_request *q) { return handle_of(q->in.release.fh); }

unsigned session_open_nodes(struct session *s, uint64_t *nodes, unsigned most)
{
	unsigned count = 0;
	LOCKED(&s->lock);

	for (const struct handle *h = s->handles; h && count < most; h = h->next)
		nodes[count++] = h->inode == s->root ? FUSE_ROOT_ID
						     : h->inode | (atomic_load(&h->other_side) ? NODE_OTHER_SIDE : 0);
	return count;
}

/* ---- Using ---- */

int session_use(struct session *s, const struct fuse_request *q, struct client_file **file)
{
	if (!q->handle)
		return client_view(s->client, session_inode(s, q->node), file);
	*file = q->handle->file;
	return 0;
}

void session_used(const struct fuse_request *q, struct client_file *file)
{
	if (!q->handle)
		client_view_end(file);
}
