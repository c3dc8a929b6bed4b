/* Grants: who may keep what of single directories and files, over raw connections. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "company.h"

/* ---- Files ---- */

static void a_file_nobody_has_is_granted_as_it_is_wanted(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t one, two;

	company_open(f, FOR_EVER_MS, m, 2);
	one = make_file(&m[0], "one");
	two = make_file(&m[0], "two");
	assert_int_equal(open_file(&m[0], one, NONE), NONE);
	assert_int_equal(open_file(&m[0], one, READ), READ);
	assert_int_equal(open_file(&m[1], one, READ), READ); /* any number of readers */
	assert_int_equal(open_file(&m[0], two, WRITE), WRITE);
	assert_int_equal(open_file(&m[0], two, READ), WRITE); /* what it has is more */
	assert_int_equal(open_file(&m[1], two, READ), NONE);  /* an open never waits */
	assert_int_equal(open_file(&m[1], two, WRITE), NONE);
	assert_int_equal(open_file(&m[0], one, WRITE), NONE);
	company_close(m, 2);
}

static void whoever_makes_a_file_and_leaves_it_open_may_write_to_it(void **state)
{
	struct fixture *f = *state;
	Wire__CreateRequest q = create_request(ROOT, "new", S_IFREG | 0644);
	const struct attr *made;
	Wire__Grant grant;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	q.open = true;
	assert_int_equal(mutate(&m[0], WIRE__OP__CREATE, &q), 0);
	made = entry(&m[0], &grant);
	assert_int_equal(grant, WRITE);
	assert_int_equal(open_file(&m[1], made->inode, READ), NONE);
	company_close(m, 2);
}

static void a_reader_waits_for_the_writer_who_goes_on_reading(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, recall;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	listen_on(&m[0]);
	want_send(&m[1], file, READ);
	recall = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	listen_on(&m[0]); /* it has heard of it, which is not the same as having done it */
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	assert_int_equal(want(&m[0], file, READ), NONE); /* asked back, so answered at once and without */
	give_back(&m[0], file, READ, recall);
	assert_int_equal(want_got(&m[1]), READ);
	assert_int_equal(want(&m[0], file, READ), READ);

	/* Writing is for one alone. */
	want_send(&m[1], file, WRITE);
	recall = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	give_back(&m[0], file, NONE, recall);
	assert_int_equal(want_got(&m[1]), WRITE);
	assert_int_equal(open_file(&m[0], file, READ), NONE);
	company_close(m, 2);
}

static void a_return_that_comes_again_takes_nothing_away(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, first, second;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	listen_on(&m[0]);
	want_send(&m[1], file, READ);
	first = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	give_back(&m[0], file, READ, first);
	assert_int_equal(want_got(&m[1]), READ);

	give_back(&m[0], file, NONE, first);
	listen_on(&m[0]);
	want_send(&m[1], file, WRITE);
	second = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE); /* so it had READ still */
	assert_true(second > first);
	give_back(&m[0], file, NONE, first);
	give_back(&m[0], file, NONE, second + 1);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	give_back(&m[0], file, NONE, second);
	assert_int_equal(want_got(&m[1]), WRITE);
	company_close(m, 2);
}

static void a_recall_grows_when_somebody_wants_more(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];
	uint64_t file, weak, strong;

	company_open(f, FOR_EVER_MS, m, 3);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	listen_on(&m[0]);
	want_send(&m[1], file, READ);
	weak = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	listen_on(&m[0]);
	chmod_send(&m[2], file, 0600);
	strong = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE);
	assert_true(strong > weak);
	give_back(&m[0], file, READ, weak); /* that would have been enough for the reader */
	assert_false(answered_within(&m[2].talk, A_WHILE_MS));
	assert_false(answered_within(&m[1].talk, 0));
	give_back(&m[0], file, READ, strong); /* nothing may stay, whatever is said */
	assert_int_equal(raw_receive(&m[2].talk, WIRE__OP__SETATTR), 0);
	assert_int_equal(want_got(&m[1]), READ);
	assert_int_equal(open_file(&m[0], file, WRITE), NONE);
	company_close(m, 3);
}

static void who_waits_longer_is_served_first(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];
	uint64_t file, recall;

	company_open(f, FOR_EVER_MS, m, 3);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, READ), READ);
	listen_on(&m[0]);
	want_send(&m[1], file, WRITE);
	recall = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE);
	want_send(&m[2], file, READ); /* the one who has it now would not be in the way */
	assert_false(answered_within(&m[2].talk, A_WHILE_MS));
	assert_int_equal(open_file(&m[0], file, READ), NONE);
	listen_on(&m[1]);
	give_back(&m[0], file, NONE, recall);
	assert_int_equal(want_got(&m[1]), WRITE);
	recall = expect_recall(&m[1], file, WIRE__RECALL_KIND__RECALL_WRITE); /* then it is the reader's turn */
	give_back(&m[1], file, READ, recall);
	assert_int_equal(want_got(&m[2]), READ);
	company_close(m, 3);
}

static void a_close_gives_the_grant_back_but_not_a_late_one(void **state)
{
	struct fixture *f = *state;
	Wire__CloseRequest q = WIRE__CLOSE_REQUEST__INIT;
	struct mount m[2];
	uint64_t file, number;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, READ), READ);
	number = m[0].mutations;
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	q.inodes = &file;
	q.n_inodes = 1;
	q.number = number;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__CLOSE, 0, 0, &q), 0);
	assert_int_equal(open_file(&m[1], file, READ), NONE);
	q.number = m[0].mutations;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__CLOSE, 0, 0, &q), 0);
	assert_int_equal(open_file(&m[1], file, READ), READ);
	company_close(m, 2);
}

static void the_end_of_a_session_lets_those_who_wait_go_on(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 3);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	want_send(&m[1], file, WRITE);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	assert_int_equal(mutate(&m[0], WIRE__OP__GOODBYE, NULL), 0);
	assert_int_equal(want_got(&m[1]), WRITE);
	/* And one who waits and goes away is in nobody's way afterwards. */
	want_send(&m[2], file, READ);
	listen_on(&m[1]);
	expect_recall(&m[1], file, WIRE__RECALL_KIND__RECALL_WRITE);
	raw_close(&m[2].talk);
	give_back(&m[1], file, NONE, m[1].done);
	AWAIT(want(&m[1], file, WRITE) == WRITE);
	mount_close(&m[0]);
	mount_close(&m[1]);
	raw_close(&m[2].lease);
}

/* ---- Directories ---- */

static void a_name_is_made_after_others_have_forgotten_the_directory(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];

	company_open(f, FOR_EVER_MS, m, 3);
	assert_true(list(&m[0], ROOT));
	assert_true(list(&m[1], ROOT));
	listen_on(&m[0]);
	create_send(&m[1], ROOT, "file"); /* its own is not in its way */
	expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	/* While it is changed nobody gets it, and nobody waits for it either. */
	assert_false(list(&m[0], ROOT));
	assert_false(list(&m[2], ROOT));
	listen_on(&m[0]);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	assert_true(list(&m[2], ROOT));
	assert_true(list(&m[0], ROOT));
	company_close(m, 3);
}

static void a_recall_comes_again_until_it_is_said_to_be_done(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t recall;

	company_open(f, FOR_EVER_MS, m, 2);
	assert_true(list(&m[0], ROOT));
	listen_on(&m[0]);
	create_send(&m[1], ROOT, "file");
	recall = expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	for (int i = 0; i < 3; i++) {
		listen_with(&m[0], recall - 1, NULL);
		assert_int_equal(expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY), recall);
	}
	assert_false(answered_within(&m[1].talk, 0));
	listen_with(&m[0], recall, NULL);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	company_close(m, 2);
}

static void a_directory_that_changes_all_the_time_is_not_granted_for_a_while(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	char name[] = "0";
	int granted_times = 0;

	company_open(f, FOR_EVER_MS, m, 2);
	listen_on(&m[0]);
	for (; granted_times < 60 && list(&m[0], ROOT); granted_times++) {
		name[0]++;
		create_send(&m[1], ROOT, name);
		expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
		listen_on(&m[0]);
		assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	}
	assert_in_range(granted_times, 4, 59);
	AWAIT(list(&m[0], ROOT)); /* and when it is quiet again, it is */
	company_close(m, 2);
}

/* The chmod looks where the file is, waits for somebody, and meanwhile the file goes to another directory. */
static void a_file_that_was_moved_meanwhile_is_forgotten_where_it_is_now(void **state)
{
	struct fixture *f = *state;
	Wire__RenameRequest move = WIRE__RENAME_REQUEST__INIT;
	struct mount m[3];
	uint64_t from, to, file, recall;

	company_open(f, FOR_EVER_MS, m, 3);
	from = make(&m[0], ROOT, "from", S_IFDIR | 0755);
	to = make(&m[0], ROOT, "to", S_IFDIR | 0755);
	file = make(&m[0], from, "file", S_IFREG | 0644);
	assert_int_equal(open_file(&m[2], file, READ), READ);
	listen_on(&m[2]);
	chmod_send(&m[1], file, 0600);
	recall = expect_recall(&m[2], file, WIRE__RECALL_KIND__RECALL_FILE);

	move.old_parent = from;
	move.new_parent = to;
	move.old_name.data = move.new_name.data = (uint8_t *)"file";
	move.old_name.len = move.new_name.len = 4;
	assert_int_equal(mutate(&m[0], WIRE__OP__RENAME, &move), 0);
	assert_true(list(&m[0], to));
	listen_on(&m[0]);
	give_back(&m[2], file, NONE, recall);
	expect_recall(&m[0], to, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	listen_on(&m[0]);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__SETATTR), 0);
	assert_int_equal(look(&m[0], file)->mode, S_IFREG | 0600);
	assert_true(list(&m[2], from)); /* nothing is left marked as changing */
	assert_true(list(&m[2], to));
	company_close(m, 3);
}

static void what_is_restored_from_the_trash_is_forgotten_by_all_before(void **state)
{
	struct fixture *f = *state;
	Wire__TrashRestoreRequest restore = WIRE__TRASH_RESTORE_REQUEST__INIT;
	Wire__VolumeSetRequest set = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__HelloRequest administrate = WIRE__HELLO_REQUEST__INIT;
	Wire__NameRequest name = WIRE__NAME_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *field = "retention";
	struct raw admin;
	struct mount m[2];
	uint64_t folder;

	company_open(f, FOR_EVER_MS, m, 2);
	raw_open(f, &admin);
	administrate.version = PROTOCOL_VERSION;
	assert_int_equal(raw_ask(&admin, WIRE__OP__HELLO, 0, 0, &administrate), 0);
	v.name = "training";
	v.retention_s = 3600;
	set.volume = &v;
	set.fields = &field;
	set.n_fields = 1;
	assert_int_equal(raw_ask(&admin, WIRE__OP__VOLUME_SET, 0, 0, &set), 0);

	folder = make(&m[0], ROOT, "folder", S_IFDIR | 0755);
	restore.volume = "training";
	restore.inode = make(&m[0], folder, "file", S_IFREG | 0644);
	name.parent = folder;
	name.name.data = (uint8_t *)"file";
	name.name.len = 4;
	assert_int_equal(mutate(&m[0], WIRE__OP__UNLINK, &name), 0);
	assert_true(list(&m[1], folder));
	listen_on(&m[1]);
	raw_send(&admin, WIRE__OP__TRASH_RESTORE, 0, 0, &restore);
	expect_recall(&m[1], folder, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&admin, A_WHILE_MS));
	assert_int_equal(raw_ask(&m[1].talk, WIRE__OP__LOOKUP, 0, 0, &name), ENOENT);
	listen_on(&m[1]);
	assert_int_equal(raw_receive(&admin, WIRE__OP__TRASH_RESTORE), 0);
	assert_int_equal(raw_ask(&m[1].talk, WIRE__OP__LOOKUP, 0, 0, &name), 0);
	assert_true(list(&m[1], folder));
	raw_close(&admin);
	company_close(m, 2);
}

/* ---- Asking a writer ---- */

static void a_writer_is_asked_for_the_size_and_stores_nothing(void **state)
{
	struct fixture *f = *state;
	Wire__Written written = WIRE__WRITTEN__INIT;
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;
	const struct attr *a;
	struct mount m[2];
	uint64_t recall;

	company_open(f, FOR_EVER_MS, m, 2);
	q.inode = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], q.inode, WRITE), WRITE);
	for (int unstored = 0; unstored < 2; unstored++) {
		if (!unstored)
			listen_on(&m[0]);
		raw_send(&m[1].talk, WIRE__OP__GETATTR, 0, 0, &q);
		recall = expect_recall(&m[0], q.inode, WIRE__RECALL_KIND__RECALL_TELL);
		assert_false(answered_within(&m[1].talk, A_WHILE_MS));
		written.inode = q.inode;
		written.unstored = unstored;
		written.size = 12345;
		written.mtime_ns = 77;
		listen_with(&m[0], recall, &written);
		assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__GETATTR), 0);
		a = entry(&m[1], NULL);
		assert_true(a->flags & ATTR_BEING_WRITTEN);
		assert_int_equal(a->size, unstored ? 12345 : 0);
		assert_int_equal(a->mtime_ns == 77, unstored);
	}
	assert_int_equal(look(&m[0], q.inode)->size, 0); /* the writer itself is told what is stored */
	company_close(m, 2);
}

static void a_writer_that_does_not_answer_is_not_asked_for_ever(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	assert_int_equal(look(&m[1], file)->size, 0);
	assert_int_equal(open_file(&m[1], file, WRITE), WRITE); /* it has lost it for that */
	company_close(m, 2);
}

/* ---- Silent ones ---- */

static void a_silent_writer_loses_the_file_and_may_not_store_any_more(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, before;
	int64_t began = clock_steady_ns();

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	assert_int_equal(commit_size(&m[0], file, 100, before), 0);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	assert_true(clock_steady_ns() - began >= SHORT_MS * NS_PER_MS);

	assert_int_equal(commit_size(&m[0], file, 200, before), ESTALE);
	assert_int_equal(look(&m[1], file)->size, 100);
	listen_on(&m[0]);
	hear(&m[0]);
	assert_true(m[0].revoked > before);
	assert_true(m[0].number >= m[0].revoked);
	/* The other one is silent as well by now: under the new number all is as if nothing had been. */
	assert_int_equal(want(&m[0], file, WRITE), WRITE);
	assert_int_equal(commit_size(&m[0], file, 300, before), ESTALE);
	assert_int_equal(commit_size(&m[0], file, 300, m[0].number), 0);
	company_close(m, 2);
}

/* Heard of, but that is all. */
static void say_something(struct mount *m, uint64_t seen)
{
	Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;

	/* A state it has not acted upon is answered at once. */
	q.done = m->done;
	q.seen = seen - 1;
	raw_send(&m->lease, WIRE__OP__LEASE, 0, 0, &q);
	hear(m);
}

/* Those who wait may give up and ask again: it is not given its time anew for that. */
static void one_that_answers_but_never_returns_the_file_loses_it_in_the_end(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];
	uint64_t file, before;
	int64_t asked;

	company_open(f, SHORT_MS, m, 3);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	want_send(&m[1], file, READ);
	for (int i = 0; i < 12; i++) {
		assert_false(answered_within(&m[1].talk, SHORT_MS / 4));
		say_something(&m[0], before);
	}
	mount_close(&m[1]);
	asked = clock_steady_ns();
	want_send(&m[2], file, READ);
	while (!answered_within(&m[2].talk, SHORT_MS / 4))
		say_something(&m[0], before);
	assert_int_equal(want_got(&m[2]), READ);
	assert_true(clock_steady_ns() - asked < 5 * SHORT_MS * NS_PER_MS);
	assert_int_equal(commit_size(&m[0], file, 200, before), ESTALE);
	mount_close(&m[0]);
	mount_close(&m[2]);
}

static void a_silent_one_that_is_in_nobodys_way_keeps_what_it_has(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, folder;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	folder = make(&m[0], ROOT, "folder", S_IFDIR | 0755);
	assert_true(list(&m[1], folder));
	make(&m[0], folder, "other", S_IFREG | 0644); /* takes the lease's time: the other one says nothing */
	assert_int_equal(commit_size(&m[0], file, 100, m[0].number), 0);
	company_close(m, 2);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(a_file_nobody_has_is_granted_as_it_is_wanted),
		WITH_SERVER(whoever_makes_a_file_and_leaves_it_open_may_write_to_it),
		WITH_SERVER(a_reader_waits_for_the_writer_who_goes_on_reading),
		WITH_SERVER(a_return_that_comes_again_takes_nothing_away),
		WITH_SERVER(a_recall_grows_when_somebody_wants_more),
		WITH_SERVER(who_waits_longer_is_served_first),
		WITH_SERVER(a_close_gives_the_grant_back_but_not_a_late_one),
		WITH_SERVER(the_end_of_a_session_lets_those_who_wait_go_on),
		WITH_SERVER(a_name_is_made_after_others_have_forgotten_the_directory),
		WITH_SERVER(a_recall_comes_again_until_it_is_said_to_be_done),
		WITH_SERVER(a_directory_that_changes_all_the_time_is_not_granted_for_a_while),
		WITH_SERVER(a_file_that_was_moved_meanwhile_is_forgotten_where_it_is_now),
		WITH_SERVER(what_is_restored_from_the_trash_is_forgotten_by_all_before),
		WITH_SERVER(a_writer_is_asked_for_the_size_and_stores_nothing),
		WITH_SERVER(a_writer_that_does_not_answer_is_not_asked_for_ever),
		WITH_SERVER(a_silent_writer_loses_the_file_and_may_not_store_any_more),
		WITH_SERVER(one_that_answers_but_never_returns_the_file_loses_it_in_the_end),
		WITH_SERVER(a_silent_one_that_is_in_nobodys_way_keeps_what_it_has),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
