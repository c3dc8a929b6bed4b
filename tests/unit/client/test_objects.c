/* Objects read from their files and by call, from a server in the same process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "block/object.h"
#include "client/state.h"
#include "world.h"

#define MIB (1u << 20)
#define SIZE (9 * MIB + 5000)

/* A file of three objects, stored; its first extent. */
static struct extent file_store(struct world *w, const uint8_t *data)
{
	struct client_file *f;
	struct entry entry;
	struct extent e;
	assert_int_equal(client_create(w->client, client_root(w->client), "file", S_IFREG | 0644, O_RDWR, &root, &f, &entry), 0);
	assert_int_equal(client_write(f, 0, data, SIZE, 0), SIZE);
	assert_int_equal(client_fsync(f), 0);
	pthread_mutex_lock(&f->inode->lock);
	assert_int_equal(window_cover(f->inode, 0, SIZE), 0);
	assert_true(f->inode->window.count >= 3);
	e = f->inode->window.extents[0];
	pthread_mutex_unlock(&f->inode->lock);
	client_release(f);
	return e;
}

static uint8_t *noise(void)
{
	uint8_t *data = malloc(SIZE);
	for (uint32_t i = 0; i < SIZE; i++)
		data[i] = (uint8_t)((i * 2654435761u) >> 13);
	return data;
}

/* Reads by two parts of a page-aligned buffer, and compares. */
static void expect(struct world *w, const struct extent *e, const uint8_t *data, uint32_t offset, uint32_t length)
{
	CLEANUP_FREE uint8_t *got = aligned_alloc(4096, 5 * MIB);
	uint32_t half = length / 2 / 4096 * 4096;
	struct iovec parts[] = { { got, half }, { got + half, length - half } };
	memset(got, 0xee, 5 * MIB);
	assert_int_equal(object_fetch(w->client, &(struct extent){ .object = e->object, .raw_length = 1 },
				      e->object_offset + offset, length, parts, 2),
			 0);
	assert_memory_equal(got, data + offset, length);
	assert_int_equal(got[length], 0xee);
}

static size_t files_open(struct world *w, bool direct)
{
	struct descriptors *all = direct ? &w->client->objects.direct : &w->client->objects.files;
	LOCKED(&all->lock);
	return all->map.used;
}

static void a_server_on_this_host_gives_its_files(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	struct extent e = file_store(&w, data);
	expect(&w, &e, data, 0, 4 * MIB);
	assert_int_equal(files_open(&w, true), 1);
	expect(&w, &e, data, 4096, 2 * MIB);
	expect(&w, &e, data, MIB, 2 * MIB + 8192);
	assert_int_equal(files_open(&w, false), 0);
	expect(&w, &e, data, 5, 3000);
	expect(&w, &e, data, 777, 3 * MIB);
	expect(&w, &e, data, 4096, 2 * MIB + 55);
	assert_int_equal(files_open(&w, false), 1);
	assert_int_equal(atomic_load(&w.client->objects.not_before), 0);
	assert_int_equal(object_fetch(w.client, &(struct extent){ .object = 999999, .raw_length = 1 }, 0, 100,
				      &(struct iovec){ data, 100 }, 1),
			 -ENOENT);
	world_down(&w);
}

static void without_files_objects_come_by_call(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	struct extent e = file_store(&w, data);
	atomic_store(&w.client->objects.not_before, INT64_MAX);
	expect(&w, &e, data, 0, 4 * MIB);
	expect(&w, &e, data, 5, 3000);
	assert_int_equal(files_open(&w, true) + files_open(&w, false), 0);
	assert_int_equal(object_fetch(w.client, &(struct extent){ .object = 999999, .raw_length = 1 }, 0, 100,
				      &(struct iovec){ data, 100 }, 1),
			 -ENOENT);
	world_down(&w);
}

static void where_the_page_cache_cannot_be_passed_it_is_used(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	struct extent e = file_store(&w, data);
	atomic_store(&w.client->objects.no_direct, true);
	expect(&w, &e, data, 0, 4 * MIB);
	assert_int_equal(files_open(&w, false), 1);
	assert_int_equal(files_open(&w, true), 0);
	world_down(&w);
}

static void a_file_cut_short_is_told_as_the_server_tells_it(void **state)
{
	CLEANUP_FREE uint8_t *data = noise(), *got = aligned_alloc(4096, 4 * MIB);
	char path[200], key[OBJECT_KEY_TEXT];
	struct iovec into = { got, 4 * MIB }, little = { got, 1000 };
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	struct extent e = file_store(&w, data);
	expect(&w, &e, data, 0, 4 * MIB);
	expect(&w, &e, data, 5, 3000);
	snprintf(path, sizeof(path), "%s/objects/%s", w.folder, object_key(key, e.object));
	assert_int_equal(truncate(path, 2000), 0);
	assert_int_equal(object_fetch(w.client, &(struct extent){ .object = e.object, .raw_length = 1 }, 0, 4 * MIB, &into, 1),
			 -ERANGE);
	assert_int_equal(object_fetch(w.client, &(struct extent){ .object = e.object, .raw_length = 1 }, 1500, 1000, &little, 1),
			 -ERANGE);
	expect(&w, &e, data, 0, 2000);
	world_down(&w);
}

/* So that its disk can be unmounted. */
static void files_are_closed_soon_also_when_the_server_is_gone(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	struct extent e = file_store(&w, data);
	expect(&w, &e, data, 0, 4 * MIB);
	expect(&w, &e, data, 5, 3000);
	assert_int_equal(files_open(&w, true) + files_open(&w, false), 2);
	server_stop(w.server);
	for (int n = 0; files_open(&w, true) + files_open(&w, false) > 0; n++) {
		assert_true(n < 4000);
		usleep(5000);
	}
	server_up(&w);
	expect(&w, &e, data, 0, 4 * MIB);
	expect(&w, &e, data, 5, 3000);
	world_down(&w);
}

/* Written as mounts do, in buffers that are kept.  Read by another client, which has nothing of it. */
static void expect_stored(struct world *w, const uint8_t *data, bool restarted)
{
	const struct iovec *parts;
	struct client *other;
	struct client_file *f;
	struct client_read *r;
	struct entry entry;
	bool unchanged, kept;
	uint8_t *buffer;
	size_t bytes;
	int count;
	assert_int_equal(client_create(w->client, client_root(w->client), "shown", S_IFREG | 0644, O_RDWR, &root, &f, &entry), 0);
	for (uint32_t at = 0; at < SIZE; at += MIB) {
		uint32_t n = SIZE - at < MIB ? SIZE - at : MIB;
		if (restarted && at == 5 * MIB) {
			server_stop(w->server);
			server_up(w);
		}
		buffer = client_buffer_take(w->client);
		memcpy(buffer + 4096, data + at, n);
		assert_int_equal(client_write_buffer(f, at, buffer + 4096, n, 0, buffer, &kept), n);
		if (!kept)
			client_buffer_give(w->client, buffer);
	}
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
	other = client_up(w);
	assert_int_equal(client_open(other, entry.attr.inode, O_RDONLY, false, false, &f, &unchanged), 0);
	for (size_t at = 0; at < SIZE; at += bytes) {
		size_t seen = at;
		assert_int_equal(client_read(f, at, MIB, &r), 0);
		parts = client_read_parts(r, &count, &bytes);
		assert_true(bytes > 0);
		for (int i = 0; i < count; seen += parts[i++].iov_len)
			assert_memory_equal(parts[i].iov_base, data + seen, parts[i].iov_len);
		client_read_release(r);
	}
	client_release(f);
	client_disconnect(other);
}

static void objects_are_shown_to_a_server_on_this_host(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	assert_non_null(w.client->uploader.region);
	expect_stored(&w, data, false);
	assert_int_equal(atomic_load(&w.client->uploader.region_not_before), 0);
	world_down(&w);
}

static void what_the_server_cannot_look_at_is_sent(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	int null = open("/dev/null", O_RDONLY);
	world_up_with(&w, "none", 4 * MIB);
	assert_true(dup2(null, region_descriptor(w.client->uploader.region)) >= 0);
	expect_stored(&w, data, false);
	assert_true(atomic_load(&w.client->uploader.region_not_before) > 0); /* it was tried */
	close(null);
	world_down(&w);
}

static void a_restarted_server_is_shown_objects_as_the_one_before(void **state)
{
	CLEANUP_FREE uint8_t *data = noise();
	struct world w;
	world_up_with(&w, "none", 4 * MIB);
	expect_stored(&w, data, true);
	assert_int_equal(atomic_load(&w.client->uploader.region_not_before), 0);
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_server_on_this_host_gives_its_files),
		cmocka_unit_test(without_files_objects_come_by_call),
		cmocka_unit_test(where_the_page_cache_cannot_be_passed_it_is_used),
		cmocka_unit_test(files_are_closed_soon_also_when_the_server_is_gone),
		cmocka_unit_test(a_file_cut_short_is_told_as_the_server_tells_it),
		cmocka_unit_test(objects_are_shown_to_a_server_on_this_host),
		cmocka_unit_test(what_the_server_cannot_look_at_is_sent),
		cmocka_unit_test(a_restarted_server_is_shown_objects_as_the_one_before),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
