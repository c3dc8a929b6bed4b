#include "cli/holders.h"
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "base/units.h"
#include "fuse/mountinfo.h"

#define SHOWN 3
#define COMMAND_TEXT 64
#define POINT_TEXT 200

struct search {
	dev_t device;
	struct buf namespaces; /* the numbers of those that were looked at */
	size_t found, length;
	char *out;
};

static void add(struct search *s, const char *text)
{
	int n;

	if (++s->found > SHOWN)
		return;
	n = snprintf(s->out + s->length, HOLDERS_TEXT - s->length, "%s%s", s->length ? "; " : "", text);
	s->length += (size_t)n < HOLDERS_TEXT - s->length ? (size_t)n : HOLDERS_TEXT - s->length - 1;
}

/* False: it has been looked at, or there is no memory to note it. */
static bool namespace_take(struct search *s, uint64_t number)
{
	for (size_t at = 0; at < s->namespaces.len; at += sizeof(number))
		if (!memcmp(s->namespaces.data + at, &number, sizeof(number)))
			return false;
	buf_append(&s->namespaces, &number, sizeof(number));
	return !s->namespaces.failed;
}

static bool namespace_of(pid_t process, uint64_t *out)
{
	struct stat st;
	char path[40];

	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)process);
	if (stat(path, &st) < 0)
		return false;
	*out = st.st_ino;
	return true;
}

static const char *command_of(pid_t process, char out[COMMAND_TEXT])
{
	char path[40], name[32] = "";
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)process);
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd >= 0 ? read(fd, name, sizeof(name)) : 0;
	text_escape(out, COMMAND_TEXT, name, n > 0 ? strcspn(name, "\n") : 0);
	return out;
}

/* The first process of a namespace is the one that stands for it. */
static void process_look(struct search *s, pid_t process)
{
	char text[HOLDERS_TEXT], command[COMMAND_TEXT], point[POINT_TEXT];
	CLEANUP_FREE struct mountinfo *info = malloc(sizeof(*info));
	uint64_t namespace;

	if (!info || !namespace_of(process, &namespace) || !namespace_take(s, namespace) ||
	    mountinfo_find_device_of(process, s->device, info))
		return;
	text_escape(point, sizeof(point), info->point, strlen(info->point));
	snprintf(text, sizeof(text), "process %d (%s) has it on %s, in a mount namespace of its own (a container)", (int)process,
		 command_of(process, command), point);
	add(s, text);
}

static void here_look(struct search *s)
{
	CLEANUP_FREE struct mountinfo *info = malloc(sizeof(*info));
	char text[HOLDERS_TEXT], point[POINT_TEXT];
	uint64_t namespace;

	if (namespace_of(getpid(), &namespace))
		namespace_take(s, namespace);
	if (!info || mountinfo_find_device(s->device, info))
		return;
	text_escape(point, sizeof(point), info->point, strlen(info->point));
	snprintf(text, sizeof(text), "it is still mounted on %s", point);
	add(s, text);
}

size_t holders_find(dev_t device, char out[HOLDERS_TEXT])
{
	struct search s = { .device = device, .out = out };
	DIR *stream = opendir("/proc");
	struct dirent *entry;

	out[0] = 0;
	here_look(&s);
	while (stream && (entry = readdir(stream)))
		if (isdigit((unsigned char)entry->d_name[0]))
			process_look(&s, (pid_t)strtol(entry->d_name, NULL, 10));
	if (stream)
		closedir(stream);
	buf_free(&s.namespaces);
	if (s.found > SHOWN) {
		char count[UNITS_TEXT];

		snprintf(out + s.length, HOLDERS_TEXT - s.length, "; and %s more", count_format(count, s.found - SHOWN));
	}
	return s.found;
}
