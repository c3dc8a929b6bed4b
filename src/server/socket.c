#include "server/socket.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "rpc/connection.h"

#define PREFIX "unix:"
#define LOOK_MS 1000

static const char *path_of(const char *address) { return address + sizeof(PREFIX) - 1; }

static char *absolute(const char *address)
{
	CLEANUP_FREE char *here = realpath(".", NULL);
	char *out;

	if (*path_of(address) == '/' || !here)
		return strdup(address);
	return asprintf(&out, PREFIX "%s/%s", here, path_of(address)) < 0 ? NULL : out;
}

/* The folder of the path, locked until the descriptor is closed. */
static int folder_lock_of(const char *path)
{
	CLEANUP_FREE char *folder = strdup(path);
	int fd;

	if (!folder)
		return -ENOMEM;
	strrchr(folder, '/')[1] = 0;
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (flock(fd, LOCK_EX) < 0 && errno == EINTR)
		;
	return fd;
}

/* The folder is locked. */
static int stale_remove(const char *address, char *error, size_t error_size)
{
	const char *path = path_of(address);
	char why[200];
	struct stat st;
	int fd, r;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(error, error_size, "cannot listen on %s: there is something else than a socket; name another path",
			 address);
		return -EEXIST;
	}
	r = address_connect(address, LOOK_MS, &fd, why, sizeof(why));
	if (r == 0)
		close(fd);
	if (r == -ECONNREFUSED)
		return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
	snprintf(error, error_size, "cannot listen on %s: somebody listens there; stop that first, or name another path",
		 address);
	return -EADDRINUSE;
}

/* The folder is locked. */
static int name_take(struct named_socket *s, int *out_fd, char *error, size_t error_size)
{
	int r = stale_remove(s->address, error, error_size);
	struct stat st;

	if (!r)
		r = address_listen(s->address, out_fd, error, error_size);
	if (r)
		return r;
	/* Who may come in is decided by looking at the peer, which can be told why not. */
	chmod(path_of(s->address), 0666);
	s->inode = lstat(path_of(s->address), &st) < 0 ? 0 : st.st_ino;
	return 0;
}

int socket_make(const char *address, struct named_socket *out, int *out_fd, char *error, size_t error_size)
{
	int folder, r;

	*out = (struct named_socket){ .address = absolute(address) };
	error[0] = 0;
	folder = r = out->address ? folder_lock_of(path_of(out->address)) : -ENOMEM;
	if (folder >= 0) {
		r = name_take(out, out_fd, error, error_size);
		close(folder);
	}
	if (r && !error[0])
		snprintf(error, error_size, "cannot listen on %s: %s", address, strerror(-r));
	return r;
}

void socket_remove(struct named_socket *s)
{
	struct stat st;
	int folder = s->inode ? folder_lock_of(path_of(s->address)) : -1;

	if (folder >= 0) {
		if (!lstat(path_of(s->address), &st) && st.st_ino == s->inode)
			unlink(path_of(s->address));
		close(folder);
	}
	free(s->address);
	*s = (struct named_socket){ 0 };
}
