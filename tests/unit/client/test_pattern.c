/* How files are read, and what is fetched ahead of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "client/pattern.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static const struct pattern_limits limits = { .end = 4 * GIB, .most = 64 * MIB, .room = UINT64_MAX, .step = 4 * MIB };

/* Bytes that were asked for ahead, by megabyte of the file: nothing may be asked for twice. */
struct seen {
	struct pattern p;
	uint8_t asked[4096 * 16]; /* by 64 KiB */
	uint64_t bytes;
};

static int note(struct seen *s, uint64_t offset, uint64_t bytes, const struct pattern_limits *l)
{
	struct pattern_range ranges[PATTERN_RANGES];
	int count = pattern_note(&s->p, offset, bytes, l, ranges);

	for (int i = 0; i < count; i++) {
		assert_true(ranges[i].from < ranges[i].to && ranges[i].to <= l->end);
		s->bytes += ranges[i].to - ranges[i].from;
		for (uint64_t k = ranges[i].from / (64 * KIB); k < ranges[i].to / (64 * KIB); k++) {
			assert_int_equal(s->asked[k], 0);
			s->asked[k] = 1;
		}
	}
	return count;
}

static bool was_asked(const struct seen *s, uint64_t offset) { return s->asked[offset / (64 * KIB)]; }

static struct seen *seen_new(void) { return calloc(1, sizeof(struct seen)); }

static void a_reader_from_the_start_is_trusted_at_once_and_the_window_doubles(void **state)
{
	struct seen *s = seen_new();
	uint64_t at = 0, windows[16];
	int grown = 0;

	for (; at < 512 * MIB; at += 128 * KIB) {
		uint64_t before = s->p.cursors[0].window;

		note(s, at, 128 * KIB, &limits);
		assert_true(at == 0 || was_asked(s, at)); /* always ahead */
		if (s->p.cursors[0].window != before)
			windows[grown++] = s->p.cursors[0].window;
	}
	assert_int_equal(grown, 6);
	for (int i = 0; i < grown; i++)
		assert_int_equal(windows[i], (2 * MIB) << i);
	/* Each byte once, and no more than the window beyond the end. */
	assert_in_range(s->bytes, at - 128 * KIB, at + 64 * MIB);
	free(s);
}

static void a_reader_that_stops_has_wasted_little(void **state)
{
	for (uint64_t length = 256 * KIB; length <= 64 * MIB; length *= 2) {
		struct seen *s = seen_new();

		for (uint64_t at = 0; at < length; at += 128 * KIB)
			note(s, at, 128 * KIB, &limits);
		assert_true(s->bytes <= length + 2 * length + 2 * MIB);
		free(s);
	}
}

static void random_reads_fetch_nothing_ahead(void **state)
{
	static const uint64_t sizes[] = { 4 * KIB, 64 * KIB, 128 * KIB, MIB };
	unsigned seed = 7;

	for (int k = 0; k < 4; k++) {
		struct seen *s = seen_new();
		for (int i = 0; i < 10000; i++)
			note(s, (uint64_t)rand_r(&seed) % 65536 * 64 * KIB, sizes[k], &limits);
		assert_true(s->bytes <= 2 * MIB); /* chance */
		free(s);
	}
}

/* What the kernel reads around a fault: 4 MiB in requests of 1 MiB. */
static void faults_of_a_mapping_fetch_nothing_ahead(void **state)
{
	struct seen *s = seen_new();
	unsigned seed = 9;

	for (int i = 0; i < 200; i++) {
		uint64_t at = (1 + (uint64_t)rand_r(&seed) % 1000) * 4 * MIB + 4 * KIB;
		for (int k = 0; k < 4; k++)
			note(s, at + (uint64_t)k * MIB, MIB, &limits);
	}
	assert_true(s->bytes <= 40 * MIB); /* neighbours, by chance; 800 MiB were read */
	free(s);
}

static void a_small_file_is_not_read_beyond_its_end(void **state)
{
	struct pattern_limits l = limits;
	struct seen *s = seen_new();

	l.end = 5 * MIB + 77;
	for (uint64_t at = 0; at < l.end; at += 128 * KIB)
		note(s, at, l.end - at < 128 * KIB ? l.end - at : 128 * KIB, &l);
	assert_int_equal(s->bytes, l.end - 128 * KIB);
	assert_int_equal(pattern_streams(&s->p, l.end), 0);
	free(s);
}

static void requests_out_of_order_are_one_reader(void **state)
{
	static const int order[] = { 2, 0, 3, 1 };
	struct seen *s = seen_new();

	for (uint64_t at = 0; at < 256 * MIB; at += 4 * MIB)
		for (int k = 0; k < 4; k++)
			note(s, at + (uint64_t)order[k] * MIB, MIB, &limits);
	assert_int_equal(pattern_streams(&s->p, limits.end), 1);
	assert_int_equal(s->p.cursors[0].window + s->p.cursors[1].window + s->p.cursors[2].window, 64 * MIB);
	for (uint64_t at = 16 * MIB; at < 256 * MIB; at += MIB)
		assert_true(was_asked(s, at));
	free(s);
}

static void eight_readers_of_one_file_are_told_apart(void **state)
{
	struct seen *s = seen_new();

	for (uint64_t done = 0; done < 128 * MIB; done += 128 * KIB)
		for (uint64_t k = 0; k < 8; k++)
			note(s, k * 512 * MIB + done, 128 * KIB, &limits);
	assert_int_equal(pattern_streams(&s->p, limits.end), 8);
	for (uint64_t k = 0; k < 8; k++)
		for (uint64_t at = 8 * MIB; at < 128 * MIB; at += MIB)
			assert_true(was_asked(s, k * 512 * MIB + at));
	free(s);
}

static void random_reads_between_do_not_disturb_a_reader(void **state)
{
	struct seen *s = seen_new();
	unsigned seed = 11;

	for (uint64_t at = 0; at < 128 * MIB; at += 128 * KIB) {
		note(s, at, 128 * KIB, &limits);
		note(s, GIB + (uint64_t)rand_r(&seed) % 32768 * 64 * KIB, 4 * KIB, &limits);
		assert_true(at == 0 || was_asked(s, at));
	}
	assert_true(s->bytes <= 128 * MIB + 64 * MIB);
	free(s);
}

static void strides_are_found_also_backwards(void **state)
{
	for (int backwards = 0; backwards <= 1; backwards++) {
		struct seen *s = seen_new();
		int hits = 0;

		for (int i = 0; i < 64; i++) {
			uint64_t at = (uint64_t)(backwards ? 200 - i : i + 1) * 16 * MIB;

			hits += was_asked(s, at) && was_asked(s, at + 2 * MIB - 64 * KIB);
			note(s, at, MIB, &limits);
			note(s, at + MIB, MIB, &limits);
		}
		assert_in_range(hits, 56, 60);
		assert_true(s->bytes <= 64 * 2 * MIB + 64 * MIB);
		free(s);
	}
}

static void no_more_is_asked_for_than_there_is_room(void **state)
{
	struct pattern_limits l = limits;
	struct seen *s = seen_new();

	l.room = 0;
	for (uint64_t at = 0; at < 64 * MIB; at += 128 * KIB)
		assert_int_equal(note(s, at, 128 * KIB, &l), 0);
	l.room = 256 * KIB;
	assert_int_equal(note(s, 64 * MIB, 128 * KIB, &l), 1);
	assert_int_equal(s->bytes, 256 * KIB);
	l.most = 0;
	assert_int_equal(note(s, 64 * MIB + 128 * KIB, 128 * KIB, &l), 0);
	l = limits;
	l.most = 3 * MIB;
	for (uint64_t at = 65 * MIB; at < 128 * MIB; at += 128 * KIB) {
		note(s, at, 128 * KIB, &l);
		assert_true(s->p.cursors[0].asked <= at + 128 * KIB + 3 * MIB);
	}
	free(s);
}

static void what_was_asked_for_is_known_when_it_is_read(void **state)
{
	struct seen *s = seen_new();

	assert_int_equal(pattern_asked(&s->p, 0, 128 * KIB), 0);
	note(s, 0, 128 * KIB, &limits);
	assert_int_equal(pattern_asked(&s->p, 0, 128 * KIB), 0);
	assert_int_equal(pattern_asked(&s->p, 64 * KIB, 128 * KIB), 64 * KIB);
	assert_int_equal(pattern_asked(&s->p, 128 * KIB, 2 * MIB), 2 * MIB);
	assert_int_equal(pattern_asked(&s->p, 128 * KIB, 4 * MIB), 2 * MIB);
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_from_the_start_is_trusted_at_once_and_the_window_doubles),
		cmocka_unit_test(a_reader_that_stops_has_wasted_little),
		cmocka_unit_test(random_reads_fetch_nothing_ahead),
		cmocka_unit_test(faults_of_a_mapping_fetch_nothing_ahead),
		cmocka_unit_test(a_small_file_is_not_read_beyond_its_end),
		cmocka_unit_test(requests_out_of_order_are_one_reader),
		cmocka_unit_test(eight_readers_of_one_file_are_told_apart),
		cmocka_unit_test(random_reads_between_do_not_disturb_a_reader),
		cmocka_unit_test(strides_are_found_also_backwards),
		cmocka_unit_test(no_more_is_asked_for_than_there_is_room),
		cmocka_unit_test(what_was_asked_for_is_known_when_it_is_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
