#include "world.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include "meta/listing.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static Wire__ReaddirReply *list(struct world *w, uint64_t inode, uint64_t cookie, uint32_t max_bytes, bool attributes)
{
	Wire__ReaddirRequest request = WIRE__READDIR_REQUEST__INIT;
	Wire__ReaddirReply *reply = NULL;

	request.inode = inode;
	request.cookie = cookie;
	request.max_bytes = max_bytes;
	request.attributes = attributes;
	assert_int_equal(world_read(w, WIRE__OP__READDIR, &request, &reply), 0);
	return reply;
}

static const void *one_more_file(struct world *w, int i, void *parent)
{
	Wire__CreateRequest *request = arena_take(&w->arena, sizeof(*request));

	wire__create_request__init(request);
	request->parent = *(uint64_t *)parent;
	request->name = bytes_of(numbered_name(w, "f%06d", i));
	request->mode = S_IFREG | 0644;
	request->exclusive = true;
	return request;
}

static void an_empty_directory_ends_at_once(void **state)
{
	struct world *w = *state;
	Wire__ReaddirReply *reply = list(w, ROOT_INODE, 0, 4096, true);

	assert_true(reply->end);
	assert_int_equal(reply->entries.len, 0);
}

static void entries_come_with_their_attributes(void **state)
{
	struct world *w = *state;
	Wire__ReaddirReply *reply;
	struct listing_entry e;
	struct reader in;
	struct attr d;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	reply = list(w, ROOT_INODE, 0, 4096, true);
	in = reader_of(reply->entries.data, reply->entries.len);
	assert_int_equal(listing_next(&in, &e), 1);
	assert_int_equal(e.type, DT_DIR);
	assert_true(e.has_attr);
	assert_attr_equal(&e.attr, &d);
	assert_int_equal(e.name_length, 1);
	assert_true(reply->end);
	assert_int_equal(reply->valid_ms, 10000);
	reply = list(w, ROOT_INODE, 0, 4096, false);
	in = reader_of(reply->entries.data, reply->entries.len);
	assert_int_equal(listing_next(&in, &e), 1);
	assert_false(e.has_attr);
}

static void a_reply_never_exceeds_what_was_asked_for(void **state)
{
	struct world *w = *state;
	uint64_t root = ROOT_INODE;
	Wire__ReaddirReply *reply;

	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 100, one_more_file, &root), 0);
	reply = list(w, ROOT_INODE, 0, 1000, true);
	assert_false(reply->end);
	assert_in_range(reply->entries.len, 500, 1000);
	reply = list(w, ROOT_INODE, 0, 1, true); /* one entry at least */
	assert_in_range(reply->entries.len, 100, 400);
	reply = list(w, ROOT_INODE, 0, UINT32_MAX, true);
	assert_true(reply->end);
}

/* Every name that was there all along is seen once, whatever comes and goes meanwhile. */
static void a_listing_survives_changes_between_its_parts(void **state)
{
	struct world *w = *state;
	uint64_t root = ROOT_INODE, cookie = 0;
	uint8_t *seen = calloc(2000, 1);
	Wire__ReaddirReply *reply;
	struct listing_entry e;
	struct reader in;
	char name[32];
	int i = 0;

	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 2000, one_more_file, &root), 0);
	do {
		reply = list(w, ROOT_INODE, cookie, 3000, false);
		in = reader_of(reply->entries.data, reply->entries.len);
		while (listing_next(&in, &e) == 1) {
			cookie = e.cookie;
			snprintf(name, sizeof(name), "%.*s", (int)e.name_length, e.name);
			if (name[0] == 'f')
				seen[strtoul(name + 1, NULL, 10)]++;
		}
		snprintf(name, sizeof(name), "f%06d", 2 * i); /* even ones go */
		assert_int_equal(do_unlink(w, ROOT_INODE, name), 0);
		snprintf(name, sizeof(name), "new%d", i++);
		assert_int_equal(do_file(w, ROOT_INODE, name, NULL), 0);
	} while (!reply->end);
	assert_true(i > 10);
	for (int n = 1; n < 2000; n += 2)
		assert_int_equal(seen[n], 1);
	for (int n = 0; n < 2000; n += 2)
		assert_in_range(seen[n], 0, 1);
	free(seen);
}

static void only_directories_are_listed(void **state)
{
	struct world *w = *state;
	Wire__ReaddirRequest request = WIRE__READDIR_REQUEST__INIT;
	Wire__ReaddirReply *reply;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	request.inode = a.inode;
	assert_int_equal(world_read(w, WIRE__OP__READDIR, &request, &reply), -ENOTDIR);
	request.inode = 12345;
	assert_int_equal(world_read(w, WIRE__OP__READDIR, &request, &reply), -ENOENT);
	request.inode = ROOT_INODE;
	request.cookie = UINT64_MAX;
	assert_int_equal(world_read(w, WIRE__OP__READDIR, &request, &reply), -EINVAL);
}

static void one_directory_does_not_see_the_names_of_the_next(void **state)
{
	struct world *w = *state;
	struct attr a, b;

	assert_int_equal(do_directory(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(do_directory(w, ROOT_INODE, "b", &b), 0);
	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 50, one_more_file, &a.inode), 0);
	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 70, one_more_file, &b.inode), 0);
	assert_int_equal(count_names(w, a.inode), 50);
	assert_int_equal(count_names(w, b.inode), 70);
	assert_int_equal(count_names(w, ROOT_INODE), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_empty_directory_ends_at_once),
		TEST(entries_come_with_their_attributes),
		TEST(a_reply_never_exceeds_what_was_asked_for),
		TEST(a_listing_survives_changes_between_its_parts),
		TEST(only_directories_are_listed),
		TEST(one_directory_does_not_see_the_names_of_the_next),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
