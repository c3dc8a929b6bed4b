#include "meta/stream.h"
#include <errno.h>
#include "meta/machine.h"
#include "meta/marks.h"
#include "meta/tail.h"

#define VALUE_DELETED UINT32_MAX
#define WRITE_SET_NUMBER 8u
#define INODE_KEY 8u
#define PAIR_KEY 16u /* of names and extents */

const enum table stream_tables[STREAM_TABLES] = { TABLE_INODE, TABLE_DENTRY, TABLE_EXTENT, TABLE_XATTR, TABLE_META };

int change_next(struct reader *in, struct change *out)
{
	uint8_t table;
	uint16_t key_size;
	uint32_t value_size;

	if (reader_left(in) == 0)
		return 0;
	table = take_le8(in);
	key_size = take_le16(in);
	value_size = take_le32(in);
	*out = (struct change){ .table = table, .deleted = value_size == VALUE_DELETED };
	if (in->bad || table >= TABLE_COUNT || key_size == 0 || key_size > VIEW_KEY_MAX)
		return -EBADMSG;
	out->key = (struct span){ take_bytes(in, key_size), key_size };
	if (!out->deleted)
		out->value = (struct span){ take_bytes(in, value_size), value_size };
	return in->bad ? -EBADMSG : 1;
}

void change_append(struct buf *out, const struct change *c)
{
	buf_le8(out, (uint8_t)c->table);
	buf_le16(out, (uint16_t)c->key.size);
	buf_le32(out, c->deleted ? VALUE_DELETED : (uint32_t)c->value.size);
	buf_append(out, c->key.data, c->key.size);
	if (!c->deleted)
		buf_append(out, c->value.data, c->value.size);
}

static bool key_fits(enum table t, size_t size)
{
	switch (t) {
	case TABLE_INODE: return size == INODE_KEY;
	case TABLE_DENTRY:
	case TABLE_EXTENT: return size == PAIR_KEY;
	case TABLE_XATTR: return size > INODE_KEY;
	case TABLE_META: return size == MARK_KEY;
	default: return false;
	}
}

/* Of all that is in META only marks are a volume's own. */
bool change_is_streamed(const struct change *c, uint32_t volume)
{
	const uint8_t *key = c->key.data;

	if (!key_fits(c->table, c->key.size) || (c->table == TABLE_META && *key++ != MARK_LETTER))
		return false;
	return get_be64(key) >> INODE_BITS == volume;
}

size_t stream_first(enum table t, uint32_t volume, uint8_t out[STREAM_FIRST])
{
	size_t at = 0;

	if (t == TABLE_META)
		out[at++] = MARK_LETTER;
	put_be64(out + at, inode_key(volume, 0));
	return at + INODE_KEY;
}

int stream_filter(const void *write_set, size_t size, uint32_t volume, struct buf *out)
{
	struct reader in;
	struct change c;
	int more;

	if (size < WRITE_SET_NUMBER)
		return -EBADMSG;
	in = reader_of((const uint8_t *)write_set + WRITE_SET_NUMBER, size - WRITE_SET_NUMBER);
	while ((more = change_next(&in, &c)) > 0)
		if (change_is_streamed(&c, volume))
			change_append(out, &c);
	return more < 0 ? more : out->failed ? -ENOMEM : 0;
}

static int view_batch(struct view *v, uint64_t *out)
{
	static const char key[] = "batch";
	struct span value;
	int r = view_get(v, TABLE_META, key, sizeof(key) - 1, &value);

	*out = 0;
	if (r == -ENOENT)
		return 0;
	if (r == 0 && value.size != 16)
		return -EBADMSG;
	if (r == 0)
		*out = get_le64(value.data);
	return r;
}

/* On the first of the volume's records after the key. */
static int range_begin(struct cursor *c, enum table t, uint32_t volume, const void *after, size_t after_size)
{
	uint8_t first[STREAM_FIRST];
	int r;

	if (after_size == 0)
		return cursor_seek(c, first, stream_first(t, volume, first));
	r = cursor_seek(c, after, after_size);
	if (r == 0 && c->key.size == after_size && memcmp(c->key.data, after, after_size) == 0)
		r = cursor_next(c);
	return r;
}

int stream_range(struct view *v, uint32_t volume, enum table t, const void *after, size_t after_size, size_t most,
		 struct buf *out, bool *end, uint64_t *batch)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	struct change record = { .table = t };
	int r = view_batch(v, batch);

	*end = false;
	if (r == 0)
		r = cursor_open(&c, v, t);
	if (r < 0)
		return r;
	for (r = range_begin(&c, t, volume, after, after_size); r == 0; r = cursor_next(&c)) {
		record.key = c.key;
		record.value = c.value;
		if (!change_is_streamed(&record, volume))
			break;
		change_append(out, &record);
		if (out->failed)
			return -ENOMEM;
		if (out->len >= most)
			return 0;
	}
	*end = true;
	return r == -ENOENT ? 0 : r;
}
