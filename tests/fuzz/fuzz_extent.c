/* Packed extents, chunk tables, object footers and keys. */
#include <errno.h>
#include <xxhash.h>
#include "block/extent.h"
#include "block/object.h"
#include "tests/fuzz/fuzz.h"

static void extents_try(const uint8_t *data, size_t size)
{
	struct reader r = reader_of(data, size);
	struct extent e, again;
	while (reader_left(&r) > 0) {
		int status = extent_unpack(&r, &e);
		REQUIRE(status == 0 || status == -EBADMSG);
		if (status)
			continue;
		CLEANUP_BUF struct buf b = { 0 };
		extent_pack(&b, &e);
		struct reader back = reader_of(b.data, b.len);
		REQUIRE(extent_unpack(&back, &again) == 0 && extent_equal(&e, &again) && reader_left(&back) == 0);
		REQUIRE(extent_end(&e) <= FILE_SIZE_MAX && e.skip + e.length <= e.raw_length);
	}
}

/* raw length le32, stored length le32, codec, table. */
static void table_try(const uint8_t *data, size_t size)
{
	struct reader r = reader_of(data, size);
	struct extent e = { .raw_length = take_le32(&r), .stored_length = take_le32(&r), .codec = take_le8(&r), .length = 1 };
	if (r.bad)
		return;
	size_t table = reader_left(&r);
	e.checksum = XXH3_64bits(r.p, table);
	CLEANUP_FREE uint32_t *offsets = malloc((extent_chunks(BLOCK_MAX) + 1) * sizeof *offsets);
	CLEANUP_FREE uint64_t *checksums = malloc(extent_chunks(BLOCK_MAX) * sizeof *checksums);
	if (extent_table_check(&e, r.p, table, offsets, checksums) != 0)
		return;
	uint32_t chunks = extent_chunks(e.raw_length);
	for (uint32_t i = 0; i < chunks; i++)
		REQUIRE(offsets[i] < offsets[i + 1] && offsets[i + 1] - offsets[i] <= CHUNK_BYTES);
	REQUIRE(offsets[chunks] + table == e.stored_length);
}

static void footer_try(const uint8_t *data, size_t size)
{
	uint8_t footer[OBJECT_FOOTER];
	if (size < OBJECT_FOOTER + 16)
		return;
	memcpy(footer, data, OBJECT_FOOTER);
	(void)object_footer_check(footer, get_le64(data + 32), get_le64(data + 40));
	put_le64(footer + 24, XXH3_64bits(footer, 24));
	if (object_footer_check(footer, get_le64(data + 32), get_le64(data + 40)) == 0)
		REQUIRE(get_le64(footer + 16) + OBJECT_FOOTER == get_le64(data + 40));
}

static void key_try(const uint8_t *data, size_t size)
{
	char key[64], again[OBJECT_KEY_TEXT];
	uint64_t object;
	size_t n = size < sizeof key - 1 ? size : sizeof key - 1;
	memcpy(key, data, n);
	key[n] = 0;
	if (object_key_parse(key, &object) == 0)
		REQUIRE(strcmp(object_key(again, object), key) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0] % 4) {
	case 0: extents_try(data + 1, size - 1); break;
	case 1: table_try(data + 1, size - 1); break;
	case 2: footer_try(data + 1, size - 1); break;
	case 3: key_try(data + 1, size - 1); break;
	}
	return 0;
}
