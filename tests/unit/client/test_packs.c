/* Small files that a server sends and no cache on the disk wants: when the packs they are in come whole. */
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
#include <sys/stat.h>
#include <unistd.h>
#include "block/object.h"
#include "cache/cache.h"
#include "client/state.h"
#include "client/warm.h"
#include "world.h"

#define KIB 1024u
#define PACK (256 * KIB) /* 25 files */
#define FILE_BYTES (10 * KIB)
#define FILES 1000u

struct small {
	uint64_t inode, object;
	uint32_t place;
};

struct scene {
	struct world w;
	struct small files[FILES]; /* in the order in which they are stored */
	unsigned packs;
};

static uint8_t byte_at(uint64_t inode, uint32_t offset) { return (uint8_t)(((offset + inode * 977) * 2654435761u) >> 13); }

static void file_make(struct scene *s, unsigned number)
{
	uint8_t data[FILE_BYTES];
	struct client_file *f;
	struct entry entry;
	char name[16];

	snprintf(name, sizeof(name), "%u", number);
	assert_int_equal(client_create(s->w.client, client_root(s->w.client), name, S_IFREG | 0644, O_WRONLY, &root, &f, &entry),
			 0);
	s->files[number].inode = entry.attr.inode;
	for (uint32_t i = 0; i < FILE_BYTES; i++)
		data[i] = byte_at(entry.attr.inode, i);
	assert_int_equal(client_write(f, 0, data, FILE_BYTES, 0), FILE_BYTES);
	client_release(f);
}

static struct client_file *file_open(struct scene *s, const struct small *file)
{
	struct client_file *f;
	bool unchanged;

	assert_int_equal(client_open(s->w.client, file->inode, O_RDONLY, false, false, &f, &unchanged), 0);
	return f;
}

static void file_find(struct scene *s, struct small *file)
{
	struct client_file *f = file_open(s, file);
	struct inode *i = f->inode;

	pthread_mutex_lock(&i->lock);
	assert_int_equal(window_cover(i, 0, FILE_BYTES), 0);
	assert_int_equal(i->window.count, 1);
	file->object = i->window.extents[0].object;
	file->place = i->window.extents[0].object_offset;
	pthread_mutex_unlock(&i->lock);
	client_release(f);
}

static int compare_places(const void *a, const void *b)
{
	const struct small *x = a, *y = b;

	return x->object != y->object ? (x->object > y->object) - (x->object < y->object)
				      : (x->place > y->place) - (x->place < y->place);
}

/* What is in memory of the files is gone, and the server gives out none of its own. */
static void reader_up(struct scene *s)
{
	if (s->w.client)
		assert_int_equal(client_disconnect(s->w.client), 0);
	s->w.client = client_up(&s->w);
	atomic_store(&s->w.client->objects.not_before, INT64_MAX);
}

static void scene_set(struct scene *s, uint32_t pack_bytes)
{
	world_up_with(&s->w, "none", pack_bytes);
	for (unsigned i = 0; i < FILES; i++)
		file_make(s, i);
	assert_int_equal(client_fsync_all(s->w.client), 0);
	for (unsigned i = 0; i < FILES; i++)
		file_find(s, &s->files[i]);
	qsort(s->files, FILES, sizeof(*s->files), compare_places);
	s->packs = 1;
	for (unsigned i = 1; i < FILES; i++)
		s->packs += s->files[i].object != s->files[i - 1].object;
	reader_up(s);
}

static int file_read(struct scene *s, const struct small *file)
{
	struct client_file *f = file_open(s, file);
	const struct iovec *parts;
	struct client_read *r;
	size_t bytes;
	int count, error = client_read(f, 0, FILE_BYTES, &r);
	uint32_t at = 0;

	if (!error) {
		parts = client_read_parts(r, &count, &bytes);
		assert_int_equal(bytes, FILE_BYTES);
		for (int k = 0; k < count; k++)
			for (size_t i = 0; i < parts[k].iov_len; i++)
				assert_int_equal(((uint8_t *)parts[k].iov_base)[i], byte_at(file->inode, at++));
		client_read_release(r);
	}
	client_release(f);
	return error;
}

/* The first of so many files in a row that are in one pack. */
static const struct small *neighbours(const struct scene *s, unsigned count)
{
	for (unsigned i = 0; i + count <= FILES; i++)
		if (s->files[i].object == s->files[i + count - 1].object)
			return &s->files[i];
	fail();
	return NULL;
}

static struct client_stats stats(struct scene *s)
{
	struct client_stats is;

	client_stats(s->w.client, &is);
	return is;
}

static void who_reads_in_the_order_of_writing_gets_packs_whole(void **state)
{
	struct scene s = { 0 };

	scene_set(&s, PACK);
	for (unsigned i = 0; i < FILES; i++)
		assert_int_equal(file_read(&s, &s.files[i]), 0);
	/* Three files of each alone, the fourth with all of it. */
	assert_in_range(stats(&s).server_reads, s.packs, 4 * s.packs);
	assert_in_range(stats(&s).server_bytes, FILES * FILE_BYTES, FILES * FILE_BYTES * 5 / 4);
	world_down(&s.w);
}

static void several_who_do_so_at_a_time_do_not_disturb_each_other(void **state)
{
	struct scene s = { 0 };

	scene_set(&s, PACK);
	for (unsigned i = 0; i < FILES / 4; i++)
		for (unsigned reader = 0; reader < 4; reader++)
			assert_int_equal(file_read(&s, &s.files[reader * FILES / 4 + i]), 0);
	assert_in_range(stats(&s).server_reads, s.packs, 4 * s.packs + 16);
	assert_in_range(stats(&s).server_bytes, FILES * FILE_BYTES, FILES * FILE_BYTES * 5 / 4);
	world_down(&s.w);
}

/* As with large blocks.  Two that took it from each other would fetch a pack for every file. */
static void with_room_for_one_pack_it_is_kept_for_who_reads_it(void **state)
{
	struct scene s = { 0 };
	unsigned count = 0;

	scene_set(&s, PACK);
	s.w.client->packs.count = 1;
	for (unsigned packs = 0; packs < 2; count++)
		packs += s.files[count + 1].object != s.files[count].object;
	for (unsigned i = 0; i < count / 2; i++) {
		assert_int_equal(file_read(&s, &s.files[i]), 0);
		assert_int_equal(file_read(&s, &s.files[count - 1 - i]), 0);
	}
	assert_in_range(stats(&s).server_bytes, count * FILE_BYTES / 2, 2 * count * FILE_BYTES);
	s.w.client->packs.count = 8;
	world_down(&s.w);
}

static void who_reads_at_random_gets_what_he_reads(void **state)
{
	struct scene s = { 0 };
	uint32_t seed = 7;

	scene_set(&s, 64 * KIB); /* 170 packs */
	for (unsigned i = FILES - 1; i > 0; i--) {
		struct small file = s.files[i];
		unsigned other;

		seed = seed * 1664525 + 1013904223;
		other = (seed >> 8) % (i + 1);
		s.files[i] = s.files[other];
		s.files[other] = file;
	}
	for (unsigned i = 0; i < FILES; i++)
		assert_int_equal(file_read(&s, &s.files[i]), 0);
	assert_in_range(stats(&s).server_bytes, FILES * FILE_BYTES * 98 / 100, FILES * FILE_BYTES * 102 / 100);
	world_down(&s.w);
}

static void object_damage(struct scene *s, uint64_t object, uint32_t place)
{
	char path[200], key[OBJECT_KEY_TEXT];
	uint8_t byte;
	int fd;

	snprintf(path, sizeof(path), "%s/objects/%s", s->w.folder, object_key(key, object));
	assert_int_equal(chmod(path, 0600), 0);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, place), 1);
	byte ^= 0xff;
	assert_int_equal(pwrite(fd, &byte, 1, place), 1);
	close(fd);
}

static void what_came_damaged_is_not_held(void **state)
{
	struct scene s = { 0 };
	const struct small *first, *last;

	scene_set(&s, PACK);
	first = neighbours(&s, 7);
	last = first + 6;
	object_damage(&s, last->object, last->place + 5);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(file_read(&s, &first[i]), 0);
	assert_int_equal(file_read(&s, last), -EIO);
	object_damage(&s, last->object, last->place + 5); /* which mends it */
	assert_int_equal(file_read(&s, last), 0);
	world_down(&s.w);
}

/* The same volume once more, with a cache on the disk. */
static void connect_with_cache(struct scene *s)
{
	char cache[80], error[512] = "";
	const char *dirs[] = { cache };
	struct client_options o = { .servers = s->w.address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/x",
				    .timeout_ms = 20000,
				    .cache_dirs = dirs,
				    .cache_dir_count = 1,
				    .cache_size = { .bytes = 1u << 30 } };

	assert_int_equal(client_disconnect(s->w.client), 0);
	snprintf(cache, sizeof(cache), "%s/cache", s->w.folder);
	if (client_connect(&o, &s->w.client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
	atomic_store(&s->w.client->objects.not_before, INT64_MAX);
}

static void one_that_is_held_is_written_to_the_disk_once_somebody_wants_that(void **state)
{
	struct scene s = { 0 };
	uint64_t object, fetched = 0;
	const struct small *first;
	struct client *c;

	scene_set(&s, PACK);
	first = neighbours(&s, 4);
	object = first->object;
	connect_with_cache(&s);
	c = s.w.client;
	c->packs.refused[object % PACKS_REFUSED] = object; /* as if there had been no room */
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(file_read(&s, &first[i]), 0);
	assert_int_equal(stats(&s).server_reads, 4);
	assert_false(cache_object_has(c->cache, object, 0));
	assert_int_equal(pack_keep(c, object, CACHE_TOLD, &fetched), 0);
	assert_true(cache_object_has(c->cache, object, 0));
	assert_int_equal(fetched, 0);
	assert_int_equal(stats(&s).server_reads, 4);
	world_down(&s.w);
}

struct warmer {
	struct client *client;
	struct warm_stretch stretch;
	struct warm_result result;
	pthread_t thread;
	int error;
};

static void *warmer_run(void *argument)
{
	struct warmer *w = argument;

	w->error = warm_to_disk(w->client, &w->stretch, &w->result);
	return NULL;
}

static void several_who_verify_a_damaged_pack_fetch_it_anew_once(void **state)
{
	struct warmer warmers[8];
	struct scene s = { 0 };
	const struct small *file;
	uint64_t fetched = 0, damaged = 0, whole;

	scene_set(&s, PACK);
	file = neighbours(&s, 1);
	connect_with_cache(&s);
	object_damage(&s, file->object, file->place + 5);
	assert_int_equal(pack_keep(s.w.client, file->object, 0, &fetched), 0);
	object_damage(&s, file->object, file->place + 5); /* which mends it in the store */
	whole = fetched;
	fetched = 0;
	for (unsigned i = 0; i < 8; i++) {
		/* One who does not verify all finds damage in what came since the volume was mounted, too. */
		unsigned flags = i % 2 ? WARM_VERIFY : 0;

		warmers[i] = (struct warmer){ .client = s.w.client,
					      .stretch = { file->inode, 0, FILE_BYTES, flags, NULL, NULL } };
		assert_int_equal(pthread_create(&warmers[i].thread, NULL, warmer_run, &warmers[i]), 0);
	}
	for (unsigned i = 0; i < 8; i++) {
		pthread_join(warmers[i].thread, NULL);
		assert_int_equal(warmers[i].error, 0);
		assert_int_equal(warmers[i].result.bytes, FILE_BYTES);
		fetched += warmers[i].result.fetched;
		damaged += warmers[i].result.damaged;
	}
	assert_int_equal(damaged, 1);
	assert_int_equal(fetched, whole);
	assert_int_equal(file_read(&s, file), 0);
	world_down(&s.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_reads_in_the_order_of_writing_gets_packs_whole),
		cmocka_unit_test(several_who_do_so_at_a_time_do_not_disturb_each_other),
		cmocka_unit_test(with_room_for_one_pack_it_is_kept_for_who_reads_it),
		cmocka_unit_test(who_reads_at_random_gets_what_he_reads),
		cmocka_unit_test(what_came_damaged_is_not_held),
		cmocka_unit_test(one_that_is_held_is_written_to_the_disk_once_somebody_wants_that),
		cmocka_unit_test(several_who_verify_a_damaged_pack_fetch_it_anew_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
