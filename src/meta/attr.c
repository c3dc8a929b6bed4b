#include "meta/attr.h"
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

void attr_pack(const struct attr *a, uint8_t out[ATTR_PACKED])
{
	put_le64(out, a->inode);
	put_le32(out + 8, a->mode);
	put_le32(out + 12, a->uid);
	put_le32(out + 16, a->gid);
	put_le32(out + 20, a->nlink);
	put_le64(out + 24, a->rdev);
	put_le64(out + 32, a->size);
	put_le64(out + 40, a->allocated);
	put_le64(out + 48, (uint64_t)a->atime_ns);
	put_le64(out + 56, (uint64_t)a->mtime_ns);
	put_le64(out + 64, (uint64_t)a->ctime_ns);
	put_le64(out + 72, (uint64_t)a->btime_ns);
	put_le64(out + 80, a->version);
	put_le64(out + 88, a->parent);
	put_le32(out + 96, a->flags);
	put_le64(out + 100, (uint64_t)a->deleted_ns);
}

int attr_unpack(const void *packed, size_t size, struct attr *out)
{
	const uint8_t *p = packed;

	if (size < ATTR_PACKED || get_le64(p) == 0 || attr_type(get_le32(p + 8)) == DT_UNKNOWN)
		return -EBADMSG;
	*out = (struct attr){
		.inode = get_le64(p),
		.mode = get_le32(p + 8),
		.uid = get_le32(p + 12),
		.gid = get_le32(p + 16),
		.nlink = get_le32(p + 20),
		.rdev = get_le64(p + 24),
		.size = get_le64(p + 32),
		.allocated = get_le64(p + 40),
		.atime_ns = (int64_t)get_le64(p + 48),
		.mtime_ns = (int64_t)get_le64(p + 56),
		.ctime_ns = (int64_t)get_le64(p + 64),
		.btime_ns = (int64_t)get_le64(p + 72),
		.version = get_le64(p + 80),
		.parent = get_le64(p + 88),
		.flags = get_le32(p + 96),
		.deleted_ns = (int64_t)get_le64(p + 100),
	};
	return 0;
}

uint8_t attr_type(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG: return DT_REG;
	case S_IFDIR: return DT_DIR;
	case S_IFLNK: return DT_LNK;
	case S_IFIFO: return DT_FIFO;
	case S_IFSOCK: return DT_SOCK;
	case S_IFCHR: return DT_CHR;
	case S_IFBLK: return DT_BLK;
	default: return DT_UNKNOWN;
	}
}

uint64_t attr_cover(const struct attr *a) { return S_ISDIR(a->mode) ? a->inode : a->parent; }
