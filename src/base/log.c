#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"

#define LINE_MOST 4096 /* PIPE_BUF: a line of this size reaches a pipe whole */

static const char *const level_names[] = { "debug", "info", "warn", "error", "off" };

static _Atomic int log_fd = STDERR_FILENO;
static _Atomic int log_level = LOG_LEVEL_INFO;
static const char *copy_path;
static int copy_fd = -1;

void log_set_level(enum log_level level) { atomic_store(&log_level, (int)level); }

enum log_level log_get_level(void) { return (enum log_level)atomic_load(&log_level); }

const char *log_level_name(enum log_level level) { return level_names[level]; }

int log_level_parse(const char *name, enum log_level *out)
{
	for (int i = LOG_LEVEL_DEBUG; i <= LOG_LEVEL_OFF; i++)
		if (strcmp(name, level_names[i]) == 0) {
			*out = (enum log_level)i;
			return 0;
		}
	return -EINVAL;
}

static int file_open(const char *path) { return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640); }

/* Once it is a file, the descriptor's number stays the same: another thread may
 * be about to write to it. */
int log_to_file(const char *path)
{
	int fd = file_open(path);
	if (fd < 0)
		return -errno;
	int expected = STDERR_FILENO;
	if (atomic_compare_exchange_strong(&log_fd, &expected, fd))
		return 0;
	int error = dup3(fd, expected, O_CLOEXEC) < 0 ? -errno : 0;
	close(fd);
	return error;
}

void log_copy_to_file(const char *path) { copy_path = path; }

static void copy_open(void) { copy_fd = file_open(copy_path); }

/* systemd names the stream it reads our standard error from, and stamps the lines. */
static bool stamped_by_systemd(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	struct stat st;
	char ours[64];
	if (!stream || fstat(fd, &st) < 0)
		return false;
	snprintf(ours, sizeof ours, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	return strcmp(stream, ours) == 0;
}

static size_t stamp_make(char *out, size_t size, int fd)
{
	char date[UNITS_TEXT];
	if (stamped_by_systemd(fd))
		return 0;
	return (size_t)snprintf(out, size, "%s ", date_format(date, clock_wall_ns()));
}

static void line_write(int fd, enum log_level level, const char *text, size_t length)
{
	char line[LINE_MOST];
	size_t at = stamp_make(line, 64, fd);
	at += (size_t)snprintf(line + at, sizeof line - at, "%s ", level_names[level]);
	at += text_escape(line + at, sizeof line - 1 - at, text, length);
	line[at++] = '\n';
	while (write(fd, line, at) < 0 && errno == EINTR)
		;
}

void log_line(enum log_level level, const char *format, ...)
{
	if (level < LOG_LEVEL_DEBUG || level >= LOG_LEVEL_OFF || (int)level < atomic_load(&log_level))
		return;
	int saved = errno, fd = atomic_load(&log_fd);
	static pthread_once_t copying = PTHREAD_ONCE_INIT;
	char text[LINE_MOST];
	va_list args;
	va_start(args, format);
	int length = vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (length < 0)
		length = 0;
	if ((size_t)length >= sizeof text)
		length = sizeof text - 1;

	line_write(fd, level, text, (size_t)length);
	if (fd == STDERR_FILENO && copy_path) {
		pthread_once(&copying, copy_open);
		if (copy_fd >= 0)
			line_write(copy_fd, level, text, (size_t)length);
	}
	errno = saved;
}
