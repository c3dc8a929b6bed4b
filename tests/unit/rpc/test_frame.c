#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "base/bytes.h"
#include "rpc/frame.h"

static const struct frame sample = {
	.message_length = 300,
	.bulk_length = 70000,
	.op = 81,
	.flags = FRAME_REPLY,
	.status = 5,
	.id = 0x1122334455667788,
	.number = 42,
	.clock = 1234567890123456789,
};

static void a_header_comes_back_as_it_was_packed(void **state)
{
	uint8_t bytes[FRAME_HEADER];
	struct frame back;

	frame_pack(&sample, bytes);
	assert_int_equal(frame_unpack(bytes, &back), 0);
	assert_int_equal(back.message_length, 300);
	assert_int_equal(back.bulk_length, 70000);
	assert_int_equal(back.op, 81);
	assert_int_equal(back.flags, FRAME_REPLY);
	assert_int_equal(back.status, 5);
	assert_true(back.id == sample.id && back.number == 42 && back.clock == sample.clock);
}

static void the_bytes_are_where_the_header_file_says(void **state)
{
	uint8_t bytes[FRAME_HEADER];

	frame_pack(&sample, bytes);
	assert_int_equal(get_le32(bytes), 300);
	assert_int_equal(get_le32(bytes + 4), 70000);
	assert_int_equal(get_le16(bytes + 8), 81);
	assert_int_equal(get_le16(bytes + 10), 1);
	assert_int_equal(get_le32(bytes + 12), 5);
	assert_true(get_le64(bytes + 16) == sample.id);
	assert_int_equal(get_le64(bytes + 24), 42);
	assert_true(get_le64(bytes + 32) == sample.clock);
}

static void lengths_at_the_bound_pass_and_one_more_does_not(void **state)
{
	struct frame f = sample, back;
	uint8_t bytes[FRAME_HEADER];

	f.message_length = FRAME_MESSAGE_MAX;
	f.bulk_length = FRAME_BULK_MAX;
	frame_pack(&f, bytes);
	assert_int_equal(frame_unpack(bytes, &back), 0);
	f.message_length++;
	frame_pack(&f, bytes);
	assert_int_equal(frame_unpack(bytes, &back), -EBADMSG);
	f.message_length = 0;
	f.bulk_length++;
	frame_pack(&f, bytes);
	assert_int_equal(frame_unpack(bytes, &back), -EBADMSG);
}

static void unknown_flags_and_impossible_errors_are_refused(void **state)
{
	struct frame f = sample, back = { .op = 7 };
	uint8_t bytes[FRAME_HEADER];

	f.flags = 2;
	frame_pack(&f, bytes);
	assert_int_equal(frame_unpack(bytes, &back), -EBADMSG);
	f = sample;
	f.status = 4096;
	frame_pack(&f, bytes);
	assert_int_equal(frame_unpack(bytes, &back), -EBADMSG);
	f = sample;
	f.flags = 0; /* a request with an error in it */
	frame_pack(&f, bytes);
	assert_int_equal(frame_unpack(bytes, &back), -EBADMSG);
	assert_int_equal(back.op, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_header_comes_back_as_it_was_packed),
		cmocka_unit_test(the_bytes_are_where_the_header_file_says),
		cmocka_unit_test(lengths_at_the_bound_pass_and_one_more_does_not),
		cmocka_unit_test(unknown_flags_and_impossible_errors_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
