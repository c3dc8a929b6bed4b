#include "server/backup.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/state.h"

#define EVERY_NS (3600 * NS_PER_S)
#define KEPT 3
#define NAME_START "data-"
#define NAME_END ".mdb"
#define ROOM_KEPT ((uint64_t)64 << 20)

void backup_init(struct server *s)
{
	s->backup.last_steady_ns = clock_steady_ns();
	s->backup.last_batch = meta_batch(s->meta);
}

static int is_backup(const struct dirent *e)
{
	size_t n = strlen(e->d_name), start = strlen(NAME_START), end = strlen(NAME_END);

	return n > start + end && !memcmp(e->d_name, NAME_START, start) && !memcmp(e->d_name + n - end, NAME_END, end);
}

/* Names sort by age. */
static void prune(const char *folder)
{
	struct dirent **all;
	int count = scandir(folder, &all, is_backup, alphasort);

	for (int i = 0; i < count; i++) {
		char path[PATH_MAX];

		if (i < count - KEPT && snprintf(path, sizeof(path), "%s/%s", folder, all[i]->d_name) < (int)sizeof(path))
			unlink(path);
		free(all[i]);
	}
	if (count >= 0)
		free(all);
}

/* A backup is not worth a full disk. */
static bool has_room(const char *folder, uint64_t bytes)
{
	struct statvfs v;

	return statvfs(folder, &v) || (uint64_t)v.f_bavail * v.f_frsize > bytes + ROOM_KEPT;
}

static int backup_make(struct server *s, const char *folder)
{
	char path[PATH_MAX], stamp[32];
	time_t now = (time_t)(clock_wall_ns() / NS_PER_S);
	struct tm tm;

	if (mkdir(folder, 0700) && errno != EEXIST)
		return -errno;
	if (!has_room(folder, meta_file_bytes(s->meta)))
		return -ENOSPC;
	if (!gmtime_r(&now, &tm) || !strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &tm))
		return -EINVAL;
	if (snprintf(path, sizeof(path), "%s/" NAME_START "%s" NAME_END, folder, stamp) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	return meta_backup(s->meta, path);
}

void backup_now(struct server *s)
{
	uint64_t batch = meta_batch(s->meta);
	char folder[PATH_MAX];
	int r;

	s->backup.last_steady_ns = clock_steady_ns();
	if (batch == s->backup.last_batch)
		return;
	if (snprintf(folder, sizeof(folder), "%s/backup", s->data) >= (int)sizeof(folder))
		return;
	r = backup_make(s, folder);
	if (r) {
		log_warn("cannot back up the metadata to %s: %s", folder, strerror(-r));
		return;
	}
	s->backup.last_batch = batch;
	prune(folder);
	log_debug("backed up the metadata to %s", folder);
}

void backup_if_due(struct server *s)
{
	if (clock_steady_ns() - s->backup.last_steady_ns >= EVERY_NS)
		backup_now(s);
}
