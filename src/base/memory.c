#include "base/memory.h"
#include <malloc.h>
#include <stddef.h>
#include "base/clock.h"

#define EVERY_NS (30 * NS_PER_S)
#define KEPT ((size_t)32 << 20) /* is not worth the work */

void memory_tend(struct memory *m)
{
	int64_t now = clock_steady_ns();

	if (now < m->next_ns)
		return;
	if (m->next_ns && mallinfo2().fordblks > KEPT)
		malloc_trim(0);
	m->next_ns = now + EVERY_NS;
}
