/* REAP: files leave the trash for good, and deleted volumes go.
 *
 * A large file is freed over several mutations.  The first one that takes extents
 * from it makes it a nameless one (trash_begin_freeing), so that a half-freed file
 * can be neither listed nor restored; the inode goes with its last extent.
 *
 * A deleted volume (empty name) has no session and no names that anybody could
 * look up, so its tables are simply emptied, extents first because they hold the
 * references; when all are empty the record goes. */
#include "meta/reap.h"
#include <errno.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/content.h"
#include "meta/handlers.h"
#include "meta/marks.h"
#include "meta/trash.h"
#include "meta/xattr.h"

#define BUDGET_DEFAULT 10000u
#define BUDGET_MAX 100000u
#define DUE_MAX 4096u
#define PURGE_WINDOW 256u
#define KEY_MAX 511u

/* ---- What is due ---- */

/* Due inodes of op->volume that nobody has open. */
static int reap_collect(struct op *op, int64_t limit, uint64_t *inodes, size_t max, size_t *count)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[TRASH_KEY];
	*count = 0;
	trash_key(key, op->volume, 0, 0);
	int r = cursor_open(&c, op->view, TABLE_TRASH);
	if (r == 0)
		r = cursor_seek(&c, key, sizeof(key));
	for (; r == 0 && *count < max; r = cursor_next(&c)) {
		if (c.key.size != TRASH_KEY || memcmp(c.key.data, key, TRASH_KEY_TIME) != 0 ||
		    get_be64(c.key.data + TRASH_KEY_TIME) > (uint64_t)limit)
			return 0;
		uint64_t inode = get_be64(c.key.data + TRASH_KEY_INODE);
		if (!meta_is_open(op->meta, op->volume, inode))
			inodes[(*count)++] = inode;
	}
	return r == -ENOENT ? 0 : r;
}

int reap_due(struct meta *m, struct view *v, uint32_t volume, int64_t now_ns, uint64_t *inodes, size_t max, size_t *count)
{
	struct op op = { .view = v, .meta = m, .volume = volume, .now_ns = now_ns };
	int64_t limit;
	int r = trash_limit(&op, &limit);
	return r < 0 ? r : reap_collect(&op, limit, inodes, max, count);
}

/* ---- Files ---- */

struct reap {
	int64_t limit;
	uint32_t budget;
	struct tally tally;
	Wire__ReapReply *reply;
};

static int inode_forget(struct op *op, struct attr *a)
{
	uint8_t key[8];
	put_be64(key, inode_key(op->volume, a->inode));
	int r = mark_forget(op, a->inode);
	if (r == 0)
		r = xattr_delete_all(op, a);
	if (r == 0)
		r = trash_forget(op, a);
	if (r == 0 || r == -ENOENT)
		r = view_delete(op->view, TABLE_INODE, key, sizeof(key));
	return r < 0 ? r : volume_account(op, a, 0, -1);
}

static int reap_inode(struct op *op, struct reap *reap, uint64_t inode)
{
	struct attr a;
	int r = inode_load(op, inode, &a);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	if (!(a.flags & ATTR_TRASHED) || a.deleted_ns > reap->limit || meta_is_open(op->meta, op->volume, inode))
		return 0;
	if (reap->budget == 0) {
		reap->reply->more = true;
		return 0;
	}
	reap->budget--; /* for the inode: empty files are work, too */
	bool more = false;
	if (S_ISREG(a.mode)) {
		uint32_t before = reap->budget;
		r = content_cut_tallied(op, &a, 0, UINT64_MAX, &reap->budget, &more, &reap->tally);
		reap->reply->extents += before - reap->budget;
	}
	if (r == 0 && more) {
		reap->reply->more = true;
		r = trash_begin_freeing(op, &a);
		return r < 0 ? r : inode_store(op, &a, NULL);
	}
	if (r == 0)
		r = inode_forget(op, &a);
	reap->reply->files++;
	return r;
}

static int reap_files(struct op *op, const uint64_t *inodes, size_t count, struct reap *reap)
{
	uint64_t *due = NULL;
	int r = trash_limit(op, &reap->limit);
	if (r == 0 && count == 0) {
		due = arena_take(op->arena, DUE_MAX * sizeof(*due));
		r = due ? reap_collect(op, reap->limit, due, DUE_MAX, &count) : -ENOMEM;
		inodes = due;
		if (count == DUE_MAX)
			reap->reply->more = true;
	}
	for (size_t i = 0; i < count && r == 0; i++)
		r = reap_inode(op, reap, inodes[i]);
	return r;
}

/* ---- Deleted volumes ---- */

struct purge_key {
	size_t size;
	uint8_t key[KEY_MAX];
	uint64_t object;
	uint32_t length;
};

/* Up to PURGE_WINDOW keys of the table with this prefix. */
static int purge_window(struct op *op, enum table t, const uint8_t *prefix, size_t prefix_size, struct purge_key *out,
			size_t *count)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	*count = 0;
	int r = cursor_open(&c, op->view, t);
	if (r == 0)
		r = cursor_seek(&c, prefix, prefix_size);
	for (; r == 0 && *count < PURGE_WINDOW; r = cursor_next(&c)) {
		if (c.key.size < prefix_size || c.key.size > KEY_MAX || memcmp(c.key.data, prefix, prefix_size) != 0)
			return 0;
		struct purge_key *k = &out[(*count)++];
		k->size = c.key.size;
		memcpy(k->key, c.key.data, c.key.size);
		if (t != TABLE_EXTENT)
			continue;
		struct extent e;
		if (c.key.size != EXTENT_KEY || extent_value_unpack(get_be64(c.key.data + 8), c.value.data, c.value.size, &e) < 0)
			return op_damage(op, t, "an extent of deleted volume %u", op->volume);
		k->object = e.object;
		k->length = e.length;
	}
	return r == -ENOENT ? 0 : r;
}

/* Empties the volume's part of a table as far as the budget goes. */
static int purge_table(struct op *op, struct reap *reap, enum table t, const uint8_t *prefix, size_t prefix_size)
{
	struct purge_key *window = arena_take(op->arena, PURGE_WINDOW * sizeof(*window));
	size_t count = PURGE_WINDOW;
	if (!window)
		return -ENOMEM;
	while (count == PURGE_WINDOW) {
		int r = purge_window(op, t, prefix, prefix_size, window, &count);
		for (size_t i = 0; i < count && r == 0; i++) {
			if (reap->budget == 0) {
				reap->reply->more = true;
				return 0;
			}
			reap->budget--;
			reap->reply->extents += t == TABLE_EXTENT;
			reap->reply->files += t == TABLE_INODE;
			r = view_delete(op->view, t, window[i].key, window[i].size);
			if (r == 0 && t == TABLE_EXTENT)
				r = tally_object(&reap->tally, window[i].object, -1, -(int64_t)window[i].length);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int purge_volume(struct op *op, struct reap *reap)
{
	static const enum table tables[] = { TABLE_EXTENT, TABLE_XATTR, TABLE_DENTRY, TABLE_TRASH, TABLE_INODE };
	/* A volume's numbers share the upper 24 bits of inode keys, and all of the volume's own. */
	uint8_t inodes[8], volume[4];
	put_be64(inodes, inode_key(op->volume, 0));
	put_be32(volume, op->volume);
	int r = 0;
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && r == 0 && !reap->reply->more; i++) {
		bool by_volume = tables[i] == TABLE_TRASH;
		r = purge_table(op, reap, tables[i], by_volume ? volume : inodes, by_volume ? 4 : (64 - INODE_BITS) / 8);
	}
	if (r < 0 || reap->reply->more)
		return r;
	uint8_t emptied[EMPTIED_KEY], marks[1 + (64 - INODE_BITS) / 8] = { 'm' };
	memcpy(marks + 1, inodes, sizeof(marks) - 1);
	r = purge_table(op, reap, TABLE_META, marks, sizeof(marks));
	if (r < 0 || reap->reply->more)
		return r;
	emptied_key(emptied, op->volume);
	r = view_delete(op->view, TABLE_META, emptied, sizeof(emptied));
	return r < 0 && r != -ENOENT ? r : volume_forget(op, op->volume);
}

int op_reap(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__ReapRequest *q = (const Wire__ReapRequest *)request;
	struct reap reap = { .reply = (Wire__ReapReply *)reply,
			     .budget = q->max_extents == 0           ? BUDGET_DEFAULT
				       : q->max_extents < BUDGET_MAX ? q->max_extents
								     : BUDGET_MAX };
	Wire__Volume *v;
	op->volume = q->volume;
	int r = volume_load(op, q->volume, &v);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	tally_begin(&reap.tally);
	r = v->name[0] ? reap_files(op, q->inodes, q->n_inodes, &reap) : purge_volume(op, &reap);
	if (r == 0)
		r = tally_write(op, &reap.tally);
	tally_free(&reap.tally);
	return r;
}

/* ---- The server's reaper ---- */

struct reap_volume {
	uint32_t id;
	bool deleted;
};

static int reap_volumes(struct view *v, struct arena *arena, struct buf *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, v, TABLE_VOLUME);
	if (r == 0)
		r = cursor_seek(&c, NULL, 0);
	for (; r == 0; r = cursor_next(&c)) {
		Wire__Volume *volume = wire__volume__unpack(&arena->allocator, c.value.size, c.value.data);
		if (!volume)
			return -EBADMSG;
		struct reap_volume found = { .id = volume->id, .deleted = volume->name[0] == 0 };
		buf_append(out, &found, sizeof(found));
	}
	return out->failed ? -ENOMEM : r == -ENOENT ? 0 : r;
}

static int reap_one(struct meta *m, const struct reap_volume *volume, const uint64_t *inodes, size_t count, uint32_t max_extents,
		    struct arena *arena, struct reap_counts *done, bool *more)
{
	struct caller server = { 0 };
	Wire__ReapRequest request = WIRE__REAP_REQUEST__INIT;
	Wire__ReapReply *reply;
	request.volume = volume->id;
	request.inodes = (uint64_t *)inodes;
	request.n_inodes = count;
	request.max_extents = max_extents;
	int r = meta_mutate(m, &server, WIRE__OP__REAP, &request.base, arena, (ProtobufCMessage **)&reply);
	if (r < 0)
		return r;
	done->files += reply->files;
	done->extents += reply->extents;
	done->volumes += volume->deleted && !reply->more;
	*more = *more || reply->more || count == DUE_MAX;
	return 0;
}

int reap_pass(struct meta *m, int64_t now_ns, uint32_t max_extents, struct reap_counts *done, bool *more)
{
	CLEANUP_BUF struct buf volumes = { 0 };
	struct arena arena;
	struct view v;
	arena_init(&arena, 0);
	*more = false;
	uint64_t *inodes = arena_take(&arena, DUE_MAX * sizeof(*inodes));
	int r = inodes ? meta_view_begin(m, &v) : -ENOMEM;
	if (r == 0) {
		r = reap_volumes(&v, &arena, &volumes);
		meta_view_end(&v);
	}
	for (size_t at = 0; r == 0 && at < volumes.len; at += sizeof(struct reap_volume)) {
		struct reap_volume volume;
		size_t count = 0;
		memcpy(&volume, volumes.data + at, sizeof(volume));
		if (!volume.deleted) {
			r = meta_view_begin(m, &v);
			if (r < 0)
				break;
			r = reap_due(m, &v, volume.id, now_ns, inodes, DUE_MAX, &count);
			meta_view_end(&v);
		}
		if (r == 0 && (volume.deleted || count))
			r = reap_one(m, &volume, inodes, count, max_extents, &arena, done, more);
	}
	arena_free(&arena);
	return r;
}
