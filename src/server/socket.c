#include "server/socket.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "rpc/connection.h"
#include "server/folder.h"

#define PREFIX "unix:"
#define LOOK_MS 1000
#define LOCK_TRIES 10

static const char *path_of(const char *address) { return address + sizeof(PREFIX) - 1; }

static char *absolute(const char *address)
{
	CLEANUP_FREE char *here = realpath(".", NULL);
	char *out;

	if (*path_of(address) == '/' || !here)
		return strdup(address);
	return asprintf(&out, PREFIX "%s/%s", here, path_of(address)) < 0 ? NULL : out;
}

static char *lock_path_of(const char *address)
{
	char *out;

	return asprintf(&out, "%s.lock", path_of(address)) < 0 ? NULL : out;
}

/* Other users cannot open it, and so cannot lock it.  In a folder they may write to they may have put one of their own there. */
static int lock_open(const char *address, const char *path, int *out, char *error, size_t error_size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
		*out = fd;
		return 0;
	}
	close(fd);
	snprintf(error, error_size, "cannot listen on %s: %s is not ours; remove it, or name another path", address, path);
	return -EPERM;
}

static int lock_try(const char *address, const char *path, int *out, char *error, size_t error_size)
{
	struct stat st;
	int fd = -1, r = lock_open(address, path, &fd, error, error_size);

	if (r)
		return r;
	r = folder_lock_try(fd);
	/* The server that held it has removed it since: it would be ours alone, and another server would make a new one. */
	if (!r && (fstat(fd, &st) || !st.st_nlink))
		r = -EAGAIN;
	if (r == -EBUSY)
		snprintf(error, error_size,
			 "cannot listen on %s: another server listens there (it has %s locked); stop that first, or name another "
			 "path",
			 address, path);
	if (r)
		close(fd);
	else
		*out = fd;
	return r;
}

static int lock_take(struct named_socket *s, char *error, size_t error_size)
{
	CLEANUP_FREE char *path = lock_path_of(s->address);
	int r = path ? -EAGAIN : -ENOMEM;

	for (int tries = 0; r == -EAGAIN && tries < LOCK_TRIES; tries++)
		r = lock_try(s->address, path, &s->lock_fd, error, error_size);
	return r;
}

/* Of a server that was killed, or of a program that locks nothing. */
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
	if (r && r != -EAGAIN && r != -ETIMEDOUT)
		return r;
	snprintf(error, error_size, "cannot listen on %s: somebody listens there; stop that first, or name another path",
		 address);
	return -EADDRINUSE;
}

/* Lets everybody connect: who may come in is decided by looking at the peer, which can be told why not.  In a folder that others may
 * write to, a link may stand in its place by now: that is not followed. */
static int name_open_to_all(struct named_socket *s)
{
	CLEANUP_FD int fd = open(path_of(s->address), O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char itself[40];
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
		return -EEXIST;
	s->device = st.st_dev;
	s->inode = st.st_ino;
	snprintf(itself, sizeof(itself), "/proc/self/fd/%d", fd);
	return chmod(itself, 0666) ? -errno : 0;
}

/* The lock is held. */
static int name_take(struct named_socket *s, int *out_fd, char *error, size_t error_size)
{
	int fd, r = stale_remove(s->address, error, error_size);

	if (!r)
		r = address_listen(s->address, &fd, error, error_size);
	if (r)
		return r;
	r = name_open_to_all(s);
	if (r)
		close(fd);
	else
		*out_fd = fd;
	return r;
}

int socket_make(const char *address, struct named_socket *out, int *out_fd, char *error, size_t error_size)
{
	int r;

	*out = (struct named_socket){ .address = absolute(address), .lock_fd = -1 };
	error[0] = 0;
	r = out->address ? lock_take(out, error, error_size) : -ENOMEM;
	if (!r)
		r = name_take(out, out_fd, error, error_size);
	if (r && !error[0])
		snprintf(error, error_size, "cannot listen on %s: %s", address, strerror(-r));
	return r;
}

void socket_remove(struct named_socket *s)
{
	CLEANUP_FREE char *lock = s->address ? lock_path_of(s->address) : NULL;
	struct stat st;

	if (s->inode && !lstat(path_of(s->address), &st) && st.st_dev == s->device && st.st_ino == s->inode)
		unlink(path_of(s->address));
	/* While it is held nobody else takes the name, nor this file. */
	if (s->address && s->lock_fd >= 0) {
		if (lock)
			unlink(lock);
		close(s->lock_fd);
	}
	free(s->address);
	*s = (struct named_socket){ 0 };
}
