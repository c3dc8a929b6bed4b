#include "server/orphans.h"
#include <errno.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "block/object.h"
#include "meta/content.h"
#include "server/state.h"

#define AT_ONCE 1024

struct found {
	uint64_t object, size;
};

struct walk {
	struct job *job;
	bool remove;
	struct orphans *out;
	struct found found[AT_ONCE];
	size_t count;
};

/* Whether the id is in a range that a session may still commit from. */
static int in_range(struct view *v, uint64_t object)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[8];
	int r = cursor_open(&c, v, TABLE_RANGE);

	if (r)
		return r;
	put_be64(key, object);
	r = cursor_seek(&c, key, sizeof(key));
	if (r == -ENOENT)
		r = cursor_last(&c);
	else if (!r && get_be64(c.key.data) != object)
		r = cursor_previous(&c);
	if (r)
		return r == -ENOENT ? 0 : r;
	return c.key.size == 8 && c.value.size == 12 && object - get_be64(c.key.data) < get_le32(c.value.data);
}

static int is_orphan(struct view *v, uint64_t object)
{
	struct object_record record;
	int r = object_peek(v, object, &record);

	if (r != -ENOENT)
		return 0; /* known, or damaged, which is for fsck to tell */
	r = in_range(v, object);
	return r < 0 ? r : !r;
}

/* Leaves only orphans in the list. */
static int keep_orphans(struct walk *w)
{
	size_t kept = 0;
	struct view view;
	int r = meta_view_begin(w->job->server->meta, &view);

	if (r)
		return r;
	for (size_t i = 0; i < w->count; i++) {
		r = is_orphan(&view, w->found[i].object);
		if (r < 0)
			break;
		if (r)
			w->found[kept++] = w->found[i];
	}
	meta_view_end(&view);
	w->count = kept;
	return r < 0 ? r : 0;
}

static int mutate_list(struct server *s, uint16_t op, const uint64_t *ids, size_t count)
{
	Wire__ObjectList list = WIRE__OBJECT_LIST__INIT;
	struct caller who = CALLER_SERVER;
	struct arena arena;
	int r;

	if (!count)
		return 0;
	list.objects = (uint64_t *)ids;
	list.n_objects = count;
	arena_init(&arena, 0);
	r = meta_mutate(s->meta, &who, op, &list.base, &arena, NULL);
	arena_free(&arena);
	return r;
}

/* Which of them FREE_ORPHANS has claimed: nobody can reach those any more. */
static int keep_claimed(struct walk *w)
{
	struct object_record record;
	size_t kept = 0;
	struct view view;
	int r = meta_view_begin(w->job->server->meta, &view);

	if (r)
		return r;
	for (size_t i = 0; i < w->count; i++)
		if (!object_peek(&view, w->found[i].object, &record) && !record.refs)
			w->found[kept++] = w->found[i];
	meta_view_end(&view);
	w->count = kept;
	return 0;
}

static int remove_orphans(struct walk *w)
{
	uint64_t ids[AT_ONCE];
	size_t done = 0;
	int r, failed = 0;

	for (size_t i = 0; i < w->count; i++)
		ids[i] = w->found[i].object;
	r = mutate_list(w->job->server, WIRE__OP__FREE_ORPHANS, ids, w->count);
	if (!r)
		r = keep_claimed(w);
	if (r)
		return r;
	for (size_t i = 0; i < w->count && !failed; i++) {
		failed = gateway_delete(w->job->server, w->found[i].object);
		if (failed)
			break;
		ids[done++] = w->found[i].object;
		w->out->count++;
		w->out->bytes += w->found[i].size;
	}
	r = mutate_list(w->job->server, WIRE__OP__OBJECTS_DELETED, ids, done);
	return failed ? failed : r;
}

static int each_highest(void *context, const char *key, uint64_t size)
{
	uint64_t object, *highest = context;

	if (!object_key_parse(key, &object) && object > *highest)
		*highest = object;
	return 0;
}

int orphans_pass_over(struct server *s)
{
	uint64_t highest = 0;
	int r = store_list(s->store, "o/", each_highest, &highest);

	return r ? r : mutate_list(s, WIRE__OP__FREE_ORPHANS, &highest, highest ? 1 : 0);
}

static int flush(struct walk *w)
{
	int r = w->count ? keep_orphans(w) : 0;

	if (!r && w->remove && w->count) {
		r = remove_orphans(w);
	} else if (!r) {
		w->out->count += w->count;
		for (size_t i = 0; i < w->count; i++)
			w->out->bytes += w->found[i].size;
	}
	w->count = 0;
	return r;
}

static int each_key(void *context, const char *key, uint64_t size)
{
	struct walk *w = context;
	uint64_t object;

	if (job_cancelled(w->job))
		return -ECANCELED;
	if (object_key_parse(key, &object)) {
		w->out->strange++;
		return 0;
	}
	w->found[w->count++] = (struct found){ object, size };
	job_progress(w->job, ++w->out->listed);
	return w->count == AT_ONCE ? flush(w) : 0;
}

int orphans_find(struct job *j, bool remove, struct orphans *out)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t known = 0;
	struct view view;
	int r;

	*out = (struct orphans){ 0 };
	if (!w)
		return -ENOMEM;
	*w = (struct walk){ .job = j, .remove = remove, .out = out };
	r = meta_view_begin(j->server->meta, &view);
	if (!r) {
		view_count(&view, TABLE_OBJECT, &known);
		meta_view_end(&view);
	}
	job_phase(j, "listing the store", known);
	r = store_list(j->server->store, "o/", each_key, w);
	if (!r)
		r = flush(w);
	free(w);
	return r;
}
