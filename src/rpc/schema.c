#include "rpc/schema.h"
#include <stddef.h>
#include "epochfs.pb-c.h"

/* GOODBYE changes the state but has no number: the session that would remember
 * its answer is gone after it. */
static const struct schema_op ops[] = {
	{ WIRE__OP__HELLO, "hello", &wire__hello_reply__descriptor, false },
	{ WIRE__OP__GOODBYE, "goodbye", &wire__empty__descriptor, false },
	{ WIRE__OP__RECLAIM, "reclaim", &wire__empty__descriptor, false },
	{ WIRE__OP__RESERVE, "reserve", &wire__reserve_reply__descriptor, false },
	{ WIRE__OP__ALLOC_OBJECTS, "alloc_objects", &wire__alloc_objects_reply__descriptor, true },
	{ WIRE__OP__LEASE, "lease", &wire__lease_reply__descriptor, false },
	{ WIRE__OP__ALLOC_INODES, "alloc_inodes", &wire__alloc_inodes_reply__descriptor, true },
	{ WIRE__OP__LOCK, "lock", &wire__lock_reply__descriptor, false },
	{ WIRE__OP__LOCK_WAIT, "lock_wait", &wire__lock_wait_reply__descriptor, false },
	{ WIRE__OP__LOCK_RECLAIM, "lock_reclaim", &wire__lock_reclaim_reply__descriptor, false },
	{ WIRE__OP__LOOKUP, "lookup", &wire__entry_reply__descriptor, false },
	{ WIRE__OP__GETATTR, "getattr", &wire__entry_reply__descriptor, false },
	{ WIRE__OP__READDIR, "readdir", &wire__readdir_reply__descriptor, false },
	{ WIRE__OP__READLINK, "readlink", &wire__bytes_reply__descriptor, false },
	{ WIRE__OP__GETXATTR, "getxattr", &wire__bytes_reply__descriptor, false },
	{ WIRE__OP__LISTXATTR, "listxattr", &wire__bytes_reply__descriptor, false },
	{ WIRE__OP__STATFS, "statfs", &wire__statfs_reply__descriptor, false },
	{ WIRE__OP__EXTENTS, "extents", &wire__extents_reply__descriptor, false },
	{ WIRE__OP__RESOLVE, "resolve", &wire__entry_reply__descriptor, false },
	{ WIRE__OP__PATH, "path", &wire__bytes_reply__descriptor, false },
	{ WIRE__OP__OPEN, "open", &wire__extents_reply__descriptor, false },
	{ WIRE__OP__CLOSE, "close", &wire__empty__descriptor, false },
	{ WIRE__OP__RETURN, "return", &wire__empty__descriptor, false },
	{ WIRE__OP__MARKS, "marks", &wire__marks_reply__descriptor, false },
	{ WIRE__OP__CREATE, "create", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__LINK, "link", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__UNLINK, "unlink", &wire__removed_reply__descriptor, true },
	{ WIRE__OP__RMDIR, "rmdir", &wire__removed_reply__descriptor, true },
	{ WIRE__OP__RENAME, "rename", &wire__removed_reply__descriptor, true },
	{ WIRE__OP__SETATTR, "setattr", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__SETXATTR, "setxattr", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__REMOVEXATTR, "removexattr", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__CREATE_MANY, "create_many", &wire__create_many_reply__descriptor, true },
	{ WIRE__OP__COMMIT, "commit", &wire__commit_reply__descriptor, true },
	{ WIRE__OP__FALLOCATE, "fallocate", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__CLONE, "clone", &wire__entry_reply__descriptor, true },
	{ WIRE__OP__MARK, "mark", &wire__mark_reply__descriptor, true },
	{ WIRE__OP__UNMARK, "unmark", &wire__empty__descriptor, true },
	{ WIRE__OP__MARKS_DROP, "marks_drop", &wire__marks_drop_reply__descriptor, true },
	{ WIRE__OP__OBJECT_PUT, "object_put", &wire__empty__descriptor, false },
	{ WIRE__OP__OBJECT_GET, "object_get", &wire__empty__descriptor, false },
	{ WIRE__OP__OBJECT_OPEN, "object_open", &wire__empty__descriptor, false },
	{ WIRE__OP__VOLUME_CREATE, "volume_create", &wire__volume_reply__descriptor, true },
	{ WIRE__OP__VOLUME_SET, "volume_set", &wire__volume_reply__descriptor, true },
	{ WIRE__OP__VOLUME_DELETE, "volume_delete", &wire__empty__descriptor, true },
	{ WIRE__OP__VOLUME_LIST, "volume_list", &wire__volume_list_reply__descriptor, false },
	{ WIRE__OP__VOLUME_SHOW, "volume_show", &wire__volume_reply__descriptor, false },
	{ WIRE__OP__TRASH_LIST, "trash_list", &wire__trash_list_reply__descriptor, false },
	{ WIRE__OP__TRASH_RESTORE, "trash_restore", &wire__trash_restore_reply__descriptor, true },
	{ WIRE__OP__TRASH_EMPTY, "trash_empty", &wire__trash_empty_reply__descriptor, true },
	{ WIRE__OP__JOB_START, "job_start", &wire__job_reply__descriptor, false },
	{ WIRE__OP__JOB_POLL, "job_poll", &wire__job_reply__descriptor, false },
	{ WIRE__OP__JOB_CANCEL, "job_cancel", &wire__empty__descriptor, false },
	{ WIRE__OP__STATUS, "status", &wire__status_reply__descriptor, false },
	{ WIRE__OP__STREAM_SNAPSHOT, "stream_snapshot", &wire__stream_snapshot_reply__descriptor, false },
	{ WIRE__OP__STREAM_FOLLOW, "stream_follow", &wire__stream_follow_reply__descriptor, false },
};

const struct schema_op *schema_find(uint16_t op)
{
	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
		if (ops[i].op == op)
			return &ops[i];
	return NULL;
}
