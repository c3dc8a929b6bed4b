#include "block/extent.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include "base/cleanup.h"
#include "block/object.h"

static struct extent good_extent(void)
{
	return (struct extent){ .offset = 4096,
				.length = 1000,
				.skip = 24,
				.raw_length = 200000,
				.stored_length = 200000 + 4 * 12,
				.object_offset = 77,
				.object = 1234,
				.checksum = 0x1122334455667788,
				.codec = CODEC_NONE };
}

/* Text-like bytes that compress, or noise that does not. */
static uint8_t *bytes_make(uint32_t length, bool noise)
{
	uint8_t *p = malloc(length);
	uint64_t state = 88172645463325252ULL;
	for (uint32_t i = 0; i < length; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		p[i] = noise ? (uint8_t)state : (uint8_t)(i / 100 % 50 + (state & 1));
	}
	return p;
}

static void a_packed_extent_unpacks_to_the_same(void **state)
{
	CLEANUP_BUF struct buf b = { 0 };
	struct extent in = good_extent(), out;
	extent_pack(&b, &in);
	assert_int_equal(b.len, EXTENT_PACKED);
	struct reader r = reader_of(b.data, b.len);
	assert_int_equal(extent_unpack(&r, &out), 0);
	assert_true(extent_equal(&in, &out));
	assert_int_equal(extent_end(&out), 5096);
	assert_int_equal(extent_unpack(&r, &out), -EBADMSG);
}

static void the_packed_bytes_are_as_documented(void **state)
{
	static const uint8_t expected[EXTENT_PACKED] = {
		0, 16, 0, 0, 0, 0, 0,    0, 0xe8, 3, 0, 0, 24, 0, 0,    0,    0x40, 0x0d, 3,    0,    0x70, 0x0d, 3,
		0, 77, 0, 0, 0, 0, 0xd2, 4, 0,    0, 0, 0, 0,  0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
	};
	CLEANUP_BUF struct buf b = { 0 };
	struct extent e = good_extent();
	extent_pack(&b, &e);
	assert_memory_equal(b.data, expected, EXTENT_PACKED);
}

static void a_value_of_the_wrong_size_is_refused(void **state)
{
	uint8_t value[EXTENT_VALUE + 1] = { 0 };
	struct extent e = good_extent(), out = { .length = 42 };
	extent_value_pack(&e, value);
	assert_int_equal(extent_value_unpack(0, value, EXTENT_VALUE - 1, &out), -EBADMSG);
	assert_int_equal(extent_value_unpack(0, value, EXTENT_VALUE + 1, &out), -EBADMSG);
	assert_int_equal(out.length, 42);
	assert_int_equal(extent_value_unpack(0, value, EXTENT_VALUE, &out), 0);
}

#define REFUSED(change) \
	do { \
		struct extent e = good_extent(); \
		assert_int_equal(extent_check(&e), 0); \
		e.change; \
		assert_int_equal(extent_check(&e), -EBADMSG); \
	} while (0)

static void an_extent_that_contradicts_itself_is_refused(void **state)
{
	REFUSED(length = 0);
	REFUSED(raw_length = 0);
	REFUSED(raw_length = BLOCK_MAX + 1);
	REFUSED(raw_length = UINT32_MAX);
	REFUSED(skip = 200000);
	REFUSED(skip = UINT32_MAX);
	REFUSED(length = 200000);
	REFUSED(length = UINT32_MAX);
	REFUSED(stored_length = 0);
	REFUSED(stored_length -= 1);
	REFUSED(stored_length += 1);
	REFUSED(object_offset = OBJECT_SIZE_MAX - OBJECT_FOOTER - 200047);
	REFUSED(object_offset = UINT32_MAX);
	REFUSED(offset = FILE_SIZE_MAX - 999);
	REFUSED(offset = UINT64_MAX);
	REFUSED(codec = 3);
}

static void the_extremes_that_make_sense_are_taken(void **state)
{
	struct extent e = good_extent();
	e.offset = FILE_SIZE_MAX - 1000;
	e.object_offset = OBJECT_SIZE_MAX - OBJECT_FOOTER - 200048;
	assert_int_equal(extent_check(&e), 0);
	e.codec = CODEC_LZ4;
	e.stored_length = 4 + 4 * 12;
	assert_int_equal(extent_check(&e), 0);
	e.stored_length--;
	assert_int_equal(extent_check(&e), -EBADMSG);
	e = (struct extent){ .length = BLOCK_MAX, .raw_length = BLOCK_MAX, .stored_length = BLOCK_MAX + 1024 * 12 };
	assert_int_equal(extent_check(&e), 0);
}

static void compression_is_named_as_people_type_it(void **state)
{
	static const char *const wrong[] = { "",        "lz",      "lz4:1",   "zstd:", "zstd:0",  "zstd:20",
					     "zstd:+3", "zstd:3 ", "zstd:-1", "ZSTD",  "zstd: 3", "zstd:99999999999999999999",
					     "none:1" };
	enum codec codec = 77;
	int level = 77;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_int_equal(codec_parse(wrong[i], &codec, &level), -EINVAL);
	assert_int_equal(codec, 77);
	assert_int_equal(level, 77);
	assert_int_equal(codec_parse("none", &codec, &level), 0);
	assert_int_equal(codec, CODEC_NONE);
	assert_int_equal(codec_parse("lz4", &codec, &level), 0);
	assert_int_equal(codec, CODEC_LZ4);
	assert_int_equal(codec_parse("zstd", &codec, &level), 0);
	assert_int_equal(codec, CODEC_ZSTD);
	assert_int_equal(level, 3);
	assert_int_equal(codec_parse("zstd:19", &codec, &level), 0);
	assert_int_equal(level, 19);
}

static void there_and_back(const uint8_t *raw, uint32_t length, enum codec codec, int level)
{
	CLEANUP_BUF struct buf out = { 0 };
	struct extent e = { .offset = 5, .object = 9 };
	buf_append(&out, "before", 6);
	assert_int_equal(extent_encode(raw, length, codec, level, &out, &e), 0);
	assert_int_equal(e.object_offset, 6);
	assert_int_equal(e.length, length);
	assert_int_equal(e.skip, 0);
	assert_int_equal(out.len, 6 + e.stored_length);
	assert_int_equal(extent_check(&e), 0);
	assert_int_equal(e.offset, 5);
	/* An exact copy, so that a read past its end is noticed by ASan. */
	CLEANUP_FREE uint8_t *stored = malloc(e.stored_length);
	CLEANUP_FREE uint8_t *back = malloc(length);
	memcpy(stored, out.data + 6, e.stored_length);
	assert_int_equal(extent_decode(&e, stored, back), 0);
	assert_memory_equal(raw, back, length);
}

static void every_codec_gives_back_what_it_got_at_every_edge(void **state)
{
	static const uint32_t lengths[] = { 1, 2, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 300001 };
	for (int noise = 0; noise < 2; noise++) {
		CLEANUP_FREE uint8_t *raw = bytes_make(300001, noise);
		for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
			there_and_back(raw, lengths[i], CODEC_NONE, 0);
			there_and_back(raw, lengths[i], CODEC_LZ4, 0);
			there_and_back(raw, lengths[i], CODEC_ZSTD, 1);
			there_and_back(raw, lengths[i], CODEC_ZSTD, 9);
		}
	}
}

static void what_does_not_shrink_is_kept_raw(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	CLEANUP_FREE uint8_t *noise = bytes_make(150000, true);
	struct extent e;
	assert_int_equal(extent_encode(noise, 150000, CODEC_ZSTD, 3, &out, &e), 0);
	assert_int_equal(e.codec, CODEC_NONE);
	assert_int_equal(e.stored_length, 150000 + 3 * CHUNK_ENTRY);
	assert_memory_equal(out.data, noise, 150000);

	/* One chunk that shrinks among others that do not: the codec stays, theirs are raw. */
	memset(noise + CHUNK_BYTES, 7, CHUNK_BYTES);
	buf_clear(&out);
	assert_int_equal(extent_encode(noise, 150000, CODEC_LZ4, 0, &out, &e), 0);
	assert_int_equal(e.codec, CODEC_LZ4);
	assert_true(e.stored_length < 90000);
	assert_memory_equal(out.data, noise, CHUNK_BYTES);
}

static bool may_shrink(const uint8_t *raw, uint32_t length, uint32_t part, enum codec codec)
{
	struct iovec parts[64];
	size_t count = 0;
	for (uint32_t at = 0; at < length; at += part)
		parts[count++] = (struct iovec){ (void *)(raw + at), length - at < part ? length - at : part };
	return extent_may_shrink(parts, count, codec);
}

static void a_look_tells_what_will_not_shrink(void **state)
{
	enum { LENGTH = 4 << 20, PART = 100001 };
	CLEANUP_FREE uint8_t *bytes = bytes_make(LENGTH, true);
	for (enum codec codec = CODEC_LZ4; codec <= CODEC_ZSTD; codec++) {
		assert_false(may_shrink(bytes, LENGTH, LENGTH, codec));
		assert_false(may_shrink(bytes, LENGTH, PART, codec));
		assert_false(may_shrink(bytes, 115000 * 2, 115000 * 2, codec));
	}
	assert_false(may_shrink(bytes, LENGTH, LENGTH, CODEC_NONE));
	/* Too little to look at a part of it, or in pieces that are. */
	assert_true(may_shrink(bytes, CHUNK_BYTES, CHUNK_BYTES, CODEC_LZ4));
	assert_true(may_shrink(bytes, 2 * CHUNK_BYTES, 4000, CODEC_LZ4));

	/* An eighth of it does, wherever that is. */
	for (uint32_t at = 0; at + LENGTH / 8 <= LENGTH; at += 200000) {
		CLEANUP_FREE uint8_t *mixed = bytes_make(LENGTH, true);
		memset(mixed + at, 7, LENGTH / 8);
		assert_true(may_shrink(mixed, LENGTH, LENGTH, CODEC_LZ4));
		assert_true(may_shrink(mixed, LENGTH, PART, CODEC_ZSTD));
	}
	/* Nothing in it comes twice, but some bytes are more frequent, as in weights of a model. */
	for (uint32_t i = 0; i < LENGTH; i += 2)
		bytes[i] &= 0x0f;
	assert_true(may_shrink(bytes, LENGTH, PART, CODEC_ZSTD));
}

static void describing_raw_bytes_in_parts_is_encoding_them(void **state)
{
	static const uint32_t lengths[] = { 1, 65535, 65536, 65537, 200000, 1u << 20, (1u << 20) + 3 };
	static const uint32_t steps[] = { 1000, 65536, 65537, 300000, 1u << 22 };
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		CLEANUP_FREE uint8_t *raw = bytes_make(lengths[i], true);
		for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
			CLEANUP_BUF struct buf encoded = { 0 }, table = { 0 };
			struct extent e = { 0 }, d = { 0 };
			struct iovec parts[1100];
			size_t count = 0;
			for (uint32_t at = 0; at < lengths[i]; at += steps[k]) {
				uint32_t left = lengths[i] - at;
				parts[count++] = (struct iovec){ raw + at, left < steps[k] ? left : steps[k] };
				if (count == 1)
					parts[count++] = (struct iovec){ raw, 0 };
			}
			assert_int_equal(extent_encode(raw, lengths[i], CODEC_NONE, 0, &encoded, &e), 0);
			assert_int_equal(extent_describe(parts, count, &table, &d), 0);
			assert_true(extent_equal(&e, &d));
			assert_int_equal(encoded.len, lengths[i] + table.len);
			assert_memory_equal(encoded.data + lengths[i], table.data, table.len);
		}
	}
	struct extent none;
	struct buf out = { 0 };
	assert_int_equal(extent_describe(&(struct iovec){ "", 0 }, 1, &out, &none), -EINVAL);
}

static void lengths_out_of_range_are_not_encoded(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	struct extent e;
	uint8_t raw[1] = { 0 };
	assert_int_equal(extent_encode(raw, 0, CODEC_NONE, 0, &out, &e), -EINVAL);
	assert_int_equal(extent_encode(raw, BLOCK_MAX + 1, CODEC_NONE, 0, &out, &e), -EINVAL);
	assert_int_equal(extent_encode(raw, UINT32_MAX, CODEC_NONE, 0, &out, &e), -EINVAL);
	assert_int_equal(out.len, 0);
}

static void a_flipped_bit_anywhere_is_found(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	CLEANUP_FREE uint8_t *raw = bytes_make(140000, false);
	CLEANUP_FREE uint8_t *back = malloc(140000);
	for (enum codec codec = CODEC_NONE; codec <= CODEC_ZSTD; codec++) {
		struct extent e = { 0 };
		buf_clear(&out);
		assert_int_equal(extent_encode(raw, 140000, codec, 3, &out, &e), 0);
		uint32_t step = e.stored_length / 300 + 1;
		for (uint32_t i = 0; i < e.stored_length; i += i + 40 < e.stored_length ? step : 1) {
			out.data[i] ^= 0x10;
			assert_int_equal(extent_decode(&e, out.data, back), -EBADMSG);
			out.data[i] ^= 0x10;
		}
		assert_int_equal(extent_decode(&e, out.data, back), 0);
	}
}

static void one_chunk_of_many_can_be_read_alone(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	CLEANUP_FREE uint8_t *raw = bytes_make(300001, false);
	uint32_t offsets[6];
	uint64_t checksums[5];
	uint8_t chunk[CHUNK_BYTES];
	struct extent e = { 0 };
	assert_int_equal(extent_encode(raw, 300001, CODEC_ZSTD, 3, &out, &e), 0);
	uint32_t table = extent_table_bytes(e.raw_length);
	assert_int_equal(table, 5 * CHUNK_ENTRY);
	assert_int_equal(extent_table_check(&e, out.data + e.stored_length - table, table, offsets, checksums), 0);
	assert_int_equal(offsets[5], e.stored_length - table);
	assert_int_equal(chunk_decode(e.codec, checksums[3], out.data + offsets[3], offsets[4] - offsets[3], chunk, CHUNK_BYTES),
			 0);
	assert_memory_equal(chunk, raw + 3 * CHUNK_BYTES, CHUNK_BYTES);
	uint32_t last = 300001 - 4 * CHUNK_BYTES;
	assert_int_equal(chunk_decode(e.codec, checksums[4], out.data + offsets[4], offsets[5] - offsets[4], chunk, last), 0);
	assert_memory_equal(chunk, raw + 4 * CHUNK_BYTES, last);
}

static void a_raw_chunk_is_checked_in_place(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	struct extent e = { 0 };
	assert_int_equal(extent_encode("in place", 8, CODEC_NONE, 0, &out, &e), 0);
	assert_int_equal(chunk_decode(CODEC_NONE, e.checksum, out.data, 8, out.data, 8), 0);
	assert_int_equal(chunk_decode(CODEC_NONE, e.checksum + 1, out.data, 8, out.data, 8), -EBADMSG);
}

static void a_chunk_with_impossible_lengths_is_refused(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	struct extent e = { 0 };
	uint8_t raw[100] = { 0 };
	assert_int_equal(extent_encode(raw, 100, CODEC_LZ4, 0, &out, &e), 0);
	assert_int_equal(e.codec, CODEC_LZ4);
	assert_int_equal(chunk_decode(CODEC_LZ4, e.checksum, out.data, e.stored_length, raw, 99), -EBADMSG);
	assert_int_equal(chunk_decode(CODEC_ZSTD, e.checksum, out.data, e.stored_length, raw, 100), -EBADMSG);
	assert_int_equal(chunk_decode(CODEC_NONE, e.checksum, out.data, e.stored_length, raw, 100), -EBADMSG);
	assert_int_equal(chunk_decode(CODEC_LZ4, e.checksum, out.data, 0, raw, 100), -EBADMSG);
	assert_int_equal(chunk_decode(CODEC_LZ4, e.checksum, out.data, 101, raw, 100), -EBADMSG);
	assert_int_equal(chunk_decode(CODEC_LZ4, e.checksum, out.data, e.stored_length, raw, CHUNK_BYTES + 1), -EBADMSG);
	assert_int_equal(chunk_decode(CODEC_LZ4, e.checksum, out.data, e.stored_length, raw, 100), 0);
}

static void a_table_that_lies_with_a_good_checksum_is_refused(void **state)
{
	CLEANUP_BUF struct buf out = { 0 };
	CLEANUP_FREE uint8_t *raw = bytes_make(140000, true);
	uint32_t offsets[4];
	uint64_t checksums[3];
	struct extent e = { 0 };
	assert_int_equal(extent_encode(raw, 140000, CODEC_NONE, 0, &out, &e), 0);
	uint8_t *table = out.data + 140000;
	assert_int_equal(extent_table_check(&e, table, 36, offsets, checksums), 0);
	assert_int_equal(extent_table_check(&e, table, 35, offsets, checksums), -EBADMSG);
	assert_int_equal(extent_table_check(&e, table, 24, offsets, checksums), -EBADMSG);
	/* Lengths shifted between two chunks leave the sum as it was. */
	struct extent liar = e;
	CLEANUP_BUF struct buf forged = { 0 };
	uint8_t lie[36];
	memcpy(lie, table, 36);
	put_le32(lie, CHUNK_BYTES - 1);
	put_le32(lie + 12, CHUNK_BYTES + 1);
	assert_int_equal(extent_encode(lie, 36, CODEC_NONE, 0, &forged, &liar), 0); /* only for its checksum */
	struct extent with_lie = e;
	with_lie.checksum = liar.checksum;
	assert_int_equal(extent_table_check(&with_lie, lie, 36, offsets, checksums), -EBADMSG);
	with_lie.codec = CODEC_LZ4;
	assert_int_equal(extent_table_check(&with_lie, lie, 36, offsets, checksums), -EBADMSG);
}

static void *encode_and_decode(void *raw)
{
	for (int i = 0; i < 20; i++)
		there_and_back(raw, 140000, i % 2 ? CODEC_ZSTD : CODEC_LZ4, 3);
	return NULL;
}

static void threads_encode_side_by_side(void **state)
{
	CLEANUP_FREE uint8_t *raw = bytes_make(140000, false);
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, encode_and_decode, raw), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

static void a_footer_knows_its_object(void **state)
{
	uint8_t footer[OBJECT_FOOTER];
	object_footer_make(1234, 5000, footer);
	assert_memory_equal(footer, "EPOCHFS1", 8);
	assert_int_equal(object_footer_check(footer, 1234, 5000 + OBJECT_FOOTER), 0);
	assert_int_equal(object_footer_check(footer, 1235, 5000 + OBJECT_FOOTER), -EBADMSG);
	assert_int_equal(object_footer_check(footer, 1234, 5001 + OBJECT_FOOTER), -EBADMSG);
	assert_int_equal(object_footer_check(footer, 1234, 5000), -EBADMSG);
	assert_int_equal(object_footer_check(footer, 1234, 0), -EBADMSG);
	assert_int_equal(object_footer_check(footer, 1234, OBJECT_FOOTER), -EBADMSG);
	for (unsigned i = 0; i < OBJECT_FOOTER; i++) {
		footer[i] ^= 1;
		assert_int_equal(object_footer_check(footer, 1234, 5000 + OBJECT_FOOTER), -EBADMSG);
		footer[i] ^= 1;
	}
}

static void keys_name_objects_and_nothing_else(void **state)
{
	static const char *const wrong[] = { "",
					     "o",
					     "o/00/00/",
					     "o/00/00/000000000000000",
					     "o/00/00/00000000000000000",
					     "o/00/01/0000000000000000",
					     "p/00/00/0000000000000000",
					     "o/00/00/000000000000000g",
					     "o/00/00/00000000000000A0",
					     "o-00/00/0000000000000000",
					     "store-id" };
	static const uint64_t ids[] = { 0, 1, 255, 256, 0x123456, 0xfedcba9876543210, UINT64_MAX };
	char key[OBJECT_KEY_TEXT];
	uint64_t id = 7;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_int_equal(object_key_parse(wrong[i], &id), -EINVAL);
	assert_int_equal(id, 7);
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		assert_int_equal(object_key_parse(object_key(key, ids[i]), &id), 0);
		assert_true(id == ids[i]);
	}
	assert_string_equal(object_key(key, 0x5123456), "o/12/34/0000000005123456");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_packed_extent_unpacks_to_the_same),
		cmocka_unit_test(the_packed_bytes_are_as_documented),
		cmocka_unit_test(a_value_of_the_wrong_size_is_refused),
		cmocka_unit_test(an_extent_that_contradicts_itself_is_refused),
		cmocka_unit_test(the_extremes_that_make_sense_are_taken),
		cmocka_unit_test(compression_is_named_as_people_type_it),
		cmocka_unit_test(every_codec_gives_back_what_it_got_at_every_edge),
		cmocka_unit_test(what_does_not_shrink_is_kept_raw),
		cmocka_unit_test(a_look_tells_what_will_not_shrink),
		cmocka_unit_test(describing_raw_bytes_in_parts_is_encoding_them),
		cmocka_unit_test(lengths_out_of_range_are_not_encoded),
		cmocka_unit_test(a_flipped_bit_anywhere_is_found),
		cmocka_unit_test(one_chunk_of_many_can_be_read_alone),
		cmocka_unit_test(a_raw_chunk_is_checked_in_place),
		cmocka_unit_test(a_chunk_with_impossible_lengths_is_refused),
		cmocka_unit_test(a_table_that_lies_with_a_good_checksum_is_refused),
		cmocka_unit_test(threads_encode_side_by_side),
		cmocka_unit_test(a_footer_knows_its_object),
		cmocka_unit_test(keys_name_objects_and_nothing_else),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
