#include "fuse/request.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include "base/bytes.h"

/* The shape of a request: [fixed argument] [name] [second name] [data].
 * Opcodes without an entry here (no text) are unknown. */
struct shape {
	const char *text;
	uint8_t fixed; /* bytes of the fixed argument */
	uint8_t least; /* bytes it has at least; 0: all of them */
	uint8_t names;
	bool harmless, silent;
};

#define FIXED(member) .fixed = sizeof(((struct fuse_request *)0)->in.member)

static const struct shape shapes[] = {
	[FUSE_LOOKUP] = { "LOOKUP", .names = 1, .harmless = true },
	[FUSE_FORGET] = { "FORGET", FIXED(forget), .silent = true },
	[FUSE_GETATTR] = { "GETATTR", FIXED(getattr), .harmless = true },
	[FUSE_SETATTR] = { "SETATTR", FIXED(setattr) },
	[FUSE_READLINK] = { "READLINK", .harmless = true },
	[FUSE_SYMLINK] = { "SYMLINK", .names = 2 },
	[FUSE_MKNOD] = { "MKNOD", FIXED(mknod), .names = 1 },
	[FUSE_MKDIR] = { "MKDIR", FIXED(mkdir), .names = 1 },
	[FUSE_UNLINK] = { "UNLINK", .names = 1 },
	[FUSE_RMDIR] = { "RMDIR", .names = 1 },
	[FUSE_RENAME] = { "RENAME", .fixed = sizeof(struct fuse_rename_in), .names = 2 },
	[FUSE_LINK] = { "LINK", FIXED(link), .names = 1 },
	[FUSE_OPEN] = { "OPEN", FIXED(open), .harmless = true },
	[FUSE_READ] = { "READ", FIXED(read), .harmless = true },
	[FUSE_WRITE] = { "WRITE", FIXED(write) },
	[FUSE_STATFS] = { "STATFS", .harmless = true },
	[FUSE_RELEASE] = { "RELEASE", FIXED(release) },
	[FUSE_FSYNC] = { "FSYNC", FIXED(fsync), .harmless = true },
	[FUSE_SETXATTR] = { "SETXATTR", FIXED(setxattr), .names = 1 },
	[FUSE_GETXATTR] = { "GETXATTR", FIXED(getxattr), .names = 1, .harmless = true },
	[FUSE_LISTXATTR] = { "LISTXATTR", FIXED(getxattr), .harmless = true },
	[FUSE_REMOVEXATTR] = { "REMOVEXATTR", .names = 1 },
	[FUSE_FLUSH] = { "FLUSH", FIXED(flush) },
	[FUSE_INIT] = { "INIT", FIXED(init), .least = 16 },
	[FUSE_OPENDIR] = { "OPENDIR", FIXED(open), .harmless = true },
	[FUSE_READDIR] = { "READDIR", FIXED(read), .harmless = true },
	[FUSE_RELEASEDIR] = { "RELEASEDIR", FIXED(release) },
	[FUSE_FSYNCDIR] = { "FSYNCDIR", FIXED(fsync), .harmless = true },
	[FUSE_GETLK] = { "GETLK", FIXED(lk), .harmless = true },
	[FUSE_SETLK] = { "SETLK", FIXED(lk) },
	[FUSE_SETLKW] = { "SETLKW", FIXED(lk) },
	[FUSE_ACCESS] = { "ACCESS", FIXED(access), .harmless = true },
	[FUSE_CREATE] = { "CREATE", FIXED(create), .names = 1 },
	[FUSE_INTERRUPT] = { "INTERRUPT", FIXED(interrupt), .silent = true },
	[FUSE_BMAP] = { "BMAP", FIXED(bmap) },
	[FUSE_DESTROY] = { "DESTROY" },
	[FUSE_IOCTL] = { "IOCTL", FIXED(ioctl) },
	[FUSE_POLL] = { "POLL", FIXED(poll) },
	[FUSE_BATCH_FORGET] = { "BATCH_FORGET", FIXED(batch_forget), .silent = true },
	[FUSE_FALLOCATE] = { "FALLOCATE", FIXED(fallocate) },
	[FUSE_READDIRPLUS] = { "READDIRPLUS", FIXED(read), .harmless = true },
	[FUSE_RENAME2] = { "RENAME2", FIXED(rename), .names = 2 },
	[FUSE_LSEEK] = { "LSEEK", FIXED(lseek), .harmless = true },
	[FUSE_COPY_FILE_RANGE] = { "COPY_FILE_RANGE", FIXED(copy) },
	[FUSE_SYNCFS] = { "SYNCFS", FIXED(syncfs), .harmless = true },
	[FUSE_TMPFILE] = { "TMPFILE", FIXED(create), .names = 1 },
	[FUSE_STATX] = { "STATX", FIXED(statx), .harmless = true },
	[FUSE_COPY_FILE_RANGE_64] = { "COPY_FILE_RANGE_64", FIXED(copy) },
};

static const struct shape *shape_of(uint32_t opcode)
{
	return opcode < sizeof(shapes) / sizeof(shapes[0]) && shapes[opcode].text ? &shapes[opcode] : NULL;
}

bool fuse_opcode_is_silent(uint32_t opcode)
{
	const struct shape *s = shape_of(opcode);

	return s && s->silent;
}

bool fuse_request_is_harmless(const struct fuse_request *q)
{
	const struct shape *s = shape_of(q->opcode);

	return s && s->harmless && !(q->opcode == FUSE_OPEN && (q->in.open.flags & O_TRUNC));
}

const char *fuse_opcode_name(uint32_t opcode)
{
	const struct shape *s = shape_of(opcode);

	return s ? s->text : "?";
}

/* Extensions (7.38) stand behind everything else.  We ask for none, and skip them. */
static int header_take(struct reader *r, size_t size, struct fuse_request *out)
{
	struct fuse_in_header h;
	const uint8_t *p = take_bytes(r, sizeof(h));
	size_t extensions;

	if (!p)
		return -EBADMSG;
	memcpy(&h, p, sizeof(h));
	out->opcode = h.opcode;
	out->unique = h.unique;
	out->node = h.nodeid;
	out->uid = h.uid;
	out->gid = h.gid;
	out->pid = h.pid;
	extensions = (size_t)h.total_extlen * 8;
	if (h.len != size || extensions > reader_left(r))
		return -EBADMSG;
	r->end -= extensions;
	return 0;
}

static int fixed_take(struct reader *r, const struct shape *s, struct fuse_request *out)
{
	size_t least = s->least ? s->least : s->fixed, left = reader_left(r);
	size_t n = left < s->fixed ? left : s->fixed;

	if (left < least)
		return -EBADMSG;
	if (n)
		memcpy(&out->in, take_bytes(r, n), n);
	return 0;
}

static const char *name_take(struct reader *r)
{
	const uint8_t *end = reader_left(r) ? memchr(r->p, 0, reader_left(r)) : NULL;

	if (!end || end == r->p)
		return NULL;
	return (const char *)take_bytes(r, (size_t)(end - r->p) + 1);
}

static int data_take(struct reader *r, struct fuse_request *out)
{
	switch (out->opcode) {
	case FUSE_WRITE: out->data_size = out->in.write.size; break;
	case FUSE_SETXATTR: out->data_size = out->in.setxattr.size; break;
	case FUSE_BATCH_FORGET: out->data_size = (size_t)out->in.batch_forget.count * sizeof(struct fuse_forget_one); break;
	case FUSE_IOCTL: out->data_size = out->in.ioctl.in_size; break;
	default: return 0;
	}
	out->data = take_bytes(r, out->data_size);
	return out->data || !out->data_size ? 0 : -EBADMSG;
}

int fuse_request_decode(const void *bytes, size_t size, struct fuse_request *out)
{
	struct reader r = reader_of(bytes, size);
	const struct shape *s;
	int error;

	memset(out, 0, sizeof(*out));
	error = header_take(&r, size, out);
	if (error)
		return error;
	s = shape_of(out->opcode);
	if (!s)
		return -ENOSYS;
	error = fixed_take(&r, s, out);
	if (error)
		return error;
	if (s->names > 0 && !(out->name = name_take(&r)))
		return -EBADMSG;
	if (s->names > 1 && !(out->second = name_take(&r)))
		return -EBADMSG;
	return data_take(&r, out);
}
