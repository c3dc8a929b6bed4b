/* Inside meta: the XATTR records of an inode.  The flags ATTR_HAS_* of *a follow
 * what is there; the caller stores *a. */
#pragma once
#include "meta/op.h"

#define XATTR_NAME_BYTES 255u
#define XATTR_VALUE_BYTES 65536u
#define XATTR_LIST_BYTES 65536u /* all names of an inode, each with its NUL: what listxattr can return */

int xattr_get(struct op *op, uint64_t inode, const void *name, size_t name_size, struct span *out); /* -ENODATA if none */
int xattr_put(struct op *op, struct attr *a, const void *name, size_t name_size, const void *value, size_t value_size);
int xattr_delete(struct op *op, struct attr *a, const void *name, size_t name_size); /* -ENODATA if none */
int xattr_delete_all(struct op *op, struct attr *a);
