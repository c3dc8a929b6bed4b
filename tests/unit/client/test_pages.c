/* Pages that leave, against a kernel in miniature: a table of pages that are locked while they are asked for, and readers
 * who never stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "client/state.h"

#define PAGE 4096u
#define PAGES_MOST 2048
#define READERS 16
#define ROUNDS 40

struct kernel {
	struct client client;
	struct inode inode;
	unsigned page_count;
	pthread_mutex_t lock; /* guards pages */
	pthread_cond_t unlocked;
	struct {
		bool locked, there;
	} pages[PAGES_MOST];
	bool granted; /* inode.lock */
	_Atomic bool over;
	_Atomic uint64_t answered;
	pthread_t readers[READERS];
};

static void kernel_forget(void *context, uint64_t inode, uint64_t from, uint64_t to)
{
	struct kernel *k = context;

	for (uint64_t i = from / PAGE; i < k->page_count && i * PAGE < to; i++) {
		pthread_mutex_lock(&k->lock);
		while (k->pages[i].locked)
			pthread_cond_wait(&k->unlocked, &k->lock);
		k->pages[i].there = false;
		pthread_mutex_unlock(&k->lock);
	}
}

/* As inode_acquire does it. */
static void request(struct kernel *k, uint64_t page, uint64_t end)
{
	struct inode *i = &k->inode;
	bool admitted = false;

	pthread_mutex_lock(&i->lock);
	while (!k->granted || (i->pages.leaving && !admitted)) {
		if (k->granted)
			admitted = pages_admit(i, (struct stretch){ page * PAGE, end * PAGE });
		else
			pthread_cond_wait(&i->changed, &i->lock);
	}
	pthread_mutex_unlock(&i->lock);
	if (page % 7 == 0)
		usleep(200); /* it comes from far away */
	atomic_fetch_add(&k->answered, 1);
}

/* A page that is missing is read with those that are missing behind it. */
static void read_page(struct kernel *k, uint64_t page, uint64_t ahead, bool drop)
{
	uint64_t end = page + 1;

	pthread_mutex_lock(&k->lock);
	while (k->pages[page].locked)
		pthread_cond_wait(&k->unlocked, &k->lock);
	if (!k->pages[page].there) {
		while (end < k->page_count && end < page + ahead && !k->pages[end].there && !k->pages[end].locked)
			end++;
		for (uint64_t p = page; p < end; p++)
			k->pages[p].locked = true;
		pthread_mutex_unlock(&k->lock);
		request(k, page, end);
		pthread_mutex_lock(&k->lock);
		for (uint64_t p = page; p < end; p++) {
			k->pages[p].there = true;
			k->pages[p].locked = false;
		}
		pthread_cond_broadcast(&k->unlocked);
	} else if (drop) {
		k->pages[page].there = false;
	}
	pthread_mutex_unlock(&k->lock);
}

static void *reader_run(void *context)
{
	struct kernel *k = context;
	unsigned seed = (unsigned)(uintptr_t)&seed;

	while (!atomic_load(&k->over)) {
		read_page(k, (uint64_t)rand_r(&seed) % k->page_count, 1 + (uint64_t)rand_r(&seed) % 16, rand_r(&seed) % 16 == 0);
		sched_yield();
	}
	return NULL;
}

static void kernel_up(struct kernel *k, unsigned page_count)
{
	memset(k, 0, sizeof(*k));
	k->page_count = page_count;
	lease_init(&k->client.lease);
	k->client.lease.events = (struct client_events){ .forget = kernel_forget, .context = k };
	k->inode.client = &k->client;
	k->inode.attr.size = (uint64_t)page_count * PAGE;
	pthread_mutex_init(&k->inode.lock, NULL);
	cond_init_monotonic(&k->inode.changed);
	k->granted = true;
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->unlocked, NULL);
	for (int i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&k->readers[i], NULL, reader_run, k), 0);
}

static void kernel_down(struct kernel *k)
{
	atomic_store(&k->over, true);
	for (int i = 0; i < READERS; i++)
		pthread_join(k->readers[i], NULL);
	lease_free(&k->client.lease);
	pthread_cond_destroy(&k->inode.changed);
	pthread_mutex_destroy(&k->inode.lock);
	pthread_cond_destroy(&k->unlocked);
	pthread_mutex_destroy(&k->lock);
}

/* Nobody can answer while the lock is held, and those who answered hold no page any more: all there is, is seen. */
static void round_of_leaving(struct kernel *k)
{
	struct inode *i = &k->inode;
	uint64_t before = atomic_load(&k->answered);

	while (atomic_load(&k->answered) < before + READERS)
		usleep(100);
	pthread_mutex_lock(&i->lock);
	pages_leave(i, 0);
	pthread_mutex_lock(&k->lock);
	for (unsigned p = 0; p < k->page_count; p++)
		assert_false(k->pages[p].there);
	pthread_mutex_unlock(&k->lock);
	k->granted = false;
	pthread_mutex_unlock(&i->lock);
	usleep(500);
	pthread_mutex_lock(&i->lock);
	k->granted = true;
	pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
}

static void leaving_with_readers(unsigned page_count)
{
	struct kernel *k = malloc(sizeof(*k));

	assert_non_null(k);
	kernel_up(k, page_count);
	for (int i = 0; i < ROUNDS; i++)
		round_of_leaving(k);
	kernel_down(k);
	free(k);
}

static void readers_of_one_page_leave_nothing_behind(void **state) { leaving_with_readers(1); }

static void readers_of_a_few_pages_leave_nothing_behind(void **state) { leaving_with_readers(2 * READERS); }

/* More than one stretch. */
static void readers_of_a_large_file_leave_nothing_behind(void **state) { leaving_with_readers(PAGES_MOST); }

static void what_leaves_no_pages_is_not_held_up(void **state)
{
	struct inode i = { .pages.leaving = true };

	assert_true(pages_admit(&i, NO_PAGES));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readers_of_one_page_leave_nothing_behind),
		cmocka_unit_test(readers_of_a_few_pages_leave_nothing_behind),
		cmocka_unit_test(readers_of_a_large_file_leave_nothing_behind),
		cmocka_unit_test(what_leaves_no_pages_is_not_held_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
