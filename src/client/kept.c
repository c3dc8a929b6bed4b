#include "client/kept.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define KEPT_MOST 32768u
#define KEPT_NS (60 * NS_PER_S)
#define LOOK_NS (1 * NS_PER_S)
#define ALIVE_NS (2 * NS_PER_S)

struct kept_file {
	struct client_file *file;
	uint64_t inode;
	uint32_t uses;
	int64_t used_ns;
	struct kept_file *newer, *older;
};

/* ---- The list; the lock is held ---- */

static void list_remove(struct kept *k, struct kept_file *f)
{
	*(f->newer ? &f->newer->older : &k->newest) = f->older;
	*(f->older ? &f->older->newer : &k->oldest) = f->newer;
	f->newer = f->older = NULL;
}

static void list_add(struct kept *k, struct kept_file *f)
{
	f->older = k->newest;
	*(k->newest ? &k->newest->newer : &k->oldest) = f;
	k->newest = f;
}

static struct client_file *use(struct kept *k, struct kept_file *f)
{
	f->uses++;
	f->used_ns = monotonic_ns();
	if (k->newest != f) {
		list_remove(k, f);
		list_add(k, f);
	}
	return f->file;
}

/* ---- Reading ---- */

/* NULL: it is not kept. */
static struct client_file *find(struct kept *k, uint64_t inode)
{
	struct kept_file *f;
	LOCKED(&k->lock);

	f = intmap_get(&k->files, inode);
	return f ? use(k, f) : NULL;
}

/* Takes `file` over, unless another thread was quicker: then it is that one's, and *spare is to be closed. */
static int add(struct kept *k, uint64_t inode, struct client_file *file, struct client_file **out, struct client_file **spare)
{
	struct kept_file *f;
	LOCKED(&k->lock);

	*spare = file;
	f = intmap_get(&k->files, inode);
	if (f) {
		*out = use(k, f);
		return 0;
	}
	f = calloc(1, sizeof(*f));
	if (!f || intmap_set(&k->files, inode, f) < 0) {
		free(f);
		return -ENOMEM;
	}
	*f = (struct kept_file){ .file = file, .inode = inode };
	file->kept = f;
	list_add(k, f);
	*out = use(k, f);
	*spare = NULL;
	if (k->files.used > KEPT_MOST)
		pthread_cond_signal(&k->work);
	return 0;
}

int client_view(struct client *c, uint64_t inode, struct client_file **out)
{
	struct client_file *file, *spare;
	bool unchanged;
	int r;

	*out = find(&c->kept, inode);
	if (*out) {
		told_seen(c, inode);
		return 0;
	}
	r = client_open(c, inode, O_RDONLY, false, false, &file, &unchanged);
	if (r < 0)
		return r;
	r = add(&c->kept, inode, file, out, &spare);
	if (spare)
		client_release(spare);
	return r;
}

void client_view_end(struct client_file *f)
{
	struct kept *k = &f->inode->client->kept;
	LOCKED(&k->lock);
	f->kept->uses--;
}

/* ---- Letting go ---- */

/* The lock is held.  Without memory to note it the pages are forgotten now. */
static bool page_note(struct kept *k, uint64_t inode)
{
	uintptr_t bits = (uintptr_t)intmap_get(&k->paged, inode / 64) | (uintptr_t)1 << inode % 64;

	return intmap_set(&k->paged, inode / 64, (void *)bits) == 0;
}

/* The lock is held, and given up meanwhile. */
static void let_go(struct client *c, struct kept_file *f)
{
	struct kept *k = &c->kept;
	bool noted;

	intmap_remove(&k->files, f->inode);
	list_remove(k, f);
	noted = c->replica || (lease_held(c) && page_note(k, f->inode));
	pthread_mutex_unlock(&k->lock);
	if (!noted) {
		LOCKED(&f->file->inode->lock);
		pages_extend(f->file->inode);
	}
	if (!noted)
		pages_forget(c, f->inode, 0, UINT64_MAX);
	client_release(f->file);
	free(f);
	pthread_mutex_lock(&k->lock);
}

/* The lock is held.  The oldest that is in nobody's use and due: one too many, or not used since `before`; or NULL. */
static struct kept_file *due(struct kept *k, int64_t before_ns)
{
	struct kept_file *f = k->oldest;

	while (f && f->uses && (k->files.used > KEPT_MOST || f->used_ns <= before_ns))
		f = f->newer;
	return f && !f->uses && (k->files.used > KEPT_MOST || f->used_ns <= before_ns) ? f : NULL;
}

static void paged_forget(struct client *c)
{
	struct intmap paged = c->kept.paged;
	size_t position = 0;
	uint64_t key;
	void *value;

	c->kept.paged = (struct intmap){ 0 };
	pthread_mutex_unlock(&c->kept.lock);
	while (intmap_next(&paged, &position, &key, &value))
		for (uint64_t bit = 0; bit < 64; bit++)
			if ((uintptr_t)value >> bit & 1)
				pages_forget(c, key * 64 + bit, 0, UINT64_MAX);
	intmap_free(&paged);
	pthread_mutex_lock(&c->kept.lock);
}

static void *kept_run(void *context)
{
	struct client *c = context;
	struct kept *k = &c->kept;
	LOCKED(&k->lock);

	while (!k->stopping) {
		uint64_t sweep = k->sweeps;
		int64_t before_ns = monotonic_ns() - (sweep != k->sweeps_done ? 0 : KEPT_NS);
		struct kept_file *f;

		while ((f = due(k, before_ns)))
			let_go(c, f);
		if (sweep != k->sweeps_done) {
			paged_forget(c);
			k->sweeps_done = sweep;
			pthread_cond_broadcast(&k->swept);
			continue;
		}
		if (k->sweeps == k->sweeps_done) /* none has begun while the lock was given up */
			cond_wait_until(&k->work, &k->lock, monotonic_ns() + LOOK_NS);
	}
	return NULL;
}

/* The lock is held.  Taken out, one after the other by `older`. */
static struct kept_file *idle_take(struct kept *k)
{
	struct kept_file *taken = NULL, *newer;

	for (struct kept_file *f = k->oldest; f; f = newer) {
		newer = f->newer;
		if (f->uses || !page_note(k, f->inode))
			continue;
		intmap_remove(&k->files, f->inode);
		list_remove(k, f);
		f->older = taken;
		taken = f;
	}
	return taken;
}

void kept_note_idle(struct client *c)
{
	struct kept_file *f, *older;

	pthread_mutex_lock(&c->kept.lock);
	f = idle_take(&c->kept);
	pthread_mutex_unlock(&c->kept.lock);
	for (; f; f = older) {
		older = f->older;
		client_release(f->file);
		free(f);
	}
}

void kept_sweep(struct client *c, void (*alive)(struct client *c))
{
	struct kept *k = &c->kept;
	uint64_t sweep;
	LOCKED(&k->lock);

	if (!k->started)
		return;
	sweep = ++k->sweeps;
	pthread_cond_signal(&k->work);
	while (alive && k->sweeps_done < sweep && !k->stopping) {
		if (cond_wait_until(&k->swept, &k->lock, monotonic_ns() + ALIVE_NS) == 0)
			continue;
		pthread_mutex_unlock(&k->lock);
		alive(c);
		pthread_mutex_lock(&k->lock);
	}
}

/* ---- Life ---- */

void kept_init(struct kept *k)
{
	pthread_mutex_init(&k->lock, NULL);
	cond_init_monotonic(&k->work);
	cond_init_monotonic(&k->swept);
}

int kept_start(struct client *c)
{
	int r = -pthread_create(&c->kept.thread, NULL, kept_run, c);

	c->kept.started = r == 0;
	return r;
}

void kept_stop(struct client *c)
{
	struct kept *k = &c->kept;
	struct kept_file *f;

	if (!k->started)
		return;
	pthread_mutex_lock(&k->lock);
	k->stopping = true;
	pthread_cond_signal(&k->work);
	pthread_cond_broadcast(&k->swept);
	pthread_mutex_unlock(&k->lock);
	pthread_join(k->thread, NULL);
	k->started = false;
	while ((f = k->oldest)) {
		list_remove(k, f);
		client_release(f->file);
		free(f);
	}
}

void kept_free(struct kept *k)
{
	intmap_free(&k->files);
	intmap_free(&k->paged);
	pthread_mutex_destroy(&k->lock);
	pthread_cond_destroy(&k->work);
	pthread_cond_destroy(&k->swept);
}
