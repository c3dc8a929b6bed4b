#include "fuse/mountdirs.h"
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/mountinfo.h"

struct place {
	char path[PATH_MAX];    /* canonical */
	char nearest[PATH_MAX]; /* itself, or the nearest one above it that is there */
	int missing;            /* components between the two */
};

/* Below `nearest` nothing is there, so no symbolic link either: ".." leads back to where one came from. */
static int missing_add(struct place *p, char *rest)
{
	size_t length = strcmp(p->nearest, "/") ? strlen(p->nearest) : 0;
	char *name;

	memcpy(p->path, p->nearest, length);
	while ((name = strsep(&rest, "/"))) {
		int n = 0;

		if (!*name || !strcmp(name, "."))
			continue;
		p->missing++;
		if (!strcmp(name, "..")) {
			while (length && p->path[--length] != '/')
				;
			continue;
		}
		n = snprintf(p->path + length, sizeof(p->path) - length, "/%s", name);
		if (n < 0 || (size_t)n >= sizeof(p->path) - length)
			return -ENAMETOOLONG;
		length += (size_t)n;
	}
	if (!length)
		p->path[length++] = '/';
	p->path[length] = 0;
	return 0;
}

static int place_find(const char *directory, struct place *out)
{
	CLEANUP_FREE char *above = strdup(directory), *rest = NULL;
	size_t length = above ? strlen(above) : 0;

	*out = (struct place){ 0 };
	if (!above)
		return -ENOMEM;
	while (!realpath(length ? above : "/", out->nearest)) {
		if (errno != ENOENT || !length)
			return -errno;
		while (length && above[length - 1] == '/')
			above[--length] = 0;
		while (length && above[length - 1] != '/')
			above[--length] = 0;
	}
	rest = strdup(directory + length);
	return rest ? missing_add(out, rest) : -ENOMEM;
}

static bool is_beneath(const char *path, const char *point)
{
	size_t length = strlen(point);

	return !strncmp(path, point, length) && (!path[length] || path[length] == '/');
}

static int place_check(const char *what, const char *directory, const struct place *p, const char *point, char *why,
		       size_t why_size)
{
	CLEANUP_FREE struct mountinfo *m = malloc(sizeof(*m));
	struct stat st;

	if (!m || stat(p->nearest, &st) < 0) {
		int error = m ? errno : ENOMEM;

		snprintf(why, why_size, "the %s directory %s cannot be used: %s", what, directory, strerror(error));
		return -error;
	}
	if (is_beneath(p->path, point)) {
		snprintf(why, why_size,
			 "the %s directory %s would be beneath the mount point %s, and covered by it; name one outside", what,
			 directory, point);
		return -EINVAL;
	}
	if (is_beneath(point, p->path)) {
		snprintf(why, why_size, "the mount point %s is in the %s directory %s; name one outside", point, what, directory);
		return -EINVAL;
	}
	/* Without the kernel's list nothing is mounted by us either. */
	if (mountinfo_find_device(st.st_dev, m) || strcmp(m->type, MOUNT_TYPE))
		return 0;
	snprintf(why, why_size, "the %s directory %s would be on %s, which is an EpochFS mount itself; name one on a local disk",
		 what, directory, m->point);
	return -EINVAL;
}

/* A cache that cannot be looked at is out of use, and tried again; that stops no mount. */
static int caches_check(const struct client_options *o, const char *point, struct place *places, char *why, size_t why_size)
{
	for (int i = 0; i < o->cache_dir_count; i++) {
		const char *directory = o->cache_dirs[i];
		int error;

		if (place_find(directory, &places[i])) {
			places[i] = (struct place){ 0 };
			continue;
		}
		error = place_check("cache", directory, &places[i], point, why, why_size);
		if (error)
			return error;
		for (int k = 0; k < i; k++) {
			if (strcmp(places[k].path, places[i].path) != 0)
				continue;
			snprintf(why, why_size, "the cache directory %s is named twice", places[i].path);
			return -EINVAL;
		}
	}
	return 0;
}

static void memory_warn(const char *directory, const struct place *p)
{
	struct statfs s;

	if (!statfs(p->nearest, &s) && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC))
		log_warn("the write-back directory %s is in memory (tmpfs): what is not uploaded when the machine stops is lost; "
			 "name "
			 "one on a disk",
			 directory);
}

static int writeback_check(const char *directory, const char *point, char *why, size_t why_size)
{
	CLEANUP_FREE struct place *p = malloc(sizeof(*p));
	int error = p ? place_find(directory, p) : -ENOMEM;

	if (error) {
		snprintf(why, why_size, "the write-back directory %s cannot be used: %s", directory, strerror(-error));
		return error;
	}
	error = place_check("write-back", directory, p, point, why, why_size);
	if (error)
		return error;
	if (p->missing > 1) {
		snprintf(why, why_size, "the write-back directory %s cannot be made: the directory it is in must be there",
			 directory);
		return -ENOENT;
	}
	memory_warn(directory, p);
	return 0;
}

static int replica_check(const char *directory, const char *point, char *why, size_t why_size)
{
	CLEANUP_FREE struct place *p = malloc(sizeof(*p));
	int error = p ? place_find(directory, p) : -ENOMEM;

	if (error) {
		snprintf(why, why_size, "the replica directory %s cannot be used: %s", directory, strerror(-error));
		return error;
	}
	return place_check("replica", directory, p, point, why, why_size);
}

/* Over TCP nobody knows where a server keeps its data. */
static int server_check(const char *servers, const char *point, char *why, size_t why_size)
{
	CLEANUP_FREE char *copy = strdup(servers);
	char path[PATH_MAX], *rest = copy, *address;

	if (!copy) {
		snprintf(why, why_size, "out of memory");
		return -ENOMEM;
	}
	while ((address = strsep(&rest, ","))) {
		if (strncmp(address, "unix:", 5) || !realpath(address + 5, path) || !is_beneath(path, point))
			continue;
		snprintf(why, why_size,
			 "the server, which listens at %s, would be beneath the mount point %s, and covered by it; mount "
			 "somewhere else",
			 path, point);
		return -EINVAL;
	}
	return 0;
}

int mountdirs_check(const struct client_options *o, const char *point, char *why, size_t why_size)
{
	CLEANUP_FREE struct place *caches = calloc((size_t)o->cache_dir_count + 1, sizeof(*caches));
	int error = caches ? 0 : -ENOMEM;

	if (error)
		snprintf(why, why_size, "out of memory");
	if (!error)
		error = server_check(o->servers, point, why, why_size);
	if (!error)
		error = caches_check(o, point, caches, why, why_size);
	if (!error && o->writeback_dir)
		error = writeback_check(o->writeback_dir, point, why, why_size);
	if (!error && o->replica_dir)
		error = replica_check(o->replica_dir, point, why, why_size);
	return error;
}
