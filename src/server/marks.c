#include "server/marks.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/units.h"
#include "meta/attr.h"
#include "meta/check.h"
#include "meta/marks.h"
#include "server/dispatch.h"
#include "server/state.h"

static bool is_its_own(const struct session *n, const Wire__MarkRecord *mark)
{
	return n && n->has_writeback && !memcmp(n->writeback, mark->writeback.data, WRITEBACK_ID);
}

static int mark_of_another(struct server *s, const struct session *n, uint64_t inode, struct arena *arena,
			   Wire__MarkRecord **mark)
{
	int r = meta_mark_find(s->meta, n->volume, inode, arena, mark);

	if (r == -ENOENT)
		return 0;
	return r < 0 ? r : !is_its_own(n, *mark);
}

int marks_are_anothers(struct server *s, const struct session *n, uint64_t inode)
{
	Wire__MarkRecord *mark;
	struct arena arena;
	int r;

	if (!meta_has_marks(s->meta))
		return 0;
	arena_init(&arena, 0);
	r = mark_of_another(s, n, inode, &arena, &mark);
	arena_free(&arena);
	return r;
}

bool marks_are_its_own(struct server *s, const struct session *n, uint64_t inode)
{
	Wire__MarkRecord *mark;
	struct arena arena;
	bool own;

	if (!meta_has_marks(s->meta) || !n->has_writeback)
		return false;
	arena_init(&arena, 0);
	own = meta_mark_find(s->meta, n->volume, inode, &arena, &mark) == 0 && is_its_own(n, mark);
	arena_free(&arena);
	return own;
}

/* ---- Who has made it ---- */

struct search {
	struct server *server;
	uint32_t volume;
	const uint8_t *writeback;
	bool there;
};

static void look_at(void *context, struct session *n)
{
	struct search *f = context;

	if (n->volume == f->volume && n->has_writeback && !memcmp(n->writeback, f->writeback, WRITEBACK_ID) &&
	    !session_is_lost(f->server, n))
		f->there = true;
}

static bool maker_is_there(struct server *s, uint32_t volume, const uint8_t *writeback)
{
	struct search f = { s, volume, writeback, false };

	sessions_each(s, look_at, &f);
	return f.there;
}

/* ---- Refusing ---- */

#define REFUSALS_MAX 10000u /* known; then all are forgotten, and logged anew */

void refusals_init(struct refusals *r) { pthread_mutex_init(&r->lock, NULL); }

void refusals_free(struct refusals *r)
{
	intmap_free(&r->generations);
	pthread_mutex_destroy(&r->lock);
}

/* Whether it is the first time for this mark. */
static bool refusal_is_new(struct refusals *r, uint64_t key, uint64_t generation)
{
	LOCKED(&r->lock);

	if ((uintptr_t)intmap_get(&r->generations, key) == generation)
		return false;
	if (r->generations.used >= REFUSALS_MAX)
		intmap_free(&r->generations);
	intmap_set(&r->generations, key, (void *)(uintptr_t)generation); /* without memory it is logged again */
	return true;
}

static void refusal_log(struct request *q, uint64_t inode, const Wire__MarkRecord *mark, const char *since)
{
	CLEANUP_BUF struct buf path = { 0 };
	const struct session *n = q->peer->session;

	if (meta_path(q->server->meta, n->volume, inode, &path) < 0)
		buf_append(&path, "?", 1);
	log_warn("volume %s, %.*s (inode %llu): its newest data is on %s, in the write-back directory of %s, since %s, and that "
		 "mount is away; see \"A node died with data that was not uploaded\" in docs/operations.md",
		 n->volume_name, (int)path.len, (const char *)path.data, (unsigned long long)inode, mark->host, mark->mount_point,
		 since);
}

static int refuse(struct request *q, uint64_t inode, const Wire__MarkRecord *mark)
{
	char since[64];

	date_format(since, mark->since_ns);
	if (refusal_is_new(&q->server->refusals, inode_key(q->peer->session->volume, inode), mark->generation))
		refusal_log(q, inode, mark, since);
	return request_explain(q, -EIO,
			       "its newest data is on %s, in the write-back directory of %s, since %s, and that mount is away",
			       mark->host, mark->mount_point, since);
}

/* ---- Waiting ---- */

/* Its writer, if there is one, stores what it has. */
static int store_first(struct request *q, uint64_t inode)
{
	struct session *n = q->peer->session;
	struct touch source = { inode, TOUCH_SOURCE };
	int r = grants_change_begin(q->server, q->peer->connection, n, n->volume, &source, 1);

	if (!r)
		grants_change_end(q->server, n->volume, &source, 1);
	return r;
}

static int look(struct request *q, uint64_t inode, bool wait)
{
	struct session *n = q->peer->session;
	int r;

	if (!meta_has_marks(q->server->meta))
		return 0;
	for (;;) {
		Wire__MarkRecord *mark;

		r = mark_of_another(q->server, n, inode, q->arena, &mark);
		if (r <= 0)
			return r;
		if (!maker_is_there(q->server, n->volume, mark->writeback.data))
			return refuse(q, inode, mark);
		if (!wait)
			return 0;
		r = store_first(q, inode);
		if (!r)
			r = grants_event_wait(-1, q->peer->connection);
		if (r)
			return r == -ECONNRESET ? REQUEST_BROKEN : r;
	}
}

int marks_await(struct request *q, uint64_t inode) { return look(q, inode, true); }

int marks_look(struct request *q, uint64_t inode) { return look(q, inode, false); }

/* The files whose content a mutation changes or copies. */
static size_t contents_of(const struct request *q, uint16_t op, uint64_t out[2])
{
	const Wire__SetattrRequest *setattr = (const Wire__SetattrRequest *)q->message;
	const Wire__CloneRequest *clone = (const Wire__CloneRequest *)q->message;

	if (!q->peer->session || !meta_has_marks(q->server->meta))
		return 0;
	switch (op) {
	case WIRE__OP__SETATTR: out[0] = setattr->inode; return setattr->valid & SET_SIZE ? 1 : 0;
	case WIRE__OP__FALLOCATE: out[0] = ((const Wire__FallocateRequest *)q->message)->inode; return 1;
	case WIRE__OP__CLONE:
		out[0] = clone->source;
		out[1] = clone->target;
		return 2;
	default: return 0;
	}
}

int marks_await_mutation(struct request *q, uint16_t op)
{
	uint64_t inodes[2];
	size_t count = contents_of(q, op, inodes);
	int r = 0;

	for (size_t i = 0; i < count && !r; i++)
		r = marks_await(q, inodes[i]);
	return r;
}

bool marks_bar_mutation(struct request *q, uint16_t op)
{
	uint64_t inodes[2];
	size_t count = contents_of(q, op, inodes);

	for (size_t i = 0; i < count; i++)
		if (marks_are_anothers(q->server, q->peer->session, inodes[i]))
			return true;
	return false;
}

/* ---- For people ---- */

#define LISTED_MAX 1000u

struct summary {
	struct request *q;
	Wire__StatusReply *reply;
	uint32_t volumes[LISTED_MAX];
};

static int summary_add(struct summary *u, uint32_t volume, const Wire__MarkRecord *mark)
{
	struct arena *arena = u->q->arena;
	Wire__WritebackInfo *info = arena_take(arena, sizeof(*info));

	if (!info)
		return -ENOMEM;
	wire__writeback_info__init(info);
	info->writeback.data = arena_copy(arena, mark->writeback.data, WRITEBACK_ID);
	info->writeback.len = WRITEBACK_ID;
	info->host = arena_string(arena, mark->host);
	info->mount_point = arena_string(arena, mark->mount_point);
	info->directory = arena_string(arena, mark->directory);
	if (!info->writeback.data || !info->host || !info->mount_point || !info->directory)
		return -ENOMEM;
	info->since_ns = mark->since_ns;
	info->files = 1;
	u->volumes[u->reply->n_writebacks] = volume;
	u->reply->writebacks[u->reply->n_writebacks++] = info;
	return 0;
}

static int summarize(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark)
{
	struct summary *u = context;

	for (size_t i = 0; i < u->reply->n_writebacks; i++) {
		Wire__WritebackInfo *info = u->reply->writebacks[i];

		if (u->volumes[i] != volume || memcmp(info->writeback.data, mark->writeback.data, WRITEBACK_ID))
			continue;
		info->files++;
		if (mark->since_ns < info->since_ns)
			info->since_ns = mark->since_ns;
		return 0;
	}
	return u->reply->n_writebacks < LISTED_MAX ? summary_add(u, volume, mark) : 0;
}

static int volumes_name(struct summary *u)
{
	Wire__Empty none = WIRE__EMPTY__INIT;
	struct caller who = CALLER_SERVER;
	ProtobufCMessage *volumes;
	int r = meta_read(u->q->server->meta, &who, WIRE__OP__VOLUME_LIST, &none.base, u->q->arena, &volumes);

	for (size_t i = 0; !r && i < u->reply->n_writebacks; i++) {
		const Wire__VolumeListReply *all = (const Wire__VolumeListReply *)volumes;
		Wire__WritebackInfo *info = u->reply->writebacks[i];

		for (size_t k = 0; k < all->n_volumes; k++)
			if (all->volumes[k]->id == u->volumes[i])
				info->volume = all->volumes[k]->name;
		info->mounted = maker_is_there(u->q->server, u->volumes[i], info->writeback.data);
	}
	return r;
}

int marks_list(struct request *q, Wire__StatusReply *reply)
{
	struct summary *u = arena_zero(q->arena, sizeof(*u));
	struct arena arena;
	struct view view;
	int r;

	if (!meta_has_marks(q->server->meta))
		return 0;
	reply->writebacks = arena_take(q->arena, LISTED_MAX * sizeof(*reply->writebacks));
	if (!u || !reply->writebacks)
		return -ENOMEM;
	u->q = q;
	u->reply = reply;
	r = meta_view_begin(q->server->meta, &view);
	if (r)
		return r;
	arena_init(&arena, 0);
	r = marks_walk(&view, 0, 0, &arena, summarize, u);
	arena_free(&arena);
	meta_view_end(&view);
	return r ? r : volumes_name(u);
}

/* ---- A mount that is gone ---- */

struct left {
	const struct session *session;
	uint64_t files;
	char directory[PATH_MAX];
};

static int left_count(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark)
{
	struct left *l = context;

	if (volume != l->session->volume)
		return 1; /* the next one: that was all */
	if (!is_its_own(l->session, mark))
		return 0;
	l->files++;
	snprintf(l->directory, sizeof(l->directory), "%s", mark->directory);
	return 0;
}

void marks_left_log(struct server *s, const struct session *n)
{
	struct left l = { .session = n };
	char count[UNITS_TEXT];
	struct arena arena;
	struct view view;

	if (!n->has_writeback || !meta_has_marks(s->meta))
		return;
	/* Who has mounted it with the directory again uploads it. */
	if (maker_is_there(s, n->volume, n->writeback) || meta_view_begin(s->meta, &view))
		return;
	arena_init(&arena, 0);
	marks_walk(&view, n->volume, 0, &arena, left_count, &l);
	arena_free(&arena);
	meta_view_end(&view);
	if (l.files)
		log_warn(
			"volume %s: mount %s:%s went away before all it had synced was uploaded: the newest data of %s is safe "
			"in "
			"its write-back directory %s on %s, and is uploaded once the volume is mounted there with --writeback %s",
			n->volume_name, n->host, n->mount_point, counted_format(count, l.files, "file"), l.directory, n->host,
			l.directory);
}

/* ---- Giving up ---- */

struct makers {
	struct server *server;
	const uint8_t *writeback;
	bool there;
	struct buf silent; /* sessions, with a reference */
};

static void find_mounted(void *context, struct session *n)
{
	struct makers *f = context;

	if (!n->has_writeback || memcmp(n->writeback, f->writeback, WRITEBACK_ID))
		return;
	if (!session_is_lost(f->server, n)) {
		f->there = true;
		return;
	}
	buf_append(&f->silent, &n, sizeof(n));
	if (!f->silent.failed)
		atomic_fetch_add(&n->refs, 1);
}

/* One that is heard of again has to ask for its files, and to mark them anew. */
static int silent_revoke(struct makers *f)
{
	int r = f->silent.failed ? -ENOMEM : f->there ? -EBUSY : 0;

	for (size_t at = 0; at + sizeof(struct session *) <= f->silent.len; at += sizeof(struct session *)) {
		struct session *n;

		memcpy(&n, f->silent.data + at, sizeof(n));
		if (!r && !session_is_ended(n))
			r = grants_revoke(f->server, n);
		session_unref(n);
	}
	buf_free(&f->silent);
	return r;
}

static void settle(void *context, struct session *n) { lease_settle(context, n->volume); }

int serve_marks_drop(struct request *q)
{
	const Wire__MarksDropRequest *drop = (const Wire__MarksDropRequest *)q->message;
	struct makers f = { .server = q->server, .writeback = drop->writeback.data };
	struct caller who = CALLER_SERVER;
	int r;

	if (drop->writeback.len != WRITEBACK_ID)
		return request_explain(q, -EINVAL, "the id of a write-back directory has %u bytes", WRITEBACK_ID);
	sessions_each(q->server, find_mounted, &f);
	r = silent_revoke(&f);
	if (r)
		return r == -EBUSY ? request_explain(q, r, "its mount is there, and uploads; unmount it first") : r;
	r = meta_mutate(q->server->meta, &who, WIRE__OP__MARKS_DROP, q->message, q->arena, &q->reply);
	if (!r) {
		log_warn("the data of %llu files that was in a write-back directory only is given up: they hold what was stored "
			 "of them",
			 (unsigned long long)((const Wire__MarksDropReply *)q->reply)->files);
		sessions_each(q->server, settle, q->server);
	}
	return r;
}
