#include "client/packs.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "cache/cache.h"
#include "client/state.h"

#define ALONE_SAME 3
#define HELD_READS 64u

enum flight_state { FLIGHT_FREE, FLIGHT_FETCHING, FLIGHT_LANDED, FLIGHT_WRITING, FLIGHT_HELD, FLIGHT_OVER };

struct flight {
	uint64_t object;
	enum flight_state state;
	int error;      /* of the fetch */
	int kept;       /* what came of writing it, once it is over; or why that was not even tried */
	unsigned flags; /* for the cache */
	bool keeping;   /* nobody reads it yet */
	bool memory;    /* it is to be held, not written */
	uint32_t users;
	size_t length;
	uint64_t taken;  /* bytes, by readers */
	uint64_t used;   /* packs.reads when one of them left it the last time */
	uint8_t *buffer; /* packs.bytes */
};

/* ---- The lock is held ---- */

static struct flight *flight_find(struct packs *p, uint64_t object)
{
	for (int i = 0; i < p->count; i++)
		if (p->flights[i].state != FLIGHT_FREE && p->flights[i].object == object)
			return &p->flights[i];
	return NULL;
}

/* One that has its buffer already, if there is one; NULL: all are under way. */
static struct flight *flight_free(struct packs *p)
{
	struct flight *found = NULL;

	for (int i = 0; i < p->count && !(found && found->buffer); i++)
		if (p->flights[i].state == FLIGHT_FREE && (!found || p->flights[i].buffer))
			found = &p->flights[i];
	return found;
}

/* Of those that are held, the one not used for longest.  For another to be held it has to be done with: two readers would take it from
 * each other for every file. */
static struct flight *flight_held(struct packs *p, bool memory)
{
	struct flight *found = NULL;

	for (int i = 0; i < p->count; i++) {
		struct flight *f = &p->flights[i];
		bool done = p->reads - f->used > HELD_READS || f->taken >= f->length / 4 * 3;

		if (f->state == FLIGHT_HELD && f->users == 0 && (done || !memory) && (!found || f->used < found->used))
			found = f;
	}
	return found;
}

/* 0; -EAGAIN: all are under way; -ENOMEM. */
static int flight_take(struct packs *p, uint64_t object, bool memory, struct flight **out)
{
	struct flight *f = flight_free(p);

	if (!f)
		f = flight_held(p, memory);
	if (!f)
		return -EAGAIN;
	if (!f->buffer)
		f->buffer = malloc(p->bytes);
	if (!f->buffer)
		return -ENOMEM;
	*f = (struct flight){ .object = object, .state = FLIGHT_FETCHING, .memory = memory, .users = 1, .buffer = f->buffer };
	*out = f;
	return 0;
}

static void flight_leave(struct packs *p, struct flight *f)
{
	f->used = p->reads;
	if (--f->users > 0 || (f->state != FLIGHT_OVER && f->state != FLIGHT_HELD))
		return;
	if (f->state == FLIGHT_OVER)
		f->state = FLIGHT_FREE;
	pthread_cond_broadcast(&p->landed); /* it can be taken */
}

/* A file of it is about to be fetched alone, as some others were lately. */
static bool is_read_on(struct packs *p, const struct extent *e)
{
	bool known = false;
	int others = 0;

	for (uint32_t i = 0; i < PACKS_ALONE; i++) {
		bool same = p->alone[i].object == e->object;

		known = known || (same && p->alone[i].place == e->object_offset);
		others += same && p->alone[i].place != e->object_offset;
	}
	if (!known) {
		p->alone[p->alone_at % PACKS_ALONE].object = e->object;
		p->alone[p->alone_at++ % PACKS_ALONE].place = e->object_offset;
	}
	return others >= ALONE_SAME;
}

static void read_on_forget(struct packs *p, uint64_t object)
{
	for (uint32_t i = 0; i < PACKS_ALONE; i++)
		if (p->alone[i].object == object)
			p->alone[i].object = 0;
}

static uint64_t *refusal_of(struct packs *p, uint64_t object) { return &p->refused[object % PACKS_REFUSED]; }

/* What the cache does not want now it may want later: each time one is noted, another is forgotten. */
static void refusal_note(struct packs *p, uint64_t object)
{
	p->refused[p->forget_at++ % PACKS_REFUSED] = 0;
	*refusal_of(p, object) = object;
}

#define FETCHED_BITS (8 * sizeof(uintptr_t))

/* The lock is held.  Without memory to note it, the pack counts as known. */
static void fetched_note(struct packs *p, uint64_t object)
{
	uintptr_t bits = (uintptr_t)intmap_get(&p->fetched, object / FETCHED_BITS);

	intmap_set(&p->fetched, object / FETCHED_BITS, (void *)(bits | (uintptr_t)1 << object % FETCHED_BITS));
}

bool pack_was_fetched(struct client *c, uint64_t object)
{
	LOCKED(&c->packs.lock);
	return (uintptr_t)intmap_get(&c->packs.fetched, object / FETCHED_BITS) >> object % FETCHED_BITS & 1;
}

/* ---- Fetching ---- */

static int whole_get(struct client *c, struct flight *f)
{
	Wire__ObjectRequest request = WIRE__OBJECT_REQUEST__INIT;
	struct iovec part = { f->buffer, c->packs.bytes };
	struct rpc_call call = { .op = WIRE__OP__OBJECT_GET,
				 .request = &request.base,
				 .bulk_in = &part,
				 .bulk_in_count = 1,
				 .bulk_in_length = &f->length };
	struct arena arena;
	int r;

	request.object = f->object;
	request.length = c->packs.bytes;
	request.whole = true;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &call, &arena);
	arena_free(&arena);
	return r;
}

static int flight_fetch(struct client *c, struct flight *f)
{
	struct packs *p = &c->packs;
	int r;
	/* The flight that brought it may have ended since it was looked for on the disk. */
	if (f->memory)
		r = whole_get(c, f);
	else if (cache_object_has(c->cache, f->object, 0))
		r = -EALREADY;
	else if (cache_object_wanted(c->cache, c->volume_id, f->object, c->volume.block_size, 0))
		r = whole_get(c, f);
	else
		r = -EAGAIN;
	if (r == 0)
		objects_count(c, f->length);
	LOCKED(&p->lock);

	if (f->memory && r < 0)
		read_on_forget(p, f->object); /* not to be tried again for each file */
	else if (r == -EFBIG || r == -EAGAIN)
		refusal_note(p, f->object);
	f->error = r == 0 || r == -ENOENT || r == -EALREADY ? r : -EAGAIN;
	f->state = r < 0 ? FLIGHT_OVER : f->memory ? FLIGHT_HELD : FLIGHT_LANDED;
	pthread_cond_broadcast(&p->landed);
	if (f->state == FLIGHT_LANDED)
		pthread_cond_signal(&p->work);
	return f->error;
}

/* The flight with what is asked for, and a use counted.  -EAGAIN: none. */
static int flight_board(struct client *c, const struct extent *e, struct flight **out, bool *mine)
{
	struct packs *p = &c->packs;
	struct flight *f;
	LOCKED(&p->lock);
	bool for_disk = c->cache && *refusal_of(p, e->object) != e->object;

	*mine = false;
	p->reads++;
	f = flight_find(p, e->object);
	if (f) {
		f->users++;
		while (f->state == FLIGHT_FETCHING)
			pthread_cond_wait(&p->landed, &p->lock);
	} else if (for_disk || is_read_on(p, e)) {
		*mine = flight_take(p, e->object, !for_disk, &f) == 0;
	}
	*out = f;
	return f ? 0 : -EAGAIN;
}

static int range_copy(const struct flight *f, uint32_t offset, uint32_t length, const struct iovec *into, int count)
{
	const uint8_t *from = f->buffer + offset;

	if ((uint64_t)offset + length > f->length)
		return -EAGAIN; /* whoever is asked for the range says what is wrong */
	for (int i = 0; i < count; from += into[i++].iov_len)
		memcpy(into[i].iov_base, from, into[i].iov_len);
	return 0;
}

int packs_read(struct client *c, const struct extent *e, uint32_t offset, uint32_t length, const struct iovec *into, int count)
{
	struct flight *f;
	bool mine;
	int r = c->cache ? cache_object_read(c->cache, e->object, offset, into, count) : -ENOENT;

	if (r == 0) {
		counter_add(&c->counters.disk_reads, 1);
		counter_add(&c->counters.disk_bytes, length);
		return 0;
	}
	r = flight_board(c, e, &f, &mine);
	if (r < 0)
		return r;
	r = mine ? flight_fetch(c, f) : f->error;
	if (r == 0)
		r = range_copy(f, offset, length, into, count);
	else if (r == -EALREADY)
		r = cache_object_read(c->cache, e->object, offset, into, count) == 0 ? 0 : -EAGAIN;
	LOCKED(&c->packs.lock);
	f->taken += length;
	flight_leave(&c->packs, f);
	return r;
}

bool packs_drop(struct client *c, uint64_t object)
{
	struct packs *p = &c->packs;
	struct flight *f;
	LOCKED(&p->lock);

	f = flight_find(p, object);
	if (!f || f->state != FLIGHT_HELD)
		return f && f->state == FLIGHT_FETCHING; /* anew, by another reader who found the same */
	f->state = FLIGHT_OVER;
	f->object = 0; /* nobody finds it */
	f->users++;
	flight_leave(p, f);
	return true;
}

/* ---- Writing to the disk ---- */

static struct flight *flight_landed(struct packs *p)
{
	for (int i = 0; i < p->count; i++)
		if (p->flights[i].state == FLIGHT_LANDED)
			return &p->flights[i];
	return NULL;
}

static void *packs_run(void *context)
{
	struct client *c = context;
	struct packs *p = &c->packs;
	LOCKED(&p->lock);

	/* Also when it ends: what has come is written. */
	for (;;) {
		struct flight *f = flight_landed(p);
		int r;

		if (!f && p->stopping)
			break;
		if (!f) {
			pthread_cond_wait(&p->work, &p->lock);
			continue;
		}
		f->state = FLIGHT_WRITING;
		f->users++;
		pthread_mutex_unlock(&p->lock);
		r = cache_object_add(c->cache, c->volume_id, f->object, &(struct iovec){ f->buffer, f->length }, 1, f->flags);
		pthread_mutex_lock(&p->lock);
		if (r < 0 && r != -EEXIST)
			refusal_note(p, f->object);
		f->kept = r == -EEXIST ? 0 : r;
		if (f->kept == 0)
			fetched_note(p, f->object);
		f->state = FLIGHT_OVER;
		pthread_cond_broadcast(&p->landed);
		flight_leave(p, f);
	}
	return NULL;
}

/* ---- Keeping one that nobody reads yet ---- */

/* The lock is held.  The others are for those who read: they do not wait for one. */
static bool may_keep(const struct packs *p)
{
	int keeping = 0, most = p->count * PACKS_KEEPING / PACKS_FLIGHTS;

	for (int i = 0; i < p->count; i++)
		keeping += p->flights[i].state != FLIGHT_FREE && p->flights[i].keeping;
	return keeping < (most ? most : 1);
}

/* The lock is held.  A flight with the object, and a use counted, once there is one to be had.  0; -ECANCELED: the end; -ENOMEM. */
static int flight_await(struct packs *p, uint64_t object, struct flight **out, bool *mine)
{
	for (; !p->stopping; pthread_cond_wait(&p->landed, &p->lock)) {
		struct flight *f = flight_find(p, object);
		int r = 0;

		*mine = !f;
		if (f)
			f->users++;
		else
			r = may_keep(p) ? flight_take(p, object, false, &f) : -EAGAIN;
		if (r == -EAGAIN)
			continue;
		if (r == 0 && *mine)
			f->keeping = true;
		*out = f;
		return r;
	}
	return -ECANCELED;
}

/* Until it is over, and how it ended.  One that is held has it all: it is written after all. */
static int flight_watch(struct packs *p, struct flight *f, unsigned flags)
{
	while (f->state != FLIGHT_OVER && !p->stopping) {
		if (f->state == FLIGHT_HELD) {
			f->state = FLIGHT_LANDED;
			f->flags = flags;
			pthread_cond_signal(&p->work);
		}
		pthread_cond_wait(&p->landed, &p->lock);
	}
	return f->state != FLIGHT_OVER ? -ECANCELED : f->kept ? f->kept : f->error;
}

/* The lock is held, and given up meanwhile.  What there is no room for is not fetched: it would be again for each file in it.
 * Those who only read it go on without. */
static int flight_fly(struct client *c, struct flight *f, unsigned flags, uint64_t *fetched)
{
	struct packs *p = &c->packs;
	int r;

	f->flags = flags;
	pthread_mutex_unlock(&p->lock);
	/* The flight that brought it may have ended since it was looked for on the disk. */
	if (cache_object_has(c->cache, f->object, flags))
		r = -EALREADY;
	else
		r = cache_object_wanted(c->cache, c->volume_id, f->object, c->volume.block_size, flags) ? whole_get(c, f)
													: -ENOSPC;
	pthread_mutex_lock(&p->lock);
	f->error = r == 0 || r == -ENOENT ? r : -EAGAIN;
	f->kept = r == -ENOSPC ? r : 0;
	f->state = r == 0 ? FLIGHT_LANDED : FLIGHT_OVER;
	pthread_cond_broadcast(&p->landed);
	if (r < 0)
		return r == -EALREADY ? 0 : r;
	objects_count(c, f->length);
	*fetched += f->length;
	pthread_cond_signal(&p->work);
	return flight_watch(p, f, flags);
}

int pack_keep(struct client *c, uint64_t object, unsigned flags, uint64_t *fetched)
{
	struct packs *p = &c->packs;
	int r = -EAGAIN;

	/* What another one's flight came to may be without these flags, or failed for reasons of its own. */
	for (int tries = 0; tries < 3 && r < 0; tries++) {
		struct flight *f;
		bool mine;

		if (cache_object_has(c->cache, object, flags))
			return 0;
		LOCKED(&p->lock);
		r = flight_await(p, object, &f, &mine);
		if (r < 0)
			return r;
		r = mine ? flight_fly(c, f, flags, fetched) : flight_watch(p, f, flags);
		flight_leave(p, f);
		if (mine)
			return r;
	}
	return r == -EAGAIN ? -EIO : r == 0 && !cache_object_has(c->cache, object, flags) ? -ENOSPC : r;
}

/* ---- Life ---- */

int packs_start(struct client *c)
{
	struct packs *p = &c->packs;
	int r;

	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->mending, NULL);
	pthread_cond_init(&p->landed, NULL);
	pthread_cond_init(&p->work, NULL);
	p->bytes = c->volume.block_size + c->volume.block_size / 4;
	if (p->bytes < PACKS_BYTES)
		p->bytes = PACKS_BYTES;
	p->count = p->bytes < PACKS_MEMORY ? (int)(PACKS_MEMORY / p->bytes) : 1;
	if (p->count > PACKS_FLIGHTS)
		p->count = PACKS_FLIGHTS;
	p->flights = calloc((size_t)p->count, sizeof(*p->flights));
	if (!p->flights)
		return -ENOMEM;
	if (!c->cache)
		return 0;
	r = -pthread_create(&p->thread, NULL, packs_run, c);
	p->started = r == 0;
	return r;
}

void packs_stop(struct client *c)
{
	struct packs *p = &c->packs;

	if (!p->flights)
		return;
	pthread_mutex_lock(&p->lock);
	p->stopping = true;
	pthread_cond_signal(&p->work);
	pthread_cond_broadcast(&p->landed);
	pthread_mutex_unlock(&p->lock);
	if (p->started)
		pthread_join(p->thread, NULL);
	for (int i = 0; i < p->count; i++)
		free(p->flights[i].buffer);
	free(p->flights);
	intmap_free(&p->fetched);
	pthread_cond_destroy(&p->landed);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->mending);
}
