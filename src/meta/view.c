/* Appending.  LMDB splits a full page in the middle unless told that the new key
 * is the table's last (MDB_APPEND); numbers that only grow (inodes, extents of
 * new files, answers) would then leave every page half empty.  So a batch knows
 * the last key of each table (struct view_tail): read when first needed, moved
 * by each append, forgotten when it is deleted.
 *
 * Only one volume's keys are last in a table.  The others would grow in the
 * middle of a page that they share with the first keys of the next volume.  So
 * the first inode of a volume, its root, begins a page of its own (put_apart);
 * inode.c sees to it that the volume before then also fills its pages. */
#include "meta/view.h"
#include <errno.h>
#include "base/log.h"
#include "meta/machine.h"
#include "meta/tail.h"

const char *const table_names[TABLE_COUNT] = {
	[TABLE_META] = "meta",     [TABLE_VOLUME] = "volume", [TABLE_INODE] = "inode",     [TABLE_DENTRY] = "dentry",
	[TABLE_EXTENT] = "extent", [TABLE_XATTR] = "xattr",   [TABLE_OBJECT] = "object",   [TABLE_RANGE] = "range",
	[TABLE_FREE] = "free",     [TABLE_TRASH] = "trash",   [TABLE_SESSION] = "session", [TABLE_ANSWER] = "answer",
};

int view_error(int result)
{
	switch (result) {
	case MDB_SUCCESS: return 0;
	case MDB_NOTFOUND: return -ENOENT;
	case MDB_MAP_FULL:
	case MDB_TXN_FULL: return -ENOSPC;
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_INVALID:
	case MDB_CURSOR_FULL: return -EBADMSG;
	case MDB_BAD_VALSIZE: return -EINVAL;
	default: return result > 0 ? -result : -EIO;
	}
}

int view_get(struct view *v, enum table t, const void *key, size_t key_size, struct span *out)
{
	MDB_val k = { key_size, (void *)key }, d;
	int r = view_error(mdb_get(v->txn, v->meta->tables[t], &k, &d));

	if (r == 0)
		*out = (struct span){ d.mv_data, d.mv_size };
	return r;
}

/* Whether the key comes after all others of the table. */
static bool tail_passed(struct view *v, enum table t, const void *key, size_t key_size)
{
	struct view_tail *tail = &v->tails[t];
	struct cursor c;
	size_t shorter;
	int order;

	if (!tail->known) {
		if (cursor_open(&c, v, t) < 0)
			return false;
		int r = cursor_last(&c);
		if (r == 0 && c.key.size <= sizeof(tail->key)) {
			memcpy(tail->key, c.key.data, c.key.size);
			tail->size = c.key.size;
			tail->known = true;
		}
		cursor_close(&c);
		if (r == -ENOENT)
			return true;
		if (!tail->known)
			return false;
	}
	shorter = key_size < tail->size ? key_size : tail->size;
	order = memcmp(key, tail->key, shorter);
	return order > 0 || (order == 0 && key_size > tail->size);
}

static void record_change(struct view *v, enum table t, const void *key, size_t key_size, const void *value, size_t value_size)
{
	struct buf *w = v->write_set;

	buf_le8(w, (uint8_t)t);
	buf_le16(w, (uint16_t)key_size);
	buf_le32(w, value ? (uint32_t)value_size : UINT32_MAX);
	buf_append(w, key, key_size);
	if (value)
		buf_append(w, value, value_size);
	v->touched |= 1u << t;
	if (w->failed && !v->poisoned)
		v->poisoned = -ENOMEM;
}

/* A write that failed leaves the transaction good for nothing. */
static int poison(struct view *v, int error)
{
	if (error == -EBADMSG)
		error = -EIO;
	if (!v->poisoned)
		v->poisoned = error;
	return error;
}

#define VOLUME_PREFIX 3u   /* bytes of an inode key that are the volume */
#define FILLER_BYTES 1900u /* two fill up any page, and one is not moved to a page of its own */

/* Puts the table's new last key on a page of its own: fills up the page before it, puts, and takes the fillers away
 * again.  Their keys are the volume's number and one to three zero bytes, so between the volume before and this one. */
static int put_apart(struct view *v, MDB_dbi dbi, MDB_val *key, MDB_val *value)
{
	static const uint8_t nothing[FILLER_BYTES];
	uint8_t filler[VOLUME_PREFIX + 3] = { 0 };
	MDB_stat before, now;
	size_t size = VOLUME_PREFIX;
	int r = mdb_stat(v->txn, dbi, &before);

	memcpy(filler, key->mv_data, VOLUME_PREFIX);
	now = before;
	while (r == MDB_SUCCESS && now.ms_leaf_pages == before.ms_leaf_pages && size < sizeof(filler)) {
		r = mdb_put(v->txn, dbi, &(MDB_val){ ++size, filler }, &(MDB_val){ FILLER_BYTES, (void *)nothing }, MDB_APPEND);
		if (r == MDB_SUCCESS)
			r = mdb_stat(v->txn, dbi, &now);
	}
	if (r == MDB_SUCCESS)
		r = mdb_put(v->txn, dbi, key, value, MDB_APPEND);
	for (; r == MDB_SUCCESS && size > VOLUME_PREFIX; size--)
		r = mdb_del(v->txn, dbi, &(MDB_val){ size, filler }, NULL);
	return r;
}

/* Whether the key is the first of a volume that comes after all others of the table. */
static bool begins_volume(const struct view_tail *tail, enum table t, const void *key)
{
	return t == TABLE_INODE && tail->known && memcmp(tail->key, key, VOLUME_PREFIX) != 0;
}

int view_put(struct view *v, enum table t, const void *key, size_t key_size, const void *value, size_t value_size)
{
	MDB_val k = { key_size, (void *)key }, d = { value_size, (void *)value };
	struct view_tail *tail = &v->tails[t];
	bool last;
	int r;

	if (v->poisoned)
		return v->poisoned;
	if (!v->writable || key_size == 0 || key_size > VIEW_KEY_MAX || value_size >= UINT32_MAX)
		return poison(v, -EINVAL);
	last = tail_passed(v, t, key, key_size);
	if (last && begins_volume(tail, t, key))
		r = put_apart(v, v->meta->tables[t], &k, &d);
	else
		r = mdb_put(v->txn, v->meta->tables[t], &k, &d, last ? MDB_APPEND : 0);
	if (r != MDB_SUCCESS)
		return poison(v, view_error(r));
	if (last) {
		memcpy(tail->key, key, key_size);
		tail->size = key_size;
		tail->known = true;
	}
	record_change(v, t, key, key_size, value ? value : "", value_size);
	return v->poisoned;
}

int view_delete(struct view *v, enum table t, const void *key, size_t key_size)
{
	MDB_val k = { key_size, (void *)key };
	struct view_tail *tail = &v->tails[t];
	int r;

	if (v->poisoned)
		return v->poisoned;
	if (!v->writable)
		return poison(v, -EINVAL);
	r = view_error(mdb_del(v->txn, v->meta->tables[t], &k, NULL));
	if (r == -ENOENT)
		return r;
	if (r < 0)
		return poison(v, r);
	if (tail->known && tail->size == key_size && memcmp(tail->key, key, key_size) == 0)
		tail->known = false;
	record_change(v, t, key, key_size, NULL, 0);
	return v->poisoned;
}

int cursor_open(struct cursor *c, struct view *v, enum table t)
{
	*c = (struct cursor){ .view = v, .table = t };
	return view_error(mdb_cursor_open(v->txn, v->meta->tables[t], &c->mdb));
}

static int cursor_move(struct cursor *c, MDB_cursor_op move, MDB_val *k)
{
	MDB_val d;
	int r = view_error(mdb_cursor_get(c->mdb, k, &d, move));

	if (r == 0) {
		c->key = (struct span){ k->mv_data, k->mv_size };
		c->value = (struct span){ d.mv_data, d.mv_size };
	}
	return r;
}

int cursor_seek(struct cursor *c, const void *key, size_t key_size)
{
	MDB_val k = { key_size, (void *)key };

	return key_size ? cursor_move(c, MDB_SET_RANGE, &k) : cursor_move(c, MDB_FIRST, &k);
}

int cursor_next(struct cursor *c)
{
	MDB_val k;

	return cursor_move(c, MDB_NEXT, &k);
}

int cursor_previous(struct cursor *c)
{
	MDB_val k;

	return cursor_move(c, MDB_PREV, &k);
}

int cursor_last(struct cursor *c)
{
	MDB_val k;

	return cursor_move(c, MDB_LAST, &k);
}

int view_count(struct view *v, enum table t, uint64_t *out)
{
	MDB_stat stat;
	int r = view_error(mdb_stat(v->txn, v->meta->tables[t], &stat));

	if (r == 0)
		*out = stat.ms_entries;
	return r;
}

void cursor_close(struct cursor *c)
{
	if (c->mdb)
		mdb_cursor_close(c->mdb);
	c->mdb = NULL;
}
