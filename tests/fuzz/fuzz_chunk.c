/* Stored chunks with a right checksum, as a broken or hostile writer could make
 * them; and raw bytes through every codec and back. */
#include <errno.h>
#include <xxhash.h>
#include "block/extent.h"
#include "tests/fuzz/fuzz.h"

static void chunk_try(enum codec codec, uint32_t raw_length, const uint8_t *stored, size_t size)
{
	CLEANUP_FREE uint8_t *raw = malloc(raw_length);
	int status = chunk_decode(codec, XXH3_64bits(stored, size), stored, (uint32_t)size, raw, raw_length);
	REQUIRE(status == 0 || status == -EBADMSG);
	if (status == 0) {
		uint64_t sum = XXH3_64bits(raw, raw_length); /* every byte was written */
		REQUIRE(sum == XXH3_64bits(raw, raw_length));
	}
}

static void back_and_forth(enum codec codec, int level, uint32_t repeat, const uint8_t *data, size_t size)
{
	CLEANUP_BUF struct buf raw = { 0 };
	CLEANUP_BUF struct buf out = { 0 };
	struct extent e = { 0 };
	for (uint32_t i = 0; i < repeat; i++)
		buf_append(&raw, data, size);
	if (raw.len == 0)
		return;
	REQUIRE(extent_encode(raw.data, (uint32_t)raw.len, codec, level, &out, &e) == 0);
	REQUIRE(extent_check(&e) == 0 && e.stored_length == out.len);
	CLEANUP_FREE uint8_t *again = malloc(raw.len);
	REQUIRE(extent_decode(&e, out.data, again) == 0);
	REQUIRE(memcmp(again, raw.data, raw.len) == 0);
	/* A whole stored form that is damaged somewhere is found out. */
	out.data[raw.len * 31 % out.len] ^= (uint8_t)(1 << (repeat & 7));
	REQUIRE(extent_decode(&e, out.data, again) == -EBADMSG);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct reader r = reader_of(data, size);
	uint8_t what = take_le8(&r);
	uint32_t length = take_le16(&r) + 1u;
	if (r.bad)
		return 0;
	if (what & 0x80)
		back_and_forth(what % 3, what / 3 % 4 + 1, length % 64, r.p, reader_left(&r));
	else
		chunk_try(what % 4, length, r.p, reader_left(&r));
	return 0;
}
