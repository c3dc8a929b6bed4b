#include "fuse/background.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"

/* What the child says first: that it is up, or that an error text follows. */
#define SAID_UP 'u'
#define SAID_FAILED 'f'

static size_t report_read(int fd, char *out, size_t size)
{
	size_t n = 0;
	ssize_t got;

	while (n + 1 < size) {
		got = read(fd, out + n, size - 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		n += (size_t)got;
		if (out[0] == SAID_UP)
			break;
	}
	out[n] = 0;
	return n;
}

static int parent_wait(int fd, pid_t child, char *why, size_t why_size)
{
	char said[1024];
	size_t n = report_read(fd, said, sizeof(said));
	int status = 0;

	close(fd);
	if (n && said[0] == SAID_UP)
		return BACKGROUND_PARENT;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (n)
		snprintf(why, why_size, "%s", said + 1);
	else if (WIFSIGNALED(status))
		snprintf(why, why_size, "its process was killed: %s", strsignal(WTERMSIG(status)));
	else
		snprintf(why, why_size, "its process ended with code %d", WEXITSTATUS(status));
	return -ECHILD;
}

int background_begin(struct background *b, char *why, size_t why_size)
{
	int fds[2];
	pid_t child;

	if (pipe2(fds, O_CLOEXEC)) {
		snprintf(why, why_size, "%s", strerror(errno));
		return -errno;
	}
	fflush(NULL);
	child = fork();
	if (child < 0) {
		int error = -errno;

		close(fds[0]);
		close(fds[1]);
		snprintf(why, why_size, "%s", strerror(-error));
		return error;
	}
	if (child) {
		close(fds[1]);
		return parent_wait(fds[0], child, why, why_size);
	}
	close(fds[0]);
	setsid();
	b->report = fds[1];
	return BACKGROUND_CHILD;
}

static void report_write(struct background *b, char said, const char *text)
{
	size_t length = strlen(text);

	if (write(b->report, &said, 1) == 1 && length && write(b->report, text, length) < 0)
		log_error("%s", text);
	close(b->report);
	b->report = -1;
}

int background_up(struct background *b, const char *log_path)
{
	bool logging = log_path && !log_to_file(log_path);
	int null = open("/dev/null", O_RDWR);

	if (null < 0 || chdir("/"))
		return -errno;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (dup2(null, fd) < 0)
			return -errno;
	}
	if (null > STDERR_FILENO)
		close(null);
	if (!logging)
		log_set_level(LOG_LEVEL_OFF);
	report_write(b, SAID_UP, "");
	return 0;
}

void background_failed(struct background *b, const char *text)
{
	if (b->report >= 0)
		report_write(b, SAID_FAILED, text);
}
