#include "fuse/passthrough.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/handlers.h"

/* ---- Backing ids ---- */

static int backing_make(void *context, int fd)
{
	struct session *s = context;
	struct fuse_backing_map map = { .fd = fd };
	int id = ioctl(s->device, FUSE_DEV_IOC_BACKING_OPEN, &map), error = errno;

	client_passing(s->client, id >= 0);
	if (id >= 0)
		return id;
	if (!atomic_exchange(&s->pass_error, error))
		log_info("files are not passed through: %s", strerror(error));
	return -error;
}

static void backing_drop(void *context, int id)
{
	struct session *s = context;
	uint32_t which = (uint32_t)id;

	if (ioctl(s->device, FUSE_DEV_IOC_BACKING_CLOSE, &which) < 0)
		log_debug("cannot close backing id %d: %s", id, strerror(errno));
}

void passthrough_init(struct session *s)
{
	s->modes = (struct modes){ .make = backing_make, .drop = backing_drop, .context = s };
	modes_init(&s->modes);
}

void passthrough_end(struct session *s)
{
	if (atomic_load(&s->pass_agreed))
		log_info("%u times a file was opened and passed through", atomic_load(&s->modes.passed));
	modes_free(&s->modes);
}

int passthrough_try(struct session *s, const char *directory)
{
	CLEANUP_FD int fd = directory ? open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
	int id;

	if (!atomic_load(&s->pass_agreed))
		return -EOPNOTSUPP;
	/* Where it cannot be made without a name: the kernel is asked all the same. */
	if (fd < 0)
		fd = memfd_create("epochfs", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	id = backing_make(s, fd);
	if (id < 0)
		return id;
	backing_drop(s, id);
	return 0;
}

/* ---- Opening and closing ---- */

static unsigned side_of(uint64_t node) { return (node & NODE_OTHER_SIDE) != 0; }

int passthrough_open_write(struct session *s, uint64_t node, struct opened *out)
{
	uint64_t inode = session_inode(s, node);
	int r;

	*out = (struct opened){ 0 };
	if (!atomic_load(&s->pass_agreed))
		return 0;
	r = modes_open_write(&s->modes, inode, side_of(node), out);
	/* What it was told of the side it has open is not told anew when the other one changes. */
	if (r == -ESTALE)
		given_moved(s->device, node);
	return r;
}

int passthrough_open_read(struct session *s, uint64_t node, struct handle *h, int flags, bool due)
{
	unsigned side = side_of(node);
	/* Direct I/O through us needs no aligned memory, on the disk it may. */
	bool may = !due && !(flags & O_DIRECT) && !atomic_load(&s->pass_error);
	int fd = -1, r;

	if (!atomic_load(&s->pass_agreed))
		return 0;
	if ((may || modes_is_passed(&s->modes, h->inode, side)) && client_pass(h->file, &fd) < 0)
		fd = -1;
	r = modes_open_read(&s->modes, h->inode, side, fd, &h->opened);
	if (fd >= 0 && (r < 0 || h->opened.mode != OPEN_PASSED))
		client_pass_end(h->file);
	if (r == -ESTALE)
		given_moved(s->device, node);
	if (r == 0 && due && h->opened.mode == OPEN_PASSED)
		atime_update(s, h->inode);
	return r;
}

int passthrough_create(struct session *s, uint64_t inode, struct opened *out)
{
	*out = (struct opened){ 0 };
	return atomic_load(&s->pass_agreed) ? modes_create(&s->modes, inode, out) : 0;
}

void passthrough_close(struct session *s, struct handle *h)
{
	modes_close(&s->modes, h->inode, &h->opened);
	if (h->opened.mode == OPEN_PASSED)
		client_pass_end(h->file);
}
