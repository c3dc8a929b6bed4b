/* fsck: inodes, names, the tree they make, the trash and extended attributes.
 *
 * Names refer to inodes in any order, so all inodes are in memory, sorted (the
 * table is), and each name costs one search. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "meta/acl.h"
#include "meta/check_state.h"
#include "meta/machine.h"
#include "meta/trash.h"

#define DENTRY_HEAD 9u
#define COOKIE_MAX (((uint64_t)1 << 63) - 1)

enum { USED_BYTES, USED_FILES, TRASH_BYTES, TRASH_FILES };

/* ---- Inodes ---- */

static void inode_check(struct check *c, uint64_t key, const struct attr *a, size_t value_size)
{
	if (S_ISLNK(a->mode) && (a->size == 0 || a->size != value_size - INODE_HEAD))
		check_report(c, false, "%s: the target of the link does not fit its size", check_name(c, key));
	if (a->size > FILE_SIZE_MAX)
		check_report(c, false, "%s: a size of %llu bytes", check_name(c, key), (unsigned long long)a->size);
	if (!(a->flags & ATTR_TRASHED) && (a->deleted_ns || (a->flags & ATTR_NO_TRASH)))
		check_report(c, false, "%s: deleted and not deleted", check_name(c, key));
}

static int inode_note(struct check *c, const struct cursor *at)
{
	struct attr a;
	if (at->key.size != 8 || at->value.size < INODE_HEAD || attr_unpack(at->value.data, at->value.size, &a) < 0 ||
	    a.inode == 0 || a.inode != (get_be64(at->key.data) & INODE_MAX)) {
		check_unreadable(c, "inode");
		return 0;
	}
	uint64_t key = get_be64(at->key.data);
	struct check_volume *v = check_volume_find(c, (uint32_t)(key >> INODE_BITS));
	if (!v) {
		check_report(c, false, "inode %llu belongs to volume %llu, which does not exist", (unsigned long long)a.inode,
			     (unsigned long long)(key >> INODE_BITS));
		return 0;
	}
	if (v->deleted || !check_wants(c, v->id))
		return 0;
	if (c->inode_count == c->inode_room)
		return -EOVERFLOW;
	inode_check(c, key, &a, at->value.size);
	if (a.inode >= v->next_inode)
		check_report(c, false, "%s: its number was never given out", check_name(c, key));
	c->inodes[c->inode_count++] = (struct check_inode){ .key = key,
							    .parent = a.parent,
							    .unaccounted = (int64_t)a.allocated,
							    .nlink = a.nlink,
							    .mode = (uint16_t)a.mode,
							    .flags = (uint8_t)a.flags };
	if (a.flags & ATTR_TRASHED)
		v->counted[TRASH_FILES]++;
	else if (a.inode != ROOT_INODE)
		v->counted[USED_FILES]++;
	c->result->inodes++;
	return 0;
}

static int roots_check(struct check *c)
{
	for (size_t i = 0; i < c->volume_count; i++) {
		struct check_volume *v = &c->volumes[i];
		if (v->deleted || !check_wants(c, v->id))
			continue;
		struct check_inode *root = check_inode_find(c, inode_key(v->id, ROOT_INODE));
		if (!root || !S_ISDIR(root->mode) || (root->flags & ATTR_TRASHED))
			check_report(c, false, "volume %u has no root directory", v->id);
	}
	return 0;
}

int check_inodes(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "inodes", TABLE_INODE);
	c->inode_room = c->steps_all;
	c->inodes = malloc((c->inode_room + 1) * sizeof(*c->inodes));
	if (!c->inodes)
		return -ENOMEM;
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_INODE);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		r = inode_note(c, &at);
		if (r == 0)
			r = check_step(c);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? roots_check(c) : r;
}

/* ---- Names ---- */

static void name_target_check(struct check *c, struct check_inode *directory, uint64_t child_key, uint8_t type, const char *name,
			      int size)
{
	struct check_inode *child = check_inode_find(c, child_key);
	if (!child) {
		check_report(c, false, "%s: the name %.*s leads to inode %llu, which does not exist",
			     check_name(c, directory->key), size, name, (unsigned long long)(child_key & INODE_MAX));
		return;
	}
	child->names++;
	if (child->flags & ATTR_TRASHED)
		check_report(c, false, "%s: the name %.*s leads to inode %llu, which is deleted", check_name(c, directory->key),
			     size, name, (unsigned long long)(child_key & INODE_MAX));
	if (attr_type(child->mode) != type)
		check_report(c, false, "%s: the name %.*s has another type than its inode", check_name(c, directory->key), size,
			     name);
	if (!S_ISDIR(child->mode))
		return;
	directory->subdirectories++;
	if (child->parent != (directory->key & INODE_MAX))
		check_report(c, false, "%s: directory %.*s takes inode %llu for its parent", check_name(c, directory->key), size,
			     name, (unsigned long long)child->parent);
}

static int name_check_record(struct check *c, const struct cursor *at)
{
	if (at->key.size != 16 || at->value.size <= DENTRY_HEAD) {
		check_unreadable(c, "name");
		return 0;
	}
	uint64_t key = get_be64(at->key.data), cookie = get_be64(at->key.data + 8), inode = get_le64(at->value.data);
	uint32_t volume = (uint32_t)(key >> INODE_BITS);
	if (!check_wants(c, volume) || check_skips_tree(c, volume))
		return 0;
	const char *name = (const char *)at->value.data + DENTRY_HEAD;
	int size = (int)(at->value.size - DENTRY_HEAD);
	c->result->names++;
	struct check_inode *directory = check_inode_find(c, key);
	if (!directory || !S_ISDIR(directory->mode)) {
		check_report(c, false, "the name %.*s is in directory %llu of volume %u, which does not exist",
			     size > 255 ? 255 : size, name, (unsigned long long)(key & INODE_MAX), volume);
		return 0;
	}
	if (directory->flags & ATTR_TRASHED)
		check_report(c, false, "%s: deleted, but has the name %.*s in it", check_name(c, key), size, name);
	if (name_check(name, (size_t)size) < 0 || cookie == 0 || cookie > COOKIE_MAX || inode == 0 || inode > INODE_MAX) {
		check_report(c, false, "%s: a name in it is damaged", check_name(c, key));
		return 0;
	}
	/* Found by its name, and as this record: the hash is right and no other has the name. */
	struct dentry found;
	c->op.volume = volume;
	int r = dentry_find(&c->op, key & INODE_MAX, name, (size_t)size, &found);
	if (r < 0 && r != -ENOENT && r != -EBADMSG)
		return r;
	if (r < 0 || found.cookie != cookie)
		check_report(c, false, "%s: the name %.*s cannot be found by it", check_name(c, key), size, name);
	name_target_check(c, directory, inode_key(volume, inode), at->value.data[8], name, size);
	return 0;
}

int check_names(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "names", TABLE_DENTRY);
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_DENTRY);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		r = name_check_record(c, &at);
		if (r == 0)
			r = check_step(c);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

/* ---- The tree ---- */

/* Follows the parents up to the root or to a directory whose answer is known,
 * then gives the answer to all on the way.  Each directory is walked over twice
 * in all. */
static void directory_reach(struct check *c, struct check_inode *start)
{
	struct check_inode *i = start;
	uint8_t answer = 0;
	while (!answer) {
		if (!i || !S_ISDIR(i->mode) || (i->flags & ATTR_TRASHED) || (i->seen & (SEEN_ON_THE_WAY | SEEN_LOST)))
			answer = SEEN_LOST;
		else if ((i->key & INODE_MAX) == ROOT_INODE || (i->seen & SEEN_REACHABLE))
			answer = SEEN_REACHABLE;
		else {
			i->seen |= SEEN_ON_THE_WAY;
			i = check_inode_find(c, inode_key((uint32_t)(i->key >> INODE_BITS), i->parent & INODE_MAX));
		}
	}
	for (i = start; i && (i->seen & SEEN_ON_THE_WAY);) {
		i->seen = (uint8_t)((i->seen & ~SEEN_ON_THE_WAY) | answer);
		i = check_inode_find(c, inode_key((uint32_t)(i->key >> INODE_BITS), i->parent & INODE_MAX));
	}
}

static void links_check(struct check *c, struct check_inode *i)
{
	bool is_root = (i->key & INODE_MAX) == ROOT_INODE;
	uint32_t names = i->names, expected = S_ISDIR(i->mode) ? 2 + i->subdirectories : names;
	if (i->flags & ATTR_TRASHED) {
		expected = 0;
		names = 1; /* names of a deleted one were reported where they are */
	}
	if (is_root ? i->names != 0 : names == 0 || (S_ISDIR(i->mode) && names != 1)) {
		check_report(c, false, "%s: has %u names", check_name(c, i->key), i->names);
		return;
	}
	if (i->nlink != expected) {
		check_report(c, true, "%s: nlink is %u, counted %u", check_name(c, i->key), i->nlink, expected);
		i->seen |= SEEN_FIX;
	}
}

int check_tree(struct check *c)
{
	int r = check_phase(c, "directories", TABLE_INODE);
	for (size_t n = 0; n < c->inode_count && r == 0; n++) {
		struct check_inode *i = &c->inodes[n];
		links_check(c, i);
		if (S_ISDIR(i->mode) && !(i->flags & ATTR_TRASHED)) {
			directory_reach(c, i);
			if (i->seen & SEEN_LOST)
				check_report(c, false,
					     "inode %llu of volume %u: a directory that cannot be reached from the root",
					     (unsigned long long)(i->key & INODE_MAX), (unsigned)(i->key >> INODE_BITS));
		}
		r = check_step(c);
	}
	return r;
}

/* ---- Trash ---- */

static int trash_record_check(struct check *c, const struct cursor *at)
{
	if (at->key.size != TRASH_KEY || at->value.size < 8 || at->value.size > 8 + 255) {
		check_report(c, false, "a record of the trash is damaged");
		return 0;
	}
	uint32_t volume = get_be32(at->key.data);
	if (!check_wants(c, volume) || check_skips_tree(c, volume))
		return 0;
	uint64_t inode = get_be64(at->key.data + TRASH_KEY_INODE);
	struct check_inode *i = check_inode_find(c, inode_key(volume, inode & INODE_MAX));
	struct attr a;
	c->op.volume = volume;
	c->result->trashed++;
	if (!i || !(i->flags & ATTR_TRASHED) || (i->seen & SEEN_IN_TRASH)) {
		check_report(c, false, "inode %llu of volume %u is in the trash, but %s", (unsigned long long)inode, volume,
			     !i                        ? "does not exist"
			     : i->seen & SEEN_IN_TRASH ? "twice"
						       : "is not deleted");
		return 0;
	}
	int r = inode_load(&c->op, inode, &a);
	if (r < 0)
		return r;
	if ((uint64_t)a.deleted_ns != get_be64(at->key.data + TRASH_KEY_TIME)) {
		check_report(c, false, "%s: in the trash under another time than its own", check_name(c, i->key));
		return 0;
	}
	i->seen |= SEEN_IN_TRASH;
	return 0;
}

int check_trash(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "trash", TABLE_TRASH);
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_TRASH);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		r = trash_record_check(c, &at);
		if (r == 0)
			r = check_step(c);
		if (r < 0)
			return r;
	}
	if (r != -ENOENT)
		return r;
	for (size_t n = 0; n < c->inode_count; n++) {
		struct check_inode *i = &c->inodes[n];
		if (!(i->flags & ATTR_TRASHED) || (i->seen & SEEN_IN_TRASH))
			continue;
		check_report(c, true, "inode %llu of volume %u is deleted, but not in the trash",
			     (unsigned long long)(i->key & INODE_MAX), (unsigned)(i->key >> INODE_BITS));
		i->seen |= SEEN_FIX;
	}
	return 0;
}

/* ---- Extended attributes ---- */

static bool xattr_is(const struct cursor *at, const char *name)
{
	return at->key.size - 8 == strlen(name) && memcmp(at->key.data + 8, name, strlen(name)) == 0;
}

int check_xattrs(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "attributes", TABLE_XATTR);
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_XATTR);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		r = check_step(c);
		if (r < 0)
			return r;
		if (at.key.size <= 8 || at.key.size > 8 + 255) {
			check_report(c, false, "a record of an extended attribute is damaged");
			continue;
		}
		uint64_t key = get_be64(at.key.data);
		uint32_t volume = (uint32_t)(key >> INODE_BITS);
		if (!check_wants(c, volume) || check_skips_tree(c, volume))
			continue;
		c->result->xattrs++;
		struct check_inode *i = check_inode_find(c, key);
		if (!i) {
			check_report(c, false, "an extended attribute belongs to inode %llu of volume %u, which does not exist",
				     (unsigned long long)(key & INODE_MAX), volume);
			continue;
		}
		i->xattr_flags |= ATTR_HAS_XATTR | (xattr_is(&at, ACL_ACCESS_NAME) ? ATTR_HAS_ACL : 0) |
				  (xattr_is(&at, ACL_DEFAULT_NAME) ? ATTR_HAS_DEFAULT : 0);
	}
	for (size_t n = 0; r == -ENOENT && n < c->inode_count; n++) {
		const uint64_t exact = ATTR_HAS_ACL | ATTR_HAS_DEFAULT; /* ATTR_HAS_XATTR may stay when the last one goes */
		struct check_inode *i = &c->inodes[n];
		if ((i->flags & exact) != (i->xattr_flags & exact) || (i->xattr_flags & ~(uint64_t)i->flags))
			check_report(c, false, "%s: its flags do not tell its extended attributes", check_name(c, i->key));
	}
	return r == -ENOENT ? 0 : r;
}
