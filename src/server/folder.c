#include "server/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/marker.h"
#include "server/state.h"

#define START_MAX (UINT64_C(1) << 42) /* the rest of a number of leases counts */
#define LOCK_TRIES 25
#define LOCK_PAUSE_NS (20 * NS_PER_MS)
#define STORE_ID_KEY "store-id"
#define ID_BYTES 16
#define ID_AT 12 /* in META "format": see meta/format.c */
#define ID_TEXT (2 * ID_BYTES)

/* ---- The lock ---- */

static void holder_read(int fd, char *out, size_t size)
{
	ssize_t n = pread(fd, out, size - 1, 0);

	out[n > 0 ? n : 0] = 0;
	out[strcspn(out, "\n")] = 0;
}

/* For people only: on a full disk it stays empty. */
static void holder_write(int fd, const char *path)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());

	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
		log_warn("cannot write our process number to %s", path);
}

/* A server that was killed in its start may have left a child that has not let go yet (meta/walk.c): it does in a moment. */
int folder_lock_try(int fd)
{
	for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB); tries++) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		if (tries == LOCK_TRIES)
			return -EBUSY;
		nanosleep(&(struct timespec){ .tv_nsec = LOCK_PAUSE_NS }, NULL);
	}
	return 0;
}

static int lock_take(int fd, const char *folder, const char *path, char *error, size_t error_size)
{
	char holder[32];
	int r = folder_lock_try(fd);

	if (r) {
		holder_read(fd, holder, sizeof(holder));
		if (r == -EBUSY)
			snprintf(error, error_size,
				 "cannot serve %s: another server (process %s) does; stop it first, or use another --data",
				 folder, holder[0] ? holder : "unknown");
		else
			snprintf(error, error_size, "cannot lock %s: %s", path, strerror(-r));
		return r;
	}
	holder_write(fd, path);
	return 0;
}

int folder_lock(const char *folder, int *out_fd, char *error, size_t error_size)
{
	char path[PATH_MAX];
	int fd, r;

	if (mkdir(folder, 0700) && errno != EEXIST) {
		r = -errno;
		snprintf(error, error_size, "cannot make the data directory %s: %s", folder, strerror(-r));
		return r;
	}
	if (snprintf(path, sizeof(path), "%s/lock", folder) >= (int)sizeof(path))
		path[0] = 0;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0) {
		r = -errno;
		snprintf(error, error_size, "cannot open %s/lock: %s", folder, strerror(-r));
		return r;
	}
	r = lock_take(fd, folder, path, error, error_size);
	if (r)
		close(fd);
	else
		*out_fd = fd;
	return r;
}

/* ---- Whose it is ---- */

static bool is_data(const char *folder)
{
	CLEANUP_FD int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && marker_is_there(fd, "lock", NULL) && marker_is_there(fd, "starts", NULL) &&
	       marker_is_there(fd, "meta/data.mdb", NULL);
}

bool folder_is_served(const char *folder) { return is_data(folder) || store_is_folder(folder); }

/* ---- The number of the start ---- */

/* Always of the same length, so that it can be written on a full disk, and within a sector, which is written whole. */
#define START_TEXT 21

static int start_read(int fd, uint64_t *out)
{
	char text[START_TEXT + 1] = "", *end;
	ssize_t n = pread(fd, text, START_TEXT, 0);

	*out = 0;
	if (n < 0)
		return -errno;
	if (n == 0)
		return 0;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return n == START_TEXT && !errno && *end == '\n' && *out < START_MAX ? 0 : -EBADMSG;
}

static int start_write(int fd, uint64_t number)
{
	char text[START_TEXT + 1];
	ssize_t n;

	snprintf(text, sizeof(text), "%020llu\n", (unsigned long long)number);
	n = pwrite(fd, text, START_TEXT, 0);
	return n == START_TEXT ? 0 : n < 0 ? -errno : -ENOSPC;
}

int folder_count_start(struct server *s, uint64_t *out, char *error, size_t error_size)
{
	uint64_t before, now = (uint64_t)(s->started_ns / NS_PER_MS);
	char path[PATH_MAX];
	int fd, r;

	if (snprintf(path, sizeof(path), "%s/starts", s->data) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CREAT | O_DSYNC | O_CLOEXEC, 0600);
	r = fd < 0 ? -errno : start_read(fd, &before);
	if (r == -EBADMSG) {
		log_warn("%s is damaged: if the clock was set back since the last start, unmount everything first", path);
		before = r = 0;
	}
	if (!r) {
		*out = now > before ? now : before + 1;
		r = start_write(fd, *out);
	}
	if (fd >= 0)
		close(fd);
	if (r)
		snprintf(error, error_size, "cannot write %s: %s", path, strerror(-r));
	return r;
}

/* ---- The store's id ---- */

static int metadata_id(struct server *s, char out[ID_TEXT + 1])
{
	struct span format;
	struct view view;
	int r = meta_view_begin(s->meta, &view);

	if (r)
		return r;
	r = view_get(&view, TABLE_META, "format", 6, &format);
	if (!r && format.size < ID_AT + ID_BYTES)
		r = -EBADMSG;
	for (int i = 0; i < ID_BYTES && !r; i++)
		snprintf(out + 2 * i, 3, "%02x", format.data[ID_AT + i]);
	meta_view_end(&view);
	return r;
}

/* Looks first: a full disk can still be served. */
int folder_check_store(struct server *s, char *error, size_t error_size)
{
	char ours[ID_TEXT + 1], theirs[ID_TEXT + 1] = "";
	int r = metadata_id(s, ours);

	if (!r)
		r = store_get(s->store, STORE_ID_KEY, 0, theirs, ID_TEXT);
	if (r == -ENOENT) {
		r = store_put(s->store, STORE_ID_KEY, &(struct iovec){ ours, ID_TEXT }, 1);
		if (!r)
			return 0;
	}
	if (r == -ERANGE || (!r && strcmp(ours, theirs) != 0)) {
		snprintf(error, error_size,
			 "cannot use the store %s: it belongs to the metadata of another server (%s, ours are %s); give the "
			 "right --store, or put the metadata that belong to it back from a backup",
			 store_url(s->store), theirs, ours);
		return -EPERM;
	}
	if (r)
		snprintf(error, error_size, "cannot use the store %s: %s", store_url(s->store), strerror(-r));
	return r;
}

/* ---- The address ---- */

void folder_write_address(struct server *s)
{
	char path[PATH_MAX], unfinished[PATH_MAX + 8];
	FILE *f;

	if (snprintf(path, sizeof(path), "%s/address", s->data) >= (int)sizeof(path))
		return;
	snprintf(unfinished, sizeof(unfinished), "%s.new", path);
	f = fopen(unfinished, "we");
	if (f) {
		fprintf(f, "%s\n", s->unix_address);
		if (s->tcp_address)
			fprintf(f, "%s\n", s->tcp_address);
		if (s->other.address)
			fprintf(f, "%s\n", s->other.address);
		if (!fclose(f) && !rename(unfinished, path))
			return;
	}
	log_warn("cannot write %s: %s", path, strerror(errno));
}
