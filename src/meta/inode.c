/* An INODE value is the packed attributes, two zero bytes, and the target if it
 * is a symbolic link.
 *
 * The two bytes make 31 inodes fill a page instead of 32.  For fewer than 32
 * nodes a page LMDB splits a page that grows at its end there and not in the
 * middle, also when it is not the table's last page, so that the inodes of every
 * volume, not only of the newest, fill their pages.
 *
 * That works as long as volumes do not share pages.  LMDB joins pages that are
 * less than a quarter full; so the root of a volume that has few inodes yet is
 * padded with zeroes to more than that. */
#include <errno.h>
#include <sys/stat.h>
#include "meta/machine.h"

#define TARGET_MAX 4095u
#define YOUNG_ROOT 1010u

static int inode_find(struct op *op, uint64_t inode, struct span *out)
{
	uint8_t key[8];

	if (inode == 0 || inode > INODE_MAX)
		return -ENOENT;
	put_be64(key, inode_key(op->volume, inode));
	return view_get(op->view, TABLE_INODE, key, sizeof(key), out);
}

int inode_load(struct op *op, uint64_t inode, struct attr *out)
{
	struct span value;
	struct attr a;
	int r = inode_find(op, inode, &value);

	if (r < 0)
		return r;
	if (attr_unpack(value.data, value.size, &a) < 0 || value.size < INODE_HEAD || a.inode != inode)
		return op_damage(op, TABLE_INODE, "inode %llu of volume %u", (unsigned long long)inode, op->volume);
	*out = a;
	return 0;
}

int inode_target(struct op *op, uint64_t inode, struct span *out)
{
	struct span value;
	int r = inode_find(op, inode, &value);

	if (r < 0)
		return r;
	if (value.size <= INODE_HEAD || value.size > INODE_HEAD + TARGET_MAX)
		return op_damage(op, TABLE_INODE, "target of link %llu of volume %u", (unsigned long long)inode, op->volume);
	*out = (struct span){ value.data + INODE_HEAD, value.size - INODE_HEAD };
	return 0;
}

static int cover_check(struct op *op, uint64_t cover)
{
	struct mutation *m = op->mutation;

	if (!m || !m->declared || cover == m->made) /* nobody knows of a new directory */
		return 0;
	for (size_t i = 0; i < m->declared_count; i++)
		if (m->declared[i] == cover)
			return 0;
	m->undeclared = cover;
	return -EREMCHG;
}

int inode_uncover(struct op *op, const struct attr *a) { return cover_check(op, attr_cover(a)); }

int inode_store(struct op *op, const struct attr *a, const struct span *target)
{
	uint8_t key[8], value[INODE_HEAD + TARGET_MAX];
	struct span kept = { NULL, 0 };
	size_t size = INODE_HEAD;
	int r = cover_check(op, attr_cover(a));

	if (r < 0)
		return r;
	if (!target && S_ISLNK(a->mode)) {
		r = inode_target(op, a->inode, &kept);
		if (r < 0)
			return r;
		target = &kept;
	}
	attr_pack(a, value);
	memset(value + ATTR_PACKED, 0, INODE_HEAD - ATTR_PACKED);
	if (target) {
		if (target->size > TARGET_MAX)
			return -ENAMETOOLONG;
		memcpy(value + INODE_HEAD, target->data, target->size);
		size += target->size;
	} else if (a->inode == ROOT_INODE && volume_is_young(op)) {
		memset(value + INODE_HEAD, 0, YOUNG_ROOT - INODE_HEAD);
		size = YOUNG_ROOT;
	}
	put_be64(key, inode_key(op->volume, a->inode));
	return view_put(op->view, TABLE_INODE, key, sizeof(key), value, size);
}

void inode_touch_content(struct op *op, struct attr *a)
{
	a->version++;
	a->mtime_ns = a->ctime_ns = op->now_ns;
}

void inode_kill_suidgid(struct attr *a)
{
	a->mode &= ~(uint32_t)S_ISUID;
	if (a->mode & S_IXGRP) /* without it the bit means something else, and stays */
		a->mode &= ~(uint32_t)S_ISGID;
}

int inode_kill_capability(struct op *op, struct attr *a)
{
	static const char name[] = "security.capability";
	uint8_t key[8 + sizeof(name) - 1];
	int r;

	if (!(a->flags & ATTR_HAS_XATTR))
		return 0;
	put_be64(key, inode_key(op->volume, a->inode));
	memcpy(key + 8, name, sizeof(name) - 1);
	r = view_delete(op->view, TABLE_XATTR, key, sizeof(key));
	return r == -ENOENT ? 0 : r;
}

int attr_reply(struct op *op, const struct attr *a, ProtobufCBinaryData *out)
{
	out->data = arena_take(op->arena, ATTR_PACKED);
	if (!out->data)
		return -ENOMEM;
	attr_pack(a, out->data);
	out->len = ATTR_PACKED;
	return 0;
}

int entry_reply(struct op *op, const struct attr *a, Wire__EntryReply *reply)
{
	reply->valid_ms = valid_ms(op);
	return attr_reply(op, a, &reply->attr);
}
