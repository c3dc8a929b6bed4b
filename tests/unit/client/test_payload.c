#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "block/object.h"
#include "client/payload.h"

#define OBJECT 77u
#define BYTES (1u << 20)

static uint8_t *bytes_make(void)
{
	uint8_t *bytes = malloc(BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)(i * 31 + i / 777);
	return bytes;
}

/* The object's bytes in one piece. */
static void join(struct payload *p, struct buf *out)
{
	const struct iovec *parts;
	size_t count;
	assert_int_equal(payload_finish(p, OBJECT, &parts, &count), 0);
	buf_clear(out);
	for (size_t k = 0; k < count; k++)
		buf_append(out, parts[k].iov_base, parts[k].iov_len);
	assert_int_equal(out->len, p->bytes);
	assert_int_equal(object_footer_check(out->data + out->len - OBJECT_FOOTER, OBJECT, out->len), 0);
}

static void an_object_of_many_runs_holds_each_where_its_extent_says(void **state)
{
	static const struct {
		uint32_t from, length, step;
	} runs[] = { { 0, 10, 10 },       { 5, 3000, 100 }, { 0, BYTES, 1u << 18 },
		     { 9, 70000, 30000 }, { 1, 1, 1 },      { 77, 500000, 500000 } };
	static const enum codec codecs[] = { CODEC_NONE, CODEC_LZ4, CODEC_ZSTD };
	CLEANUP_FREE uint8_t *bytes = bytes_make(), *raw = malloc(BYTES);
	CLEANUP_BUF struct buf object = { 0 };
	struct payload p = { 0 };
	for (int c = 0; c < 3; c++) {
		struct extent extents[6] = { 0 };
		payload_clear(&p);
		for (int k = 0; k < 6; k++) {
			struct iovec parts[32];
			size_t count = 0;
			for (uint32_t at = 0; at < runs[k].length; at += runs[k].step) {
				uint32_t left = runs[k].length - at;
				parts[count++] = (struct iovec){ bytes + runs[k].from + at,
								 left < runs[k].step ? left : runs[k].step };
			}
			assert_int_equal(payload_add(&p, parts, count, codecs[c], 3, &extents[k]), 0);
			assert_int_equal(extents[k].length, runs[k].length);
		}
		join(&p, &object);
		for (int k = 0; k < 6; k++) {
			assert_int_equal(extent_decode(&extents[k], object.data + extents[k].object_offset, raw), 0);
			assert_memory_equal(raw, bytes + runs[k].from, runs[k].length);
		}
	}
	payload_free(&p);
}

static void large_raw_bytes_stay_where_they_are_and_small_ones_are_gathered(void **state)
{
	CLEANUP_FREE uint8_t *bytes = bytes_make();
	struct iovec halves[] = { { bytes, BYTES / 2 }, { bytes + BYTES / 2, BYTES / 2 } };
	const struct iovec *parts;
	struct payload p = { 0 };
	struct extent e = { 0 };
	size_t count;
	assert_int_equal(payload_add(&p, halves, 2, CODEC_NONE, 0, &e), 0);
	assert_int_equal(payload_finish(&p, OBJECT, &parts, &count), 0);
	assert_int_equal(count, 3); /* the halves; table and footer */
	assert_ptr_equal(parts[0].iov_base, bytes);
	assert_ptr_equal(parts[1].iov_base, bytes + BYTES / 2);
	payload_clear(&p);
	for (int k = 0; k < 100; k++)
		assert_int_equal(payload_add(&p, &(struct iovec){ bytes + k, 100 }, 1, CODEC_NONE, 0, &e), 0);
	assert_int_equal(payload_finish(&p, OBJECT, &parts, &count), 0);
	assert_int_equal(count, 1);
	payload_free(&p);
}

static void what_will_not_shrink_stays_where_it_is_though_the_volume_compresses(void **state)
{
	CLEANUP_FREE uint8_t *bytes = malloc(BYTES);
	const struct iovec *parts;
	struct payload p = { 0 };
	struct extent e = { 0 };
	uint64_t random = 1;
	size_t count;
	for (uint32_t i = 0; i < BYTES; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		bytes[i] = (uint8_t)(random >> 56);
	}
	assert_int_equal(payload_add(&p, &(struct iovec){ bytes, BYTES }, 1, CODEC_ZSTD, 19, &e), 0);
	assert_int_equal(e.codec, CODEC_NONE);
	assert_int_equal(payload_finish(&p, OBJECT, &parts, &count), 0);
	assert_int_equal(count, 2); /* the data; table and footer */
	assert_ptr_equal(parts[0].iov_base, bytes);
	payload_free(&p);
}

static void nothing_and_too_much_are_refused(void **state)
{
	struct payload p = { 0 };
	struct extent e = { 0 };
	assert_int_equal(payload_add(&p, &(struct iovec){ "", 0 }, 1, CODEC_NONE, 0, &e), -EINVAL);
	assert_int_equal(payload_add(&p, &(struct iovec){ "", BLOCK_MAX + 1ul }, 1, CODEC_NONE, 0, &e), -EINVAL);
	assert_int_equal(p.bytes, 0);
	payload_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_object_of_many_runs_holds_each_where_its_extent_says),
		cmocka_unit_test(large_raw_bytes_stay_where_they_are_and_small_ones_are_gathered),
		cmocka_unit_test(what_will_not_shrink_stays_where_it_is_though_the_volume_compresses),
		cmocka_unit_test(nothing_and_too_much_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
