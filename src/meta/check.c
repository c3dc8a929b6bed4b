#include "meta/check.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/cleanup.h"
#include "meta/check_state.h"
#include "meta/trash.h"

#define FINDINGS_DEFAULT 1000u
#define FINDING_BYTES 1024u
#define PROGRESS_STEPS 8192u

/* ---- What the phases share ---- */

int check_phase(struct check *c, const char *phase, enum table t)
{
	c->phase = phase;
	c->table = t;
	c->steps = c->steps_all = 0;
	int r = view_count(c->view, t, &c->steps_all);
	if (c->options->progress)
		c->options->progress(c->options->context, phase, 0, c->steps_all);
	return r;
}

int check_step(struct check *c)
{
	if (++c->steps % PROGRESS_STEPS)
		return 0;
	if (c->options->progress)
		c->options->progress(c->options->context, c->phase, c->steps, c->steps_all);
	return c->options->cancelled && c->options->cancelled(c->options->context) ? -ECANCELED : 0;
}

void check_report(struct check *c, bool repairable, const char *format, ...)
{
	struct check_result *r = c->result;
	uint32_t max = c->options->max_findings ? c->options->max_findings : FINDINGS_DEFAULT;
	r->problems++;
	r->repairable += repairable;
	if (!r->findings)
		r->findings = arena_take(&r->memory, max * sizeof(*r->findings));
	if (!r->findings || r->findings_count == max)
		return;
	char line[FINDING_BYTES];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	char *kept = arena_copy(&r->memory, line, strlen(line) + 1);
	if (kept)
		r->findings[r->findings_count++] = kept;
}

void check_unreadable(struct check *c, const char *what)
{
	c->unreadable = true;
	check_report(c, false, "%s: a record in table %s cannot be read", what, table_names[c->table]);
}

const char *check_name(struct check *c, uint64_t key)
{
	CLEANUP_BUF struct buf path = { 0 };
	char *text;
	uint32_t id = (uint32_t)(key >> INODE_BITS);
	arena_reset(&c->scratch);
	c->op.volume = id;
	Wire__Volume *v;
	const char *volume = volume_load(&c->op, id, &v) == 0 && v->name[0] ? v->name : "(deleted)";
	int r = inode_path(&c->op, key & INODE_MAX, &path);
	int shown = path.len < 800 ? (int)path.len : 800;
	r = asprintf(&text, "%s:%.*s (inode %llu)", volume, r == 0 ? shown : 1, r == 0 ? (const char *)path.data : "?",
		     (unsigned long long)(key & INODE_MAX));
	if (r < 0)
		return "?";
	char *kept = arena_copy(&c->scratch, text, (size_t)r + 1);
	free(text);
	return kept ? kept : "?";
}

struct check_volume *check_volume_find(struct check *c, uint32_t id)
{
	for (size_t i = 0; i < c->volume_count; i++)
		if (c->volumes[i].id == id)
			return &c->volumes[i];
	return NULL;
}

bool check_wants(const struct check *c, uint32_t volume) { return c->options->volume == 0 || c->options->volume == volume; }

bool check_skips_tree(struct check *c, uint32_t volume)
{
	struct check_volume *v = check_volume_find(c, volume);
	return v && v->deleted;
}

static int compare_inode(const void *key, const void *element)
{
	uint64_t a = *(const uint64_t *)key, b = ((const struct check_inode *)element)->key;
	return a < b ? -1 : a > b;
}

struct check_inode *check_inode_find(struct check *c, uint64_t key)
{
	return c->inode_count ? bsearch(&key, c->inodes, c->inode_count, sizeof(*c->inodes), compare_inode) : NULL;
}

static int compare_object(const void *key, const void *element)
{
	uint64_t a = *(const uint64_t *)key, b = ((const struct check_object_count *)element)->object;
	return a < b ? -1 : a > b;
}

struct check_object_count *check_object_find(struct check *c, uint64_t object)
{
	return c->object_count ? bsearch(&object, c->objects, c->object_count, sizeof(*c->objects), compare_object) : NULL;
}

/* ---- Volumes ---- */

#define COUNTERS_PACKED 40u /* META "v" + volume be32: see volume.c */

static int volume_counters(struct check *c, struct check_volume *v)
{
	uint8_t key[5] = { 'v' };
	struct span value;
	put_be32(key + 1, v->id);
	int r = view_get(c->view, TABLE_META, key, sizeof(key), &value);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r < 0 || value.size != COUNTERS_PACKED) {
		check_report(c, false, "volume %u: its counters are missing", v->id);
		return 0;
	}
	v->next_inode = get_le64(value.data);
	for (int i = 0; i < 4; i++)
		v->recorded[i] = get_le64(value.data + 8 + 8 * i);
	return 0;
}

static int check_volumes(struct check *c)
{
	CLEANUP_CURSOR struct cursor at = { 0 };
	int r = check_phase(c, "volumes", TABLE_VOLUME);
	c->volumes = calloc(c->steps_all + 1, sizeof(*c->volumes));
	if (!c->volumes)
		return -ENOMEM;
	if (r == 0)
		r = cursor_open(&at, c->view, TABLE_VOLUME);
	if (r == 0)
		r = cursor_seek(&at, NULL, 0);
	for (; r == 0; r = cursor_next(&at)) {
		arena_reset(&c->scratch);
		Wire__Volume *v = wire__volume__unpack(&c->scratch.allocator, at.value.size, at.value.data);
		if (at.key.size != 4 || !v || v->id != get_be32(at.key.data) || v->id == 0) {
			check_unreadable(c, "volume");
			continue;
		}
		struct check_volume *found = &c->volumes[c->volume_count++];
		found->id = v->id;
		found->deleted = v->name[0] == 0;
		if (found->deleted)
			continue;
		c->result->volumes += check_wants(c, v->id);
		r = volume_counters(c, found);
		if (r < 0)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

static int check_meta_records(struct check *c)
{
	struct span value;
	int r = view_get(c->view, TABLE_META, "object.next", 11, &value);
	c->next_object = 1;
	if (r == 0 && value.size == 8)
		c->next_object = get_le64(value.data);
	else if (r != -ENOENT)
		check_report(c, false, "the counter of object ids is damaged");
	return 0;
}

/* ---- All of it ---- */

static int check_all(struct check *c)
{
	static int (*const phases[])(struct check *) = {
		check_volumes, check_meta_records, check_inodes,         check_names,   check_tree,
		check_trash,   check_xattrs,       check_object_records, check_extents, check_free,
		check_counts,  check_sessions,     check_fix_make,
	};
	int r = 0;
	for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]) && r == 0; i++)
		r = phases[i](c);
	return r;
}

int check_run(struct meta *m, const struct check_options *o, struct check_result *result)
{
	struct caller nobody = { 0 };
	struct view v;
	memset(result, 0, sizeof(*result));
	arena_init(&result->memory, 0);
	int r = meta_view_begin(m, &v);
	if (r < 0)
		return r;
	struct check c = { .meta = m, .options = o, .result = result, .view = &v };
	arena_init(&c.scratch, 0);
	c.op = (struct op){ .view = &v, .meta = m, .who = &nobody, .arena = &c.scratch };
	r = check_all(&c);
	meta_view_end(&v);
	arena_free(&c.scratch);
	free(c.volumes);
	free(c.inodes);
	free(c.objects);
	return r;
}

void check_result_free(struct check_result *r)
{
	arena_free(&r->memory);
	memset(r, 0, sizeof(*r));
}

int meta_path(struct meta *m, uint32_t volume, uint64_t inode, struct buf *out)
{
	struct caller nobody = { 0 };
	struct arena arena;
	struct view v;
	int r = meta_view_begin(m, &v);
	if (r < 0)
		return r;
	arena_init(&arena, 0);
	struct op op = { .view = &v, .meta = m, .who = &nobody, .volume = volume, .arena = &arena };
	r = inode_path(&op, inode, out);
	meta_view_end(&v);
	arena_free(&arena);
	return r;
}
