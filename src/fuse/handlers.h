/* The handlers, one for each request.  Each returns 0 after it has answered, or
 * -errno, which session_handle then answers with. */
#pragma once
#include "fuse/session.h"

typedef int handler(struct session *s, const struct fuse_request *q, struct reply *r);

/* names.c */
handler handle_lookup, handle_mknod, handle_mkdir, handle_symlink, handle_link, handle_unlink, handle_rmdir, handle_rename,
	handle_readlink;

/* attributes.c */
handler handle_getattr, handle_statx, handle_setattr, handle_statfs;

/* xattrs.c */
handler handle_setxattr, handle_getxattr, handle_listxattr, handle_removexattr;

/* directories.c */
handler handle_opendir, handle_readdir, handle_readdirplus, handle_releasedir, handle_fsyncdir;

/* files.c */
handler handle_open, handle_create, handle_tmpfile, handle_release, handle_fsync, handle_syncfs, handle_fallocate, handle_lseek,
	handle_copy;

/* locks.c */
handler handle_getlk, handle_setlk, handle_setlkw, handle_flush;
void locks_begin(struct session *s);
void locks_end(struct session *s);
void locks_handle_closed(struct session *s, const struct handle *h);
void locks_handle_gone(struct session *s, struct handle *h); /* after that, with session.lock held */
/* Whether closing a descriptor of the file needs no FLUSH: flags as given to open; `made`: the file is new. */
bool locks_spare_flush(const struct session *s, uint64_t inode, int flags, bool made);

/* read.c, write.c */
handler handle_read, handle_write;

/* Answers with an entry: what LOOKUP and everything that makes a name does. */
int name_reply(struct session *s, const struct entry *e, struct reply *r);

/* Whether the caller is not root and outside the group of a file whose set-group-ID bit only counts for outsiders, as nobody may
 * execute it as the group (attributes.c). */
bool loses_sgid(const struct session *s, const struct fuse_request *q);

/* Access times (read.c).  The kernel leaves them to us. */
enum mountpoint_atime atime_mode(const struct session *s); /* at present */
bool atime_due(const struct session *s, const struct attr *a);
void atime_update(const struct session *s, uint64_t inode);

static inline struct client_identity identity_of(const struct fuse_request *q, uint32_t umask)
{
	return (struct client_identity){ .uid = q->uid, .gid = q->gid, .umask = umask & 0777 };
}
