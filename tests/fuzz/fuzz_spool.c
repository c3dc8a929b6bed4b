/* Spools that a broken disk or a hostile hand has written, their checksums right: what is taken from one can be read, and it can be
 * gone on with. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/log.h"
#include "client/spool.h"
#include "tests/fuzz/fuzz.h"

#define HEAD 64u
#define SUM 56u
#define INODE 1u
#define GENERATION 1u

static char directory[] = "/dev/shm/epochfs-fuzz-XXXXXX", path[200];
static struct spool_folder *folder;

static void folder_down(void)
{
	char lock[220], inside[200];

	snprintf(inside, sizeof(inside), "%s", spool_folder_path(folder));
	snprintf(lock, sizeof(lock), "%s/lock", inside);
	spool_folder_close(folder);
	unlink(path);
	unlink(lock);
	rmdir(inside);
	rmdir(directory);
}

static void folder_up(void)
{
	static const uint8_t history[16];
	char error[200];

	log_set_level(LOG_LEVEL_OFF);
	REQUIRE(mkdtemp(directory));
	REQUIRE(spool_folder_open(directory, history, 1, 1u << 30, &folder, error, sizeof(error)) == 0);
	atexit(folder_down);
	snprintf(path, sizeof(path), "%s/%016x.%016x", spool_folder_path(folder), INODE, GENERATION);
}

static void sum_set(uint8_t *head) { put_le64(head + SUM, XXH3_64bits_withSeed(head, SUM, GENERATION)); }

/* A head as it is, then records: what they say comes from the input, and so does whether they are true. */
static void file_make(struct reader *r, struct buf *out)
{
	uint8_t head[HEAD] = "EpSpool1";
	uint64_t sequence = 1;

	put_le64(head + 8, INODE);
	put_le64(head + 16, GENERATION);
	put_le64(head + 24, take_le16(r));
	sum_set(head);
	buf_append(out, head, HEAD);
	while (reader_left(r) >= 8) {
		uint8_t how = take_le8(r), record[HEAD] = { 0 };
		uint32_t length = take_le16(r) % 700, left;

		left = (uint32_t)reader_left(r);
		put_le32(record, how & 0x40 ? take_le32(r) : 0x31527053u);
		put_le32(record + 4, how % 4);
		put_le64(record + 8, how & 0x20 ? take_le32(r) : sequence++);
		put_le64(record + 16, (uint64_t)take_le16(r) << (how & 0x10 ? 48 : 4));
		put_le32(record + 40, how % 4 == 2 ? 0 : length);
		if (length > left)
			length = left;
		length = how % 4 == 2 ? 0 : length > reader_left(r) ? (uint32_t)reader_left(r) : length;
		put_le64(record + 24, how & 0x08 ? 0 : XXH3_64bits(r->p, length));
		if (!(how & 0x80))
			sum_set(record);
		buf_append(out, record, HEAD);
		buf_append(out, r->p, length);
		take_bytes(r, length);
	}
}

static int see(void *context, struct spool *s, uint64_t offset, const struct spool_record *record)
{
	CLEANUP_FREE uint8_t *data = malloc(record->length);

	REQUIRE(record->length > 0 && offset <= INT64_MAX - record->length);
	REQUIRE(spool_read_record(s, record, data) == 0);
	++*(unsigned *)context;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CLEANUP_BUF struct buf file = { 0 };
	struct reader r = reader_of(data, size);
	struct spool_state state;
	unsigned first = 0, again = 0;
	struct spool_record record;
	struct spool *s;
	int status;

	if (!folder)
		folder_up();
	file_make(&r, &file);
	REQUIRE(!file.failed);
	CLEANUP_FD int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	REQUIRE(fd >= 0 && write(fd, file.data, file.len) == (ssize_t)file.len);
	status = spool_load(folder, INODE, GENERATION, see, &first, &state, &s);
	REQUIRE(status == 0 || status == -ENODATA || status == -EBADMSG);
	if (status)
		return 0;
	REQUIRE(spool_append(s, 5, "abc", 3, &record) == 0 && spool_note(s, 8, 1, 1) == 0 && spool_sync(s, spool_end(s)) == 0);
	spool_unref(s);
	REQUIRE(spool_load(folder, INODE, GENERATION, see, &again, &state, &s) == 0 && again == first + 1 && state.size == 8);
	spool_unref(s);
	return 0;
}
