/* The kernel's FUSE protocol: <linux/fuse.h>, and what the header of Debian 12
 * (protocol 7.38) lacks.  Nothing here is of our own making; names, numbers and
 * layouts are the kernel's. */
#pragma once
#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>

/* What we answer INIT with.  The kernel looks at it only to stay compatible with
 * servers older than 7.23; features are agreed on by flags. */
#define FUSE_SPOKEN_MINOR 40

/* SETXATTR's layout depends on FUSE_SETXATTR_EXT (7.33, Linux 5.12); so that a
 * request can be decoded without knowing the session, older kernels are refused. */
#define FUSE_OLDEST_MINOR 33

#if FUSE_KERNEL_MINOR_VERSION < 39
enum { FUSE_STATX = 52 };

struct fuse_sx_time {
	int64_t tv_sec;
	uint32_t tv_nsec;
	int32_t __reserved;
};

struct fuse_statx {
	uint32_t mask;
	uint32_t blksize;
	uint64_t attributes;
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint16_t mode;
	uint16_t __spare0[1];
	uint64_t ino;
	uint64_t size;
	uint64_t blocks;
	uint64_t attributes_mask;
	struct fuse_sx_time atime;
	struct fuse_sx_time btime;
	struct fuse_sx_time ctime;
	struct fuse_sx_time mtime;
	uint32_t rdev_major;
	uint32_t rdev_minor;
	uint32_t dev_major;
	uint32_t dev_minor;
	uint64_t __spare2[14];
};

struct fuse_statx_in {
	uint32_t getattr_flags;
	uint32_t reserved;
	uint64_t fh;
	uint32_t sx_flags;
	uint32_t sx_mask;
};

struct fuse_statx_out {
	uint64_t attr_valid;
	uint32_t attr_valid_nsec;
	uint32_t flags;
	uint64_t spare[2];
	struct fuse_statx stat;
};
#endif

#if FUSE_KERNEL_MINOR_VERSION < 44
enum { FUSE_NOTIFY_INC_EPOCH = 8 };
#endif
#define FUSE_INC_EPOCH_MINOR 44

/* Linux 6.6: mappings of a file that is open with FOPEN_DIRECT_IO. */
#ifndef FUSE_DIRECT_IO_ALLOW_MMAP
#define FUSE_DIRECT_IO_ALLOW_MMAP (1ULL << 36)
#endif

/* Linux 6.9: files the kernel reads by itself. */
#if FUSE_KERNEL_MINOR_VERSION < 40
#define FUSE_PASSTHROUGH (1ULL << 37)
#define FOPEN_PASSTHROUGH (1u << 7)

struct fuse_backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};

#define FUSE_DEV_IOC_BACKING_OPEN _IOW(FUSE_DEV_IOC_MAGIC, 1, struct fuse_backing_map)
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t)

static inline void fuse_init_out_stack_depth(struct fuse_init_out *out, uint32_t depth) { out->unused[0] = depth; }
static inline void fuse_open_out_backing(struct fuse_open_out *out, int32_t id) { out->padding = (uint32_t)id; }
#else
static inline void fuse_init_out_stack_depth(struct fuse_init_out *out, uint32_t depth) { out->max_stack_depth = depth; }
static inline void fuse_open_out_backing(struct fuse_open_out *out, int32_t id) { out->backing_id = id; }
#endif

/* Linux 6.14: requests by io_uring.  One queue a possible CPU; the kernel uses them once each has an entry. */
#if FUSE_KERNEL_MINOR_VERSION < 42
#define FUSE_OVER_IO_URING (1ULL << 41)

struct fuse_uring_ent_in_out {
	uint64_t flags;
	uint64_t commit_id;  /* names the request when it is answered */
	uint32_t payload_sz; /* of the request, then of the answer */
	uint32_t padding;
	uint64_t reserved;
};

/* In: a struct fuse_in_header, and the fixed argument; whatever follows that is in the payload.
 * Out: a struct fuse_out_header; everything behind it is in the payload. */
struct fuse_uring_req_header {
	char in_out[128];
	char op_in[128];
	struct fuse_uring_ent_in_out ring_ent_in_out;
};

enum fuse_uring_cmd { FUSE_IO_URING_CMD_INVALID, FUSE_IO_URING_CMD_REGISTER, FUSE_IO_URING_CMD_COMMIT_AND_FETCH };

/* The second half of a 128-byte submission. */
struct fuse_uring_cmd_req {
	uint64_t flags;
	uint64_t commit_id;
	uint16_t qid;
	uint8_t padding[6];
};
#endif

#if FUSE_KERNEL_MINOR_VERSION < 45
enum { FUSE_COPY_FILE_RANGE_64 = 53 };

struct fuse_copy_file_range_out {
	uint64_t bytes_copied;
};
#endif

_Static_assert(sizeof(struct fuse_statx) == 256, "the kernel's struct fuse_statx has 256 bytes");
_Static_assert(sizeof(struct fuse_uring_req_header) == 288, "the kernel's struct fuse_uring_req_header has 288 bytes");
_Static_assert(sizeof(struct fuse_init_out) == 64, "the kernel's struct fuse_init_out has 64 bytes");

/* The most a WRITE carries and a READ asks for: 256 pages, the kernel's default limit. */
#define FUSE_DATA_PAGES 256u
#define FUSE_DATA_MAX (FUSE_DATA_PAGES * 4096u)

/* What stands before the data of a WRITE. */
#define FUSE_WRITE_HEAD (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
