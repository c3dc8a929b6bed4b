/* Administration of volumes: every refusal says what is allowed. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "meta/handlers.h"
#include "meta/machine.h"

#define VOLUME_NAME_MAX 63u
#define VOLUME_ID_MAX ((1u << (64 - INODE_BITS)) - 1)
#define RETENTION_MAX_S ((uint64_t)36500 * 86400)
#define ROOT_MODE (S_IFDIR | 0755)

static int volume_name_check(struct op *op, const char *name)
{
	size_t length = strlen(name);

	if (length >= 1 && length <= VOLUME_NAME_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == length &&
	    !strchr("._-", name[0]))
		return 0;
	return op_explain(
		op, -EINVAL,
		"a volume's name has 1 to %u characters a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit",
		VOLUME_NAME_MAX);
}

static int block_size_check(struct op *op, uint32_t size)
{
	if (size >= BLOCK_MIN && size <= BLOCK_MAX && (size & (size - 1)) == 0)
		return 0;
	return op_explain(op, -EINVAL, "the block size must be a power of two from 64 KiB to 64 MiB");
}

/* Checked and in one spelling: "none", "lz4", "zstd:N". */
static int compression_normalize(struct op *op, char **text)
{
	enum codec codec;
	char *out;
	int level;

	if (!(*text)[0])
		*text = "none";
	if (codec_parse(*text, &codec, &level) < 0)
		return op_explain(op, -EINVAL, "the compression must be none, lz4, zstd or zstd:LEVEL with a level from 1 to 19");
	if (codec != CODEC_ZSTD)
		return 0;
	out = arena_take(op->arena, 16);
	if (!out)
		return -ENOMEM;
	snprintf(out, 16, "zstd:%d", level);
	*text = out;
	return 0;
}

static int settings_check(struct op *op, Wire__Volume *v)
{
	int r = compression_normalize(op, &v->compression);

	if (r < 0)
		return r;
	if (v->retention_s > RETENTION_MAX_S)
		return op_explain(op, -EINVAL, "the retention must be from 0 (none) to 36500d");
	if (v->max_bytes && v->max_bytes < v->block_size)
		return op_explain(op, -EINVAL, "max-bytes must be 0 (no limit) or at least the block size");
	return 0;
}

static int volume_next_id(struct op *op, uint32_t *out)
{
	static const char key[] = "volume.next";
	uint8_t value[4];
	struct span now;
	uint32_t id = 1;
	int r = view_get(op->view, TABLE_META, key, sizeof(key) - 1, &now);

	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 && now.size != sizeof(value))
		return op_damage(op, TABLE_META, "the next volume's id");
	if (r == 0)
		id = get_le32(now.data);
	if (id > VOLUME_ID_MAX)
		return op_explain(op, -ENOSPC, "all volume ids were used");
	put_le32(value, id + 1);
	r = view_put(op->view, TABLE_META, key, sizeof(key) - 1, value, sizeof(value));
	if (r == 0)
		*out = id;
	return r;
}

/* The root belongs to whoever runs the server: a server of one's own serves a volume one can write to. */
static int root_make(struct op *op, uint32_t volume)
{
	struct attr a = {
		.mode = ROOT_MODE,
		.uid = geteuid(),
		.gid = getegid(),
		.nlink = 2,
		.size = 4096,
		.parent = ROOT_INODE,
		.atime_ns = op->now_ns,
		.mtime_ns = op->now_ns,
		.ctime_ns = op->now_ns,
		.btime_ns = op->now_ns,
	};
	int r;

	op->volume = volume;
	r = inode_take_numbers(op, 1, &a.inode);
	return r < 0 ? r : inode_store(op, &a, NULL);
}

static int volume_answer(struct op *op, uint32_t id, Wire__VolumeReply *reply) { return volume_load(op, id, &reply->volume); }

int op_volume_create(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	Wire__Volume v = *(const Wire__Volume *)message, *there;
	int r = volume_name_check(op, v.name);

	if (v.block_size == 0)
		v.block_size = BLOCK_DEFAULT;
	if (r == 0)
		r = block_size_check(op, v.block_size);
	if (r == 0)
		r = settings_check(op, &v);
	if (r < 0)
		return r;
	r = volume_find(op, v.name, &there);
	if (r != -ENOENT)
		return r < 0 ? r : op_explain(op, -EEXIST, "there is a volume %s already", v.name);
	r = volume_next_id(op, &v.id);
	if (r < 0)
		return r;
	v.created_ns = op->now_ns;
	v.used_bytes = v.used_files = v.trash_bytes = v.trash_files = 0;
	r = volume_store(op, &v);
	if (r == 0)
		r = root_make(op, v.id);
	return r < 0 ? r : volume_answer(op, v.id, (Wire__VolumeReply *)reply);
}

static int volume_named(struct op *op, const char *name, Wire__Volume **out)
{
	int r = volume_find(op, name, out);

	return r == -ENOENT ? op_explain(op, -ENOENT, "there is no volume %.63s; epochfs volume list shows those there are", name)
			    : r;
}

static int setting_take(struct op *op, const char *field, const Wire__Volume *from, Wire__Volume *v)
{
	if (strcmp(field, "compression") == 0)
		v->compression = from->compression;
	else if (strcmp(field, "retention") == 0)
		v->retention_s = from->retention_s;
	else if (strcmp(field, "max_bytes") == 0)
		v->max_bytes = from->max_bytes;
	else if (strcmp(field, "max_files") == 0)
		v->max_files = from->max_files;
	else if (strcmp(field, "consistency") == 0)
		v->relaxed = from->relaxed;
	else if (strcmp(field, "block_size") == 0)
		return op_explain(op, -EINVAL, "the block size of a volume is fixed when it is created");
	else
		return op_explain(op, -EINVAL,
				  "a volume has no setting %.40s; there are compression, retention, max_bytes, max_files "
				  "and consistency",
				  field);
	return 0;
}

int op_volume_set(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	const Wire__VolumeSetRequest *request = (const Wire__VolumeSetRequest *)message;
	Wire__Volume *v;
	int r;

	if (!request->volume)
		return -EINVAL;
	r = volume_named(op, request->volume->name, &v);
	for (size_t i = 0; r == 0 && i < request->n_fields; i++)
		r = setting_take(op, request->fields[i], request->volume, v);
	if (r == 0)
		r = settings_check(op, v);
	if (r == 0)
		r = volume_store(op, v);
	return r < 0 ? r : volume_answer(op, v->id, (Wire__VolumeReply *)reply);
}

/* The session table itself is asked: the roster does not know what this batch has begun. */
static int sessions_check(struct op *op, const Wire__Volume *v)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	Wire__SessionBegin *s;
	int r = cursor_open(&c, op->view, TABLE_SESSION);

	if (r < 0)
		return r;
	for (r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c)) {
		if (op_unpack(op, &wire__session_begin__descriptor, c.value, &s) < 0)
			return op_damage(op, TABLE_SESSION, "a session cannot be read");
		if (s->volume == v->id)
			return op_explain(op, -EBUSY, "it is mounted on %.60s at %.80s; unmount it first",
					  s->host[0] ? s->host : "a client",
					  s->mount_point[0] ? s->mount_point : "an unknown place");
	}
	return r == -ENOENT ? 0 : r;
}

int op_volume_delete(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	Wire__Volume *v;
	int r = volume_named(op, ((const Wire__VolumeNameRequest *)message)->name, &v);

	if (r == 0)
		r = sessions_check(op, v);
	if (r < 0)
		return r;
	v->name = "";
	return volume_store(op, v);
}

int op_volume_show(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	return volume_named(op, ((const Wire__VolumeNameRequest *)message)->name, &((Wire__VolumeReply *)reply)->volume);
}

static int volumes_count(struct op *op, size_t *out)
{
	MDB_stat stat;
	int r = view_error(mdb_stat(op->view->txn, op->meta->tables[TABLE_VOLUME], &stat));

	if (r == 0)
		*out = stat.ms_entries;
	return r;
}

int op_volume_list(struct op *op, const ProtobufCMessage *message, ProtobufCMessage *reply)
{
	Wire__VolumeListReply *answer = (Wire__VolumeListReply *)reply;
	CLEANUP_CURSOR struct cursor c = { 0 };
	Wire__Volume *v;
	size_t count = 0;
	int r = volumes_count(op, &count);

	if (r == 0)
		r = cursor_open(&c, op->view, TABLE_VOLUME);
	if (r < 0)
		return r;
	answer->volumes = arena_take(op->arena, (count + 1) * sizeof(v));
	if (!answer->volumes)
		return -ENOMEM;
	for (r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c)) {
		r = volume_load(op, get_be32(c.key.data), &v);
		if (r < 0)
			return r;
		if (v->name[0])
			answer->volumes[answer->n_volumes++] = v;
	}
	return r == -ENOENT ? 0 : r;
}
