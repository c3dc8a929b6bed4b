#include "base/memory.h"
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"

#define EVERY_NS (30 * NS_PER_S)
#define KEPT ((size_t)32 << 20) /* is not worth the work */

static size_t pages_of(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (size + page - 1) / page * page;
}

/* More is mapped, and what is not aligned given back. */
void *memory_map(size_t size)
{
	size_t length = pages_of(size), before;
	uint8_t *mapped = mmap(NULL, length + MEMORY_HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *base;

	if (mapped == MAP_FAILED)
		return NULL;
	before = (MEMORY_HUGE - (uintptr_t)mapped % MEMORY_HUGE) % MEMORY_HUGE;
	base = mapped + before;
	if (before)
		munmap(mapped, before);
	munmap(base + length, MEMORY_HUGE - before);
	(void)madvise(base, length, MADV_HUGEPAGE); /* only advice */
	return base;
}

void memory_unmap(void *mapped, size_t size) { munmap(mapped, pages_of(size)); }

void memory_tend(struct memory *m)
{
	int64_t now = clock_steady_ns();

	if (now < m->next_ns)
		return;
	if (m->next_ns && mallinfo2().fordblks > KEPT)
		malloc_trim(0);
	m->next_ns = now + EVERY_NS;
}

/* ---- How much is available ---- */

#define TEXT 8192

static bool text_read(int folder, const char *name, char out[TEXT])
{
	CLEANUP_FD int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, out, TEXT - 1);

	if (n < 0)
		return false;
	out[n] = '\0';
	return true;
}

/* What follows the key on the line that begins with it; NULL: there is none. */
static char *line_find(char *text, const char *key)
{
	size_t length = strlen(key);

	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, length) == 0)
			return line + length;
	}
	return NULL;
}

static uint64_t number_find(char *text, const char *key)
{
	const char *number = line_find(text, key);

	return number ? strtoull(number, NULL, 10) : 0;
}

/* UINT64_MAX: it has no limit. */
static uint64_t group_room(int folder)
{
	char text[TEXT];
	uint64_t limit, used, pages;

	if (!text_read(folder, "memory.max", text) || strncmp(text, "max", 3) == 0)
		return UINT64_MAX;
	limit = strtoull(text, NULL, 10);
	used = text_read(folder, "memory.current", text) ? strtoull(text, NULL, 10) : limit;
	pages = text_read(folder, "memory.stat", text) ? number_find(text, "inactive_file ") + number_find(text, "active_file ")
						       : 0;
	used -= pages < used ? pages : used;
	return used < limit ? limit - used : 0;
}

/* Of the groups from this one up to the top. */
static uint64_t groups_room(int root, const char *group)
{
	char path[TEXT + 32];
	uint64_t least = UINT64_MAX, room;
	size_t top = strlen("sys/fs/cgroup");

	snprintf(path, sizeof(path), "sys/fs/cgroup%s", group);
	for (;;) {
		CLEANUP_FD int folder = openat(root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		room = folder < 0 ? UINT64_MAX : group_room(folder);
		least = room < least ? room : least;
		if (strlen(path) <= top)
			return least;
		*strrchr(path, '/') = '\0';
	}
}

uint64_t memory_available(const char *root)
{
	CLEANUP_FD int folder = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint64_t available, room;
	char text[TEXT], *group;

	if (folder < 0 || !text_read(folder, "proc/meminfo", text))
		return 0;
	available = number_find(text, "MemAvailable:") << 10;
	group = text_read(folder, "proc/self/cgroup", text) ? line_find(text, "0::") : NULL;
	if (!group)
		return available;
	group[strcspn(group, "\n")] = '\0';
	room = groups_room(folder, group);
	return room < available ? room : available;
}
