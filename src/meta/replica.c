#include "meta/replica.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/machine.h"
#include "meta/marks.h"
#include "meta/tail.h"

#define REPLICA_FORMAT 2u
#define REPLICA_FORMAT_1 1u /* without used bytes */
#define HEAD_SPACES 5
#define HEAD_BYTES(spaces) (33u + 8u * (spaces))
#define HEAD_PACKED HEAD_BYTES(HEAD_SPACES)

static const uint8_t magic[8] = { 'E', 'P', 'O', 'C', 'H', 'F', 'S', 'R' };
static const char head_key[] = "replica";

/* ---- The head ---- */

static void head_pack(const struct replica_head *h, uint8_t out[HEAD_PACKED])
{
	memcpy(out, magic, sizeof(magic));
	put_le32(out + 8, REPLICA_FORMAT);
	put_le32(out + 12, h->volume);
	put_le64(out + 16, h->batch);
	put_le64(out + 24, (uint64_t)h->as_of_ns);
	out[32] = h->whole;
	for (int i = 0; i < HEAD_SPACES; i++)
		put_le64(out + 33 + 8 * i, h->space[i]);
}

/* How many figures of space it has; 0: it is no head. */
static int head_spaces(struct span value)
{
	uint32_t format = value.size < HEAD_BYTES(0) || memcmp(value.data, magic, sizeof(magic)) != 0 ? 0
												      : get_le32(value.data + 8);

	if (format == REPLICA_FORMAT && value.size == HEAD_PACKED)
		return HEAD_SPACES;
	return format == REPLICA_FORMAT_1 && value.size == HEAD_BYTES(HEAD_SPACES - 1) ? HEAD_SPACES - 1 : 0;
}

static int head_load(struct meta *m, struct replica_head *out)
{
	struct span value;
	struct view v;
	int spaces = 0, r = meta_view_begin(m, &v);

	if (r < 0)
		return r;
	r = view_get(&v, TABLE_META, head_key, sizeof(head_key) - 1, &value);
	if (r == 0 && !(spaces = head_spaces(value)))
		r = -EBADMSG;
	if (r == 0) {
		*out = (struct replica_head){ .name_seed = m->format.name_seed,
					      .volume = get_le32(value.data + 12),
					      .batch = get_le64(value.data + 16),
					      .as_of_ns = (int64_t)get_le64(value.data + 24),
					      .whole = value.data[32] != 0 };
		memcpy(out->history, m->format.history, sizeof(out->history));
		for (int i = 0; i < spaces; i++)
			out->space[i] = get_le64(value.data + 33 + 8 * i);
	}
	meta_view_end(&v);
	return r;
}

/* ---- Opening ---- */

static int file_remove(const char *folder, const char *name)
{
	CLEANUP_FREE char *path = NULL;

	if (asprintf(&path, "%s/%s", folder, name) < 0)
		return -ENOMEM;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

static int files_remove(const char *folder)
{
	int r = file_remove(folder, DATA_FILE);

	return r < 0 ? r : file_remove(folder, "lock.mdb");
}

int replica_open(const char *folder, struct meta **out, struct replica_head *head)
{
	struct meta_options options = { .folder = folder, .clock = &clock_system, .replica = true };
	CLEANUP_FREE char *path = NULL;
	char error[500];
	int r;

	if (asprintf(&path, "%s/" DATA_FILE, folder) < 0)
		return -ENOMEM;
	if (access(path, F_OK) < 0)
		return errno == ENOENT ? -ENOENT : -errno;
	r = meta_open(&options, out, error, sizeof(error));
	if (r == 0) {
		r = head_load(*out, head);
		if (r < 0)
			meta_close(*out);
	}
	if (r == 0 || r == -ENOMEM || r == -EACCES)
		return r;
	log_warn("the replica in %s cannot be used (%s) and is made anew", folder, strerror(-r));
	r = files_remove(folder);
	return r < 0 ? r : -ENOENT;
}

int replica_make(const char *folder, const struct replica_head *head, struct meta **out, char *error, size_t error_size)
{
	struct meta_options options = { .folder = folder, .clock = &clock_system, .replica = true };
	struct format like = { .name_seed = head->name_seed };
	struct replica_head empty = *head;
	struct replica_update u;
	int r = files_remove(folder);

	memcpy(like.id, head->history, sizeof(like.id));
	empty.whole = false;
	empty.batch = 0;
	if (r == 0)
		r = format_make(folder, &clock_system, &like);
	if (r < 0) {
		snprintf(error, error_size, "cannot make a replica in %s: %s", folder, strerror(-r));
		return r;
	}
	r = meta_open(&options, out, error, error_size);
	if (r < 0)
		return r;
	r = replica_begin(&u, *out, head->volume);
	if (r == 0)
		r = replica_commit(&u, &empty, NULL);
	if (r < 0) {
		snprintf(error, error_size, "cannot write to %s: %s", folder, strerror(-r));
		meta_close(*out);
	}
	return r;
}

/* ---- Updates ---- */

int replica_begin(struct replica_update *u, struct meta *m, uint32_t volume)
{
	*u = (struct replica_update){ .meta = m, .volume = volume };
	return view_error(mdb_txn_begin(m->env, NULL, 0, &u->txn));
}

void replica_abort(struct replica_update *u)
{
	if (u->txn)
		mdb_txn_abort(u->txn);
	u->txn = NULL;
}

/* What a codec would not read is refused here, before anybody meets it. */
static bool value_is_good(const struct change *c)
{
	struct attr a;

	switch (c->table) {
	case TABLE_INODE:
		return c->value.size >= INODE_HEAD && attr_unpack(c->value.data, c->value.size, &a) == 0 &&
		       a.inode == (get_be64(c->key.data) & INODE_MAX);
	case TABLE_DENTRY:
		return c->value.size > DENTRY_HEAD && c->value.size <= DENTRY_HEAD + 255 && get_le64(c->value.data) &&
		       get_le64(c->value.data) <= INODE_MAX &&
		       !memchr(c->value.data + DENTRY_HEAD, '/', c->value.size - DENTRY_HEAD) &&
		       !memchr(c->value.data + DENTRY_HEAD, 0, c->value.size - DENTRY_HEAD);
	case TABLE_EXTENT: {
		struct extent e;
		return extent_value_unpack(get_be64(c->key.data + 8), c->value.data, c->value.size, &e) == 0;
	}
	case TABLE_META: {
		Wire__MarkRecord *mark = wire__mark_record__unpack(NULL, c->value.size, c->value.data);
		bool good = mark && mark->writeback.len == WRITEBACK_ID;

		if (mark)
			wire__mark_record__free_unpacked(mark, NULL);
		return good;
	}
	default: return true;
	}
}

static int change_do(struct replica_update *u, const struct change *c)
{
	MDB_dbi table = u->meta->tables[c->table];
	MDB_val k = { c->key.size, (void *)c->key.data }, d;
	struct span before = { NULL, 0 };
	int r = view_error(mdb_get(u->txn, table, &k, &d));

	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0)
		before = (struct span){ d.mv_data, d.mv_size };
	if (c->deleted ? !before.data
		       : before.data && before.size == c->value.size && memcmp(before.data, c->value.data, before.size) == 0)
		return 0;
	r = u->each ? u->each(u->context, c, before) : 0;
	if (r < 0)
		return r;
	if (c->deleted)
		return view_error(mdb_del(u->txn, table, &k, NULL));
	if (c->table == TABLE_META)
		atomic_store(&u->meta->marked, true);
	d = (MDB_val){ c->value.size, (void *)c->value.data };
	return view_error(mdb_put(u->txn, table, &k, &d, 0));
}

static int change_check(const struct replica_update *u, const struct change *c)
{
	return change_is_streamed(c, u->volume) && (c->deleted || value_is_good(c)) ? 0 : -EBADMSG;
}

int replica_apply(struct replica_update *u, const void *changes, size_t size)
{
	struct reader in = reader_of(changes, size);
	struct change c;
	int more = 0, r = 0;

	while (r == 0 && (more = change_next(&in, &c)) > 0) {
		r = change_check(u, &c);
		if (r == 0)
			r = change_do(u, &c);
	}
	return r < 0 ? r : more;
}

static int key_compare(struct span a, struct span b)
{
	size_t shorter = a.size < b.size ? a.size : b.size;
	int order = shorter ? memcmp(a.data, b.data, shorter) : 0;

	return order ? order : a.size < b.size ? -1 : a.size > b.size;
}

/* The first of the volume's records after a key: 0 with a copy of its key, -ENOENT. */
static int key_after(struct replica_update *u, enum table t, struct span after, uint8_t out[VIEW_KEY_MAX], size_t *size)
{
	struct change found = { .table = t };
	uint8_t first[STREAM_FIRST];
	MDB_cursor *cursor;
	MDB_val k, d;
	int r = view_error(mdb_cursor_open(u->txn, u->meta->tables[t], &cursor));

	if (r < 0)
		return r;
	k = after.size ? (MDB_val){ after.size, (void *)after.data } : (MDB_val){ stream_first(t, u->volume, first), first };
	r = view_error(mdb_cursor_get(cursor, &k, &d, MDB_SET_RANGE));
	found.key = (struct span){ k.mv_data, k.mv_size };
	if (r == 0 && after.size && key_compare(found.key, after) == 0) {
		r = view_error(mdb_cursor_get(cursor, &k, &d, MDB_NEXT));
		found.key = (struct span){ k.mv_data, k.mv_size };
	}
	if (r == 0 && !change_is_streamed(&found, u->volume))
		r = -ENOENT;
	if (r == 0) {
		memcpy(out, found.key.data, found.key.size);
		*size = found.key.size;
	}
	mdb_cursor_close(cursor);
	return r;
}

/* Deletes what is here after a key and before another (no data: up to the volume's end). */
static int gap_empty(struct replica_update *u, enum table t, struct span after, struct span before)
{
	uint8_t key[VIEW_KEY_MAX];
	size_t size;
	int r;

	while ((r = key_after(u, t, after, key, &size)) == 0) {
		struct change gone = { .table = t, .key = { key, size }, .deleted = true };

		if (before.data && key_compare(gone.key, before) >= 0)
			return 0;
		r = change_do(u, &gone);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

int replica_range(struct replica_update *u, enum table t, const void *after, size_t after_size, const void *last,
		  size_t last_size, const void *records, size_t size)
{
	struct reader in = reader_of(records, size);
	struct span at = { after_size ? after : NULL, after_size };
	struct change c;
	int more = 0, r = 0;

	while (r == 0 && (more = change_next(&in, &c)) > 0) {
		r = change_check(u, &c);
		if (r == 0 && (c.table != t || c.deleted || key_compare(c.key, at) <= 0))
			r = -EBADMSG; /* in their order, or the replica would never get to the end */
		if (r == 0)
			r = gap_empty(u, t, at, c.key);
		if (r == 0)
			r = change_do(u, &c);
		at = c.key;
	}
	if (r < 0 || more < 0)
		return r < 0 ? r : more;
	if (last_size) /* what was read ends with it */
		return key_compare(at, (struct span){ last, last_size }) == 0 ? 0 : -EBADMSG;
	return gap_empty(u, t, at, (struct span){ NULL, 0 });
}

static int volume_put(struct replica_update *u, const Wire__Volume *volume)
{
	CLEANUP_BUF struct buf packed = { 0 };
	uint8_t key[4], *room = buf_extend(&packed, wire__volume__get_packed_size(volume));

	if (!room)
		return -ENOMEM;
	wire__volume__pack(volume, room);
	put_be32(key, u->volume);
	return view_error(mdb_put(u->txn, u->meta->tables[TABLE_VOLUME], &(MDB_val){ sizeof(key), key },
				  &(MDB_val){ packed.len, packed.data }, 0));
}

int replica_commit(struct replica_update *u, const struct replica_head *head, const Wire__Volume *volume)
{
	uint8_t value[HEAD_PACKED];
	MDB_val k = { sizeof(head_key) - 1, (void *)head_key }, d = { sizeof(value), value };
	int r;

	head_pack(head, value);
	r = view_error(mdb_put(u->txn, u->meta->tables[TABLE_META], &k, &d, 0));
	if (r == 0 && volume)
		r = volume_put(u, volume);
	if (r < 0) {
		replica_abort(u);
		return r;
	}
	r = view_error(mdb_txn_commit(u->txn));
	u->txn = NULL;
	return r;
}

int replica_volume(struct meta *m, uint32_t volume, struct arena *arena, Wire__Volume **out)
{
	struct span value;
	uint8_t key[4];
	struct view v;
	int r = meta_view_begin(m, &v);

	if (r < 0)
		return r;
	put_be32(key, volume);
	r = view_get(&v, TABLE_VOLUME, key, sizeof(key), &value);
	if (r == 0) {
		*out = wire__volume__unpack(&arena->allocator, value.size, value.data);
		r = *out ? 0 : -EBADMSG;
	}
	meta_view_end(&v);
	return r;
}

/* ---- Reading ---- */

/* The usual case is one look-up: names whose hashes agree are rare. */
static int name_inode(struct op *op, uint64_t parent, const char *name, size_t size, uint64_t *inode)
{
	struct span value;
	struct dentry d;
	uint8_t key[16];
	int r;

	put_be64(key, inode_key(op->volume, parent));
	put_be64(key + 8, dentry_slot(op->meta->format.name_seed, name, size));
	r = view_get(op->view, TABLE_DENTRY, key, sizeof(key), &value);
	if (r == 0 && value.size == DENTRY_HEAD + size && memcmp(value.data + DENTRY_HEAD, name, size) == 0) {
		*inode = get_le64(value.data);
		return 0;
	}
	if (r < 0 && r != -ENOENT)
		return r;
	r = dentry_find(op, parent, name, size, &d);
	*inode = d.inode;
	return r;
}

int replica_lookup(struct meta *m, uint32_t volume, uint64_t parent, const char *name, size_t size, struct attr *out)
{
	struct view v;
	struct op op = { .view = &v, .meta = m, .volume = volume };
	uint64_t inode;
	int r = name_check(name, size);

	if (r == 0)
		r = meta_view_begin(m, &v);
	if (r < 0)
		return r;
	r = name_inode(&op, parent, name, size, &inode);
	if (r == 0)
		r = inode_load(&op, inode, out);
	meta_view_end(&v);
	return r;
}

int replica_getattr(struct meta *m, uint32_t volume, uint64_t inode, struct attr *out)
{
	struct view v;
	struct op op = { .view = &v, .meta = m, .volume = volume };
	int r = meta_view_begin(m, &v);

	if (r < 0)
		return r;
	r = inode_load(&op, inode, out);
	meta_view_end(&v);
	return r;
}
