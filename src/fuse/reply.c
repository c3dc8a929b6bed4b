#include "fuse/reply.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include "base/clock.h"
#include "base/log.h"

/* The kernel takes errors of 0 to -511; others (a bug of ours, or a foreign errno
 * from a server) would make the answer invalid, and the caller hang. */
static int error_clamp(int error) { return error <= 0 && error > -512 ? error : -EIO; }

static int parts_send(struct reply *r, int error, struct iovec *parts, int count, size_t bytes)
{
	struct fuse_out_header h = {
		.len = (uint32_t)(sizeof(h) + bytes),
		.error = error,
		.unique = r->unique,
	};

	parts[0] = (struct iovec){ &h, sizeof(h) };
	return r->send(r, parts, count);
}

int reply_error(struct reply *r, int error)
{
	struct iovec parts[1];

	return parts_send(r, error_clamp(error), parts, 1, 0);
}

/* The kernel refused the answer itself.  Its caller still waits, so it gets an error. */
static int reply_again(struct reply *r, int error)
{
	if (error == 0 || error == -ENOENT || error == -ENODEV)
		return error;
	log_error("fuse: the kernel refused an answer: %s", strerror(-error));
	reply_error(r, -EIO);
	return error;
}

int reply_data(struct reply *r, const void *data, size_t size)
{
	struct iovec parts[2] = { [1] = { (void *)data, size } };

	return reply_again(r, parts_send(r, 0, parts, size ? 2 : 1, size));
}

int reply_pair(struct reply *r, const void *first, size_t first_size, const void *second, size_t second_size)
{
	struct iovec parts[3] = { [1] = { (void *)first, first_size }, [2] = { (void *)second, second_size } };

	return reply_again(r, parts_send(r, 0, parts, 3, first_size + second_size));
}

/* So many small parts that the system call would not take them: copied together.  Only a
 * file written in scattered bytes has them. */
static int reply_joined(struct reply *r, const struct iovec *parts, int count, size_t bytes)
{
	uint8_t *joined = malloc(bytes);
	size_t at = 0;
	int error;

	if (!joined)
		return reply_error(r, -ENOMEM);
	for (int i = 0; i < count; i++) {
		memcpy(joined + at, parts[i].iov_base, parts[i].iov_len);
		at += parts[i].iov_len;
	}
	error = reply_data(r, joined, bytes);
	free(joined);
	return error;
}

int reply_parts(struct reply *r, const struct iovec *parts, int count, size_t bytes)
{
	struct iovec all[REPLY_PARTS];

	if (count == 0 || bytes == 0)
		return reply_data(r, NULL, 0);
	if (count >= REPLY_PARTS)
		return reply_joined(r, parts, count, bytes);
	memcpy(all + 1, parts, (size_t)count * sizeof(*parts));
	return reply_again(r, parts_send(r, 0, all, count + 1, bytes));
}

static uint64_t seconds_of(int64_t ns, uint32_t *rest)
{
	int64_t s = ns / NS_PER_S, left = ns % NS_PER_S;

	if (left < 0) {
		left += NS_PER_S;
		s--;
	}
	*rest = (uint32_t)left;
	return (uint64_t)s;
}

/* The kernel's 32-bit form of a device number. */
static uint32_t rdev_encode(uint64_t rdev)
{
	uint32_t major = major(rdev), minor = minor(rdev);

	return (minor & 0xff) | (major << 8) | ((minor & ~0xffu) << 12);
}

static uint64_t blocks_of(const struct attr *a) { return a->allocated / 512 + (a->allocated % 512 != 0); }

void attr_fill(struct fuse_attr *out, const struct attr *a)
{
	*out = (struct fuse_attr){
		.ino = a->inode,
		.size = a->size,
		.blocks = blocks_of(a),
		.mode = a->mode,
		.nlink = a->nlink,
		.uid = a->uid,
		.gid = a->gid,
		.rdev = rdev_encode(a->rdev),
		.blksize = REPLY_BLKSIZE,
	};
	out->atime = seconds_of(a->atime_ns, &out->atimensec);
	out->mtime = seconds_of(a->mtime_ns, &out->mtimensec);
	out->ctime = seconds_of(a->ctime_ns, &out->ctimensec);
}

static struct fuse_sx_time sx_time(int64_t ns)
{
	struct fuse_sx_time t = { 0 };

	t.tv_sec = (int64_t)seconds_of(ns, &t.tv_nsec);
	return t;
}

void statx_fill(struct fuse_statx *out, const struct attr *a)
{
	*out = (struct fuse_statx){
		.mask = STATX_BASIC_STATS | STATX_BTIME,
		.blksize = REPLY_BLKSIZE,
		.nlink = a->nlink,
		.uid = a->uid,
		.gid = a->gid,
		.mode = (uint16_t)a->mode,
		.ino = a->inode,
		.size = a->size,
		.blocks = blocks_of(a),
		.atime = sx_time(a->atime_ns),
		.btime = sx_time(a->btime_ns),
		.ctime = sx_time(a->ctime_ns),
		.mtime = sx_time(a->mtime_ns),
		.rdev_major = major(a->rdev),
		.rdev_minor = minor(a->rdev),
	};
}

void entry_fill(struct fuse_entry_out *out, uint64_t node, const struct attr *a, struct given_leave leave)
{
	*out = (struct fuse_entry_out){
		.nodeid = node,
		.entry_valid = leave.name_ms / 1000,
		.entry_valid_nsec = leave.name_ms % 1000 * 1000000,
		.attr_valid = leave.attr_ms / 1000,
		.attr_valid_nsec = leave.attr_ms % 1000 * 1000000,
	};
	attr_fill(&out->attr, a);
}
