#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../temporary.h"
#include "base/log.h"
#include "client/spool.h"

#define LIMIT (1u << 20)

static const uint8_t history[16] = "one history ....";

struct place {
	char directory[64], error[400];
	struct spool_folder *folder;
};

static void folder_up(struct place *p)
{
	assert_int_equal(spool_folder_open(p->directory, history, 7, LIMIT, &p->folder, p->error, sizeof(p->error)), 0);
}

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));
	uint8_t id[SPOOL_ID];

	log_set_level(LOG_LEVEL_OFF);
	temporary_template(p->directory, sizeof(p->directory), "spool");
	assert_non_null(mkdtemp(p->directory));
	assert_int_equal(spool_id(p->directory, id, p->error, sizeof(p->error)), 0);
	folder_up(p);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;
	char command[100];

	spool_folder_close(p->folder);
	snprintf(command, sizeof(command), "rm -rf %s", p->directory);
	assert_int_equal(system(command), 0);
	free(p);
	return 0;
}

static void spool_file(struct place *p, uint64_t inode, uint64_t generation, char *out, size_t size)
{
	snprintf(out, size, "%s/%016lx.%016lx", spool_folder_path(p->folder), (unsigned long)inode, (unsigned long)generation);
}

/* What comes back: offset, length and first byte of each. */
struct seen {
	char text[400];
	bool refuse;
};

static int see(void *context, struct spool *s, uint64_t offset, const struct spool_record *record)
{
	struct seen *seen = context;
	uint8_t data[4096];

	assert_true(record->length <= sizeof(data));
	assert_int_equal(spool_read_record(s, record, data), 0);
	snprintf(seen->text + strlen(seen->text), sizeof(seen->text) - strlen(seen->text), "%lu+%u:%c ", (unsigned long)offset,
		 record->length, data[0]);
	return 0;
}

static int load(struct place *p, uint64_t inode, uint64_t generation, struct seen *seen, struct spool_state *state,
		struct spool **out)
{
	*seen = (struct seen){ .text = "" };
	return spool_load(p->folder, inode, generation, see, seen, state, out);
}

static void append(struct spool *s, uint64_t offset, char byte, uint32_t length)
{
	uint8_t data[4096];
	struct spool_record record;

	memset(data, byte, length);
	assert_int_equal(spool_append(s, offset, data, length, &record), 0);
}

/* Two that are noted and synced, one that is noted only, one that is not. */
static uint64_t written(struct place *p, uint64_t inode)
{
	struct spool *s;
	uint64_t generation;

	assert_int_equal(spool_new(p->folder, inode, &s), 0);
	append(s, 0, 'a', 100);
	append(s, 50, 'b', 1000);
	assert_int_equal(spool_note(s, 1050, 11, 12), 0);
	assert_int_equal(spool_sync(s, spool_end(s)), 0);
	append(s, 5000, 'c', 10);
	assert_int_equal(spool_note(s, 5010, 21, 22), 0);
	append(s, 0, 'd', 5);
	generation = spool_generation(s);
	spool_unref(s);
	return generation;
}

static void what_was_noted_comes_back_and_goes_on(void **state)
{
	struct place *p = *state;
	uint64_t generation = written(p, 3);
	struct spool_state noted;
	struct seen seen;
	struct spool *s;

	spool_folder_close(p->folder);
	folder_up(p);
	assert_int_equal(load(p, 3, generation, &seen, &noted, &s), 0);
	assert_string_equal(seen.text, "0+100:a 50+1000:b 5000+10:c ");
	assert_int_equal(noted.size, 5010);
	assert_int_equal(noted.mtime_ns, 21);
	assert_int_equal(noted.ctime_ns, 22);
	append(s, 1, 'e', 7);
	assert_int_equal(spool_note(s, 5010, 31, 32), 0);
	assert_int_equal(spool_sync(s, spool_end(s)), 0);
	spool_unref(s);
	assert_int_equal(load(p, 3, generation, &seen, &noted, &s), 0);
	assert_string_equal(seen.text, "0+100:a 50+1000:b 5000+10:c 1+7:e ");
	spool_delete(s);
	spool_unref(s);
	assert_int_equal(spool_folder_bytes(p->folder), 0);
}

static void a_generation_is_never_used_again(void **state)
{
	struct place *p = *state;
	uint64_t first = written(p, 3), second;

	spool_folder_close(p->folder);
	folder_up(p);
	second = written(p, 3);
	assert_true(second > first);
}

static void one_that_has_no_note_promised_nothing(void **state)
{
	struct place *p = *state;
	struct spool_state noted;
	struct seen seen;
	struct spool *s;
	uint64_t generation;

	assert_int_equal(spool_new(p->folder, 9, &s), 0);
	append(s, 0, 'a', 100);
	generation = spool_generation(s);
	spool_unref(s);
	assert_int_equal(load(p, 9, generation, &seen, &noted, &s), -ENODATA);
	assert_int_equal(load(p, 9, generation + 1, &seen, &noted, &s), -ENOENT);
}

/* Cut at every length: what was synced is either there or said to be missing, and the rest is there or not. */
static void every_cut_is_noticed_where_it_matters(void **state)
{
	struct place *p = *state;
	struct spool_state noted;
	struct seen seen;
	struct spool *s;
	char path[200];
	struct stat st;
	uint8_t whole[8192];
	uint64_t generation = written(p, 4), synced = 64 + 64 + 100 + 64 + 1000 + 64, second = synced + 64 + 10 + 64;
	int fd, r;

	spool_file(p, 4, generation, path, sizeof(path));
	fd = open(path, O_RDWR);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(read(fd, whole, sizeof(whole)), st.st_size);
	for (uint64_t size = 0; size <= (uint64_t)st.st_size; size += size < synced ? 7 : 1) {
		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(pwrite(fd, whole, size, 0), size);
		r = load(p, 4, generation, &seen, &noted, &s);
		if (size < synced) {
			assert_int_equal(r, -EBADMSG);
			continue;
		}
		assert_int_equal(r, 0);
		assert_string_equal(seen.text, size < second ? "0+100:a 50+1000:b " : "0+100:a 50+1000:b 5000+10:c ");
		spool_unref(s);
	}
	close(fd);
}

/* Every byte flipped, one at a time: never a byte that was not written. */
static void every_flipped_byte_is_noticed_where_it_matters(void **state)
{
	struct place *p = *state;
	struct spool_state noted;
	struct seen seen;
	struct spool *s;
	char path[200];
	uint8_t whole[8192];
	uint64_t generation = written(p, 4), synced = 64 + 64 + 100 + 64 + 1000 + 64;
	ssize_t size;
	int fd, r;

	spool_file(p, 4, generation, path, sizeof(path));
	fd = open(path, O_RDWR);
	size = read(fd, whole, sizeof(whole));
	for (ssize_t at = 0; at < size; at++) {
		whole[at] ^= 0x20;
		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(pwrite(fd, whole, (size_t)size, 0), size);
		whole[at] ^= 0x20;
		r = load(p, 4, generation, &seen, &noted, &s);
		if (at < (ssize_t)synced) {
			assert_int_equal(r, -EBADMSG);
			continue;
		}
		assert_int_equal(r, 0);
		assert_true(!strcmp(seen.text, "0+100:a 50+1000:b ") || !strcmp(seen.text, "0+100:a 50+1000:b 5000+10:c "));
		spool_unref(s);
	}
	close(fd);
}

/* Random bytes behind a good head, and old records at the wrong place. */
static void hostile_bytes_are_no_records(void **state)
{
	struct place *p = *state;
	struct spool_state noted;
	struct seen seen;
	struct spool *s;
	char path[200];
	uint8_t bytes[4096];
	uint64_t generation;
	int fd;

	for (unsigned round = 0; round < 300; round++) {
		assert_int_equal(spool_new(p->folder, 5, &s), 0);
		generation = spool_generation(s);
		spool_unref(s);
		spool_file(p, 5, generation, path, sizeof(path));
		for (size_t k = 0; k < sizeof(bytes); k++)
			bytes[k] = (uint8_t)(round < 100 ? rand() : round < 200 ? 0 : 0xff);
		fd = open(path, O_WRONLY);
		assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 64), sizeof(bytes));
		close(fd);
		assert_int_equal(load(p, 5, generation, &seen, &noted, &s), -ENODATA);
		spool_folder_delete(p->folder, 5, generation);
	}
}

static void the_limit_holds_and_room_comes_back(void **state)
{
	struct place *p = *state;
	uint8_t data[65536] = { 1 };
	struct spool_record record;
	uint64_t count = 0;
	struct spool *s;
	int r;

	assert_int_equal(spool_new(p->folder, 6, &s), 0);
	while ((r = spool_append(s, count * sizeof(data), data, sizeof(data), &record)) == 0)
		count++;
	assert_int_equal(r, -ENOSPC);
	assert_in_range(count, LIMIT / sizeof(data) - 2, LIMIT / sizeof(data));
	assert_true(spool_folder_is_filling(p->folder));
	assert_true(spool_folder_bytes(p->folder) <= LIMIT);
	spool_delete(s);
	assert_int_equal(spool_read_record(s, &record, data), 0); /* who has it open goes on */
	spool_unref(s);
	assert_int_equal(spool_folder_bytes(p->folder), 0);
}

static void a_folder_is_for_one_and_others_are_left_alone(void **state)
{
	struct place *p = *state;
	struct spool_folder *second;
	uint8_t other[16] = "another history", id[SPOOL_ID], again[SPOOL_ID];

	assert_int_equal(spool_folder_open(p->directory, history, 7, LIMIT, &second, p->error, sizeof(p->error)), -EBUSY);
	assert_non_null(strstr(p->error, "another mount"));
	written(p, 3);
	assert_int_equal(spool_folder_open(p->directory, other, 7, LIMIT, &second, p->error, sizeof(p->error)), 0);
	assert_int_equal(spool_folder_bytes(second), 0);
	spool_folder_close(second);
	assert_int_equal(spool_id(p->directory, id, p->error, sizeof(p->error)), 0);
	assert_int_equal(spool_id(p->directory, again, p->error, sizeof(p->error)), 0);
	assert_memory_equal(id, again, SPOOL_ID);
	assert_true(spool_id("/nonexistent/place", id, p->error, sizeof(p->error)) < 0);
}

/* And nothing is made there. */
static void a_directory_with_anything_else_in_it_is_none(void **state)
{
	struct place *p = *state;
	char other[80], file[100], inside[100];
	uint8_t id[SPOOL_ID];
	int fd;

	snprintf(other, sizeof(other), "%s/other", p->directory);
	snprintf(file, sizeof(file), "%s/thesis.tex", other);
	snprintf(inside, sizeof(inside), "%s/id", other);
	assert_int_equal(mkdir(other, 0700), 0);
	fd = open(file, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_int_equal(spool_id(other, id, p->error, sizeof(p->error)), -ENOTEMPTY);
	assert_non_null(strstr(p->error, "not empty"));
	assert_int_equal(access(inside, F_OK), -1);
	assert_int_equal(unlink(file), 0);
	/* The root of a new file system. */
	snprintf(file, sizeof(file), "%s/lost+found", other);
	assert_int_equal(mkdir(file, 0700), 0);
	assert_int_equal(spool_id(other, id, p->error, sizeof(p->error)), 0);
	assert_int_equal(access(inside, F_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(what_was_noted_comes_back_and_goes_on),
		TEST(a_generation_is_never_used_again),
		TEST(one_that_has_no_note_promised_nothing),
		TEST(every_cut_is_noticed_where_it_matters),
		TEST(every_flipped_byte_is_noticed_where_it_matters),
		TEST(hostile_bytes_are_no_records),
		TEST(the_limit_holds_and_room_comes_back),
		TEST(a_folder_is_for_one_and_others_are_left_alone),
		TEST(a_directory_with_anything_else_in_it_is_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
