#include "server/verify.h"
#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "block/object.h"
#include "meta/content.h"
#include "server/state.h"

#define EXTENTS_AT_ONCE 200000
#define PATH_SHOWN 3000 /* a thousand findings must fit into a reply */
#define FILES_NAMED 20  /* of one object: a pack may hold thousands */

/* ---- Saying what is wrong ---- */

static void report_file(struct verify *v, const struct check_object *o, const struct check_extent *e, const char *what)
{
	CLEANUP_BUF struct buf path = { 0 };
	int r = meta_path(v->job->server->meta, e->volume, e->inode, &path), length;
	char key[OBJECT_KEY_TEXT];

	if (r == -ENOENT)
		return; /* gone meanwhile, and the object most likely with it */
	length = r ? 0 : path.len > PATH_SHOWN ? PATH_SHOWN : (int)path.len;
	log_error("object %s %s: bytes %llu to %llu of %.*s (volume %u, inode %llu) are lost", object_key(key, o->object), what,
		  (unsigned long long)e->extent.offset, (unsigned long long)extent_end(&e->extent), length, (char *)path.data,
		  e->volume, (unsigned long long)e->inode);
	job_find(v->job, "object %s %s: bytes %llu to %llu of %.*s (volume %u, inode %llu) are lost", key, what,
		 (unsigned long long)e->extent.offset, (unsigned long long)extent_end(&e->extent), length, (char *)path.data,
		 e->volume, (unsigned long long)e->inode);
}

static void report_object(struct verify *v, const struct check_object *o, const char *what)
{
	char key[OBJECT_KEY_TEXT];

	for (size_t i = 0; i < o->count && i < FILES_NAMED; i++)
		report_file(v, o, &o->extents[i], what);
	if (o->count > FILES_NAMED)
		job_find(v->job, "object %s %s: %zu more places are lost", object_key(key, o->object), what,
			 o->count - FILES_NAMED);
}

/* The walk holds no snapshot: what was referenced then may be freed and deleted by now. */
static bool still_referenced(struct verify *v, uint64_t object)
{
	struct object_record now;
	struct view view;
	bool yes;

	if (meta_view_begin(v->job->server->meta, &view))
		return true;
	yes = object_peek(&view, object, &now) != -ENOENT && now.refs > 0;
	meta_view_end(&view);
	return yes;
}

/* ---- Looking ---- */

static uint8_t *scratch(struct buf *b, size_t size)
{
	buf_clear(b);
	return buf_extend(b, size);
}

static int extent_verify(struct verify *v, const char *key, const struct extent *e)
{
	uint8_t *stored = scratch(&v->stored, e->stored_length), *raw = scratch(&v->raw, e->raw_length);
	int r;

	if (!stored || !raw)
		return -ENOMEM;
	r = store_get(v->job->server->store, key, e->object_offset, stored, e->stored_length);
	return r ? r : extent_decode(e, stored, raw);
}

static bool same_stored(const struct extent *a, const struct extent *b)
{
	return a->object_offset == b->object_offset && a->stored_length == b->stored_length && a->raw_length == b->raw_length &&
	       a->checksum == b->checksum && a->codec == b->codec;
}

/* Damage is reported and not an error; -ENOMEM and the like are. */
static int contents_verify(struct verify *v, const char *key, const struct check_object *o)
{
	bool damaged = false;
	int before = 0;

	for (size_t i = 0; i < o->count; i++) {
		const struct check_extent *e = &o->extents[i];

		if (!i || !same_stored(&e->extent, &o->extents[i - 1].extent))
			before = extent_verify(v, key, &e->extent);
		if (before == -ENOMEM || before == -EMFILE || before == -ENFILE)
			return before;
		if (!before)
			continue;
		if (before == -ENOENT && !still_referenced(v, o->object))
			return 0;
		report_file(v, o, e, before == -EBADMSG ? "is damaged (wrong checksum)" : "cannot be read");
		v->damaged_extents++;
		damaged = true;
	}
	v->damaged_objects += damaged;
	return 0;
}

static int footer_verify(struct verify *v, const char *key, const struct check_object *o, const char **what)
{
	uint8_t footer[OBJECT_FOOTER];
	uint64_t size;
	int r = store_stat(v->job->server->store, key, &size);

	*what = r == -ENOENT ? "is missing" : "cannot be read";
	if (r)
		return r;
	if (size != o->record.size) {
		*what = "has the wrong size";
		return -EBADMSG;
	}
	r = store_get(v->job->server->store, key, size - OBJECT_FOOTER, footer, sizeof(footer));
	if (r)
		return r;
	*what = "has a wrong footer";
	return object_footer_check(footer, o->object, size);
}

static int object_verify(void *context, const struct check_object *o)
{
	struct verify *v = context;
	char key[OBJECT_KEY_TEXT];
	const char *what;
	int r;

	if (job_cancelled(v->job))
		return -ECANCELED;
	object_key(key, o->object);
	r = footer_verify(v, key, o, &what);
	if (r && still_referenced(v, o->object)) {
		*(r == -ENOENT ? &v->missing_objects : &v->damaged_objects) += 1;
		report_object(v, o, what);
	} else if (!r && v->contents) {
		r = contents_verify(v, key, o);
		if (r)
			return r;
	}
	v->objects++;
	v->bytes += o->record.size;
	job_progress(v->job, v->bytes);
	return 0;
}

/* ---- All of them ---- */

static int bytes_to_read(struct verify *v, uint64_t *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	struct object_record record;
	struct view view;
	int r = meta_view_begin(v->job->server->meta, &view);

	*out = 0;
	if (r)
		return r;
	r = cursor_open(&c, &view, TABLE_OBJECT);
	if (!r)
		r = cursor_seek(&c, NULL, 0);
	for (; !r; r = cursor_next(&c))
		if (!object_record_unpack(c.value.data, c.value.size, &record) && record.refs &&
		    (!v->job->volume || record.volume == v->job->volume))
			*out += record.size;
	cursor_close(&c);
	meta_view_end(&view);
	return r == -ENOENT ? 0 : r;
}

int verify_objects(struct verify *v)
{
	struct check_objects_options options = {
		.volume = v->job->volume,
		.max_extents = EXTENTS_AT_ONCE,
		.each = object_verify,
		.context = v,
	};
	uint64_t all;
	int r = bytes_to_read(v, &all);

	if (r)
		return r;
	job_phase(v->job, v->contents ? "reading objects" : "looking at objects", all);
	return check_objects(v->job->server->meta, &options);
}

void verify_free(struct verify *v)
{
	buf_free(&v->stored);
	buf_free(&v->raw);
}
