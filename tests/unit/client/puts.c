#include "puts.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/cleanup.h"
#include "meta/meta.h"
#include "store/store.h"

#define COMMITS_MOST 1024

int __real_store_put(struct store *s, const char *key, const struct iovec *parts, int part_count);
int __wrap_store_put(struct store *s, const char *key, const struct iovec *parts, int part_count);
void __real_meta_submit(struct meta *m, struct mutation *mutation);
void __wrap_meta_submit(struct meta *m, struct mutation *mutation);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool holding;
static int held_first, done;
static struct {
	uint64_t inode, end;
} commits[COMMITS_MOST];
static int commit_count;

int __wrap_store_put(struct store *s, const char *key, const struct iovec *parts, int part_count)
{
	int first = *(const uint8_t *)parts[0].iov_base, r;

	pthread_mutex_lock(&lock);
	while (holding && (held_first == PUTS_ALL || held_first == first))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	r = __real_store_put(s, key, parts, part_count);
	LOCKED(&lock);
	done += r == 0;
	return r;
}

static void commit_note(const Wire__CommitRequest *commit)
{
	LOCKED(&lock);
	for (size_t k = 0; k < commit->n_files && commit_count < COMMITS_MOST; k++) {
		commits[commit_count].inode = commit->files[k]->inode;
		commits[commit_count++].end = commit->files[k]->size;
	}
}

void __wrap_meta_submit(struct meta *m, struct mutation *mutation)
{
	if (mutation->op == WIRE__OP__COMMIT)
		commit_note((const Wire__CommitRequest *)mutation->request);
	__real_meta_submit(m, mutation);
}

void puts_hold(int first)
{
	LOCKED(&lock);
	holding = true;
	held_first = first;
	done = commit_count = 0;
}

void puts_go_on(void)
{
	LOCKED(&lock);
	holding = false;
	pthread_cond_broadcast(&changed);
}

int puts_done(void)
{
	LOCKED(&lock);
	return done;
}

int commits_of(uint64_t inode, uint64_t *ends, int most)
{
	int count = 0;

	LOCKED(&lock);
	for (int k = 0; k < commit_count && count < most; k++)
		if (commits[k].inode == inode)
			ends[count++] = commits[k].end;
	return count;
}
