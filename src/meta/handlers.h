/* The handlers of all operations, by the file they are in; ops.c has the table.
 * See op.h for what a handler may do. */
#pragma once
#include "meta/op.h"

#define HANDLER(name) int op_##name(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)

/* namespace.c */
HANDLER(lookup);
HANDLER(getattr);
HANDLER(readlink);
HANDLER(resolve);
HANDLER(link);
HANDLER(unlink);
HANDLER(rmdir);
/* path.c */
HANDLER(path);
/* create.c */
HANDLER(create);
/* create_many.c */
HANDLER(alloc_inodes);
HANDLER(create_many);
/* rename.c */
HANDLER(rename);
/* readdir.c */
HANDLER(readdir);
/* setattr.c */
HANDLER(setattr);
/* session.c */
HANDLER(session_begin);
HANDLER(session_end);
HANDLER(session_revoke);
HANDLER(goodbye);
/* volumes.c */
HANDLER(volume_create);
HANDLER(volume_set);
HANDLER(volume_delete);
HANDLER(volume_list);
HANDLER(volume_show);

/* content.c */
HANDLER(commit);
HANDLER(fallocate);
HANDLER(clone);
HANDLER(extents);
/* marks.c */
HANDLER(mark);
HANDLER(unmark);
HANDLER(marks);
HANDLER(marks_drop);
/* object.c */
HANDLER(alloc_objects);
HANDLER(objects_deleted);
HANDLER(free_orphans);
HANDLER(repack);
/* xattr.c */
HANDLER(getxattr);
HANDLER(listxattr);
HANDLER(setxattr);
HANDLER(removexattr);
/* trash.c */
HANDLER(trash_list);
HANDLER(trash_restore);
HANDLER(trash_empty);
/* reap.c */
HANDLER(reap);
/* check.c */
HANDLER(fix);
