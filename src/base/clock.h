/* Time.  Wall time is nanoseconds since 1970 (CLOCK_REALTIME); the steady clock
 * (CLOCK_BOOTTIME) is for time-outs and counts while the machine sleeps.
 * Components that tests must steer take a struct clock. */
#pragma once
#include <stdint.h>

#define NS_PER_MS 1000000LL
#define NS_PER_S 1000000000LL

int64_t clock_wall_ns(void);
int64_t clock_steady_ns(void);

struct clock {
	int64_t (*wall_ns)(void *);
	void *context;
};
extern const struct clock clock_system;
static inline int64_t clock_read(const struct clock *c) { return c->wall_ns(c->context); }
