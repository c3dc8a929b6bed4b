/* Grants of mounts that come back after a restart, and of those who say what they should not. */
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
#include "server/session.h"

/* ---- After a restart ---- */

static void after_a_restart_a_grant_is_what_its_holder_says(void **state)
{
	struct fixture *f = *state;
	uint32_t write[] = { WRITE };
	struct mount m[2];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	fixture_stop(f);
	fixture_start(f);
	mount_again(f, &m[1]);
	assert_int_equal(reclaim(&m[1], NULL, 0, NULL, 0), 0);
	want_send(&m[1], file, READ);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS)); /* who knows what the other one has */
	mount_again(f, &m[0]);
	assert_int_equal(reclaim(&m[0], &file, 1, write, 1), 0);
	listen_on(&m[0]);
	hear(&m[0]); /* the number of the lease */
	if (!m[0].told->n_recalls) {
		listen_on(&m[0]);
		expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	}
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	give_back(&m[0], file, NONE, m[0].done);
	assert_int_equal(want_got(&m[1]), READ);
	company_close(m, 2);
}

static void one_that_comes_back_too_late_has_lost_its_grants_and_learns_of_it(void **state)
{
	struct fixture *f = *state;
	uint32_t write[] = { WRITE };
	struct mount m[2];
	uint64_t file, before;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	fixture_stop(f);
	fixture_start(f);
	mount_again(f, &m[1]);
	assert_int_equal(reclaim(&m[1], NULL, 0, NULL, 0), 0);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	mount_again(f, &m[0]);
	assert_int_equal(reclaim(&m[0], &file, 1, write, 1), 0);
	assert_int_equal(open_file(&m[0], file, READ), NONE);
	assert_int_equal(commit_size(&m[0], file, 100, before), ESTALE);
	listen_on(&m[0]);
	assert_true(hear(&m[0])->revoked > before);
	assert_int_equal(commit_size(&m[0], file, 100, m[0].number), 0);
	company_close(m, 2);
}

static void comes_back(struct fixture *f, struct mount *m, uint64_t file, Wire__Grant grant)
{
	uint32_t grants[] = { grant };

	mount_again(f, m);
	assert_int_equal(reclaim(m, &file, 1, grants, 1), 0);
}

static void restart(struct fixture *f, int64_t lease_ms)
{
	fixture_stop(f);
	f->options.lease_ms = lease_ms;
	fixture_start(f);
}

/* Its grant is not believed, nor are its commits of before; it is told so. */
static void expect_given_up(struct mount *m, uint64_t file, uint64_t before)
{
	assert_int_equal(commit_size(m, file, 100, before), ESTALE);
	m->number = 0; /* as of one that talks to another server than before */
	listen_on(m);
	assert_true(hear(m)->revoked > before);
}

static void one_that_was_given_up_is_so_for_the_next_server_too(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, before;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	assert_int_equal(want(&m[1], file, WRITE), WRITE); /* it is silent for too long, and the other one changes the file */
	assert_int_equal(commit_size(&m[1], file, 10, m[1].number), 0);
	restart(f, FOR_EVER_MS);
	comes_back(f, &m[0], file, WRITE);
	comes_back(f, &m[1], file, NONE);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	expect_given_up(&m[0], file, before);
	assert_int_equal(look(&m[1], file)->size, 10);
	company_close(m, 2);
}

static void one_that_was_passed_over_is_so_for_the_next_server_too(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, before;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	restart(f, SHORT_MS);
	comes_back(f, &m[1], file, NONE);
	assert_int_equal(want(&m[1], file, WRITE), WRITE); /* the other one did not come back in time */
	assert_int_equal(commit_size(&m[1], file, 10, UINT64_MAX), 0);
	restart(f, FOR_EVER_MS);
	comes_back(f, &m[0], file, WRITE);
	comes_back(f, &m[1], file, NONE);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	expect_given_up(&m[0], file, before);
	company_close(m, 2);
}

static void nobody_waits_for_the_return_of_one_that_was_given_up(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	restart(f, FOR_EVER_MS);
	comes_back(f, &m[1], file, WRITE);
	want_send(&m[1], file, WRITE);
	assert_true(answered_within(&m[1].talk, 5000));
	assert_int_equal(want_got(&m[1]), WRITE);
	company_close(m, 2);
}

static void one_that_knows_that_it_was_given_up_is_believed_again(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	restart(f, FOR_EVER_MS);
	comes_back(f, &m[1], file, NONE);
	comes_back(f, &m[0], file, WRITE);
	m[0].number = 0;
	listen_on(&m[0]);
	assert_true(hear(&m[0])->revoked > 0);
	listen_on(&m[0]); /* it knows */
	assert_false(answered_within(&m[0].lease, A_WHILE_MS));
	assert_int_equal(want(&m[0], file, WRITE), WRITE);
	sessions_record_acknowledged(f->server);
	restart(f, FOR_EVER_MS);
	comes_back(f, &m[0], file, WRITE);
	comes_back(f, &m[1], file, NONE);
	assert_int_equal(open_file(&m[1], file, READ), NONE); /* the other one has it */
	company_close(m, 2);
}

/* ---- Those who say what they should not ---- */

static void there_are_no_other_grants(void **state)
{
	static const int wrong[] = { 3, 77, -1, INT32_MIN };
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(open_file(&m[0], file, wrong[i]), -EINVAL);
		assert_non_null(strstr(raw_why(&m[0].talk), "there is no grant"));
		assert_int_equal(want(&m[0], file, wrong[i]), -EINVAL);
	}
	assert_int_equal(files_open(f), 0); /* what is refused is not left open */
	assert_int_equal(open_file(&m[1], file, WRITE), WRITE);
	company_close(m, 2);
}

static void one_that_may_only_read_gets_no_grant_to_write(void **state)
{
	struct fixture *f = *state;
	struct mount m[2], reader;
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	mount_open(f, &reader, true);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&reader, file, WRITE), -EROFS);
	assert_int_equal(want(&reader, file, WRITE), -EROFS);
	assert_int_equal(open_file(&reader, file, READ), READ);
	mount_close(&reader);
	company_close(m, 2);
}

static void returns_of_what_was_never_granted_change_nothing(void **state)
{
	static const uint64_t inodes[] = { 0, ROOT, 12345, UINT64_MAX };
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	for (size_t i = 0; i < sizeof(inodes) / sizeof(*inodes); i++) {
		give_back(&m[1], inodes[i], NONE, 0);
		give_back(&m[1], inodes[i], 77, UINT64_MAX);
	}
	give_back(&m[1], file, NONE, 0);
	give_back(&m[1], file, WRITE, 1);
	assert_int_equal(open_file(&m[1], file, READ), NONE);
	company_close(m, 2);
}

static void recalls_that_never_were_cannot_be_done(void **state)
{
	struct fixture *f = *state;
	Wire__Written written = WIRE__WRITTEN__INIT;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	assert_true(list(&m[0], ROOT));
	written.inode = 12345;
	written.unstored = true;
	m[0].number--; /* so that it is answered at once */
	listen_with(&m[0], UINT64_MAX, &written);
	assert_int_equal(hear(&m[0])->n_recalls, 0);
	listen_on(&m[0]);
	create_send(&m[1], ROOT, "file");
	expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	listen_on(&m[0]);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	company_close(m, 2);
}

static void nobody_gets_a_grant_by_saying_that_he_had_it(void **state)
{
	struct fixture *f = *state;
	uint32_t grants[] = { WRITE, 77, UINT32_MAX, WRITE, WRITE };
	Wire__CreateManyRequest many = WIRE__CREATE_MANY_REQUEST__INIT;
	Wire__NewFile made = WIRE__NEW_FILE__INIT, *files[] = { &made };
	struct mount m[2];
	uint64_t opens[3];

	company_open(f, FOR_EVER_MS, m, 2);
	opens[0] = make_file(&m[0], "one");
	opens[1] = make_file(&m[0], "two");
	opens[2] = make_file(&m[0], "three");
	assert_int_equal(open_file(&m[0], opens[0], WRITE), WRITE);
	reclaim(&m[1], opens, 3, grants, 5);
	assert_int_equal(open_file(&m[1], opens[0], READ), NONE);
	assert_int_equal(open_file(&m[0], opens[1], WRITE), WRITE);
	assert_int_equal(open_file(&m[0], opens[2], WRITE), WRITE);
	/* Nor by making a file under its number. */
	made.inode = opens[1];
	made.parent = ROOT;
	made.name.data = (uint8_t *)"two";
	made.name.len = 3;
	made.mode = 0644;
	many.files = files;
	many.n_files = 1;
	mutate(&m[1], WIRE__OP__CREATE_MANY, &many);
	assert_int_equal(open_file(&m[1], opens[1], READ), NONE);
	company_close(m, 2);
}

static void inodes_that_cannot_be_are_granted_to_nobody(void **state)
{
	static const uint64_t inodes[] = { 0, 1ull << 40, (1ull << 40) + ROOT, UINT64_MAX };
	struct fixture *f = *state;
	Wire__ReaddirRequest q = WIRE__READDIR_REQUEST__INIT;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	for (size_t i = 0; i < sizeof(inodes) / sizeof(*inodes); i++) {
		for (int k = 0; k < 2; k++) { /* what one had got would be in the other's way for ever */
			assert_int_equal(open_file(&m[k], inodes[i], WRITE), -ENOENT);
			assert_int_equal(want(&m[k], inodes[i], WRITE), -ENOENT);
			q.inode = inodes[i];
			q.grant = true;
			assert_int_equal(raw_ask(&m[k].talk, WIRE__OP__READDIR, 0, 0, &q), ENOENT);
			assert_int_equal(reclaim(&m[k], &q.inode, 1, (uint32_t[]){ WRITE }, 1), ENOENT);
		}
	}
	assert_int_equal(want(&m[0], 99999, WRITE), -ENOENT);
	assert_int_equal(want(&m[1], 99999, WRITE), -ENOENT);
	company_close(m, 2);
}

static void nothing_is_opened_under_a_number_none_can_follow(void **state)
{
	struct fixture *f = *state;
	Wire__OpenRequest q = WIRE__OPEN_REQUEST__INIT;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	q.inode = make_file(&m[0], "file");
	q.number = UINT64_MAX;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__OPEN, 0, 0, &q), EINVAL);
	assert_int_equal(files_open(f), 0);
	q.number--;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__OPEN, 0, 0, &q), 0);
	assert_int_equal(files_open(f), 1);
	company_close(m, 2);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(after_a_restart_a_grant_is_what_its_holder_says),
		WITH_SERVER(one_that_comes_back_too_late_has_lost_its_grants_and_learns_of_it),
		WITH_SERVER(one_that_was_given_up_is_so_for_the_next_server_too),
		WITH_SERVER(one_that_was_passed_over_is_so_for_the_next_server_too),
		WITH_SERVER(nobody_waits_for_the_return_of_one_that_was_given_up),
		WITH_SERVER(one_that_knows_that_it_was_given_up_is_believed_again),
		WITH_SERVER(there_are_no_other_grants),
		WITH_SERVER(one_that_may_only_read_gets_no_grant_to_write),
		WITH_SERVER(returns_of_what_was_never_granted_change_nothing),
		WITH_SERVER(recalls_that_never_were_cannot_be_done),
		WITH_SERVER(nobody_gets_a_grant_by_saying_that_he_had_it),
		WITH_SERVER(inodes_that_cannot_be_are_granted_to_nobody),
		WITH_SERVER(nothing_is_opened_under_a_number_none_can_follow),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
