/* fsck: what files hold and what it is stored in. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "block/object.h"
#include "meta/check_state.h"
#include "meta/content.h"
#include "meta/marks.h"

enum { USED_BYTES, USED_FILES, TRASH_BYTES, TRASH_FILES };

/* ---- Objects ---- */

int check_object_records(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "objects", TABLE_OBJECT);
	c->object_room = c->steps_all;
	c->objects = malloc((c->object_room + 1) * sizeof(*c->objects));
	if (!c->objects)
		return -ENOMEM;
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_OBJECT);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		r = check_step(c);
		if (r < 0)
			return r;
		if (at.key.size != 8 || at.value.size != OBJECT_RECORD || c->object_count == c->object_room) {
			check_unreadable(c, "object");
			continue;
		}
		struct object_record record;
		object_record_read(at.value.data, &record);
		uint64_t object = get_be64(at.key.data);
		if (object == 0 || object >= c->next_object)
			check_report(c, false, "object %llu: its id was never given out", (unsigned long long)object);
		if (record.size > OBJECT_SIZE_MAX || (record.refs && record.size <= OBJECT_FOOTER))
			check_report(c, false, "object %llu: a size of %u bytes", (unsigned long long)object, record.size);
		c->objects[c->object_count++] = (struct check_object_count){ .object = object,
									     .volume = record.volume,
									     .size = record.size,
									     .refs = record.refs,
									     .live = record.live_bytes };
		c->result->objects++;
	}
	return r == -ENOENT ? 0 : r;
}

/* ---- Extents ---- */

struct extent_run {
	uint64_t key, end;
	struct attr attr;
	struct check_inode *inode;
	struct check_volume *volume;
};

/* A file begins. */
static int run_begin(struct check *c, struct extent_run *run, uint64_t key)
{
	*run = (struct extent_run){ .key = key,
				    .inode = check_inode_find(c, key),
				    .volume = check_volume_find(c, (uint32_t)(key >> INODE_BITS)) };
	if (run->volume && run->volume->deleted)
		return 0;
	if (!run->inode) {
		check_report(c, false, "inode %llu of volume %u has extents, but does not exist",
			     (unsigned long long)(key & INODE_MAX), (unsigned)(key >> INODE_BITS));
		return 0;
	}
	if (!S_ISREG(run->inode->mode))
		check_report(c, false, "%s: has extents, but is not a regular file", check_name(c, key));
	c->op.volume = run->volume->id;
	return inode_load(&c->op, key & INODE_MAX, &run->attr);
}

static void extent_place_check(struct check *c, struct extent_run *run, const struct extent *e)
{
	if (!run->inode)
		return;
	if (e->offset < run->end)
		check_report(c, false, "%s: two extents at %llu", check_name(c, run->key), (unsigned long long)e->offset);
	if (extent_end(e) > run->attr.size || extent_end(e) > FILE_SIZE_MAX)
		check_report(c, false, "%s: an extent ends at %llu, the file at %llu", check_name(c, run->key),
			     (unsigned long long)extent_end(e), (unsigned long long)run->attr.size);
	run->end = extent_end(e);
	run->inode->unaccounted -= e->length;
	run->volume->counted[run->inode->flags & ATTR_TRASHED ? TRASH_BYTES : USED_BYTES] += e->length;
}

static void extent_object_check(struct check *c, struct extent_run *run, const struct extent *e)
{
	struct check_object_count *o = check_object_find(c, e->object);
	if (!o) {
		check_report(c, false, "%s: the extent at %llu is in object %llu, which does not exist", check_name(c, run->key),
			     (unsigned long long)e->offset, (unsigned long long)e->object);
		return;
	}
	o->found_refs++;
	o->found_live += e->length;
	if (o->volume != run->key >> INODE_BITS)
		check_report(c, false, "%s: the extent at %llu is in object %llu, which belongs to volume %u",
			     check_name(c, run->key), (unsigned long long)e->offset, (unsigned long long)e->object, o->volume);
	if (!extent_fits_object(e, o->size))
		check_report(c, false, "%s: the extent at %llu is not inside object %llu", check_name(c, run->key),
			     (unsigned long long)e->offset, (unsigned long long)e->object);
}

int check_extents(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	struct extent_run run = { 0 };
	int r = check_phase(c, "extents", TABLE_EXTENT);
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_EXTENT);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		struct extent e;
		uint64_t key = at.key.size == EXTENT_KEY ? get_be64(at.key.data) : 0;
		r = check_step(c);
		if (r == 0 && key && key != run.key && check_wants(c, (uint32_t)(key >> INODE_BITS)))
			r = run_begin(c, &run, key);
		if (r < 0)
			return r;
		if (key && !check_wants(c, (uint32_t)(key >> INODE_BITS)))
			continue;
		if (!key || extent_value_unpack(get_be64(at.key.data + 8), at.value.data, at.value.size, &e) < 0) {
			check_unreadable(c, key ? check_name(c, key) : "extent");
			continue;
		}
		c->result->extents++;
		extent_place_check(c, &run, &e);
		extent_object_check(c, &run, &e);
	}
	return r == -ENOENT ? 0 : r;
}

/* ---- What waits to be deleted from the store ---- */

int check_free(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "freed objects", TABLE_FREE);
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_FREE);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		r = check_step(c);
		if (r < 0)
			return r;
		struct check_object_count *o = at.key.size == 16 ? check_object_find(c, get_be64(at.key.data + 8)) : NULL;
		c->result->free_objects++;
		if (!o || o->free_entries++)
			check_report(c, false, "object %llu is to be deleted, but %s",
				     (unsigned long long)(at.key.size == 16 ? get_be64(at.key.data + 8) : 0),
				     o ? "twice" : "does not exist");
	}
	return r == -ENOENT ? 0 : r;
}

/* ---- Everything that is counted ---- */

static void object_count_check(struct check *c, const struct check_object_count *o)
{
	if (!check_wants(c, o->volume))
		return;
	if (o->refs != o->found_refs)
		check_report(c, true, "object %llu has %u references, counted %u", (unsigned long long)o->object, o->refs,
			     o->found_refs);
	if (o->live != o->found_live)
		check_report(c, true, "object %llu has %llu live bytes, counted %llu", (unsigned long long)o->object,
			     (unsigned long long)o->live, (unsigned long long)o->found_live);
	if (o->found_refs && o->free_entries)
		check_report(c, true, "object %llu is in use, but to be deleted", (unsigned long long)o->object);
	if (!o->found_refs && !o->free_entries)
		check_report(c, true, "object %llu is not in use, but not to be deleted", (unsigned long long)o->object);
}

int check_counts(struct check *c)
{
	static const char *const names[] = { "used_bytes", "used_files", "trash_bytes", "trash_files" };
	int r = check_phase(c, "counts", TABLE_OBJECT);
	for (size_t n = 0; n < c->object_count && r == 0; n++) {
		object_count_check(c, &c->objects[n]);
		r = check_step(c);
	}
	for (size_t n = 0; n < c->inode_count && r == 0; n++) {
		struct check_inode *i = &c->inodes[n];
		if (i->unaccounted == 0)
			continue;
		check_report(c, true, "%s: allocated differs from its extents by %lld bytes", check_name(c, i->key),
			     (long long)i->unaccounted);
		i->seen |= SEEN_FIX;
	}
	for (size_t n = 0; n < c->volume_count && r == 0; n++) {
		const struct check_volume *v = &c->volumes[n];
		for (int i = 0; i < 4 && !v->deleted && check_wants(c, v->id); i++)
			if (v->recorded[i] != v->counted[i])
				check_report(c, true, "volume %u: %s is %llu, counted %llu", v->id, names[i],
					     (unsigned long long)v->recorded[i], (unsigned long long)v->counted[i]);
	}
	return r;
}

/* ---- Sessions, their ranges and answers ---- */

static int session_exists(struct check *c, uint64_t session)
{
	uint8_t key[8];
	struct span value;
	put_be64(key, session);
	int r = session ? view_get(c->view, TABLE_SESSION, key, sizeof(key), &value) : 0;
	return r == 0 ? 1 : r == -ENOENT ? 0 : r;
}

static int check_session_records(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = cursor_open(&at, c->view, TABLE_SESSION);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		arena_reset(&c->scratch);
		Wire__SessionBegin *s = wire__session_begin__unpack(&c->scratch.allocator, at.value.size, at.value.data);
		c->result->sessions++;
		if (at.key.size != 8 || !s || s->session != get_be64(at.key.data))
			check_report(c, false, "a session's record is damaged");
		else if (!check_volume_find(c, s->volume))
			check_report(c, false, "session %llu is of volume %u, which does not exist",
				     (unsigned long long)s->session, s->volume);
	}
	return r == -ENOENT ? 0 : r;
}

static int check_ranges(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	uint64_t end = 0;
	int r = cursor_open(&at, c->view, TABLE_RANGE);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		if (at.key.size != 8 || at.value.size != 12 || get_le32(at.value.data) == 0) {
			check_report(c, false, "a range of object ids is damaged");
			continue;
		}
		uint64_t first = get_be64(at.key.data), session = get_le64(at.value.data + 4);
		if (first < end || first + get_le32(at.value.data) > c->next_object)
			check_report(c, false, "the object ids from %llu on are given out twice", (unsigned long long)first);
		end = first + get_le32(at.value.data);
		int known = session_exists(c, session);
		if (known < 0)
			return known;
		if (!known)
			check_report(c, false, "the object ids from %llu on are given to session %llu, which does not exist",
				     (unsigned long long)first, (unsigned long long)session);
	}
	return r == -ENOENT ? 0 : r;
}

static int check_answers(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	uint64_t last = 0;
	int r = cursor_open(&at, c->view, TABLE_ANSWER);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		if (at.key.size != 16 || at.value.size < 4) {
			check_report(c, false, "a remembered answer is damaged");
			continue;
		}
		uint64_t session = get_be64(at.key.data);
		int known = session == last ? 1 : session_exists(c, session);
		if (known < 0)
			return known;
		if (!known)
			check_report(c, false, "an answer is kept for session %llu, which does not exist",
				     (unsigned long long)session);
		last = session;
	}
	return r == -ENOENT ? 0 : r;
}

static int check_mark(void *context, uint32_t volume, uint64_t inode, Wire__MarkRecord *mark)
{
	struct check *c = context;
	if (check_wants(c, volume) && !check_skips_tree(c, volume) && !check_inode_find(c, inode_key(volume, inode)))
		check_report(c, false, "%s:%s is said to have data of inode %llu that is not uploaded, but there is no such file",
			     mark->host, mark->mount_point, (unsigned long long)inode);
	return 0;
}

static int check_marks(struct check *c)
{
	int r = marks_walk(c->view, 0, 0, &c->scratch, check_mark, c);
	if (r != -EBADMSG)
		return r;
	check_report(c, false, "a mark of data that is not uploaded is damaged");
	return 0;
}

int check_sessions(struct check *c)
{
	int r = check_phase(c, "sessions", TABLE_SESSION);
	if (r == 0)
		r = check_session_records(c);
	if (r == 0)
		r = check_ranges(c);
	if (r == 0)
		r = check_answers(c);
	return r < 0 ? r : check_marks(c);
}
