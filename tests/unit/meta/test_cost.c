/* What a small file costs in LMDB: 100,000 files in one directory, each with one
 * extent, made by creates and commits as a mount sends them. */
#include "world.h"
#include <stdio.h>
#include "base/clock.h"
#include "block/extent.h"
#include "block/object.h"

#define FILES 100000
#define PACK_FILES 250
#define FILE_BYTES 4096u
#define LIMIT_BYTES 400

static const void *one_more_file(struct world *w, int i, void *context)
{
	Wire__CreateRequest *request = arena_take(&w->arena, sizeof(*request));

	wire__create_request__init(request);
	request->parent = ROOT_INODE;
	request->name = bytes_of(numbered_name(w, "image%06d.jpg", i));
	request->mode = S_IFREG | 0644;
	request->exclusive = true;
	return request;
}

struct packs {
	uint64_t first_inode, first_object;
};

/* A commit as a client makes it: one pack and the files in it. */
static const void *one_more_pack(struct world *w, int i, void *context)
{
	const struct packs *packs = context;
	Wire__CommitRequest *request = arena_take(&w->arena, sizeof(*request));
	Wire__NewObject *object = arena_take(&w->arena, sizeof(*object)), **objects = arena_take(&w->arena, sizeof(*objects));
	Wire__FileCommit **files = arena_take(&w->arena, PACK_FILES * sizeof(*files));

	wire__commit_request__init(request);
	wire__new_object__init(object);
	object->object = packs->first_object + (uint64_t)i;
	object->raw_bytes = PACK_FILES * FILE_BYTES;
	object->size = object->raw_bytes + OBJECT_FOOTER;
	objects[0] = object;
	request->objects = objects;
	request->n_objects = 1;
	request->files = files;
	request->n_files = PACK_FILES;
	for (int n = 0; n < PACK_FILES; n++) {
		struct extent e = { .length = FILE_BYTES,
				    .raw_length = FILE_BYTES,
				    .stored_length = FILE_BYTES,
				    .object = object->object,
				    .object_offset = (uint32_t)n * FILE_BYTES,
				    .checksum = 1 };
		struct buf packed = { 0 };
		extent_pack(&packed, &e);
		files[n] = arena_take(&w->arena, sizeof(**files));
		wire__file_commit__init(files[n]);
		files[n]->inode = packs->first_inode + (uint64_t)(i * PACK_FILES + n);
		files[n]->size = FILE_BYTES;
		files[n]->extents.data = arena_copy(&w->arena, packed.data, packed.len);
		files[n]->extents.len = packed.len;
		buf_free(&packed);
	}
	return request;
}

static void fill(struct world *w)
{
	Wire__AllocObjectsRequest alloc = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *range;
	struct packs packs;
	struct attr first;

	alloc.count = 1024;
	assert_int_equal(world_mutate(w, WIRE__OP__ALLOC_OBJECTS, &alloc, &range), 0);
	packs.first_object = range->first;
	assert_int_equal(world_burst(w, WIRE__OP__CREATE, FILES, one_more_file, NULL), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "image000000.jpg", &first), 0);
	packs.first_inode = first.inode;
	assert_int_equal(world_burst(w, WIRE__OP__COMMIT, FILES / PACK_FILES, one_more_pack, &packs), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "image099999.jpg", &first), 0);
	assert_int_equal(first.allocated, FILE_BYTES);
}

static void measure(struct world *w, const char *what)
{
	uint64_t before = meta_file_bytes(w->meta), cost;
	int64_t start = clock_steady_ns();

	fill(w);
	cost = (meta_file_bytes(w->meta) - before) / FILES;
	print_message("%s: %llu bytes of LMDB per file, %lld ns per file\n", what, (unsigned long long)cost,
		      (long long)(clock_steady_ns() - start) / FILES);
	assert_in_range(cost, 100, LIMIT_BYTES - 1);
}

static void a_small_file_costs_less_than_400_bytes(void **state) { measure(*state, "one volume"); }

static void add_volumes(struct world *w, int count)
{
	Wire__Volume newer = WIRE__VOLUME__INIT;

	for (int i = 0; i < count; i++) {
		newer.name = numbered_name(w, "newer%d", i);
		assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_CREATE, &newer, NULL), 0);
	}
}

static void so_it_does_in_a_volume_that_is_not_the_newest(void **state)
{
	struct world *w = *state;

	add_volumes(w, 10);
	measure(w, "an older volume");
	world_stop(w);
	world_start(w);
	assert_int_equal(count_names(w, ROOT_INODE), FILES);
}

static void a_restart_with_100000_files_is_quick(void **state)
{
	struct world *w = *state;
	int64_t start;

	fill(w);
	world_stop(w);
	start = clock_steady_ns();
	world_start(w);
	print_message("restart with %d files: %lld ms\n", FILES, (long long)(clock_steady_ns() - start) / NS_PER_MS);
	assert_int_equal(show_volume(w, "training")->used_files, FILES);
	assert_true(clock_steady_ns() - start < 10 * NS_PER_S);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_small_file_costs_less_than_400_bytes, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(so_it_does_in_a_volume_that_is_not_the_newest, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(a_restart_with_100000_files_is_quick, world_setup, world_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
