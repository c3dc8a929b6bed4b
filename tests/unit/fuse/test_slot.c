/* Slots: what the kernel puts in is decoded, whatever it is, and answers are put where the kernel looks. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "fuse/slot.h"

/* As the kernel does it. */
static void request_put(struct slot *s, uint32_t opcode, const void *fixed, size_t fixed_size, const void *payload, size_t size)
{
	struct fuse_in_header in = {
		.len = (uint32_t)(sizeof(in) + fixed_size + size),
		.opcode = opcode,
		.unique = 42,
		.nodeid = 7,
		.pid = 99,
	};

	memcpy(s->header->in_out, &in, sizeof(in));
	memcpy(s->header->op_in, fixed, fixed_size);
	memcpy(s->payload, payload, size);
	s->header->ring_ent_in_out.commit_id = 42;
	s->header->ring_ent_in_out.payload_sz = (uint32_t)size;
}

static void a_small_request_is_copied_out_of_its_slot(void **state)
{
	struct slot *s = slot_new(3);
	uint8_t copy[SLOT_COPY_BYTES];
	struct fuse_request q;
	bool copied = false;

	request_put(s, FUSE_LOOKUP, "", 0, "name", 5);
	assert_int_equal(slot_decode(s, copy, &q, &copied), 0);
	assert_true(copied);
	memset(s->payload, 'x', 16);
	assert_string_equal(q.name, "name");
	assert_int_equal(q.node, 7);
	assert_int_equal(q.pid, 99);
	assert_int_equal(q.unique, 42);
	assert_int_equal(slot_unique(s), 42);
	assert_int_equal(slot_opcode(s), FUSE_LOOKUP);
	slot_free(s);
}

static void the_data_of_a_large_write_stays_where_it_is(void **state)
{
	struct slot *s = slot_new(0);
	uint8_t copy[SLOT_COPY_BYTES];
	struct fuse_write_in in = { .offset = 4096, .size = FUSE_DATA_MAX };
	struct fuse_request q;
	bool copied = true;

	memset(s->payload, 'd', FUSE_DATA_MAX);
	request_put(s, FUSE_WRITE, &in, sizeof(in), s->payload, FUSE_DATA_MAX);
	assert_int_equal(slot_decode(s, copy, &q, &copied), 0);
	assert_false(copied);
	assert_ptr_equal(q.data, s->payload);
	assert_int_equal(q.data_size, FUSE_DATA_MAX);
	assert_int_equal(q.in.write.offset, 4096);
	slot_trim(s);
	assert_int_equal(s->payload[FUSE_DATA_MAX - 1], 'd');
	slot_answer_error(s, 0);
	slot_trim(s);
	assert_int_equal(s->payload[FUSE_DATA_MAX - 1], 0);
	slot_free(s);
}

static void lengths_that_do_not_fit_together_are_refused(void **state)
{
	static const struct {
		uint32_t len, payload;
	} wrong[] = { { 0, 0 },
		      { 39, 0 },
		      { 40, 1 },
		      { 45, 6 },
		      { 200, 10 },
		      { UINT32_MAX, 0 },
		      { UINT32_MAX, UINT32_MAX },
		      { 40 + FUSE_DATA_MAX + 1, FUSE_DATA_MAX + 1 } };
	struct slot *s = slot_new(0);
	uint8_t copy[SLOT_COPY_BYTES];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct fuse_request q;
		bool copied;

		request_put(s, FUSE_LOOKUP, "", 0, "name", 5);
		memcpy(s->header->in_out, &wrong[i].len, sizeof(wrong[i].len));
		s->header->ring_ent_in_out.payload_sz = wrong[i].payload;
		assert_int_equal(slot_decode(s, copy, &q, &copied), -EBADMSG);
		assert_int_equal(q.unique, 42);
	}
	slot_free(s);
}

static void an_answer_is_put_together_from_its_parts(void **state)
{
	struct slot *s = slot_new(0);
	struct fuse_out_header h = { .len = sizeof(h) + 6, .unique = 42 };
	struct iovec parts[] = { { &h, sizeof(h) }, { "abc", 3 }, { "def", 3 } };

	assert_int_equal(slot_answer(s, parts, 3), 0);
	assert_memory_equal(s->header->in_out, &h, sizeof(h));
	assert_memory_equal(s->payload, "abcdef", 6);
	assert_int_equal(s->header->ring_ent_in_out.payload_sz, 6);
	slot_free(s);
}

static void an_answer_that_is_too_large_leaves_the_slot_as_it_was(void **state)
{
	static uint8_t data[FUSE_DATA_MAX];
	struct slot *s = slot_new(0);
	struct fuse_out_header h = { .unique = 42 };
	struct iovec parts[] = { { &h, sizeof(h) }, { data, sizeof(data) }, { "x", 1 } };

	request_put(s, FUSE_LOOKUP, "", 0, "name", 5);
	assert_int_equal(slot_answer(s, parts, 3), -EMSGSIZE);
	assert_int_equal(slot_opcode(s), FUSE_LOOKUP);
	assert_int_equal(slot_answer(s, parts, 2), 0);
	slot_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_small_request_is_copied_out_of_its_slot),
		cmocka_unit_test(the_data_of_a_large_write_stays_where_it_is),
		cmocka_unit_test(lengths_that_do_not_fit_together_are_refused),
		cmocka_unit_test(an_answer_is_put_together_from_its_parts),
		cmocka_unit_test(an_answer_that_is_too_large_leaves_the_slot_as_it_was),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
