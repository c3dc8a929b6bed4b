#include "cli/walk.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 512 /* each costs a descriptor */

struct level {
	DIR *stream;
	size_t path_length;
};

struct walk {
	dev_t device;
	struct level levels[DEPTH_MAX];
	int depth;
	char *path;
	size_t length, capacity;
	struct stat only; /* the path itself is a file, */
	bool only_left;   /* and was not told yet */
};

struct walk *walk_new(dev_t device)
{
	struct walk *w = calloc(1, sizeof(*w));

	if (w)
		w->device = device;
	return w;
}

static void levels_close(struct walk *w)
{
	while (w->depth > 0)
		closedir(w->levels[--w->depth].stream);
}

void walk_free(struct walk *w)
{
	if (!w)
		return;
	levels_close(w);
	free(w->path);
	free(w);
}

/* The path becomes its first `length` bytes, a slash where there was none, and the name. */
static int path_set(struct walk *w, size_t length, const char *name)
{
	bool slash = length > 0 && w->path[length - 1] != '/';
	size_t n = strlen(name), need = length + slash + n + 1;

	if (need > w->capacity) {
		char *bigger = realloc(w->path, need * 2);

		if (!bigger)
			return -ENOMEM;
		w->path = bigger;
		w->capacity = need * 2;
	}
	if (slash)
		w->path[length++] = '/';
	memcpy(w->path + length, name, n + 1);
	w->length = length + n;
	return 0;
}

/* Takes the descriptor over. */
static int level_add(struct walk *w, int fd)
{
	DIR *stream;
	int error = 0;

	if (fd < 0)
		return -errno;
	stream = w->depth < DEPTH_MAX ? fdopendir(fd) : NULL;
	if (!stream) {
		error = w->depth < DEPTH_MAX ? -errno : -ELOOP;
		close(fd);
		return error;
	}
	w->levels[w->depth++] = (struct level){ stream, w->length };
	return 0;
}

int walk_begin(struct walk *w, const char *path)
{
	struct stat st;
	int error;

	levels_close(w);
	w->only_left = false;
	error = path_set(w, 0, path);
	if (error)
		return error;
	if (stat(path, &st) < 0)
		return -errno;
	if (st.st_dev != w->device)
		return -EXDEV;
	if (S_ISDIR(st.st_mode))
		return level_add(w, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	w->only = st;
	w->only_left = S_ISREG(st.st_mode);
	return 0;
}

static int file_tell(const struct walk *w, const struct stat *st, struct walk_file *out)
{
	*out = (struct walk_file){ st->st_ino, (uint64_t)st->st_size, w->path };
	return 1;
}

/* An entry of the innermost directory: 1 it is a file, 0 it is none, -errno. */
static int entry_look(struct walk *w, const struct dirent *entry, struct walk_file *out)
{
	struct level *l = &w->levels[w->depth - 1];
	struct stat st;
	int error;

	if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
		return 0;
	if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_DIR && entry->d_type != DT_REG)
		return 0;
	error = path_set(w, l->path_length, entry->d_name);
	if (error)
		return error;
	if (fstatat(dirfd(l->stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno; /* it was there a moment ago: somebody has removed it */
	if (st.st_dev != w->device)
		return 0;
	if (S_ISREG(st.st_mode))
		return file_tell(w, &st, out);
	if (!S_ISDIR(st.st_mode))
		return 0;
	return level_add(w, openat(dirfd(l->stream), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

int walk_next(struct walk *w, struct walk_file *out)
{
	if (w->only_left) {
		w->only_left = false;
		return file_tell(w, &w->only, out);
	}
	while (w->depth > 0) {
		struct level *l = &w->levels[w->depth - 1];
		struct dirent *entry;
		int r = 0;

		errno = 0;
		entry = readdir(l->stream);
		if (entry)
			r = entry_look(w, entry, out);
		else if (errno) {
			r = -errno;
			w->path[l->path_length] = 0; /* the directory itself */
		}
		if (r < 0)
			out->path = w->path;
		if (!entry)
			closedir(w->levels[--w->depth].stream);
		if (r)
			return r;
	}
	return 0;
}
