#include "base/clock.h"
#include <time.h>

static int64_t clock_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_wall_ns(void) { return clock_ns(CLOCK_REALTIME); }

int64_t clock_steady_ns(void) { return clock_ns(CLOCK_BOOTTIME); }

static int64_t system_wall_ns(void *context) { return clock_wall_ns(); }

const struct clock clock_system = { .wall_ns = system_wall_ns };
