/* Which files stay in memory while they come into the cache. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "../residence.h"
#include "base/clock.h"
#include "cache/state.h"
#include "place.h"

#define NUMBER 77
#define SIZE (24 * MIB)
#define PIECE MIB
#define PAGE 4096
#define TRIES 100
#define DROP_TRIES 5

static _Atomic uint64_t available;

static uint64_t memory(void) { return atomic_load(&available); }

static uint64_t version;

static struct cache_file *file_open_again(struct place *p)
{
	struct cache_file_key key = { .volume = 3, .inode = 99, .version = version, .size = SIZE };
	struct cache_file *f = NULL;

	assert_int_equal(cache_file_open(p->cache, &key, 0, &f), 0);
	return f;
}

/* Another file each time. */
static struct cache_file *file_open(struct place *p, uint64_t memory_bytes, bool keep)
{
	struct cache_file *f;

	version++;
	atomic_store(&available, memory_bytes);
	p->options.memory = memory;
	p->options.size.bytes = 64 * SIZE;
	p->now += NS_PER_S; /* what is available is looked at anew */
	if (!p->cache)
		place_open(p);
	f = file_open_again(p);
	cache_file_keep_pages(f, keep);
	return f;
}

/* As the client does: from memory that could be written past the page cache. */
static void fill(struct cache_file *f, uint64_t from, uint64_t to)
{
	uint8_t *bytes = aligned_alloc(PAGE, PIECE);

	for (; from < to; from += PIECE) {
		content_fill(NUMBER, from, bytes, PIECE);
		assert_int_equal(cache_file_add(f, from, bytes, PIECE), 0);
	}
	free(bytes);
}

static struct residence residence(struct cache_file *f)
{
	struct residence r;

	assert_true(residence_of(f->read_fd, &r));
	return r;
}

/* Asked before anything is open that skipping would leave so. */
static void need_residence(struct place *p)
{
	struct residence r;
	int fd = open(p->folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	bool known = fd >= 0 && residence_of(fd, &r);

	if (fd >= 0)
		close(fd);
	if (known)
		return;
	print_message("SKIPPED: it cannot be told what is in memory\n");
	skip();
}

/* Pages of a file that was filled that are in memory then, or were until somebody else needed it. */
static uint64_t kept(struct place *p, uint64_t memory_bytes, bool keep)
{
	struct cache_file *f = file_open(p, memory_bytes, keep);
	struct residence r;

	fill(f, 0, SIZE);
	r = residence(f);
	assert_true(cache_file_whole(f) >= 0);
	assert_int_equal(chunks_read(f, NUMBER, 0, SIZE), 0);
	cache_file_close(f);
	return r.cached + r.evicted;
}

/* Another program may drop all pages of the machine just then.  The kernel counts that once it is done, so pages may be missing before
 * the count says why: only if they are several times in a row, is it not that. */
static bool is_kept(struct place *p, uint64_t memory_bytes)
{
	uint64_t drops;

	for (int tries = 0, missing = 0; tries < TRIES; tries++) {
		drops = residence_drops();
		if (kept(p, memory_bytes, true) == SIZE / PAGE)
			return true;
		missing = residence_drops() == drops ? missing + 1 : 0;
		if (missing == DROP_TRIES)
			return false;
	}
	print_message("SKIPPED: somebody drops the pages of this machine all the time\n");
	return true;
}

static void what_the_kernel_will_read_stays_in_memory_and_else_nothing_does(void **state)
{
	struct place *p = *state;

	need_residence(p);
	assert_int_equal(kept(p, 64 * SIZE, false), 0);
	assert_true(is_kept(p, 64 * SIZE));
}

static void a_file_of_more_than_a_quarter_of_what_is_available_does_not(void **state)
{
	struct place *p = *state;

	need_residence(p);
	assert_int_equal(kept(p, 4 * SIZE - 1, true), 0);
	assert_true(is_kept(p, 4 * SIZE));
	assert_int_equal(kept(p, 0, true), 0); /* it is not known */
}

static void that_can_change_while_it_is_filled(void **state)
{
	struct place *p = *state;
	struct cache_file *f;

	need_residence(p);
	f = file_open(p, 4 * SIZE, true);
	fill(f, 0, SIZE / 3);
	p->now += NS_PER_S;
	atomic_store(&available, SIZE);
	fill(f, SIZE / 3, 2 * SIZE / 3);
	p->now += NS_PER_S;
	atomic_store(&available, 4 * SIZE);
	fill(f, 2 * SIZE / 3, SIZE);
	assert_true(residence(f).cached <= 2 * SIZE / 3 / PAGE);
	assert_true(cache_file_whole(f) >= 0);
	assert_int_equal(chunks_read(f, NUMBER, 0, SIZE), 0);
	cache_file_close(f);
}

/* Nobody else's writing is held up by it, and what is passed through needs no memory that could not be had at once. */
static void what_is_to_be_written_is_bounded_and_nothing_once_it_is_whole(void **state)
{
	struct place *p = *state;
	struct cache_file *f;

	need_residence(p);
	f = file_open(p, 64 * SIZE, true);
	for (uint64_t at = 0; at < SIZE - PIECE; at += PIECE) {
		struct residence r;

		fill(f, at, at + PIECE);
		r = residence(f);
		assert_true(r.dirty + r.writeback <= FILL_RUNS * PIECE / PAGE);
	}
	assert_false(cache_file_is_complete(f));
	fill(f, SIZE - PIECE, SIZE);
	assert_true(cache_file_is_complete(f));
	assert_int_equal(residence(f).dirty + residence(f).writeback, 0);
	cache_file_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_the_kernel_will_read_stays_in_memory_and_else_nothing_does, place_make,
						place_remove),
		cmocka_unit_test_setup_teardown(a_file_of_more_than_a_quarter_of_what_is_available_does_not, place_make,
						place_remove),
		cmocka_unit_test_setup_teardown(that_can_change_while_it_is_filled, place_make, place_remove),
		cmocka_unit_test_setup_teardown(what_is_to_be_written_is_bounded_and_nothing_once_it_is_whole, place_make,
						place_remove),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
