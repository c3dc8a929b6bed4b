/* What a server sends to a replica: changes, and ranges of tables.  One replica stays open; nothing is committed to it. */
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../unit/temporary.h"
#include "base/log.h"
#include "meta/replica.h"
#include "tests/fuzz/fuzz.h"

#define VOLUME 1

static char folder[64];
static struct meta *replica;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

static void replica_end(void)
{
	meta_close(replica);
	nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void replica_ready(void)
{
	struct replica_head head = { .volume = VOLUME, .name_seed = 7, .history = { 1 } };
	char error[500];

	if (replica)
		return;
	log_set_level(LOG_LEVEL_OFF);
	temporary_template(folder, sizeof(folder), "fuzz");
	REQUIRE(mkdtemp(folder));
	REQUIRE(replica_make(folder, &head, &replica, error, sizeof(error)) == 0);
	atexit(replica_end);
}

/* Only what is of the volume, and could be read again, gets in. */
static int check(void *context, const struct change *now, struct span before)
{
	struct attr a;

	REQUIRE(change_is_streamed(now, VOLUME));
	if (now->table == TABLE_INODE && !now->deleted)
		REQUIRE(attr_unpack(now->value.data, now->value.size, &a) == 0);
	return 0;
}

static void filter_try(const uint8_t *data, size_t size)
{
	CLEANUP_BUF struct buf out = { 0 };
	int status = stream_filter(data, size, VOLUME, &out);
	struct reader in = reader_of(out.data, out.len);
	struct change c;

	REQUIRE(status == 0 || status == -EBADMSG);
	REQUIRE(out.len <= size);
	while (change_next(&in, &c) > 0)
		REQUIRE(change_is_streamed(&c, VOLUME));
	REQUIRE(reader_left(&in) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct replica_update u;
	int status;

	if (size < 2)
		return 0;
	replica_ready();
	filter_try(data + 1, size - 1);
	REQUIRE(replica_begin(&u, replica, VOLUME) == 0);
	u.each = check;
	if (data[0] & 1)
		status = replica_apply(&u, data + 1, size - 1);
	else
		status = replica_range(&u, stream_tables[data[0] / 2 % STREAM_TABLES], NULL, 0, NULL, 0, data + 1, size - 1);
	replica_abort(&u);
	REQUIRE(status == 0 || status == -EBADMSG);
	return 0;
}
