/* A directory is ordered by the hash of the names.  A name's cookie is
 *
 *   bit 63: 0 | bits 62..4: of the name's XXH3-64, seeded per file system | bits 3..0: slot
 *
 * Names whose hashes agree share a run of 16 slots.  The seed is secret, so
 * nobody can choose names that collide; by chance a 17th name in a run does not
 * happen.  A cookie is never below 16: the mount has "." and ".." there. */
#include <errno.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "meta/machine.h"

#define DENTRY_KEY 16u
#define NAME_MAX_BYTES 255u

int name_check(const void *name, size_t size)
{
	const char *p = name;

	if (size > NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	if (size == 0 || memchr(p, '/', size) || memchr(p, 0, size))
		return -EINVAL;
	return (p[0] == '.' && (size == 1 || (size == 2 && p[1] == '.'))) ? -EINVAL : 0;
}

uint64_t dentry_slot(uint64_t seed, const void *name, size_t size)
{
	uint64_t slot = XXH3_64bits_withSeed(name, size, seed) >> 5 << 4;

	return slot ? slot : DENTRY_SLOT_MASK + 1;
}

static void dentry_key(struct op *op, uint64_t parent, uint64_t cookie, uint8_t key[DENTRY_KEY])
{
	put_be64(key, inode_key(op->volume, parent));
	put_be64(key + 8, cookie);
}

int dentry_find(struct op *op, uint64_t parent, const void *name, size_t size, struct dentry *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint64_t slot = dentry_slot(op->meta->format.name_seed, name, size), room = slot, cookie;
	uint8_t key[DENTRY_KEY];
	int r = cursor_open(&c, op->view, TABLE_DENTRY);

	if (r < 0)
		return r;
	dentry_key(op, parent, slot, key);
	for (r = cursor_seek(&c, key, sizeof(key)); r == 0; r = cursor_next(&c)) {
		if (c.key.size != DENTRY_KEY || c.value.size <= DENTRY_HEAD)
			return op_damage(op, TABLE_DENTRY, "directory %llu of volume %u", (unsigned long long)parent, op->volume);
		cookie = get_be64(c.key.data + 8);
		if (memcmp(c.key.data, key, 8) != 0 || (cookie & ~(uint64_t)DENTRY_SLOT_MASK) != slot)
			break;
		if (cookie == room)
			room++;
		if (c.value.size - DENTRY_HEAD == size && memcmp(c.value.data + DENTRY_HEAD, name, size) == 0) {
			*out = (struct dentry){ cookie, get_le64(c.value.data), c.value.data[8] };
			return 0;
		}
	}
	if (r < 0 && r != -ENOENT)
		return r;
	*out = (struct dentry){ .cookie = room - slot <= DENTRY_SLOT_MASK ? room : 0 };
	return -ENOENT;
}

int dentry_put(struct op *op, uint64_t parent, uint64_t cookie, const void *name, size_t size, uint64_t inode, uint32_t mode)
{
	uint8_t key[DENTRY_KEY], value[DENTRY_HEAD + NAME_MAX_BYTES];

	if (size == 0 || size > NAME_MAX_BYTES)
		return -EINVAL;
	dentry_key(op, parent, cookie, key);
	put_le64(value, inode);
	value[8] = attr_type(mode);
	memcpy(value + DENTRY_HEAD, name, size);
	return view_put(op->view, TABLE_DENTRY, key, sizeof(key), value, DENTRY_HEAD + size);
}

int dentry_add(struct op *op, uint64_t parent, const void *name, size_t size, uint64_t inode, uint32_t mode)
{
	struct dentry d;
	int r = dentry_find(op, parent, name, size, &d);

	if (r != -ENOENT)
		return r < 0 ? r : -EEXIST;
	return d.cookie ? dentry_put(op, parent, d.cookie, name, size, inode, mode) : -ENOSPC;
}

int dentry_room(struct op *op, uint64_t parent, const void *name, size_t size)
{
	struct dentry d;
	int r = dentry_find(op, parent, name, size, &d);

	return r == -ENOENT ? (d.cookie ? 0 : -ENOSPC) : r;
}

int dentry_remove(struct op *op, uint64_t parent, uint64_t cookie)
{
	uint8_t key[DENTRY_KEY];

	dentry_key(op, parent, cookie, key);
	return view_delete(op->view, TABLE_DENTRY, key, sizeof(key));
}

int directory_is_empty(struct op *op, uint64_t inode)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[DENTRY_KEY];
	int r = cursor_open(&c, op->view, TABLE_DENTRY);

	if (r < 0)
		return r;
	dentry_key(op, inode, 0, key);
	r = cursor_seek(&c, key, sizeof(key));
	if (r < 0)
		return r == -ENOENT ? 1 : r;
	return c.key.size < 8 || memcmp(c.key.data, key, 8) != 0;
}

int directory_load(struct op *op, uint64_t inode, struct attr *out)
{
	struct attr a;
	int r = inode_load(op, inode, &a);

	if (r < 0)
		return r;
	if (!S_ISDIR(a.mode))
		return -ENOTDIR;
	if (a.flags & ATTR_TRASHED)
		return -ENOENT;
	*out = a;
	return 0;
}
