/* The decoder of requests: what is well-formed comes through, what is not is refused
 * without reading past its end (run with AddressSanitizer, where every input is a heap
 * block of exactly its size). */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/bytes.h"
#include "fuse/request.h"

static struct fuse_in_header header_of(uint32_t opcode)
{
	return (struct fuse_in_header){ .opcode = opcode, .unique = 42, .nodeid = 7, .uid = 1000, .gid = 100, .pid = 4321 };
}

static void begin(struct buf *b, uint32_t opcode)
{
	struct fuse_in_header h = header_of(opcode);

	buf_clear(b);
	buf_append(b, &h, sizeof(h));
}

/* Decodes a copy in a block of its own; the copy is kept until the next call. */
static int decode(struct buf *b, struct fuse_request *q)
{
	static void *kept;
	uint32_t length = (uint32_t)b->len;

	if (b->len >= sizeof(length))
		memcpy(b->data, &length, sizeof(length));
	free(kept);
	kept = malloc(b->len ? b->len : 1);
	if (b->len)
		memcpy(kept, b->data, b->len);
	return fuse_request_decode(kept, b->len, q);
}

static void a_lookup_has_its_name_and_who_asks(void **state)
{
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_LOOKUP);
	buf_append(&b, "file", 5);
	assert_int_equal(decode(&b, &q), 0);
	assert_string_equal(q.name, "file");
	assert_int_equal(q.opcode, FUSE_LOOKUP);
	assert_int_equal(q.unique, 42);
	assert_int_equal(q.node, 7);
	assert_int_equal(q.uid, 1000);
	assert_int_equal(q.gid, 100);
	assert_int_equal(q.pid, 4321);
	buf_free(&b);
}

static void a_name_without_its_end_is_refused(void **state)
{
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_LOOKUP);
	buf_append(&b, "file", 4);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	assert_int_equal(q.unique, 42);
	begin(&b, FUSE_UNLINK);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	begin(&b, FUSE_UNLINK);
	buf_append(&b, "", 1);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_free(&b);
}

static void a_rename_has_two_names_and_its_flags(void **state)
{
	struct fuse_rename2_in in = { .newdir = 9, .flags = 1 };
	struct fuse_rename_in old = { .newdir = 8 };
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_RENAME2);
	buf_append(&b, &in, sizeof(in));
	buf_append(&b, "a\0bc", 5);
	assert_int_equal(decode(&b, &q), 0);
	assert_string_equal(q.name, "a");
	assert_string_equal(q.second, "bc");
	assert_int_equal(q.in.rename.newdir, 9);
	assert_int_equal(q.in.rename.flags, 1);

	begin(&b, FUSE_RENAME);
	buf_append(&b, &old, sizeof(old));
	buf_append(&b, "a\0bc", 5);
	assert_int_equal(decode(&b, &q), 0);
	assert_int_equal(q.in.rename.newdir, 8);
	assert_int_equal(q.in.rename.flags, 0);

	begin(&b, FUSE_RENAME);
	buf_append(&b, &old, sizeof(old));
	buf_append(&b, "a", 2);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_free(&b);
}

static void a_write_cannot_claim_more_data_than_came(void **state)
{
	struct fuse_write_in in = { .fh = 5, .offset = 4096, .size = 3 };
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_WRITE);
	buf_append(&b, &in, sizeof(in));
	buf_append(&b, "xyz", 3);
	assert_int_equal(decode(&b, &q), 0);
	assert_int_equal(q.data_size, 3);
	assert_memory_equal(q.data, "xyz", 3);

	for (uint32_t claimed = 4; claimed; claimed *= 2) {
		in.size = claimed;
		begin(&b, FUSE_WRITE);
		buf_append(&b, &in, sizeof(in));
		buf_append(&b, "xyz", 3);
		assert_int_equal(decode(&b, &q), -EBADMSG);
	}
	buf_free(&b);
}

static void a_batch_of_forgets_must_fit(void **state)
{
	struct fuse_batch_forget_in in = { .count = 2 };
	struct fuse_forget_one ones[2] = { { 1, 1 }, { 2, 2 } };
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_BATCH_FORGET);
	buf_append(&b, &in, sizeof(in));
	buf_append(&b, ones, sizeof(ones));
	assert_int_equal(decode(&b, &q), 0);
	assert_int_equal(q.data_size, sizeof(ones));

	in.count = UINT32_MAX;
	begin(&b, FUSE_BATCH_FORGET);
	buf_append(&b, &in, sizeof(in));
	buf_append(&b, ones, sizeof(ones));
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_free(&b);
}

static void a_setxattr_has_name_and_value(void **state)
{
	struct fuse_setxattr_in in = { .size = 4, .flags = 1, .setxattr_flags = FUSE_SETXATTR_ACL_KILL_SGID };
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_SETXATTR);
	buf_append(&b, &in, sizeof(in));
	buf_append(&b, "user.x\0\1\0\2\3", 11);
	assert_int_equal(decode(&b, &q), 0);
	assert_string_equal(q.name, "user.x");
	assert_int_equal(q.data_size, 4);
	assert_memory_equal(q.data, "\1\0\2\3", 4);
	in.size = 5;
	begin(&b, FUSE_SETXATTR);
	buf_append(&b, &in, sizeof(in));
	buf_append(&b, "user.x\0\1\0\2\3", 11);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_free(&b);
}

static void the_short_init_of_an_older_kernel_is_understood(void **state)
{
	struct fuse_init_in in = { .major = 7, .minor = 34, .max_readahead = 131072, .flags = 5, .flags2 = 9 };
	struct buf b = { 0 };
	struct fuse_request q;

	begin(&b, FUSE_INIT);
	buf_append(&b, &in, 16);
	assert_int_equal(decode(&b, &q), 0);
	assert_int_equal(q.in.init.minor, 34);
	assert_int_equal(q.in.init.flags2, 0);
	begin(&b, FUSE_INIT);
	buf_append(&b, &in, sizeof(in));
	assert_int_equal(decode(&b, &q), 0);
	assert_int_equal(q.in.init.flags2, 9);
	begin(&b, FUSE_INIT);
	buf_append(&b, &in, 15);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_free(&b);
}

static void an_unknown_request_can_still_be_answered(void **state)
{
	static const uint32_t unknown[] = { 0, 7, 19, 41, 54, 4096, UINT32_MAX };
	struct buf b = { 0 };
	struct fuse_request q;

	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		begin(&b, unknown[i]);
		assert_int_equal(decode(&b, &q), -ENOSYS);
		assert_int_equal(q.unique, 42);
		assert_string_equal(fuse_opcode_name(unknown[i]), "?");
	}
	buf_free(&b);
}

static void a_wrong_length_in_the_header_is_refused(void **state)
{
	struct fuse_in_header h = header_of(FUSE_STATFS);
	struct fuse_request q;

	h.len = sizeof(h) + 1;
	assert_int_equal(fuse_request_decode(&h, sizeof(h), &q), -EBADMSG);
	h.len = sizeof(h) - 1;
	assert_int_equal(fuse_request_decode(&h, sizeof(h), &q), -EBADMSG);
	h.len = sizeof(h);
	assert_int_equal(fuse_request_decode(&h, sizeof(h), &q), 0);
}

static void extensions_are_not_taken_for_arguments(void **state)
{
	struct buf b = { 0 };
	struct fuse_request q;
	uint16_t extensions = 1;

	begin(&b, FUSE_LOOKUP);
	buf_append(&b, "name\0\0\0\0", 8);
	memcpy(b.data + offsetof(struct fuse_in_header, total_extlen), &extensions, 2);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_append(&b, "extended", 8);
	assert_int_equal(decode(&b, &q), 0);
	assert_string_equal(q.name, "name");
	extensions = 3;
	memcpy(b.data + offsetof(struct fuse_in_header, total_extlen), &extensions, 2);
	assert_int_equal(decode(&b, &q), -EBADMSG);
	buf_free(&b);
}

/* Every opcode, cut short at every byte: never more than it has, never success without
 * what it must have. */
static void nothing_is_read_past_the_end(void **state)
{
	struct buf b = { 0 }, whole = { 0 };
	struct fuse_request q;

	for (uint32_t opcode = 0; opcode < 64; opcode++) {
		for (unsigned fill = 0; fill < 3; fill++) {
			begin(&whole, opcode);
			for (unsigned i = 0; i < 160; i++)
				buf_le8(&whole, (uint8_t)(fill == 0 ? 0 : fill == 1 ? 0xff : 'a'));
			for (size_t n = 0; n <= whole.len; n++) {
				int error;

				buf_clear(&b);
				buf_append(&b, whole.data, n);
				error = decode(&b, &q);
				if (n < sizeof(struct fuse_in_header)) {
					assert_int_equal(error, -EBADMSG);
					assert_int_equal(q.unique, 0);
				}
			}
		}
	}
	buf_free(&b);
	buf_free(&whole);
}

static void only_what_changes_nothing_may_be_interrupted(void **state)
{
	struct fuse_request q = { .opcode = FUSE_OPEN };

	assert_true(fuse_request_is_harmless(&q));
	q.in.open.flags = O_TRUNC;
	assert_false(fuse_request_is_harmless(&q));
	q.opcode = FUSE_READ;
	assert_true(fuse_request_is_harmless(&q));
	q.opcode = FUSE_RENAME;
	assert_false(fuse_request_is_harmless(&q));
	q.opcode = FUSE_WRITE;
	assert_false(fuse_request_is_harmless(&q));
	assert_true(fuse_opcode_is_silent(FUSE_FORGET));
	assert_true(fuse_opcode_is_silent(FUSE_BATCH_FORGET));
	assert_false(fuse_opcode_is_silent(FUSE_RELEASE));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lookup_has_its_name_and_who_asks),
		cmocka_unit_test(a_name_without_its_end_is_refused),
		cmocka_unit_test(a_rename_has_two_names_and_its_flags),
		cmocka_unit_test(a_write_cannot_claim_more_data_than_came),
		cmocka_unit_test(a_batch_of_forgets_must_fit),
		cmocka_unit_test(a_setxattr_has_name_and_value),
		cmocka_unit_test(the_short_init_of_an_older_kernel_is_understood),
		cmocka_unit_test(an_unknown_request_can_still_be_answered),
		cmocka_unit_test(a_wrong_length_in_the_header_is_refused),
		cmocka_unit_test(extensions_are_not_taken_for_arguments),
		cmocka_unit_test(nothing_is_read_past_the_end),
		cmocka_unit_test(only_what_changes_nothing_may_be_interrupted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
