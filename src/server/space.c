#include "server/space.h"
#include <errno.h>
#include <limits.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/units.h"
#include "meta/content.h"
#include "server/dispatch.h"
#include "server/state.h"
#include "server/stream.h"

#define LOOK_EVERY_NS NS_PER_S
#define FULL_EVERY_NS (10 * NS_PER_S)
#define KEPT_BACK_MAX ((uint64_t)64 << 20)
#define BLOCK_SIZE 4096u
/* What statfs shows of a volume without a limit on files: the inode numbers there are. */
#define FILES_UNLIMITED (((uint64_t)1 << 40) - 1)

void space_init(struct space *sp)
{
	pthread_mutex_init(&sp->lock, NULL);
	sp->looked_steady_ns = -LOOK_EVERY_NS;
}

void space_free(struct space *sp) { pthread_mutex_destroy(&sp->lock); }

static uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The lock is held. */
static int space_look(struct server *s)
{
	struct space *sp = &s->space;
	int64_t now = clock_steady_ns();
	int r;

	if (now - sp->looked_steady_ns < LOOK_EVERY_NS)
		return 0;
	r = store_space(s->store, &sp->store);
	if (!r)
		sp->looked_steady_ns = now;
	return r;
}

uint64_t space_usable(const struct store_space *store)
{
	return minus(store->free_bytes, least(KEPT_BACK_MAX, store->total_bytes / 100));
}

int space_of_store(struct server *s, struct store_space *out)
{
	int r;
	LOCKED(&s->space.lock);

	r = space_look(s);
	*out = s->space.store;
	return r;
}

int space_of_store_now(struct server *s, struct store_space *out)
{
	LOCKED(&s->space.lock);
	s->space.looked_steady_ns = clock_steady_ns() - LOOK_EVERY_NS;
	int r = space_look(s);
	*out = s->space.store;
	return r;
}

int space_may_put(struct server *s, uint64_t bytes)
{
	struct space *sp = &s->space;
	int r;
	LOCKED(&sp->lock);

	r = space_look(s);
	if (r)
		return r;
	if (bytes > space_usable(&sp->store))
		return -ENOSPC;
	/* Until the next look: many puts in one second count, too. */
	sp->store.free_bytes -= bytes;
	return 0;
}

int space_waiting(struct server *s, struct space_waiting *out)
{
	struct waiting_objects objects;
	struct view view;
	int r = meta_view_begin(s->meta, &view);

	if (r)
		return r;
	r = objects_waiting(&view, &objects);
	meta_view_end(&view);
	if (r)
		return r;
	*out = (struct space_waiting){ .objects = objects.count, .bytes = objects.bytes, .grace_ns = stream_grace_ns(s) };
	/* The reaper looks every second. */
	if (objects.count)
		out->until_ns = objects.newest_ns + out->grace_ns + NS_PER_S;
	return 0;
}

/* Once in a while: a program that writes to a full disk may ask again and again. */
static void full_log(struct server *s, const struct session *asking, uint64_t need)
{
	char asked[UNITS_TEXT], free[UNITS_TEXT], total[UNITS_TEXT], waits[UNITS_TEXT], until[UNITS_TEXT];
	struct space_waiting waiting = { 0 };
	struct store_space store;
	int64_t now = clock_steady_ns();
	uint64_t reserved;

	pthread_mutex_lock(&s->space.lock);
	bool silent = s->space.full_steady_ns && now - s->space.full_steady_ns < FULL_EVERY_NS;
	if (!silent)
		s->space.full_steady_ns = now;
	store = s->space.store;
	reserved = s->space.reserved - asking->reserved;
	pthread_mutex_unlock(&s->space.lock);
	if (silent)
		return;
	size_format(asked, need);
	/* What is kept back for deleting, and what other mounts have been promised, is no room for this one. */
	size_format(free, minus(space_usable(&store), reserved));
	size_format(total, store.total_bytes);
	if (!space_waiting(s, &waiting) && waiting.bytes)
		log_warn("the store is full: a mount asked for %s, and %s of %s are free; %s more are freed by %s at the latest, "
			 "when "
			 "nobody can be reading them any more (--grace)",
			 asked, free, total, size_format(waits, waiting.bytes), date_format(until, waiting.until_ns));
	else
		log_warn(
			"the store is full: a mount asked for %s, and %s of %s are free; nothing that was deleted is still in it",
			asked, free, total);
}

static void reserve_set(struct space *sp, struct session *session, uint64_t bytes)
{
	sp->reserved += bytes - session->reserved;
	session->reserved = bytes;
}

void space_reclaim(struct server *s, struct session *session, uint64_t bytes)
{
	LOCKED(&s->space.lock);
	if (!session_is_ended(session))
		reserve_set(&s->space, session, least(bytes, (uint64_t)1 << 50));
}

void space_forget(struct server *s, struct session *session)
{
	LOCKED(&s->space.lock);
	reserve_set(&s->space, session, 0);
}

/* ---- Reserving ---- */

struct volume_sum {
	uint32_t volume;
	uint64_t reserved;
};

static void volume_sum_add(void *context, struct session *session)
{
	struct volume_sum *sum = context;

	if (session->volume == sum->volume)
		sum->reserved += session->reserved;
}

/* What the volume's limit leaves, with `reserved` bytes of it promised. */
static uint64_t volume_left(const Wire__Volume *v, uint64_t reserved)
{
	return v->max_bytes ? minus(minus(v->max_bytes, v->used_bytes), reserved) : UINT64_MAX;
}

/* What the session had before does not count: what it has committed since is in the
 * volume's used bytes and the store's, and what it has not is in the new figure. */
static int reserve_grant(struct request *q, struct session *n, uint64_t want, uint64_t need, uint64_t *granted)
{
	struct space *sp = &q->server->space;
	struct volume_sum sum = { .volume = n->volume };
	Wire__Volume *v;
	uint64_t by_volume, by_store;
	int r = meta_volume_find(q->server->meta, n->volume_name, q->arena, &v);

	if (r)
		return r;
	LOCKED(&sp->lock);
	r = session_is_ended(n) ? -ESTALE : space_look(q->server);
	if (r)
		return r;
	sessions_each(q->server, volume_sum_add, &sum);
	by_volume = volume_left(v, sum.reserved - n->reserved);
	by_store = minus(space_usable(&sp->store), sp->reserved - n->reserved);
	*granted = least(want, least(by_volume, by_store));
	if (*granted < need)
		return by_volume <= by_store ? -EDQUOT : -ENOSPC;
	reserve_set(sp, n, *granted);
	return 0;
}

int serve_reserve(struct request *q)
{
	const Wire__ReserveRequest *reserve = (const Wire__ReserveRequest *)q->message;
	Wire__ReserveReply *reply = request_reply(q, &wire__reserve_reply__descriptor);
	int r;

	if (!reply)
		return -ENOMEM;
	if (reserve->bytes == 0) { /* giving all back is always right, also for one that has ended */
		space_forget(q->server, q->peer->session);
		return 0;
	}
	r = reserve_grant(q, q->peer->session, reserve->bytes, reserve->need, &reply->bytes);
	if (r == -ENOSPC) {
		reaper_relieve(q->server, reserve->need + q->server->space.reserved);
		r = reserve_grant(q, q->peer->session, reserve->bytes, reserve->need, &reply->bytes);
	}
	if (r == -EDQUOT)
		return request_explain(q, r, "the volume's limit is reached; epochfs volume set changes it");
	if (r == -ENOSPC) {
		full_log(q->server, q->peer->session, reserve->need);
		return request_explain(q, r, "the store is full");
	}
	return r;
}

/* ---- statfs ---- */

int serve_statfs(struct request *q)
{
	Wire__StatfsReply *reply = request_reply(q, &wire__statfs_reply__descriptor);
	struct store_space store;
	Wire__Volume *v;
	int r;

	if (!reply)
		return -ENOMEM;
	r = meta_volume_find(q->server->meta, q->peer->session->volume_name, q->arena, &v);
	if (!r)
		r = space_of_store(q->server, &store);
	if (r)
		return r;
	reply->block_size = BLOCK_SIZE;
	reply->free_bytes = least(space_usable(&store), v->max_bytes ? minus(v->max_bytes, v->used_bytes) : UINT64_MAX);
	/* The size stays the same, whatever is written to the disk by others. */
	reply->total_bytes = v->max_bytes ? v->max_bytes : store.total_bytes;
	reply->used_bytes = least(v->used_bytes, minus(reply->total_bytes, reply->free_bytes));
	reply->total_files = v->max_files ? v->max_files : FILES_UNLIMITED;
	reply->free_files = minus(reply->total_files, v->used_files);
	return 0;
}
