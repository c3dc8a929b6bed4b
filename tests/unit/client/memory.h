/* Memory that is short: of this thread's allocations, after some that work, some fail.  The test is linked with --wrap for
 * malloc, calloc and realloc. */
#pragma once
#include <stdbool.h>

void memory_short(int works, int fails);
bool memory_plenty(void); /* from now on; whether any failed */
