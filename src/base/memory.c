#include "base/memory.h"
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
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
