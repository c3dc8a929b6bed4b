/* Which files stay in memory while they come into the cache. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
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

/* The call of that number fails, and no other: the kernel reports it once. */
static _Atomic int syncs, syncs_until_failure, data_syncs_until_failure;
/* Or the next one of this thread does, and returns when another thread would be told that all is well. */
static _Thread_local bool is_told;
static _Atomic bool others_wait;
static sem_t told, may_return;

int __real_sync_file_range(int fd, off_t offset, off_t length, unsigned flags);
int __wrap_sync_file_range(int fd, off_t offset, off_t length, unsigned flags);
int __wrap_sync_file_range(int fd, off_t offset, off_t length, unsigned flags)
{
	atomic_fetch_add(&syncs, 1);
	if (is_told) {
		is_told = false;
		sem_post(&told);
		sem_wait(&may_return);
		errno = ENOSPC;
		return -1;
	}
	if (__real_sync_file_range(fd, offset, length, flags) < 0)
		return -1;
	if (atomic_load(&syncs_until_failure) == 0 || atomic_fetch_sub(&syncs_until_failure, 1) != 1)
		return 0;
	errno = ENOSPC;
	return -1;
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	if (atomic_load(&data_syncs_until_failure) == 0 || atomic_fetch_sub(&data_syncs_until_failure, 1) != 1)
		return __real_fdatasync(fd);
	errno = ENOSPC;
	return -1;
}

int __real_pthread_rwlock_wrlock(pthread_rwlock_t *lock);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *lock);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
	if (atomic_load(&others_wait))
		sem_post(&may_return);
	return __real_pthread_rwlock_wrlock(lock);
}

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

/* Pages that could not be written are in memory all the same, and look right there. */
static void is_lost(struct place *p, struct cache_file *f)
{
	struct cache_file *again;
	uint64_t absent, length;

	cache_tend(p->cache, 0); /* what is whole is sealed */
	assert_false(cache_file_is_complete(f));
	assert_int_equal(chunks_read(f, NUMBER, 0, PIECE), -ENOENT);
	assert_int_equal(cache_file_whole(f), -ENOENT);
	again = file_open_again(p);
	assert_true(again != f);
	assert_true(cache_file_absent(again, 0, SIZE, &absent, &length));
	assert_true(absent == 0 && length == SIZE);
	cache_file_close(f);
	cache_file_keep_pages(again, true);
	fill(again, 0, SIZE);
	assert_true(cache_file_whole(again) >= 0);
	assert_int_equal(chunks_read(again, NUMBER, 0, SIZE), 0);
	cache_file_close(again);
}

static void what_could_not_be_written_is_fetched_anew(void **state)
{
	static uint8_t bytes[PIECE];
	struct place *p = *state;
	struct cache_file *f = file_open(p, 64 * SIZE, true);
	int calls;

	/* The one that begins to write a run, and the one that awaits it. */
	for (int n = 1; n <= 2; n++) {
		fill(f, 0, SIZE / 2);
		atomic_store(&syncs_until_failure, n);
		content_fill(NUMBER, SIZE / 2, bytes, PIECE);
		assert_int_equal(cache_file_add(f, SIZE / 2, bytes, PIECE), -ENOSPC);
		assert_int_equal(atomic_load(&syncs_until_failure), 0);
		is_lost(p, f);
		f = file_open(p, 64 * SIZE, true);
	}
	/* The one that awaits all of it. */
	fill(f, 0, SIZE - PIECE);
	content_fill(NUMBER, SIZE - PIECE, bytes, PIECE);
	atomic_store(&syncs_until_failure, 3);
	assert_int_equal(cache_file_add(f, SIZE - PIECE, bytes, PIECE), 0);
	assert_int_equal(atomic_load(&syncs_until_failure), 0);
	is_lost(p, f);

	/* And those that make it and its map durable. */
	for (int n = 1; n <= 2; n++) {
		f = file_open(p, 64 * SIZE, true);
		cache_tend(p->cache, 0);
		fill(f, 0, SIZE);
		assert_true(cache_file_is_complete(f));
		atomic_store(&data_syncs_until_failure, n);
		is_lost(p, f);
		assert_int_equal(atomic_load(&data_syncs_until_failure), 0);
	}

	/* Nobody but the cache reads this one, and it compares. */
	f = file_open(p, 64 * SIZE, false);
	calls = atomic_load(&syncs);
	fill(f, 0, SIZE);
	assert_true(cache_file_whole(f) >= 0);
	assert_int_equal(atomic_load(&syncs), calls);
	cache_file_close(f);
}

static void *last_piece_add(void *context)
{
	uint8_t *bytes = malloc(PIECE);
	int error;

	content_fill(NUMBER, SIZE - PIECE, bytes, PIECE);
	is_told = true;
	error = cache_file_add(context, SIZE - PIECE, bytes, PIECE);
	free(bytes);
	return error == -ENOSPC ? context : NULL;
}

static void what_one_thread_is_told_another_does_not_miss(void **state)
{
	struct place *p = *state;
	struct cache_file *f = file_open(p, 64 * SIZE, true);
	bool complete;
	pthread_t thread;
	void *result;

	sem_init(&told, 0, 0);
	sem_init(&may_return, 0, 0);
	fill(f, 0, SIZE - PIECE);
	assert_int_equal(pthread_create(&thread, NULL, last_piece_add, f), 0);
	sem_wait(&told);
	atomic_store(&others_wait, true);
	fill(f, SIZE - PIECE, SIZE); /* the same, as it is not there yet */
	complete = cache_file_is_complete(f);
	atomic_store(&others_wait, false);
	sem_post(&may_return);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_true(result == f);
	assert_false(complete);
	is_lost(p, f);
	sem_destroy(&told);
	sem_destroy(&may_return);
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
		cmocka_unit_test_setup_teardown(what_could_not_be_written_is_fetched_anew, place_make, place_remove),
		cmocka_unit_test_setup_teardown(what_one_thread_is_told_another_does_not_miss, place_make, place_remove),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
