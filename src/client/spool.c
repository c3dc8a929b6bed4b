#include "client/spool.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"

#define HEAD 64u
#define HEAD_SUM 56u
#define RECORD 64u
#define RECORD_SUM 56u
#define RECORD_MAGIC 0x31527053u /* "SpR1" */
#define LENGTH_MAX (64u << 20)
#define WRITE_BYTES (1u << 20) /* at a time: more takes memory that is dear to touch (cache/objects.c says why) */
#define EARLY_BYTES (8u << 20) /* so much is left to the kernel before it is asked to begin writing */

static const uint8_t magic[8] = "EpSpool1";

enum { TYPE_DATA = 1, TYPE_NOTE = 2 };

struct spool_folder {
	char *path, *directory;
	int fd, lock;
	uint64_t limit;
	_Atomic uint64_t bytes, generation;
};

struct spool {
	struct spool_folder *folder;
	_Atomic int refs;
	int fd;
	uint64_t inode, generation;
	uint64_t sequence, tail; /* of the next record */
	uint64_t early;          /* up to where the kernel was asked to write */
	pthread_mutex_t syncing; /* guards the two below */
	bool named;              /* its name is durable */
	uint64_t durable;
};

/* ---- The directory and its folders ---- */

static int folder_sync(int fd) { return fsync(fd) < 0 ? -errno : 0; }

static int write_all(int fd, const void *data, size_t size, uint64_t at)
{
	const uint8_t *p = data;

	while (size > 0) {
		ssize_t n = pwrite(fd, p, size < WRITE_BYTES ? size : WRITE_BYTES, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		at += (uint64_t)n;
		size -= (size_t)n;
	}
	return 0;
}

static int read_all(int fd, void *data, size_t size, uint64_t at)
{
	uint8_t *p = data;

	while (size > 0) {
		ssize_t n = pread(fd, p, size, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENODATA;
		p += n;
		at += (uint64_t)n;
		size -= (size_t)n;
	}
	return 0;
}

/* Whole, or not there: two mounts may come at the same time. */
static int id_make(int directory)
{
	uint8_t id[SPOOL_ID];
	char name[32];
	int r;

	if (getrandom(id, sizeof(id), 0) != sizeof(id))
		return -EIO;
	snprintf(name, sizeof(name), "id.%ld", (long)getpid());
	CLEANUP_FD int fd = openat(directory, name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = write_all(fd, id, sizeof(id), 0);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && linkat(directory, name, directory, "id", 0) < 0 && errno != EEXIST)
		r = -errno;
	unlinkat(directory, name, 0);
	return r == 0 ? folder_sync(directory) : r;
}

/* Its name is durable before anything in it is promised. */
static int directory_make(const char *path)
{
	CLEANUP_FREE char *copy = strdup(path);
	CLEANUP_FD int parent = -1;

	if (!copy)
		return -ENOMEM;
	if (mkdir(path, 0700) < 0)
		return errno == EEXIST ? 0 : -errno;
	parent = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return parent < 0 ? -errno : folder_sync(parent);
}

/* What is in it; NULL: errno. */
static DIR *names_open(int folder)
{
	int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	int error = errno;

	if (!d && fd >= 0)
		close(fd);
	errno = error;
	return d;
}

/* It had no id.  What an earlier try, or mkfs, has left does not count. */
static int directory_unused(int directory)
{
	DIR *d = names_open(directory);
	bool used = false, made = false;
	struct dirent *e;
	int r;

	if (!d)
		return -errno;
	while ((errno = 0, e = readdir(d))) {
		if (!strcmp(e->d_name, "id")) /* by another mount, meanwhile */
			made = true;
		else if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, "lost+found") &&
			 strncmp(e->d_name, "id.", 3))
			used = true;
	}
	r = errno ? -errno : used && !made ? -ENOTEMPTY : 0;
	closedir(d);
	return r;
}

int spool_id(const char *directory, uint8_t out[SPOOL_ID], char *error, size_t error_size)
{
	int r = directory_make(directory);
	CLEANUP_FD int folder = r == 0 ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	if (r == 0 && folder < 0)
		r = -errno;
	for (int tries = 0; r == 0 && tries < 2; tries++) {
		CLEANUP_FD int fd = openat(folder, "id", O_RDONLY | O_CLOEXEC);

		if (fd >= 0) {
			r = read_all(fd, out, SPOOL_ID, 0);
			break;
		}
		r = errno == ENOENT ? directory_unused(folder) : -errno;
		if (r == 0)
			r = id_make(folder);
	}
	if (r < 0)
		snprintf(error, error_size, "the write-back directory %s cannot be used: %s", directory,
			 r == -ENODATA     ? "its id is cut off"
			 : r == -ENOTEMPTY ? "it is not empty, and no write-back directory; name an empty one, or a new one"
					   : strerror(-r));
	return r;
}

/* Files may be longer than what was counted of them: torn, or written to by somebody else. */
static void room_give(struct spool_folder *f, uint64_t bytes)
{
	uint64_t now = atomic_load(&f->bytes);

	while (!atomic_compare_exchange_weak(&f->bytes, &now, now < bytes ? 0 : now - bytes))
		;
}

static void generation_raise(struct spool_folder *f, uint64_t at_least)
{
	uint64_t now = atomic_load(&f->generation);

	while (now < at_least && !atomic_compare_exchange_weak(&f->generation, &now, at_least))
		;
}

static int note_existing(void *context, uint64_t inode, uint64_t generation)
{
	struct spool_folder *f = context;
	char name[40];
	struct stat st;

	generation_raise(f, generation);
	snprintf(name, sizeof(name), "%016" PRIx64 ".%016" PRIx64, inode, generation);
	if (fstatat(f->fd, name, &st, 0) == 0)
		atomic_fetch_add(&f->bytes, (uint64_t)st.st_size);
	return 0;
}

static int folder_prepare(struct spool_folder *f)
{
	struct timespec now;
	int r = directory_make(f->path);

	if (r < 0)
		return r;
	f->fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->fd < 0)
		return -errno;
	f->lock = openat(f->fd, "lock", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (f->lock < 0)
		return -errno;
	if (flock(f->lock, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EBUSY : -errno;
	/* Higher than any there ever was: of those that are gone only the time is known. */
	clock_gettime(CLOCK_REALTIME, &now);
	generation_raise(f, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
	return spool_folder_each(f, note_existing, f);
}

int spool_folder_open(const char *directory, const uint8_t history[16], uint32_t volume, uint64_t limit,
		      struct spool_folder **out, char *error, size_t error_size)
{
	struct spool_folder *f = calloc(1, sizeof(*f));
	char hex[33];
	int r = -ENOMEM;

	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", history[i]);
	if (f) {
		f->fd = f->lock = -1;
		f->limit = limit;
		f->directory = strdup(directory);
		r = !f->directory || asprintf(&f->path, "%s/%s-%u", directory, hex, volume) < 0 ? -ENOMEM : folder_prepare(f);
	}
	if (r < 0) {
		snprintf(error, error_size, "the write-back directory %s cannot be used: %s", directory,
			 r == -EBUSY ? "another mount of this volume uses it; give each its own" : strerror(-r));
		spool_folder_close(f);
		return r;
	}
	*out = f;
	return 0;
}

void spool_folder_close(struct spool_folder *f)
{
	if (!f)
		return;
	if (f->lock >= 0)
		close(f->lock);
	if (f->fd >= 0)
		close(f->fd);
	free(f->path);
	free(f->directory);
	free(f);
}

uint64_t spool_folder_bytes(struct spool_folder *f) { return atomic_load(&f->bytes); }

bool spool_folder_is_filling(struct spool_folder *f) { return atomic_load(&f->bytes) > f->limit / 2; }

const char *spool_folder_path(const struct spool_folder *f) { return f->path; }

const char *spool_folder_directory(const struct spool_folder *f) { return f->directory; }

/* 16 digits, a full stop, 16 digits. */
static bool name_parse(const char *name, uint64_t *inode, uint64_t *generation)
{
	static const char digits[] = "0123456789abcdef";

	if (strlen(name) != 33 || strspn(name, digits) != 16 || name[16] != '.' || strspn(name + 17, digits) != 16)
		return false;
	*inode = strtoull(name, NULL, 16);
	*generation = strtoull(name + 17, NULL, 16);
	return true;
}

int spool_folder_each(struct spool_folder *f, int (*each)(void *context, uint64_t inode, uint64_t generation), void *context)
{
	DIR *d = names_open(f->fd);
	struct dirent *e;
	int r = 0;

	if (!d)
		return -errno;
	while (r == 0 && (errno = 0, e = readdir(d))) {
		uint64_t inode, generation;

		if (name_parse(e->d_name, &inode, &generation))
			r = each(context, inode, generation);
	}
	if (r == 0 && errno)
		r = -errno;
	closedir(d);
	return r;
}

void spool_folder_delete(struct spool_folder *f, uint64_t inode, uint64_t generation)
{
	char name[40];
	struct stat st;

	snprintf(name, sizeof(name), "%016" PRIx64 ".%016" PRIx64, inode, generation);
	if (fstatat(f->fd, name, &st, 0) < 0)
		return;
	if (unlinkat(f->fd, name, 0) < 0)
		log_warn("cannot delete %s/%s, which is not needed any more: %s", f->path, name, strerror(errno));
	else
		room_give(f, (uint64_t)st.st_size);
}

/* ---- One spool ---- */

static struct spool *spool_make(struct spool_folder *f, uint64_t inode, uint64_t generation, int flags, int *error)
{
	struct spool *s = calloc(1, sizeof(*s));
	char name[40];

	*error = -ENOMEM;
	if (!s)
		return NULL;
	snprintf(name, sizeof(name), "%016" PRIx64 ".%016" PRIx64, inode, generation);
	s->folder = f;
	s->refs = 1;
	s->inode = inode;
	s->generation = generation;
	s->sequence = 1;
	s->tail = s->early = HEAD;
	s->fd = openat(f->fd, name, flags | O_RDWR | O_CLOEXEC, 0600);
	if (s->fd < 0) {
		*error = -errno;
		free(s);
		return NULL;
	}
	pthread_mutex_init(&s->syncing, NULL);
	*error = 0;
	return s;
}

static int head_write(struct spool *s, uint64_t durable)
{
	uint8_t head[HEAD] = { 0 };

	memcpy(head, magic, sizeof(magic));
	put_le64(head + 8, s->inode);
	put_le64(head + 16, s->generation);
	put_le64(head + 24, durable);
	put_le64(head + HEAD_SUM, XXH3_64bits_withSeed(head, HEAD_SUM, s->generation));
	return write_all(s->fd, head, HEAD, 0);
}

int spool_new(struct spool_folder *f, uint64_t inode, struct spool **out)
{
	struct spool *s;
	int r;

	if (atomic_load(&f->bytes) + HEAD > f->limit)
		return -ENOSPC;
	s = spool_make(f, inode, atomic_fetch_add(&f->generation, 1) + 1, O_CREAT | O_EXCL, &r);
	if (!s)
		return r;
	atomic_fetch_add(&f->bytes, HEAD);
	r = head_write(s, 0);
	if (r < 0) {
		spool_delete(s);
		spool_unref(s);
		return r;
	}
	*out = s;
	return 0;
}

void spool_ref(struct spool *s) { atomic_fetch_add(&s->refs, 1); }

void spool_unref(struct spool *s)
{
	if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	close(s->fd);
	pthread_mutex_destroy(&s->syncing);
	free(s);
}

void spool_delete(struct spool *s) { spool_folder_delete(s->folder, s->inode, s->generation); }

uint64_t spool_generation(const struct spool *s) { return s->generation; }

/* Takes what a record needs of the limit. */
static int room_take(struct spool_folder *f, uint64_t bytes)
{
	if (atomic_fetch_add(&f->bytes, bytes) + bytes <= f->limit)
		return 0;
	room_give(f, bytes);
	return -ENOSPC;
}

/* A record that could not be written whole is overwritten by the next one. */
static int record_write(struct spool *s, uint32_t type, uint64_t a, uint64_t b, uint64_t c, const void *data, uint32_t length)
{
	uint8_t head[RECORD] = { 0 };
	struct iovec parts[2] = { { head, RECORD }, { (void *)data, length < WRITE_BYTES ? length : WRITE_BYTES } };
	ssize_t n;
	int r;

	put_le32(head, RECORD_MAGIC);
	put_le32(head + 4, type);
	put_le64(head + 8, s->sequence);
	put_le64(head + 16, a);
	put_le64(head + 24, b);
	put_le64(head + 32, c);
	put_le32(head + 40, length);
	put_le64(head + RECORD_SUM, XXH3_64bits_withSeed(head, RECORD_SUM, s->generation));
	r = room_take(s->folder, RECORD + (uint64_t)length);
	if (r < 0)
		return r;
	do
		n = pwritev(s->fd, parts, length ? 2 : 1, (off_t)s->tail);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		r = -errno;
	else if (n < (ssize_t)RECORD)
		r = -EIO;
	else if ((uint64_t)n < RECORD + (uint64_t)length)
		r = write_all(s->fd, (const uint8_t *)data + (n - RECORD), RECORD + length - (size_t)n, s->tail + (uint64_t)n);
	if (r < 0) {
		/* What is there of it must not outlive the room it was counted for. */
		if (ftruncate(s->fd, (off_t)s->tail) < 0)
			log_warn("cannot cut off a record of %s that was not written: %s", s->folder->path, strerror(errno));
		room_give(s->folder, RECORD + (uint64_t)length);
		return r;
	}
	s->sequence++;
	s->tail += RECORD + length;
	return 0;
}

int spool_append(struct spool *s, uint64_t offset, const void *data, uint32_t length, struct spool_record *out)
{
	struct spool_record record = { .place = s->tail + RECORD, .sum = XXH3_64bits(data, length), .length = length };
	int r = record_write(s, TYPE_DATA, offset, record.sum, 0, data, length);

	if (r < 0)
		return r;
	*out = record;
	/* So that fsync has little left to wait for. */
	if (s->tail - s->early >= EARLY_BYTES) {
		sync_file_range(s->fd, (off_t)s->early, (off_t)(s->tail - s->early), SYNC_FILE_RANGE_WRITE);
		s->early = s->tail;
	}
	return 0;
}

int spool_note(struct spool *s, uint64_t size, int64_t mtime_ns, int64_t ctime_ns)
{
	return record_write(s, TYPE_NOTE, size, (uint64_t)mtime_ns, (uint64_t)ctime_ns, NULL, 0);
}

uint64_t spool_end(const struct spool *s) { return s->tail; }

/* The head is written afterwards and is durable some time later: it says what was, for who looks for damage. */
int spool_sync(struct spool *s, uint64_t upto)
{
	LOCKED(&s->syncing);

	if (fdatasync(s->fd) < 0)
		return -errno;
	if (!s->named && folder_sync(s->folder->fd) < 0)
		return -errno;
	s->named = true;
	if (upto > s->durable)
		s->durable = upto;
	return head_write(s, s->durable);
}

int spool_read(const struct spool *s, uint64_t place, void *into, size_t length)
{
	int r = read_all(s->fd, into, length, place);

	if (r < 0)
		log_error("cannot read what was written back to %s/%016" PRIx64 ".%016" PRIx64 ": %s", s->folder->path, s->inode,
			  s->generation, r == -ENODATA ? "it is cut off" : strerror(-r));
	return r < 0 ? -EIO : 0;
}

int spool_read_record(const struct spool *s, const struct spool_record *record, void *into)
{
	int r = spool_read(s, record->place, into, record->length);

	return r < 0 || XXH3_64bits(into, record->length) == record->sum ? r : -EIO;
}

int spool_verify(const struct spool *s, const struct spool_record *record)
{
	CLEANUP_FREE uint8_t *bytes = malloc(record->length);
	int r = bytes ? spool_read(s, record->place, bytes, record->length) : -ENOMEM;

	if (r < 0 || XXH3_64bits(bytes, record->length) == record->sum)
		return r;
	log_error("what was written back to %s/%016" PRIx64 ".%016" PRIx64 " is damaged: %u bytes at %" PRIu64
		  " are not what was written; see \"The disk of a write-back directory is broken\" in docs/operations.md",
		  s->folder->path, s->inode, s->generation, record->length, record->place);
	return -EIO;
}

/* ---- Loading ---- */

struct record {
	uint32_t type, length;
	uint64_t sequence, a, b, c;
};

/* -ENODATA: there is none, or not a whole one. */
static int record_read(const struct spool *s, uint64_t at, struct record *out)
{
	uint8_t head[RECORD];
	int r = read_all(s->fd, head, RECORD, at);

	if (r < 0)
		return r;
	if (get_le32(head) != RECORD_MAGIC ||
	    get_le64(head + RECORD_SUM) != XXH3_64bits_withSeed(head, RECORD_SUM, s->generation))
		return -ENODATA;
	*out = (struct record){ .type = get_le32(head + 4),
				.sequence = get_le64(head + 8),
				.a = get_le64(head + 16),
				.b = get_le64(head + 24),
				.c = get_le64(head + 32),
				.length = get_le32(head + 40) };
	return out->length > LENGTH_MAX || (out->type != TYPE_DATA && (out->type != TYPE_NOTE || out->length)) ? -ENODATA : 0;
}

static int data_check(const struct spool *s, uint64_t at, const struct record *record, uint8_t **buffer)
{
	uint8_t *grown;
	int r;

	if (record->type != TYPE_DATA)
		return 0;
	if (!record->length || record->a > INT64_MAX - record->length)
		return -ENODATA;
	grown = realloc(*buffer, record->length);
	if (!grown)
		return -ENOMEM;
	*buffer = grown;
	r = read_all(s->fd, grown, record->length, at + RECORD);
	return r < 0 ? r : XXH3_64bits(grown, record->length) == record->b ? 0 : -ENODATA;
}

/* Where the last note ends, and what it says. */
static int last_note(struct spool *s, struct spool_state *state, uint64_t *end)
{
	CLEANUP_FREE uint8_t *buffer = NULL;
	uint64_t at = HEAD;
	struct record record;
	int r;

	*end = 0;
	for (uint64_t sequence = 1;; sequence++) {
		r = record_read(s, at, &record);
		if (r == 0 && record.sequence != sequence)
			r = -ENODATA;
		if (r == 0)
			r = data_check(s, at, &record, &buffer);
		if (r < 0)
			break;
		at += RECORD + record.length;
		if (record.type == TYPE_NOTE) {
			*state = (struct spool_state){ record.a, (int64_t)record.b, (int64_t)record.c };
			*end = at;
			s->sequence = sequence + 1;
		}
	}
	if (r != -ENODATA)
		return r;
	if (at < s->durable)
		return -EBADMSG;
	return *end ? 0 : -ENODATA;
}

static int head_read(struct spool *s)
{
	uint8_t head[HEAD];
	int r = read_all(s->fd, head, HEAD, 0);

	if (r < 0)
		return r == -ENODATA ? -EBADMSG : r;
	if (memcmp(head, magic, sizeof(magic)) || get_le64(head + 8) != s->inode || get_le64(head + 16) != s->generation ||
	    get_le64(head + HEAD_SUM) != XXH3_64bits_withSeed(head, HEAD_SUM, s->generation))
		return -EBADMSG;
	s->durable = get_le64(head + 24);
	return 0;
}

/* What follows the last note goes: records that are appended from now on must not be followed by old ones. */
static int tail_cut(struct spool *s, uint64_t end)
{
	struct stat st;

	if (fstat(s->fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size > end) {
		if (ftruncate(s->fd, (off_t)end) < 0 || fdatasync(s->fd) < 0)
			return -errno;
		room_give(s->folder, (uint64_t)st.st_size - end);
	}
	s->tail = s->early = end;
	s->named = true;
	return 0;
}

int spool_load(struct spool_folder *f, uint64_t inode, uint64_t generation,
	       int (*each)(void *context, struct spool *s, uint64_t offset, const struct spool_record *record), void *context,
	       struct spool_state *state, struct spool **out)
{
	uint64_t end = 0, at = HEAD;
	struct record record;
	int r;
	struct spool *s = spool_make(f, inode, generation, 0, &r);

	if (!s)
		return r;
	r = head_read(s);
	if (r == 0)
		r = last_note(s, state, &end);
	if (r == 0)
		r = tail_cut(s, end);
	for (; r == 0 && at < end; at += RECORD + record.length) {
		r = record_read(s, at, &record);
		if (r == 0 && record.type == TYPE_DATA)
			r = each(context, s, record.a,
				 &(struct spool_record){ .place = at + RECORD, .sum = record.b, .length = record.length });
	}
	if (r < 0) {
		spool_unref(s);
		return r;
	}
	*out = s;
	return 0;
}
