/* Failing the nth fallible call.
 *
 * The linker sends every call of the functions listed in inject.c (memory, files,
 * sockets, threads) through a wrapper, in our code and in what is linked
 * statically (LMDB).  Armed with n, the nth call of any of them fails once, the
 * way the real one could; then all is as usual again.
 *
 * A scenario is run with n = 1, 2, 3, ... until it gets through without the
 * failure having happened: then every call it makes has failed once. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void inject_arm(uint64_t n);          /* the nth call from now on fails */
bool inject_disarm(void);             /* whether it did */
const char *inject_failed_call(void); /* which function that was; NULL: none yet */

/* What a scenario is made of.  `run` is the part under injection; it returns 0 or
 * -errno and frees whatever it took.  `verify` then looks, without injection, at
 * what is on disk: what was promised must be there, and nothing may be broken. */
struct torture {
	const char *name;
	void (*prepare)(void *context); /* a fresh start before each run */
	int (*run)(void *context);
	void (*verify)(void *context, int status);
	void *context;
};

/* Returns the process's exit code.  Arguments: none, for every n; FIRST STEP, for
 * every STEPth from FIRST on (to share the work); N, for this one, with a log. */
int torture_main(const struct torture *t, int argc, char **argv);

#define REQUIRE(condition) \
	do { \
		if (!(condition)) \
			torture_fail(__FILE__, __LINE__, #condition); \
	} while (0)
_Noreturn void torture_fail(const char *file, int line, const char *condition);

/* An empty folder of this process, in memory where there is such a place. */
void torture_folder(char *out, size_t size, const char *name);
void torture_folder_remove(const char *path);
