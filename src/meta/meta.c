#include "meta/meta.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/machine.h"

#define MAP_BYTES ((uint64_t)1 << 40)
#define MAP_BYTES_LEAST ((uint64_t)256 << 20)
#define DATABASES 16u

/* Address space may be limited (ulimit -v, small virtual machines): take less then. */
int meta_environment_open(const char *path, unsigned flags, uint64_t map_bytes, MDB_env **out)
{
	uint64_t size = map_bytes ? map_bytes : MAP_BYTES;
	MDB_env *env;
	int r;

	do {
		r = mdb_env_create(&env);
		if (r != MDB_SUCCESS)
			return view_error(r);
		mdb_env_set_maxdbs(env, DATABASES);
		mdb_env_set_maxreaders(env, READERS_MAX);
		mdb_env_set_mapsize(env, size);
		r = mdb_env_open(env, path, flags, 0600);
		if (r == MDB_SUCCESS) {
			*out = env;
			return 0;
		}
		mdb_env_close(env);
		size /= 2;
	} while (r == ENOMEM && size >= MAP_BYTES_LEAST);
	return r == MDB_VERSION_MISMATCH ? -EBADMSG : view_error(r);
}

static void refuse_damaged(const char *folder, const char *why, char *error, size_t error_size)
{
	const char *slash = strrchr(folder, '/');
	int parent = slash && slash[1] ? (int)(slash - folder) : -1;

	if (parent < 0)
		snprintf(error, error_size,
			 "the metadata in %s/" DATA_FILE " are damaged (%s); stop here and restore the newest copy from "
			 "the backup folder, as docs/operations.md says under \"Damaged metadata\"",
			 folder, why);
	else
		snprintf(error, error_size,
			 "the metadata in %s/" DATA_FILE " are damaged (%s); stop here and restore the newest copy from "
			 "%.*s/backup, as docs/operations.md says under \"Damaged metadata\"",
			 folder, why, parent, folder);
}

/* Makes the name of the file or folder itself durable. */
static int parent_sync(const char *file)
{
	const char *slash = strrchr(file, '/');
	CLEANUP_FREE char *folder = slash ? strndup(file, slash == file ? 1 : (size_t)(slash - file)) : strdup(".");

	if (!folder)
		return -ENOMEM;
	CLEANUP_FD int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

/* A file that is there, whole and of our format. */
static int file_prepare(const struct meta_options *o, char *error, size_t error_size)
{
	CLEANUP_FREE char *path = NULL;
	char why[256];
	int r = 0;

	if (mkdir(o->folder, 0700) == 0)
		r = parent_sync(o->folder);
	else if (errno != EEXIST)
		r = -errno;
	if (r < 0) {
		snprintf(error, error_size, "cannot make the folder %s: %s", o->folder, strerror(-r));
		return r;
	}
	if (asprintf(&path, "%s/" DATA_FILE, o->folder) < 0)
		return -ENOMEM;
	if (access(path, F_OK) < 0)
		r = errno == ENOENT ? format_make(o->folder, o->clock, NULL) : -errno;
	if (r < 0) {
		snprintf(error, error_size, "cannot make %s: %s", path, strerror(-r));
		return r;
	}
	r = walk_check(o->folder, o->map_bytes, why, sizeof(why));
	if (r == -EBADMSG)
		refuse_damaged(o->folder, why, error, error_size);
	else if (r < 0)
		snprintf(error, error_size, "cannot read %s: %s", path, strerror(-r));
	return r;
}

static int tables_open(struct meta *m, char *error, size_t error_size)
{
	MDB_txn *txn;
	int r = view_error(mdb_txn_begin(m->env, NULL, MDB_RDONLY, &txn));

	if (r < 0)
		return r;
	for (int t = 0; r == 0 && t < TABLE_COUNT; t++)
		r = view_error(mdb_dbi_open(txn, table_names[t], 0, &m->tables[t]));
	if (r == 0)
		r = format_load(txn, m->tables[TABLE_META], &m->format);
	if (r < 0) {
		mdb_txn_abort(txn);
		snprintf(error, error_size, "cannot read %s/" DATA_FILE ": %s", m->folder, strerror(-r));
		return r;
	}
	/* Committing a read transaction is what keeps the table handles. */
	r = view_error(mdb_txn_commit(txn));
	if (r == 0 && m->format.number != META_FORMAT) {
		snprintf(error, error_size,
			 "%s/" DATA_FILE " has format %u and this version of EpochFS knows format %u; "
			 "use the version that wrote it, or a newer one",
			 m->folder, m->format.number, META_FORMAT);
		return -EPROTONOSUPPORT;
	}
	return r;
}

int meta_open(const struct meta_options *options, struct meta **out, char *error, size_t error_size)
{
	struct meta *m;
	int r, dead = 0;

	error[0] = 0;
	r = file_prepare(options, error, error_size);
	if (r < 0)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->clock = *options->clock;
	m->map_bytes = options->map_bytes;
	pthread_mutex_init(&m->readers_lock, NULL);
	pthread_cond_init(&m->readers_free, NULL);
	opens_init(&m->opens);
	recent_init(&m->recent);
	r = roster_init(&m->roster);
	m->folder = strdup(options->folder);
	if (r == 0 && !m->folder)
		r = -ENOMEM;
	if (r == 0)
		r = meta_environment_open(m->folder, MDB_NOTLS, options->map_bytes, &m->env);
	if (r == 0)
		r = tables_open(m, error, error_size);
	if (r == 0)
		r = history_renew(m->env, m->tables[TABLE_META], &m->format);
	if (r == 0) {
		mdb_reader_check(m->env, &dead);
		r = roster_reload(m);
	}
	if (r == 0 && !options->replica)
		r = writer_start(m);
	if (r < 0) {
		if (!error[0])
			snprintf(error, error_size, "cannot open %s/" DATA_FILE ": %s", options->folder, strerror(-r));
		meta_close(m);
		return r;
	}
	*out = m;
	return 0;
}

void meta_close(struct meta *m)
{
	if (!m)
		return;
	writer_stop(m);
	for (int i = 0; i < m->idle_count; i++)
		mdb_txn_abort(m->idle[i]);
	if (m->env)
		mdb_env_close(m->env);
	roster_free(&m->roster);
	recent_free(&m->recent);
	opens_free(&m->opens);
	pthread_cond_destroy(&m->readers_free);
	pthread_mutex_destroy(&m->readers_lock);
	free(m->folder);
	free(m);
}

/* An idle read transaction, or NULL when a new one may be made. */
static MDB_txn *reader_take(struct meta *m)
{
	LOCKED(&m->readers_lock);
	while (m->idle_count == 0 && m->reader_count == READERS_POOLED)
		pthread_cond_wait(&m->readers_free, &m->readers_lock);
	if (m->idle_count > 0)
		return m->idle[--m->idle_count];
	m->reader_count++;
	return NULL;
}

static void reader_lost(struct meta *m)
{
	LOCKED(&m->readers_lock);
	m->reader_count--;
	pthread_cond_signal(&m->readers_free);
}

int meta_view_begin(struct meta *m, struct view *out)
{
	MDB_txn *txn = reader_take(m);
	int r = txn ? mdb_txn_renew(txn) : mdb_txn_begin(m->env, NULL, MDB_RDONLY, &txn);

	if (r != MDB_SUCCESS) {
		if (txn)
			mdb_txn_abort(txn);
		reader_lost(m);
		log_error("cannot begin to read the metadata: %s", mdb_strerror(r));
		return view_error(r);
	}
	*out = (struct view){ .meta = m, .txn = txn };
	return 0;
}

void meta_view_end(struct view *v)
{
	struct meta *m = v->meta;

	mdb_txn_reset(v->txn);
	LOCKED(&m->readers_lock);
	m->idle[m->idle_count++] = v->txn;
	v->txn = NULL;
	pthread_cond_signal(&m->readers_free);
}

static void explain_into(struct arena *arena, const char *why, ProtobufCMessage **reply)
{
	Wire__ErrorReply *error = arena_take(arena, sizeof(*error));
	char *text = arena_copy(arena, why, strlen(why) + 1);

	if (!error || !text)
		return;
	wire__error_reply__init(error);
	error->text = text;
	*reply = &error->base;
}

int meta_read(struct meta *m, const struct caller *who, uint16_t number, const ProtobufCMessage *request, struct arena *arena,
	      ProtobufCMessage **reply)
{
	const struct op_info *info = op_find(number);
	struct op op = { .meta = m, .who = who, .volume = who->volume, .arena = arena };
	ProtobufCMessage *answer;
	struct view view;
	int r;

	if (!info || info->kind != OP_READ || request->descriptor != info->request)
		return -EINVAL;
	answer = arena_take(arena, info->reply->sizeof_message);
	if (!answer)
		return -ENOMEM;
	protobuf_c_message_init(info->reply, answer);
	r = meta_view_begin(m, &view);
	if (r < 0)
		return r;
	op.view = &view;
	op.now_ns = clock_read(&m->clock);
	r = op_handler_of(info)(&op, request, answer);
	meta_view_end(&view);
	if (r == 0)
		*reply = answer;
	else if (reply && op.why[0])
		explain_into(arena, op.why, reply);
	return r;
}

int meta_volume_find(struct meta *m, const char *name, struct arena *arena, Wire__Volume **out)
{
	static const struct caller nobody;
	struct view view;
	struct op op = { .view = &view, .meta = m, .who = &nobody, .arena = arena };
	int r = meta_view_begin(m, &view);

	if (r < 0)
		return r;
	r = volume_find(&op, name, out);
	meta_view_end(&view);
	return r;
}

uint64_t meta_batch(struct meta *m) { return atomic_load(&m->batch); }

const uint8_t *meta_history(const struct meta *m) { return m->format.history; }

uint64_t meta_name_seed(const struct meta *m) { return m->format.name_seed; }

uint64_t meta_file_bytes(struct meta *m)
{
	struct stat st;
	int fd;

	if (mdb_env_get_fd(m->env, &fd) != MDB_SUCCESS || fstat(fd, &st) < 0)
		return 0;
	return (uint64_t)st.st_size;
}

/* A compact copy needs LMDB's page counts to be right to the page; where they
 * are not, a page by page copy is as good. */
static int backup_write(struct meta *m, int fd)
{
	int r = mdb_env_copyfd2(m->env, fd, MDB_CP_COMPACT);

	if (r != MDB_SUCCESS && r != ENOSPC) {
		log_warn("a compact copy of the metadata failed (%s); copying all of it", mdb_strerror(r));
		if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
			return -errno;
		r = mdb_env_copyfd2(m->env, fd, 0);
	}
	if (r != MDB_SUCCESS)
		return view_error(r);
	return fsync(fd) < 0 ? -errno : 0;
}

int meta_backup(struct meta *m, const char *file)
{
	CLEANUP_FREE char *unfinished = NULL;
	int r;

	if (asprintf(&unfinished, "%s.unfinished", file) < 0)
		return -ENOMEM;
	CLEANUP_FD int fd = open(unfinished, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = backup_write(m, fd);
	if (r == 0)
		r = history_clear(unfinished, m->map_bytes);
	if (r == 0 && rename(unfinished, file) < 0)
		r = -errno;
	if (r < 0) {
		unlink(unfinished);
		return r;
	}
	return parent_sync(file);
}
