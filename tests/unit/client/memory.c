#include "memory.h"
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static _Thread_local int works_left, fails_left;
static _Thread_local bool failed;

static bool fails(void)
{
	if (!fails_left || works_left-- > 0)
		return false;
	works_left = 0;
	fails_left--;
	failed = true;
	return true;
}

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }

void memory_short(int works, int fails)
{
	works_left = works;
	fails_left = fails;
	failed = false;
}

bool memory_plenty(void)
{
	fails_left = 0;
	return failed;
}
