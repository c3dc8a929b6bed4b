#include "server/process.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIRST_NAMESPACE 0xEFFFFFFCu /* the kernel's own number for the machine's */
#define STARTED_FIELD 20            /* of /proc/PID/stat, counted from behind the name */

static int read_text(const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, out, size - 1);
	close(fd);
	if (n < 0)
		return -EIO;
	out[n] = 0;
	return 0;
}

static int boot_now(char out[PROCESS_BOOT])
{
	struct stat namespace;
	int r = read_text("/proc/sys/kernel/random/boot_id", out, PROCESS_BOOT);

	if (r < 0 || strlen(out) != PROCESS_BOOT - 1)
		return -ENOTSUP;
	return stat("/proc/self/ns/pid", &namespace) == 0 && namespace.st_ino == FIRST_NAMESPACE ? 0 : -ENOTSUP;
}

/* The name, in brackets, may hold anything, brackets too. */
static int started_of(uint32_t pid, uint64_t *out)
{
	char path[40], text[1024], *at;
	int r;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	r = read_text(path, text, sizeof(text));
	if (r < 0)
		return r == -ENOENT || r == -EIO ? -ESRCH : r;
	at = strrchr(text, ')');
	for (int field = 0; at && field < STARTED_FIELD; field++)
		at = strchr(at + 1, ' ');
	if (!at)
		return -ENOTSUP;
	*out = strtoull(at, NULL, 10);
	return 0;
}

void process_of_peer(int socket, struct process *out)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);
	struct process p = { 0 };

	*out = p;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.pid <= 0)
		return;
	p.pid = (uint32_t)peer.pid;
	if (boot_now(p.boot) == 0 && started_of(p.pid, &p.started) == 0)
		*out = p;
}

int process_find(const struct process *p)
{
	char boot[PROCESS_BOOT];
	uint64_t started;
	int r = boot_now(boot), fd;

	if (r < 0 || !p->boot[0])
		return -ENOTSUP;
	if (strcmp(boot, p->boot) != 0)
		return -ESRCH;
	/* The descriptor first: what is looked at afterwards is then surely of the same process. */
	fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	if (fd < 0)
		return -errno;
	r = started_of(p->pid, &started);
	if (r == 0 && started == p->started)
		return fd;
	close(fd);
	return r < 0 ? r : -ESRCH;
}
