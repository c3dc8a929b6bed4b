/* A configuration file: `name = value` lines, # comments, no sections.  Names are
 * those of the long options without the dashes.  Anything else is an error that
 * names file and line. */
#pragma once
#include <stddef.h>

/* Calls `set` for each line; a non-zero answer stops, and `error` (of error_size
 * bytes) then tells file, line and why.  0, or -errno. */
int settings_read(const char *path, int (*set)(void *context, const char *name, const char *value, char *why, size_t why_size),
		  void *context, char *error, size_t error_size);
