#include "world.h"
#include "block/extent.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static int set(struct world *w, const Wire__SetattrRequest *request, struct attr *out)
{
	Wire__EntryReply *reply;
	int r = world_mutate(w, WIRE__OP__SETATTR, request, &reply);

	if (r == 0 && out)
		assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, out), 0);
	return r;
}

static Wire__SetattrRequest request_for(uint64_t inode, uint32_t valid)
{
	Wire__SetattrRequest request = WIRE__SETATTR_REQUEST__INIT;

	request.inode = inode;
	request.valid = valid;
	return request;
}

static void chmod_keeps_the_type_and_moves_only_ctime(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	q = request_for(a.inode, SET_MODE);
	q.mode = S_IFDIR | 02751;
	w->now_ns += 3;
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.mode, S_IFREG | 02751);
	assert_int_equal(a.ctime_ns, START_NS + 3);
	assert_int_equal(a.mtime_ns, START_NS);
	q.kill_sgid = true;
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.mode, S_IFREG | 0751);
}

static void chown_takes_setuid_and_setgid_from_files_only(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q;
	struct attr f, d;

	assert_int_equal(do_create(w, ROOT_INODE, "f", S_IFREG | 06755, &f), 0);
	assert_int_equal(do_create(w, ROOT_INODE, "d", S_IFDIR | 06755, &d), 0);
	q = request_for(f.inode, SET_UID | SET_GID);
	q.uid = 5;
	q.gid = 6;
	assert_int_equal(set(w, &q, &f), 0);
	assert_int_equal(f.mode, S_IFREG | 0755);
	assert_int_equal(f.uid, 5);
	assert_int_equal(f.gid, 6);
	q.inode = d.inode;
	assert_int_equal(set(w, &q, &d), 0);
	assert_int_equal(d.mode, S_IFDIR | 06755);
	assert_int_equal(do_create(w, ROOT_INODE, "locks", S_IFREG | 02644, &f), 0);
	q.inode = f.inode;
	assert_int_equal(set(w, &q, &f), 0);
	assert_int_equal(f.mode, S_IFREG | 02644); /* no group execute: not a set-group-id program */
}

static void truncation_changes_size_version_and_times(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q;
	struct attr a;
	uint64_t version;

	assert_int_equal(do_create(w, ROOT_INODE, "f", S_IFREG | 04755, &a), 0);
	version = a.version;
	q = request_for(a.inode, SET_SIZE);
	q.size = (uint64_t)16 << 40;
	w->now_ns += 4;
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.size, (uint64_t)16 << 40);
	assert_int_equal(a.version, version + 1);
	assert_int_equal(a.mtime_ns, START_NS + 4);
	assert_int_equal(a.mode, S_IFREG | 04755);
	q.size = 0;
	q.kill_suidgid = true;
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.size, 0);
	assert_int_equal(a.mode, S_IFREG | 0755);
	q.size = FILE_SIZE_MAX + 1;
	assert_int_equal(set(w, &q, &a), -EFBIG);
}

static void only_regular_files_have_a_size_to_set(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q = request_for(ROOT_INODE, SET_SIZE);
	struct attr a;

	assert_int_equal(set(w, &q, NULL), -EISDIR);
	assert_int_equal(do_create(w, ROOT_INODE, "p", S_IFIFO | 0644, &a), 0);
	q.inode = a.inode;
	assert_int_equal(set(w, &q, NULL), -EINVAL);
	q.inode = 999;
	assert_int_equal(set(w, &q, NULL), -ENOENT);
}

static void times_are_set_to_the_nanosecond_or_to_now(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	w->now_ns += 7;
	q = request_for(a.inode, SET_ATIME | SET_MTIME | KEEP_CTIME);
	q.atime_ns = -1;
	q.mtime_ns = 123456789123456789;
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.atime_ns, -1);
	assert_int_equal(a.mtime_ns, 123456789123456789);
	assert_int_equal(a.ctime_ns, START_NS + 7); /* mtime is a change */
	q = request_for(a.inode, SET_MTIME_NOW);
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.atime_ns, -1);
	assert_int_equal(a.mtime_ns, START_NS + 7);
}

static void reading_sets_the_access_time_and_leaves_ctime(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	w->now_ns += 7;
	q = request_for(a.inode, SET_ATIME_NOW | KEEP_CTIME);
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.atime_ns, START_NS + 7);
	assert_int_equal(a.ctime_ns, START_NS);
	q.valid |= SET_MTIME_NOW;
	assert_int_equal(set(w, &q, &a), 0);
	assert_int_equal(a.ctime_ns, START_NS + 7);
}

static void asking_for_no_change_makes_none(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest q;
	uint64_t batch;
	struct attr a, b;

	assert_int_equal(do_file(w, ROOT_INODE, "f", &a), 0);
	batch = meta_batch(w->meta);
	q = request_for(a.inode, 0);
	w->now_ns++;
	assert_int_equal(set(w, &q, &b), 0);
	assert_attr_equal(&a, &b);
	assert_int_equal(meta_batch(w->meta), batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(chmod_keeps_the_type_and_moves_only_ctime), TEST(chown_takes_setuid_and_setgid_from_files_only),
		TEST(truncation_changes_size_version_and_times), TEST(only_regular_files_have_a_size_to_set),
		TEST(times_are_set_to_the_nanosecond_or_to_now), TEST(reading_sets_the_access_time_and_leaves_ctime),
		TEST(asking_for_no_change_makes_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
