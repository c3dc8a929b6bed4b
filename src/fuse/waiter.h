/* The thread that waits for the answer to a request.  0 stands for nobody, whom nothing happens to.  Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

bool waiter_is_dying(uint32_t pid);       /* on its way out, so that it needs no answer */
bool waiter_is_interrupted(uint32_t pid); /* there is a signal for it */
