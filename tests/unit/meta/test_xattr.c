#include "filling.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>

static int set(struct world *w, uint64_t inode, const char *name, const void *value, size_t size, uint32_t flags)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of(name);
	q.value = (ProtobufCBinaryData){ size, (uint8_t *)value };
	q.flags = flags;
	return world_mutate(w, WIRE__OP__SETXATTR, &q, NULL);
}

static int get(struct world *w, uint64_t inode, const char *name, Wire__BytesReply **reply)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of(name);
	return world_read(w, WIRE__OP__GETXATTR, &q, reply);
}

static int drop(struct world *w, uint64_t inode, const char *name)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of(name);
	return world_mutate(w, WIRE__OP__REMOVEXATTR, &q, NULL);
}

static void assert_value(struct world *w, uint64_t inode, const char *name, const char *value)
{
	Wire__BytesReply *reply;
	assert_int_equal(get(w, inode, name, &reply), 0);
	assert_int_equal(reply->data.len, strlen(value));
	assert_memory_equal(reply->data.data, value, strlen(value));
}

static size_t list_size(struct world *w, uint64_t inode)
{
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;
	Wire__BytesReply *reply;
	q.inode = inode;
	assert_int_equal(world_read(w, WIRE__OP__LISTXATTR, &q, &reply), 0);
	return reply->data.len;
}

static void attributes_are_set_read_listed_and_removed(void **state)
{
	struct world *w = *state;
	struct attr a, b, now;
	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "b", &b), 0);
	w->now_ns += NS_PER_S;
	assert_int_equal(set(w, a.inode, "user.one", "1", 1, 0), 0);
	assert_int_equal(set(w, a.inode, "trusted.two", "22", 2, 0), 0);
	assert_int_equal(set(w, a.inode, "security.three", "", 0, 0), 0);
	assert_int_equal(set(w, b.inode, "user.other", "x", 1, 0), 0);
	assert_value(w, a.inode, "user.one", "1");
	assert_value(w, a.inode, "security.three", "");
	assert_int_equal(do_getattr(w, a.inode, &now), 0);
	assert_true(now.flags & ATTR_HAS_XATTR);
	assert_int_equal(now.ctime_ns, w->now_ns);
	assert_int_equal(now.mtime_ns, a.mtime_ns);
	assert_int_equal(now.version, a.version);

	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;
	Wire__BytesReply *names;
	q.inode = a.inode;
	assert_int_equal(world_read(w, WIRE__OP__LISTXATTR, &q, &names), 0);
	assert_int_equal(names->data.len, 15 + 12 + 9);
	assert_memory_equal(names->data.data, "security.three\0trusted.two\0user.one", names->data.len);

	assert_int_equal(drop(w, a.inode, "user.one"), 0);
	assert_int_equal(drop(w, a.inode, "user.one"), -ENODATA);
	assert_int_equal(drop(w, a.inode, "trusted.two"), 0);
	assert_int_equal(drop(w, a.inode, "security.three"), 0);
	assert_int_equal(do_getattr(w, a.inode, &now), 0);
	assert_false(now.flags & ATTR_HAS_XATTR);
	assert_int_equal(list_size(w, a.inode), 0);
	assert_int_equal(list_size(w, b.inode), 11);
	assert_clean(w);
}

static void create_and_replace_mean_what_they_say(void **state)
{
	struct world *w = *state;
	struct attr a;
	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(set(w, a.inode, "user.a", "1", 1, XATTR_REPLACE), -ENODATA);
	assert_int_equal(set(w, a.inode, "user.a", "1", 1, XATTR_CREATE), 0);
	assert_int_equal(set(w, a.inode, "user.a", "2", 1, XATTR_CREATE), -EEXIST);
	assert_int_equal(set(w, a.inode, "user.a", "3", 1, XATTR_REPLACE), 0);
	assert_int_equal(set(w, a.inode, "user.a", "4", 1, XATTR_REPLACE | XATTR_CREATE), -EINVAL);
	assert_int_equal(set(w, a.inode, "user.a", "4", 1, 8), -EINVAL);
	assert_value(w, a.inode, "user.a", "3");
}

static void only_known_namespaces_are_taken(void **state)
{
	struct world *w = *state;
	struct attr a, link, fifo;
	Wire__BytesReply *reply;
	char name[300];
	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	assert_int_equal(do_symlink(w, ROOT_INODE, "l", "a", &link), 0);
	assert_int_equal(do_create(w, ROOT_INODE, "p", S_IFIFO | 0644, &fifo), 0);
	assert_int_equal(set(w, a.inode, "system.nfs4_acl", "x", 1, 0), -EOPNOTSUPP);
	assert_int_equal(set(w, a.inode, "plain", "x", 1, 0), -EOPNOTSUPP);
	assert_int_equal(set(w, a.inode, "user.", "x", 1, 0), -EINVAL);
	assert_int_equal(set(w, a.inode, "", "x", 1, 0), -ERANGE);
	assert_int_equal(get(w, a.inode, "system.other", &reply), -EOPNOTSUPP);
	assert_int_equal(get(w, a.inode, "user.none", &reply), -ENODATA);
	assert_int_equal(get(w, 4711, "user.none", &reply), -ENOENT);
	assert_int_equal(set(w, link.inode, "user.a", "x", 1, 0), -EPERM);
	assert_int_equal(set(w, fifo.inode, "user.a", "x", 1, 0), -EPERM);
	assert_int_equal(set(w, link.inode, "trusted.a", "x", 1, 0), 0);
	memset(name, 'n', sizeof(name));
	memcpy(name, "user.", 5);
	name[255] = 0;
	assert_int_equal(set(w, a.inode, name, "x", 1, 0), 0);
	name[255] = 'n';
	name[256] = 0;
	assert_int_equal(set(w, a.inode, name, "x", 1, 0), -ERANGE);
	assert_clean(w);
}

static void values_and_lists_are_bounded(void **state)
{
	struct world *w = *state;
	struct attr a;
	char *value = malloc(65537), name[256];
	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	memset(value, 'v', 65537);
	assert_int_equal(set(w, a.inode, "user.large", value, 65537, 0), -E2BIG);
	assert_int_equal(set(w, a.inode, "user.large", value, 65536, 0), 0);
	int r = 0;
	for (int i = 0; r == 0 && i < 300; i++) {
		snprintf(name, sizeof(name), "user.%0250d", i);
		r = set(w, a.inode, name, "x", 1, 0);
	}
	assert_int_equal(r, -ENOSPC);
	size_t size = list_size(w, a.inode);
	assert_true(size <= 65536 && size > 65536 - 300);
	assert_int_equal(set(w, a.inode, "user.large", "small", 5, XATTR_REPLACE), 0);
	free(value);
	assert_clean(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(attributes_are_set_read_listed_and_removed),
		TEST(create_and_replace_mean_what_they_say),
		TEST(only_known_namespaces_are_taken),
		TEST(values_and_lists_are_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
