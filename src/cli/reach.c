#include "cli/reach.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "client/control.h"
#include "fuse/mountinfo.h"
#include "fuse/mountpoint.h"

int reach_device(const char *path, dev_t *out)
{
	struct statx st;

	/* Nothing is wanted but the device, which is always told, and which the kernel knows by itself. */
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st) < 0)
		return -errno;
	*out = makedev(st.stx_dev_major, st.stx_dev_minor);
	return 0;
}

/* Nobody else than whoever mounted, or root, listens there. */
static bool is_genuine(int fd, uid_t user)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && (peer.uid == 0 || peer.uid == user);
}

static void patience_set(int fd, int64_t left_ns)
{
	struct timeval patience = { .tv_sec = left_ns / NS_PER_S, .tv_usec = left_ns % NS_PER_S / 1000 };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

static int connect_to(const char *path, uid_t user, unsigned seconds)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, error;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >= (int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	patience_set(fd, seconds * NS_PER_S);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && is_genuine(fd, user))
		return fd;
	error = errno ? errno : EPERM;
	close(fd);
	return -error;
}

/* The most telling of what went wrong at the places where it could be. */
static int connect_somewhere(dev_t device, uid_t user, unsigned seconds)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	int result = -ENOENT;

	for (unsigned n = 0; control_place(n, user, device, path, sizeof(path)); n++) {
		int fd = connect_to(path, user, seconds);

		if (fd >= 0)
			return fd;
		result = fd == -ENOENT ? result : fd;
	}
	return result;
}

/* Its socket may be gone: the next mount has cleared away what it left.  The mount answers this itself, once it is there. */
static bool is_dead(const char *mount_point)
{
	char pid[24];

	return getxattr(mount_point, MOUNT_PID_XATTR, pid, sizeof(pid)) < 0 && errno == ENOTCONN;
}

static void explain(struct reach *r, int error, uid_t user)
{
	if (error == -ECONNREFUSED || (error == -ENOENT && is_dead(r->mount_point)))
		snprintf(r->why, sizeof(r->why), "the process of the mount %s was killed; mount it again, or epochfs umount it",
			 r->mount_point);
	else if (error == -EACCES || error == -EPERM)
		snprintf(r->why, sizeof(r->why), "only root and the user who mounted %s may ask it", r->mount_point);
	else if (error == -ENOENT && geteuid() && geteuid() != user)
		snprintf(r->why, sizeof(r->why), "only root and the user who mounted %s may ask it", r->mount_point);
	else if (error == -ENOENT)
		snprintf(r->why, sizeof(r->why),
			 "the mount %s has no control socket here: it is of an earlier release, in a container, or its log says "
			 "why",
			 r->mount_point);
	else
		snprintf(r->why, sizeof(r->why), "cannot reach the mount %s: %s", r->mount_point, strerror(-error));
}

static int open_device(struct reach *r, uid_t user, unsigned seconds)
{
	int fd = connect_somewhere(r->device, user, seconds);

	/* A mount is seen a moment before its socket is there.  It answers nothing before that. */
	if (fd == -ENOENT && !is_dead(r->mount_point))
		fd = connect_somewhere(r->device, user, seconds);
	if (fd < 0) {
		explain(r, fd, user);
		return fd;
	}
	r->fd = fd;
	r->seconds = seconds;
	r->buffer = malloc(CONTROL_ANSWER);
	if (!r->buffer) {
		snprintf(r->why, sizeof(r->why), "out of memory");
		return -ENOMEM;
	}
	return 0;
}

int reach_open(struct reach *r, const char *path, unsigned seconds)
{
	struct mountinfo info;
	int error;

	*r = (struct reach){ .fd = -1 };
	error = reach_device(path, &r->device);
	if (error < 0) {
		snprintf(r->why, sizeof(r->why), "%s",
			 error == -ENOTCONN ? "the process of the mount was killed; mount it again, or epochfs umount it"
					    : strerror(-error));
		return error;
	}
	error = mountinfo_find_device(r->device, &info);
	if (error < 0 || strcmp(info.type, MOUNT_TYPE) != 0) {
		snprintf(r->why, sizeof(r->why), "it is on no EpochFS mount");
		return -ENOTTY;
	}
	snprintf(r->mount_point, sizeof(r->mount_point), "%s", info.point);
	return open_device(r, info.user, seconds);
}

int reach_open_mount(struct reach *r, const struct mountinfo *mount, unsigned seconds)
{
	*r = (struct reach){ .fd = -1, .device = mount->device };
	snprintf(r->mount_point, sizeof(r->mount_point), "%s", mount->point);
	return open_device(r, mount->user, seconds);
}

int reach_open_again(struct reach *r, const struct reach *other)
{
	struct mountinfo info;
	int error = mountinfo_find_device(other->device, &info);

	*r = (struct reach){ .fd = -1, .device = other->device };
	memcpy(r->mount_point, other->mount_point, sizeof(r->mount_point));
	if (error < 0) {
		snprintf(r->why, sizeof(r->why), "it is not mounted any more");
		return error;
	}
	return open_device(r, info.user, 0);
}

void reach_close(struct reach *r)
{
	if (r->fd >= 0)
		close(r->fd);
	free(r->buffer);
	*r = (struct reach){ .fd = -1 };
}

static bool send_all(int fd, const char *text, size_t length)
{
	while (length > 0) {
		ssize_t n = send(fd, text, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		text += n;
		length -= (size_t)n;
	}
	return true;
}

static int64_t patience_end(const struct reach *r) { return clock_steady_ns() + r->seconds * NS_PER_S; }

/* Before each call that may wait.  A mount that answers byte by byte does not make anybody wait for longer. */
static bool patience_renew(const struct reach *r, int64_t until_ns)
{
	int64_t left_ns = until_ns - clock_steady_ns();

	if (!r->seconds)
		return true;
	if (left_ns < NS_PER_MS) {
		errno = EAGAIN;
		return false;
	}
	patience_set(r->fd, left_ns);
	return true;
}

/* A line, in the buffer, and its length; 0: none. */
static size_t line_receive(struct reach *r, int64_t until_ns)
{
	for (;;) {
		char *end = r->length ? memchr(r->buffer, '\n', r->length) : NULL;
		ssize_t n;

		if (end)
			return (size_t)(end - r->buffer);
		if (r->length == CONTROL_ANSWER) {
			errno = EMSGSIZE;
			return 0;
		}
		if (!patience_renew(r, until_ns))
			return 0;
		n = recv(r->fd, r->buffer + r->length, CONTROL_ANSWER - r->length, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (n == 0)
				errno = EPIPE;
			return 0;
		}
		r->length += (size_t)n;
	}
}

static void unanswered_explain(struct reach *r)
{
	snprintf(r->why, sizeof(r->why), "%s", errno == EAGAIN ? "the mount does not answer" : "the mount has ended");
}

static json_t *answer_take(struct reach *r, int64_t until_ns)
{
	size_t length = line_receive(r, until_ns);
	const char *refusal;
	json_t *answer;

	r->late = !length && errno == EAGAIN;
	if (!length) {
		unanswered_explain(r);
		return NULL;
	}
	answer = json_loadb(r->buffer, length, 0, NULL);
	refusal = json_string_value(json_object_get(answer, "error"));
	if (answer && !refusal)
		return answer;
	snprintf(r->why, sizeof(r->why), "%s", refusal ? refusal : "the mount's answer makes no sense");
	json_decref(answer);
	return NULL;
}

json_t *reach_ask(struct reach *r, json_t *request)
{
	CLEANUP_FREE char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	size_t length;
	int64_t until_ns = patience_end(r);

	json_decref(request);
	if (!text) {
		snprintf(r->why, sizeof(r->why), "out of memory");
		return NULL;
	}
	length = strlen(text);
	text[length++] = '\n';
	r->length = 0;
	r->late = false;
	if (!send_all(r->fd, text, length)) {
		unanswered_explain(r);
		return NULL;
	}
	return answer_take(r, until_ns);
}

json_t *reach_answer(struct reach *r) { return answer_take(r, patience_end(r)); }
