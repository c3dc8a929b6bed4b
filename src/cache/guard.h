/* Mapped files that somebody cuts off, or whose disk fails.
 *
 * Touching a page of them is then a SIGBUS, which would end the process.  In a guarded range such a page becomes one of
 * zeroes, of this process alone, and all goes on: for data that may be nonsense anyway.  Elsewhere SIGBUS does what it did.
 *
 * The first call of guard_add sets the handler of the process.  Any thread. */
#pragma once
#include <stddef.h>

void guard_add(void *start, size_t size); /* more than GUARD_MOST at a time are not guarded */
void guard_remove(void *start);
