#include "world.h"
#include "meta/reap.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static Wire__Volume volume_named(const char *name)
{
	Wire__Volume v = WIRE__VOLUME__INIT;

	v.name = (char *)name;
	return v;
}

static int create(struct world *w, const Wire__Volume *v, Wire__Volume **out)
{
	Wire__VolumeReply *reply;
	int r = world_mutate(w, WIRE__OP__VOLUME_CREATE, v, &reply);

	if (r == 0 && out)
		*out = reply->volume;
	return r;
}

static void act_as_administrator(struct world *w) { w->who = (struct caller){ 0 }; }

static void a_volume_has_defaults_and_a_root(void **state)
{
	struct world *w = *state;
	Wire__Volume v = volume_named("second"), *made = NULL;
	struct attr root;

	assert_int_equal(create(w, &v, &made), 0);
	assert_string_equal(made->name, "second");
	assert_int_equal(made->block_size, 4 << 20);
	assert_string_equal(made->compression, "none");
	assert_int_equal(made->used_files, 0);
	assert_int_equal(made->created_ns, START_NS);
	assert_true(made->id != w->who.volume);
	w->who.volume = made->id;
	assert_int_equal(do_getattr(w, ROOT_INODE, &root), 0);
	assert_true(S_ISDIR(root.mode));
	assert_int_equal(root.nlink, 2);
	assert_int_equal(create(w, &v, NULL), -EEXIST);
}

static void wrong_values_name_the_allowed_range(void **state)
{
	struct world *w = *state;
	Wire__Volume v = volume_named("-x");

	assert_int_equal(create(w, &v, NULL), -EINVAL);
	assert_non_null(strstr(w->why, "1 to 63"));
	v.name = "UPPER";
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	v.name = "";
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	v.name = "a123456789012345678901234567890123456789012345678901234567890123";
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	v.name = "good";
	v.block_size = 1000;
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	assert_non_null(strstr(w->why, "64 KiB to 64 MiB"));
	v.block_size = 128 << 20;
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	v.block_size = 1 << 20;
	v.compression = "zstd:77";
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	assert_non_null(strstr(w->why, "1 to 19"));
	v.compression = "zstd";
	v.retention_s = UINT64_MAX;
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	assert_non_null(strstr(w->why, "36500d"));
	v.retention_s = 5;
	v.max_bytes = 5;
	assert_int_equal(create(w, &v, NULL), -EINVAL);
	v.max_bytes = 1 << 20;
	assert_int_equal(create(w, &v, NULL), 0);
	assert_string_equal(show_volume(w, "good")->compression, "zstd:3");
}

static void only_the_fields_named_are_set(void **state)
{
	struct world *w = *state;
	Wire__VolumeSetRequest request = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = volume_named("training"), *now;
	char *fields[] = { "retention", "consistency", "block_size" };

	v.retention_s = 99;
	v.relaxed = true;
	v.max_files = 5;
	request.volume = &v;
	request.fields = fields;
	request.n_fields = 2;
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_SET, &request, NULL), 0);
	now = show_volume(w, "training");
	assert_int_equal(now->retention_s, 99);
	assert_true(now->relaxed);
	assert_int_equal(now->max_files, 0);
	request.n_fields = 3;
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_SET, &request, NULL), -EINVAL);
	assert_non_null(strstr(w->why, "fixed"));
	fields[2] = "colour";
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_SET, &request, NULL), -EINVAL);
	assert_non_null(strstr(w->why, "compression, retention"));
	v.name = "nothere";
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_SET, &request, NULL), -ENOENT);
}

static void a_limit_on_files_is_kept(void **state)
{
	struct world *w = *state;
	Wire__VolumeSetRequest request = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = volume_named("training");
	char *field = "max_files";
	struct attr t;

	v.max_files = 2;
	request.volume = &v;
	request.fields = &field;
	request.n_fields = 1;
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_SET, &request, NULL), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "a", NULL), 0);
	assert_int_equal(do_tmpfile(w, ROOT_INODE, &t), 0);
	assert_int_equal(do_directory(w, ROOT_INODE, "b", NULL), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "c", NULL), -EDQUOT);
	assert_int_equal(do_link(w, t.inode, ROOT_INODE, "c", NULL), -EDQUOT);
	assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "c", NULL), 0);
}

static void a_mounted_volume_is_not_deleted(void **state)
{
	struct world *w = *state;
	Wire__VolumeNameRequest request = WIRE__VOLUME_NAME_REQUEST__INIT;
	Wire__SessionEnd end = WIRE__SESSION_END__INIT;

	request.name = "training";
	act_as_administrator(w);
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_DELETE, &request, NULL), -EBUSY);
	assert_non_null(strstr(w->why, "testhost"));
	assert_non_null(strstr(w->why, "/mnt/training"));
	end.session = SESSION;
	assert_int_equal(world_mutate(w, WIRE__OP__SESSION_END, &end, NULL), 0);
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_DELETE, &request, NULL), 0);
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_DELETE, &request, NULL), -ENOENT);
}

static int volumes_listed(struct world *w)
{
	Wire__Empty empty = WIRE__EMPTY__INIT;
	Wire__VolumeListReply *reply;

	assert_int_equal(world_read(w, WIRE__OP__VOLUME_LIST, &empty, &reply), 0);
	return (int)reply->n_volumes;
}

static void a_deleted_volume_frees_its_name_at_once_and_its_inodes_bit_by_bit(void **state)
{
	struct world *w = *state;
	Wire__VolumeNameRequest request = WIRE__VOLUME_NAME_REQUEST__INIT;
	Wire__SessionBegin begin = WIRE__SESSION_BEGIN__INIT;
	Wire__SessionEnd end = WIRE__SESSION_END__INIT;
	struct reap_counts counts = { 0 };
	Wire__Volume v = volume_named("training");
	uint32_t old = w->who.volume;
	bool more;
	int passes = 0;

	for (int i = 0; i < 20; i++)
		assert_int_equal(do_file(w, ROOT_INODE, numbered_name(w, "f%d", i), NULL), 0);
	request.name = "training";
	act_as_administrator(w);
	end.session = SESSION;
	assert_int_equal(world_mutate(w, WIRE__OP__SESSION_END, &end, NULL), 0);
	assert_int_equal(world_mutate(w, WIRE__OP__VOLUME_DELETE, &request, NULL), 0);
	assert_int_equal(volumes_listed(w), 0);
	begin.session = 9;
	begin.volume = old;
	assert_int_equal(world_mutate(w, WIRE__OP__SESSION_BEGIN, &begin, NULL), -ENOENT);
	assert_int_equal(create(w, &v, NULL), 0);
	assert_int_equal(volumes_listed(w), 1);
	do {
		assert_int_equal(reap_pass(w->meta, w->now_ns, 10, &counts, &more), 0);
		passes++;
	} while (more);
	assert_true(passes > 2);
	assert_int_equal(counts.files, 21);
	w->who.volume = old;
	assert_int_equal(do_getattr(w, ROOT_INODE, NULL), -ENOENT);
	assert_true(show_volume(w, "training")->id > old);
}

static void asking_for_a_volume_that_is_not_there_says_so(void **state)
{
	struct world *w = *state;
	Wire__VolumeNameRequest request = WIRE__VOLUME_NAME_REQUEST__INIT;
	Wire__ErrorReply *reply = NULL;

	request.name = "missing";
	assert_int_equal(world_read(w, WIRE__OP__VOLUME_SHOW, &request, &reply), -ENOENT);
	assert_non_null(reply);
	assert_ptr_equal(reply->base.descriptor, &wire__error_reply__descriptor);
	assert_string_equal(reply->text, "there is no volume missing; epochfs volume list shows those there are");
}

static void volumes_and_their_counts_survive_a_restart(void **state)
{
	struct world *w = *state;
	Wire__Volume v = volume_named("second"), *made = NULL;

	assert_int_equal(create(w, &v, &made), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "a", NULL), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "b", NULL), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "b"), 0);
	world_stop(w);
	world_start(w);
	assert_int_equal(volumes_listed(w), 2);
	assert_int_equal(show_volume(w, "training")->used_files, 1);
	assert_int_equal(show_volume(w, "training")->trash_files, 1);
	assert_int_equal(show_volume(w, "training")->sessions, 1);
	assert_int_equal(show_volume(w, "second")->used_files, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_volume_has_defaults_and_a_root),
		TEST(wrong_values_name_the_allowed_range),
		TEST(only_the_fields_named_are_set),
		TEST(a_limit_on_files_is_kept),
		TEST(a_mounted_volume_is_not_deleted),
		TEST(a_deleted_volume_frees_its_name_at_once_and_its_inodes_bit_by_bit),
		TEST(asking_for_a_volume_that_is_not_there_says_so),
		TEST(volumes_and_their_counts_survive_a_restart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
