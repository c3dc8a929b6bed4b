/* How much room there is left for metadata: free space of the disk, and the pages
 * of LMDB's file that it will use again.  Making files ends a little before that
 * is all gone, so that deleting still works. */
#include <sys/statvfs.h>
#include "meta/machine.h"

/* Bytes of the file that LMDB will use again before it lets the file grow; no more than `enough` are counted.  Tree 0 is
 * its list of free pages: transaction -> how many, and which. */
static uint64_t free_bytes(struct meta *m, uint64_t enough)
{
	uint64_t bytes = 0;
	MDB_cursor *cursor;
	MDB_stat stat;
	MDB_val k, d;
	struct view v;

	if (meta_view_begin(m, &v) < 0)
		return 0;
	if (mdb_env_stat(m->env, &stat) == MDB_SUCCESS && mdb_cursor_open(v.txn, 0, &cursor) == MDB_SUCCESS) {
		while (bytes < enough && mdb_cursor_get(cursor, &k, &d, MDB_NEXT) == MDB_SUCCESS)
			bytes += *(const size_t *)d.mv_data * stat.ms_psize;
		mdb_cursor_close(cursor);
	}
	meta_view_end(&v);
	return bytes;
}

void meta_space_look(struct meta *m)
{
	struct statvfs s;
	uint64_t left;

	if (statvfs(m->folder, &s) < 0)
		return;
	left = (uint64_t)s.f_bavail * s.f_frsize;
	if (left < SPACE_RESERVE)
		left += free_bytes(m, SPACE_RESERVE - left);
	atomic_store(&m->low_space, left < SPACE_RESERVE);
}
