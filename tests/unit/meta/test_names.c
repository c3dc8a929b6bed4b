#include "world.h"
#include <stdio.h>
#include <sys/sysmacros.h>
#include "meta/reap.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static void a_created_file_is_found_by_name_and_number(void **state)
{
	struct world *w = *state;
	struct attr made, found;

	assert_int_equal(do_file(w, ROOT_INODE, "a", &made), 0);
	assert_int_equal(made.nlink, 1);
	assert_int_equal(made.uid, 1000);
	assert_int_equal(made.btime_ns, START_NS);
	assert_int_equal(do_lookup(w, ROOT_INODE, "a", &found), 0);
	assert_attr_equal(&made, &found);
	assert_int_equal(do_getattr(w, made.inode, &found), 0);
	assert_attr_equal(&made, &found);
	assert_int_equal(do_lookup(w, ROOT_INODE, "b", &found), -ENOENT);
	assert_int_equal(show_volume(w, "training")->used_files, 1);
}

static void every_kind_of_inode_can_be_made(void **state)
{
	struct world *w = *state;
	static const uint32_t kinds[] = { S_IFREG, S_IFDIR, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK };
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;
	Wire__EntryReply *reply;
	struct attr a;
	char name[8];

	request.parent = ROOT_INODE;
	request.exclusive = true;
	request.rdev = makedev(8, 1);
	request.umask = 022;
	for (int i = 0; i < 6; i++) {
		snprintf(name, sizeof(name), "k%d", i);
		request.name = bytes_of(name);
		request.mode = kinds[i] | 0666;
		assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &request, &reply), 0);
		assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, &a), 0);
		assert_int_equal(a.mode, kinds[i] | 0644);
		assert_int_equal(a.rdev, i >= 4 ? makedev(8, 1) : 0);
	}
	request.name = bytes_of("none");
	request.mode = 0644;
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &request, NULL), -EINVAL);
}

static void a_symlink_keeps_its_target_through_changes(void **state)
{
	struct world *w = *state;
	char target[4097];
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	Wire__BytesReply *reply;
	struct attr a;

	memset(target, 'x', 4096);
	target[4096] = 0;
	assert_int_equal(do_symlink(w, ROOT_INODE, "long", target, NULL), -ENAMETOOLONG);
	assert_int_equal(do_symlink(w, ROOT_INODE, "empty", "", NULL), -EINVAL);
	target[4095] = 0;
	assert_int_equal(do_symlink(w, ROOT_INODE, "l", target, &a), 0);
	assert_int_equal(a.size, 4095);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "l2", &a), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "l", ROOT_INODE, "l3", 0), 0);
	request.inode = a.inode;
	assert_int_equal(world_read(w, WIRE__OP__READLINK, &request, &reply), 0);
	assert_int_equal(reply->data.len, 4095);
	assert_memory_equal(reply->data.data, target, 4095);
	request.inode = ROOT_INODE;
	assert_int_equal(world_read(w, WIRE__OP__READLINK, &request, &reply), -EINVAL);
}

static void impossible_names_are_refused(void **state)
{
	struct world *w = *state;
	static const char *const bad[] = { ".", "..", "a/b", "/" };
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;
	char name[300];

	for (int i = 0; i < 4; i++) {
		assert_int_equal(do_file(w, ROOT_INODE, bad[i], NULL), -EINVAL);
		assert_int_equal(do_unlink(w, ROOT_INODE, bad[i]), -EINVAL);
		assert_int_equal(do_rename(w, ROOT_INODE, bad[i], ROOT_INODE, "x", 0), -EINVAL);
	}
	memset(name, 'n', sizeof(name));
	name[256] = 0;
	assert_int_equal(do_file(w, ROOT_INODE, name, NULL), -ENAMETOOLONG);
	assert_int_equal(do_lookup(w, ROOT_INODE, name, NULL), -ENAMETOOLONG);
	name[255] = 0;
	assert_int_equal(do_file(w, ROOT_INODE, name, NULL), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, name, NULL), 0);
	request.parent = ROOT_INODE;
	request.mode = S_IFREG | 0644;
	request.name = (ProtobufCBinaryData){ 3, (uint8_t *)"a\0b" };
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &request, NULL), -EINVAL);
}

static void names_with_dots_lead_to_the_directory_and_its_parent(void **state)
{
	struct world *w = *state;
	struct attr d, e, a;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(do_directory(w, d.inode, "e", &e), 0);
	assert_int_equal(do_lookup(w, e.inode, ".", &a), 0);
	assert_int_equal(a.inode, e.inode);
	assert_int_equal(do_lookup(w, e.inode, "..", &a), 0);
	assert_int_equal(a.inode, d.inode);
	assert_int_equal(do_lookup(w, ROOT_INODE, "..", &a), 0);
	assert_int_equal(a.inode, ROOT_INODE);
	w->who.root = d.inode;
	assert_int_equal(do_lookup(w, d.inode, "..", &a), 0);
	assert_int_equal(a.inode, d.inode);
}

static void an_exclusive_create_refuses_and_a_plain_one_takes_what_is_there(void **state)
{
	struct world *w = *state;
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;
	Wire__EntryReply *reply;
	struct attr first, again;

	assert_int_equal(do_file(w, ROOT_INODE, "a", &first), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "a", NULL), -EEXIST);
	request.parent = ROOT_INODE;
	request.name = bytes_of("a");
	request.mode = S_IFREG | 0600;
	request.open = true;
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &request, &reply), 0);
	assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, &again), 0);
	assert_int_equal(again.inode, first.inode);
	assert_int_equal(again.mode, first.mode);
	assert_true(meta_is_open(w->meta, w->who.volume, first.inode));
	assert_int_equal(do_directory(w, ROOT_INODE, "d", NULL), 0);
	request.name = bytes_of("d");
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &request, &reply), -EEXIST);
}

static void a_directory_counts_its_subdirectories_as_links(void **state)
{
	struct world *w = *state;
	struct attr d, root;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(d.nlink, 2);
	assert_int_equal(do_directory(w, d.inode, "e", NULL), 0);
	assert_int_equal(do_file(w, d.inode, "f", NULL), 0);
	assert_int_equal(do_getattr(w, d.inode, &d), 0);
	assert_int_equal(d.nlink, 3);
	assert_int_equal(do_rmdir(w, d.inode, "e"), 0);
	assert_int_equal(do_getattr(w, d.inode, &d), 0);
	assert_int_equal(d.nlink, 2);
	assert_int_equal(do_getattr(w, ROOT_INODE, &root), 0);
	assert_int_equal(root.nlink, 3);
}

static void names_made_and_removed_change_the_times_of_the_directory(void **state)
{
	struct world *w = *state;
	struct attr d;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	w->now_ns += 5;
	assert_int_equal(do_file(w, d.inode, "f", NULL), 0);
	assert_int_equal(do_getattr(w, d.inode, &d), 0);
	assert_int_equal(d.mtime_ns, START_NS + 5);
	assert_int_equal(d.ctime_ns, START_NS + 5);
	w->now_ns += 5;
	assert_int_equal(do_unlink(w, d.inode, "f"), 0);
	assert_int_equal(do_getattr(w, d.inode, &d), 0);
	assert_int_equal(d.mtime_ns, START_NS + 10);
}

static void setgid_is_inherited_from_the_directory(void **state)
{
	struct world *w = *state;
	Wire__SetattrRequest set = WIRE__SETATTR_REQUEST__INIT;
	struct attr d, a;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	set.inode = d.inode;
	set.valid = SET_MODE | SET_GID;
	set.mode = 02775;
	set.gid = 77;
	assert_int_equal(world_mutate(w, WIRE__OP__SETATTR, &set, NULL), 0);
	assert_int_equal(do_file(w, d.inode, "f", &a), 0);
	assert_int_equal(a.gid, 77);
	assert_false(a.mode & S_ISGID);
	assert_int_equal(do_directory(w, d.inode, "e", &a), 0);
	assert_int_equal(a.gid, 77);
	assert_true(a.mode & S_ISGID);
}

static void a_file_lives_until_its_last_name_goes(void **state)
{
	struct world *w = *state;
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;
	Wire__RemovedReply *removed;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "b", &a), 0);
	assert_int_equal(a.nlink, 2);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "b", NULL), -EEXIST);
	request.parent = ROOT_INODE;
	request.name = bytes_of("a");
	assert_int_equal(world_mutate(w, WIRE__OP__UNLINK, &request, &removed), 0);
	assert_false(removed->gone);
	request.name = bytes_of("b");
	assert_int_equal(world_mutate(w, WIRE__OP__UNLINK, &request, &removed), 0);
	assert_true(removed->gone);
	assert_int_equal(removed->inode, a.inode);
	assert_int_equal(do_getattr(w, a.inode, &a), 0); /* in the trash, still there by number */
	assert_int_equal(a.nlink, 0);
	assert_true(a.flags & ATTR_TRASHED);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "c", NULL), -ENOENT);
	assert_int_equal(show_volume(w, "training")->used_files, 0);
	assert_int_equal(show_volume(w, "training")->trash_files, 1);
}

static void directories_cannot_be_linked_or_unlinked_and_files_not_rmdird(void **state)
{
	struct world *w = *state;
	struct attr d;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "f", NULL), 0);
	assert_int_equal(do_link(w, d.inode, ROOT_INODE, "e", NULL), -EPERM);
	assert_int_equal(do_unlink(w, ROOT_INODE, "d"), -EISDIR);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "f"), -ENOTDIR);
	assert_int_equal(do_file(w, d.inode, "x", NULL), 0);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "d"), -ENOTEMPTY);
	assert_int_equal(do_unlink(w, d.inode, "x"), 0);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "d"), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "d", NULL), -ENOENT);
}

static void nothing_can_be_made_in_a_removed_directory(void **state)
{
	struct world *w = *state;
	struct attr d, f;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "f", &f), 0);
	assert_int_equal(do_rmdir(w, ROOT_INODE, "d"), 0);
	assert_int_equal(do_file(w, d.inode, "x", NULL), -ENOENT);
	assert_int_equal(do_tmpfile(w, d.inode, NULL), -ENOENT);
	assert_int_equal(do_link(w, f.inode, d.inode, "x", NULL), -ENOENT);
	assert_int_equal(do_rename(w, ROOT_INODE, "f", d.inode, "x", 0), -ENOENT);
	assert_int_equal(count_names(w, d.inode), 0);
	assert_int_equal(do_file(w, f.inode, "x", NULL), -ENOTDIR);
	assert_int_equal(do_file(w, 4711, "x", NULL), -ENOENT);
}

static const void *one_more_link(struct world *w, int i, void *inode)
{
	Wire__LinkRequest *request = arena_take(&w->arena, sizeof(*request));

	wire__link_request__init(request);
	request->inode = *(uint64_t *)inode;
	request->parent = ROOT_INODE;
	request->name = bytes_of(numbered_name(w, "link%d", i));
	return request;
}

static void links_end_at_the_limit(void **state)
{
	struct world *w = *state;
	struct attr a;

	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(world_burst(w, WIRE__OP__LINK, 64999, one_more_link, &a.inode), 0);
	assert_int_equal(do_getattr(w, a.inode, &a), 0);
	assert_int_equal(a.nlink, 65000);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "beyond", NULL), -EMLINK);
	assert_int_equal(do_unlink(w, ROOT_INODE, "link7"), 0);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "beyond", NULL), 0);
	assert_int_equal(count_names(w, ROOT_INODE), 65000);
}

static void a_nameless_file_is_open_and_can_be_given_a_name(void **state)
{
	struct world *w = *state;
	struct reap_counts counts = { 0 };
	struct attr a;
	bool more;

	assert_int_equal(do_tmpfile(w, ROOT_INODE, &a), 0);
	assert_int_equal(a.nlink, 0);
	assert_true(meta_is_open(w->meta, w->who.volume, a.inode));
	assert_int_equal(reap_pass(w->meta, w->now_ns, 0, &counts, &more), 0);
	assert_int_equal(counts.files, 0);
	assert_int_equal(do_link(w, a.inode, ROOT_INODE, "named", &a), 0);
	assert_int_equal(a.nlink, 1);
	assert_false(a.flags & (ATTR_TRASHED | ATTR_NO_TRASH));
	meta_closed(w->meta, SESSION, w->who.volume, a.inode, 0);
	assert_int_equal(reap_pass(w->meta, w->now_ns, 0, &counts, &more), 0);
	assert_int_equal(counts.files, 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "named", &a), 0);
	assert_int_equal(show_volume(w, "training")->used_files, 1);
	assert_int_equal(show_volume(w, "training")->trash_files, 0);
}

static void a_nameless_file_goes_when_it_is_closed(void **state)
{
	struct world *w = *state;
	struct reap_counts counts = { 0 };
	struct attr a;
	bool more;

	assert_int_equal(do_tmpfile(w, ROOT_INODE, &a), 0);
	meta_closed(w->meta, SESSION, w->who.volume, a.inode, 0);
	assert_int_equal(reap_pass(w->meta, w->now_ns, 0, &counts, &more), 0);
	assert_int_equal(counts.files, 1);
	assert_int_equal(do_getattr(w, a.inode, NULL), -ENOENT);
	assert_int_equal(show_volume(w, "training")->trash_files, 0);
}

static void a_path_is_resolved_without_following_links(void **state)
{
	struct world *w = *state;
	struct attr d, f, a;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(do_file(w, d.inode, "f", &f), 0);
	assert_int_equal(do_symlink(w, ROOT_INODE, "l", "d", NULL), 0);
	assert_int_equal(do_resolve(w, "/d//./f", &a), 0);
	assert_int_equal(a.inode, f.inode);
	assert_int_equal(do_resolve(w, "d/f/", &a), 0);
	assert_int_equal(do_resolve(w, "", &a), 0);
	assert_int_equal(a.inode, ROOT_INODE);
	assert_int_equal(do_resolve(w, "l/f", &a), -ELOOP);
	assert_int_equal(do_resolve(w, "l", &a), 0);
	assert_true(S_ISLNK(a.mode));
	assert_int_equal(do_resolve(w, "d/f/x", &a), -ENOTDIR);
	assert_int_equal(do_resolve(w, "d/x", &a), -ENOENT);
	assert_int_equal(do_resolve(w, "d/../d", &a), -EINVAL);
	w->who.root = d.inode;
	assert_int_equal(do_resolve(w, "f", &a), 0);
	assert_int_equal(a.inode, f.inode);
}

static void inode_numbers_are_never_used_twice(void **state)
{
	struct world *w = *state;
	struct reap_counts counts = { 0 };
	uint64_t last = 0;
	struct attr a;
	bool more;

	for (int i = 0; i < 5; i++) {
		assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
		assert_true(a.inode > last);
		last = a.inode;
		assert_int_equal(do_unlink(w, ROOT_INODE, "a"), 0);
		w->now_ns += 2 * 3600 * NS_PER_S;
		assert_int_equal(reap_pass(w->meta, w->now_ns, 0, &counts, &more), 0);
		assert_int_equal(counts.files, i + 1);
		world_stop(w);
		world_start(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_created_file_is_found_by_name_and_number),
		TEST(every_kind_of_inode_can_be_made),
		TEST(a_symlink_keeps_its_target_through_changes),
		TEST(impossible_names_are_refused),
		TEST(names_with_dots_lead_to_the_directory_and_its_parent),
		TEST(an_exclusive_create_refuses_and_a_plain_one_takes_what_is_there),
		TEST(a_directory_counts_its_subdirectories_as_links),
		TEST(names_made_and_removed_change_the_times_of_the_directory),
		TEST(setgid_is_inherited_from_the_directory),
		TEST(a_file_lives_until_its_last_name_goes),
		TEST(directories_cannot_be_linked_or_unlinked_and_files_not_rmdird),
		TEST(nothing_can_be_made_in_a_removed_directory),
		TEST(links_end_at_the_limit),
		TEST(a_nameless_file_is_open_and_can_be_given_a_name),
		TEST(a_nameless_file_goes_when_it_is_closed),
		TEST(a_path_is_resolved_without_following_links),
		TEST(inode_numbers_are_never_used_twice),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
