#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../temporary.h"
#include "client/segments.h"
#include "memory.h"

#define BLOCK 256u
#define FILE_BYTES 4096u

/* What a file of segments should hold, byte by byte. */
struct model {
	uint8_t bytes[FILE_BYTES];
	uint8_t there[FILE_BYTES];
};

static void check(const struct segments *s, const struct model *m, int64_t cost)
{
	uint8_t there[FILE_BYTES] = { 0 };
	uint64_t end = 0, bytes = 0;
	int64_t sum = 0;
	for (size_t k = 0; k < s->count; k++) {
		struct segment *g = s->at[k];
		assert_true(g->length > 0);
		assert_true(g->offset >= end);
		assert_int_equal(g->offset / BLOCK, (segment_end(g) - 1) / BLOCK);
		uint8_t read[BLOCK];
		assert_true(g->spool ? !g->data && !g->capacity : g->length <= g->capacity);
		assert_int_equal(segment_read(s, g, g->offset, read, g->length, false), 0);
		memset(there + g->offset, 1, g->length);
		assert_memory_equal(read, m->bytes + g->offset, g->length);
		if (g->spool) {
			uint8_t record[BLOCK];
			assert_int_equal(spool_read_record(g->spool, &g->record, record), 0);
			assert_memory_equal(record + (g->place - g->record.place), read, g->length);
		}
		end = segment_end(g);
		bytes += g->length;
		sum += (int64_t)segment_cost(g);
	}
	assert_memory_equal(there, m->there, FILE_BYTES);
	assert_int_equal(bytes, s->bytes);
	assert_int_equal(sum, cost);
	assert_int_equal(end, segments_end(s));
}

static void model_write(struct model *m, uint64_t offset, const uint8_t *data, size_t n)
{
	memcpy(m->bytes + offset, data, n);
	memset(m->there + offset, 1, n);
}

/* As the mount does it: taken over, or copied where that cannot be. */
static void write_adopting(struct segments *s, struct pool *pool, uint64_t offset, const uint8_t *data, size_t n, int64_t *cost)
{
	uint8_t *buffer = pool_take(pool);
	size_t written;
	memcpy(buffer + 5, data, n);
	if (segments_adopt(s, BLOCK, offset, buffer + 5, n, 1, buffer, pool, cost) == 0)
		return;
	assert_int_equal(segments_write(s, BLOCK, offset, buffer + 5, n, 1, cost, &written), 0);
	memset(buffer, 0xee, pool->size);
	pool_give(pool, buffer);
}

static void any_order_of_writes_and_cuts_leaves_what_a_flat_file_would_hold(void **state)
{
	unsigned seed = 7;
	struct pool pool;
	pool_init(&pool, 96, 10, NULL);
	for (int round = 0; round < 200; round++) {
		struct segments s = { 0 };
		struct model m = { 0 };
		int64_t cost = 0;
		for (int step = 0; step < 60; step++) {
			uint64_t offset = rand_r(&seed) % (FILE_BYTES - 700);
			size_t n = 1 + rand_r(&seed) % (step % 3 ? 20 : 700), written;
			uint8_t data[700];
			for (size_t i = 0; i < n; i++)
				data[i] = (uint8_t)rand_r(&seed);
			if (rand_r(&seed) % 12 == 0) {
				segments_cut(&s, offset, &cost);
				memset(m.there + offset, 0, FILE_BYTES - offset);
			} else if (rand_r(&seed) % 3 == 0 && n <= 90) {
				write_adopting(&s, &pool, offset, data, n = 90, &cost);
				model_write(&m, offset, data, n);
			} else {
				assert_int_equal(segments_write(&s, BLOCK, offset, data, n, (uint64_t)step + 1, &cost, &written),
						 0);
				assert_int_equal(written, n);
				model_write(&m, offset, data, n);
			}
			check(&s, &m, cost);
		}
		segments_free(&s);
	}
	pool_free(&pool);
}

struct disk {
	char directory[64];
	struct spool_folder *folder;
	struct spool *spool;
};

static void disk_up(struct disk *d)
{
	const uint8_t history[16] = { 0 };
	char error[200];
	temporary_template(d->directory, sizeof(d->directory), "segments");
	assert_non_null(mkdtemp(d->directory));
	assert_int_equal(spool_folder_open(d->directory, history, 1, 1u << 30, &d->folder, error, sizeof(error)), 0);
	assert_int_equal(spool_new(d->folder, 1, &d->spool), 0);
}

static void disk_down(struct disk *d)
{
	char command[100];
	spool_unref(d->spool);
	spool_folder_close(d->folder);
	snprintf(command, sizeof(command), "rm -rf %s", d->directory);
	assert_int_equal(system(command), 0);
}

/* Cut at blocks, as what an earlier mount with larger ones has left. */
static int put_spooled(struct segments *s, struct disk *d, uint64_t offset, const uint8_t *data, size_t n, int64_t *cost)
{
	struct spool_record record;
	int r = spool_append(d->spool, offset, data, (uint32_t)n, &record);
	for (uint32_t done = 0, part; done < n && r == 0; done += part) {
		part = BLOCK - (uint32_t)((offset + done) % BLOCK);
		if (part > n - done)
			part = (uint32_t)n - done;
		r = segments_put_spooled(s, offset + done, part, d->spool, record.place + done, &record, 1, cost);
	}
	return r;
}

static void set_spooled(struct segments *s, struct disk *d, size_t k, int64_t *cost)
{
	struct spool_record record;
	if (!s->count || s->at[k % s->count]->spool)
		return;
	struct segment *g = s->at[k % s->count];
	assert_int_equal(spool_append(d->spool, g->offset, g->data, g->length, &record), 0);
	segment_set_spooled(g, d->spool, &record, cost);
}

static void give_back(struct segments *s, struct model *m, size_t k, uint8_t newer, int64_t *cost)
{
	size_t written;
	if (!s->count)
		return;
	struct segment *g = segments_take(s, k % s->count);
	uint64_t at = g->offset + g->length / 2;
	*cost -= (int64_t)segment_cost(g);
	assert_int_equal(segments_write(s, BLOCK, at, &newer, 1, 1, cost, &written), 0);
	m->bytes[at] = newer;
	assert_int_equal(segments_restore(s, BLOCK, g, cost), 0);
}

/* With write-back: some go to the disk at once, some later, and jobs that failed give theirs back where nothing newer is. */
static void what_is_on_the_disk_mixes_with_what_is_in_memory(void **state)
{
	unsigned seed = 11;
	struct disk d;
	disk_up(&d);
	for (int round = 0; round < 200; round++) {
		struct segments s = { 0 };
		struct model m = { 0 };
		int64_t cost = 0;
		for (int step = 0; step < 80; step++) {
			uint64_t offset = rand_r(&seed) % (FILE_BYTES - BLOCK);
			size_t n = 1 + rand_r(&seed) % (step % 3 ? 20 : 150), written;
			uint8_t data[BLOCK];
			for (size_t i = 0; i < n; i++)
				data[i] = (uint8_t)rand_r(&seed);
			switch (rand_r(&seed) % 8) {
			case 0:
				segments_cut(&s, offset, &cost);
				memset(m.there + offset, 0, FILE_BYTES - offset);
				break;
			case 1:
			case 2:
				assert_int_equal(put_spooled(&s, &d, offset, data, n, &cost), 0);
				model_write(&m, offset, data, n);
				break;
			case 3: set_spooled(&s, &d, offset, &cost); break;
			case 4: give_back(&s, &m, offset, data[0], &cost); break;
			default:
				assert_int_equal(segments_write(&s, BLOCK, offset, data, n, 1, &cost, &written), 0);
				model_write(&m, offset, data, n);
			}
			check(&s, &m, cost);
		}
		segments_free(&s);
		assert_int_equal(s.bytes, 0);
	}
	disk_down(&d);
}

/* What is there was synced perhaps: a write that gets no memory leaves it. */
static void a_write_that_fails_for_memory_takes_nothing_away(void **state)
{
	int refused[2] = { 0 };
	unsigned seed = 13;
	struct disk d;
	disk_up(&d);
	for (int round = 0; round < 100; round++) {
		struct segments s = { 0 };
		struct model m = { 0 };
		int64_t cost = 0;
		for (int step = 0; step < 80; step++) {
			uint64_t offset = rand_r(&seed) % (FILE_BYTES - BLOCK);
			size_t n = 1 + rand_r(&seed) % (step % 3 ? 20 : 150), written;
			bool spooled = rand_r(&seed) % 2;
			uint8_t data[BLOCK];
			int r;
			for (size_t i = 0; i < n; i++)
				data[i] = (uint8_t)rand_r(&seed);
			if (spooled && offset % BLOCK + n > BLOCK)
				n = BLOCK - offset % BLOCK;
			memory_short(rand_r(&seed) % 5, 1);
			if (spooled) {
				r = put_spooled(&s, &d, offset, data, n, &cost);
				written = r ? 0 : n;
			} else {
				r = segments_write(&s, BLOCK, offset, data, n, 1, &cost, &written);
			}
			assert_int_equal(r, memory_plenty() ? -ENOMEM : 0);
			assert_true(r || written == n);
			refused[spooled] += r < 0;
			model_write(&m, offset, data, written);
			check(&s, &m, cost);
			set_spooled(&s, &d, offset, &cost);
		}
		segments_free(&s);
	}
	assert_true(refused[0] > 100 && refused[1] > 100);
	disk_down(&d);
}

static void a_buffer_is_adopted_only_where_it_fits(void **state)
{
	struct segments s = { 0 };
	struct pool pool;
	int64_t cost = 0;
	size_t written;
	uint8_t *buffer;
	pool_init(&pool, 100, 1, NULL);
	buffer = pool_take(&pool);
	assert_int_equal(segments_adopt(&s, BLOCK, 0, buffer, 80, 1, buffer, &pool, &cost), -EINVAL);
	assert_int_equal(segments_adopt(&s, BLOCK, BLOCK - 50, buffer, 100, 1, buffer, &pool, &cost), -EINVAL);
	assert_int_equal(cost, 0);
	assert_int_equal(segments_adopt(&s, BLOCK, BLOCK - 100, buffer, 100, 1, buffer, &pool, &cost), 0);
	assert_int_equal(s.bytes, 100);
	assert_ptr_equal(s.at[0]->data, buffer);
	buffer = pool_take(&pool);
	assert_int_equal(segments_adopt(&s, BLOCK, BLOCK - 110, buffer, 100, 1, buffer, &pool, &cost), -EINVAL);
	assert_int_equal(segments_adopt(&s, BLOCK, 10, buffer, 100, 1, buffer, &pool, &cost), 0);
	/* It does not grow: what follows is another segment, which does. */
	assert_int_equal(segments_write(&s, BLOCK, 110, (const uint8_t *)"abc", 3, 2, &cost, &written), 0);
	assert_int_equal(segments_write(&s, BLOCK, 113, (const uint8_t *)"def", 3, 2, &cost, &written), 0);
	assert_int_equal(s.count, 3);
	assert_int_equal(s.at[1]->length, 6);
	segments_free(&s);
	pool_free(&pool);
}

static void a_stream_of_small_writes_fills_one_segment_a_block(void **state)
{
	struct segments s = { 0 };
	int64_t cost = 0;
	size_t written;
	for (uint64_t at = 0; at < 2 * BLOCK; at += 16)
		assert_int_equal(segments_write(&s, BLOCK, at, (const uint8_t *)"0123456789abcdef", 16, 1, &cost, &written), 0);
	assert_int_equal(s.count, 2);
	assert_int_equal(s.at[0]->length, BLOCK);
	assert_int_equal(s.at[1]->length, BLOCK);
	segments_free(&s);
}

static void what_comes_back_from_a_failed_upload_does_not_hide_newer_bytes(void **state)
{
	unsigned seed = 11;
	for (int round = 0; round < 300; round++) {
		struct segments s = { 0 };
		struct model m = { 0 };
		int64_t cost = 0;
		size_t written;
		uint64_t base = (rand_r(&seed) % 8) * BLOCK + rand_r(&seed) % 100;
		struct segment *old = segment_new(base, BLOCK);
		old->length = 1 + rand_r(&seed) % 150;
		memset(old->data, 'o', old->length);
		memset(m.bytes + base, 'o', old->length);
		memset(m.there + base, 1, old->length);
		for (int k = rand_r(&seed) % 4; k > 0; k--) {
			uint64_t offset = base + rand_r(&seed) % 200;
			size_t n = 1 + rand_r(&seed) % 60;
			uint8_t data[60];
			memset(data, 'n', n);
			assert_int_equal(segments_write(&s, BLOCK, offset, data, n, 9, &cost, &written), 0);
			model_write(&m, offset, data, n);
		}
		assert_int_equal(segments_restore(&s, BLOCK, old, &cost), 0);
		check(&s, &m, cost);
		segments_free(&s);
	}
}

static void find_and_overlap_agree_with_a_plain_scan(void **state)
{
	struct segments s = { 0 };
	int64_t cost = 0;
	size_t written;
	for (uint64_t at = 0; at < 2000; at += 50)
		segments_write(&s, BLOCK, at, (const uint8_t *)"0123456789", 10, 1, &cost, &written);
	for (uint64_t at = 0; at < 2100; at++) {
		size_t want = 0;
		bool hit = false;
		while (want < s.count && segment_end(s.at[want]) <= at)
			want++;
		for (size_t k = 0; k < s.count; k++)
			hit = hit || (s.at[k]->offset < at + 7 && segment_end(s.at[k]) > at);
		assert_int_equal(segments_find(&s, at), want);
		assert_int_equal(segments_overlap(&s, at, at + 7), hit);
	}
	segments_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_order_of_writes_and_cuts_leaves_what_a_flat_file_would_hold),
		cmocka_unit_test(what_is_on_the_disk_mixes_with_what_is_in_memory),
		cmocka_unit_test(a_write_that_fails_for_memory_takes_nothing_away),
		cmocka_unit_test(a_buffer_is_adopted_only_where_it_fits),
		cmocka_unit_test(a_stream_of_small_writes_fills_one_segment_a_block),
		cmocka_unit_test(what_comes_back_from_a_failed_upload_does_not_hide_newer_bytes),
		cmocka_unit_test(find_and_overlap_agree_with_a_plain_scan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
