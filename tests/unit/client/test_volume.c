/* The client against a real server in the same process, over its unix socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/client.h"
#include "client/state.h"
#include "puts.h"
#include "rpc/caller.h"
#include "server/server.h"
#include "world.h"

static struct client_file *file_make(struct world *w, const char *name, uint64_t *inode)
{
	struct client_file *f;
	struct entry e;
	assert_int_equal(client_create(w->client, client_root(w->client), name, 0644, O_EXCL | O_RDWR, &root, &f, &e), 0);
	*inode = e.attr.inode;
	return f;
}

static struct client_file *file_open(struct world *w, uint64_t inode, bool *unchanged)
{
	struct client_file *f;
	assert_int_equal(client_open(w->client, inode, O_RDWR, false, false, &f, unchanged), 0);
	return f;
}

/* Reads through and compares; beyond `size` there is nothing. */
static void expect_content(struct client_file *f, const uint8_t *want, size_t size)
{
	for (size_t at = 0; at < size + 1;) {
		size_t n = size + 1 - at < 100000 ? size + 1 - at : 100000, bytes, seen = 0;
		struct client_read *r;
		int count;
		assert_int_equal(client_read(f, at, n, &r), 0);
		const struct iovec *parts = client_read_parts(r, &count, &bytes);
		assert_int_equal(bytes, at + n <= size ? n : size - at);
		for (int k = 0; k < count; k++) {
			assert_memory_equal(parts[k].iov_base, want + at + seen, parts[k].iov_len);
			seen += parts[k].iov_len;
		}
		assert_int_equal(seen, bytes);
		client_read_release(r);
		at += n;
	}
}

static uint64_t size_of(struct world *w, uint64_t inode)
{
	struct entry e;
	assert_int_equal(client_getattr(w->client, inode, &e), 0);
	return e.attr.size;
}

static void what_was_written_is_read_back_before_and_after_it_is_stored(void **state)
{
	const char *codecs[] = { "none", "lz4", "zstd:3" };
	for (int k = 0; k < 3; k++) {
		struct world w;
		uint64_t inode;
		bool unchanged;
		size_t size = 5 * BLOCK + 1234;
		CLEANUP_FREE uint8_t *data = malloc(size);
		world_up(&w, codecs[k]);
		for (size_t i = 0; i < size; i++)
			data[i] = (uint8_t)(i * 31 + i / 5000);
		struct client_file *f = file_make(&w, "file", &inode);
		for (size_t at = 0; at < size; at += 10000)
			assert_int_equal(client_write(f, at, data + at, size - at < 10000 ? size - at : 10000, 0),
					 size - at < 10000 ? size - at : 10000);
		expect_content(f, data, size);
		assert_int_equal(size_of(&w, inode), size);
		assert_int_equal(client_fsync(f), 0);
		expect_content(f, data, size);
		client_release(f);
		f = file_open(&w, inode, &unchanged);
		assert_true(unchanged);
		expect_content(f, data, size);
		client_release(f);
		world_down(&w);
	}
}

static void write_from_a_buffer(struct world *w, struct client_file *f, uint64_t offset, const uint8_t *data, size_t n,
				bool *kept)
{
	uint8_t *buffer = client_buffer_take(w->client);
	assert_non_null(buffer);
	memcpy(buffer + 4096, data, n);
	assert_int_equal(client_write_buffer(f, offset, buffer + 4096, n, 0, buffer, kept), n);
	if (!*kept)
		client_buffer_give(w->client, buffer);
}

static void large_writes_hand_their_buffers_over_and_small_ones_do_not(void **state)
{
	const char *codecs[] = { "none", "lz4" };
	enum { MIB = 1 << 20, SIZE = 11 * MIB + 5000 };
	for (int k = 0; k < 2; k++) {
		struct world w;
		uint64_t inode;
		bool kept;
		CLEANUP_FREE uint8_t *data = malloc(SIZE);
		world_up_with(&w, codecs[k], 4 * MIB);
		for (size_t i = 0; i < SIZE; i++)
			data[i] = (uint8_t)(i * 31 + i / 5000);
		struct client_file *f = file_make(&w, "file", &inode);
		for (size_t at = 0; at < 10 * MIB; at += MIB) {
			write_from_a_buffer(&w, f, at, data + at, MIB, &kept);
			assert_true(kept);
		}
		write_from_a_buffer(&w, f, 10 * MIB, data + 10 * MIB, 4000, &kept);
		assert_false(kept);
		assert_int_equal(client_write(f, 10 * MIB + 4000, data + 10 * MIB + 4000, 1000, 0), 1000);
		write_from_a_buffer(&w, f, 10 * MIB + 5000, data + 10 * MIB + 5000, MIB, &kept);
		assert_true(kept);
		/* Across two blocks. */
		memset(data + 3 * MIB + 777, 'x', MIB);
		write_from_a_buffer(&w, f, 3 * MIB + 777, data + 3 * MIB + 777, MIB, &kept);
		assert_false(kept);
		expect_content(f, data, SIZE);
		assert_int_equal(client_fsync(f), 0);
		expect_content(f, data, SIZE);
		client_release(f);
		world_down(&w);
	}
}

/* Random writes, truncations, holes and clones against a flat model. */
static void a_file_equals_its_model_after_any_sequence_of_changes(void **state)
{
	enum { SIZE = 6 * BLOCK };
	const char *given = getenv("EPOCHFS_SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
	uint8_t *model = calloc(1, SIZE), *data = malloc(SIZE);
	size_t size = 0;
	struct world w;
	uint64_t inode;
	bool unchanged;
	print_message("seed %u (EPOCHFS_SEED repeats it)\n", seed);
	world_up(&w, "lz4");
	struct client_file *f = file_make(&w, "file", &inode);
	for (int step = 0; step < 400; step++) {
		size_t offset = rand_r(&seed) % (SIZE - BLOCK), n = 1 + rand_r(&seed) % (rand_r(&seed) % 4 ? 3000 : BLOCK);
		struct client_setattr s = { .valid = SET_SIZE };
		struct entry e;
		switch (rand_r(&seed) % 10) {
		case 0:
			s.size = rand_r(&seed) % SIZE;
			assert_int_equal(client_setattr(w.client, inode, &s, &e), 0);
			assert_int_equal(e.attr.size, s.size);
			if (s.size < size)
				memset(model + s.size, 0, size - s.size);
			size = s.size;
			break;
		case 1:
			assert_int_equal(client_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, n), 0);
			memset(model + offset, 0, n);
			break;
		case 2: assert_int_equal(client_fsync(f), 0); break;
		case 3:
			client_release(f);
			f = file_open(&w, inode, &unchanged);
			break;
		case 4:
			if (size > 2000) {
				size_t from = rand_r(&seed) % (size - 1000), length = 1000;
				size_t to = from + 1000 + rand_r(&seed) % 5000;
				assert_int_equal(client_copy_range(f, from, f, to, length), length);
				memcpy(model + to, model + from, length);
				size = to + length > size ? to + length : size;
			}
			break;
		default:
			for (size_t i = 0; i < n; i++)
				data[i] = (uint8_t)rand_r(&seed);
			assert_int_equal(client_write(f, offset, data, n, 0), n);
			memcpy(model + offset, data, n);
			size = offset + n > size ? offset + n : size;
		}
		assert_int_equal(size_of(&w, inode), size);
		expect_content(f, model, size);
	}
	client_release(f);
	world_down(&w);
	free(model);
	free(data);
}

static int objects_in(const char *folder)
{
	char command[160];
	int count = -1;
	snprintf(command, sizeof(command), "find '%s/objects/o' -type f | wc -l", folder);
	FILE *p = popen(command, "r");
	assert_int_equal(fread(command, 1, 20, p) > 0, 1);
	count = (int)strtol(command, NULL, 10);
	pclose(p);
	return count;
}

static void a_thousand_small_files_share_a_few_objects(void **state)
{
	struct world w;
	uint8_t data[10240];
	world_up(&w, "none");
	for (int k = 0; k < 1000; k++) {
		char name[32];
		uint64_t inode;
		snprintf(name, sizeof(name), "f%d", k);
		memset(data, k, sizeof(data));
		struct client_file *f = file_make(&w, name, &inode);
		assert_int_equal(client_write(f, 0, data, sizeof(data), 0), sizeof(data));
		client_release(f);
	}
	assert_int_equal(client_fsync_all(w.client), 0);
	/* Blocks are 64 KiB here: six files a pack at best. */
	assert_in_range(objects_in(w.folder), 1, 300);
	for (int k = 0; k < 1000; k += 37) {
		char name[32];
		struct entry e;
		bool unchanged;
		snprintf(name, sizeof(name), "f%d", k);
		assert_int_equal(client_lookup(w.client, client_root(w.client), name, &e), 0);
		assert_int_equal(e.attr.size, sizeof(data));
		struct client_file *f = file_open(&w, e.attr.inode, &unchanged);
		memset(data, k, sizeof(data));
		expect_content(f, data, sizeof(data));
		client_release(f);
	}
	world_down(&w);
}

/* Block by block, each as soon as it is full, and not when it is old enough (which takes ten seconds) or the file is closed. */
static void a_stream_is_stored_while_it_is_still_written(void **state)
{
	enum { BLOCKS = 16 };
	static uint8_t data[BLOCK];
	int64_t until = clock_steady_ns() + 8 * NS_PER_S;
	struct world w;
	uint64_t inode;
	int stored;
	world_up(&w, "none");
	struct client_file *f = file_make(&w, "stream", &inode);
	for (uint64_t k = 0; k < BLOCKS; k++) {
		memset(data, (int)k + 1, sizeof(data));
		assert_int_equal(client_write(f, k * BLOCK, data, sizeof(data), 0), BLOCK);
	}
	while ((stored = objects_in(w.folder)) < BLOCKS - 1) {
		if (clock_steady_ns() > until)
			fail_msg("only %d of %d blocks are stored", stored, BLOCKS);
		usleep(1000);
	}
	client_release(f);
	world_down(&w);
}

enum { STREAMS = 3 };

/* False: it took so long that what is old is stored, whole or not. */
static bool pieces_write(struct client_file *const files[STREAMS], unsigned blocks)
{
	enum { PIECE = BLOCK / 8 };
	static const uint8_t data[PIECE] = { 1 };
	int64_t began = clock_steady_ns();
	for (uint64_t at = 0; at < (uint64_t)blocks * BLOCK; at += PIECE) {
		for (int k = 0; k < STREAMS; k++)
			assert_int_equal(client_write(files[k], at, data, PIECE, 0), PIECE);
		usleep(2000); /* in which a thread with nothing to do could take it */
	}
	return clock_steady_ns() - began < NS_PER_S;
}

static void blocks_that_are_written_in_pieces_are_stored_whole(void **state)
{
	enum { BLOCKS = 6, TRIES = 20 };
	struct client_file *files[STREAMS];
	struct world w;
	bool in_time = false;
	world_up(&w, "none");
	for (int try = 0; try < TRIES && !in_time; try++) {
		int before = objects_in(w.folder);
		char name[32];
		uint64_t inode;
		for (int k = 0; k < STREAMS; k++) {
			snprintf(name, sizeof(name), "f%d-%d", try, k);
			files[k] = file_make(&w, name, &inode);
		}
		in_time = pieces_write(files, BLOCKS);
		for (int k = 0; k < STREAMS; k++) {
			assert_int_equal(client_fsync(files[k]), 0);
			client_release(files[k]);
		}
		if (in_time)
			assert_int_equal(objects_in(w.folder) - before, STREAMS * BLOCKS);
	}
	assert_true(in_time);
	world_down(&w);
}

static void a_restarted_server_finds_files_open_and_half_written(void **state)
{
	struct world w;
	uint64_t inode, gone;
	uint8_t data[3000];
	world_up(&w, "none");
	memset(data, 'a', sizeof(data));
	struct client_file *f = file_make(&w, "half", &inode), *g = file_make(&w, "nameless", &gone);
	assert_int_equal(client_write(f, 0, data, 1000, 0), 1000);
	assert_int_equal(client_write(g, 0, data, sizeof(data), 0), sizeof(data));
	assert_int_equal(client_fsync(g), 0);
	assert_int_equal(client_unlink(w.client, client_root(w.client), "nameless"), 0);
	for (int k = 0; k < 3; k++) {
		server_stop(w.server);
		server_up(&w);
		assert_int_equal(client_write(f, 1000 + (size_t)k * 500, data, 500, 0), 500);
		assert_int_equal(client_fsync(f), 0);
		expect_content(g, data, sizeof(data));
	}
	expect_content(f, data, 2500);
	client_release(f);
	client_release(g);
	world_down(&w);
}

struct writer {
	struct world *world;
	int number;
};

static void *writer_thread(void *context)
{
	struct writer *t = context;
	unsigned seed = (unsigned)t->number;
	uint8_t *data = malloc(3 * BLOCK);
	for (int k = 0; k < 30; k++) {
		char name[32], other[40];
		uint64_t inode;
		size_t size = 1 + rand_r(&seed) % (3 * BLOCK);
		memset(data, t->number * 30 + k, size);
		snprintf(name, sizeof(name), "t%d-%d", t->number, k);
		snprintf(other, sizeof(other), "%s-renamed", name);
		struct client_file *f = file_make(t->world, name, &inode);
		assert_int_equal(client_write(f, 0, data, size, 0), size);
		if (k % 3 == 0)
			assert_int_equal(client_fsync(f), 0);
		if (k % 3 == 1)
			assert_int_equal(client_rename(t->world->client, client_root(t->world->client), name,
						       client_root(t->world->client), other, 0),
					 0);
		expect_content(f, data, size);
		client_release(f);
		if (k % 5 == 0)
			assert_int_equal(
				client_unlink(t->world->client, client_root(t->world->client), k % 3 == 1 ? other : name), 0);
	}
	free(data);
	return NULL;
}

static void several_threads_write_rename_and_delete_without_disturbing_each_other(void **state)
{
	struct world w;
	struct writer writers[4];
	pthread_t threads[4];
	world_up(&w, "none");
	for (int k = 0; k < 4; k++) {
		writers[k] = (struct writer){ &w, k };
		assert_int_equal(pthread_create(&threads[k], NULL, writer_thread, &writers[k]), 0);
	}
	for (int k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	world_down(&w);
}

static void holes_are_found_where_nothing_was_written(void **state)
{
	struct world w;
	uint64_t inode, at;
	uint8_t data[1000] = { 1 };
	world_up(&w, "none");
	struct client_file *f = file_make(&w, "sparse", &inode);
	assert_int_equal(client_write(f, 10 * BLOCK, data, sizeof(data), 0), sizeof(data));
	assert_int_equal(client_lseek(f, 0, SEEK_DATA, &at), 0);
	assert_int_equal(at, 10 * BLOCK);
	assert_int_equal(client_lseek(f, 0, SEEK_HOLE, &at), 0);
	assert_int_equal(at, 0);
	assert_int_equal(client_lseek(f, 10 * BLOCK + 5, SEEK_HOLE, &at), 0);
	assert_int_equal(at, 10 * BLOCK + 1000);
	assert_int_equal(client_lseek(f, 10 * BLOCK + 1000, SEEK_DATA, &at), -ENXIO);
	client_release(f);
	world_down(&w);
}

static uint64_t sought(struct client_file *f, uint64_t offset, int whence)
{
	uint64_t at;
	int r = client_lseek(f, offset, whence, &at);
	return r < 0 ? (uint64_t)r : at;
}

/* Whatever lies between the extents, a byte of data makes its 4096 bytes data, up to the end of the file. */
static void data_and_holes_are_told_in_units(void **state)
{
	struct client_setattr cut = { .valid = SET_SIZE, .size = 5 * 4096 + 10 };
	static const uint64_t written[] = { 5, 700, 8191, 3 * 4096 };
	struct world w;
	struct entry e;
	uint64_t inode;
	world_up(&w, "none");
	struct client_file *f = file_make(&w, "specks", &inode);
	for (size_t k = 0; k < sizeof(written) / sizeof(written[0]); k++)
		assert_int_equal(client_write(f, written[k], "x", 1, 0), 1);
	assert_int_equal(client_setattr(w.client, inode, &cut, &e), 0);
	assert_int_equal(sought(f, 0, SEEK_DATA), 0);
	assert_int_equal(sought(f, 0, SEEK_HOLE), 8192);
	assert_int_equal(sought(f, 701, SEEK_DATA), 701); /* the byte after the last one of its unit */
	assert_int_equal(sought(f, 4096, SEEK_DATA), 4096);
	assert_int_equal(sought(f, 4097, SEEK_HOLE), 8192);
	assert_int_equal(sought(f, 8191, SEEK_HOLE), 8192);
	assert_int_equal(sought(f, 8192, SEEK_HOLE), 8192);
	assert_int_equal(sought(f, 8193, SEEK_HOLE), 8193);
	assert_int_equal(sought(f, 8193, SEEK_DATA), 3 * 4096);
	assert_int_equal(sought(f, 4 * 4096 - 1, SEEK_DATA), 4 * 4096 - 1);
	assert_int_equal(sought(f, 3 * 4096, SEEK_HOLE), 4 * 4096);
	assert_int_equal(sought(f, 4 * 4096, SEEK_DATA), (uint64_t)-ENXIO);
	assert_int_equal(client_write(f, 5 * 4096 + 1, "x", 1, 0), 1);
	assert_int_equal(sought(f, 4 * 4096, SEEK_DATA), 5 * 4096);
	assert_int_equal(sought(f, 5 * 4096, SEEK_HOLE), 5 * 4096 + 10);
	assert_int_equal(sought(f, 5 * 4096 + 9, SEEK_DATA), 5 * 4096 + 9);
	assert_int_equal(sought(f, 5 * 4096 + 10, SEEK_HOLE), (uint64_t)-ENXIO);
	client_release(f);
	world_down(&w);
}

/* ---- Puts that are held up ---- */

static void blocks_are_put_beside_each_other_and_committed_one_after_the_other(void **state)
{
	enum { BLOCKS = 3 }; /* the fourth thread is left for another file */
	CLEANUP_FREE uint8_t *data = malloc(BLOCKS * BLOCK);
	uint64_t inode, other, ends[BLOCKS + 1];
	struct client_file *f, *g;
	struct world w;
	int early;
	world_up(&w, "none");
	f = file_make(&w, "file", &inode);
	g = file_make(&w, "other", &other);
	for (int k = 0; k < BLOCKS; k++)
		memset(data + k * BLOCK, k + 1, BLOCK);
	puts_hold(1); /* the first block */
	for (int k = 0; k < BLOCKS; k++)
		assert_int_equal(client_write(f, (uint64_t)k * BLOCK, data + k * BLOCK, BLOCK, 0), BLOCK);
	AWAIT(puts_done() == BLOCKS - 1);
	/* Meanwhile a block that did not wait for the first would be committed. */
	assert_int_equal(client_write(g, 0, "x", 1, 0), 1);
	assert_int_equal(client_fsync(g), 0);
	early = commits_of(inode, ends, BLOCKS);
	puts_go_on();
	assert_int_equal(early, 0);
	assert_int_equal(client_fsync(f), 0);
	assert_int_equal(commits_of(inode, ends, BLOCKS + 1), BLOCKS);
	for (int k = 0; k < BLOCKS; k++)
		assert_int_equal(ends[k], (k + 1) * BLOCK);
	expect_content(f, data, BLOCKS * BLOCK);
	client_release(f);
	client_release(g);
	world_down(&w);
}

enum { MEMORY = 8 * BLOCK, PIECE = BLOCK / 8 };

static struct client *client_with_little_memory(struct world *w)
{
	struct client_options o = { .servers = w->address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/x",
				    .timeout_ms = 20000,
				    .dirty_bytes = MEMORY };
	struct client *client;
	char error[512] = "";
	if (client_connect(&o, &client, error, sizeof(error)) < 0)
		fail_msg("client: %s", error);
	return client;
}

/* As `epochfs status` shows it. */
static uint64_t write_memory(struct client *c)
{
	LOCKED(&c->uploader.lock);
	return c->uploader.cost;
}

static bool waits_for_room(struct client *c)
{
	LOCKED(&c->uploader.lock);
	return c->uploader.room_waiters > 0;
}

struct stream {
	struct client *client;
	struct client_file *file;
	const uint8_t *data;
	uint64_t size, most_memory;
	_Atomic uint64_t written;
	_Atomic bool ended;
};

static void *stream_run(void *context)
{
	struct stream *s = context;
	while (s->written < s->size && client_write(s->file, s->written, s->data + s->written, PIECE, 0) == PIECE) {
		uint64_t memory = write_memory(s->client);
		s->most_memory = memory > s->most_memory ? memory : s->most_memory;
		s->written += PIECE;
	}
	s->ended = true;
	return NULL;
}

static void who_writes_more_than_memory_may_hold_waits_until_it_is_stored(void **state)
{
	enum { SIZE = 4 * MEMORY };
	CLEANUP_FREE uint8_t *data = malloc(SIZE);
	struct stream s = { .data = data, .size = SIZE };
	uint64_t inode, unstored, memory;
	struct world w;
	bool unchanged;
	pthread_t thread;
	for (size_t i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(i * 31 + i / 5000);
	world_up(&w, "none");
	assert_int_equal(client_disconnect(w.client), 0);
	s.client = w.client = client_with_little_memory(&w);
	s.file = file_make(&w, "stream", &inode);
	puts_hold(PUTS_ALL);
	assert_int_equal(pthread_create(&thread, NULL, stream_run, &s), 0);
	AWAIT(waits_for_room(w.client) || s.ended);
	unstored = s.written;
	memory = write_memory(w.client);
	puts_go_on();
	pthread_join(thread, NULL);
	assert_int_equal(s.written, SIZE);
	assert_in_range(unstored, MEMORY / 2, MEMORY);
	assert_true(memory >= unstored);
	/* What is let in by its bytes may begin a block, and that has memory for all of it. */
	assert_in_range(s.most_memory, MEMORY / 2, MEMORY + BLOCK);
	assert_int_equal(client_fsync(s.file), 0);
	assert_int_equal(write_memory(w.client), 0);
	client_release(s.file);
	assert_int_equal(client_disconnect(w.client), 0);
	w.client = client_up(&w);
	s.file = file_open(&w, inode, &unchanged);
	expect_content(s.file, data, SIZE);
	client_release(s.file);
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_is_read_back_before_and_after_it_is_stored),
		cmocka_unit_test(large_writes_hand_their_buffers_over_and_small_ones_do_not),
		cmocka_unit_test(a_file_equals_its_model_after_any_sequence_of_changes),
		cmocka_unit_test(a_thousand_small_files_share_a_few_objects),
		cmocka_unit_test(blocks_that_are_written_in_pieces_are_stored_whole),
		cmocka_unit_test(a_stream_is_stored_while_it_is_still_written),
		cmocka_unit_test(a_restarted_server_finds_files_open_and_half_written),
		cmocka_unit_test(several_threads_write_rename_and_delete_without_disturbing_each_other),
		cmocka_unit_test(holes_are_found_where_nothing_was_written),
		cmocka_unit_test(data_and_holes_are_told_in_units),
		cmocka_unit_test(blocks_are_put_beside_each_other_and_committed_one_after_the_other),
		cmocka_unit_test(who_writes_more_than_memory_may_hold_waits_until_it_is_stored),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
