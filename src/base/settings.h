/* A configuration file: `name = value` lines, comments from a # at the start of a
 * line or after a blank, no sections.  Names are
 * those of the long options without the dashes.  Anything else is an error that
 * names file and line. */
#pragma once
#include <stddef.h>

/* Calls `set` for each line; a non-zero answer stops, and `error` (of error_size
 * bytes) then tells file, line and why.  0, or -errno. */
typedef int (*settings_setter)(void *context, const char *name, const char *value, char *why, size_t why_size);
int settings_read(const char *path, settings_setter set, void *context, char *error, size_t error_size);
/* The same from memory; `source` is the file name for messages. */
int settings_parse(const char *source, const char *text, size_t size, settings_setter set, void *context, char *error,
		   size_t error_size);
