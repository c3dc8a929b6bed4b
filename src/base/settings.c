#include "base/settings.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include "base/cleanup.h"

#define FILE_MOST (1u << 20)
#define LINE_MOST 8192u /* two paths of 4,096 */

static int settings_fail(int error, char *out, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));
static int settings_fail(int error, char *out, size_t size, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(out, size, format, args);
	va_end(args);
	return error;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; }

/* Cuts comment and blanks off the line, in place; returns its first character. */
static char *line_trim(char *line)
{
	while (is_blank(*line))
		line++;
	size_t end = 0;
	while (line[end] && !(line[end] == '#' && (end == 0 || is_blank(line[end - 1]))))
		end++;
	while (end > 0 && is_blank(line[end - 1]))
		end--;
	line[end] = 0;
	return line;
}

/* Splits at the first '='.  NULL, or what is wrong with it. */
static const char *line_split(char *line, const char **name, const char **value)
{
	size_t n = 0;
	while (is_name(line[n]))
		n++;
	size_t equals = n;
	while (is_blank(line[equals]))
		equals++;
	if (n == 0 || line[equals] != '=')
		return "expected `name = value`";
	*name = line;
	*value = line + equals + 1;
	while (is_blank(**value))
		(*value)++;
	line[n] = 0;
	return NULL;
}

static int line_apply(const char *source, unsigned number, char *line, settings_setter set, void *context, char *error,
		      size_t error_size)
{
	char why[256] = "";
	const char *name, *value;
	line = line_trim(line);
	if (!*line)
		return 0;
	const char *wrong = line_split(line, &name, &value);
	if (wrong)
		return settings_fail(-EINVAL, error, error_size, "%s line %u: %s", source, number, wrong);
	int status = set(context, name, value, why, sizeof why);
	if (status == 0)
		return 0;
	status = status < 0 ? status : -EINVAL;
	return settings_fail(status, error, error_size, "%s line %u: %s: %s", source, number, name,
			     *why ? why : strerror(-status));
}

int settings_parse(const char *source, const char *text, size_t size, settings_setter set, void *context, char *error,
		   size_t error_size)
{
	char line[LINE_MOST];
	unsigned number = 0;
	while (size > 0) {
		const char *newline = memchr(text, '\n', size);
		size_t length = newline ? (size_t)(newline - text) : size;
		number++;
		if (length >= sizeof line)
			return settings_fail(-EINVAL, error, error_size, "%s line %u: the line is too long", source, number);
		memcpy(line, text, length);
		line[length] = 0;
		if (strlen(line) != length)
			return settings_fail(-EINVAL, error, error_size, "%s line %u: not text", source, number);
		int status = line_apply(source, number, line, set, context, error, error_size);
		if (status)
			return status;
		size_t step = length + (newline ? 1 : 0);
		text += step;
		size -= step;
	}
	return 0;
}

static int file_load(const char *path, struct buf *out)
{
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (;;) {
		uint8_t *at = buf_extend(out, 16384);
		if (!at)
			return -ENOMEM;
		ssize_t n = read(fd, at, 16384);
		if (n < 0 && errno != EINTR)
			return -errno;
		out->len -= 16384 - (size_t)(n > 0 ? n : 0);
		if (n == 0)
			return 0;
		if (out->len > FILE_MOST)
			return -EFBIG;
	}
}

int settings_read(const char *path, settings_setter set, void *context, char *error, size_t error_size)
{
	CLEANUP_BUF struct buf text = { 0 };
	int status = file_load(path, &text);
	if (status)
		return settings_fail(status, error, error_size, "cannot read %s: %s", path, strerror(-status));
	return settings_parse(path, (const char *)text.data, text.len, set, context, error, error_size);
}
