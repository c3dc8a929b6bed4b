/* Inside meta: POSIX access control lists, in the kernel's xattr format:
 *
 *   version le32 (2) | per entry: tag le16, permissions le16, uid or gid le32
 *
 * An access ACL and the mode bits are two views of one thing.  An ACL that says
 * no more than the mode does is not stored; otherwise the owner, mask (else
 * group) and other entries follow the mode, and the mode them.
 *
 * Everything here changes *a; the caller stores it. */
#pragma once
#include "meta/op.h"

#define ACL_ACCESS_NAME "system.posix_acl_access"
#define ACL_DEFAULT_NAME "system.posix_acl_default"

/* Checks as the kernel does before anything is written: -EINVAL, -EOPNOTSUPP
 * (version), -EACCES (a default ACL on what is not a directory).  Without entries
 * it is removed. */
int acl_set(struct op *op, struct attr *a, bool is_default, const void *value, size_t size, bool kill_sgid);
int acl_remove(struct op *op, struct attr *a, bool is_default); /* none there is fine */
/* After a->mode was changed: the access ACL follows. */
int acl_chmod(struct op *op, struct attr *a);
/* The mode and the ACLs of a new inode, which has its number, its type and the
 * asked mode in child->mode already.  Without a default ACL on the parent the
 * umask counts, with one it does not. */
int acl_inherit(struct op *op, const struct attr *parent, struct attr *child, uint32_t umask);
