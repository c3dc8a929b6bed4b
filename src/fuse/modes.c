#include "fuse/modes.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/clock.h"

struct mode {
	uint32_t pages, passed[2]; /* opens; those through pages are all on the current side */
	unsigned current;
	bool dual;
	int backing; /* of the side that is passed through */
};

void modes_init(struct modes *m)
{
	pthread_condattr_t a;

	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&m->closed, &a);
	pthread_condattr_destroy(&a);
	pthread_mutex_init(&m->lock, NULL);
}

void modes_free(struct modes *m)
{
	size_t position = 0;
	uint64_t key;
	void *value;

	while (intmap_next(&m->files, &position, &key, &value))
		free(value);
	intmap_free(&m->files);
	pthread_cond_destroy(&m->closed);
	pthread_mutex_destroy(&m->lock);
}

/* ---- The table; the lock is held ---- */

static struct mode *mode_get_or_add(struct modes *m, uint64_t inode)
{
	struct mode *e = intmap_get(&m->files, inode);

	if (e)
		return e;
	e = calloc(1, sizeof(*e));
	if (e && intmap_set(&m->files, inode, e) < 0) {
		free(e);
		e = NULL;
	}
	return e;
}

static bool mode_is_idle(const struct mode *e) { return !e->pages && !e->passed[0] && !e->passed[1]; }

/* Which side is the current one, and that there are two, is remembered; else there is nothing to. */
static void mode_put(struct modes *m, uint64_t inode, struct mode *e)
{
	if (e->dual || !mode_is_idle(e))
		return;
	intmap_remove(&m->files, inode);
	free(e);
}

static void become_dual(struct modes *m, struct mode *e)
{
	if (!e->dual)
		atomic_fetch_add(&m->dual, 1);
	e->dual = true;
}

/* ---- Opening ---- */

/* The other side becomes the current one where all is closed. */
static int side_enter(struct modes *m, struct mode *e, unsigned side)
{
	if (side == e->current)
		return 0;
	if (!mode_is_idle(e))
		return -ESTALE;
	e->current = side;
	become_dual(m, e);
	return 0;
}

/* What is passed through cannot be shared. */
static int leave_side(struct modes *m, struct mode *e, unsigned side)
{
	if (side == e->current) {
		become_dual(m, e);
		e->current = !side;
	}
	return -ESTALE;
}

static void count_pages(struct mode *e, struct opened *out)
{
	*out = (struct opened){ .mode = OPEN_PAGES, .side = e->current, .foreign = e->dual && !e->pages };
	e->pages++;
}

static void count_passed(struct modes *m, struct mode *e, unsigned side, struct opened *out)
{
	*out = (struct opened){ .mode = OPEN_PASSED, .side = side, .backing = e->backing };
	if (!e->passed[side]++)
		atomic_fetch_add(&m->passing, 1);
	atomic_fetch_add(&m->passed, 1);
}

static bool is_passed(const struct modes *m, uint64_t inode, unsigned side)
{
	const struct mode *e = intmap_get(&m->files, inode);

	return e && e->passed[side];
}

static void await_closes(struct modes *m, uint64_t inode, unsigned side)
{
	int64_t until_ns = clock_steady_ns() + MODES_WAIT_NS;
	struct timespec until = { .tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S };

	while (is_passed(m, inode, side) && pthread_cond_timedwait(&m->closed, &m->lock, &until) == 0)
		;
}

int modes_open_write(struct modes *m, uint64_t inode, unsigned side, struct opened *out)
{
	struct mode *e;
	int r;
	LOCKED(&m->lock);

	await_closes(m, inode, side);
	e = mode_get_or_add(m, inode);
	if (!e)
		return -ENOMEM;
	r = e->passed[side] ? leave_side(m, e, side) : side_enter(m, e, side);
	if (r == 0)
		count_pages(e, out);
	mode_put(m, inode, e);
	return r;
}

int modes_create(struct modes *m, uint64_t inode, struct opened *out)
{
	struct mode *e;
	LOCKED(&m->lock);

	e = mode_get_or_add(m, inode);
	if (!e)
		return -ENOMEM;
	if (e->passed[e->current]) {
		become_dual(m, e);
		e->current = !e->current;
	}
	count_pages(e, out);
	return 0;
}

/* Whether it can be the first one to be passed through. */
static bool pass_begin(struct modes *m, struct mode *e, int fd)
{
	int id = fd < 0 || e->pages || !mode_is_idle(e) ? -EBUSY : m->make(m->context, fd);

	if (id < 0)
		return false;
	e->backing = id;
	return true;
}

int modes_open_read(struct modes *m, uint64_t inode, unsigned side, int fd, struct opened *out)
{
	struct mode *e;
	int r = 0;
	LOCKED(&m->lock);

	e = mode_get_or_add(m, inode);
	if (!e)
		return -ENOMEM;
	if (e->passed[side] && fd >= 0) {
		count_passed(m, e, side, out);
		return 0;
	}
	r = e->passed[side] ? leave_side(m, e, side) : side_enter(m, e, side);
	if (r == 0 && pass_begin(m, e, fd))
		count_passed(m, e, side, out);
	else if (r == 0)
		count_pages(e, out);
	mode_put(m, inode, e);
	return r;
}

void modes_close(struct modes *m, uint64_t inode, const struct opened *o)
{
	struct mode *e;
	LOCKED(&m->lock);

	if (o->mode == OPEN_UNCOUNTED)
		return;
	e = intmap_get(&m->files, inode);
	if (o->mode == OPEN_PAGES)
		e->pages--;
	else if (--e->passed[o->side] == 0) {
		m->drop(m->context, e->backing);
		atomic_fetch_sub(&m->passing, 1);
		pthread_cond_broadcast(&m->closed);
	}
	mode_put(m, inode, e);
}

bool modes_is_passed(struct modes *m, uint64_t inode, unsigned side)
{
	LOCKED(&m->lock);
	return is_passed(m, inode, side);
}

unsigned modes_side(struct modes *m, uint64_t inode, bool *dual)
{
	struct mode *e;

	*dual = false;
	if (!atomic_load_explicit(&m->dual, memory_order_relaxed))
		return 0;
	LOCKED(&m->lock);
	e = intmap_get(&m->files, inode);
	*dual = e && e->dual;
	return e ? e->current : 0;
}

bool modes_is_elsewhere(struct modes *m, uint64_t inode, unsigned side)
{
	struct mode *e;
	LOCKED(&m->lock);

	e = intmap_get(&m->files, inode);
	return e && side != e->current && e->pages;
}
