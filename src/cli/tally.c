#include "cli/tally.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include "cli/list.h"
#include "cli/walk.h"

struct tally {
	char *const *paths;
	int path_count;
	struct list list;
	struct walk *walk;
	pthread_t thread;
	_Atomic uint64_t bytes; /* 0 until all is counted */
	_Atomic bool stopping;
};

/* What cannot be looked at is not counted: whoever works on it says so. */
static uint64_t bytes_of(struct tally *t, const char *path)
{
	struct walk_file found;
	uint64_t bytes = 0;
	int r;

	if (walk_begin(t->walk, path) < 0)
		return 0;
	while (!atomic_load(&t->stopping) && (r = walk_next(t->walk, &found)) != 0)
		bytes += r > 0 ? found.size : 0;
	return bytes;
}

static void *tally_run(void *context)
{
	struct tally *t = context;
	uint64_t bytes = 0;
	const char *path;

	for (int i = 0; i < t->path_count && !atomic_load(&t->stopping); i++)
		bytes += bytes_of(t, t->paths[i]);
	while (!atomic_load(&t->stopping) && (path = list_next(&t->list)))
		bytes += bytes_of(t, path);
	if (!atomic_load(&t->stopping))
		atomic_store(&t->bytes, bytes);
	return NULL;
}

static void tally_free(struct tally *t)
{
	walk_free(t->walk);
	list_close(&t->list);
	free(t);
}

struct tally *tally_start(dev_t device, char *const *paths, int path_count, const struct list *l)
{
	struct tally *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->paths = paths;
	t->path_count = path_count;
	t->walk = walk_new(device);
	if (t->walk && list_open_again(&t->list, l) == 0 && pthread_create(&t->thread, NULL, tally_run, t) == 0)
		return t;
	tally_free(t);
	return NULL;
}

uint64_t tally_bytes(const struct tally *t) { return t ? atomic_load(&t->bytes) : 0; }

void tally_stop(struct tally *t)
{
	if (!t)
		return;
	atomic_store(&t->stopping, true);
	pthread_join(t->thread, NULL);
	tally_free(t);
}
