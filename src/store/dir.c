/* A store in a folder of a local file system: the key is the path below it.
 *
 * put, with the key's folder known (8 system calls, a large object three more):
 *
 *   openat the folder, openat O_TMPFILE in it, writev, fsync, linkat, fsync the folder, close, close
 *
 * A large object goes past the page cache (O_DIRECT): the writer has its bytes in
 * its own cache, and a page here would cost a copy and displace another.  That
 * takes whole pages at aligned addresses; what is left over, and all of it where
 * memory is not aligned or the file system says no, is written as usual.
 *
 * The object has no name before its bytes are durable, so whatever has a name is
 * whole; and linkat fails if the name is taken, which is the put-if-absent.
 * What fails before linkat vanishes with the descriptor.  Where the file system
 * knows no O_TMPFILE, a name in TMP/ takes its place; left behind by a crash, it
 * is removed by a later open of the store.
 *
 * The first put of this process into a folder makes the folder, if need be, and
 * syncs its parents: another process, or we before a crash, may have made it
 * without having come to that.  Only then is the folder `known`.
 *
 * get (3 system calls): openat, pread, close.  stat: 1.  delete: 5: openat, unlinkat,
 * fstat, ftruncate, close, so that the space is free at once, whoever has it open.
 *
 * MARKER says that the folder is a store.  It and TMP are in capitals, so no key
 * can name them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/intmap.h"
#include "base/log.h"
#include "base/marker.h"
#include "store/store.h"

#define LARGE_BYTES ((size_t)1 << 20)
#define MARKER "EPOCHFS-STORE"
#define MARKER_BEGINNING "EpochFS object store, format "
#define MARKER_TEXT MARKER_BEGINNING "1\n"
#define TEMP "TMP"
#define TEMP_OLD_S 3600 /* no put takes that long: what is older was left behind */
#define PARTS_AT_ONCE 64
#define DIRECT_ALIGN 4096u /* enough for every disk */
#define FOLDER_MODE 0750
#define OBJECT_MODE 0640
#define PATH_TEXT 256 /* keys have up to 200 characters */

struct dir_store {
	struct store store;
	int root;
	pthread_mutex_t lock;       /* guards known */
	struct intmap known;        /* XXH3-64 of the paths of folders that are durable */
	_Atomic bool no_tmpfile;    /* the file system said so */
	_Atomic bool no_direct;     /* the same of O_DIRECT */
	_Atomic uint64_t temp_next; /* makes names in TMP differ */
};

static struct dir_store *dir_of(struct store *s) { return (struct dir_store *)s; }

/* What store.h lists passes; the rest becomes -EIO, and only the log says what it was. */
static int error_of(int error, const char *what, const char *key)
{
	switch (error) {
	case EEXIST:
	case ENOENT:
	case ENOSPC:
	case ERANGE:
	case ENOMEM:
	case EMFILE:
	case ENFILE: return -error;
	case EDQUOT:
	case EFBIG: return -ENOSPC;
	case ENOTDIR:
	case EISDIR:
	case ELOOP: return -ENOENT; /* something that is not an object */
	}
	log_error("store: cannot %s %s: %s", what, key, strerror(error));
	return -EIO;
}

/* The folder part of a key, "." if it has none; returns the last component. */
static const char *key_split(const char *key, char folder[PATH_TEXT])
{
	const char *slash = strrchr(key, '/');
	if (!slash) {
		memcpy(folder, ".", 2);
		return key;
	}
	size_t n = (size_t)(slash - key);
	memcpy(folder, key, n);
	folder[n] = 0;
	return slash + 1;
}

static int folder_sync(int root, const char *path)
{
	CLEANUP_FD int fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static bool folder_is_known(struct dir_store *d, const char *folder)
{
	LOCKED(&d->lock);
	return intmap_get(&d->known, XXH3_64bits(folder, strlen(folder))) != NULL;
}

/* Makes the folder and those above it, each durable in its parent. */
static int folder_make(struct dir_store *d, const char *folder)
{
	char path[PATH_TEXT], parent[PATH_TEXT] = ".";
	size_t at = 0;
	while (folder[at]) {
		at += strcspn(folder + at, "/");
		memcpy(path, folder, at);
		path[at] = 0;
		if (!folder_is_known(d, path)) {
			if (mkdirat(d->root, path, FOLDER_MODE) < 0 && errno != EEXIST)
				return -errno;
			int error = folder_sync(d->root, parent);
			if (error)
				return error;
			LOCKED(&d->lock);
			error = intmap_set(&d->known, XXH3_64bits(path, at), d);
			if (error)
				return error;
		}
		memcpy(parent, path, at + 1);
		at += folder[at] == '/';
	}
	return 0;
}

static int folder_open(struct dir_store *d, const char *folder, int *out)
{
	bool known = strcmp(folder, ".") == 0 || folder_is_known(d, folder);
	for (;;) {
		int error = known ? 0 : folder_make(d, folder);
		if (error)
			return error;
		*out = openat(d->root, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (*out >= 0)
			return 0;
		if (errno != ENOENT || !known)
			return -errno;
		/* Somebody removed it under us: make it again, once. */
		LOCKED(&d->lock);
		intmap_free(&d->known);
		known = false;
	}
}

/* A file without a name in the folder; or, where there is no such thing, one in
 * TMP whose name goes to `temp` (else empty). */
static int temp_open(struct dir_store *d, int folder, char temp[PATH_TEXT], int *out)
{
	temp[0] = 0;
	if (!atomic_load(&d->no_tmpfile)) {
		*out = openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, OBJECT_MODE);
		if (*out >= 0)
			return 0;
		if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
			return -errno;
		atomic_store(&d->no_tmpfile, true);
	}
	if (mkdirat(d->root, TEMP, FOLDER_MODE) < 0 && errno != EEXIST)
		return -errno;
	snprintf(temp, PATH_TEXT, TEMP "/%jd-%ju-%ju", (intmax_t)getpid(), (uintmax_t)clock_wall_ns(),
		 (uintmax_t)atomic_fetch_add(&d->temp_next, 1));
	*out = openat(d->root, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, OBJECT_MODE);
	if (*out >= 0)
		return 0;
	temp[0] = 0;
	return -errno;
}

/* Takes n bytes off the front of the window; returns what is left of it. */
static int window_advance(struct iovec *window, int count, size_t n)
{
	int i = 0;
	while (i < count && n >= window[i].iov_len)
		n -= window[i++].iov_len;
	memmove(window, window + i, (size_t)(count - i) * sizeof *window);
	if (i < count) {
		window[0].iov_base = (char *)window[0].iov_base + n;
		window[0].iov_len -= n;
	}
	return count - i;
}

/* All but the first `skip` bytes, which are within the first part. */
static int parts_write(int fd, const struct iovec *parts, int part_count, size_t skip)
{
	struct iovec window[PARTS_AT_ONCE];
	int count = 0, next = 0;
	for (;;) {
		for (; count < PARTS_AT_ONCE && next < part_count; next++) {
			size_t done = next == 0 ? skip : 0;
			if (parts[next].iov_len > done)
				window[count++] = (struct iovec){ (char *)parts[next].iov_base + done,
								  parts[next].iov_len - done };
		}
		if (count == 0)
			return 0;
		ssize_t n = writev(fd, window, count);
		if (n < 0 && errno != EINTR)
			return -errno;
		count = window_advance(window, count, n > 0 ? (size_t)n : 0);
	}
}

/* Gives the file its name.  An unprivileged process can name a nameless file only
 * through /proc. */
static int object_link(struct dir_store *d, int fd, const char *temp, int folder, const char *name)
{
	char path[40];
	if (temp[0])
		return linkat(d->root, temp, folder, name, 0) < 0 ? -errno : 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, path, folder, name, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	if (errno != ENOENT)
		return -errno;
	return linkat(fd, "", folder, name, AT_EMPTY_PATH) < 0 ? -errno : 0; /* without /proc */
}

static size_t parts_bytes(const struct iovec *parts, int part_count)
{
	size_t n = 0;
	for (int i = 0; i < part_count; i++)
		n += parts[i].iov_len;
	return n;
}

/* Writes what can go past the page cache: whole pages from the start of the first
 * part.  How many bytes that were, or -errno. */
static ssize_t direct_write(struct dir_store *d, int fd, const struct iovec *first)
{
	size_t size = first->iov_len & ~(size_t)(DIRECT_ALIGN - 1), done = 0;
	if (size < LARGE_BYTES || (uintptr_t)first->iov_base % DIRECT_ALIGN || atomic_load(&d->no_direct))
		return 0;
	if (fcntl(fd, F_SETFL, O_DIRECT) < 0) {
		atomic_store(&d->no_direct, true);
		return 0;
	}
	while (done < size && done % DIRECT_ALIGN == 0) {
		ssize_t n = write(fd, (char *)first->iov_base + done, size - done);
		if (n < 0 && errno == EINVAL) {
			atomic_store(&d->no_direct, true);
			break;
		}
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			break; /* the usual way finds out why */
		done += n > 0 ? (size_t)n : 0;
	}
	return fcntl(fd, F_SETFL, 0) < 0 ? -errno : (ssize_t)done;
}

static int object_fill(struct dir_store *d, int fd, const struct iovec *parts, int part_count)
{
	bool large = parts_bytes(parts, part_count) >= LARGE_BYTES;
	ssize_t done = large && part_count ? direct_write(d, fd, &parts[0]) : 0;
	int error = done < 0 ? (int)done : parts_write(fd, parts, part_count, (size_t)done);
	if (!error && fsync(fd) < 0)
		error = -errno;
	/* Of a large one nothing stays in the page cache; packs stay for their first
	 * readers.  Only advice: whether it is taken does not matter. */
	if (!error && large && done == 0)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return error;
}

static int object_write(struct dir_store *d, int folder, const char *name, const struct iovec *parts, int part_count)
{
	char temp[PATH_TEXT];
	int fd = -1, error = temp_open(d, folder, temp, &fd);
	if (error)
		return error;
	error = object_fill(d, fd, parts, part_count);
	if (!error)
		error = object_link(d, fd, temp, folder, name);
	/* One that is there already may be so new that its name is not durable yet. */
	if ((!error || error == -EEXIST) && fsync(folder) < 0)
		error = -errno;
	if (temp[0])
		(void)unlinkat(d->root, temp, 0);
	close(fd);
	return error;
}

static int dir_put(struct store *s, const char *key, const struct iovec *parts, int part_count)
{
	struct dir_store *d = dir_of(s);
	char folder_path[PATH_TEXT];
	const char *name = key_split(key, folder_path);
	CLEANUP_FD int folder = -1;
	int error = folder_open(d, folder_path, &folder);
	if (!error)
		error = object_write(d, folder, name, parts, part_count);
	/* -ENOENT would say that there is no such object; of a put it only means that the folder is in the way or gone. */
	return !error ? 0 : error_of(error == -ENOENT || error == -ENOTDIR ? EIO : -error, "put", key);
}

static int object_open(struct dir_store *d, const char *key)
{
	int fd = openat(d->root, key, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? error_of(errno, "open", key) : fd;
}

static int dir_stat(struct store *s, const char *key, uint64_t *out_size)
{
	struct stat st;
	if (fstatat(dir_of(s)->root, key, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return error_of(errno, "stat", key);
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	*out_size = (uint64_t)st.st_size;
	return 0;
}

static int dir_get(struct store *s, const char *key, uint64_t offset, void *into, size_t length)
{
	uint64_t size;
	if (length == 0) {
		int error = dir_stat(s, key, &size);
		return error ? error : offset <= size ? 0 : -ERANGE;
	}
	CLEANUP_FD int fd = object_open(dir_of(s), key);
	if (fd < 0)
		return fd;
	for (size_t done = 0; done < length;) {
		ssize_t n = pread(fd, (char *)into + done, length - done, (off_t)(offset + done));
		if (n < 0 && errno != EINTR)
			return error_of(errno, "read", key);
		if (n == 0)
			return -ERANGE;
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* Cut off only when it has no name any more: what has a name is whole, and somebody may keep another one outside the
 * store (a copy made of hard links). */
static int dir_remove(struct store *s, const char *key)
{
	CLEANUP_FD int fd = openat(dir_of(s)->root, key, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	if (unlinkat(dir_of(s)->root, key, 0) < 0)
		return error_of(errno, "delete", key);
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 0 && ftruncate(fd, 0) < 0)
		log_debug("store: cannot cut off %s: %s", key, strerror(errno));
	return 0;
}

static int dir_descriptor(struct store *s, const char *key)
{
	struct stat st;
	int fd = object_open(dir_of(s), key);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return -ENOENT;
}

static int dir_space(struct store *s, struct store_space *out)
{
	struct statvfs v;
	if (fstatvfs(dir_of(s)->root, &v) < 0)
		return error_of(errno, "ask for the space of", s->url);
	out->total_bytes = (uint64_t)v.f_blocks * v.f_frsize;
	out->free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
	return 0;
}

struct walk {
	struct dir_store *dir;
	const char *prefix;
	int (*each)(void *context, const char *key, uint64_t size);
	void *context;
};

/* Could the prefix be below this folder, or is the folder below the prefix? */
static bool walk_wants(const struct walk *w, const char *path)
{
	size_t p = strlen(w->prefix), n = strlen(path);
	return strncmp(w->prefix, path, p < n ? p : n) == 0 && (p <= n || w->prefix[n] == '/');
}

static int walk_folder(const struct walk *w, const char *path);

static int walk_entry(const struct walk *w, const char *folder, const char *name)
{
	char key[PATH_TEXT];
	struct stat st;
	int n = snprintf(key, sizeof key, "%s%s%s", folder, *folder ? "/" : "", name);
	if (n >= (int)sizeof key || store_key_check(key) != 0)
		return 0; /* the marker, TMP, lost+found: nothing a put made */
	bool below = strncmp(key, w->prefix, strlen(w->prefix)) == 0;
	if (!below && !walk_wants(w, key))
		return 0;
	if (fstatat(w->dir->root, key, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : error_of(errno, "list", key); /* deleted meanwhile */
	if (S_ISDIR(st.st_mode))
		return walk_folder(w, key);
	return below && S_ISREG(st.st_mode) ? w->each(w->context, key, (uint64_t)st.st_size) : 0;
}

static int walk_folder(const struct walk *w, const char *path)
{
	int fd = openat(w->dir->root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT ? 0 : error_of(errno, "list", path);
	DIR *stream = fdopendir(fd);
	if (!stream) {
		int error = errno;
		close(fd);
		return error_of(error, "list", path);
	}
	int status = 0;
	struct dirent *entry;
	while (status == 0 && (errno = 0, entry = readdir(stream)))
		status = walk_entry(w, path, entry->d_name);
	if (status == 0 && errno != 0)
		status = error_of(errno, "list", path);
	closedir(stream);
	return status;
}

static int dir_list(struct store *s, const char *prefix, int (*each)(void *, const char *, uint64_t), void *context)
{
	struct walk w = { .dir = dir_of(s), .prefix = prefix, .each = each, .context = context };
	char start[PATH_TEXT];
	key_split(prefix, start);
	return walk_folder(&w, strcmp(start, ".") == 0 ? "" : start);
}

static void dir_close(struct store *s)
{
	struct dir_store *d = dir_of(s);
	close(d->root);
	intmap_free(&d->known);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static const struct store_ops dir_ops = {
	.close = dir_close,
	.put = dir_put,
	.get = dir_get,
	.remove = dir_remove,
	.stat = dir_stat,
	.list = dir_list,
	.space = dir_space,
	.descriptor = dir_descriptor,
};

/* 1: empty but for what a fresh file system or a cut-off first open leaves; 0: not; -errno. */
static int root_is_empty(int root)
{
	int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	if (!stream) {
		int error = errno;
		if (fd >= 0)
			close(fd);
		return -error;
	}
	int empty = 1;
	struct dirent *entry;
	while (empty && (errno = 0, entry = readdir(stream)))
		empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
			strcmp(entry->d_name, "lost+found") == 0 || strcmp(entry->d_name, TEMP) == 0;
	if (empty && errno != 0)
		empty = -errno;
	closedir(stream);
	return empty;
}

static int marker_check(struct dir_store *d)
{
	char text[sizeof MARKER_TEXT];
	CLEANUP_FD int fd = openat(d->root, MARKER, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	ssize_t n = pread(fd, text, sizeof text, 0);
	if (n < 0)
		return -errno;
	return n == sizeof MARKER_TEXT - 1 && memcmp(text, MARKER_TEXT, (size_t)n) == 0 ? 0 : -EPROTONOSUPPORT;
}

bool store_is_folder(const char *path)
{
	CLEANUP_FD int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return root >= 0 && marker_is_there(root, MARKER, MARKER_BEGINNING);
}

/* 0, -ENOTEMPTY (not ours), -EPROTONOSUPPORT (a store of another format), -errno. */
static int root_claim(struct dir_store *d)
{
	struct iovec text = { .iov_base = MARKER_TEXT, .iov_len = sizeof MARKER_TEXT - 1 };
	int error = marker_check(d);
	if (error != -ENOENT)
		return error;
	int empty = root_is_empty(d->root);
	if (empty <= 0)
		return empty < 0 ? empty : -ENOTEMPTY;
	error = object_write(d, d->root, MARKER, &text, 1);
	return error == -EEXIST ? marker_check(d) : error;
}

/* A failure here only leaves rubbish for the next open. */
static void temp_clean(struct dir_store *d)
{
	int fd = openat(d->root, TEMP, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	if (!stream) {
		if (fd >= 0)
			close(fd);
		return;
	}
	struct stat st;
	struct dirent *entry;
	while ((entry = readdir(stream)))
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
		    st.st_mtime < clock_wall_ns() / NS_PER_S - TEMP_OLD_S)
			(void)unlinkat(fd, entry->d_name, 0);
	closedir(stream);
}

static int root_open(struct dir_store *d, const char *path)
{
	if (mkdir(path, FOLDER_MODE) == 0) {
		char above[PATH_MAX + 4];
		if (snprintf(above, sizeof above, "%s/..", path) >= (int)sizeof above)
			return -ENAMETOOLONG;
		int error = folder_sync(AT_FDCWD, above);
		if (error)
			return error;
	} else if (errno != EEXIST) {
		return -errno;
	}
	d->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return d->root < 0 ? -errno : 0;
}

int store_dir_open(const char *path, struct store **out, char *error, size_t error_size)
{
	struct dir_store *d = calloc(1, sizeof *d);
	int status = d ? root_open(d, path) : -ENOMEM;
	if (status) {
		snprintf(error, error_size, "cannot open store dir:%s: %s", path, strerror(-status));
		free(d);
		return status;
	}
	d->store.ops = &dir_ops;
	pthread_mutex_init(&d->lock, NULL);
	status = root_claim(d);
	if (status == 0) {
		temp_clean(d);
		*out = &d->store;
		return 0;
	}
	if (status == -ENOTEMPTY)
		snprintf(error, error_size,
			 "cannot open store dir:%s: the folder holds something that is not an EpochFS store; "
			 "use an empty one",
			 path);
	else if (status == -EPROTONOSUPPORT)
		snprintf(error, error_size,
			 "cannot open store dir:%s: " MARKER " in it names a format this version does not know; "
			 "use the version that made it",
			 path);
	else
		snprintf(error, error_size, "cannot open store dir:%s: %s", path, strerror(-status));
	dir_close(&d->store);
	return status;
}
