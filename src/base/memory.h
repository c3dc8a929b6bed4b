/* Giving back to the system what malloc keeps of freed memory.
 *
 * A process whose threads take and free buffers of many sizes ends up with several times what it uses, spread over malloc's
 * arenas.  memory_tend is to be called now and then, by one thread; it looks at most every half minute. */
#pragma once
#include <stdint.h>

struct memory {
	int64_t next_ns; /* steady clock */
};
void memory_tend(struct memory *m);
