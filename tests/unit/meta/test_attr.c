#include "world.h"
#include <dirent.h>
#include "meta/listing.h"

static struct attr example(void)
{
	return (struct attr){
		.inode = 0x1122334455,
		.mode = S_IFREG | 04755,
		.uid = 1,
		.gid = 2,
		.nlink = 3,
		.rdev = 4,
		.size = 5,
		.allocated = 6,
		.atime_ns = -7,
		.mtime_ns = 8,
		.ctime_ns = 9,
		.btime_ns = 10,
		.version = 11,
		.parent = 12,
		.flags = 13,
		.deleted_ns = 14,
	};
}

static void attributes_come_back_as_they_went(void **state)
{
	struct attr a = example(), b;
	uint8_t packed[ATTR_PACKED];

	attr_pack(&a, packed);
	assert_int_equal(attr_unpack(packed, sizeof(packed), &b), 0);
	assert_attr_equal(&a, &b);
	assert_int_equal(b.deleted_ns, 14);
	assert_int_equal(b.atime_ns, -7);
}

static void attributes_that_make_no_sense_are_refused(void **state)
{
	struct attr a = example(), b;
	uint8_t packed[ATTR_PACKED];

	attr_pack(&a, packed);
	assert_int_equal(attr_unpack(packed, sizeof(packed) - 1, &b), -EBADMSG);
	put_le32(packed + 8, 0644);
	assert_int_equal(attr_unpack(packed, sizeof(packed), &b), -EBADMSG);
	a.inode = 0;
	attr_pack(&a, packed);
	assert_int_equal(attr_unpack(packed, sizeof(packed), &b), -EBADMSG);
}

static struct buf two_entries(bool extent)
{
	struct extent all = { .length = 5, .raw_length = 5, .stored_length = 5, .object = 7, .object_offset = 9, .checksum = 11 };
	struct buf out = { 0 };
	struct listing_entry e = { .inode = 5, .cookie = 16, .type = DT_DIR, .name = "alpha", .name_length = 5 };

	listing_append(&out, &e);
	e = (struct listing_entry){ .inode = example().inode,
				    .cookie = 32,
				    .type = DT_REG,
				    .name = "b",
				    .name_length = 1,
				    .has_attr = true,
				    .has_extent = extent,
				    .attr = example(),
				    .extent = all };
	listing_append(&out, &e);
	return out;
}

static void a_listing_comes_back_entry_by_entry(void **state)
{
	struct buf packed = two_entries(true);
	struct reader in = reader_of(packed.data, packed.len);
	struct listing_entry e;

	assert_int_equal(listing_next(&in, &e), 1);
	assert_int_equal(e.inode, 5);
	assert_int_equal(e.type, DT_DIR);
	assert_false(e.has_attr);
	assert_memory_equal(e.name, "alpha", 5);
	assert_int_equal(listing_next(&in, &e), 1);
	assert_true(e.has_attr);
	assert_int_equal(e.attr.size, 5);
	assert_true(e.has_extent);
	assert_int_equal(e.extent.length, 5);
	assert_int_equal(e.extent.object, 7);
	assert_int_equal(listing_next(&in, &e), 0);
	buf_free(&packed);
}

static void a_listing_cut_anywhere_but_between_entries_is_refused(void **state)
{
	size_t first = listing_entry_size(&(struct listing_entry){ .name_length = 5 });
	struct listing_entry e;

	for (int extent = 0; extent < 2; extent++) {
		struct buf packed = two_entries(extent);

		for (size_t size = 1; size < packed.len; size++) {
			struct reader in = reader_of(packed.data, size);
			int r = listing_next(&in, &e);
			if (r == 1)
				r = listing_next(&in, &e);
			assert_int_equal(r, size == first ? 0 : -EBADMSG);
		}
		buf_free(&packed);
	}
}

static void an_extent_without_attributes_is_refused(void **state)
{
	struct buf packed = two_entries(true);
	struct reader in = reader_of(packed.data, packed.len);
	struct listing_entry e;

	packed.data[17] = 2;
	assert_int_equal(listing_next(&in, &e), -EBADMSG);
	in = reader_of(packed.data, packed.len);
	packed.data[17] = 4;
	assert_int_equal(listing_next(&in, &e), -EBADMSG);
	buf_free(&packed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attributes_come_back_as_they_went),
		cmocka_unit_test(attributes_that_make_no_sense_are_refused),
		cmocka_unit_test(a_listing_comes_back_entry_by_entry),
		cmocka_unit_test(a_listing_cut_anywhere_but_between_entries_is_refused),
		cmocka_unit_test(an_extent_without_attributes_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
