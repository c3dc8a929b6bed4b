#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include "base/log.h"
#include "meta/handlers.h"
#include "meta/machine.h"

enum { ADMIN = 1, INTERNAL = 2 };

struct op_entry {
	struct op_info info;
	op_handler handler;
};

/* clang-format off */
#define ENTRY(number, text, what, traits, request_type, reply_type, function) \
	[WIRE__OP__##number] = { { \
		.op = WIRE__OP__##number, .name = text, .kind = what, \
		.internal = ((traits) & INTERNAL) != 0, .admin = (traits) != 0, \
		.request = &wire__##request_type##__descriptor, .reply = &wire__##reply_type##__descriptor, \
	}, function }
/* clang-format on */

static const struct op_entry entries[] = {
	ENTRY(HELLO, "hello", OP_OTHER, ADMIN, hello_request, hello_reply, NULL),
	ENTRY(GOODBYE, "goodbye", OP_MUTATION, 0, empty, empty, op_goodbye),
	ENTRY(RECLAIM, "reclaim", OP_OTHER, 0, reclaim_request, empty, NULL),
	ENTRY(RESERVE, "reserve", OP_OTHER, 0, reserve_request, reserve_reply, NULL),
	ENTRY(ALLOC_OBJECTS, "alloc_objects", OP_MUTATION, 0, alloc_objects_request, alloc_objects_reply, op_alloc_objects),
	ENTRY(LEASE, "lease", OP_OTHER, 0, lease_request, lease_reply, NULL),
	ENTRY(ALLOC_INODES, "alloc_inodes", OP_MUTATION, 0, alloc_inodes_request, alloc_inodes_reply, op_alloc_inodes),
	ENTRY(LOCK, "lock", OP_OTHER, 0, lock_request, lock_reply, NULL),
	ENTRY(LOCK_WAIT, "lock_wait", OP_OTHER, 0, empty, lock_wait_reply, NULL),
	ENTRY(LOCK_RECLAIM, "lock_reclaim", OP_OTHER, 0, lock_reclaim_request, lock_reclaim_reply, NULL),

	ENTRY(LOOKUP, "lookup", OP_READ, 0, name_request, entry_reply, op_lookup),
	ENTRY(GETATTR, "getattr", OP_READ, 0, inode_request, entry_reply, op_getattr),
	ENTRY(READDIR, "readdir", OP_READ, 0, readdir_request, readdir_reply, op_readdir),
	ENTRY(READLINK, "readlink", OP_READ, 0, inode_request, bytes_reply, op_readlink),
	ENTRY(GETXATTR, "getxattr", OP_READ, 0, xattr_request, bytes_reply, op_getxattr),
	ENTRY(LISTXATTR, "listxattr", OP_READ, 0, inode_request, bytes_reply, op_listxattr),
	ENTRY(STATFS, "statfs", OP_OTHER, 0, empty, statfs_reply, NULL),
	ENTRY(EXTENTS, "extents", OP_READ, 0, extents_request, extents_reply, op_extents),
	ENTRY(RESOLVE, "resolve", OP_READ, 0, resolve_request, entry_reply, op_resolve),
	ENTRY(PATH, "path", OP_READ, 0, inode_request, bytes_reply, op_path),

	ENTRY(OPEN, "open", OP_OTHER, 0, open_request, extents_reply, NULL),
	ENTRY(CLOSE, "close", OP_OTHER, 0, close_request, empty, NULL),
	ENTRY(RETURN, "return", OP_OTHER, 0, return_request, empty, NULL),

	ENTRY(MARKS, "marks", OP_READ, ADMIN, marks_request, marks_reply, op_marks),

	ENTRY(CREATE, "create", OP_MUTATION, 0, create_request, entry_reply, op_create),
	ENTRY(LINK, "link", OP_MUTATION, 0, link_request, entry_reply, op_link),
	ENTRY(UNLINK, "unlink", OP_MUTATION, 0, name_request, removed_reply, op_unlink),
	ENTRY(RMDIR, "rmdir", OP_MUTATION, 0, name_request, removed_reply, op_rmdir),
	ENTRY(RENAME, "rename", OP_MUTATION, 0, rename_request, removed_reply, op_rename),
	ENTRY(SETATTR, "setattr", OP_MUTATION, 0, setattr_request, entry_reply, op_setattr),
	ENTRY(SETXATTR, "setxattr", OP_MUTATION, 0, xattr_request, entry_reply, op_setxattr),
	ENTRY(REMOVEXATTR, "removexattr", OP_MUTATION, 0, xattr_request, entry_reply, op_removexattr),
	ENTRY(CREATE_MANY, "create_many", OP_MUTATION, 0, create_many_request, create_many_reply, op_create_many),

	ENTRY(COMMIT, "commit", OP_MUTATION, 0, commit_request, commit_reply, op_commit),
	ENTRY(FALLOCATE, "fallocate", OP_MUTATION, 0, fallocate_request, entry_reply, op_fallocate),
	ENTRY(CLONE, "clone", OP_MUTATION, 0, clone_request, entry_reply, op_clone),
	ENTRY(MARK, "mark", OP_MUTATION, 0, mark_request, mark_reply, op_mark),
	ENTRY(UNMARK, "unmark", OP_MUTATION, 0, mark_request, empty, op_unmark),
	ENTRY(MARKS_DROP, "marks_drop", OP_MUTATION, ADMIN, marks_drop_request, marks_drop_reply, op_marks_drop),

	ENTRY(OBJECT_PUT, "object_put", OP_OTHER, 0, object_request, empty, NULL),
	ENTRY(OBJECT_GET, "object_get", OP_OTHER, 0, object_request, empty, NULL),
	ENTRY(OBJECT_OPEN, "object_open", OP_OTHER, 0, object_request, empty, NULL),

	ENTRY(VOLUME_CREATE, "volume_create", OP_MUTATION, ADMIN, volume, volume_reply, op_volume_create),
	ENTRY(VOLUME_SET, "volume_set", OP_MUTATION, ADMIN, volume_set_request, volume_reply, op_volume_set),
	ENTRY(VOLUME_DELETE, "volume_delete", OP_MUTATION, ADMIN, volume_name_request, empty, op_volume_delete),
	ENTRY(VOLUME_LIST, "volume_list", OP_READ, ADMIN, empty, volume_list_reply, op_volume_list),
	ENTRY(VOLUME_SHOW, "volume_show", OP_READ, ADMIN, volume_name_request, volume_reply, op_volume_show),
	ENTRY(TRASH_LIST, "trash_list", OP_READ, ADMIN, trash_list_request, trash_list_reply, op_trash_list),
	ENTRY(TRASH_RESTORE, "trash_restore", OP_MUTATION, ADMIN, trash_restore_request, trash_restore_reply, op_trash_restore),
	ENTRY(TRASH_EMPTY, "trash_empty", OP_MUTATION, ADMIN, trash_empty_request, trash_empty_reply, op_trash_empty),
	ENTRY(JOB_START, "job_start", OP_OTHER, ADMIN, job_start_request, job_reply, NULL),
	ENTRY(JOB_POLL, "job_poll", OP_OTHER, ADMIN, job_poll_request, job_reply, NULL),
	ENTRY(JOB_CANCEL, "job_cancel", OP_OTHER, ADMIN, job_poll_request, empty, NULL),
	ENTRY(STATUS, "status", OP_OTHER, ADMIN, empty, status_reply, NULL),

	ENTRY(STREAM_SNAPSHOT, "stream_snapshot", OP_OTHER, 0, stream_snapshot_request, stream_snapshot_reply, NULL),
	ENTRY(STREAM_FOLLOW, "stream_follow", OP_OTHER, 0, stream_follow_request, stream_follow_reply, NULL),

	ENTRY(SESSION_BEGIN, "session_begin", OP_MUTATION, INTERNAL, session_begin, empty, op_session_begin),
	ENTRY(SESSION_END, "session_end", OP_MUTATION, INTERNAL, session_end, empty, op_session_end),
	ENTRY(SESSION_REVOKE, "session_revoke", OP_MUTATION, INTERNAL, session_revoke, empty, op_session_revoke),
	ENTRY(REAP, "reap", OP_MUTATION, INTERNAL, reap_request, reap_reply, op_reap),
	ENTRY(OBJECTS_DELETED, "objects_deleted", OP_MUTATION, INTERNAL, object_list, empty, op_objects_deleted),
	ENTRY(REPACK, "repack", OP_MUTATION, INTERNAL, repack_request, repack_reply, op_repack),
	ENTRY(FREE_ORPHANS, "free_orphans", OP_MUTATION, INTERNAL, object_list, empty, op_free_orphans),
	ENTRY(FIX, "fix", OP_MUTATION, INTERNAL, fix_request, empty, op_fix),
};

const struct op_info *op_find(uint16_t op)
{
	if (op >= sizeof(entries) / sizeof(entries[0]) || !entries[op].info.name)
		return NULL;
	return &entries[op].info;
}

op_handler op_handler_of(const struct op_info *info) { return entries[info->op].handler; }

void op_note(struct op *op, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(op->why, sizeof(op->why), format, arguments);
	va_end(arguments);
}

void op_log_damage(struct op *op, enum table t, const char *format, ...)
{
	va_list arguments;
	char what[160];

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	log_error("the metadata in %s/%s are damaged: table %s: %s; run epochfs fsck", op->meta->folder, DATA_FILE,
		  table_names[t], what);
}

int op_unpack(struct op *op, const ProtobufCMessageDescriptor *type, struct span packed, void *out_pointer)
{
	ProtobufCMessage *message = protobuf_c_message_unpack(type, &op->arena->allocator, packed.size, packed.data);

	if (!message)
		return -EBADMSG;
	*(ProtobufCMessage **)out_pointer = message;
	return 0;
}
