/* What is fetched, by whom and how often, when files are read in different ways; from a server in the same process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "client/state.h"
#include "client/warm.h"
#include "world.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define READ (128 * KIB)
#define TABLES(bytes) ((bytes) / 512) /* of chunks: 12 bytes for 64 KiB, and what is fetched around them */

struct scene {
	struct world w;
	char cache[80];
};

static uint8_t byte_at(unsigned salt, uint64_t offset) { return (uint8_t)(((offset / 3 + salt) * 2654435761u) >> 11); }

/* The client anew, with nothing in memory. */
static void reader_up_with(struct scene *s, const struct client_options *o)
{
	char error[512] = "";

	if (s->w.client)
		assert_int_equal(client_disconnect(s->w.client), 0);
	if (client_connect(o, &s->w.client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

static void reader_up(struct scene *s, uint64_t memory, uint64_t readahead, bool disk)
{
	const char *dirs[] = { s->cache };
	struct client_options o = { .servers = s->w.address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/x",
				    .timeout_ms = 20000,
				    .cache_bytes = memory,
				    .readahead_bytes = readahead,
				    .cache_dirs = dirs,
				    .cache_dir_count = disk,
				    .cache_size = { .bytes = 1u << 30 } };

	reader_up_with(s, &o);
}

/* Which is not told of files being opened. */
static void viewer_up(struct scene *s, bool disk)
{
	const char *dirs[] = { s->cache };
	struct client_options o = { .servers = s->w.address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/x",
				    .timeout_ms = 20000,
				    .read_only = true,
				    .parallel = 1,
				    .readahead_bytes = 64 * MIB,
				    .cache_dirs = dirs,
				    .cache_dir_count = disk,
				    .cache_size = { .bytes = 1u << 30 } };

	reader_up_with(s, &o);
}

static void scene_set(struct scene *s, uint32_t block)
{
	world_up_with(&s->w, "none", block);
	snprintf(s->cache, sizeof(s->cache), "%s/cache", s->w.folder);
}

static void scene_end(struct scene *s) { world_down(&s->w); }

static void stretch_write(struct client_file *f, unsigned salt, uint64_t from, uint64_t to)
{
	CLEANUP_FREE uint8_t *data = malloc(MIB);

	for (uint64_t at = from; at < to; at += MIB) {
		for (uint32_t k = 0; k < MIB; k++)
			data[k] = byte_at(salt, at + k);
		assert_int_equal(client_write(f, at, data, MIB, 0), MIB);
	}
	assert_int_equal(client_fsync(f), 0);
}

static void content_write(struct client_file *f, unsigned salt, uint64_t size) { stretch_write(f, salt, 0, size); }

static uint64_t file_make(struct scene *s, unsigned salt, uint64_t size)
{
	struct client_file *f;
	struct entry e;
	char name[32];

	snprintf(name, sizeof(name), "file%u", salt);
	assert_int_equal(client_create(s->w.client, client_root(s->w.client), name, S_IFREG | 0644, O_RDWR, &root, &f, &e), 0);
	content_write(f, salt, size);
	client_release(f);
	return e.attr.inode;
}

static struct client_file *file_open(struct client *c, uint64_t inode)
{
	struct client_file *f;
	bool unchanged;

	assert_int_equal(client_open(c, inode, O_RDONLY, false, false, &f, &unchanged), 0);
	return f;
}

static void expect(struct client_file *f, unsigned salt, uint64_t offset, size_t size)
{
	struct client_read *r;
	const struct iovec *parts;
	size_t bytes;
	int count;

	assert_int_equal(client_read(f, offset, size, &r), 0);
	parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, size);
	for (int i = 0; i < count; offset += parts[i++].iov_len)
		for (size_t k = 0; k < parts[i].iov_len; k += 61)
			if (((const uint8_t *)parts[i].iov_base)[k] != byte_at(salt, offset + k))
				fail_msg("file %u, byte %lu", salt, (unsigned long)(offset + k));
	client_read_release(r);
}

static void expect_range(struct client_file *f, unsigned salt, uint64_t from, uint64_t to)
{
	for (; from < to; from += READ)
		expect(f, salt, from, READ);
}

/* When nothing is being fetched any more. */
static struct client_stats stats(struct scene *s)
{
	struct prefetcher *p = &s->w.client->prefetcher;
	struct client_stats out;

	for (;;) {
		pthread_mutex_lock(&p->lock);
		bool idle = p->queue.count == 0 && p->asides.count == 0 && p->busy == 0;
		pthread_mutex_unlock(&p->lock);
		if (idle)
			break;
		usleep(1000);
	}
	client_stats(s->w.client, &out);
	return out;
}

static void a_file_read_from_end_to_end_is_fetched_once_and_ahead(void **state)
{
	uint64_t size = 24 * MIB, memory = 16 * MIB;
	struct scene s;

	scene_set(&s, 4 * MIB);
	uint64_t inode = file_make(&s, 1, size);
	reader_up(&s, memory, 64 * MIB, false);
	struct client_file *f = file_open(s.w.client, inode);
	expect_range(f, 1, 0, size);
	struct client_stats n = stats(&s);
	assert_in_range(n.server_bytes, size, size + TABLES(size));
	assert_int_equal(n.reads, size / READ);
	assert_int_equal(n.read_bytes, size);
	/* All but the first were on their way, but for those where the reader was quicker than a thread. */
	assert_in_range(n.memory_reads, n.reads / 4, n.reads - 1);
	assert_in_range(n.ahead_fetched, size / 4, size - READ);
	assert_int_equal(n.ahead_used, n.ahead_fetched);
	assert_int_equal(n.ahead_wasted + n.ahead_unread, 0);
	assert_int_equal(n.disk_reads, 0);
	assert_true(n.round_trips > 0);
	assert_int_equal(atomic_load(&s.w.client->streams), 0); /* it has arrived at the end */
	client_release(f);
	scene_end(&s);
}

static void without_read_ahead_nothing_is_fetched_that_is_not_read(void **state)
{
	struct scene s;

	scene_set(&s, MIB);
	uint64_t inode = file_make(&s, 1, 4 * MIB);
	reader_up(&s, 16 * MIB, 0, false);
	struct client_file *f = file_open(s.w.client, inode);
	expect_range(f, 1, 0, 2 * MIB);
	struct client_stats n = stats(&s);
	assert_int_equal(n.ahead_fetched, 0);
	assert_int_equal(n.memory_reads, 0);
	assert_in_range(n.server_bytes, 2 * MIB, 2 * MIB + TABLES(2 * MIB));
	client_release(f);
	scene_end(&s);
}

/* As faults of a mapping come, that was advised MADV_RANDOM. */
static void random_reads_fetch_a_chunk_each_and_nothing_ahead(void **state)
{
	for (int disk = 0; disk <= 1; disk++) {
		unsigned seed = 5;
		struct scene s;
		int distinct = 0;

		scene_set(&s, 4 * MIB);
		uint64_t inode = file_make(&s, 1, 64 * MIB);
		reader_up(&s, 64 * MIB, 64 * MIB, disk);
		struct client_file *f = file_open(s.w.client, inode);
		uint8_t read[64 * MIB / CHUNK_BYTES] = { 0 };
		for (int i = 0; i < 200; i++) {
			uint32_t page = (uint32_t)rand_r(&seed) % (64 * MIB / 4096);
			distinct += !read[page / 16];
			read[page / 16] = 1;
			expect(f, 1, (uint64_t)page * 4096, 4096);
		}
		struct client_stats n = stats(&s);
		assert_int_equal(n.ahead_fetched, 0);
		assert_in_range(n.server_bytes, distinct * CHUNK_BYTES, distinct * CHUNK_BYTES + TABLES(64 * MIB));
		client_release(f);
		scene_end(&s);
	}
}

struct stream {
	struct client_file *file;
	unsigned salt;
	uint64_t size;
};

static void *stream_run(void *context)
{
	struct stream *m = context;

	expect_range(m->file, m->salt, 0, m->size);
	return NULL;
}

static void eight_readers_with_little_memory_fetch_each_byte_once(void **state)
{
	uint64_t size = 8 * MIB;
	struct stream streams[8];
	pthread_t threads[8];
	uint64_t inodes[8];
	struct scene s;

	scene_set(&s, MIB);
	for (unsigned i = 0; i < 8; i++)
		inodes[i] = file_make(&s, i, size);
	reader_up(&s, 8 * MIB, 64 * MIB, false);
	for (unsigned i = 0; i < 8; i++)
		streams[i] = (struct stream){ file_open(s.w.client, inodes[i]), i, size };
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, stream_run, &streams[i]), 0);
	for (unsigned i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	struct client_stats n = stats(&s);
	/* What a reader that was quicker has read and nobody kept is fetched for nothing. */
	assert_in_range(n.ahead_wasted + n.ahead_unread, 0, size);
	assert_in_range(n.ahead_used, size, 8 * size); /* where threads are late readers fetch themselves */
	assert_in_range(n.server_bytes, 8 * size, 8 * size + size);
	for (unsigned i = 0; i < 8; i++)
		client_release(streams[i].file);
	scene_end(&s);
}

static void two_places_of_one_descriptor_are_read_ahead_of(void **state)
{
	struct scene s;

	scene_set(&s, 4 * MIB);
	uint64_t inode = file_make(&s, 1, 48 * MIB);
	reader_up(&s, 64 * MIB, 8 * MIB, false);
	struct client_file *f = file_open(s.w.client, inode);
	for (uint64_t at = 0; at < 16 * MIB; at += READ) {
		expect(f, 1, at, READ);
		expect(f, 1, 20 * MIB + at, READ);
	}
	struct client_stats n = stats(&s);
	assert_true(n.memory_reads >= n.reads / 4 && n.ahead_used > 8 * MIB); /* the second one is trusted after 4 MiB */
	assert_in_range(n.server_bytes, 32 * MIB, 32 * MIB + 16 * MIB + TABLES(48 * MIB)); /* each is up to 8 MiB ahead */
	client_release(f);
	scene_end(&s);
}

static void what_was_fetched_ahead_of_a_change_is_not_read_after_it(void **state)
{
	for (int disk = 0; disk <= 1; disk++) {
		uint64_t size = 16 * MIB;
		struct scene s;

		scene_set(&s, MIB);
		uint64_t inode = file_make(&s, 1, size);
		reader_up(&s, 64 * MIB, 64 * MIB, disk);
		struct client_file *f = file_open(s.w.client, inode);
		expect_range(f, 1, 0, 8 * MIB);
		assert_true(stats(&s).ahead_fetched > 8 * MIB);
		struct client *other = client_up(&s.w);
		struct client_file *w;
		bool unchanged;
		assert_int_equal(client_open(other, inode, O_RDWR, false, false, &w, &unchanged), 0);
		content_write(w, 2, size);
		client_release(w);
		expect_range(f, 2, 8 * MIB, size);
		expect_range(f, 2, 0, 8 * MIB);
		assert_int_equal(client_disconnect(other), 0);
		client_release(f);
		scene_end(&s);
	}
}

static void a_file_that_is_closed_is_read_ahead_of_no_more(void **state)
{
	struct scene s;

	scene_set(&s, MIB);
	uint64_t inode = file_make(&s, 1, 32 * MIB);
	reader_up(&s, 64 * MIB, 64 * MIB, false);
	for (int turn = 0; turn < 20; turn++) {
		struct client_file *f = file_open(s.w.client, inode);
		expect_range(f, 1, 0, MIB);
		client_release(f);
		assert_int_equal(atomic_load(&s.w.client->streams), 0);
	}
	struct client_stats n = stats(&s);
	assert_true(n.server_bytes <= 1 * MIB + 4 * MIB + TABLES(32 * MIB)); /* the window, however often */
	assert_int_equal(prefetch_pending(s.w.client), 0);
	scene_end(&s);
}

/* Those that were read without having been opened are closed when all that fetches ahead has ended. */
static void a_mount_ends_while_files_are_read_ahead_of(void **state)
{
	for (int disk = 0; disk <= 1; disk++) {
		uint64_t inodes[6];
		struct scene s;

		scene_set(&s, MIB);
		for (unsigned i = 0; i < 6; i++)
			inodes[i] = file_make(&s, i, 16 * MIB);
		viewer_up(&s, disk);
		struct prefetcher *p = &s.w.client->prefetcher;
		uint32_t waiting = 0;
		for (unsigned i = 0; i < 6; i++) {
			struct client_file *f;
			assert_int_equal(client_view(s.w.client, inodes[i], &f), 0);
			expect_range(f, i, 0, 2 * MIB);
			client_view_end(f);
		}
		pthread_mutex_lock(&p->lock);
		waiting = p->queue.count;
		pthread_mutex_unlock(&p->lock);
		assert_true(waiting > 0); /* one thread is not done with all of it yet */
		scene_end(&s);
	}
}

static void read_ahead_to_the_disk_is_counted_too(void **state)
{
	uint64_t size = 24 * MIB;
	struct scene s;

	scene_set(&s, 4 * MIB);
	uint64_t inode = file_make(&s, 1, size);
	reader_up(&s, 8 * MIB, 64 * MIB, true);
	struct client_file *f = file_open(s.w.client, inode);
	for (uint64_t at = 0; at < size; at += READ) {
		expect(f, 1, at, READ);
		stats(&s); /* what was read ahead is there when it is read */
	}
	struct client_stats n = stats(&s);
	assert_in_range(n.server_bytes, size, size + TABLES(size));
	assert_true(n.ahead_fetched >= size - MIB);
	assert_true(n.ahead_used >= size - MIB && n.ahead_used <= size);
	assert_true(n.disk_reads > 0);
	client_release(f);
	reader_up(&s, 64 * MIB, 64 * MIB, true);
	f = file_open(s.w.client, inode);
	expect_range(f, 1, 0, size);
	n = stats(&s);
	assert_true(n.server_bytes <= READ + TABLES(size));
	assert_true(n.disk_bytes >= size - MIB);
	client_release(f);
	scene_end(&s);
}

/* However fast it is read, and however little memory there is. */
static void all_that_was_read_is_on_the_disk_and_was_fetched_once(void **state)
{
	uint64_t size = 32 * MIB;
	struct scene s;

	scene_set(&s, 4 * MIB);
	uint64_t inode = file_make(&s, 1, size);
	for (int turn = 0; turn < 2; turn++) {
		reader_up(&s, 8 * MIB, turn ? 0 : 64 * MIB, true);
		struct client_file *f = file_open(s.w.client, inode);
		expect_range(f, 1, 0, size);
		struct client_stats n = stats(&s);
		if (turn)
			assert_in_range(n.server_bytes, 0, READ + TABLES(size));
		else
			assert_in_range(n.server_bytes, size, size + size / 4); /* a reader and a thread may both come too late */
		client_release(f);
	}
	scene_end(&s);
}

/* By another client. */
static void rewrite(struct scene *s, uint64_t inode, unsigned salt, uint64_t from, uint64_t to)
{
	struct client *other = client_up(&s->w);
	struct client_file *f;
	bool unchanged;

	assert_int_equal(client_open(other, inode, O_RDWR, false, false, &f, &unchanged), 0);
	stretch_write(f, salt, from, to);
	client_release(f);
	assert_int_equal(client_disconnect(other), 0);
}

/* Too little of it is read to be completed when it is closed. */
static void what_is_read_after_a_change_is_on_the_disk_from_the_first_byte_on(void **state)
{
	uint64_t size = 32 * MIB;
	struct scene s;

	scene_set(&s, MIB);
	uint64_t inode = file_make(&s, 1, size);
	reader_up(&s, 64 * MIB, 2 * MIB, true);
	struct client_file *f = file_open(s.w.client, inode);
	expect(f, 1, 0, READ);
	rewrite(&s, inode, 2, 0, size);
	expect_range(f, 2, 0, 4 * MIB);
	stats(&s);
	client_release(f);
	reader_up(&s, 64 * MIB, 0, true);
	f = file_open(s.w.client, inode);
	expect_range(f, 2, 0, 4 * MIB);
	struct client_stats n = stats(&s);
	assert_in_range(n.server_bytes, 0, TABLES(size));
	assert_int_equal(n.disk_bytes, 4 * MIB);
	client_release(f);
	scene_end(&s);
}

/* Most of it is in memory as part of the version before, and nobody fetches that for the disk. */
static void a_file_that_grew_is_on_the_disk_after_it_was_read_again(void **state)
{
	uint64_t size = 8 * MIB;
	struct scene s;

	scene_set(&s, MIB);
	uint64_t inode = file_make(&s, 1, size);
	reader_up(&s, 64 * MIB, 64 * MIB, true);
	struct client_file *f = file_open(s.w.client, inode);
	expect_range(f, 1, 0, size);
	client_release(f);
	stats(&s);
	rewrite(&s, inode, 1, size, size + MIB);
	f = file_open(s.w.client, inode);
	expect_range(f, 1, 0, size + MIB);
	client_release(f);
	stats(&s);
	reader_up(&s, 64 * MIB, 0, true);
	f = file_open(s.w.client, inode);
	expect_range(f, 1, 0, size + MIB);
	assert_in_range(stats(&s).server_bytes, 0, TABLES(size));
	client_release(f);
	scene_end(&s);
}

/* Blocks of up to 64 MiB make packs of that size. */
static void one_round_trip_brings_the_small_files_of_a_large_pack(void **state)
{
	uint32_t blocks[] = { 4 * MIB, 32 * MIB, 64 * MIB };

	for (int b = 0; b < 3; b++) {
		uint64_t inodes[64], size = 256 * KIB, all = 64 * size;
		CLEANUP_FREE uint8_t *data = malloc(size);
		struct scene s;
		struct entry e;

		scene_set(&s, blocks[b]);
		for (unsigned i = 0; i < 64; i++) {
			struct client_file *f;
			char name[32];
			snprintf(name, sizeof(name), "small%u", i);
			assert_int_equal(
				client_create(s.w.client, client_root(s.w.client), name, S_IFREG | 0644, O_RDWR, &root, &f, &e),
				0);
			for (uint64_t k = 0; k < size; k++)
				data[k] = byte_at(i, k);
			assert_int_equal(client_write(f, 0, data, size, 0), size);
			client_release(f);
			inodes[i] = e.attr.inode;
		}
		assert_int_equal(client_fsync_all(s.w.client), 0);
		for (int turn = 0; turn < 2; turn++) {
			reader_up(&s, 8 * MIB, 0, true);
			atomic_store(&s.w.client->objects.not_before, INT64_MAX); /* as if the server were elsewhere */
			for (unsigned i = 0; i < 64; i++) {
				struct client_file *f = file_open(s.w.client, inodes[i]);
				expect(f, i, 0, size);
				client_release(f);
			}
			struct client_stats n = stats(&s);
			/* Some files may be in packs of their own, stored when they were a second old; while one is written another may
			 * have to be fetched in parts. */
			assert_in_range(n.server_reads, 0, 8 + all / blocks[b] * 2);
			assert_in_range(n.server_bytes, 0, turn ? all / 4 : all + all / 4);
			assert_true(!turn || n.disk_bytes >= all / 4 * 3);
		}
		scene_end(&s);
	}
}

/* Of large ones few are under way at a time; one of them can be warmed all the same. */
static void packs_of_all_sizes_are_warmed(void **state)
{
	uint32_t blocks[] = { 4 * MIB, 16 * MIB, 64 * MIB };

	for (int b = 0; b < 3; b++) {
		struct warm_stretch stretch = { .to = UINT64_MAX };
		struct warm_result result;
		struct client_file *f;
		struct scene s;
		struct entry e;

		scene_set(&s, blocks[b]);
		assert_int_equal(
			client_create(s.w.client, client_root(s.w.client), "small", S_IFREG | 0644, O_RDWR, &root, &f, &e), 0);
		assert_int_equal(client_write(f, 0, "warm", 4, 0), 4);
		assert_int_equal(client_fsync(f), 0);
		client_release(f);
		reader_up(&s, 8 * MIB, 0, true);
		atomic_store(&s.w.client->objects.not_before, INT64_MAX); /* as if the server were elsewhere */
		stretch.inode = e.attr.inode;
		struct client_stats before = stats(&s);
		assert_int_equal(warm_to_disk(s.w.client, &stretch, &result), 0);
		assert_int_equal(result.bytes, 4);
		assert_true(result.fetched >= 4);
		assert_int_equal(stats(&s).server_bytes - before.server_bytes, result.fetched);
		assert_int_equal(warm_to_disk(s.w.client, &stretch, &result), 0);
		assert_int_equal(result.fetched, 0); /* it is there */
		scene_end(&s);
	}
}

/* And not the first to be evicted, as what a program has read in one go is. */
static void what_was_warmed_in_memory_is_there_when_it_is_read(void **state)
{
	struct warm_stretch stretch = { .to = UINT64_MAX };
	struct warm_result result;
	struct scene s;

	scene_set(&s, MIB);
	uint64_t large = file_make(&s, 1, 16 * MIB);
	stretch.inode = file_make(&s, 2, MIB);
	reader_up(&s, 4 * MIB, 0, false);
	struct client_file *f = file_open(s.w.client, large);
	expect_range(f, 1, 0, 6 * MIB); /* memory is full */
	assert_int_equal(warm_to_memory(s.w.client, &stretch, &result), 0);
	assert_int_equal(result.bytes, MIB);
	expect_range(f, 1, 6 * MIB, 8 * MIB);
	client_release(f);
	struct client_stats before = stats(&s);
	f = file_open(s.w.client, stretch.inode);
	expect(f, 2, 0, MIB);
	assert_int_equal(stats(&s).server_bytes, before.server_bytes);
	client_release(f);
	scene_end(&s);
}

/* ---- What is done aside ---- */

#define ASIDES 4

/* Files that are opened, and have their place on the disk, where little of them is. */
struct beside {
	struct scene s;
	struct client_file *files[ASIDES + 1];
};

static void beside_up(struct beside *b, unsigned parallel)
{
	const char *dirs[] = { b->s.cache };
	uint64_t inodes[ASIDES + 1];

	scene_set(&b->s, MIB);
	for (unsigned i = 0; i <= ASIDES; i++)
		inodes[i] = file_make(&b->s, i, 32 * MIB);
	reader_up_with(&b->s, &(struct client_options){ .servers = b->s.w.address,
							.volume = "test",
							.host = "here",
							.mount_point = "/x",
							.timeout_ms = 20000,
							.parallel = parallel,
							.cache_dirs = dirs,
							.cache_dir_count = 1,
							.cache_size = { .bytes = 1u << 30 } });
	for (unsigned i = 0; i <= ASIDES; i++) {
		b->files[i] = file_open(b->s.w.client, inodes[i]);
		expect(b->files[i], i, 0, READ);
	}
	stats(&b->s);
}

static void beside_down(struct beside *b)
{
	for (unsigned i = 0; i <= ASIDES; i++)
		client_release(b->files[i]);
	scene_end(&b->s);
}

/* Begins, and is held up: each piece of it needs the file's lock. */
static void aside_hold(struct beside *b, unsigned file)
{
	prefetch_aside(b->files[file]->inode, 0, UINT64_MAX);
	pthread_mutex_lock(&b->files[file]->inode->lock);
}

static void let_go(struct beside *b, unsigned file) { pthread_mutex_unlock(&b->files[file]->inode->lock); }

/* So many are aside, queued and under way, and nothing else is. */
static bool only_asides(struct beside *b, unsigned queued, unsigned busy)
{
	struct prefetcher *p = &b->s.w.client->prefetcher;
	LOCKED(&p->lock);
	return !p->queue.count && p->busy == busy && p->asides.count == queued && p->asides_busy == busy;
}

static void await_only_asides(struct beside *b, unsigned queued, unsigned busy)
{
	for (int ms = 0; !only_asides(b, queued, busy); ms++) {
		if (ms == 20000)
			fail_msg("there is something else than %u files aside, %u more in the queue", busy, queued);
		usleep(1000);
	}
}

static void files_that_are_completed_leave_half_of_the_threads_to_read_ahead(void **state)
{
	struct beside b;

	beside_up(&b, 4);
	for (unsigned i = 0; i < ASIDES; i++)
		aside_hold(&b, i);
	await_only_asides(&b, 2, 2);
	prefetch_range(b.files[ASIDES], 0, 32 * MIB);
	await_only_asides(&b, 2, 2);
	for (unsigned i = 0; i < ASIDES; i++)
		let_go(&b, i);
	await_only_asides(&b, 0, 0);
	beside_down(&b);
}

static void what_is_read_ahead_comes_before_files_that_wait_to_be_completed(void **state)
{
	struct beside b;

	beside_up(&b, 1);
	aside_hold(&b, 0);
	await_only_asides(&b, 0, 1);
	aside_hold(&b, 1);
	prefetch_range(b.files[ASIDES], 0, 32 * MIB);
	let_go(&b, 0);
	await_only_asides(&b, 0, 1); /* the second one, last of all */
	let_go(&b, 1);
	await_only_asides(&b, 0, 0);
	beside_down(&b);
}

static void a_file_waits_once_to_be_completed(void **state)
{
	struct beside b;

	beside_up(&b, 1);
	aside_hold(&b, 0);
	await_only_asides(&b, 0, 1);
	for (int k = 0; k < 3; k++)
		for (unsigned i = 1; i < 3; i++)
			prefetch_aside(b.files[i]->inode, 0, UINT64_MAX);
	assert_true(only_asides(&b, 2, 1));
	let_go(&b, 0);
	await_only_asides(&b, 0, 0);
	beside_down(&b);
}

/* ---- Memory ---- */

static void a_pack_that_there_is_no_memory_for_is_an_error(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* they use more than any limit that could be set */
#else
	struct rlimit before, little;
	struct client_file *f;
	uint64_t fetched = 0;
	struct scene s;
	struct entry e;

	scene_set(&s, 4 * MIB);
	assert_int_equal(client_create(s.w.client, client_root(s.w.client), "small", S_IFREG | 0644, O_RDWR, &root, &f, &e), 0);
	assert_int_equal(client_write(f, 0, "warm", 4, 0), 4);
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
	reader_up(&s, 8 * MIB, 0, true);
	s.w.client->packs.bytes = UINT32_MAX;
	assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
	little = (struct rlimit){ 3ull << 30, before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_DATA, &little), 0);
	alarm(60); /* it would wait for another one to end, and there is none */
	assert_int_equal(pack_keep(s.w.client, 1, 0, &fetched), -ENOMEM);
	alarm(0);
	assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
	scene_end(&s);
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_read_from_end_to_end_is_fetched_once_and_ahead),
		cmocka_unit_test(without_read_ahead_nothing_is_fetched_that_is_not_read),
		cmocka_unit_test(random_reads_fetch_a_chunk_each_and_nothing_ahead),
		cmocka_unit_test(eight_readers_with_little_memory_fetch_each_byte_once),
		cmocka_unit_test(two_places_of_one_descriptor_are_read_ahead_of),
		cmocka_unit_test(what_was_fetched_ahead_of_a_change_is_not_read_after_it),
		cmocka_unit_test(a_file_that_is_closed_is_read_ahead_of_no_more),
		cmocka_unit_test(a_mount_ends_while_files_are_read_ahead_of),
		cmocka_unit_test(read_ahead_to_the_disk_is_counted_too),
		cmocka_unit_test(one_round_trip_brings_the_small_files_of_a_large_pack),
		cmocka_unit_test(packs_of_all_sizes_are_warmed),
		cmocka_unit_test(what_was_warmed_in_memory_is_there_when_it_is_read),
		cmocka_unit_test(all_that_was_read_is_on_the_disk_and_was_fetched_once),
		cmocka_unit_test(what_is_read_after_a_change_is_on_the_disk_from_the_first_byte_on),
		cmocka_unit_test(a_file_that_grew_is_on_the_disk_after_it_was_read_again),
		cmocka_unit_test(files_that_are_completed_leave_half_of_the_threads_to_read_ahead),
		cmocka_unit_test(what_is_read_ahead_comes_before_files_that_wait_to_be_completed),
		cmocka_unit_test(a_file_waits_once_to_be_completed),
		cmocka_unit_test(a_pack_that_there_is_no_memory_for_is_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
