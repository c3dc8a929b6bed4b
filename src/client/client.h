/* The client of a volume: what a mount, a library or a tool calls.  It knows no
 * FUSE.  Functions are named after the system call they serve, block, may be
 * called from any thread, return 0 (or a count) or -errno, and set their
 * out-parameters only on success.
 *
 * Written data is buffered and stored in the background (docs/architecture.md,
 * "Writing").  client_fsync returns when it is in the store. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "cache/cache.h"
#include "meta/attr.h"
#include "meta/locktable.h"

struct client;
struct client_file; /* an open file */
struct client_read; /* the result of a read: buffers pinned until released */

struct client_options {
	const char *servers, *volume, *subdir;
	const char *host, *mount_point;
	bool read_only;
	int64_t timeout_ms;       /* how long to wait for a server that is away; 0: 60 s */
	uint64_t dirty_bytes;     /* most written-but-not-stored bytes held in memory; 0: 64 MiB */
	uint64_t cache_bytes;     /* memory for chunks read or read ahead; 0: 64 MiB */
	uint64_t readahead_bytes; /* most to read ahead of one reader; 0: none */
	unsigned parallel;        /* threads that do; 0: 8 */
	const char *const *cache_dirs;
	int cache_dir_count; /* 0: no cache on the local disk */
	struct cache_amount cache_size, cache_min_free;
	unsigned cache_share; /* percent of it that this volume may have; 0: all */
	/* Not NULL: keep a replica of the volume in a folder below this one (client/replica.h); read_only is set as well. */
	const char *replica_dir;
	int64_t replica_max_lag_ms;         /* nothing is served once it may be older; 0: an hour, the most */
	const char *writeback_dir;          /* NULL: fsync stores at the server */
	struct cache_amount writeback_size; /* of what is in it; 0: half of its file system */
	uint64_t upload_limit;              /* bytes a second, of what is uploaded from it; 0: none */
};

struct client_identity {
	uint32_t uid, gid, umask;
};

/* How long it may be kept: `valid_ms`, under the lease of the volume.  In company the attributes alone, for `granted_ms`, as long
 * as the grant on the directory attr_cover(attr) is held.
 * contested: of an open file that others have changed, or wanted to, so the kernel may know an older size.  It must not keep these
 * attributes by a grant: when it is made to forget them it ignores an answer on its way, and goes on with that size. */
struct entry {
	struct attr attr;
	uint32_t valid_ms, granted_ms;
	bool contested;
};

struct volume_info {
	char name[256];
	uint32_t block_size;
	bool relaxed;
};

int client_connect(const struct client_options *options, struct client **out, char *error, size_t error_size);
/* Stores everything still unstored (waiting up to the time-out), ends the session. The first error, or 0. */
int client_disconnect(struct client *c);
/* Before it, once nobody asks for anything any more: a client that may only read has nothing to store, so what is under way does
 * not wait for a server that is away. */
void client_unmounted(struct client *c);
/* A name in a directory is another's, or is gone, or has come; or (no name) an inode has other attributes. */
struct client_news {
	uint64_t inode;   /* with a name: the directory */
	const char *name; /* terminated */
	size_t name_length;
	uint64_t cover; /* without a name: the directory it was in */
	bool content;   /* and other content */
};
/* What is called when others are about to change what this client was told.  From threads of their own: both may wait for
 * requests that are under way. */
struct client_events {
	void (*recalled)(void *context);                  /* all names and attributes */
	void (*uncovered)(void *context, uint64_t inode); /* the attributes a directory covers */
	void (*moved)(void *context, uint64_t inode);     /* attributes of an inode this client has moved: by another cover now */
	/* A file is at least so long, which is to be known before any of its content is forgotten. */
	void (*extend)(void *context, uint64_t inode, uint64_t size);
	/* The content of a file in [from, to), kept since it was opened. */
	void (*forget)(void *context, uint64_t inode, uint64_t from, uint64_t to);
	/* Of a replica: what has changed since it was told. */
	void (*changed)(void *context, const struct client_news *news, size_t count);
	void *context;
};
void client_on_recall(struct client *c, const struct client_events *events); /* NULL: not any more, from the return on */
/* How a replica is; of another client all is 0. */
struct client_replica {
	bool is_replica;
	bool following;             /* it hears of the server */
	bool copying;               /* it copies the namespace; what was there before is served meanwhile */
	bool foreign;               /* the server has other data: it does not follow any more */
	uint64_t batch;             /* it is what the server had after this one */
	int64_t age_ms, max_lag_ms; /* at most so old; not served past that */
	char folder[4096];
};
void client_replica_status(struct client *c, struct client_replica *out);
bool client_is_replica(const struct client *c);
bool client_is_alone(struct client *c); /* for the moment: it holds the lease of the volume */
uint64_t client_root(const struct client *c);
void client_volume(const struct client *c, struct volume_info *out);
int client_cache_error(struct client *c, int dir); /* of options.cache_dirs: 0, or why it is out of use at present, -errno */

/* What it has done since it was connected.  Bytes are of file contents, decoded, but for those of the server and of packs on the disk:
 * as stored. */
struct client_stats {
	uint64_t reads, read_bytes;          /* what was asked for */
	uint64_t memory_reads, memory_bytes; /* and was in memory, or on its way there */
	uint64_t disk_reads, disk_bytes;     /* of the cache on the local disk */
	uint64_t server_reads, server_bytes; /* ranges of objects: by call, or of the files a server on this host gives out */
	uint64_t round_trips;                /* of all kinds */
	uint64_t ahead_fetched, ahead_used;  /* bytes read ahead, and those of them that were read then */
	uint64_t ahead_wasted;               /* those evicted from memory unread; what went to the disk stays there */
	uint64_t ahead_unread;               /* in memory, and to be read yet */
};
void client_stats(struct client *c, struct client_stats *out);

/* Names */
/* Of a name that is not there (-ENOENT) *out tells how long that may be kept. */
int client_lookup(struct client *c, uint64_t parent, const char *name, struct entry *out);
int client_mknod(struct client *c, uint64_t parent, const char *name, uint32_t mode, uint64_t rdev,
		 const struct client_identity *who, struct entry *out);
int client_mkdir(struct client *c, uint64_t parent, const char *name, uint32_t mode, const struct client_identity *who,
		 struct entry *out);
int client_symlink(struct client *c, uint64_t parent, const char *name, const char *target, const struct client_identity *who,
		   struct entry *out);
int client_link(struct client *c, uint64_t inode, uint64_t parent, const char *name, struct entry *out);
int client_unlink(struct client *c, uint64_t parent, const char *name);
int client_rmdir(struct client *c, uint64_t parent, const char *name);
int client_rename(struct client *c, uint64_t old_parent, const char *old_name, uint64_t new_parent, const char *new_name,
		  uint32_t flags);
int client_readlink(struct client *c, uint64_t inode, char *out, size_t size); /* length, not terminated */
/* Packed entries (meta/listing.h) after `cookie`, about max_bytes of them.  Sizes and times of files
 * this client has unstored data of are already corrected. */
int client_readdir(struct client *c, uint64_t inode, uint64_t cookie, uint32_t max_bytes, bool attributes, struct buf *out,
		   bool *end, uint32_t *valid_ms);

/* Attributes */
int client_getattr(struct client *c, uint64_t inode, struct entry *out);
struct client_setattr {
	uint32_t valid; /* enum setattr_valid */
	uint32_t mode, uid, gid;
	uint64_t size;
	int64_t atime_ns, mtime_ns;
	bool kill_suidgid, kill_sgid;
};
int client_setattr(struct client *c, uint64_t inode, const struct client_setattr *s, struct entry *out);
int client_setxattr(struct client *c, uint64_t inode, const char *name, const void *value, size_t size, int flags,
		    bool kill_sgid);
int client_getxattr(struct client *c, uint64_t inode, const char *name, void *out,
		    size_t size);                                               /* length; size 0 asks for it; -ERANGE */
int client_listxattr(struct client *c, uint64_t inode, char *out, size_t size); /* likewise */
int client_removexattr(struct client *c, uint64_t inode, const char *name);

struct client_space {
	uint64_t total_bytes, free_bytes, used_bytes; /* others may use some of it, too */
	uint64_t total_files, free_files;
	uint32_t block_size;
};
int client_statfs(struct client *c, struct client_space *out);

/* Files.  `unchanged`: the content is the one this client saw when it last had the file open. */
int client_create(struct client *c, uint64_t parent, const char *name, uint32_t mode, int flags,
		  const struct client_identity *who, struct client_file **file, struct entry *out);
int client_tmpfile(struct client *c, uint64_t parent, uint32_t mode, const struct client_identity *who, struct client_file **file,
		   struct entry *out);
/* kill_*: with O_TRUNC. */
int client_open(struct client *c, uint64_t inode, int flags, bool kill_suidgid, bool kill_sgid, struct client_file **file,
		bool *unchanged);
void client_release(struct client_file *f);
/* Before client_release, where the kernel was not told that the file is open: it has not dropped the pages it has of it. */
void client_open_untold(struct client_file *f);
/* For clients that only read, and are not told when a file is opened and closed (kept.h): the file, until view_end. */
int client_view(struct client *c, uint64_t inode, struct client_file **out);
void client_view_end(struct client_file *f);

/* Whether the kernel reads files by itself where client_pass says how.  It does not, at first. */
void client_passing(struct client *c, bool possible);
/* For a file opened for reading: a descriptor of a file on the local disk that the kernel may read instead, and that shows
 * what client_read would, changes included (passed.h).  It belongs to the client; until client_pass_end, which comes before
 * client_release.  -ENOENT: there is none now; -EAGAIN: there is, but it does not show what others have changed yet. */
int client_pass(struct client_file *f, int *fd);
void client_pass_end(struct client_file *f);

/* Reads up to `size` bytes.  *out holds iovecs into pinned buffers (holes point at shared zeroes). */
int client_read(struct client_file *f, uint64_t offset, size_t size, struct client_read **out);
/* The same for direct I/O: the kernel keeps nothing of it in its pages. */
int client_read_around(struct client_file *f, uint64_t offset, size_t size, struct client_read **out);
const struct iovec *client_read_parts(const struct client_read *r, int *count, size_t *bytes);
void client_read_release(struct client_read *r);

#define WRITE_KILL_SUIDGID 1u
#define WRITE_APPEND 2u       /* at the end of the file, wherever that is, and not at the offset */
#define WRITE_OF_PAGES 4u     /* what a mapping left in the kernel's pages, which had them before */
#define WRITE_AROUND_PAGES 8u /* the kernel has forgotten its pages before it sent this */
ssize_t client_write(struct client_file *f, uint64_t offset, const void *data, size_t size, unsigned how);
/* Page-aligned buffers for data to be written.  A large write in one of them may take
 * the buffer over (*kept) instead of copying its bytes. */
#define CLIENT_BUFFER_BYTES ((1u << 20) + 8192u)
void *client_buffer_take(struct client *c); /* NULL: no memory */
void client_buffer_give(struct client *c, void *buffer);
ssize_t client_write_buffer(struct client_file *f, uint64_t offset, void *data, size_t size, unsigned how, void *buffer,
			    bool *kept);
int client_fsync(struct client_file *f);
int client_fsync_all(struct client *c);        /* fsync of a directory; syncfs */
int client_store_everything(struct client *c); /* the same, and what is in the write-back directory is uploaded */
/* What is on the local disk of a mount with write-back and not uploaded yet: one file. */
struct client_unuploaded {
	uint64_t inode, bytes;
	bool synced;  /* the server knows, and it outlives a crash */
	bool damaged; /* it cannot be read any more: docs/operations.md */
};
/* Calls `each` for every such file. */
void client_writeback_list(struct client *c, void (*each)(void *context, const struct client_unuploaded *file), void *context);
uint64_t client_writeback_bytes(struct client *c); /* of its directory that are in use; 0 also if there is none */
int client_fallocate(struct client_file *f, int mode, uint64_t offset, uint64_t length);
int client_lseek(struct client_file *f, uint64_t offset, int whence, uint64_t *out); /* SEEK_DATA, SEEK_HOLE */
ssize_t client_copy_range(struct client_file *from, uint64_t from_offset, struct client_file *to, uint64_t to_offset,
			  uint64_t length);

/* Locks (meta/locktable.h).  In a struct lock `file` is the inode and `session` 0; `handle` is a number of the caller's for the
 * open file it comes through. */
/* Sets, changes or releases: 0, -EAGAIN: somebody has it, -ENOLCK, or -errno. */
int client_lock(struct client *c, const struct lock *l);
uint64_t client_lock_ticket(struct client *c); /* a number for a wait */
/* The same, but waits: 0; -EDEADLK and other errors; or -EINPROGRESS: `done` is called with what came of it, once, by another
 * thread and perhaps before this returns.  It holds a lock of the client's, so it may call nothing of it. */
int client_lock_wait(struct client *c, const struct lock *l, uint64_t ticket, void (*done)(void *context, int status),
		     void *context);
/* `done` of this wait has been called when it returns: with -EINTR, or with 0 if the lock was granted before.  Nothing, if
 * there is no such wait. */
void client_lock_cancel(struct client *c, uint64_t ticket);
void client_lock_cancel_all(struct client *c); /* and nobody waits from now on */
/* 0: it is to be had; 1: *found is in the way, with pid 0 if it is another mount's; or -errno. */
int client_lock_test(struct client *c, const struct lock *l, struct lock *found);
/* A descriptor was closed: the owner's range locks on the file go.  Asks the server only if there are any. */
int client_unlock_owner(struct client *c, uint64_t inode, uint64_t owner);
/* The open file was closed: what was set through it goes. */
void client_unlock_handle(struct client *c, uint64_t inode, uint64_t handle);
