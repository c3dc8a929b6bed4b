/* The thread that waits for the answer to a request.  Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Whether it is on its way out, so that it needs no answer.  0, which stands for nobody, never is. */
bool waiter_is_dying(uint32_t pid);
