/* Thousands of random operations on contents, against a model that knows for each
 * byte of each file which written byte it is; after each phase fsck is clean and
 * every byte is what the model says.
 *
 * EPOCHFS_SEED=n replays a run, EPOCHFS_OPERATIONS=n makes it longer. */
#include "filling.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include "block/object.h"
#include "meta/content.h"

#define FILES 12
#define SIZE_MAX_MODEL 20000
#define FORMS 4000000 /* stored bytes in all: each gets a number when written */

struct model_file {
	uint64_t inode; /* 0: there is none in this place */
	uint64_t size;
	bool named, open;
	uint64_t bytes[SIZE_MAX_MODEL];
};

/* A stored form: its raw byte i is written byte first + i. */
struct form {
	uint64_t object, first;
	uint32_t object_offset, raw_length;
};

struct model {
	struct world *w;
	uint64_t seed, state, written;
	uint64_t range, range_end;
	struct model_file files[FILES];
	struct form *forms;
	size_t form_count, form_room;
	unsigned names;
};

static uint64_t draw(struct model *m, uint64_t below)
{
	m->state ^= m->state << 13;
	m->state ^= m->state >> 7;
	m->state ^= m->state << 17;
	return (m->state * 0x2545f4914f6cdd1dULL >> 11) % below;
}

static uint64_t take_object(struct model *m)
{
	if (m->range == m->range_end) {
		m->range = do_alloc(m->w, 1024);
		m->range_end = m->range + 1024;
	}
	return m->range++;
}

static void note_form(struct model *m, const struct extent *e, uint64_t first)
{
	if (m->form_count == m->form_room) {
		m->form_room = m->form_room * 2 + 64;
		m->forms = realloc(m->forms, m->form_room * sizeof(*m->forms));
		assert_non_null(m->forms);
	}
	m->forms[m->form_count++] = (struct form){ e->object, first, e->object_offset, e->raw_length };
}

static const struct form *find_form(struct model *m, const struct extent *e)
{
	for (size_t i = m->form_count; i-- > 0;)
		if (m->forms[i].object == e->object && m->forms[i].object_offset == e->object_offset)
			return &m->forms[i];
	fail_msg("seed %llu: an extent in object %llu that nobody wrote", (unsigned long long)m->seed,
		 (unsigned long long)e->object);
	return NULL;
}

static void compare_file(struct model *m, struct model_file *f)
{
	static struct extent extents[SIZE_MAX_MODEL];
	static uint64_t bytes[SIZE_MAX_MODEL];
	struct attr a;
	uint64_t next = 0, allocated = 0;
	memset(bytes, 0, sizeof(bytes));
	do {
		size_t n = get_extents(m->w, f->inode, next, (uint32_t)(1 + draw(m, 50)), extents, SIZE_MAX_MODEL, &next);
		for (size_t i = 0; i < n; i++) {
			const struct form *form = find_form(m, &extents[i]);
			assert_int_equal(extents[i].raw_length, form->raw_length);
			for (uint32_t b = 0; b < extents[i].length; b++)
				bytes[extents[i].offset + b] = form->first + extents[i].skip + b;
			allocated += extents[i].length;
		}
	} while (next);
	assert_int_equal(do_getattr(m->w, f->inode, &a), 0);
	if (a.size != f->size || a.allocated != allocated || memcmp(bytes, f->bytes, sizeof(bytes)) != 0)
		fail_msg("seed %llu: inode %llu is not what was written", (unsigned long long)m->seed,
			 (unsigned long long)f->inode);
}

static void compare_all(struct model *m)
{
	for (int i = 0; i < FILES; i++)
		if (m->files[i].inode)
			compare_file(m, &m->files[i]);
	assert_clean(m->w);
	arena_reset(&m->w->arena);
}

static struct model_file *any_file(struct model *m)
{
	for (;;) {
		struct model_file *f = &m->files[draw(m, FILES)];
		if (f->inode)
			return f;
	}
}

static void file_name(char out[16], const struct model *m, const struct model_file *f)
{
	snprintf(out, 16, "file%d", (int)(f - m->files));
}

static void make_file(struct model *m, struct model_file *f)
{
	struct attr a;
	char name[16];
	file_name(name, m, f);
	memset(f, 0, sizeof(*f));
	assert_int_equal(do_file(m->w, ROOT_INODE, name, &a), 0);
	f->inode = a.inode;
	f->named = true;
}

/* ---- Operations ---- */

static void write_one(struct model *m, struct filling *f, struct model_file *file, uint64_t object, uint32_t *used)
{
	uint32_t length = (uint32_t)(1 + draw(m, draw(m, 4) ? 300 : 3000));
	uint64_t offset = draw(m, SIZE_MAX_MODEL - length);
	struct extent e = fill_extent(f, offset, length, object, *used);
	note_form(m, &e, m->written + 1);
	for (uint32_t b = 0; b < length; b++)
		file->bytes[offset + b] = ++m->written;
	*used += length;
	if (offset + length > file->size)
		file->size = offset + length;
}

static void random_commit(struct model *m)
{
	struct filling f;
	Wire__CommitReply *reply;
	fill_begin(&f);
	uint64_t object = take_object(m);
	uint32_t used = 0;
	for (uint64_t files = 1 + draw(m, 4); files--;) {
		struct model_file *file = any_file(m); /* the same one twice, too */
		Wire__FileCommit *c = fill_file(&f, file->inode);
		for (uint64_t n = 1 + draw(m, 5); n--;)
			write_one(m, &f, file, object, &used);
		c->size = draw(m, 3) ? 0 : draw(m, SIZE_MAX_MODEL);
		if (c->size > file->size)
			file->size = c->size;
	}
	fill_object_as(&f, object, used);
	assert_int_equal(fill_commit(m->w, &f, &reply), 0);
}

static void random_truncate(struct model *m)
{
	struct model_file *f = any_file(m);
	uint64_t size = draw(m, SIZE_MAX_MODEL);
	assert_int_equal(do_truncate(m->w, f->inode, size), 0);
	if (size < f->size)
		memset(f->bytes + size, 0, (f->size - size) * sizeof(f->bytes[0]));
	f->size = size;
}

static void random_hole(struct model *m)
{
	struct model_file *f = any_file(m);
	uint64_t length = 1 + draw(m, 4000), offset = draw(m, SIZE_MAX_MODEL - length);
	bool keep = draw(m, 2);
	uint32_t mode = keep ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : FALLOC_FL_ZERO_RANGE;
	assert_int_equal(do_fallocate(m->w, f->inode, mode, offset, length, NULL), 0);
	memset(f->bytes + offset, 0, length * sizeof(f->bytes[0]));
	if (!keep && offset + length > f->size)
		f->size = offset + length;
}

static void random_clone(struct model *m)
{
	struct model_file *source = any_file(m), *target = any_file(m);
	uint64_t length = 1 + draw(m, 8000), from = draw(m, SIZE_MAX_MODEL), to = draw(m, SIZE_MAX_MODEL - length);
	uint64_t real = from >= source->size ? 0 : length < source->size - from ? length : source->size - from;
	bool overlap = source == target && real && from < to + real && to < from + real;
	assert_int_equal(do_clone(m->w, source->inode, from, target->inode, to, length, NULL), overlap ? -EINVAL : 0);
	if (overlap || real == 0)
		return;
	memmove(target->bytes + to, source->bytes + from, real * sizeof(source->bytes[0]));
	if (to + real > target->size)
		target->size = to + real;
}

/* Unlinked, perhaps held open for a while, then gone; another takes the place. */
static void random_unlink(struct model *m)
{
	struct model_file *f = any_file(m);
	char name[16];
	if (f->named) {
		file_name(name, m, f);
		f->open = draw(m, 2);
		if (f->open)
			assert_int_equal(meta_opened(m->w->meta, SESSION, m->w->who.volume, f->inode, 0), 0);
		assert_int_equal(do_unlink(m->w, ROOT_INODE, name), 0);
		f->named = false;
	} else if (f->open) {
		meta_closed(m->w->meta, SESSION, m->w->who.volume, f->inode, 0);
		f->open = false;
	}
	if (!f->open)
		make_file(m, f);
}

static void random_reap(struct model *m)
{
	Wire__ReapRequest q = WIRE__REAP_REQUEST__INIT;
	q.volume = m->w->who.volume;
	q.max_extents = (uint32_t)(1 + draw(m, 30));
	m->w->now_ns += (int64_t)draw(m, 2 * m->w->retention_s) * NS_PER_S;
	assert_int_equal(admin_mutate(m->w, WIRE__OP__REAP, &q, NULL), 0);
}

/* Some extents of a file into a new object, some of them out of date. */
static void random_repack(struct model *m)
{
	static struct extent extents[SIZE_MAX_MODEL];
	struct model_file *f = any_file(m);
	size_t n = get_extents(m->w, f->inode, 0, 8, extents, SIZE_MAX_MODEL, NULL);
	Wire__AllocObjectsRequest alloc = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *range;
	Wire__RepackRequest q = WIRE__REPACK_REQUEST__INIT;
	Wire__NewObject object = WIRE__NEW_OBJECT__INIT;
	Wire__Move moves[8], *pointers[8];
	struct buf from[8] = { 0 }, to[8] = { 0 };
	Wire__RepackReply *reply;
	uint32_t used = 0, current = 0;
	assert_int_equal(admin_mutate(m->w, WIRE__OP__ALLOC_OBJECTS, &alloc, &range), 0);
	object.object = range->first;
	for (size_t i = 0; i < n; i++) {
		struct extent now = extents[i], then = extent_of(now.offset, now.length, object.object, used);
		note_form(m, &then, find_form(m, &now)->first + now.skip);
		bool stale = draw(m, 4) == 0;
		now.checksum += stale;
		current += !stale;
		used += now.length;
		extent_pack(&from[i], &now);
		extent_pack(&to[i], &then);
		wire__move__init(&moves[i]);
		moves[i].volume = m->w->who.volume;
		moves[i].inode = f->inode;
		moves[i].from = (ProtobufCBinaryData){ from[i].len, from[i].data };
		moves[i].to = (ProtobufCBinaryData){ to[i].len, to[i].data };
		pointers[i] = &moves[i];
	}
	object.size = (used ? used : 1) + OBJECT_FOOTER;
	object.raw_bytes = used;
	q.object = &object;
	q.moves = pointers;
	q.n_moves = n;
	assert_int_equal(admin_mutate(m->w, WIRE__OP__REPACK, &q, &reply), 0);
	assert_int_equal(reply->moved, current);
	for (size_t i = 0; i < n; i++) {
		buf_free(&from[i]);
		buf_free(&to[i]);
	}
}

static void random_deletion(struct model *m)
{
	Wire__ObjectList q = WIRE__OBJECT_LIST__INIT;
	uint64_t ids[64];
	struct view v;
	assert_int_equal(meta_view_begin(m->w->meta, &v), 0);
	assert_int_equal(objects_due(&v, m->w->now_ns, ids, 1 + draw(m, 64), &q.n_objects), 0);
	meta_view_end(&v);
	q.objects = ids;
	assert_int_equal(admin_mutate(m->w, WIRE__OP__OBJECTS_DELETED, &q, NULL), 0);
}

static void random_operation(struct model *m)
{
	static void (*const often[])(struct model *) = {
		random_commit, random_commit, random_commit, random_commit, random_truncate, random_hole,
		random_clone,  random_clone,  random_unlink, random_reap,   random_repack,   random_deletion,
	};
	often[draw(m, sizeof(often) / sizeof(often[0]))](m);
	arena_reset(&m->w->arena);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void files_hold_every_byte_through_thousands_of_random_operations(void **state)
{
	struct model *m = calloc(1, sizeof(*m));
	uint64_t random;
	assert_non_null(m);
	assert_int_equal(getrandom(&random, sizeof(random), 0), sizeof(random));
	m->w = *state;
	m->seed = from_environment("EPOCHFS_SEED", random >> 32 | 1);
	m->state = m->seed * 0x9e3779b97f4a7c15ULL | 1;
	uint64_t operations = from_environment("EPOCHFS_OPERATIONS", 3000);
	print_message("EPOCHFS_SEED=%llu EPOCHFS_OPERATIONS=%llu\n", (unsigned long long)m->seed, (unsigned long long)operations);
	for (int i = 0; i < FILES; i++)
		make_file(m, &m->files[i]);
	for (uint64_t n = 1; n <= operations; n++) {
		random_operation(m);
		if (n % 200 == 0)
			compare_all(m);
	}
	compare_all(m);
	world_stop(m->w);
	world_start(m->w);
	compare_all(m);
	free(m->forms);
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(files_hold_every_byte_through_thousands_of_random_operations, world_setup,
						world_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
