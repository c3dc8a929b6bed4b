/* A request of the kernel, decoded.  The bytes are checked before anything looks
 * at them: every length is inside the request, every name ends in a NUL, every
 * count fits.  The decoder keeps no state and allocates nothing.
 *
 * Any thread.  Pointers in a struct fuse_request point into the bytes decoded. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "fuse/protocol.h"

/* The buffer a request lies in, where the handler may keep it. */
struct fuse_loan {
	void *buffer;
	bool kept;
};

struct handle;

struct fuse_request {
	uint32_t opcode;
	uint32_t uid, gid, pid;
	uint64_t unique, node;

	/* The fixed argument; what a shorter one of an older kernel lacks is zero. */
	union {
		struct fuse_access_in access;
		struct fuse_batch_forget_in batch_forget;
		struct fuse_bmap_in bmap;
		struct fuse_copy_file_range_in copy;
		struct fuse_create_in create;
		struct fuse_fallocate_in fallocate;
		struct fuse_flush_in flush;
		struct fuse_forget_in forget;
		struct fuse_fsync_in fsync;
		struct fuse_getattr_in getattr;
		struct fuse_getxattr_in getxattr;
		struct fuse_init_in init;
		struct fuse_interrupt_in interrupt;
		struct fuse_ioctl_in ioctl;
		struct fuse_link_in link;
		struct fuse_lk_in lk;
		struct fuse_lseek_in lseek;
		struct fuse_mkdir_in mkdir;
		struct fuse_mknod_in mknod;
		struct fuse_open_in open;
		struct fuse_poll_in poll;
		struct fuse_read_in read;
		struct fuse_release_in release;
		struct fuse_rename2_in rename; /* of RENAME too, with flags 0 */
		struct fuse_setattr_in setattr;
		struct fuse_setxattr_in setxattr;
		struct fuse_statx_in statx;
		struct fuse_syncfs_in syncfs;
		struct fuse_write_in write;
	} in;

	const char *name;    /* the first string: a name in `node`, or of an xattr */
	const char *second;  /* the second: the new name of a RENAME, the target of a SYMLINK */
	const uint8_t *data; /* of a WRITE; the value of a SETXATTR; struct fuse_forget_one of a BATCH_FORGET (unaligned) */
	size_t data_size;
	struct fuse_loan *loan; /* NULL: the buffer stays the transport's; set by it after decoding */
	/* The open files it names, held while it is handled (handle.h); NULL: none.  Of COPY_FILE_RANGE `target` is the second. */
	struct handle *handle, *target;
};

/* 0; -EBADMSG: malformed; -ENOSYS: an opcode we do not know.  The header's fields
 * are set if there was a whole header (else `unique` is 0), so that both can be answered. */
int fuse_request_decode(const void *bytes, size_t size, struct fuse_request *out);

/* Nobody waits for an answer to this one, and none may be given. */
bool fuse_opcode_is_silent(uint32_t opcode);

/* Changes nothing, so that it may be answered as interrupted while it still runs. */
bool fuse_request_is_harmless(const struct fuse_request *q);

const char *fuse_opcode_name(uint32_t opcode); /* "LOOKUP"; "?" for an unknown one */
