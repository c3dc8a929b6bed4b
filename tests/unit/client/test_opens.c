/* Files that are opened without the server, under the lease. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "client/state.h"
#include "meta/listing.h"
#include "relay.h"
#include "world.h"

#define FILES 12

static void write_file(struct client *c, const char *name, const char *text)
{
	struct client_file *f;
	struct entry e;

	assert_int_equal(client_create(c, client_root(c), name, 0644, O_RDWR, &root, &f, &e), 0);
	assert_int_equal(client_write(f, 0, text, strlen(text), 0), strlen(text));
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
}

static uint64_t number_of(struct client *c, const char *name)
{
	struct entry e;

	assert_int_equal(client_lookup(c, client_root(c), name, &e), 0);
	return e.attr.inode;
}

static struct client_file *file_open(struct client *c, uint64_t inode, int flags, bool *unchanged)
{
	struct client_file *f;

	assert_int_equal(client_open(c, inode, flags, false, false, &f, unchanged), 0);
	return f;
}

static void expect(struct client_file *f, const char *text)
{
	struct client_read *r;
	const struct iovec *parts;
	size_t bytes, at = 0;
	int count;

	assert_int_equal(client_read(f, 0, strlen(text) + 1, &r), 0);
	parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, strlen(text));
	for (int i = 0; i < count; at += parts[i++].iov_len)
		assert_memory_equal(parts[i].iov_base, text + at, parts[i].iov_len);
	client_read_release(r);
}

/* Files 0 to FILES - 1, and a client that has just come. */
static struct client *stranger(struct world *w, const char *address)
{
	struct client *c;
	char name[16];

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "%d", i);
		write_file(w->client, name, name);
	}
	assert_int_equal(client_disconnect(w->client), 0);
	c = client_up_at(address);
	AWAIT(client_is_alone(c));
	return c;
}

/* And has looked at all of them. */
static struct client *fresh(struct world *w, const char *address)
{
	struct client *c = stranger(w, address);
	char name[16];

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "%d", i);
		number_of(c, name);
	}
	return c;
}

static uint64_t open_at_server(struct world *w)
{
	Wire__Empty request = WIRE__EMPTY__INIT;
	struct rpc_options options = { .servers = w->address, .hello = WIRE__HELLO_REQUEST__INIT };
	Wire__StatusReply *status;
	struct rpc_call call = { .op = WIRE__OP__STATUS, .request = &request.base, .reply = (ProtobufCMessage **)&status };
	uint64_t count = 0;
	struct arena arena;
	struct rpc *rpc;
	Wire__HelloReply *hello;
	char why[200];

	options.hello.version = PROTOCOL_VERSION;
	arena_init(&arena, 0);
	assert_int_equal(rpc_open(&options, &arena, &hello, &rpc, why, sizeof(why)), 0);
	assert_int_equal(rpc_call(rpc, &call, &arena), 0);
	for (size_t i = 0; i < status->n_sessions; i++)
		count += status->sessions[i]->open_files;
	rpc_close(rpc);
	arena_free(&arena);
	return count;
}

static void a_file_that_was_listed_is_opened_without_the_server(void **state)
{
	struct world w = { 0 };
	struct client_file *f;
	bool unchanged;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	f = file_open(w.client, number_of(w.client, "3"), O_RDONLY, &unchanged);
	assert_int_equal(open_at_server(&w), 0);
	expect(f, "3");
	assert_int_equal(open_at_server(&w), 0);
	client_release(f);
	f = file_open(w.client, number_of(w.client, "3"), O_RDONLY, &unchanged);
	assert_true(unchanged);
	client_release(f);
	world_down(&w);
}

static bool opened_without_the_server(struct world *w, uint64_t inode)
{
	bool unchanged, untold;
	struct client_file *f = file_open(w->client, inode, O_RDONLY, &unchanged);

	untold = open_at_server(w) == 0;
	expect(f, "text");
	client_release(f);
	AWAIT(open_at_server(w) == 0);
	return untold;
}

/* The kernel knows its name and attributes, and does not ask for them.  The first open may meet the end of the one before,
 * and then teaches nothing. */
static void of_a_file_that_was_written_here_the_server_is_not_asked_for_long(void **state)
{
	struct world w = { 0 };
	struct client_file *f;
	struct entry e;
	int told = 0;

	world_up(&w, "none");
	AWAIT(client_is_alone(w.client));
	assert_int_equal(client_create(w.client, client_root(w.client), "file", 0644, O_RDWR, &root, &f, &e), 0);
	assert_int_equal(client_write(f, 0, "text", 4, 0), 4);
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
	while (!opened_without_the_server(&w, e.attr.inode))
		assert_true(++told <= 5);
	world_down(&w);
}

/* How many of the entries of a listing's first part come with their place; *whole: it has no other. */
static unsigned extents_listed(struct client *c, uint32_t max_bytes, bool *whole)
{
	CLEANUP_BUF struct buf listing = { 0 };
	struct listing_entry entry;
	unsigned count = 0;
	uint32_t valid_ms;
	struct reader in;

	assert_int_equal(client_readdir(c, client_root(c), 0, max_bytes, true, &listing, whole, &valid_ms), 0);
	in = reader_of(listing.data, listing.len);
	while (listing_next(&in, &entry) > 0)
		count += entry.has_extent;
	return count;
}

static void a_listing_that_comes_in_parts_brings_no_extents_again(void **state)
{
	struct world w = { 0 };
	bool whole;

	world_up(&w, "none");
	w.client = stranger(&w, w.address);
	assert_true(extents_listed(w.client, 512, &whole) > 0);
	assert_false(whole);
	assert_int_equal(extents_listed(w.client, 512, &whole), 0);
	assert_false(whole);
	assert_int_equal(extents_listed(w.client, 64 << 10, &whole), FILES);
	assert_true(whole);
	world_down(&w);
}

static void a_server_that_is_silent_is_not_missed(void **state)
{
	struct world w = { 0 };
	struct relay r;
	struct client_file *f;
	bool unchanged;
	uint64_t number;

	world_up(&w, "none");
	relay_up(&r, w.address);
	w.client = fresh(&w, r.address);
	number = number_of(w.client, "5");
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "5");
	client_release(f);
	relay_silence(&r, true);
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "5");
	client_release(f);
	relay_silence(&r, false);
	assert_int_equal(client_disconnect(w.client), 0);
	w.client = NULL;
	relay_down(&r);
	world_down(&w);
}

static void the_name_goes_and_the_file_stays(void **state)
{
	struct world w = { 0 };
	struct client_file *f, *g;
	bool unchanged;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	f = file_open(w.client, number_of(w.client, "1"), O_RDONLY, &unchanged);
	g = file_open(w.client, number_of(w.client, "2"), O_RDONLY, &unchanged);
	assert_int_equal(open_at_server(&w), 0);
	assert_int_equal(client_unlink(w.client, client_root(w.client), "1"), 0);
	assert_int_equal(open_at_server(&w), 1);
	assert_int_equal(client_rename(w.client, client_root(w.client), "3", client_root(w.client), "2", 0), 0);
	assert_int_equal(open_at_server(&w), 2);
	expect(f, "1");
	expect(g, "2");
	client_release(f);
	client_release(g);
	AWAIT(open_at_server(&w) == 0);
	world_down(&w);
}

static void company_is_told_of_what_is_open(void **state)
{
	struct world w = { 0 };
	struct client_file *f, *g, *h;
	struct client *other;
	bool unchanged;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	f = file_open(w.client, number_of(w.client, "1"), O_RDONLY, &unchanged);
	g = file_open(w.client, number_of(w.client, "2"), O_RDONLY, &unchanged);
	expect(g, "2");
	assert_int_equal(open_at_server(&w), 0);
	other = client_up(&w);
	assert_int_equal(open_at_server(&w), 2);
	assert_int_equal(client_unlink(other, client_root(other), "1"), 0);
	expect(f, "1");
	h = file_open(other, number_of(other, "2"), O_WRONLY, &unchanged);
	assert_int_equal(client_write(h, 0, "two", 3, 0), 3);
	expect(g, "two");
	client_release(h);
	client_release(f);
	client_release(g);
	assert_int_equal(client_disconnect(other), 0);
	AWAIT(open_at_server(&w) == 0);
	world_down(&w);
}

static void one_that_was_cut_off_does_not_go_on_with_what_it_opened_by_itself(void **state)
{
	struct world w = { .lease_ms = 4000 }; /* more than the three seconds between two signs of life */
	struct client_file *f, *g;
	struct client *other;
	struct relay r;
	bool unchanged;
	uint64_t number;

	world_up(&w, "none");
	relay_up(&r, w.address);
	w.client = fresh(&w, r.address);
	number = number_of(w.client, "8");
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "8");
	assert_int_equal(open_at_server(&w), 0);
	relay_silence(&r, true);
	other = client_up(&w); /* when the lease has run out */
	g = file_open(other, number, O_WRONLY, &unchanged);
	assert_int_equal(client_write(g, 0, "eight", 5, 0), 5);
	client_release(g);
	assert_int_equal(client_disconnect(other), 0);
	relay_silence(&r, false);
	AWAIT(open_at_server(&w) == 1); /* it is told of */
	expect(f, "eight");
	client_release(f);
	assert_int_equal(client_disconnect(w.client), 0);
	w.client = NULL;
	relay_down(&r);
	world_down(&w);
}

/* The kernel drops pages when an open is answered, which may be later than another open of the same file. */
static void pages_of_before_are_dropped_by_all_who_open_until_one_has_read(void **state)
{
	struct world w = { 0 };
	struct client_file *f[4];
	struct client *other;
	bool unchanged[4];
	uint64_t number;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	number = number_of(w.client, "6");
	f[0] = file_open(w.client, number, O_RDONLY, &unchanged[0]);
	expect(f[0], "6");
	client_release(f[0]);
	other = client_up(&w);
	f[0] = file_open(other, number, O_WRONLY, &unchanged[0]);
	assert_int_equal(client_write(f[0], 0, "six", 3, 0), 3);
	client_release(f[0]);
	f[0] = file_open(w.client, number, O_RDONLY, &unchanged[0]);
	f[1] = file_open(w.client, number, O_RDONLY, &unchanged[1]);
	assert_false(unchanged[0]);
	assert_false(unchanged[1]);
	expect(f[1], "six");
	f[2] = file_open(w.client, number, O_RDONLY, &unchanged[2]);
	assert_true(unchanged[2]);
	expect(f[0], "six");
	for (int i = 0; i < 3; i++)
		client_release(f[i]);
	f[3] = file_open(w.client, number, O_RDONLY, &unchanged[3]);
	assert_true(unchanged[3]);
	client_release(f[3]);
	assert_int_equal(client_disconnect(other), 0);
	world_down(&w);
}

/* Whoever opened it was killed meanwhile, say: the kernel has dropped nothing. */
static void pages_of_before_are_still_there_after_an_open_the_kernel_was_not_told_of(void **state)
{
	struct world w = { 0 };
	struct client_file *f;
	struct client *other;
	bool unchanged;
	uint64_t number;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	number = number_of(w.client, "6");
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "6");
	client_release(f);
	other = client_up(&w);
	f = file_open(other, number, O_WRONLY, &unchanged);
	assert_int_equal(client_write(f, 0, "six", 3, 0), 3);
	client_release(f);
	assert_int_equal(client_disconnect(other), 0);
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	assert_false(unchanged);
	client_open_untold(f);
	client_release(f);
	for (int told = 0; told < 2; told++) {
		f = file_open(w.client, number, O_RDONLY, &unchanged);
		assert_int_equal(unchanged, told);
		client_release(f);
	}
	world_down(&w);
}

static void one_that_is_opened_for_writing_is_known_to_the_server(void **state)
{
	struct world w = { 0 };
	struct client_file *f, *g;
	bool unchanged;
	uint64_t number;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	number = number_of(w.client, "4");
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "4");
	g = file_open(w.client, number, O_RDWR, &unchanged);
	assert_true(unchanged);
	assert_int_equal(open_at_server(&w), 1);
	assert_int_equal(client_write(g, 0, "four", 4, 0), 4);
	expect(f, "four");
	client_release(g);
	expect(f, "four");
	client_release(f);
	AWAIT(open_at_server(&w) == 0);
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "four");
	client_release(f);
	world_down(&w);
}

static void what_is_changed_here_is_read_anew(void **state)
{
	struct client_setattr cut = { .valid = SET_SIZE, .size = 1 };
	struct world w = { 0 };
	struct client_file *f, *g;
	struct entry e;
	bool unchanged;
	uint64_t number;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	number = number_of(w.client, "10");
	f = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(f, "10");
	assert_int_equal(client_setattr(w.client, number, &cut, &e), 0);
	expect(f, "1");
	g = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(g, "1");
	client_release(f);
	client_release(g);
	g = file_open(w.client, number, O_RDONLY, &unchanged);
	expect(g, "1");
	client_release(g);
	world_down(&w);
}

static void what_was_removed_is_not_opened_without_the_server(void **state)
{
	struct world w = { 0 };
	struct client_file *f;
	uint64_t number;
	bool unchanged;

	world_up(&w, "none");
	w.client = fresh(&w, w.address);
	number = number_of(w.client, "7");
	assert_int_equal(client_unlink(w.client, client_root(w.client), "7"), 0);
	f = file_open(w.client, number, O_RDONLY, &unchanged); /* it is in the trash */
	assert_int_equal(open_at_server(&w), 1);
	client_release(f);
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_that_was_listed_is_opened_without_the_server),
		cmocka_unit_test(of_a_file_that_was_written_here_the_server_is_not_asked_for_long),
		cmocka_unit_test(a_listing_that_comes_in_parts_brings_no_extents_again),
		cmocka_unit_test(a_server_that_is_silent_is_not_missed),
		cmocka_unit_test(the_name_goes_and_the_file_stays),
		cmocka_unit_test(company_is_told_of_what_is_open),
		cmocka_unit_test(one_that_was_cut_off_does_not_go_on_with_what_it_opened_by_itself),
		cmocka_unit_test(pages_of_before_are_dropped_by_all_who_open_until_one_has_read),
		cmocka_unit_test(pages_of_before_are_still_there_after_an_open_the_kernel_was_not_told_of),
		cmocka_unit_test(one_that_is_opened_for_writing_is_known_to_the_server),
		cmocka_unit_test(what_is_changed_here_is_read_anew),
		cmocka_unit_test(what_was_removed_is_not_opened_without_the_server),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
