#include "filling.h"
#include <stdio.h>
#include "block/object.h"
#include "meta/content.h"
#include "meta/reap.h"

static const struct caller server;

void fill_begin(struct filling *f)
{
	memset(f, 0, sizeof(*f));
	wire__commit_request__init(&f->request);
	f->request.objects = f->object_pointers;
	f->request.files = f->file_pointers;
}

void fill_object_as(struct filling *f, uint64_t object, uint32_t payload)
{
	size_t n = f->request.n_objects++;
	assert_true(n < 8);
	wire__new_object__init(&f->objects[n]);
	f->objects[n].object = object;
	f->objects[n].size = payload + OBJECT_FOOTER;
	f->objects[n].raw_bytes = payload;
	f->object_pointers[n] = &f->objects[n];
}

uint64_t fill_object(struct world *w, struct filling *f, uint32_t payload)
{
	uint64_t object = do_alloc(w, 1);
	fill_object_as(f, object, payload);
	return object;
}

Wire__FileCommit *fill_file(struct filling *f, uint64_t inode)
{
	size_t n = f->request.n_files++;
	assert_true(n < 16);
	wire__file_commit__init(&f->files[n]);
	f->files[n].inode = inode;
	f->file_pointers[n] = &f->files[n];
	return &f->files[n];
}

struct extent extent_of(uint64_t offset, uint32_t length, uint64_t object, uint32_t object_offset)
{
	return (struct extent){ .offset = offset,
				.length = length,
				.raw_length = length,
				.object = object,
				.object_offset = object_offset,
				.stored_length = length + extent_table_bytes(length),
				.checksum = object ^ object_offset };
}

void fill_extent_as(struct filling *f, const struct extent *e)
{
	size_t n = f->request.n_files - 1;
	extent_pack(&f->extents[n], e);
	f->files[n].extents = (ProtobufCBinaryData){ f->extents[n].len, f->extents[n].data };
}

struct extent fill_extent(struct filling *f, uint64_t offset, uint32_t length, uint64_t object, uint32_t object_offset)
{
	struct extent e = extent_of(offset, length, object, object_offset);
	fill_extent_as(f, &e);
	return e;
}

int fill_commit(struct world *w, struct filling *f, Wire__CommitReply **reply)
{
	int r = world_mutate(w, WIRE__OP__COMMIT, &f->request, reply);
	for (size_t i = 0; i < 16; i++)
		buf_free(&f->extents[i]);
	return r;
}

uint64_t do_alloc(struct world *w, uint32_t count)
{
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *reply;
	q.count = count;
	assert_int_equal(world_mutate(w, WIRE__OP__ALLOC_OBJECTS, &q, &reply), 0);
	return reply->first;
}

uint64_t do_write(struct world *w, uint64_t inode, uint64_t offset, uint32_t length)
{
	struct filling f;
	Wire__CommitReply *reply;
	fill_begin(&f);
	uint64_t object = fill_object(w, &f, length + extent_table_bytes(length));
	fill_file(&f, inode);
	fill_extent(&f, offset, length, object, 0);
	assert_int_equal(fill_commit(w, &f, &reply), 0);
	assert_int_equal(reply->files[0]->status, 0);
	return object;
}

int do_truncate(struct world *w, uint64_t inode, uint64_t size)
{
	Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;
	q.inode = inode;
	q.valid = SET_SIZE;
	q.size = size;
	return world_mutate(w, WIRE__OP__SETATTR, &q, NULL);
}

static int entry_attr(int r, const Wire__EntryReply *reply, struct attr *out)
{
	if (r == 0 && out)
		assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, out), 0);
	return r;
}

int do_clone(struct world *w, uint64_t source, uint64_t from, uint64_t target, uint64_t to, uint64_t length, struct attr *out)
{
	Wire__CloneRequest q = WIRE__CLONE_REQUEST__INIT;
	Wire__EntryReply *reply = NULL;
	q.source = source;
	q.source_offset = from;
	q.target = target;
	q.target_offset = to;
	q.length = length;
	int r = world_mutate(w, WIRE__OP__CLONE, &q, &reply);
	return entry_attr(r, reply, out);
}

int do_fallocate(struct world *w, uint64_t inode, uint32_t mode, uint64_t offset, uint64_t length, struct attr *out)
{
	Wire__FallocateRequest q = WIRE__FALLOCATE_REQUEST__INIT;
	Wire__EntryReply *reply = NULL;
	q.inode = inode;
	q.mode = mode;
	q.offset = offset;
	q.length = length;
	int r = world_mutate(w, WIRE__OP__FALLOCATE, &q, &reply);
	return entry_attr(r, reply, out);
}

size_t get_extents(struct world *w, uint64_t inode, uint64_t from, uint32_t max, struct extent *out, size_t room, uint64_t *next)
{
	Wire__ExtentsRequest q = WIRE__EXTENTS_REQUEST__INIT;
	Wire__ExtentsReply *reply;
	size_t n = 0;
	q.inode = inode;
	q.from = from;
	q.max = max;
	assert_int_equal(world_read(w, WIRE__OP__EXTENTS, &q, &reply), 0);
	struct reader in = reader_of(reply->extents.data, reply->extents.len);
	while (reader_left(&in)) {
		assert_true(n < room);
		assert_int_equal(extent_unpack(&in, &out[n++]), 0);
	}
	if (next)
		*next = reply->next;
	return n;
}

int find_object(struct world *w, uint64_t object, struct object_record *out)
{
	struct view v;
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	int r = object_peek(&v, object, out);
	meta_view_end(&v);
	return r;
}

struct object_record get_object(struct world *w, uint64_t object)
{
	struct object_record record;
	assert_int_equal(find_object(w, object, &record), 0);
	return record;
}

static size_t free_list(struct world *w, uint64_t *ids, size_t max)
{
	struct view v;
	size_t count;
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(objects_due(&v, INT64_MAX, ids, max, &count), 0);
	meta_view_end(&v);
	return count;
}

size_t count_free(struct world *w)
{
	uint64_t ids[4096];
	return free_list(w, ids, 4096);
}

bool is_free(struct world *w, uint64_t object)
{
	uint64_t ids[4096];
	size_t count = free_list(w, ids, 4096);
	for (size_t i = 0; i < count; i++)
		if (ids[i] == object)
			return true;
	return false;
}

int admin_mutate(struct world *w, uint16_t op, const void *request, void *reply_pointer)
{
	struct caller session = w->who;
	w->who = server;
	int r = world_mutate(w, op, request, reply_pointer);
	w->who = session;
	return r;
}

void do_reap_all(struct world *w, uint32_t max_extents)
{
	struct reap_counts counts = { 0 };
	bool more = true;
	while (more)
		assert_int_equal(reap_pass(w->meta, w->now_ns, max_extents, &counts, &more), 0);
}

static void print_findings(const struct check_result *r)
{
	for (size_t i = 0; i < r->findings_count; i++)
		fprintf(stderr, "fsck: %s\n", r->findings[i]);
}

void assert_clean(struct world *w)
{
	struct check_options o = { 0 };
	struct check_result r;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	if (r.problems) {
		print_findings(&r);
		fail_msg("fsck has %llu findings", (unsigned long long)r.problems);
	}
	assert_true(r.fix->n_inodes + r.fix->n_objects + r.fix->n_volumes == 0);
	check_result_free(&r);
}

static void check_finds(struct world *w, const char *text, bool repair)
{
	struct check_options o = { 0 };
	struct check_result r;
	assert_int_equal(check_run(w->meta, &o, &r), 0);
	bool found = false;
	for (size_t i = 0; i < r.findings_count; i++)
		found = found || strstr(r.findings[i], text);
	if (!found) {
		print_findings(&r);
		fail_msg("fsck does not find: %s", text);
	}
	if (repair)
		assert_int_equal(admin_mutate(w, WIRE__OP__FIX, r.fix, NULL), 0);
	check_result_free(&r);
}

void assert_finds(struct world *w, const char *text) { check_finds(w, text, false); }

void assert_finds_and_repairs(struct world *w, const char *text)
{
	check_finds(w, text, true);
	assert_clean(w);
}
