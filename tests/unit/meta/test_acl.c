#include "filling.h"
#include "meta/acl.h"

enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, GROUP = 8, MASK = 16, OTHER = 32 };

struct entry {
	uint16_t tag, perm;
	uint32_t id;
};
#define NONE UINT32_MAX

struct packed {
	uint8_t data[4 + 8 * 16];
	size_t size;
};

static struct packed pack(const struct entry *entries, size_t count)
{
	struct packed p = { .size = 4 + 8 * count };
	put_le32(p.data, 2);
	for (size_t i = 0; i < count; i++) {
		put_le16(p.data + 4 + 8 * i, entries[i].tag);
		put_le16(p.data + 6 + 8 * i, entries[i].perm);
		put_le32(p.data + 8 + 8 * i, entries[i].id);
	}
	return p;
}
#define ACL(...) pack((struct entry[]){ __VA_ARGS__ }, sizeof((struct entry[]){ __VA_ARGS__ }) / sizeof(struct entry))

static int set_as(struct world *w, uint64_t inode, const char *name, struct packed p, bool kill_sgid)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of(name);
	q.value = (ProtobufCBinaryData){ p.size, p.data };
	q.kill_sgid = kill_sgid;
	return world_mutate(w, WIRE__OP__SETXATTR, &q, NULL);
}
static int set(struct world *w, uint64_t inode, struct packed p) { return set_as(w, inode, ACL_ACCESS_NAME, p, false); }
static int set_default(struct world *w, uint64_t inode, struct packed p) { return set_as(w, inode, ACL_DEFAULT_NAME, p, false); }

static int get(struct world *w, uint64_t inode, const char *name, Wire__BytesReply **reply)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of(name);
	return world_read(w, WIRE__OP__GETXATTR, &q, reply);
}

static void assert_acl(struct world *w, uint64_t inode, const char *name, struct packed expected)
{
	Wire__BytesReply *reply;
	assert_int_equal(get(w, inode, name, &reply), 0);
	assert_int_equal(reply->data.len, expected.size);
	assert_memory_equal(reply->data.data, expected.data, expected.size);
}

static void assert_none(struct world *w, uint64_t inode, const char *name)
{
	Wire__BytesReply *reply;
	assert_int_equal(get(w, inode, name, &reply), -ENODATA);
}

static int drop(struct world *w, uint64_t inode, const char *name)
{
	Wire__XattrRequest q = WIRE__XATTR_REQUEST__INIT;
	q.inode = inode;
	q.name = bytes_of(name);
	return world_mutate(w, WIRE__OP__REMOVEXATTR, &q, NULL);
}

static struct attr attr_of(struct world *w, uint64_t inode)
{
	struct attr a;
	assert_int_equal(do_getattr(w, inode, &a), 0);
	return a;
}

static struct attr create(struct world *w, uint64_t parent, const char *name, uint32_t mode, uint32_t umask)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;
	Wire__EntryReply *reply;
	struct attr a;
	q.parent = parent;
	q.name = bytes_of(name);
	q.mode = mode;
	q.umask = umask;
	q.exclusive = true;
	if (S_ISLNK(mode))
		q.target = bytes_of("target");
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &q, &reply), 0);
	assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, &a), 0);
	return a;
}

static void chmod_to(struct world *w, uint64_t inode, uint32_t mode)
{
	Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;
	q.inode = inode;
	q.valid = SET_MODE;
	q.mode = mode;
	assert_int_equal(world_mutate(w, WIRE__OP__SETATTR, &q, NULL), 0);
}

static void an_access_acl_sets_the_mode(void **state)
{
	struct world *w = *state;
	struct attr a = create(w, ROOT_INODE, "a", S_IFREG | 02600, 0);
	struct packed acl = ACL({ USER_OBJ, 6, NONE }, { USER, 7, 1001 }, { GROUP_OBJ, 4, NONE }, { MASK, 5, NONE },
				{ OTHER, 1, NONE });
	assert_int_equal(set(w, a.inode, acl), 0);
	assert_acl(w, a.inode, ACL_ACCESS_NAME, acl);
	struct attr now = attr_of(w, a.inode);
	assert_int_equal(now.mode, S_IFREG | 02651); /* the group bits are the mask */
	assert_true(now.flags & ATTR_HAS_ACL);
	assert_int_equal(set_as(w, a.inode, ACL_ACCESS_NAME, acl, true), 0);
	assert_int_equal(attr_of(w, a.inode).mode, S_IFREG | 0651);
	assert_int_equal(drop(w, a.inode, ACL_ACCESS_NAME), 0);
	now = attr_of(w, a.inode);
	assert_int_equal(now.mode, S_IFREG | 0651);
	assert_int_equal(now.flags & (ATTR_HAS_ACL | ATTR_HAS_XATTR), 0);
	assert_int_equal(drop(w, a.inode, ACL_ACCESS_NAME), 0); /* as the kernel has it */
	assert_clean(w);
}

static void an_acl_that_says_no_more_than_the_mode_is_not_kept(void **state)
{
	struct world *w = *state;
	struct attr a = create(w, ROOT_INODE, "a", S_IFREG | 0600, 0);
	struct packed long_one = ACL({ USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }, { MASK, 4, NONE }, { OTHER, 0, NONE });
	assert_int_equal(set(w, a.inode, long_one), 0);
	assert_acl(w, a.inode, ACL_ACCESS_NAME, long_one);
	assert_int_equal(set(w, a.inode, ACL({ USER_OBJ, 7, 5 }, { GROUP_OBJ, 5, 5 }, { OTHER, 4, 5 })), 0);
	assert_none(w, a.inode, ACL_ACCESS_NAME);
	struct attr now = attr_of(w, a.inode);
	assert_int_equal(now.mode, S_IFREG | 0754);
	assert_int_equal(now.flags & ATTR_HAS_ACL, 0);
	assert_clean(w);
}

static void broken_acls_are_refused_as_the_kernel_does(void **state)
{
	struct world *w = *state;
	struct attr a = create(w, ROOT_INODE, "a", S_IFREG | 0600, 0), link = create(w, ROOT_INODE, "l", S_IFLNK | 0777, 0);
	struct packed good = ACL({ USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }, { OTHER, 0, NONE });
	struct packed bad[] = {
		ACL({ USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }),                                     /* no other */
		ACL({ GROUP_OBJ, 4, NONE }, { USER_OBJ, 6, NONE }, { OTHER, 0, NONE }),                 /* order */
		ACL({ USER_OBJ, 6, NONE }, { USER, 6, 1 }, { GROUP_OBJ, 4, NONE }, { OTHER, 0, NONE }), /* no mask */
		ACL({ USER_OBJ, 8, NONE }, { GROUP_OBJ, 4, NONE }, { OTHER, 0, NONE }),                 /* permission */
		ACL({ USER_OBJ, 6, NONE }, { USER, 6, NONE }, { GROUP_OBJ, 4, NONE }, { MASK, 7, NONE },
		    { OTHER, 0, NONE }), /* nobody */
		ACL({ USER_OBJ, 6, NONE }, { USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }, { OTHER, 0, NONE }),
		ACL({ USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }, { OTHER, 0, NONE }, { OTHER, 0, NONE }),
		ACL({ USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }, { MASK, 7, NONE }, { GROUP, 7, 5 }, { OTHER, 0, NONE }),
		ACL({ USER_OBJ, 6, NONE }, { GROUP_OBJ, 4, NONE }, { 64, 0, NONE }),
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(set(w, a.inode, bad[i]), -EINVAL);
	struct packed cut = good;
	cut.size--;
	assert_int_equal(set(w, a.inode, cut), -EINVAL);
	cut.size = 3;
	assert_int_equal(set(w, a.inode, cut), -EINVAL);
	struct packed version = good;
	version.data[0] = 1;
	assert_int_equal(set(w, a.inode, version), -EOPNOTSUPP);
	assert_int_equal(set(w, link.inode, good), -EOPNOTSUPP);
	assert_int_equal(set_default(w, a.inode, good), -EACCES);
	struct packed empty = good;
	empty.size = 4;
	assert_int_equal(set_default(w, a.inode, empty), 0);
	assert_int_equal(drop(w, a.inode, ACL_DEFAULT_NAME), 0);
	assert_int_equal(attr_of(w, a.inode).mode, S_IFREG | 0600);
	assert_clean(w);
}

static void chmod_changes_the_mask_and_not_the_group(void **state)
{
	struct world *w = *state;
	struct attr a = create(w, ROOT_INODE, "a", S_IFREG | 0600, 0);
	assert_int_equal(set(w, a.inode,
			     ACL({ USER_OBJ, 7, NONE }, { USER, 7, 1001 }, { GROUP_OBJ, 4, NONE }, { GROUP, 6, 50 },
				 { MASK, 7, NONE }, { OTHER, 1, NONE })),
			 0);
	chmod_to(w, a.inode, 0640);
	assert_acl(w, a.inode, ACL_ACCESS_NAME,
		   ACL({ USER_OBJ, 6, NONE }, { USER, 7, 1001 }, { GROUP_OBJ, 4, NONE }, { GROUP, 6, 50 }, { MASK, 4, NONE },
		       { OTHER, 0, NONE }));
	assert_int_equal(attr_of(w, a.inode).mode, S_IFREG | 0640);
}

static void without_a_default_acl_the_umask_counts(void **state)
{
	struct world *w = *state;
	assert_int_equal(create(w, ROOT_INODE, "a", S_IFREG | 0666, 022).mode, S_IFREG | 0644);
	assert_int_equal(create(w, ROOT_INODE, "d", S_IFDIR | 01777, 027).mode, S_IFDIR | 01750);
	assert_int_equal(create(w, ROOT_INODE, "l", S_IFLNK | 0777, 077).mode, S_IFLNK | 0777);
}

static void a_default_acl_is_inherited(void **state)
{
	struct world *w = *state;
	struct attr d = create(w, ROOT_INODE, "d", S_IFDIR | 0755, 0);
	struct packed acl = ACL({ USER_OBJ, 7, NONE }, { USER, 7, 1001 }, { GROUP_OBJ, 5, NONE }, { MASK, 7, NONE },
				{ OTHER, 5, NONE });
	assert_int_equal(set_default(w, d.inode, acl), 0);
	assert_true(attr_of(w, d.inode).flags & ATTR_HAS_DEFAULT);
	assert_int_equal(attr_of(w, d.inode).mode, S_IFDIR | 0755);

	struct attr f = create(w, d.inode, "f", S_IFREG | 0640, 077); /* the umask does not count */
	assert_int_equal(f.mode, S_IFREG | 0640);
	assert_acl(w, f.inode, ACL_ACCESS_NAME,
		   ACL({ USER_OBJ, 6, NONE }, { USER, 7, 1001 }, { GROUP_OBJ, 5, NONE }, { MASK, 4, NONE }, { OTHER, 0, NONE }));
	assert_none(w, f.inode, ACL_DEFAULT_NAME);

	struct attr sub = create(w, d.inode, "sub", S_IFDIR | 0777, 077);
	assert_int_equal(sub.mode, S_IFDIR | 0775);
	assert_acl(w, sub.inode, ACL_DEFAULT_NAME, acl);
	assert_acl(w, sub.inode, ACL_ACCESS_NAME, acl);
	assert_true((sub.flags & (ATTR_HAS_ACL | ATTR_HAS_DEFAULT)) == (ATTR_HAS_ACL | ATTR_HAS_DEFAULT));

	struct attr link = create(w, d.inode, "l", S_IFLNK | 0777, 0);
	assert_int_equal(link.flags & ATTR_HAS_XATTR, 0);
	assert_clean(w);
}

static void a_short_default_acl_only_limits_the_mode(void **state)
{
	struct world *w = *state;
	struct attr d = create(w, ROOT_INODE, "d", S_IFDIR | 0755, 0);
	struct packed acl = ACL({ USER_OBJ, 7, NONE }, { GROUP_OBJ, 5, NONE }, { OTHER, 0, NONE });
	assert_int_equal(set_default(w, d.inode, acl), 0);
	assert_acl(w, d.inode, ACL_DEFAULT_NAME, acl);
	struct attr f = create(w, d.inode, "f", S_IFREG | 0666, 0);
	assert_int_equal(f.mode, S_IFREG | 0640);
	assert_none(w, f.inode, ACL_ACCESS_NAME);
	assert_int_equal(drop(w, d.inode, ACL_DEFAULT_NAME), 0);
	assert_int_equal(create(w, d.inode, "g", S_IFREG | 0666, 022).mode, S_IFREG | 0644);
	assert_clean(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_access_acl_sets_the_mode),
		TEST(an_acl_that_says_no_more_than_the_mode_is_not_kept),
		TEST(broken_acls_are_refused_as_the_kernel_does),
		TEST(chmod_changes_the_mask_and_not_the_group),
		TEST(without_a_default_acl_the_umask_counts),
		TEST(a_default_acl_is_inherited),
		TEST(a_short_default_acl_only_limits_the_mode),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
