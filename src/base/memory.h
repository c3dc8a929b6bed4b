/* Memory in huge pages, and giving back to the system what malloc keeps of freed memory.
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
