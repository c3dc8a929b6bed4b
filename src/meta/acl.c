#include "meta/acl.h"
#include <errno.h>
#include <sys/stat.h>
#include "base/log.h"
#include "meta/content.h"
#include "meta/xattr.h"

enum { TAG_USER_OBJ = 1, TAG_USER = 2, TAG_GROUP_OBJ = 4, TAG_GROUP = 8, TAG_MASK = 16, TAG_OTHER = 32 };

#define ACL_VERSION 2u
#define ACL_HEADER 4u
#define ACL_ENTRY 8u
#define ACL_ID_NONE UINT32_MAX
#define PERMISSIONS 07u
#define MODE_BITS 0777u

struct acl_entry {
	uint16_t tag, perm;
	uint32_t id;
};
struct acl {
	uint32_t count;
	struct acl_entry *entries;
};

static const char *acl_name(bool is_default) { return is_default ? ACL_DEFAULT_NAME : ACL_ACCESS_NAME; }
static uint32_t acl_flag(bool is_default) { return is_default ? ATTR_HAS_DEFAULT : ATTR_HAS_ACL; }

static int acl_unpack(struct op *op, const void *value, size_t size, struct acl *out)
{
	struct reader in = reader_of(value, size);
	if (size < ACL_HEADER)
		return -EINVAL;
	if (take_le32(&in) != ACL_VERSION)
		return -EOPNOTSUPP;
	if ((size - ACL_HEADER) % ACL_ENTRY || size > XATTR_VALUE_BYTES)
		return -EINVAL;
	out->count = (uint32_t)((size - ACL_HEADER) / ACL_ENTRY);
	out->entries = arena_take(op->arena, (out->count + 1) * sizeof(*out->entries));
	if (!out->entries)
		return -ENOMEM;
	for (uint32_t i = 0; i < out->count; i++) {
		struct acl_entry *e = &out->entries[i];
		e->tag = take_le16(&in);
		e->perm = take_le16(&in);
		e->id = take_le32(&in);
		if (e->tag != TAG_USER && e->tag != TAG_GROUP)
			e->id = ACL_ID_NONE;
		else if (e->id == ACL_ID_NONE)
			return -EINVAL;
	}
	return 0;
}

/* The order the kernel asks for: owner, users, group, groups, mask if there are
 * users or groups (it may be there without), other. */
static int acl_check(const struct acl *acl)
{
	uint16_t expected = TAG_USER_OBJ;
	bool needs_mask = false;
	for (uint32_t i = 0; i < acl->count; i++) {
		const struct acl_entry *e = &acl->entries[i];
		if (e->perm & ~PERMISSIONS)
			return -EINVAL;
		switch (e->tag) {
		case TAG_USER_OBJ:
			if (expected != TAG_USER_OBJ)
				return -EINVAL;
			expected = TAG_USER;
			break;
		case TAG_USER:
			if (expected != TAG_USER)
				return -EINVAL;
			needs_mask = true;
			break;
		case TAG_GROUP_OBJ:
			if (expected != TAG_USER)
				return -EINVAL;
			expected = TAG_GROUP;
			break;
		case TAG_GROUP:
			if (expected != TAG_GROUP)
				return -EINVAL;
			needs_mask = true;
			break;
		case TAG_MASK:
			if (expected != TAG_GROUP)
				return -EINVAL;
			expected = TAG_OTHER;
			break;
		case TAG_OTHER:
			if (expected != TAG_OTHER && (expected != TAG_GROUP || needs_mask))
				return -EINVAL;
			expected = 0;
			break;
		default: return -EINVAL;
		}
	}
	return expected == 0 ? 0 : -EINVAL;
}

static struct acl_entry *acl_find(const struct acl *acl, uint16_t tag)
{
	for (uint32_t i = 0; i < acl->count; i++)
		if (acl->entries[i].tag == tag)
			return &acl->entries[i];
	return NULL;
}

/* The entry that the group bits of the mode stand for. */
static struct acl_entry *acl_group_class(const struct acl *acl)
{
	struct acl_entry *mask = acl_find(acl, TAG_MASK);
	return mask ? mask : acl_find(acl, TAG_GROUP_OBJ);
}

static uint32_t acl_mode(const struct acl *acl)
{
	return (uint32_t)acl_find(acl, TAG_USER_OBJ)->perm << 6 | (uint32_t)acl_group_class(acl)->perm << 3 |
	       acl_find(acl, TAG_OTHER)->perm;
}

/* Owner, group and other alone: the mode bits say it all. */
static bool acl_is_mode(const struct acl *acl) { return acl->count == 3; }

static int acl_load(struct op *op, uint64_t inode, bool is_default, struct acl *out)
{
	struct span value;
	const char *name = acl_name(is_default);
	int r = xattr_get(op, inode, name, strlen(name), &value);
	if (r < 0)
		return r;
	if (acl_unpack(op, value.data, value.size, out) < 0 || acl_check(out) < 0) {
		log_error("metadata is damaged: volume %u inode %llu, %s", op->volume, (unsigned long long)inode, name);
		return -EBADMSG;
	}
	return 0;
}

static int acl_store(struct op *op, struct attr *a, bool is_default, const struct acl *acl)
{
	size_t size = ACL_HEADER + (size_t)acl->count * ACL_ENTRY;
	uint8_t *value = arena_take(op->arena, size);
	if (!value)
		return -ENOMEM;
	put_le32(value, ACL_VERSION);
	for (uint32_t i = 0; i < acl->count; i++) {
		uint8_t *at = value + ACL_HEADER + i * ACL_ENTRY;
		put_le16(at, acl->entries[i].tag);
		put_le16(at + 2, acl->entries[i].perm);
		put_le32(at + 4, acl->entries[i].id);
	}
	const char *name = acl_name(is_default);
	int r = xattr_put(op, a, name, strlen(name), value, size);
	if (r == 0)
		a->flags |= acl_flag(is_default);
	return r;
}

int acl_remove(struct op *op, struct attr *a, bool is_default)
{
	const char *name = acl_name(is_default);
	int r = xattr_delete(op, a, name, strlen(name));
	if (r < 0 && r != -ENODATA)
		return r;
	a->flags &= ~acl_flag(is_default);
	return 0;
}

int acl_set(struct op *op, struct attr *a, bool is_default, const void *value, size_t size, bool kill_sgid)
{
	struct acl acl;
	int r = acl_unpack(op, value, size, &acl);
	if (r == 0 && acl.count)
		r = acl_check(&acl);
	if (r < 0)
		return r;
	if (is_default && !S_ISDIR(a->mode))
		return acl.count ? -EACCES : 0;
	if (acl.count && !is_default) {
		a->mode = (a->mode & ~MODE_BITS) | acl_mode(&acl);
		if (kill_sgid)
			a->mode &= ~(uint32_t)S_ISGID;
	}
	bool store = acl.count && (is_default || !acl_is_mode(&acl));
	return store ? acl_store(op, a, is_default, &acl) : acl_remove(op, a, is_default);
}

int acl_chmod(struct op *op, struct attr *a)
{
	struct acl acl;
	if (!(a->flags & ATTR_HAS_ACL))
		return 0;
	int r = acl_load(op, a->inode, false, &acl);
	if (r < 0)
		return r == -ENODATA ? 0 : r;
	acl_find(&acl, TAG_USER_OBJ)->perm = a->mode >> 6 & PERMISSIONS;
	acl_group_class(&acl)->perm = a->mode >> 3 & PERMISSIONS;
	acl_find(&acl, TAG_OTHER)->perm = a->mode & PERMISSIONS;
	return acl_store(op, a, false, &acl);
}

/* What the creator asked for and what the default ACL allows, both ways: the
 * entries shrink to the mode and the mode to the entries. */
static void acl_restrict(struct acl *acl, uint32_t *mode)
{
	struct {
		struct acl_entry *entry;
		int shift;
	} classes[] = {
		{ acl_find(acl, TAG_USER_OBJ), 6 },
		{ acl_group_class(acl), 3 },
		{ acl_find(acl, TAG_OTHER), 0 },
	};
	for (size_t i = 0; i < 3; i++) {
		classes[i].entry->perm &= *mode >> classes[i].shift & PERMISSIONS;
		*mode &= ~(PERMISSIONS << classes[i].shift) | (uint32_t)classes[i].entry->perm << classes[i].shift;
	}
}

int acl_inherit(struct op *op, const struct attr *parent, struct attr *child, uint32_t umask)
{
	struct acl acl;
	if (S_ISLNK(child->mode))
		return 0;
	int r = parent->flags & ATTR_HAS_DEFAULT ? acl_load(op, parent->inode, true, &acl) : -ENODATA;
	if (r == -ENODATA) {
		child->mode &= ~(umask & MODE_BITS);
		return 0;
	}
	if (r == 0 && S_ISDIR(child->mode))
		r = acl_store(op, child, true, &acl);
	if (r < 0)
		return r;
	acl_restrict(&acl, &child->mode);
	return acl_is_mode(&acl) ? 0 : acl_store(op, child, false, &acl);
}
