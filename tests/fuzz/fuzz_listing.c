/* Packed attributes and directory listings. */
#include <errno.h>
#include "meta/attr.h"
#include "meta/listing.h"
#include "tests/fuzz/fuzz.h"

static void attr_try(const uint8_t *data, size_t size)
{
	struct attr a;
	uint8_t out[ATTR_PACKED];
	int status = attr_unpack(data, size, &a);
	REQUIRE(status == 0 || status == -EBADMSG);
	if (status == 0) {
		attr_pack(&a, out);
		REQUIRE(memcmp(out, data, ATTR_PACKED) == 0);
	}
}

static void listing_try(const uint8_t *data, size_t size)
{
	struct reader r = reader_of(data, size);
	struct listing_entry e;
	int status;
	size_t names = 0;
	while ((status = listing_next(&r, &e)) == 1) {
		for (size_t i = 0; i < e.name_length; i++)
			names += (uint8_t)e.name[i];
		CLEANUP_BUF struct buf again = { 0 };
		listing_append(&again, &e);
		REQUIRE(again.len == listing_entry_size(&e));
		REQUIRE(e.name_length >= 1);
	}
	REQUIRE(status == 0 || status == -EBADMSG);
	REQUIRE(names <= size * 255);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] & 1)
		attr_try(data + 1, size - 1);
	else
		listing_try(data + 1, size - 1);
	return 0;
}
