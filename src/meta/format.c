/* META "format", FORMAT_PACKED bytes:
 *
 *   "EPOCHFSM" | format number le32 | random id 16 | created (ns) le64 | seed of the name hashes le64
 *
 * META "history", 16 bytes: another id, that stands for one history; where there is none, it is the one above.  Clients keep
 * contents under it, by inode and version.  So in a copy it is zeroes, and chosen anew when that is first served: what
 * happens to it from there on is another history.
 *
 * A new file is made under another name with its tables and its format record in
 * it, and renamed when it is durable.  So a data.mdb that lacks any of it is
 * damaged, and never one that was not finished. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "meta/machine.h"

#define FORMAT_MAGIC "EPOCHFSM"
#define FORMAT_PACKED 44u
#define NEW_FILE "data.new"
#define NEW_FILE_MAP (16u << 20)

static const char format_key[] = "format", history_key[] = "history";

static int history_load(MDB_txn *txn, MDB_dbi meta_table, struct format *out)
{
	MDB_val k = { sizeof(history_key) - 1, (void *)history_key }, d;
	int r = view_error(mdb_get(txn, meta_table, &k, &d));

	memcpy(out->history, out->id, sizeof(out->history));
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (d.mv_size != sizeof(out->history))
		return -EBADMSG;
	memcpy(out->history, d.mv_data, sizeof(out->history));
	return 0;
}

int format_load(MDB_txn *txn, MDB_dbi meta_table, struct format *out)
{
	MDB_val k = { sizeof(format_key) - 1, (void *)format_key }, d;
	int r = view_error(mdb_get(txn, meta_table, &k, &d));
	const uint8_t *p = d.mv_data;

	if (r == -ENOENT || (r == 0 && (d.mv_size < 12 || memcmp(p, FORMAT_MAGIC, 8) != 0)))
		return -EBADMSG;
	if (r < 0)
		return r;
	*out = (struct format){ .number = get_le32(p + 8) };
	if (out->number != META_FORMAT)
		return 0;
	if (d.mv_size != FORMAT_PACKED)
		return -EBADMSG;
	memcpy(out->id, p + 12, 16);
	out->created_ns = (int64_t)get_le64(p + 28);
	out->name_seed = get_le64(p + 36);
	return history_load(txn, meta_table, out);
}

static int format_store(MDB_txn *txn, MDB_dbi meta_table, const struct clock *clock, const struct format *like)
{
	uint8_t value[FORMAT_PACKED] = FORMAT_MAGIC;
	MDB_val k = { sizeof(format_key) - 1, (void *)format_key }, d = { sizeof(value), value };

	put_le32(value + 8, META_FORMAT);
	if (like) {
		memcpy(value + 12, like->id, 16);
		put_le64(value + 36, like->name_seed);
	} else if (getrandom(value + 12, 16, 0) != 16 || getrandom(value + 36, 8, 0) != 8) {
		return -errno;
	}
	put_le64(value + 28, (uint64_t)clock_read(clock));
	return view_error(mdb_put(txn, meta_table, &k, &d, 0));
}

static int history_set(MDB_txn *txn, MDB_dbi meta_table, const uint8_t history[16])
{
	MDB_val k = { sizeof(history_key) - 1, (void *)history_key }, d = { 16, (void *)history };

	return view_error(mdb_put(txn, meta_table, &k, &d, 0));
}

int history_renew(MDB_env *env, MDB_dbi meta_table, struct format *format)
{
	static const uint8_t none[16];
	MDB_txn *txn;
	int r;

	if (memcmp(format->history, none, sizeof(none)))
		return 0;
	if (getrandom(format->history, sizeof(format->history), 0) != sizeof(format->history))
		return -EIO;
	r = view_error(mdb_txn_begin(env, NULL, 0, &txn));
	if (r < 0)
		return r;
	r = history_set(txn, meta_table, format->history);
	if (r < 0) {
		mdb_txn_abort(txn);
		return r;
	}
	return view_error(mdb_txn_commit(txn));
}

int history_clear(const char *file, uint64_t map_bytes)
{
	static const uint8_t none[16];
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi table;
	/* The original may be full. */
	int r = meta_environment_open(file, MDB_NOSUBDIR | MDB_NOLOCK, map_bytes ? map_bytes + NEW_FILE_MAP : 0, &env);

	if (r < 0)
		return r;
	r = view_error(mdb_txn_begin(env, NULL, 0, &txn));
	if (r == 0) {
		r = view_error(mdb_dbi_open(txn, table_names[TABLE_META], 0, &table));
		if (r == 0)
			r = history_set(txn, table, none);
		if (r == 0)
			r = view_error(mdb_txn_commit(txn));
		else
			mdb_txn_abort(txn);
	}
	mdb_env_close(env);
	return r;
}

static int tables_make(MDB_env *env, const struct clock *clock, const struct format *like)
{
	MDB_dbi tables[TABLE_COUNT];
	MDB_txn *txn;
	int r = view_error(mdb_txn_begin(env, NULL, 0, &txn));

	if (r < 0)
		return r;
	for (int t = 0; r == 0 && t < TABLE_COUNT; t++)
		r = view_error(mdb_dbi_open(txn, table_names[t], MDB_CREATE, &tables[t]));
	if (r == 0)
		r = format_store(txn, tables[TABLE_META], clock, like);
	if (r < 0) {
		mdb_txn_abort(txn);
		return r;
	}
	return view_error(mdb_txn_commit(txn));
}

static int folder_sync(const char *folder)
{
	CLEANUP_FD int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int format_make(const char *folder, const struct clock *clock, const struct format *like)
{
	CLEANUP_FREE char *unfinished = NULL, *finished = NULL;
	MDB_env *env;
	int r;

	if (asprintf(&unfinished, "%s/" NEW_FILE, folder) < 0 || asprintf(&finished, "%s/" DATA_FILE, folder) < 0)
		return -ENOMEM;
	if (unlink(unfinished) < 0 && errno != ENOENT)
		return -errno;
	r = meta_environment_open(unfinished, MDB_NOSUBDIR | MDB_NOLOCK, NEW_FILE_MAP, &env);
	if (r < 0)
		return r;
	r = tables_make(env, clock, like);
	mdb_env_close(env);
	if (r == 0 && rename(unfinished, finished) < 0)
		r = -errno;
	return r < 0 ? r : folder_sync(folder);
}
