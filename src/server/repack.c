#include "server/repack.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "block/object.h"
#include "meta/check.h"
#include "server/state.h"

#define PACK_BYTES (4u << 20)
#define EXTENTS_AT_ONCE 200000
#define MOVES_MAX 4096 /* of one REPACK: a message, and a mutation, of bounded size */
#define IDS_AT_ONCE 64
#define ZSTD_LEVEL 3

struct move {
	uint64_t inode;
	struct extent from, to;
};

struct repack {
	struct job *job;
	struct repacked *out;
	uint32_t volume; /* of the pack being made */
	struct buf pack, stored, raw;
	uint64_t raw_bytes;
	struct move *moves;
	size_t move_count;
	uint64_t next_id, ids_left;
};

/* ---- Object ids ---- */

static int id_take(struct repack *p, uint64_t *out)
{
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	struct caller who = CALLER_SERVER;
	ProtobufCMessage *message;
	struct arena arena;
	int r = 0;

	if (!p->ids_left) {
		q.count = IDS_AT_ONCE;
		arena_init(&arena, 0);
		r = meta_mutate(p->job->server->meta, &who, WIRE__OP__ALLOC_OBJECTS, &q.base, &arena, &message);
		if (!r) {
			p->next_id = ((Wire__AllocObjectsReply *)message)->first;
			p->ids_left = ((Wire__AllocObjectsReply *)message)->count;
		}
		arena_free(&arena);
	}
	if (r || !p->ids_left)
		return r ? r : -EIO;
	p->ids_left--;
	*out = p->next_id++;
	return 0;
}

/* The ids that were not used: objects put under them but not referenced are orphans from now on. */
static int ids_give_up(struct server *s)
{
	Wire__SessionEnd q = WIRE__SESSION_END__INIT;
	struct caller who = CALLER_SERVER;
	struct arena arena;
	int r;

	arena_init(&arena, 0);
	r = meta_mutate(s->meta, &who, WIRE__OP__SESSION_END, &q.base, &arena, NULL);
	arena_free(&arena);
	return r;
}

/* ---- Writing a pack ---- */

static int pack_put(struct repack *p, uint64_t id)
{
	uint8_t footer[OBJECT_FOOTER];
	char key[OBJECT_KEY_TEXT];

	object_footer_make(id, p->pack.len, footer);
	struct iovec parts[2] = { { p->pack.data, p->pack.len }, { footer, sizeof(footer) } };
	return store_put(p->job->server->store, object_key(key, id), parts, 2);
}

static int bytes_of_extent(struct arena *arena, const struct extent *e, ProtobufCBinaryData *out)
{
	CLEANUP_BUF struct buf b = { 0 };

	extent_pack(&b, e);
	out->len = b.len;
	out->data = b.failed ? NULL : arena_copy(arena, b.data, b.len);
	return out->data ? 0 : -ENOMEM;
}

static int moves_list(struct repack *p, uint64_t id, struct arena *arena, Wire__RepackRequest *q)
{
	q->moves = arena_take(arena, p->move_count * sizeof(*q->moves));
	if (!q->moves)
		return -ENOMEM;
	for (size_t i = 0; i < p->move_count; i++) {
		Wire__Move *m = arena_take(arena, sizeof(*m));

		if (!m)
			return -ENOMEM;
		wire__move__init(m);
		p->moves[i].to.object = id;
		m->volume = p->volume;
		m->inode = p->moves[i].inode;
		if (bytes_of_extent(arena, &p->moves[i].from, &m->from) || bytes_of_extent(arena, &p->moves[i].to, &m->to))
			return -ENOMEM;
		q->moves[q->n_moves++] = m;
	}
	return 0;
}

static int pack_move(struct repack *p, uint64_t id, struct arena *arena)
{
	Wire__RepackRequest q = WIRE__REPACK_REQUEST__INIT;
	Wire__NewObject object = WIRE__NEW_OBJECT__INIT;
	struct caller who = CALLER_SERVER;
	ProtobufCMessage *reply;
	int r = moves_list(p, id, arena, &q);

	if (r)
		return r;
	object.object = id;
	object.size = (uint32_t)p->pack.len + OBJECT_FOOTER;
	object.raw_bytes = (uint32_t)p->raw_bytes;
	q.object = &object;
	r = meta_mutate(p->job->server->meta, &who, WIRE__OP__REPACK, &q.base, arena, &reply);
	if (!r)
		p->out->extents += ((Wire__RepackReply *)reply)->moved;
	return r;
}

static int pack_flush(struct repack *p)
{
	struct arena arena;
	uint64_t id;
	int r;

	if (!p->move_count)
		return 0;
	r = space_may_put(p->job->server, p->pack.len + OBJECT_FOOTER);
	if (!r)
		r = id_take(p, &id);
	if (!r)
		r = pack_put(p, id);
	if (!r) {
		arena_init(&arena, 0);
		r = pack_move(p, id, &arena);
		arena_free(&arena);
	}
	if (!r) {
		p->out->packs++;
		p->out->bytes += p->pack.len;
	} else {
		log_error("gc cannot rewrite objects: %s", strerror(-r));
	}
	buf_clear(&p->pack);
	p->move_count = 0;
	p->raw_bytes = 0;
	return r;
}

/* ---- Reading what is live ---- */

/* A later clone of the same bytes shares what was copied for the one before. */
static bool same_slice(const struct extent *a, const struct extent *b)
{
	return a->object_offset == b->object_offset && a->stored_length == b->stored_length && a->skip == b->skip &&
	       a->length == b->length;
}

/* The stored form as it is, where all of it is live; else the live slice, encoded anew. */
static int copy_extent(struct repack *p, const char *key, const struct extent *from, struct extent *to)
{
	uint8_t *stored, *raw;
	int r;

	buf_clear(&p->stored);
	buf_clear(&p->raw);
	stored = buf_extend(&p->stored, from->stored_length);
	raw = buf_extend(&p->raw, from->raw_length);
	if (!stored || !raw)
		return -ENOMEM;
	r = store_get(p->job->server->store, key, from->object_offset, stored, from->stored_length);
	if (!r)
		r = extent_decode(from, stored, raw);
	if (r)
		return r;
	*to = *from;
	if (from->length == from->raw_length) {
		to->object_offset = (uint32_t)p->pack.len;
		buf_append(&p->pack, stored, from->stored_length);
	} else {
		r = extent_encode(raw + from->skip, from->length, from->codec, ZSTD_LEVEL, &p->pack, to);
		to->offset = from->offset;
	}
	p->raw_bytes += to->raw_length;
	return r ? r : p->pack.failed ? -ENOMEM : 0;
}

static void move_add(struct repack *p, uint64_t inode, const struct extent *from, struct extent to)
{
	to.offset = from->offset;
	p->moves[p->move_count++] = (struct move){ .inode = inode, .from = *from, .to = to };
}

/* What cannot be read stays where it is: fsck and scrub tell about it. */
static int copy_object(struct repack *p, const struct check_object *o)
{
	char key[OBJECT_KEY_TEXT];
	struct extent to;
	bool have = false;
	int r;

	object_key(key, o->object);
	for (size_t i = 0; i < o->count; i++) {
		const struct extent *from = &o->extents[i].extent;

		if (!have || !same_slice(from, &o->extents[i - 1].extent)) {
			r = copy_extent(p, key, from, &to);
			have = !r;
			if (r == -ENOMEM)
				return r;
		}
		if (have)
			move_add(p, o->extents[i].inode, from, to);
		if (p->pack.len >= PACK_BYTES || p->move_count == MOVES_MAX) {
			r = pack_flush(p);
			if (r)
				return r;
			have = false;
		}
	}
	return 0;
}

static int each_object(void *context, const struct check_object *o)
{
	struct repack *p = context;
	int r = 0;

	if (job_cancelled(p->job))
		return -ECANCELED;
	/* A pack is of one volume: it is freed when the volume is deleted. */
	if (p->volume != o->record.volume)
		r = pack_flush(p);
	p->volume = o->record.volume;
	if (!r)
		r = copy_object(p, o);
	if (!r)
		job_progress(p->job, ++p->out->objects);
	return r;
}

static bool is_sparse(void *context, uint64_t object, const struct object_record *record)
{
	return record->refs && record->live_bytes * 2 < record->raw_bytes;
}

int repack_objects(struct job *j, struct repacked *out)
{
	struct repack p = { .job = j, .out = out, .moves = malloc(MOVES_MAX * sizeof(struct move)) };
	struct check_objects_options options = {
		.volume = j->volume,
		.max_extents = EXTENTS_AT_ONCE,
		.wanted = is_sparse,
		.each = each_object,
		.context = &p,
	};
	int r, given_up;

	*out = (struct repacked){ 0 };
	if (!p.moves)
		return -ENOMEM;
	job_phase(j, "rewriting sparse objects", 0);
	r = check_objects(j->server->meta, &options);
	if (!r)
		r = pack_flush(&p);
	given_up = ids_give_up(j->server);
	buf_free(&p.pack);
	buf_free(&p.stored);
	buf_free(&p.raw);
	free(p.moves);
	return r ? r : given_up;
}
