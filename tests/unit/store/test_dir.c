#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "../temporary.h"
#include "base/log.h"
#include "store/store.h"

struct place {
	char folder[64];
	char url[80];
	struct store *store;
};

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

static int place_make(void **state)
{
	struct place *p = calloc(1, sizeof *p);
	char error[200];
	temporary_template(p->folder, sizeof p->folder, "store");
	assert_non_null(mkdtemp(p->folder));
	snprintf(p->url, sizeof p->url, "dir:%s", p->folder);
	assert_int_equal(store_open(p->url, &p->store, error, sizeof error), 0);
	*state = p;
	return 0;
}

/* Also checks what every test must leave: no temporary files. */
static int place_remove(void **state)
{
	struct place *p = *state;
	char temp[80];
	store_close(p->store);
	snprintf(temp, sizeof temp, "%s/TMP", p->folder);
	if (rmdir(temp) < 0)
		assert_int_equal(errno, ENOENT);
	nftw(p->folder, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
	free(p);
	return 0;
}

static int put_text(struct store *s, const char *key, const char *text)
{
	struct iovec part = { .iov_base = (void *)text, .iov_len = strlen(text) };
	return store_put(s, key, &part, 1);
}

static void assert_text(struct store *s, const char *key, const char *text)
{
	char got[200] = "";
	uint64_t size = 0;
	assert_int_equal(store_stat(s, key, &size), 0);
	assert_int_equal(size, strlen(text));
	assert_int_equal(store_get(s, key, 0, got, size), 0);
	assert_string_equal(got, text);
}

struct listed {
	int count, stop_after;
	uint64_t bytes;
	char last[256];
};

static int count_one(void *context, const char *key, uint64_t size)
{
	struct listed *l = context;
	l->count++;
	l->bytes += size;
	snprintf(l->last, sizeof l->last, "%s", key);
	return l->stop_after && l->count == l->stop_after ? 77 : 0;
}

static int list_count(struct store *s, const char *prefix)
{
	struct listed l = { 0 };
	assert_int_equal(store_list(s, prefix, count_one, &l), 0);
	return l.count;
}

static void what_was_put_can_be_read_listed_and_deleted(void **state)
{
	struct place *p = *state;
	uint64_t size;
	assert_int_equal(put_text(p->store, "o/12/34/0000000000001234", "hello"), 0);
	assert_text(p->store, "o/12/34/0000000000001234", "hello");
	assert_int_equal(list_count(p->store, "o/"), 1);
	assert_int_equal(store_delete(p->store, "o/12/34/0000000000001234"), 0);
	assert_int_equal(store_delete(p->store, "o/12/34/0000000000001234"), -ENOENT);
	assert_int_equal(store_stat(p->store, "o/12/34/0000000000001234", &size), -ENOENT);
	assert_int_equal(store_get(p->store, "o/12/34/0000000000001234", 0, &size, 1), -ENOENT);
	assert_int_equal(store_descriptor(p->store, "o/12/34/0000000000001234"), -ENOENT);
	assert_int_equal(list_count(p->store, ""), 0);
}

static void a_key_that_is_taken_stays_as_it_was(void **state)
{
	struct place *p = *state;
	assert_int_equal(put_text(p->store, "a/b", "first"), 0);
	assert_int_equal(put_text(p->store, "a/b", "second"), -EEXIST);
	assert_text(p->store, "a/b", "first");
}

static void ranges_are_read_exactly_or_not_at_all(void **state)
{
	struct place *p = *state;
	char got[11] = "..........";
	assert_int_equal(put_text(p->store, "digits", "0123456789"), 0);
	assert_int_equal(store_get(p->store, "digits", 3, got, 4), 0);
	assert_string_equal(got, "3456......");
	assert_int_equal(store_get(p->store, "digits", 9, got, 1), 0);
	assert_int_equal(store_get(p->store, "digits", 9, got, 2), -ERANGE);
	assert_int_equal(store_get(p->store, "digits", 10, got, 1), -ERANGE);
	assert_int_equal(store_get(p->store, "digits", 10, got, 0), 0);
	assert_int_equal(store_get(p->store, "digits", 11, got, 0), -ERANGE);
	assert_int_equal(store_get(p->store, "digits", UINT64_MAX, got, 1), -ERANGE);
	assert_int_equal(store_get(p->store, "digits", INT64_MAX, got, 10), -ERANGE);
	assert_int_equal(store_get(p->store, "digits", 0, got, SIZE_MAX), -ERANGE);
}

static void an_object_of_many_parts_is_put_together_in_order(void **state)
{
	struct place *p = *state;
	static uint8_t bytes[300 * 7], back[sizeof bytes];
	struct iovec parts[301] = { { .iov_base = NULL, .iov_len = 0 } };
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 31);
	for (int i = 0; i < 300; i++)
		parts[i + 1] = (struct iovec){ .iov_base = bytes + 7 * i, .iov_len = 7 };
	assert_int_equal(store_put(p->store, "many", parts, 301), 0);
	assert_int_equal(store_get(p->store, "many", 0, back, sizeof back), 0);
	assert_memory_equal(bytes, back, sizeof bytes);
	assert_int_equal(store_put(p->store, "none", NULL, 0), 0);
	assert_text(p->store, "none", "");
}

/* Large objects go past the page cache as far as their memory allows. */
static void large_objects_are_what_was_put_wherever_they_lie_in_memory(void **state)
{
	static const struct {
		size_t shift, size, tail;
	} cases[] = { { 0, 4u << 20, 800 },     { 0, 1u << 20, 0 },  { 0, (1u << 20) + 5, 0 },
		      { 0, (2u << 20) - 1, 3 }, { 8, 3u << 20, 32 }, { 4096, 2u << 20, 4096 } };
	struct place *p = *state;
	uint8_t *memory = aligned_alloc(4096, 5u << 20), tail[4096], *got = malloc(5u << 20);
	assert_true(memory && got);
	for (size_t i = 0; i < 5u << 20; i++)
		memory[i] = (uint8_t)(i * 7 / 4096 + i);
	memset(tail, 0xee, sizeof tail);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct iovec parts[] = { { memory + cases[i].shift, cases[i].size }, { tail, cases[i].tail } };
		uint64_t size;
		char key[20];
		snprintf(key, sizeof key, "large/%zu", i);
		assert_int_equal(store_put(p->store, key, parts, 2), 0);
		assert_int_equal(store_stat(p->store, key, &size), 0);
		assert_int_equal(size, cases[i].size + cases[i].tail);
		assert_int_equal(store_get(p->store, key, 0, got, size), 0);
		assert_memory_equal(got, memory + cases[i].shift, cases[i].size);
		assert_memory_equal(got + cases[i].size, tail, cases[i].tail);
	}
	free(memory);
	free(got);
}

static void keys_that_are_not_keys_are_refused_everywhere(void **state)
{
	static const char *const wrong[] = { "",      "/",       "/a",  "a/", "a//b", ".",   "..",       "a/..", "../a",
					     "a/./b", "a/.../b", "...", "A",  "a b",  "a\n", "\xc3\xa4", "a\\b", "EPOCHFS-STORE",
					     "TMP/x" };
	struct place *p = *state;
	char longest[202];
	uint64_t size;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		assert_int_equal(put_text(p->store, wrong[i], "x"), -EINVAL);
		assert_int_equal(store_get(p->store, wrong[i], 0, &size, 1), -EINVAL);
		assert_int_equal(store_stat(p->store, wrong[i], &size), -EINVAL);
		assert_int_equal(store_delete(p->store, wrong[i]), -EINVAL);
		assert_int_equal(store_descriptor(p->store, wrong[i]), -EINVAL);
	}
	memset(longest, 'k', 201);
	longest[201] = 0;
	assert_int_equal(put_text(p->store, longest, "x"), -EINVAL);
	longest[200] = 0;
	assert_int_equal(put_text(p->store, longest, "x"), 0);
	assert_int_equal(put_text(p->store, ".a/b+c", "x"), -EINVAL);
	assert_int_equal(put_text(p->store, ".a/b..c/-", "x"), 0);
	assert_int_equal(list_count(p->store, ""), 2);
}

static void a_folder_is_not_an_object(void **state)
{
	struct place *p = *state;
	char byte;
	uint64_t size;
	assert_int_equal(put_text(p->store, "a/b/c", "x"), 0);
	assert_int_equal(store_get(p->store, "a/b", 0, &byte, 1), -ENOENT);
	assert_int_equal(store_get(p->store, "a/b", 0, &byte, 0), -ENOENT);
	assert_int_equal(store_stat(p->store, "a/b", &size), -ENOENT);
	assert_int_equal(store_descriptor(p->store, "a/b"), -ENOENT);
	assert_int_equal(store_delete(p->store, "a/b"), -ENOENT);
	assert_int_equal(store_get(p->store, "a/b/c/d", 0, &byte, 1), -ENOENT);
	assert_int_equal(put_text(p->store, "a/b", "x"), -EEXIST);
	log_set_level(LOG_LEVEL_OFF);
	assert_int_equal(put_text(p->store, "a/b/c/d", "x"), -EIO);
	log_set_level(LOG_LEVEL_INFO);
}

static void listing_finds_exactly_the_prefix(void **state)
{
	struct place *p = *state;
	static const char *const keys[] = { "journal/1", "journal/10", "journal/2", "o/00/11/a",
					    "o/00/12/b", "o/01/11/c",  "ox",        "store-id" };
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		assert_int_equal(put_text(p->store, keys[i], "12345"), 0);
	assert_int_equal(list_count(p->store, ""), 8);
	assert_int_equal(list_count(p->store, "o"), 4);
	assert_int_equal(list_count(p->store, "o/"), 3);
	assert_int_equal(list_count(p->store, "o/0"), 3);
	assert_int_equal(list_count(p->store, "o/00"), 2);
	assert_int_equal(list_count(p->store, "o/00/1"), 2);
	assert_int_equal(list_count(p->store, "o/00/12/"), 1);
	assert_int_equal(list_count(p->store, "o/00/12/b"), 1);
	assert_int_equal(list_count(p->store, "o/00/12/bb"), 0);
	assert_int_equal(list_count(p->store, "journal/1"), 2);
	assert_int_equal(list_count(p->store, "nothing/here"), 0);
	struct listed l = { .stop_after = 3 };
	assert_int_equal(store_list(p->store, "", count_one, &l), 77);
	assert_int_equal(l.count, 3);
	assert_int_equal(l.bytes, 15);
	assert_int_equal(store_list(p->store, "../", count_one, &l), -EINVAL);
}

static int delete_one(void *store, const char *key, uint64_t size) { return store_delete(store, key); }

static void everything_can_be_deleted_while_it_is_listed(void **state)
{
	struct place *p = *state;
	char key[40];
	for (int i = 0; i < 300; i++) {
		snprintf(key, sizeof key, "o/%02x/%d", i % 7, i);
		assert_int_equal(put_text(p->store, key, "x"), 0);
	}
	assert_int_equal(store_list(p->store, "o/", delete_one, p->store), 0);
	assert_int_equal(list_count(p->store, ""), 0);
}

static void a_descriptor_reads_the_object(void **state)
{
	struct place *p = *state;
	char got[6] = "";
	assert_int_equal(put_text(p->store, "a/b", "hello"), 0);
	int fd = store_descriptor(p->store, "a/b");
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, got, 5, 0), 5);
	assert_string_equal(got, "hello");
	assert_true(write(fd, "x", 1) < 0);
	close(fd);
}

static void a_deleted_object_takes_no_space_whoever_has_it_open(void **state)
{
	struct place *p = *state;
	struct stat st;
	assert_int_equal(put_text(p->store, "a/b", "bytes"), 0);
	int fd = store_descriptor(p->store, "a/b");
	assert_true(fd >= 0);
	assert_int_equal(store_delete(p->store, "a/b"), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	assert_int_equal(st.st_nlink, 0);
	close(fd);
}

/* As `cp -al` or a backup of hard links makes it. */
static void a_deleted_object_with_another_name_elsewhere_stays_whole_there(void **state)
{
	struct place *p = *state;
	char path[300], other[300];
	struct stat st;
	assert_int_equal(put_text(p->store, "a/b", "bytes"), 0);
	snprintf(path, sizeof path, "%s/a/b", p->url + strlen("dir:"));
	snprintf(other, sizeof other, "%s.kept", p->url + strlen("dir:"));
	assert_int_equal(link(path, other), 0);
	assert_int_equal(store_delete(p->store, "a/b"), 0);
	assert_int_equal(stat(other, &st), 0);
	assert_int_equal(st.st_size, 5);
	assert_int_equal(unlink(other), 0);
}

static void objects_are_there_after_opening_again(void **state)
{
	struct place *p = *state;
	char error[200];
	assert_int_equal(put_text(p->store, "a/b", "hello"), 0);
	assert_string_equal(store_url(p->store), p->url);
	store_close(p->store);
	assert_int_equal(store_open(p->url, &p->store, error, sizeof error), 0);
	assert_text(p->store, "a/b", "hello");
	assert_int_equal(put_text(p->store, "a/b", "again"), -EEXIST);
	assert_int_equal(put_text(p->store, "a/c", "new"), 0);
}

static void a_folder_removed_under_a_running_store_is_made_again(void **state)
{
	struct place *p = *state;
	char path[100];
	assert_int_equal(put_text(p->store, "a/b/c", "x"), 0);
	assert_int_equal(store_delete(p->store, "a/b/c"), 0);
	snprintf(path, sizeof path, "%s/a/b", p->folder);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(put_text(p->store, "a/b/c", "y"), 0);
	assert_text(p->store, "a/b/c", "y");
}

static void file_write(const char *folder, const char *name, const char *text)
{
	char path[200];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void what_a_crash_left_in_tmp_goes_when_it_is_old(void **state)
{
	struct place *p = *state;
	char path[100], error[200];
	struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	snprintf(path, sizeof path, "%s/TMP", p->folder);
	assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
	file_write(path, "old", "x");
	file_write(path, "new", "x");
	snprintf(path, sizeof path, "%s/TMP/old", p->folder);
	assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
	store_close(p->store);
	assert_int_equal(store_open(p->url, &p->store, error, sizeof error), 0);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(list_count(p->store, ""), 0);
	snprintf(path, sizeof path, "%s/TMP/new", p->folder);
	assert_int_equal(unlink(path), 0);
}

static void somebody_elses_folder_is_refused(void **state)
{
	struct place *p = *state;
	char folder[100], url[120], error[300] = "";
	struct store *s = NULL;
	snprintf(folder, sizeof folder, "%s/photos", p->folder);
	snprintf(url, sizeof url, "dir:%s", folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	file_write(folder, "holiday.jpg", "x");
	assert_int_equal(store_open(url, &s, error, sizeof error), -ENOTEMPTY);
	assert_null(s);
	assert_non_null(strstr(error, folder));
	assert_non_null(strstr(error, "empty"));
}

static void a_store_of_another_format_is_refused(void **state)
{
	struct place *p = *state;
	char error[300] = "";
	struct store *s = NULL;
	file_write(p->folder, "EPOCHFS-STORE", "EpochFS object store, format 2\n");
	assert_int_equal(store_open(p->url, &s, error, sizeof error), -EPROTONOSUPPORT);
	assert_non_null(strstr(error, "format"));
	assert_null(s);
}

static void an_address_that_is_no_store_says_so(void **state)
{
	static const char *const wrong[] = { "", "dir:", "ftp:/x", "/tmp", "dir:/nowhere/at/all", "dir:/dev/null" };
	char error[300];
	struct store *s = NULL;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		error[0] = 0;
		assert_true(store_open(wrong[i], &s, error, sizeof error) < 0);
		assert_non_null(strstr(error, "cannot open store"));
		assert_null(s);
	}
}

static void a_missing_last_folder_is_made(void **state)
{
	struct place *p = *state;
	char url[120], error[300];
	struct store *s = NULL;
	snprintf(url, sizeof url, "dir:%s/new", p->folder);
	assert_int_equal(store_open(url, &s, error, sizeof error), 0);
	assert_int_equal(put_text(s, "a", "x"), 0);
	store_close(s);
}

static void the_space_is_that_of_the_disk(void **state)
{
	struct place *p = *state;
	struct store_space space = { 0 };
	assert_int_equal(store_space(p->store, &space), 0);
	assert_true(space.total_bytes > 0);
	assert_true(space.free_bytes <= space.total_bytes);
}

struct race {
	struct store *store;
	int thread;
	_Atomic int *won;
};

static void *race_run(void *context)
{
	struct race *r = context;
	char key[40], text[40];
	for (int i = 0; i < 40; i++) {
		snprintf(key, sizeof key, "race/%02d/%d", i / 8, i);
		snprintf(text, sizeof text, "thread %d", r->thread);
		int status = put_text(r->store, key, text);
		if (status == 0)
			atomic_fetch_add(&r->won[i], 1);
		else if (status != -EEXIST)
			atomic_fetch_add(&r->won[i], 100);
	}
	return NULL;
}

static void of_those_who_put_the_same_key_exactly_one_wins(void **state)
{
	struct place *p = *state;
	_Atomic int won[40] = { 0 };
	pthread_t threads[4];
	struct race races[4];
	for (int i = 0; i < 4; i++) {
		races[i] = (struct race){ .store = p->store, .thread = i, .won = won };
		assert_int_equal(pthread_create(&threads[i], NULL, race_run, &races[i]), 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 40; i++)
		assert_int_equal(won[i], 1);
	assert_int_equal(list_count(p->store, "race/"), 40);
}

/* A tiny tmpfs, if we may mount one. */
static void a_full_disk_is_enospc_and_leaves_nothing_behind(void **state)
{
	struct place *p = *state;
	char folder[100], url[120], error[300];
	static char big[1 << 20];
	struct store *s;
	struct store_space before, after;
	struct iovec part = { .iov_base = big, .iov_len = sizeof big };
	snprintf(folder, sizeof folder, "%s/small", p->folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	if (mount("tmpfs", folder, "tmpfs", 0, "size=512k") < 0)
		skip();
	snprintf(url, sizeof url, "dir:%s", folder);
	assert_int_equal(store_open(url, &s, error, sizeof error), 0);
	assert_int_equal(put_text(s, "a/b", "fits"), 0);
	assert_int_equal(store_space(s, &before), 0);
	assert_int_equal(store_put(s, "a/c", &part, 1), -ENOSPC);
	assert_int_equal(store_space(s, &after), 0);
	assert_true(before.free_bytes == after.free_bytes);
	assert_int_equal(list_count(s, ""), 1);
	assert_text(s, "a/b", "fits");
	store_close(s);
	umount(folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_was_put_can_be_read_listed_and_deleted),
		TEST(a_key_that_is_taken_stays_as_it_was),
		TEST(ranges_are_read_exactly_or_not_at_all),
		TEST(an_object_of_many_parts_is_put_together_in_order),
		TEST(large_objects_are_what_was_put_wherever_they_lie_in_memory),
		TEST(keys_that_are_not_keys_are_refused_everywhere),
		TEST(a_folder_is_not_an_object),
		TEST(listing_finds_exactly_the_prefix),
		TEST(everything_can_be_deleted_while_it_is_listed),
		TEST(a_descriptor_reads_the_object),
		TEST(a_deleted_object_takes_no_space_whoever_has_it_open),
		TEST(a_deleted_object_with_another_name_elsewhere_stays_whole_there),
		TEST(objects_are_there_after_opening_again),
		TEST(a_folder_removed_under_a_running_store_is_made_again),
		TEST(what_a_crash_left_in_tmp_goes_when_it_is_old),
		TEST(somebody_elses_folder_is_refused),
		TEST(a_store_of_another_format_is_refused),
		TEST(an_address_that_is_no_store_says_so),
		TEST(a_missing_last_folder_is_made),
		TEST(the_space_is_that_of_the_disk),
		TEST(of_those_who_put_the_same_key_exactly_one_wins),
		TEST(a_full_disk_is_enospc_and_leaves_nothing_behind),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
