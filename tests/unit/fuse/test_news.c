/* What the kernel is told of changes of a replica.  Its end of the device is __wrap_writev. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include "fuse/news.h"
#include "fuse/protocol.h"
#include "fuse/session.h"

#define HEARD_MAX 32

/* In the order they came: "name DIRECTORY/NAME", "attributes NODE", "content NODE". */
static char heard[HEARD_MAX][80];
static int count;
static uint64_t unmade; /* a node the kernel makes when it is asked to wait for a directory */

ssize_t __wrap_writev(int fd, const struct iovec *parts, int parts_count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int parts_count)
{
	const struct fuse_out_header *h = parts[0].iov_base;

	assert_int_equal(parts_count, 2);
	assert_int_equal(h->len, parts[0].iov_len + parts[1].iov_len);
	assert_true(count < HEARD_MAX);
	if (h->error == FUSE_NOTIFY_INVAL_ENTRY) {
		const struct fuse_notify_inval_entry_out *out = parts[1].iov_base;
		const char *name = (const char *)(out + 1);

		assert_int_equal(parts[1].iov_len, sizeof(*out) + out->namelen + 1);
		assert_int_equal(strlen(name), out->namelen);
		snprintf(heard[count++], sizeof(heard[0]), "name %llu/%s", (unsigned long long)out->parent, name);
		if (!strcmp(name, "/"))
			unmade = 0;
	} else {
		const struct fuse_notify_inval_inode_out *out = parts[1].iov_base;

		assert_int_equal(h->error, FUSE_NOTIFY_INVAL_INODE);
		assert_int_equal(out->len, 0);
		snprintf(heard[count++], sizeof(heard[0]), "%s %llu", out->off < 0 ? "attributes" : "content",
			 (unsigned long long)out->ino);
		if (out->ino == unmade) {
			errno = ENOENT;
			return -1;
		}
	}
	return (ssize_t)h->len;
}

static int up(void **state)
{
	struct session *s = calloc(1, sizeof(*s));

	if (!s || given_init(&s->given))
		return -1;
	s->root = 1;
	s->given.told = true;
	count = 0;
	unmade = 0;
	*state = s;
	return 0;
}

static int down(void **state)
{
	struct session *s = *state;

	given_free(&s->given);
	free(s);
	return 0;
}

static void tell(struct session *s, struct client_news news) { news_tell(s, &news, 1); }

static void assert_heard(int i, const char *text)
{
	assert_true(i < count);
	assert_string_equal(heard[i], text);
}

static void names_attributes_and_contents_are_forgotten(void **state)
{
	struct session *s = *state;
	const struct client_news news[] = {
		{ .inode = 5, .name = "f", .name_length = 1 },
		{ .inode = 7, .cover = 5 },
		{ .inode = 8, .cover = 5, .content = true },
	};

	news_tell(s, news, 3);
	assert_int_equal(count, 3);
	assert_heard(0, "name 5/f");
	assert_heard(1, "attributes 7");
	assert_heard(2, "content 8");
}

/* With --subdir the root is another inode. */
static void the_root_is_known_by_its_node(void **state)
{
	struct session *s = *state;

	s->root = 77;
	tell(s, (struct client_news){ .inode = 77, .name = "f", .name_length = 1 });
	tell(s, (struct client_news){ .inode = 77 });
	assert_heard(0, "name 1/f");
	assert_heard(1, "attributes 1");
}

/* An answer that was made before gives no leave once they are told. */
static void answers_on_their_way_may_not_be_kept(void **state)
{
	struct session *s = *state;
	uint64_t begun = given_begin(&s->given);
	struct given_leave leave = given_enter(&s->given, begun, 3600000);

	assert_int_equal(leave.name_ms, 3600000); /* for an hour, unlike others: it is told of all that changes */
	assert_int_equal(leave.attr_ms, 3600000);
	given_leave(&s->given);
	tell(s, (struct client_news){ .inode = 7 });
	leave = given_enter(&s->given, begun, 3600000);
	assert_int_equal(leave.name_ms, 0);
	assert_int_equal(leave.attr_ms, 0);
	given_leave(&s->given);
}

/* The kernel has the answer with its attributes, and no inode yet. */
static void an_inode_that_is_being_made_is_told_of_again(void **state)
{
	struct session *s = *state;

	given_note(&s->given, 7);
	unmade = 7;
	tell(s, (struct client_news){ .inode = 7, .cover = 5 });
	assert_int_equal(count, 3);
	assert_heard(0, "attributes 7");
	assert_heard(1, "name 5//");
	assert_heard(2, "attributes 7");
	/* One it was never told of needs none of that. */
	count = 0;
	unmade = 9;
	tell(s, (struct client_news){ .inode = 9, .cover = 5 });
	assert_int_equal(count, 1);
}

static void attributes_of_several_names_are_given_for_a_second(void **state)
{
	struct session *s = *state;
	struct attr a = { .mode = S_IFREG, .nlink = 2 };
	struct given_leave leave = { 60000, 60000 };

	assert_int_equal(given_of(&s->given, leave, &a).attr_ms, 1000);
	assert_int_equal(given_of(&s->given, leave, &a).name_ms, 60000);
	a.mode = S_IFDIR;
	assert_int_equal(given_of(&s->given, leave, &a).attr_ms, 60000);
	a = (struct attr){ .mode = S_IFREG, .nlink = 1 };
	assert_int_equal(given_of(&s->given, leave, &a).attr_ms, 60000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)
	const struct CMUnitTest tests[] = {
		TEST(names_attributes_and_contents_are_forgotten),
		TEST(the_root_is_known_by_its_node),
		TEST(answers_on_their_way_may_not_be_kept),
		TEST(an_inode_that_is_being_made_is_told_of_again),
		TEST(attributes_of_several_names_are_given_for_a_second),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
