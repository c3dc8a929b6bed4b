/* Answers as a transport gets them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <cmocka.h>
#include "base/bytes.h"
#include "base/log.h"
#include "fuse/reply.h"

/* A transport that keeps what was sent, and fails the first `failures` times. */
struct kept {
	struct reply reply;
	struct buf bytes;
	int sent, most_parts, failures, error;
};

static int keep(struct reply *r, const struct iovec *parts, int count)
{
	struct kept *k = (struct kept *)r;

	k->sent++;
	if (k->failures) {
		k->failures--;
		return k->error;
	}
	if (count > k->most_parts)
		k->most_parts = count;
	buf_clear(&k->bytes);
	for (int i = 0; i < count; i++)
		buf_append(&k->bytes, parts[i].iov_base, parts[i].iov_len);
	return 0;
}

static struct kept new_kept(void) { return (struct kept){ .reply = { .unique = 99, .send = keep } }; }

static struct fuse_out_header header_of(const struct kept *k)
{
	struct fuse_out_header h;

	assert_true(k->bytes.len >= sizeof(h));
	memcpy(&h, k->bytes.data, sizeof(h));
	assert_int_equal(h.len, k->bytes.len);
	assert_int_equal(h.unique, 99);
	return h;
}

static void data_follows_the_header(void **state)
{
	struct kept k = new_kept();

	assert_int_equal(reply_data(&k.reply, "data", 4), 0);
	assert_int_equal(header_of(&k).error, 0);
	assert_memory_equal(k.bytes.data + sizeof(struct fuse_out_header), "data", 4);
	assert_int_equal(reply_pair(&k.reply, "ab", 2, "cde", 3), 0);
	assert_int_equal(header_of(&k).len, sizeof(struct fuse_out_header) + 5);
	assert_memory_equal(k.bytes.data + sizeof(struct fuse_out_header), "abcde", 5);
	assert_int_equal(reply_data(&k.reply, NULL, 0), 0);
	assert_int_equal(header_of(&k).len, sizeof(struct fuse_out_header));
	buf_free(&k.bytes);
}

static void any_number_of_parts_is_one_answer(void **state)
{
	static const int counts[] = { 0, 1, REPLY_PARTS - 1, REPLY_PARTS, 5000 };

	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		int count = counts[c];
		struct kept k = new_kept();
		uint16_t *words = calloc((size_t)count + 1, sizeof(*words));
		struct iovec *parts = calloc((size_t)count + 1, sizeof(*parts));

		for (int i = 0; i < count; i++) {
			words[i] = (uint16_t)i;
			parts[i] = (struct iovec){ &words[i], 2 };
		}
		assert_int_equal(reply_parts(&k.reply, parts, count, (size_t)count * 2), 0);
		assert_true(k.most_parts <= REPLY_PARTS);
		assert_int_equal(header_of(&k).len, sizeof(struct fuse_out_header) + (size_t)count * 2);
		assert_memory_equal(k.bytes.data + sizeof(struct fuse_out_header), words, (size_t)count * 2);
		buf_free(&k.bytes);
		free(words);
		free(parts);
	}
}

static void the_kernel_gets_only_errors_it_takes(void **state)
{
	static const struct {
		int given, sent;
	} errors[] = { { 0, 0 }, { -ENOENT, -ENOENT }, { -511, -511 }, { -512, -EIO }, { 5, -EIO } };
	struct kept k = new_kept();

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		assert_int_equal(reply_error(&k.reply, errors[i].given), 0);
		assert_int_equal(header_of(&k).error, errors[i].sent);
	}
	buf_free(&k.bytes);
}

static void a_refused_answer_becomes_an_error(void **state)
{
	struct kept k = new_kept();

	k.failures = 1;
	k.error = -EINVAL;
	assert_int_equal(reply_data(&k.reply, "data", 4), -EINVAL);
	assert_int_equal(k.sent, 2);
	assert_int_equal(header_of(&k).error, -EIO);
	buf_free(&k.bytes);
}

static void nobody_is_answered_twice_when_nobody_waits(void **state)
{
	struct kept k = new_kept();

	k.failures = 1;
	k.error = -ENOENT;
	assert_int_equal(reply_data(&k.reply, "data", 4), -ENOENT);
	assert_int_equal(k.sent, 1);
	buf_free(&k.bytes);
}

static void attributes_are_told_as_the_kernel_has_them(void **state)
{
	struct entry e = {
		.attr = { .inode = 12,
			  .mode = S_IFCHR | 0644,
			  .uid = 1,
			  .gid = 2,
			  .nlink = 3,
			  .rdev = makedev(4095, 1048575),
			  .size = 513,
			  .allocated = 513,
			  .atime_ns = -1,
			  .mtime_ns = 1500000000123456789,
			  .ctime_ns = 0,
			  .btime_ns = -1000000001 },
		.valid_ms = 1500,
	};
	struct fuse_entry_out out;
	struct fuse_statx sx;

	entry_fill(&out, 34, &e.attr, (struct given_leave){ .name_ms = e.valid_ms, .attr_ms = 2500 });
	assert_int_equal(out.nodeid, 34);
	assert_int_equal(out.attr.ino, 12);
	assert_int_equal(out.entry_valid, 1);
	assert_int_equal(out.entry_valid_nsec, 500000000);
	assert_int_equal(out.attr_valid, 2);
	assert_int_equal(out.attr_valid_nsec, 500000000);
	assert_int_equal(out.attr.blocks, 2);
	assert_int_equal((int64_t)out.attr.atime, -1);
	assert_int_equal(out.attr.atimensec, 999999999);
	assert_int_equal(out.attr.mtime, 1500000000);
	assert_int_equal(out.attr.mtimensec, 123456789);
	assert_int_equal(out.attr.rdev, 0xffffffff);
	statx_fill(&sx, &e.attr);
	assert_int_equal(sx.btime.tv_sec, -2);
	assert_int_equal(sx.btime.tv_nsec, 999999999);
	assert_int_equal(sx.rdev_minor, 1048575);
	assert_true(sx.mask & STATX_BTIME);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(data_follows_the_header),
		cmocka_unit_test(any_number_of_parts_is_one_answer),
		cmocka_unit_test(the_kernel_gets_only_errors_it_takes),
		cmocka_unit_test(a_refused_answer_becomes_an_error),
		cmocka_unit_test(nobody_is_answered_twice_when_nobody_waits),
		cmocka_unit_test(attributes_are_told_as_the_kernel_has_them),
	};

	log_set_level(LOG_LEVEL_OFF);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
