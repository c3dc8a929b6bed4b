/* Memory in huge pages, giving back to the system what malloc keeps of freed memory, and how much of it is available.
 *
 * Large buffers want huge pages, but never in malloc's memory: it would stay huge for whatever small thing is there later.
 *
 * A process whose threads take and free buffers of many sizes ends up with several times what it uses, spread over malloc's
 * arenas.  memory_tend is to be called now and then, by one thread; it looks at most every half minute. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MEMORY_HUGE ((size_t)2 << 20)

void *memory_map(size_t size); /* zeroed, begins on a huge page, and is in such where it can be; NULL: there is none */
void memory_unmap(void *mapped, size_t size);

struct memory {
	int64_t next_ns; /* steady clock */
};
void memory_tend(struct memory *m);

/* How many bytes this process could still use without any program being swapped out or killed for it: what the kernel says is
 * available, but no more than the limits of its control group and of those above leave (version 2).  Page cache counts as free in
 * both, as it makes room for other pages.  0: not known.  `root` is "/", but in tests: where proc and sys are. */
uint64_t memory_available(const char *root);
