#include "block/extent.h"
#include <errno.h>
#include <stdlib.h>
#include "block/object.h"

void extent_value_pack(const struct extent *e, uint8_t out[EXTENT_VALUE])
{
	put_le32(out, e->length);
	put_le32(out + 4, e->skip);
	put_le32(out + 8, e->raw_length);
	put_le32(out + 12, e->stored_length);
	put_le32(out + 16, e->object_offset);
	out[20] = e->codec;
	put_le64(out + 21, e->object);
	put_le64(out + 29, e->checksum);
}

int extent_value_unpack(uint64_t file_offset, const void *value, size_t size, struct extent *out)
{
	const uint8_t *p = value;
	if (size != EXTENT_VALUE)
		return -EBADMSG;
	struct extent e = {
		.offset = file_offset,
		.length = get_le32(p),
		.skip = get_le32(p + 4),
		.raw_length = get_le32(p + 8),
		.stored_length = get_le32(p + 12),
		.object_offset = get_le32(p + 16),
		.codec = p[20],
		.object = get_le64(p + 21),
		.checksum = get_le64(p + 29),
	};
	int error = extent_check(&e);
	if (!error)
		*out = e;
	return error;
}

void extent_pack(struct buf *out, const struct extent *e)
{
	uint8_t *at = buf_extend(out, EXTENT_PACKED);
	if (!at)
		return;
	put_le64(at, e->offset);
	extent_value_pack(e, at + 8);
}

int extent_unpack(struct reader *in, struct extent *out)
{
	const uint8_t *p = take_bytes(in, EXTENT_PACKED);
	return p ? extent_value_unpack(get_le64(p), p + 8, EXTENT_VALUE, out) : -EBADMSG;
}

/* A chunk is at least one byte and never longer than its raw form. */
static bool stored_length_possible(const struct extent *e)
{
	uint64_t table = extent_table_bytes(e->raw_length), most = e->raw_length + table;
	if (e->codec == CODEC_NONE)
		return e->stored_length == most;
	return e->stored_length >= extent_chunks(e->raw_length) + table && e->stored_length <= most;
}

int extent_check(const struct extent *e)
{
	if (e->codec > CODEC_ZSTD || e->raw_length == 0 || e->raw_length > BLOCK_MAX || e->length == 0)
		return -EBADMSG;
	if ((uint64_t)e->skip + e->length > e->raw_length)
		return -EBADMSG;
	if (e->offset > FILE_SIZE_MAX - e->length)
		return -EBADMSG;
	if (!stored_length_possible(e))
		return -EBADMSG;
	if ((uint64_t)e->object_offset + e->stored_length > OBJECT_SIZE_MAX - OBJECT_FOOTER)
		return -EBADMSG;
	return 0;
}

bool extent_equal(const struct extent *a, const struct extent *b)
{
	return a->offset == b->offset && a->length == b->length && a->skip == b->skip && a->raw_length == b->raw_length &&
	       a->stored_length == b->stored_length && a->object_offset == b->object_offset && a->object == b->object &&
	       a->checksum == b->checksum && a->codec == b->codec;
}

int codec_parse(const char *text, enum codec *codec, int *level)
{
	static const struct {
		const char *name;
		enum codec codec;
	} names[] = { { "none", CODEC_NONE }, { "lz4", CODEC_LZ4 }, { "zstd", CODEC_ZSTD } };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(text, names[i].name) == 0) {
			*codec = names[i].codec;
			*level = names[i].codec == CODEC_ZSTD ? 3 : 0;
			return 0;
		}
	if (strncmp(text, "zstd:", 5) != 0 || text[5] < '1' || text[5] > '9')
		return -EINVAL;
	char *end;
	long n = strtol(text + 5, &end, 10);
	if (*end || n > 19)
		return -EINVAL;
	*codec = CODEC_ZSTD;
	*level = (int)n;
	return 0;
}
