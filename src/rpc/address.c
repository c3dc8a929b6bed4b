/* Where a server listens: "unix:PATH", "HOST:PORT", "[IPV6]:PORT". */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "rpc/connection.h"

#define BACKLOG 512
#define HOST_MOST 256

static bool is_unix(const char *address, const char **path)
{
	if (strncmp(address, "unix:", 5) != 0)
		return false;
	*path = address + 5;
	return true;
}

/* A path of any length: one too long for sun_path is reached through a
 * descriptor on its folder, which the caller keeps open while it uses *out. */
static int unix_address(const char *path, struct sockaddr_un *out, int *folder)
{
	const char *slash = strrchr(path, '/');
	char parent[PATH_MAX];
	int n;

	*out = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*folder = -1;
	if (!*path || strlen(path) >= PATH_MAX)
		return -EINVAL;
	if (strlen(path) < sizeof(out->sun_path)) {
		memcpy(out->sun_path, path, strlen(path) + 1);
		return 0;
	}
	if (!slash)
		return -ENAMETOOLONG;
	memcpy(parent, path, (size_t)(slash - path));
	parent[slash - path] = 0;
	*folder = open(slash == path ? "/" : parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*folder < 0)
		return -errno;
	n = snprintf(out->sun_path, sizeof(out->sun_path), "/proc/self/fd/%d/%s", *folder, slash + 1);
	return n < (int)sizeof(out->sun_path) ? 0 : -ENAMETOOLONG;
}

/* "HOST:PORT" -> host and port. */
static int tcp_split(const char *address, char host[HOST_MOST], const char **port)
{
	const char *colon = strrchr(address, ':');
	size_t n;

	if (!colon || !colon[1])
		return -EINVAL;
	n = (size_t)(colon - address);
	if (n >= 2 && address[0] == '[' && address[n - 1] == ']') {
		address++;
		n -= 2;
	}
	/* getaddrinfo takes the lower bits of a number that is too large. */
	if (!n || n >= HOST_MOST || strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5 ||
	    strtoul(colon + 1, NULL, 10) > UINT16_MAX)
		return -EINVAL;
	memcpy(host, address, n);
	host[n] = 0;
	*port = colon + 1;
	return 0;
}

int address_check(const char *address)
{
	const char *rest;
	char host[HOST_MOST];

	if (is_unix(address, &rest))
		return *rest && strlen(rest) < PATH_MAX ? 0 : -EINVAL;
	return tcp_split(address, host, &rest);
}

/* Its addresses; the caller frees them.  `error`, of a name without any, is the resolver's. */
static int tcp_resolve(const char *address, struct addrinfo **out, char *error, size_t error_size)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
	char host[HOST_MOST];
	const char *port;
	int n;

	if (tcp_split(address, host, &port))
		return -EINVAL;
	n = getaddrinfo(host, port, &hints, out);
	switch (n) {
	case 0: return 0;
	case EAI_MEMORY: return -ENOMEM;
	case EAI_SERVICE: return -EINVAL;
	default:
		snprintf(error, error_size, "the name %s cannot be resolved: %s", host,
			 n == EAI_SYSTEM ? strerror(errno) : gai_strerror(n));
		return -ENXIO;
	}
}

static int connect_within(int fd, const struct sockaddr *to, socklen_t size, int64_t timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	int error = 0, n;
	socklen_t error_size = sizeof(error);

	if (fcntl(fd, F_SETFL, O_NONBLOCK))
		return -errno;
	if (connect(fd, to, size)) {
		if (errno != EINPROGRESS)
			return -errno;
		do
			n = poll(&p, 1, timeout_ms < 0 || timeout_ms > INT_MAX ? -1 : (int)timeout_ms);
		while (n < 0 && errno == EINTR);
		if (n <= 0)
			return n ? -errno : -ETIMEDOUT;
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size))
			return -errno;
		if (error)
			return -error;
	}
	return fcntl(fd, F_SETFL, 0) ? -errno : 0;
}

static int socket_connect(const struct sockaddr *to, socklen_t size, int64_t timeout_ms, int *out_fd)
{
	int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

	if (fd < 0)
		return -errno;
	r = connect_within(fd, to, size, timeout_ms);
	if (r) {
		close(fd);
		return r;
	}
	*out_fd = fd;
	return 0;
}

static int tcp_connect(const char *address, int64_t timeout_ms, int *out_fd, char *error, size_t error_size)
{
	struct addrinfo *all;
	int r = tcp_resolve(address, &all, error, error_size), count = 0;

	if (r)
		return r;
	r = -EHOSTUNREACH;
	for (struct addrinfo *a = all; a; a = a->ai_next)
		count++;
	for (struct addrinfo *a = all; a && r; a = a->ai_next)
		r = socket_connect(a->ai_addr, a->ai_addrlen, (timeout_ms + count - 1) / count, out_fd);
	freeaddrinfo(all);
	return r;
}

int address_connect(const char *address, int64_t timeout_ms, int *out_fd, char *error, size_t error_size)
{
	const char *path;
	int r;

	error[0] = 0;
	if (is_unix(address, &path)) {
		struct sockaddr_un un;
		CLEANUP_FD int folder = -1;

		r = unix_address(path, &un, &folder);
		if (!r)
			r = socket_connect((struct sockaddr *)&un, sizeof(un), timeout_ms, out_fd);
	} else {
		r = tcp_connect(address, timeout_ms, out_fd, error, error_size);
	}
	if (r && !error[0])
		snprintf(error, error_size, "%s", strerror(-r));
	return r;
}

static bool is_loopback(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
	if (a->sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
	return false;
}

static int socket_listen(const struct sockaddr *at, socklen_t size, int *out_fd)
{
	int on = 1, r = 0, fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (at->sa_family != AF_UNIX)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, at, size) || listen(fd, BACKLOG)) {
		r = -errno;
		close(fd);
		return r;
	}
	*out_fd = fd;
	return 0;
}

int address_listen(const char *address, int *out_fd, char *error, size_t error_size)
{
	const char *path;
	struct addrinfo *all = NULL;
	char unresolved[HOST_MOST + 200] = "";
	int r;

	if (is_unix(address, &path)) {
		struct sockaddr_un un;
		CLEANUP_FD int folder = -1;

		r = unix_address(path, &un, &folder);
		if (!r)
			r = socket_listen((struct sockaddr *)&un, sizeof(un), out_fd);
	} else {
		r = tcp_resolve(address, &all, unresolved, sizeof(unresolved));
		for (struct addrinfo *a = all; a; a = a->ai_next)
			if (!is_loopback(a->ai_addr))
				r = -EPERM;
		if (!r && all)
			r = socket_listen(all->ai_addr, all->ai_addrlen, out_fd);
		if (all)
			freeaddrinfo(all);
	}
	if (r == -EPERM)
		snprintf(error, error_size,
			 "cannot listen on %s: only loopback addresses (127.0.0.1, [::1]) are served until "
			 "tokens and TLS exist, in a later version",
			 address);
	else if (r == -EINVAL)
		snprintf(error, error_size, "cannot listen on %s: not an address; write unix:PATH, 127.0.0.1:PORT or [::1]:PORT",
			 address);
	else if (r)
		snprintf(error, error_size, "cannot listen on %s: %s", address, unresolved[0] ? unresolved : strerror(-r));
	return r;
}
