/* What people type and read: sizes (256KiB, 4MiB, 1.5GiB, 1GB, plain bytes),
 * durations (30d, 12h, 90s, 5m), counts and dates in US format.
 *
 * Parsers take the whole string, return 0 or -EINVAL, and set *out only on
 * success; a value that does not fit in 64 bits is -ERANGE.  Formatters write
 * into the caller's buffer of UNITS_TEXT bytes and return it. */
#pragma once
#include <stdint.h>

#define UNITS_TEXT 48
#define UNITS_NOUN 18

int size_parse(const char *text, uint64_t *out_bytes);
int duration_parse(const char *text, uint64_t *out_seconds);
int count_parse(const char *text, uint64_t *out); /* 1000000, 1,000,000, 1M */

char *size_format(char *out, uint64_t bytes); /* "1.5 GiB", "0 bytes" */
char *count_format(char *out, uint64_t n);    /* "1,234,567" */
/* "1 file", "1,234 files": a noun whose plural has an s, of up to UNITS_NOUN letters. */
char *counted_format(char *out, uint64_t n, const char *noun);
char *duration_format(char *out, uint64_t seconds); /* "30d", "1h 5m", "none" */
char *date_format(char *out, int64_t wall_ns);      /* "11/15/2026 20:05:09 EST", local time; also of the log's lines */
