#include "filling.h"
#include "meta/acl.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
#define TIME_NS (START_NS - 5 * NS_PER_S) /* when the mount made its files, in the past of the server's clock */
#define FILES_MAX 1024

static Wire__AllocInodesReply *take(struct world *w, uint32_t count)
{
	Wire__AllocInodesRequest q = WIRE__ALLOC_INODES_REQUEST__INIT;
	Wire__AllocInodesReply *reply;

	q.count = count;
	assert_int_equal(world_mutate(w, WIRE__OP__ALLOC_INODES, &q, &reply), 0);
	return reply;
}

static Wire__NewFile *new_file(struct world *w, uint64_t inode, uint64_t parent, const char *name)
{
	Wire__NewFile *f = arena_take(&w->arena, sizeof(*f));

	assert_non_null(f);
	wire__new_file__init(f);
	f->inode = inode;
	f->parent = parent;
	f->name = bytes_of(name);
	f->mode = 0640;
	f->uid = 1001;
	f->gid = 1002;
	f->time_ns = TIME_NS;
	return f;
}

static Wire__CreateManyReply *tell(struct world *w, Wire__NewFile **files, size_t count)
{
	Wire__CreateManyRequest q = WIRE__CREATE_MANY_REQUEST__INIT;
	Wire__CreateManyReply *reply;

	q.files = files;
	q.n_files = count;
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE_MANY, &q, &reply), 0);
	assert_true(reply->n_status == 0 || reply->n_status == count);
	return reply;
}

/* What becomes of one file: 0 or an errno. */
static int tell_one(struct world *w, Wire__NewFile *f)
{
	Wire__CreateManyReply *reply = tell(w, &f, 1);

	return reply->n_status ? (int)reply->status[0] : 0;
}

static struct attr found(struct world *w, uint64_t parent, const char *name)
{
	struct attr a;

	assert_int_equal(do_lookup(w, parent, name, &a), 0);
	return a;
}

static void limit_files(struct world *w, uint64_t max_files)
{
	Wire__VolumeSetRequest q = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *field = "max_files";

	v.name = "training";
	v.max_files = max_files;
	q.volume = &v;
	q.fields = &field;
	q.n_fields = 1;
	assert_int_equal(admin_mutate(w, WIRE__OP__VOLUME_SET, &q, NULL), 0);
}

/* ---- What is made ---- */

static void files_appear_exactly_as_they_were_made(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 10)->first;
	Wire__NewFile *files[2] = { new_file(w, first, ROOT_INODE, "a"), new_file(w, first + 7, ROOT_INODE, "b") };
	struct attr root, a, b,
		expected = {
			.inode = first,
			.mode = S_IFREG | 0640,
			.uid = 1001,
			.gid = 1002,
			.nlink = 1,
			.atime_ns = TIME_NS,
			.mtime_ns = TIME_NS,
			.ctime_ns = TIME_NS,
			.btime_ns = TIME_NS,
			.parent = ROOT_INODE,
		};

	files[1]->mode = S_IFDIR | 04755; /* regular it is, whatever the type says */
	files[1]->time_ns = START_NS + 100 * NS_PER_S;
	assert_int_equal(tell(w, files, 2)->n_status, 0);
	a = found(w, ROOT_INODE, "a");
	assert_attr_equal(&a, &expected);
	b = found(w, ROOT_INODE, "b");
	assert_int_equal(b.inode, first + 7);
	assert_int_equal(b.mode, S_IFREG | 04755);
	assert_int_equal(b.mtime_ns, START_NS); /* nothing is made in the future */
	assert_int_equal(do_getattr(w, ROOT_INODE, &root), 0);
	assert_int_equal(root.mtime_ns, START_NS);
	assert_int_equal(count_names(w, ROOT_INODE), 2);
	assert_int_equal(show_volume(w, "training")->used_files, 2);
	assert_clean(w);
}

static void a_directory_changes_when_its_files_were_made(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 3)->first;
	Wire__NewFile *files[3];
	struct attr d, e, now;

	w->now_ns = START_NS + NS_PER_S;
	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(do_directory(w, ROOT_INODE, "e", &e), 0);
	w->now_ns += 10 * NS_PER_S;
	files[0] = new_file(w, first, d.inode, "a");
	files[1] = new_file(w, first + 1, e.inode, "a");
	files[2] = new_file(w, first + 2, d.inode, "b");
	files[0]->time_ns = files[1]->time_ns = files[2]->time_ns = d.mtime_ns + NS_PER_S;
	assert_int_equal(tell(w, files, 3)->n_status, 0);
	assert_int_equal(do_getattr(w, d.inode, &now), 0);
	assert_int_equal(now.mtime_ns, d.mtime_ns + NS_PER_S);
	assert_int_equal(now.ctime_ns, d.mtime_ns + NS_PER_S);
	assert_true(now.version > d.version);
	assert_int_equal(found(w, d.inode, "b").inode, first + 2);
	assert_int_equal(found(w, e.inode, "a").inode, first + 1);
	assert_clean(w);
}

static void a_setgid_directory_gives_its_group(void **state)
{
	struct world *w = *state;
	struct attr d;

	assert_int_equal(do_create(w, ROOT_INODE, "d", S_IFDIR | 02775, &d), 0);
	assert_int_equal(d.gid, 1000);
	assert_int_equal(tell_one(w, new_file(w, take(w, 1)->first, d.inode, "a")), 0);
	assert_int_equal(found(w, d.inode, "a").gid, 1000);
	assert_int_equal(found(w, d.inode, "a").uid, 1001);
	assert_clean(w);
}

static void a_default_acl_is_inherited(void **state)
{
	static const uint8_t acl[] = { 2,   0,   0,   0, /* user:: rwx, user:1001: r-x, group:: r-x, mask:: r-x, other:: --- */
				       1,   0,   7,   0,   255, 255, 255, 255, 2,   0,   5,   0,  0xe9, 3,
				       0,   0,   4,   0,   5,   0,   255, 255, 255, 255, 16,  0,  5,    0,
				       255, 255, 255, 255, 32,  0,   0,   0,   255, 255, 255, 255 };
	struct world *w = *state;
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	Wire__BytesReply *value;
	Wire__NewFile *f;
	struct attr d, a;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	q.inode = d.inode;
	q.name = bytes_of(ACL_DEFAULT_NAME);
	q.value = (ProtobufCBinaryData){ sizeof(acl), (uint8_t *)acl };
	assert_int_equal(world_mutate(w, WIRE__OP__SETXATTR, &q, NULL), 0);
	f = new_file(w, take(w, 1)->first, d.inode, "a");
	f->mode = 0666;
	assert_int_equal(tell_one(w, f), 0);
	a = found(w, d.inode, "a");
	assert_int_equal(a.mode, S_IFREG | 0640);
	assert_true(a.flags & ATTR_HAS_ACL);
	q.inode = a.inode;
	q.name = bytes_of(ACL_ACCESS_NAME);
	assert_int_equal(world_read(w, WIRE__OP__GETXATTR, &q, &value), 0);
	assert_int_equal(value->data.len, sizeof(acl));
	assert_clean(w);
}

static void they_count_as_open_until_they_are_closed(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 1)->first;
	struct attr a;

	assert_int_equal(tell_one(w, new_file(w, first, ROOT_INODE, "a")), 0);
	assert_true(meta_is_open(w->meta, w->who.volume, first));
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	w->now_ns += ((int64_t)w->retention_s + 1) * NS_PER_S;
	do_reap_all(w, 0);
	assert_int_equal(do_getattr(w, first, &a), 0);
	do_write(w, first, 0, 100);
	meta_closed(w->meta, SESSION, w->who.volume, first, 0);
	do_reap_all(w, 0);
	assert_int_equal(do_getattr(w, first, &a), -ENOENT);
	assert_clean(w);
}

/* ---- Told again ---- */

static void telling_twice_changes_nothing(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 2)->first;
	Wire__NewFile *files[2] = { new_file(w, first, ROOT_INODE, "a"), new_file(w, first + 1, ROOT_INODE, "b") };
	struct attr before, after, root, root_after;

	assert_int_equal(tell(w, files, 1)->n_status, 0);
	do_write(w, first, 0, 100);
	before = found(w, ROOT_INODE, "a");
	assert_int_equal(do_getattr(w, ROOT_INODE, &root), 0);
	w->now_ns += NS_PER_S;
	files[0]->mode = 0;
	assert_int_equal(tell(w, files, 1)->n_status, 0);
	after = found(w, ROOT_INODE, "a");
	assert_attr_equal(&after, &before);
	assert_int_equal(do_getattr(w, ROOT_INODE, &root_after), 0);
	assert_attr_equal(&root_after, &root);
	/* Nor does it keep others from being made. */
	assert_int_equal(tell(w, files, 2)->n_status, 0);
	assert_int_equal(show_volume(w, "training")->used_files, 2);
	assert_clean(w);
}

static void a_repeated_number_is_answered_and_not_done_again(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 2)->first;
	Wire__NewFile *files[2] = { new_file(w, first, ROOT_INODE, "a"), new_file(w, first + 1, ROOT_INODE, "a") };
	Wire__CreateManyRequest q = WIRE__CREATE_MANY_REQUEST__INIT;
	Wire__CreateManyReply *reply;
	struct attr a;

	q.files = files;
	q.n_files = 2;
	assert_int_equal(world_numbered(w, 5, 5, WIRE__OP__CREATE_MANY, &q, &reply), 0);
	assert_int_equal(reply->n_status, 2);
	assert_int_equal(reply->status[1], EEXIST);
	/* Done once more it would bring the file back, or find it in the trash. */
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(world_numbered(w, 5, 5, WIRE__OP__CREATE_MANY, &q, &reply), 0);
		assert_int_equal(reply->n_status, 2);
		assert_int_equal(reply->status[0], 0);
		assert_int_equal(reply->status[1], EEXIST);
		assert_int_equal(do_lookup(w, ROOT_INODE, "a", &a), -ENOENT);
		world_stop(w);
		world_start(w);
	}
	assert_clean(w);
}

/* ---- What is refused ---- */

static void a_name_that_is_taken_is_refused(void **state)
{
	struct world *w = *state;
	struct attr there;

	assert_int_equal(do_file(w, ROOT_INODE, "a", &there), 0);
	assert_int_equal(tell_one(w, new_file(w, take(w, 1)->first, ROOT_INODE, "a")), EEXIST);
	assert_int_equal(found(w, ROOT_INODE, "a").inode, there.inode);
	assert_clean(w);
}

static void a_number_that_is_in_use_is_refused(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 1)->first;
	struct attr there;

	assert_int_equal(do_file(w, ROOT_INODE, "there", &there), 0);
	assert_int_equal(tell_one(w, new_file(w, there.inode, ROOT_INODE, "a")), ESTALE);
	assert_int_equal(tell_one(w, new_file(w, first, ROOT_INODE, "b")), 0);
	assert_int_equal(tell_one(w, new_file(w, first, ROOT_INODE, "c")), ESTALE);
	assert_int_equal(do_unlink(w, ROOT_INODE, "b"), 0);
	assert_int_equal(tell_one(w, new_file(w, first, ROOT_INODE, "b")), ESTALE); /* it is in the trash */
	assert_int_equal(count_names(w, ROOT_INODE), 1);
	assert_clean(w);
}

static void a_number_that_was_never_given_is_refused(void **state)
{
	struct world *w = *state;
	Wire__AllocInodesReply *given = take(w, 5);
	const uint64_t wrong[] = { 0, ROOT_INODE, given->first + 5, UINT64_MAX };

	assert_int_equal(given->count, 5);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(tell_one(w, new_file(w, wrong[i], ROOT_INODE, "a")), EINVAL);
	assert_int_equal(tell_one(w, new_file(w, given->first + 4, ROOT_INODE, "a")), 0);
	assert_clean(w);
}

static void each_file_is_judged_by_itself(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 20)->first;
	struct attr file, gone;
	static char long_name[300];
	Wire__NewFile *files[8];
	const uint32_t expected[8] = { 0, EEXIST, ENOTDIR, ENOENT, ENAMETOOLONG, EINVAL, ENOENT, 0 };
	Wire__CreateManyReply *reply;

	memset(long_name, 'x', sizeof(long_name) - 1);
	assert_int_equal(do_file(w, ROOT_INODE, "file", &file), 0);
	assert_int_equal(do_directory(w, ROOT_INODE, "gone", &gone), 0);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "gone"), 0);
	files[0] = new_file(w, first, ROOT_INODE, "a");
	files[1] = new_file(w, first + 1, ROOT_INODE, "a");
	files[2] = new_file(w, first + 2, file.inode, "b");
	files[3] = new_file(w, first + 3, 999999, "b");
	files[4] = new_file(w, first + 4, ROOT_INODE, long_name);
	files[5] = new_file(w, first + 5, ROOT_INODE, "b/c");
	files[6] = new_file(w, first + 6, gone.inode, "b");
	files[7] = new_file(w, first + 7, ROOT_INODE, "z");
	reply = tell(w, files, 8);
	assert_int_equal(reply->n_status, 8);
	for (int i = 0; i < 8; i++)
		assert_int_equal(reply->status[i], expected[i]);
	assert_int_equal(found(w, ROOT_INODE, "a").inode, first);
	assert_int_equal(found(w, ROOT_INODE, "z").inode, first + 7);
	assert_int_equal(count_names(w, ROOT_INODE), 3);
	assert_int_equal(show_volume(w, "training")->used_files, 3);
	assert_clean(w);
}

static void a_full_volume_takes_what_fits(void **state)
{
	struct world *w = *state;
	uint64_t first = take(w, 10)->first;
	Wire__NewFile *files[4];
	Wire__CreateManyReply *reply;

	for (int i = 0; i < 4; i++)
		files[i] = new_file(w, first + (uint64_t)i, ROOT_INODE, numbered_name(w, "f%d", i));
	assert_int_equal(tell(w, files, 1)->n_status, 0);
	limit_files(w, 3);
	reply = tell(w, files, 4);
	assert_int_equal(reply->n_status, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(reply->status[i], i < 3 ? 0 : EDQUOT);
	assert_int_equal(show_volume(w, "training")->used_files, 3);
	/* Those that are there are no news. */
	assert_int_equal(tell(w, files, 3)->n_status, 0);
	assert_clean(w);
}

static void too_many_at_once_are_refused(void **state)
{
	struct world *w = *state;
	static Wire__NewFile *files[FILES_MAX + 1];
	Wire__CreateManyRequest q = WIRE__CREATE_MANY_REQUEST__INIT;
	uint64_t first = take(w, FILES_MAX + 1)->first;

	for (int i = 0; i <= FILES_MAX; i++)
		files[i] = new_file(w, first + (uint64_t)i, ROOT_INODE, numbered_name(w, "f%d", i));
	q.files = files;
	q.n_files = FILES_MAX + 1;
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE_MANY, &q, NULL), -E2BIG);
	assert_int_equal(count_names(w, ROOT_INODE), 0);
	assert_int_equal(tell(w, files, FILES_MAX)->n_status, 0);
	assert_int_equal(count_names(w, ROOT_INODE), FILES_MAX);
	assert_int_equal(show_volume(w, "training")->used_files, FILES_MAX);
	assert_int_equal(tell(w, files, 0)->n_status, 0);
	assert_clean(w);
}

/* ---- Numbers ---- */

static void numbers_are_given_once(void **state)
{
	struct world *w = *state;
	Wire__AllocInodesReply *a = take(w, 100), *b = take(w, 0), *c = take(w, 1000000);
	struct attr next;

	assert_int_equal(a->count, 100);
	assert_int_equal(b->count, 1);
	assert_int_equal(b->first, a->first + 100);
	assert_in_range(c->count, 1, 999999);
	assert_int_equal(c->first, b->first + 1);
	world_stop(w);
	world_start(w);
	assert_int_equal(do_file(w, ROOT_INODE, "a", &next), 0);
	assert_int_equal(next.inode, c->first + c->count);
	assert_clean(w);
}

static void none_are_given_when_the_volume_is_nearly_full(void **state)
{
	struct world *w = *state;

	limit_files(w, 400);
	assert_int_equal(take(w, 101)->count, 0);
	assert_int_equal(take(w, 100)->count, 100);
	assert_int_equal(do_file(w, ROOT_INODE, "a", NULL), 0);
	assert_int_equal(take(w, 100)->count, 0);
	assert_int_equal(take(w, 10)->count, 10);
	limit_files(w, 0);
	assert_int_equal(take(w, 100)->count, 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(files_appear_exactly_as_they_were_made),
		TEST(a_directory_changes_when_its_files_were_made),
		TEST(a_setgid_directory_gives_its_group),
		TEST(a_default_acl_is_inherited),
		TEST(they_count_as_open_until_they_are_closed),
		TEST(telling_twice_changes_nothing),
		TEST(a_repeated_number_is_answered_and_not_done_again),
		TEST(a_name_that_is_taken_is_refused),
		TEST(a_number_that_is_in_use_is_refused),
		TEST(a_number_that_was_never_given_is_refused),
		TEST(each_file_is_judged_by_itself),
		TEST(a_full_volume_takes_what_fits),
		TEST(too_many_at_once_are_refused),
		TEST(numbers_are_given_once),
		TEST(none_are_given_when_the_volume_is_nearly_full),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
