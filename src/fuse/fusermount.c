#include "fuse/fusermount.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/cleanup.h"

#define HELPER "fusermount3"
#define SOCKET_VARIABLE "_FUSE_COMMFD"

extern char **environ;

/* Where the helper finds its end of the socket. */
#define SOCKET_AT 3

static int helper_start(char **arguments, char **environment, int socket, int errors, pid_t *pid)
{
	posix_spawn_file_actions_t files;
	int error;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, errors, STDERR_FILENO);
	if (socket >= 0)
		posix_spawn_file_actions_adddup2(&files, socket, SOCKET_AT);
	error = posix_spawnp(pid, HELPER, &files, NULL, arguments, environment);
	posix_spawn_file_actions_destroy(&files);
	return -error;
}

/* What the helper says on standard error, without its name and the line's end. */
static void errors_read(int fd, char *why, size_t size)
{
	static const char prefix[] = HELPER ": ";
	size_t n = 0;
	ssize_t got;

	while (n + 1 < size && (got = read(fd, why + n, size - 1 - n)) > 0)
		n += (size_t)got;
	why[n] = 0;
	why[strcspn(why, "\n")] = 0;
	if (!strncmp(why, prefix, sizeof(prefix) - 1))
		memmove(why, why + sizeof(prefix) - 1, strlen(why + sizeof(prefix) - 1) + 1);
}

/* Runs the helper to its end.  0 if it succeeded, else -errno and what it said. */
static int helper_run(char **arguments, char **environment, int socket, char *why, size_t why_size)
{
	char said[512];
	int errors[2], status = 0, error;
	pid_t pid;

	if (pipe2(errors, O_CLOEXEC)) {
		snprintf(why, why_size, "%s", strerror(errno));
		return -errno;
	}
	error = helper_start(arguments, environment, socket, errors[1], &pid);
	close(errors[1]);
	if (error) {
		close(errors[0]);
		snprintf(why, why_size, "cannot run " HELPER ": %s; mounting as a normal user needs it (package fuse3)",
			 strerror(-error));
		return error;
	}
	errors_read(errors[0], said, sizeof(said));
	close(errors[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	snprintf(why, why_size, "%s", *said ? said : HELPER " failed");
	return strstr(said, strerror(EBUSY)) ? -EBUSY : -EPERM;
}

static int descriptor_receive(int socket)
{
	char byte;
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	ssize_t n;
	int fd;

	do {
		n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	c = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* Our environment with the socket's number in it. */
static char **environment_with(char *variable)
{
	size_t n = 0, kept = 0;
	char **out;

	while (environ[n])
		n++;
	out = calloc(n + 2, sizeof(*out));
	for (size_t i = 0; out && i < n; i++) {
		if (strncmp(environ[i], SOCKET_VARIABLE "=", sizeof(SOCKET_VARIABLE)))
			out[kept++] = environ[i];
	}
	if (out)
		out[kept] = variable;
	return out;
}

int fusermount_mount(const char *path, const char *options, char *why, size_t why_size)
{
	char *arguments[] = { HELPER, "-o", (char *)options, "--", (char *)path, NULL };
	char variable[32];
	CLEANUP_FREE char **environment = NULL;
	int sockets[2], error;

	snprintf(variable, sizeof(variable), SOCKET_VARIABLE "=%d", SOCKET_AT);
	environment = environment_with(variable);
	if (!environment || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) {
		snprintf(why, why_size, "%s", strerror(environment ? errno : ENOMEM));
		return environment ? -errno : -ENOMEM;
	}
	error = helper_run(arguments, environment, sockets[1], why, why_size);
	close(sockets[1]);
	if (!error) {
		error = descriptor_receive(sockets[0]);
		if (error < 0)
			snprintf(why, why_size, HELPER " handed over no device");
	}
	close(sockets[0]);
	return error;
}

int fusermount_unmount(const char *path, bool lazily, char *why, size_t why_size)
{
	char *plain[] = { HELPER, "-u", "--", (char *)path, NULL };
	char *lazy[] = { HELPER, "-u", "-z", "--", (char *)path, NULL };

	return helper_run(lazily ? lazy : plain, environ, -1, why, why_size);
}
