/* LMDB trusts its file: a bad page number or a page of zeroes makes it crash, and
 * a file cut short is a SIGBUS at the first touch of what is missing.  So before
 * the server maps the file for good, a child process reads all of it once, every
 * key and every value, with the codecs that will read them later.  Whatever
 * happens to the child, the server lives and can say what is wrong.
 *
 * A first look at the two meta pages of LMDB (one a page of the file) tells a
 * file that is cut short, in words that are clearer than a signal's name:
 *
 *   page header 16 | magic le32 | version le32 | address 8 | map size 8
 *   | free tree 48 | main tree 48 | last page le64 | transaction le64
 *   tree: page size le32 | ... | root le64 at 40
 *
 * The last page itself may never have been written (LMDB may free it again before
 * it commits), so only the roots decide; the walk finds the rest. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "meta/machine.h"

#define WHY_MAX 240
#define EXIT_ERRNO 100 /* plus an errno: the child could not do its work */
#define LMDB_MAGIC 0xBEEFC0DEu
#define LMDB_HEAD 152u
#define LMDB_NO_PAGE UINT64_MAX

struct walk {
	struct format format;
	struct arena arena;
	char why[WHY_MAX];
};

static int walk_bad(struct walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int walk_bad(struct walk *w, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(w->why, sizeof(w->why), format, arguments);
	va_end(arguments);
	return -EBADMSG;
}

static bool message_ok(struct walk *w, const ProtobufCMessageDescriptor *type, MDB_val value)
{
	bool ok = protobuf_c_message_unpack(type, &w->arena.allocator, value.mv_size, value.mv_data) != NULL;

	arena_reset(&w->arena);
	return ok;
}

static bool inode_ok(const uint8_t *key, MDB_val value)
{
	struct attr a;

	return attr_unpack(value.mv_data, value.mv_size, &a) == 0 && a.inode == (get_be64(key) & INODE_MAX) &&
	       (S_ISLNK(a.mode) ? value.mv_size > INODE_HEAD : value.mv_size == INODE_HEAD || a.inode == ROOT_INODE);
}

static bool dentry_ok(struct walk *w, const uint8_t *key, MDB_val value)
{
	const uint8_t *name = (const uint8_t *)value.mv_data + DENTRY_HEAD;
	size_t size = value.mv_size - DENTRY_HEAD;

	return value.mv_size > DENTRY_HEAD && get_le64(value.mv_data) - 1 < INODE_MAX && name_check(name, size) == 0 &&
	       dentry_slot(w->format.name_seed, name, size) == (get_be64(key + 8) & ~(uint64_t)DENTRY_SLOT_MASK);
}

static bool extent_ok(const uint8_t *key, MDB_val value)
{
	struct extent e;

	return extent_value_unpack(get_be64(key + 8), value.mv_data, value.mv_size, &e) == 0;
}

static bool object_ok(MDB_val value)
{
	struct object_record o;

	return object_record_unpack(value.mv_data, value.mv_size, &o) == 0;
}

static bool record_ok(struct walk *w, enum table t, MDB_val key, MDB_val value)
{
	static const uint8_t key_sizes[TABLE_COUNT] = {
		[TABLE_VOLUME] = 4, [TABLE_INODE] = 8, [TABLE_DENTRY] = 16, [TABLE_EXTENT] = 16, [TABLE_OBJECT] = 8,
		[TABLE_RANGE] = 8,  [TABLE_FREE] = 16, [TABLE_TRASH] = 20,  [TABLE_SESSION] = 8, [TABLE_ANSWER] = 16,
	};

	if (key_sizes[t] && key.mv_size != key_sizes[t])
		return false;
	switch (t) {
	case TABLE_VOLUME: return message_ok(w, &wire__volume__descriptor, value);
	case TABLE_INODE: return inode_ok(key.mv_data, value);
	case TABLE_DENTRY: return dentry_ok(w, key.mv_data, value);
	case TABLE_EXTENT: return extent_ok(key.mv_data, value);
	case TABLE_XATTR: return key.mv_size > 8;
	case TABLE_OBJECT: return object_ok(value);
	case TABLE_RANGE: return value.mv_size == 12;
	case TABLE_TRASH: return value.mv_size >= 8;
	case TABLE_SESSION: return message_ok(w, &wire__session_begin__descriptor, value);
	case TABLE_ANSWER: return value.mv_size >= 4;
	default: return true;
	}
}

static int key_order(MDB_val a, const uint8_t *b, size_t b_size)
{
	int order = memcmp(a.mv_data, b, a.mv_size < b_size ? a.mv_size : b_size);

	return order ? order : (a.mv_size > b_size) - (a.mv_size < b_size);
}

static int walk_table(struct walk *w, MDB_txn *txn, MDB_dbi dbi, enum table t)
{
	uint8_t before[512];
	size_t before_size = 0;
	uint64_t records = 0;
	MDB_cursor *cursor;
	MDB_stat stat;
	MDB_val k, d;
	int r = mdb_stat(txn, dbi, &stat);

	if (r == MDB_SUCCESS)
		r = mdb_cursor_open(txn, dbi, &cursor);
	if (r != MDB_SUCCESS)
		return walk_bad(w, "table %s: %s", table_names[t], mdb_strerror(r));
	while ((r = mdb_cursor_get(cursor, &k, &d, MDB_NEXT)) == MDB_SUCCESS) {
		records++;
		if (k.mv_size == 0 || k.mv_size > sizeof(before) || key_order(k, before, before_size) <= 0)
			return walk_bad(w, "table %s: record %llu is out of order", table_names[t], (unsigned long long)records);
		if (!record_ok(w, t, k, d))
			return walk_bad(w, "table %s: record %llu cannot be read", table_names[t], (unsigned long long)records);
		memcpy(before, k.mv_data, k.mv_size);
		before_size = k.mv_size;
	}
	mdb_cursor_close(cursor);
	if (r != MDB_NOTFOUND)
		return walk_bad(w, "table %s: %s", table_names[t], mdb_strerror(r));
	if (records != stat.ms_entries)
		return walk_bad(w, "table %s: %llu records where %llu should be", table_names[t], (unsigned long long)records,
				(unsigned long long)stat.ms_entries);
	return 0;
}

/* LMDB's own list of free pages (tree 0): transaction -> count, then that many page numbers. */
static int walk_free_pages(struct walk *w, MDB_txn *txn, uint64_t last_page)
{
	MDB_cursor *cursor;
	MDB_val k, d;
	int r = mdb_cursor_open(txn, 0, &cursor);

	if (r != MDB_SUCCESS)
		return walk_bad(w, "list of free pages: %s", mdb_strerror(r));
	while ((r = mdb_cursor_get(cursor, &k, &d, MDB_NEXT)) == MDB_SUCCESS) {
		const size_t *pages = d.mv_data;
		if (d.mv_size < sizeof(size_t) || pages[0] > d.mv_size / sizeof(size_t) - 1)
			return walk_bad(w, "list of free pages: an entry cannot be read");
		for (size_t i = 1; i <= pages[0]; i++)
			if (pages[i] < 2 || pages[i] > last_page || (i > 1 && pages[i] >= pages[i - 1]))
				return walk_bad(w, "list of free pages: an entry cannot be read");
	}
	mdb_cursor_close(cursor);
	return r == MDB_NOTFOUND ? 0 : walk_bad(w, "list of free pages: %s", mdb_strerror(r));
}

static int walk_all(struct walk *w, MDB_env *env)
{
	MDB_dbi tables[TABLE_COUNT];
	MDB_envinfo info;
	MDB_txn *txn;
	int r = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);

	if (r != MDB_SUCCESS)
		return walk_bad(w, "%s", mdb_strerror(r));
	for (int t = 0; t < TABLE_COUNT; t++) {
		r = mdb_dbi_open(txn, table_names[t], 0, &tables[t]);
		if (r != MDB_SUCCESS)
			return walk_bad(w, "table %s: %s", table_names[t], mdb_strerror(r));
	}
	r = format_load(txn, tables[TABLE_META], &w->format);
	if (r < 0)
		return walk_bad(w, "it has no format record");
	if (w->format.number != META_FORMAT)
		return 0; /* meta_open says so */
	mdb_env_info(env, &info);
	r = walk_free_pages(w, txn, info.me_last_pgno);
	for (int t = 0; r == 0 && t < TABLE_COUNT; t++)
		r = walk_table(w, txn, tables[t], t);
	mdb_txn_abort(txn);
	return r;
}

/* LMDB gives up on what it cannot believe; its reason is ours. */
static void walk_assert(MDB_env *env, const char *text)
{
	const int *report = mdb_env_get_userctx(env);
	const char *found = strchr(text, '\'');

	if (write(*report, "LMDB: ", 6) < 0 || write(*report, found ? found : text, strcspn(found ? found : text, "\n")) < 0)
		_exit(2);
	_exit(1);
}

static _Noreturn void walk_child(const char *folder, uint64_t map_bytes, int report)
{
	static const int deadly[] = { SIGBUS, SIGSEGV, SIGABRT, SIGILL, SIGFPE, SIGTERM, SIGINT };
	struct walk w = { 0 };
	MDB_env *env;
	int r;

	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		signal(deadly[i], SIG_DFL);
	arena_init(&w.arena, 0);
	r = meta_environment_open(folder, MDB_RDONLY | MDB_NOLOCK | MDB_NOTLS, map_bytes, &env);
	if (r < 0 && r != -EBADMSG)
		_exit(EXIT_ERRNO - r);
	if (r < 0) {
		r = walk_bad(&w, "it is no file of LMDB's");
	} else {
		mdb_env_set_userctx(env, &report);
		mdb_env_set_assert(env, walk_assert);
		r = walk_all(&w, env);
	}
	if (r < 0 && write(report, w.why, strlen(w.why)) < 0)
		_exit(2);
	_exit(r < 0);
}

/* What the child's end means: 0, -EBADMSG, or an errno that says nothing about the file. */
static int walk_judge(int status, size_t length, char *why, size_t why_size)
{
	int signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) > EXIT_ERRNO)
		return EXIT_ERRNO - WEXITSTATUS(status);
	if (signal_number == SIGKILL || signal_number == SIGTERM || signal_number == SIGINT)
		return -EINTR;
	if (length == 0 && signal_number)
		snprintf(why, why_size, "reading it through ends in signal %d (%s)", signal_number, strsignal(signal_number));
	else if (length == 0)
		snprintf(why, why_size, "reading it through fails");
	return -EBADMSG;
}

static int walk_wait(pid_t child, int report, char *why, size_t why_size)
{
	size_t length = 0;
	ssize_t n;
	int status;

	while (length + 1 < why_size && (n = read(report, why + length, why_size - length - 1)) != 0) {
		if (n < 0 && errno != EINTR)
			break;
		length += n > 0 ? (size_t)n : 0;
	}
	why[length] = 0;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return walk_judge(status, length, why, why_size);
}

/* What can be told without mapping: are there two meta pages, and does the file reach to the roots they name? */
static int heads_check(const char *folder, char *why, size_t why_size)
{
	CLEANUP_FREE char *path = NULL;
	uint8_t first[LMDB_HEAD], second[LMDB_HEAD], *newest;
	uint64_t page, needed;
	struct stat st;

	if (asprintf(&path, "%s/" DATA_FILE, folder) < 0)
		return -ENOMEM;
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (pread(fd, first, sizeof(first), 0) != sizeof(first) || get_le32(first + 16) != LMDB_MAGIC) {
		snprintf(why, why_size, st.st_size == 0 ? "it is empty" : "its first page is not one of LMDB's");
		return -EBADMSG;
	}
	page = get_le32(first + 40);
	if (page < 512 || page > 65536 || pread(fd, second, sizeof(second), (off_t)page) != sizeof(second) ||
	    get_le32(second + 16) != LMDB_MAGIC) {
		snprintf(why, why_size, "its second page is not one of LMDB's");
		return -EBADMSG;
	}
	newest = get_le64(second + 144) > get_le64(first + 144) ? second : first;
	needed = 0;
	for (int root = 80; root <= 128; root += 48)
		if (get_le64(newest + root) != LMDB_NO_PAGE && get_le64(newest + root) > needed)
			needed = get_le64(newest + root);
	if ((uint64_t)st.st_size / page <= needed) {
		snprintf(why, why_size, "it is cut short: %llu bytes, and page %llu is missing", (unsigned long long)st.st_size,
			 (unsigned long long)needed);
		return -EBADMSG;
	}
	return 0;
}

/* It must not keep what its parent holds, least of all the lock of the data folder, and not live longer. */
static void walk_let_go(int report, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	if (report > 3)
		close_range(3, (unsigned)report - 1, 0);
	close_range((unsigned)report + 1, ~0u, 0);
}

static int walk_fork(const char *folder, uint64_t map_bytes, char *why, size_t why_size)
{
	int report[2], r;
	pid_t child, self = getpid();

	if (pipe2(report, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child < 0) {
		r = -errno;
		close(report[0]);
		close(report[1]);
		return r;
	}
	if (child == 0) {
		walk_let_go(report[1], self);
		walk_child(folder, map_bytes, report[1]);
	}
	close(report[1]);
	r = walk_wait(child, report[0], why, why_size);
	close(report[0]);
	return r;
}

int walk_check(const char *folder, uint64_t map_bytes, char *why, size_t why_size)
{
	struct sigaction usual = { .sa_handler = SIG_DFL }, before;
	int r = heads_check(folder, why, why_size);

	if (r < 0)
		return r;
	/* Whoever started us may have ignored SIGCHLD, and then nobody could wait for the child. */
	sigaction(SIGCHLD, &usual, &before);
	r = walk_fork(folder, map_bytes, why, why_size);
	sigaction(SIGCHLD, &before, NULL);
	return r;
}
