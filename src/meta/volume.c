/* A volume's counters change with every file made or removed, so they are a
 * record of their own of fixed size (META "v" + volume be32), and the packed
 * Volume is only rewritten when its settings change:
 *
 *   next inode le64 | used bytes le64 | used files le64 | trash bytes le64 | trash files le64 */
#include <errno.h>
#include <sys/stat.h>
#include "base/log.h"
#include "meta/machine.h"

#define COUNTERS_PACKED 40u
#define COUNTERS_KEY 5u
#define YOUNG_INODES 32u /* about a page of them */

struct counters {
	uint64_t next_inode, used_bytes, used_files, trash_bytes, trash_files;
};

static void counters_key(uint32_t volume, uint8_t key[COUNTERS_KEY])
{
	key[0] = 'v';
	put_be32(key + 1, volume);
}

static int counters_load(struct op *op, uint32_t volume, struct counters *out)
{
	uint8_t key[COUNTERS_KEY];
	struct span value;
	int r;

	counters_key(volume, key);
	r = view_get(op->view, TABLE_META, key, sizeof(key), &value);
	if (r < 0)
		return r;
	if (value.size != COUNTERS_PACKED)
		return op_damage(op, TABLE_META, "counters of volume %u", volume);
	*out = (struct counters){
		.next_inode = get_le64(value.data),
		.used_bytes = get_le64(value.data + 8),
		.used_files = get_le64(value.data + 16),
		.trash_bytes = get_le64(value.data + 24),
		.trash_files = get_le64(value.data + 32),
	};
	return 0;
}

static int counters_store(struct op *op, uint32_t volume, const struct counters *c)
{
	uint8_t key[COUNTERS_KEY], value[COUNTERS_PACKED];

	counters_key(volume, key);
	put_le64(value, c->next_inode);
	put_le64(value + 8, c->used_bytes);
	put_le64(value + 16, c->used_files);
	put_le64(value + 24, c->trash_bytes);
	put_le64(value + 32, c->trash_files);
	return view_put(op->view, TABLE_META, key, sizeof(key), value, sizeof(value));
}

int inode_take_numbers(struct op *op, uint32_t count, uint64_t *first)
{
	struct counters c;
	uint64_t number;
	int r = counters_load(op, op->volume, &c);

	if (r < 0)
		return r;
	if (c.next_inode > INODE_MAX || INODE_MAX - c.next_inode < count - 1)
		return op_explain(op, -ENOSPC, "the volume has used up its inode numbers");
	number = c.next_inode;
	c.next_inode += count;
	r = counters_store(op, op->volume, &c);
	if (r == 0)
		*first = number;
	return r;
}

bool inode_number_given(struct op *op, uint64_t inode)
{
	struct counters c;

	return counters_load(op, op->volume, &c) == 0 && inode > ROOT_INODE && inode < c.next_inode;
}

bool volume_is_young(struct op *op)
{
	struct counters c = { 0 };

	return counters_load(op, op->volume, &c) == 0 && c.next_inode <= YOUNG_INODES;
}

/* A counter below zero is a mistake that fsck corrects; refusing a delete because of it would help nobody. */
static uint64_t counter_add(struct op *op, const char *name, uint64_t value, int64_t delta)
{
	if (delta >= 0)
		return value + (uint64_t)delta;
	if (value < (uint64_t)-delta) {
		log_error("volume %u: %s fell below zero; run epochfs fsck --repair", op->volume, name);
		return 0;
	}
	return value - (uint64_t)-delta;
}

int volume_account(struct op *op, const struct attr *a, int64_t bytes, int64_t files)
{
	struct counters c;
	int r;

	if (bytes == 0 && files == 0)
		return 0;
	r = counters_load(op, op->volume, &c);
	if (r < 0)
		return r;
	if (a->flags & ATTR_TRASHED) {
		c.trash_bytes = counter_add(op, "trash_bytes", c.trash_bytes, bytes);
		c.trash_files = counter_add(op, "trash_files", c.trash_files, files);
	} else {
		c.used_bytes = counter_add(op, "used_bytes", c.used_bytes, bytes);
		c.used_files = counter_add(op, "used_files", c.used_files, files);
	}
	return counters_store(op, op->volume, &c);
}

int volume_files_left(struct op *op, uint64_t *out)
{
	struct roster_volume settings;
	struct counters c;
	int r;

	*out = UINT64_MAX;
	if (roster_find(op->meta, op->volume, &settings) && settings.max_files != 0) {
		r = counters_load(op, op->volume, &c);
		if (r < 0)
			return r;
		*out = c.used_files < settings.max_files ? settings.max_files - c.used_files : 0;
	}
	return atomic_load(&op->meta->low_space) ? -ENOSPC : 0;
}

int volume_may_add_file(struct op *op)
{
	uint64_t left;
	int r = volume_files_left(op, &left);

	if (r == -ENOSPC)
		return op_explain(op, -ENOSPC, "the disk with the server's metadata is nearly full");
	return r < 0 ? r : left ? 0 : -EDQUOT;
}

int volume_may_add_bytes(struct op *op, uint64_t bytes)
{
	struct roster_volume settings;
	struct counters c;
	int r;

	if (!roster_find(op->meta, op->volume, &settings) || settings.max_bytes == 0)
		return 0;
	r = counters_load(op, op->volume, &c);
	if (r < 0)
		return r;
	return c.used_bytes <= settings.max_bytes && bytes <= settings.max_bytes - c.used_bytes ? 0 : -EDQUOT;
}

uint64_t volume_retention_ns(struct op *op, uint32_t id)
{
	struct roster_volume settings;

	return roster_find(op->meta, id, &settings) && !settings.deleted ? settings.retention_s * NS_PER_S : 0;
}

static int volume_unpack(struct op *op, uint32_t id, struct span value, Wire__Volume **out)
{
	struct roster_volume settings;
	struct counters c;
	Wire__Volume *v;
	int r = op_unpack(op, &wire__volume__descriptor, value, &v);

	if (r == -EBADMSG || (r == 0 && v->id != id))
		return op_damage(op, TABLE_VOLUME, "volume %u", id);
	if (r < 0)
		return r;
	r = counters_load(op, id, &c);
	if (r < 0)
		return r == -ENOENT ? op_damage(op, TABLE_META, "counters of volume %u are missing", id) : r;
	v->used_bytes = c.used_bytes;
	v->used_files = c.used_files;
	v->trash_bytes = c.trash_bytes;
	v->trash_files = c.trash_files;
	v->sessions = roster_find(op->meta, id, &settings) ? settings.sessions : 0;
	*out = v;
	return 0;
}

int volume_load(struct op *op, uint32_t id, Wire__Volume **out)
{
	struct span value;
	uint8_t key[4];
	int r;

	put_be32(key, id);
	r = view_get(op->view, TABLE_VOLUME, key, sizeof(key), &value);
	return r < 0 ? r : volume_unpack(op, id, value, out);
}

int volume_find(struct op *op, const char *name, Wire__Volume **out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	Wire__Volume *v;
	int r;

	if (!name[0])
		return -ENOENT;
	r = cursor_open(&c, op->view, TABLE_VOLUME);
	if (r < 0)
		return r;
	for (r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c)) {
		if (c.key.size != 4)
			return op_damage(op, TABLE_VOLUME, "a key of %zu bytes", c.key.size);
		r = volume_unpack(op, get_be32(c.key.data), c.value, &v);
		if (r < 0)
			return r;
		if (strcmp(v->name, name) == 0) {
			*out = v;
			return 0;
		}
	}
	return r;
}

/* The record without what is kept elsewhere. */
static int volume_record_store(struct op *op, const Wire__Volume *v)
{
	Wire__Volume record = *v;
	uint8_t key[4], *packed;
	size_t size;

	record.used_bytes = record.used_files = record.trash_bytes = record.trash_files = 0;
	record.sessions = 0;
	size = wire__volume__get_packed_size(&record);
	packed = arena_take(op->arena, size);
	if (!packed)
		return -ENOMEM;
	wire__volume__pack(&record, packed);
	put_be32(key, v->id);
	return view_put(op->view, TABLE_VOLUME, key, sizeof(key), packed, size);
}

int volume_store(struct op *op, const Wire__Volume *v)
{
	struct counters c = { .next_inode = ROOT_INODE };
	int r = counters_load(op, v->id, &c);

	if (r < 0 && r != -ENOENT)
		return r;
	c.used_bytes = v->used_bytes;
	c.used_files = v->used_files;
	c.trash_bytes = v->trash_bytes;
	c.trash_files = v->trash_files;
	r = volume_record_store(op, v);
	return r < 0 ? r : counters_store(op, v->id, &c);
}

int volume_forget(struct op *op, uint32_t id)
{
	uint8_t key[4], counters[COUNTERS_KEY];
	int r;

	put_be32(key, id);
	counters_key(id, counters);
	r = view_delete(op->view, TABLE_VOLUME, key, sizeof(key));
	if (r < 0 && r != -ENOENT)
		return r;
	r = view_delete(op->view, TABLE_META, counters, sizeof(counters));
	return r == -ENOENT ? 0 : r;
}
