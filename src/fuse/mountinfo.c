/* A line of /proc/self/mountinfo (proc(5)):
 *
 *   36 35 0:98 /root /mnt/point rw,noatime master:1 - fuse.epochfs source rw,...
 *   id parent device root point options [fields...] - type source options
 *
 * Blanks and backslashes in names are written as \ooo. */
#include "fuse/mountinfo.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include "base/cleanup.h"

#define OURS "/proc/self/mountinfo"
#define FIELD_ID 0
#define FIELD_DEVICE 2
#define FIELD_POINT 4
#define FIELD_FLAGS 5
#define FIELD_OPTIONAL 6

static bool is_octal(char c) { return c >= '0' && c <= '7'; }

/* The field's text with its escapes undone; false if it does not fit. */
static bool field_copy(char *out, size_t size, const char *field, size_t length)
{
	size_t n = 0;

	for (size_t i = 0; i < length; i++) {
		char c = field[i];

		if (c == '\\' && i + 3 < length && is_octal(field[i + 1]) && is_octal(field[i + 2]) && is_octal(field[i + 3])) {
			c = (char)((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0'));
			i += 3;
		}
		if (n + 1 >= size)
			return false;
		out[n++] = c;
	}
	out[n] = 0;
	return true;
}

static bool device_parse(const char *text, dev_t *out)
{
	char *end;
	unsigned long major = strtoul(text, &end, 10), minor;

	if (end == text || *end != ':')
		return false;
	text = end + 1;
	minor = strtoul(text, &end, 10);
	*out = makedev((unsigned)major, (unsigned)minor);
	return end != text;
}

static const char *next_field(const char **at, const char *end, size_t *length)
{
	const char *start = *at, *stop;

	if (start >= end)
		return NULL;
	stop = memchr(start, ' ', (size_t)(end - start));
	*length = (size_t)((stop ? stop : end) - start);
	*at = stop ? stop + 1 : end;
	return start;
}

/* The next one of options parted by commas, or NULL. */
static const char *next_option(const char **at, const char *end, size_t *length)
{
	const char *start = *at, *comma;

	if (start >= end)
		return NULL;
	comma = memchr(start, ',', (size_t)(end - start));
	*length = (size_t)((comma ? comma : end) - start);
	*at = comma ? comma + 1 : end;
	return start;
}

static bool option_is(const char *option, size_t length, const char *name)
{
	return strlen(name) == length && !memcmp(option, name, length);
}

/* The flags in a list of options; those it names by what is not there (rw, exec) are 0. */
static unsigned long flags_parse(const char *options, size_t length)
{
	static const struct {
		const char *name;
		unsigned long flag;
	} all[] = {
		{ "ro", MS_RDONLY },       { "nosuid", MS_NOSUID },         { "nodev", MS_NODEV },       { "noexec", MS_NOEXEC },
		{ "noatime", MS_NOATIME }, { "nodiratime", MS_NODIRATIME }, { "relatime", MS_RELATIME },
	};
	const char *end = options + length, *option;
	unsigned long flags = 0;
	size_t n;

	while ((option = next_option(&options, end, &n))) {
		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
			flags |= option_is(option, n, all[i].name) ? all[i].flag : 0;
	}
	return flags;
}

/* Those of the file system, after its source. */
static void options_parse(const char *options, size_t length, struct mountinfo *out)
{
	static const char user[] = "user_id=";
	const char *end = options + length, *option;
	size_t n;

	out->read_only = (flags_parse(options, length) & MS_RDONLY) != 0;
	while ((option = next_option(&options, end, &n))) {
		out->others = out->others || option_is(option, n, "allow_other");
		if (n > sizeof(user) - 1 && !memcmp(option, user, sizeof(user) - 1))
			out->user = (uid_t)strtoul(option + sizeof(user) - 1, NULL, 10);
	}
	if (out->read_only)
		out->flags |= MS_RDONLY;
}

static bool line_parse(const char *line, const char *end, struct mountinfo *out)
{
	size_t length;
	const char *f;
	int i;

	out->user = 0;
	out->flags = 0;
	out->read_only = out->others = false;
	for (i = 0; (f = next_field(&line, end, &length)); i++) {
		if (i == FIELD_ID)
			out->id = (int)strtol(f, NULL, 10);
		if (i == FIELD_DEVICE && !device_parse(f, &out->device))
			return false;
		if (i == FIELD_POINT && !field_copy(out->point, sizeof(out->point), f, length))
			return false;
		if (i == FIELD_FLAGS)
			out->flags = flags_parse(f, length);
		if (i >= FIELD_OPTIONAL && length == 1 && *f == '-')
			break;
	}
	f = next_field(&line, end, &length);
	if (!f || !field_copy(out->type, sizeof(out->type), f, length))
		return false;
	f = next_field(&line, end, &length);
	if (!f || !field_copy(out->source, sizeof(out->source), f, length))
		return false;
	f = next_field(&line, end, &length);
	if (f)
		options_parse(f, length, out);
	return true;
}

static bool is_at(const struct mountinfo *m, const void *path) { return !strcmp(m->point, path); }

static bool is_beneath(const struct mountinfo *m, const void *path)
{
	size_t length = strlen(path);

	return !strncmp(m->point, path, length) && m->point[length] == '/';
}

static bool has_device(const struct mountinfo *m, const void *device) { return m->device == *(const dev_t *)device; }

static bool has_id(const struct mountinfo *m, const void *id) { return m->id == *(const int *)id; }

/* The last line that fits, as later ones are mounted over earlier ones. */
static int text_parse(const char *text, bool (*fits)(const struct mountinfo *, const void *), const void *what,
		      struct mountinfo *out)
{
	int error = -ENOENT;

	while (*text) {
		const char *end = strchrnul(text, '\n');
		struct mountinfo found;

		if (line_parse(text, end, &found) && fits(&found, what)) {
			*out = found;
			error = 0;
		}
		text = *end ? end + 1 : end;
	}
	return error;
}

int mountinfo_parse(const char *text, const char *path, struct mountinfo *out) { return text_parse(text, is_at, path, out); }

int mountinfo_parse_id(const char *text, int id, struct mountinfo *out) { return text_parse(text, has_id, &id, out); }

int mountinfo_parse_device(const char *text, dev_t device, struct mountinfo *out)
{
	return text_parse(text, has_device, &device, out);
}

int mountinfo_parse_beneath(const char *text, const char *path, struct mountinfo *out)
{
	return text_parse(text, is_beneath, path, out);
}

static int text_read(struct buf *text, const char *path)
{
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return -errno;
	do {
		char piece[4096];

		n = fread(piece, 1, sizeof(piece), f);
		buf_append(text, piece, n);
	} while (n);
	fclose(f);
	buf_le8(text, 0);
	return text->failed ? -ENOMEM : 0;
}

int mountinfo_find(const char *path, struct mountinfo *out)
{
	CLEANUP_BUF struct buf text = { 0 };
	int error = text_read(&text, OURS);

	return error ? error : mountinfo_parse((const char *)text.data, path, out);
}

int mountinfo_find_device(dev_t device, struct mountinfo *out)
{
	CLEANUP_BUF struct buf text = { 0 };
	int error = text_read(&text, OURS);

	return error ? error : mountinfo_parse_device((const char *)text.data, device, out);
}

int mountinfo_find_device_of(pid_t process, dev_t device, struct mountinfo *out)
{
	CLEANUP_BUF struct buf text = { 0 };
	char path[40];
	int error;

	snprintf(path, sizeof(path), "/proc/%d/mountinfo", (int)process);
	error = text_read(&text, path);
	return error ? error : mountinfo_parse_device((const char *)text.data, device, out);
}

/* The kernel keeps the settings of its write-back for each file system from when it is made until its last mount is gone. */
bool mountinfo_device_lives(dev_t device)
{
	char path[60];

	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u", major(device), minor(device));
	return access(path, F_OK) == 0;
}

/* Of /proc/self/fdinfo. */
static int open_id(int fd, int *out)
{
	static const char name[] = "mnt_id:";
	char path[40], line[128];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (!found && fgets(line, sizeof(line), f)) {
		found = !strncmp(line, name, sizeof(name) - 1);
		if (found)
			*out = (int)strtol(line + sizeof(name) - 1, NULL, 10);
	}
	fclose(f);
	return found ? 0 : -ENOENT;
}

int mountinfo_find_open(int fd, struct mountinfo *out)
{
	CLEANUP_BUF struct buf text = { 0 };
	int id = 0, error = open_id(fd, &id);

	if (!error)
		error = text_read(&text, OURS);
	return error ? error : mountinfo_parse_id((const char *)text.data, id, out);
}

int mountinfo_find_beneath(const char *path, struct mountinfo *out)
{
	CLEANUP_BUF struct buf text = { 0 };
	int error = text_read(&text, OURS);

	return error ? error : mountinfo_parse_beneath((const char *)text.data, path, out);
}
