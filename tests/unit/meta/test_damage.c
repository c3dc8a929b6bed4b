#include "world.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "meta/machine.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, damaged_setup, damaged_teardown)
#define PAGE 4096

static int damaged_setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	for (int i = 0; i < 200; i++)
		assert_int_equal(do_file(w, ROOT_INODE, numbered_name(w, "file-%d", i), NULL), 0);
	assert_int_equal(do_symlink(w, ROOT_INODE, "link", "target", NULL), 0);
	world_stop(w);
	log_set_level(LOG_LEVEL_OFF);
	return 0;
}

static int damaged_teardown(void **state)
{
	struct world *w = *state;

	log_set_level(LOG_LEVEL_INFO);
	world_remove(w);
	free(w);
	return 0;
}

static int data_file(struct world *w)
{
	char path[120];
	int fd;

	snprintf(path, sizeof(path), "%s/data.mdb", w->meta_folder);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	return fd;
}

static int try_open(struct world *w, char *error, size_t error_size)
{
	struct meta_options options = { .folder = w->meta_folder, .clock = &w->clock, .map_bytes = w->map_bytes };

	return meta_open(&options, &w->meta, error, error_size);
}

static void assert_refused(struct world *w, const char *reason)
{
	char error[500], file[120], backup[120];

	assert_int_equal(try_open(w, error, sizeof(error)), -EBADMSG);
	snprintf(file, sizeof(file), "%s/data.mdb", w->meta_folder);
	snprintf(backup, sizeof(backup), "%s/backup", w->folder);
	assert_non_null(strstr(error, file));
	assert_non_null(strstr(error, "damaged"));
	assert_non_null(strstr(error, backup));
	assert_non_null(strstr(error, "docs/operations.md"));
	if (reason && !strstr(error, reason))
		fail_msg("%s", error);
}

static void an_empty_file_is_refused(void **state)
{
	struct world *w = *state;
	int fd = data_file(w);

	assert_int_equal(ftruncate(fd, 0), 0);
	close(fd);
	assert_refused(w, "empty");
}

static void a_file_cut_short_is_refused(void **state)
{
	struct world *w = *state;
	int fd = data_file(w);
	off_t size = lseek(fd, 0, SEEK_END);

	assert_true(size > 10 * PAGE);
	for (off_t cut = size / 2; cut > 0; cut = cut / 2) {
		assert_int_equal(ftruncate(fd, cut), 0);
		assert_refused(w, NULL);
	}
	close(fd);
}

static void another_kind_of_file_is_refused(void **state)
{
	struct world *w = *state;
	int fd = data_file(w);
	char text[2 * PAGE];

	memset(text, 'x', sizeof(text));
	assert_int_equal(pwrite(fd, text, sizeof(text), 0), sizeof(text));
	close(fd);
	assert_refused(w, "not one of LMDB's");
}

static void a_missing_file_is_made_anew_but_not_a_missing_table(void **state)
{
	struct world *w = *state;
	char path[120];
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;

	assert_int_equal(meta_environment_open(w->meta_folder, MDB_NOLOCK, w->map_bytes, &env), 0);
	assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_dbi_open(txn, "trash", 0, &dbi), 0);
	assert_int_equal(mdb_drop(txn, dbi, 1), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
	assert_refused(w, "table trash");
	snprintf(path, sizeof(path), "%s/data.mdb", w->meta_folder);
	assert_int_equal(unlink(path), 0);
	world_start(w);
	assert_int_equal(count_names(w, ROOT_INODE), 0);
	world_stop(w);
}

/* Writes one record past the state machine. */
static void overwrite(struct world *w, enum table t, const void *key, size_t key_size, const void *value, size_t value_size)
{
	MDB_val k = { key_size, (void *)key }, d = { value_size, (void *)value };
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;

	assert_int_equal(meta_environment_open(w->meta_folder, MDB_NOLOCK, w->map_bytes, &env), 0);
	assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_dbi_open(txn, table_names[t], 0, &dbi), 0);
	assert_int_equal(mdb_put(txn, dbi, &k, &d, 0), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

static void records_that_make_no_sense_are_refused(void **state)
{
	struct world *w = *state;
	static const struct {
		enum table table;
		size_t key_size, value_size;
	} bad[] = {
		{ TABLE_VOLUME, 4, 3 },   { TABLE_INODE, 8, 110 }, { TABLE_INODE, 7, 110 }, { TABLE_DENTRY, 16, 12 },
		{ TABLE_EXTENT, 16, 37 }, { TABLE_OBJECT, 8, 5 },  { TABLE_RANGE, 8, 11 },  { TABLE_FREE, 15, 0 },
		{ TABLE_TRASH, 20, 7 },   { TABLE_SESSION, 8, 3 }, { TABLE_ANSWER, 16, 3 },
	};
	uint8_t key[32], value[128], *whole;
	int fd = data_file(w);
	off_t size = lseek(fd, 0, SEEK_END);

	whole = malloc((size_t)size);
	assert_int_equal(pread(fd, whole, (size_t)size, 0), size);
	memset(key, 0xee, sizeof(key));
	memset(value, 0xff, sizeof(value));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		overwrite(w, bad[i].table, key, bad[i].key_size, value, bad[i].value_size);
		assert_refused(w, table_names[bad[i].table]);
		assert_int_equal(pwrite(fd, whole, (size_t)size, 0), size);
	}
	close(fd);
	free(whole);
	world_start(w);
	assert_int_equal(count_names(w, ROOT_INODE), 201);
	world_stop(w);
}

static void a_newer_format_is_refused_and_not_called_damage(void **state)
{
	struct world *w = *state;
	uint8_t value[60] = "EPOCHFSM";
	char error[500];

	put_le32(value + 8, 2);
	overwrite(w, TABLE_META, "format", 6, value, sizeof(value));
	assert_int_equal(try_open(w, error, sizeof(error)), -EPROTONOSUPPORT);
	assert_non_null(strstr(error, "format 2"));
	assert_null(strstr(error, "damaged"));
}

/* Whatever page is destroyed, opening either refuses or, if nothing needed the page, everything can be read. */
static void any_destroyed_page_is_noticed_or_harmless(void **state)
{
	struct world *w = *state;
	uint8_t page[PAGE], junk[PAGE];
	int fd = data_file(w), refused = 0, pages;
	char error[500];

	pages = (int)(lseek(fd, 0, SEEK_END) / PAGE);
	srand(4711);
	for (int kind = 0; kind < 3; kind++) {
		for (int i = 0; i < PAGE; i++)
			junk[i] = kind == 0 ? 0 : kind == 1 ? 0xff : (uint8_t)rand();
		for (int n = 0; n < pages; n++) {
			assert_int_equal(pread(fd, page, PAGE, (off_t)n * PAGE), PAGE);
			assert_int_equal(pwrite(fd, junk, PAGE, (off_t)n * PAGE), PAGE);
			if (try_open(w, error, sizeof(error)) < 0) {
				refused++;
			} else {
				world_stop(w);
				world_start(w);
				assert_int_equal(count_names(w, ROOT_INODE), 201);
				world_stop(w);
			}
			assert_int_equal(pwrite(fd, page, PAGE, (off_t)n * PAGE), PAGE);
		}
	}
	close(fd);
	assert_true(refused >= 3 * 10);
	world_start(w);
	assert_int_equal(count_names(w, ROOT_INODE), 201);
	world_stop(w);
}

/* With descriptors for only so many files, opening fails at one place after the other, and succeeds in the end. */
static void what_says_nothing_about_the_file_is_not_called_damage(void **state)
{
	struct world *w = *state;
	struct rlimit before, tight;
	char error[500];
	int first = dup(0), r = -EMFILE, failed = 0;

	close(first);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (int spare = 0; spare < 20 && r < 0; spare++) {
		tight = (struct rlimit){ (rlim_t)(first + spare), before.rlim_max };
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
		r = try_open(w, error, sizeof(error));
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		if (r < 0) {
			assert_int_equal(r, -EMFILE);
			assert_null(strstr(error, "damaged"));
			failed++;
		}
	}
	assert_int_equal(r, 0);
	assert_in_range(failed, 2, 10);
	world_stop(w);
}

static void an_ignored_sigchld_does_not_matter(void **state)
{
	struct world *w = *state;

	signal(SIGCHLD, SIG_IGN);
	world_start(w);
	world_stop(w);
	assert_true(signal(SIGCHLD, SIG_DFL) == SIG_IGN);
}

static void no_descriptor_and_no_child_is_left_behind(void **state)
{
	struct world *w = *state;
	int before, after;

	before = dup(0);
	close(before);
	for (int i = 0; i < 5; i++) {
		world_start(w);
		world_stop(w);
	}
	after = dup(0);
	close(after);
	assert_int_equal(before, after);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_empty_file_is_refused),
		TEST(a_file_cut_short_is_refused),
		TEST(another_kind_of_file_is_refused),
		TEST(a_missing_file_is_made_anew_but_not_a_missing_table),
		TEST(records_that_make_no_sense_are_refused),
		TEST(a_newer_format_is_refused_and_not_called_damage),
		TEST(any_destroyed_page_is_noticed_or_harmless),
		TEST(what_says_nothing_about_the_file_is_not_called_damage),
		TEST(an_ignored_sigchld_does_not_matter),
		TEST(no_descriptor_and_no_child_is_left_behind),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
