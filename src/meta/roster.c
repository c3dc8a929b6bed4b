/* The roster is read by nearly every operation and changes when a volume is made,
 * set or deleted or a session comes or goes.  It follows the last durable batch:
 * the writer reloads it after a batch that touched either table, or gave up marks.  Marks that
 * mounts make and take away change nothing in it: these have sessions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/machine.h"
#include "meta/marks.h"

static void volumes_free(struct intmap *volumes)
{
	uint64_t key;
	void *value;

	for (size_t i = 0; intmap_next(volumes, &i, &key, &value);)
		free(value);
	intmap_free(volumes);
}

int roster_init(struct roster *r) { return -pthread_rwlock_init(&r->lock, NULL); }

void roster_free(struct roster *r)
{
	volumes_free(&r->volumes);
	pthread_rwlock_destroy(&r->lock);
}

/* What a reload has found. */
struct found {
	struct intmap volumes;
	bool replicas; /* there are sessions of some */
};

static int add_volume(struct found *found, struct op *op, const struct cursor *c)
{
	struct roster_volume *entry;
	Wire__Volume *v;
	int r = op_unpack(op, &wire__volume__descriptor, c->value, &v);

	if (r < 0)
		return op_damage(op, TABLE_VOLUME, "a record cannot be read");
	entry = calloc(1, sizeof(*entry));
	if (!entry)
		return -ENOMEM;
	entry->relaxed = v->relaxed;
	entry->deleted = !v->name[0];
	entry->max_bytes = v->max_bytes;
	entry->max_files = v->max_files;
	entry->retention_s = v->retention_s;
	r = intmap_set(&found->volumes, v->id, entry);
	if (r < 0)
		free(entry);
	return r;
}

/* Those that have ended; *seen is left alone if there were none. */
static int replica_ended(struct view *v, int64_t *seen)
{
	struct span value;
	int r = view_get(v, TABLE_META, REPLICA_ENDED_KEY, sizeof(REPLICA_ENDED_KEY) - 1, &value);

	if (r == 0 && value.size != 8)
		return -EBADMSG;
	if (r == 0)
		*seen = (int64_t)get_le64(value.data);
	return r == -ENOENT ? 0 : r;
}

int64_t meta_replica_seen_ns(struct meta *m) { return atomic_load(&m->roster.replica_seen_ns); }

static int add_session(struct found *found, struct op *op, const struct cursor *c)
{
	struct roster_volume *entry;
	Wire__SessionBegin *s;

	if (op_unpack(op, &wire__session_begin__descriptor, c->value, &s) < 0)
		return op_damage(op, TABLE_SESSION, "a record cannot be read");
	entry = intmap_get(&found->volumes, s->volume);
	if (s->replica)
		found->replicas = true;
	else if (entry)
		entry->sessions++;
	return 0;
}

/* ---- Marks that no session stands for ---- */

/* The write-back directories that have a session, each once for every volume it is on. */
struct directory {
	uint32_t volume;
	uint8_t id[WRITEBACK_ID];
};

struct orphans {
	struct meta *meta;
	struct intmap *volumes;
	struct buf directories;
};

static int note_directory(struct op *op, const struct cursor *c, struct buf *out)
{
	struct directory d;
	Wire__SessionBegin *s;

	if (op_unpack(op, &wire__session_begin__descriptor, c->value, &s) < 0)
		return op_damage(op, TABLE_SESSION, "a record cannot be read");
	if (s->writeback.len != WRITEBACK_ID)
		return 0;
	d.volume = s->volume;
	memcpy(d.id, s->writeback.data, WRITEBACK_ID);
	buf_append(out, &d, sizeof(d));
	return out->failed ? -ENOMEM : 0;
}

static int note_mark(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark)
{
	struct orphans *o = context;
	struct roster_volume *entry = intmap_get(o->volumes, volume);
	struct directory d;

	atomic_store(&o->meta->marked, true);
	for (size_t at = 0; at < o->directories.len; at += sizeof(d)) {
		memcpy(&d, o->directories.data + at, sizeof(d));
		if (d.volume == volume && !memcmp(d.id, mark->writeback.data, WRITEBACK_ID))
			return 0;
	}
	if (entry && !entry->orphaned) {
		entry->orphaned = true;
		entry->sessions++; /* its mount may come back any moment, and knows more than anybody else */
	}
	return 0;
}

static int add_orphans(struct op *op, struct intmap *volumes)
{
	struct orphans o = { .meta = op->meta, .volumes = volumes };
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, TABLE_SESSION);

	if (r == 0)
		for (r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c)) {
			r = note_directory(op, &c, &o.directories);
			if (r < 0)
				break;
		}
	if (r == -ENOENT)
		r = marks_walk(op->view, 0, 0, op->arena, note_mark, &o);
	buf_free(&o.directories);
	return r;
}

/* ---- All of it ---- */

static int each_record(struct op *op, enum table t, struct found *found,
		       int (*add)(struct found *, struct op *, const struct cursor *))
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, op->view, t);

	if (r < 0)
		return r;
	for (r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c)) {
		r = add(found, op, &c);
		arena_reset(op->arena);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

int roster_reload(struct meta *m)
{
	struct found found = { 0 };
	struct intmap old;
	int64_t replica_seen = 0;
	struct arena arena;
	struct view view;
	struct op op = { .view = &view, .meta = m, .arena = &arena };
	int r = meta_view_begin(m, &view);

	if (r < 0)
		return r;
	arena_init(&arena, 0);
	r = each_record(&op, TABLE_VOLUME, &found, add_volume);
	if (r == 0)
		r = each_record(&op, TABLE_SESSION, &found, add_session);
	if (r == 0)
		r = replica_ended(&view, &replica_seen);
	if (r == 0)
		r = add_orphans(&op, &found.volumes);
	arena_free(&arena);
	meta_view_end(&view);
	if (r < 0) {
		volumes_free(&found.volumes);
		return r;
	}
	atomic_store(&m->roster.replica_seen_ns, found.replicas ? INT64_MAX : replica_seen);
	pthread_rwlock_wrlock(&m->roster.lock);
	old = m->roster.volumes;
	m->roster.volumes = found.volumes;
	pthread_rwlock_unlock(&m->roster.lock);
	volumes_free(&old);
	return 0;
}

bool roster_find(struct meta *m, uint32_t volume, struct roster_volume *out)
{
	const struct roster_volume *entry;

	pthread_rwlock_rdlock(&m->roster.lock);
	entry = intmap_get(&m->roster.volumes, volume);
	if (entry)
		*out = *entry;
	pthread_rwlock_unlock(&m->roster.lock);
	return entry != NULL;
}

/* Alone, a mount sees every change it does not make itself in its answers, so
 * it may cache for long.  In company, names of a strict volume are asked for
 * every time. */
uint32_t valid_ms(struct op *op)
{
	struct roster_volume v;

	if (!roster_find(op->meta, op->volume, &v))
		return 0;
	if (v.sessions <= 1)
		return 10000;
	return v.relaxed ? 1000 : 0;
}

bool volume_in_company(struct op *op)
{
	struct roster_volume v;

	return roster_find(op->meta, op->volume, &v) && v.sessions > 1;
}
