/* Inside meta: what an operation's handler gets, and the records it works on.
 *
 * A handler reads and writes through op->view, checks everything it can refuse
 * before its first write (see view.h), takes the reply's memory from op->arena
 * and returns 0 or -errno; op_explain adds a sentence for the user.
 *
 * Request messages may come from the network: the handler checks names, sizes
 * and inode numbers. */
#pragma once
#include <errno.h>
#include "meta/attr.h"
#include "block/extent.h"
#include "meta/meta.h"

struct op {
	struct view *view;
	struct meta *meta;
	const struct caller *who;
	uint32_t volume; /* of the session */
	int64_t now_ns;  /* of the batch; never goes back between batches */
	struct arena *arena;
	char why[200];             /* for ErrorReply; empty: none */
	uint64_t opened;           /* set by the handler: this inode is open in the session once the batch is durable */
	struct mutation *mutation; /* NULL: a read */
};
typedef int (*op_handler)(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply);

void op_note(struct op *op, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds a sentence to the error, which it returns. */
#define op_explain(op, error, ...) (op_note(op, __VA_ARGS__), (error))

/* Logs that a record makes no sense and returns -EBADMSG. */
void op_log_damage(struct op *op, enum table t, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define op_damage(op, table, ...) (op_log_damage(op, table, __VA_ARGS__), -EBADMSG)
/* A packed message as a message of the arena; -EBADMSG, -ENOMEM. */
int op_unpack(struct op *op, const ProtobufCMessageDescriptor *type, struct span packed, void *out_pointer);

/* inode.c */
int inode_load(struct op *op, uint64_t inode, struct attr *out);                 /* -ENOENT: none such */
int inode_target(struct op *op, uint64_t inode, struct span *out);               /* of a symbolic link */
int inode_store(struct op *op, const struct attr *a, const struct span *target); /* target NULL: keep; -EREMCHG */
/* Before the parent of an inode changes: inode_store only sees the new one.  0 or -EREMCHG. */
int inode_uncover(struct op *op, const struct attr *a);
int inode_take_numbers(struct op *op, uint32_t count, uint64_t *first);
bool inode_number_given(struct op *op, uint64_t inode);   /* was it ever taken? */
void inode_touch_content(struct op *op, struct attr *a);  /* version+1, mtime, ctime */
void inode_kill_suidgid(struct attr *a);                  /* as the kernel does on write */
int inode_kill_capability(struct op *op, struct attr *a); /* drops security.capability */
int attr_reply(struct op *op, const struct attr *a, ProtobufCBinaryData *out);
int entry_reply(struct op *op, const struct attr *a, Wire__EntryReply *reply);
uint32_t valid_ms(struct op *op);

/* volume.c: volumes and their counters.  used_files counts every live inode but
 * the root, used_bytes what their extents hold; trash_files and trash_bytes the
 * same of inodes with ATTR_TRASHED.  A deleted volume that is still being freed
 * has an empty name, and no session. */
int volume_load(struct op *op, uint32_t id, Wire__Volume **out);      /* from the arena; -ENOENT */
int volume_find(struct op *op, const char *name, Wire__Volume **out); /* not the deleted ones; -ENOENT */
int volume_store(struct op *op, const Wire__Volume *v);               /* the counters, too */
bool volume_is_young(struct op *op);                                  /* op->volume has made few inodes yet */
int volume_forget(struct op *op, uint32_t id);                        /* when its last inode was freed: record and counters go */
bool volume_in_company(struct op *op);                                /* op->volume has several sessions */
uint64_t volume_retention_ns(struct op *op, uint32_t id);             /* cheap; 0 for a deleted or unknown volume */
/* Adds to used_* (or trash_*, for a trashed inode) of its volume.  Checks no limit. */
int volume_account(struct op *op, const struct attr *a, int64_t bytes, int64_t files);
int volume_may_add_file(struct op *op);                  /* 0, -EDQUOT; -ENOSPC: little room for metadata */
int volume_files_left(struct op *op, uint64_t *out);     /* likewise, but *out is set with -ENOSPC, too */
int volume_may_add_bytes(struct op *op, uint64_t bytes); /* 0 or -EDQUOT */

/* content.c: changes to the extents of one file; keeps a->allocated, object
 * references and the volume's counters right; the caller stores *a. */
int content_insert(struct op *op, struct attr *a, const struct extent *e); /* overwrites what is there */
int content_cut(struct op *op, struct attr *a, uint64_t from, uint64_t to, uint32_t max_extents, bool *more);

/* object.c */
struct object_record {
	uint32_t volume, size, raw_bytes, refs;
	uint64_t live_bytes;
};
#define OBJECT_RECORD 24u
void object_record_pack(const struct object_record *r, uint8_t out[OBJECT_RECORD]);
int object_record_unpack(const void *p, size_t size, struct object_record *out); /* 0 or -EBADMSG */
int object_load(struct op *op, uint64_t object, struct object_record *out);
int object_add(struct op *op, const Wire__NewObject *n); /* checks the id's range: -ESTALE if revoked */
/* refs += refs_delta, live += live_delta; at 0 refs it moves to FREE. */
int object_reference(struct op *op, uint64_t object, int refs_delta, int64_t live_delta);

/* dentry.c: names.  A name is 1 to 255 bytes without '/' and NUL, not "." or ".."; -EINVAL, -ENAMETOOLONG. */
int name_check(const void *name, size_t size);
/* With -ENOENT from dentry_find, `cookie` is where the name can go, 0 if there is no room for it. */
struct dentry {
	uint64_t cookie, inode;
	uint8_t type; /* DT_* */
};
int dentry_find(struct op *op, uint64_t parent, const void *name, size_t size, struct dentry *out); /* -ENOENT */
int dentry_put(struct op *op, uint64_t parent, uint64_t cookie, const void *name, size_t size, uint64_t inode, uint32_t mode);
int dentry_remove(struct op *op, uint64_t parent, uint64_t cookie);
int dentry_room(struct op *op, uint64_t parent, const void *name, size_t size); /* 0 or -ENOSPC: could it be added? */
/* Both in one, for a name that is not there: -ENOSPC if there is no room (too many names with this hash). */
int dentry_add(struct op *op, uint64_t parent, const void *name, size_t size, uint64_t inode, uint32_t mode);
int directory_is_empty(struct op *op, uint64_t inode);               /* 1, 0 or -errno */
int directory_load(struct op *op, uint64_t inode, struct attr *out); /* to change names in: -ENOENT (also removed), -ENOTDIR */

/* trash.c */
int trash_add(struct op *op, struct attr *a, uint64_t parent, const void *name, size_t name_size); /* last name went; stores *a */
/* A file gets a name again (link of an O_TMPFILE, restore): drops its TRASH record, clears ATTR_TRASHED and
 * ATTR_NO_TRASH in *a and moves the counters back; the caller sets nlink and stores *a. */
int trash_remove(struct op *op, struct attr *a);
