/* A tour through everything that changes contents, in which each step is tried
 * with the writer's allocations failing from the 1st, 2nd, 3rd ... on until none does.  A step
 * that fails has changed nothing; fsck is clean all the way. */
#include "filling.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include "block/object.h"
#include "meta/acl.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static _Thread_local bool is_test; /* only the writer's allocations fail */
static atomic_int countdown;       /* from 1 on all fail: the writer tries again on its own, and must not get through */
static int failed_steps;

static bool fails(void)
{
	if (is_test || atomic_load(&countdown) <= 0)
		return false;
	if (atomic_load(&countdown) > 1)
		return atomic_fetch_sub(&countdown, 1) < 1;
	return true;
}
void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }

/* The request is tried until it gets through; -ENOMEM is the only way to fail. */
static void torture(struct world *w, bool as_server, uint16_t op, const void *request, void *reply)
{
	struct caller session = w->who;
	if (as_server)
		w->who = (struct caller){ 0 };
	int r = -ENOMEM;
	for (int n = 1; r == -ENOMEM && n < 200; n++) {
		atomic_store(&countdown, n);
		r = world_mutate(w, op, request, reply);
		atomic_store(&countdown, 0);
		failed_steps += r == -ENOMEM;
		struct caller now = w->who;
		w->who = session;
		assert_clean(w);
		w->who = now;
	}
	w->who = session;
	if (r < 0)
		fail_msg("%s: %s", op_find(op)->name, strerror(-r));
}

static uint64_t torture_alloc(struct world *w, bool as_server)
{
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *reply;
	q.count = 4;
	torture(w, as_server, WIRE__OP__ALLOC_OBJECTS, &q, &reply);
	return reply->first;
}

/* Enough files and extents for the arenas and maps to grow. */
static void torture_commits(struct world *w, const uint64_t *inodes, size_t count, uint64_t offset)
{
	struct filling f;
	uint64_t object = torture_alloc(w, false);
	fill_begin(&f);
	fill_object_as(&f, object, 100000);
	for (size_t i = 0; i < count; i++) {
		fill_file(&f, inodes[i]);
		for (uint32_t n = 0; n < 60; n++)
			fill_extent(&f, offset + n * 50, 30, object, n * 30);
	}
	torture(w, false, WIRE__OP__COMMIT, &f.request, NULL);
	for (size_t i = 0; i < 16; i++)
		buf_free(&f.extents[i]);
}

static void torture_contents(struct world *w, const uint64_t *inodes, size_t count)
{
	Wire__CloneRequest clone = WIRE__CLONE_REQUEST__INIT;
	Wire__SetattrRequest truncate = WIRE__SETATTR_REQUEST__INIT;
	for (uint64_t offset = 0; offset < 40; offset += 13)
		torture_commits(w, inodes, count, offset);
	clone.source = inodes[0];
	clone.source_offset = 7;
	clone.target = inodes[1];
	clone.target_offset = 3000;
	clone.length = 2000;
	torture(w, false, WIRE__OP__CLONE, &clone, NULL);
	truncate.inode = inodes[1];
	truncate.valid = SET_SIZE;
	truncate.size = 1234;
	torture(w, false, WIRE__OP__SETATTR, &truncate, NULL);
}

static void torture_attributes(struct world *w, uint64_t inode)
{
	uint8_t acl[4 + 4 * 8] = { 2 };
	const struct {
		uint16_t tag, perm;
	} entries[] = { { 1, 7 }, { 4, 5 }, { 16, 7 }, { 32, 5 } };
	for (int i = 0; i < 4; i++) {
		put_le16(acl + 4 + 8 * i, entries[i].tag);
		put_le16(acl + 6 + 8 * i, entries[i].perm);
		put_le32(acl + 8 + 8 * i, UINT32_MAX);
	}
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of("user.large");
	q.value = (ProtobufCBinaryData){ 60000, calloc(1, 60000) };
	torture(w, false, WIRE__OP__SETXATTR, &q, NULL);
	free(q.value.data);
	q.name = bytes_of(ACL_ACCESS_NAME);
	q.value = (ProtobufCBinaryData){ sizeof(acl), acl };
	torture(w, false, WIRE__OP__SETXATTR, &q, NULL);
	q.name = bytes_of("user.large");
	torture(w, false, WIRE__OP__REMOVEXATTR, &q, NULL);
}

static void torture_repack(struct world *w, uint64_t inode)
{
	struct extent from;
	Wire__RepackRequest q = WIRE__REPACK_REQUEST__INIT;
	Wire__NewObject object = WIRE__NEW_OBJECT__INIT;
	Wire__Move move = WIRE__MOVE__INIT, *moves[] = { &move };
	struct buf bytes[2] = { 0 };
	assert_true(get_extents(w, inode, 0, 1, &from, 1, NULL) == 1);
	object.object = torture_alloc(w, true);
	object.size = from.length + OBJECT_FOOTER;
	struct extent to = extent_of(from.offset, from.length, object.object, 0);
	extent_pack(&bytes[0], &from);
	extent_pack(&bytes[1], &to);
	move.volume = w->who.volume;
	move.inode = inode;
	move.from = (ProtobufCBinaryData){ bytes[0].len, bytes[0].data };
	move.to = (ProtobufCBinaryData){ bytes[1].len, bytes[1].data };
	q.object = &object;
	q.moves = moves;
	q.n_moves = 1;
	torture(w, true, WIRE__OP__REPACK, &q, NULL);
	buf_free(&bytes[0]);
	buf_free(&bytes[1]);
}

static void torture_deletion(struct world *w, uint64_t directory, uint64_t inode)
{
	Wire__NameRequest name = WIRE__NAME_REQUEST__INIT;
	Wire__TrashRestoreRequest restore = WIRE__TRASH_RESTORE_REQUEST__INIT;
	Wire__TrashEmptyRequest empty = WIRE__TRASH_EMPTY_REQUEST__INIT;
	Wire__ReapRequest reap = WIRE__REAP_REQUEST__INIT;
	restore.volume = empty.volume = "training";
	for (int round = 0; round < 2; round++) {
		name.parent = directory;
		name.name = bytes_of("f0");
		torture(w, false, WIRE__OP__UNLINK, &name, NULL);
		restore.inode = inode;
		if (round == 0)
			torture(w, true, WIRE__OP__TRASH_RESTORE, &restore, NULL);
	}
	torture(w, true, WIRE__OP__TRASH_EMPTY, &empty, NULL);
	reap.volume = w->who.volume;
	reap.max_extents = 20;
	Wire__ReapReply *reply;
	do
		torture(w, true, WIRE__OP__REAP, &reap, &reply);
	while (reply->more);
	struct attr gone;
	assert_int_equal(do_getattr(w, inode, &gone), -ENOENT);
}

static void no_allocation_that_fails_leaves_a_trace(void **state)
{
	struct world *w = *state;
	struct attr d, files[4];
	uint64_t inodes[4];
	is_test = true;
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	for (int i = 0; i < 4; i++) {
		char name[] = { 'f', (char)('0' + i), 0 };
		assert_int_equal(do_file(w, d.inode, name, &files[i]), 0);
		inodes[i] = files[i].inode;
	}
	torture_contents(w, inodes, 4);
	torture_attributes(w, inodes[2]);
	torture_repack(w, inodes[3]);
	torture_deletion(w, d.inode, inodes[0]);
	assert_clean(w);
	print_message("%d failures\n", failed_steps);
	assert_true(failed_steps > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(no_allocation_that_fails_leaves_a_trace, world_setup, world_teardown),
	};
	is_test = true;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
