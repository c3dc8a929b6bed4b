/* Extended attributes.  The kernel has checked who may do what; the namespaces
 * are those it knows for a file system with ACLs, and nothing else is stored. */
#include <errno.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include "base/cleanup.h"
#include "meta/acl.h"
#include "meta/handlers.h"
#include "meta/content.h"
#include "meta/xattr.h"

#define XATTR_KEY_MAX (8u + XATTR_NAME_BYTES)

static size_t xattr_key(uint8_t out[XATTR_KEY_MAX], struct op *op, uint64_t inode, const void *name, size_t name_size)
{
	put_be64(out, inode_key(op->volume, inode));
	memcpy(out + 8, name, name_size);
	return 8 + name_size;
}

int xattr_get(struct op *op, uint64_t inode, const void *name, size_t name_size, struct span *out)
{
	uint8_t key[XATTR_KEY_MAX];
	if (name_size > XATTR_NAME_BYTES)
		return -ENODATA;
	int r = view_get(op->view, TABLE_XATTR, key, xattr_key(key, op, inode, name, name_size), out);
	return r == -ENOENT ? -ENODATA : r;
}

int xattr_put(struct op *op, struct attr *a, const void *name, size_t name_size, const void *value, size_t value_size)
{
	uint8_t key[XATTR_KEY_MAX];
	if (name_size > XATTR_NAME_BYTES)
		return -ERANGE;
	int r = view_put(op->view, TABLE_XATTR, key, xattr_key(key, op, a->inode, name, name_size), value, value_size);
	if (r == 0)
		a->flags |= ATTR_HAS_XATTR;
	return r;
}

/* Puts the cursor on the first record of the inode; -ENOENT: it has none. */
static int xattr_first(struct op *op, struct cursor *c, uint64_t inode)
{
	uint8_t key[8];
	put_be64(key, inode_key(op->volume, inode));
	int r = cursor_open(c, op->view, TABLE_XATTR);
	if (r == 0)
		r = cursor_seek(c, key, sizeof(key));
	return r;
}

static bool xattr_is_of(const struct cursor *c, uint64_t inode_number_key)
{
	return c->key.size > 8 && get_be64(c->key.data) == inode_number_key;
}

/* The names, each with its NUL; `bytes` alone if out is NULL. */
static int xattr_names(struct op *op, uint64_t inode, struct buf *out, size_t *bytes)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint64_t file = inode_key(op->volume, inode);
	*bytes = 0;
	int r = xattr_first(op, &c, inode);
	for (; r == 0 && xattr_is_of(&c, file); r = cursor_next(&c)) {
		*bytes += c.key.size - 8 + 1;
		if (out) {
			buf_append(out, c.key.data + 8, c.key.size - 8);
			buf_le8(out, 0);
		}
	}
	if (out && out->failed)
		return -ENOMEM;
	return r == -ENOENT ? 0 : r;
}

int xattr_delete(struct op *op, struct attr *a, const void *name, size_t name_size)
{
	uint8_t key[XATTR_KEY_MAX];
	if (name_size > XATTR_NAME_BYTES || !(a->flags & ATTR_HAS_XATTR))
		return -ENODATA;
	int r = view_delete(op->view, TABLE_XATTR, key, xattr_key(key, op, a->inode, name, name_size));
	if (r < 0)
		return r == -ENOENT ? -ENODATA : r;
	size_t left;
	r = xattr_names(op, a->inode, NULL, &left);
	if (r == 0 && left == 0)
		a->flags &= ~(uint32_t)ATTR_HAS_XATTR;
	return r;
}

int xattr_delete_all(struct op *op, struct attr *a)
{
	uint64_t file = inode_key(op->volume, a->inode);
	while (a->flags & ATTR_HAS_XATTR) {
		uint8_t key[XATTR_KEY_MAX];
		size_t size = 0;
		{
			CLEANUP_CURSOR struct cursor c = { 0 };
			int r = xattr_first(op, &c, a->inode);
			if (r < 0 && r != -ENOENT)
				return r;
			if (r == 0 && xattr_is_of(&c, file)) {
				if (c.key.size > sizeof(key))
					return -EBADMSG;
				size = c.key.size;
				memcpy(key, c.key.data, size);
			}
		}
		if (size == 0) {
			a->flags &= ~(uint32_t)(ATTR_HAS_XATTR | ATTR_HAS_ACL | ATTR_HAS_DEFAULT);
			break;
		}
		int r = view_delete(op->view, TABLE_XATTR, key, size);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool has_prefix(const ProtobufCBinaryData *name, const char *prefix)
{
	size_t n = strlen(prefix);
	return name->len >= n && memcmp(name->data, prefix, n) == 0;
}

enum xattr_kind { XATTR_USER, XATTR_TRUSTED, XATTR_SECURITY, XATTR_ACL_ACCESS, XATTR_ACL_DEFAULT };

static bool name_is(const ProtobufCBinaryData *name, const char *text)
{
	return name->len == strlen(text) && memcmp(name->data, text, name->len) == 0;
}

static int xattr_name_check(const ProtobufCBinaryData *name, enum xattr_kind *kind)
{
	static const struct {
		const char *prefix;
		enum xattr_kind kind;
	} spaces[] = {
		{ "user.", XATTR_USER },
		{ "trusted.", XATTR_TRUSTED },
		{ "security.", XATTR_SECURITY },
	};
	if (name->len == 0 || name->len > XATTR_NAME_BYTES || memchr(name->data, 0, name->len))
		return -ERANGE;
	if (name_is(name, ACL_ACCESS_NAME)) {
		*kind = XATTR_ACL_ACCESS;
		return 0;
	}
	if (name_is(name, ACL_DEFAULT_NAME)) {
		*kind = XATTR_ACL_DEFAULT;
		return 0;
	}
	for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
		if (!has_prefix(name, spaces[i].prefix))
			continue;
		*kind = spaces[i].kind;
		return name->len > strlen(spaces[i].prefix) ? 0 : -EINVAL;
	}
	return -EOPNOTSUPP;
}

static int xattr_request_check(struct op *op, const Wire__XattrRequest *q, struct attr *a, enum xattr_kind *kind)
{
	int r = xattr_name_check(&q->name, kind);
	if (r == 0)
		r = inode_load(op, q->inode, a);
	if (r < 0)
		return r;
	if (*kind == XATTR_USER && !S_ISREG(a->mode) && !S_ISDIR(a->mode))
		return -EPERM;
	if ((*kind == XATTR_ACL_ACCESS || *kind == XATTR_ACL_DEFAULT) && S_ISLNK(a->mode))
		return -EOPNOTSUPP;
	return 0;
}

/* The attributes changed: ctime, and the answer. */
static int xattr_changed(struct op *op, struct attr *a, Wire__EntryReply *reply)
{
	a->ctime_ns = op->now_ns;
	int r = inode_store(op, a, NULL);
	return r < 0 ? r : entry_reply(op, a, reply);
}

static int xattr_may_set(struct op *op, const Wire__XattrRequest *q)
{
	struct span there;
	if (q->value.len > XATTR_VALUE_BYTES)
		return -E2BIG;
	if ((q->flags & ~(uint32_t)(XATTR_CREATE | XATTR_REPLACE)) || q->flags == (XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	int r = xattr_get(op, q->inode, q->name.data, q->name.len, &there);
	if (r < 0 && r != -ENODATA)
		return r;
	if (r == 0)
		return q->flags & XATTR_CREATE ? -EEXIST : 0;
	if (q->flags & XATTR_REPLACE)
		return -ENODATA;
	size_t names;
	r = xattr_names(op, q->inode, NULL, &names);
	if (r == 0 && names + q->name.len + 1 > XATTR_LIST_BYTES)
		return -ENOSPC;
	return r;
}

int op_setxattr(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__XattrRequest *q = (const Wire__XattrRequest *)request;
	enum xattr_kind kind;
	struct attr a;
	int r = xattr_request_check(op, q, &a, &kind);
	if (r < 0)
		return r;
	if (kind == XATTR_ACL_ACCESS || kind == XATTR_ACL_DEFAULT) {
		r = acl_set(op, &a, kind == XATTR_ACL_DEFAULT, q->value.data, q->value.len, q->kill_sgid);
		if (r < 0)
			return r;
	} else {
		r = xattr_may_set(op, q);
		if (r < 0)
			return r;
		r = xattr_put(op, &a, q->name.data, q->name.len, q->value.data, q->value.len);
		if (r < 0)
			return r;
	}
	return xattr_changed(op, &a, (Wire__EntryReply *)reply);
}

int op_removexattr(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__XattrRequest *q = (const Wire__XattrRequest *)request;
	enum xattr_kind kind;
	struct attr a;
	int r = xattr_request_check(op, q, &a, &kind);
	if (r < 0)
		return r;
	if (kind == XATTR_ACL_ACCESS || kind == XATTR_ACL_DEFAULT) {
		r = acl_remove(op, &a, kind == XATTR_ACL_DEFAULT);
	} else {
		struct span there;
		r = xattr_get(op, q->inode, q->name.data, q->name.len, &there);
		if (r < 0)
			return r;
		r = xattr_delete(op, &a, q->name.data, q->name.len);
	}
	return r < 0 ? r : xattr_changed(op, &a, (Wire__EntryReply *)reply);
}

static int bytes_reply(struct op *op, const void *data, size_t size, ProtobufCMessage *reply)
{
	Wire__BytesReply *answer = (Wire__BytesReply *)reply;
	answer->data.data = arena_copy(op->arena, data, size);
	if (size && !answer->data.data)
		return -ENOMEM;
	answer->data.len = size;
	return 0;
}

int op_getxattr(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__XattrRequest *q = (const Wire__XattrRequest *)request;
	enum xattr_kind kind;
	struct attr a;
	struct span value = { 0 };
	int r = xattr_name_check(&q->name, &kind);
	if (r == 0)
		r = inode_load(op, q->inode, &a);
	if (r < 0)
		return r;
	if (!(a.flags & ATTR_HAS_XATTR))
		return -ENODATA;
	r = xattr_get(op, q->inode, q->name.data, q->name.len, &value);
	return r < 0 ? r : bytes_reply(op, value.data, value.size, reply);
}

int op_listxattr(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__InodeRequest *q = (const Wire__InodeRequest *)request;
	CLEANUP_BUF struct buf names = { 0 };
	struct attr a;
	size_t bytes;
	int r = inode_load(op, q->inode, &a);
	if (r == 0 && (a.flags & ATTR_HAS_XATTR))
		r = xattr_names(op, q->inode, &names, &bytes);
	return r < 0 ? r : bytes_reply(op, names.data, names.len, reply);
}
