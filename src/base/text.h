/* Text that came from outside, made safe to show: file names and messages may
 * hold anything but NUL, and a terminal or a log obeys control characters.
 *
 * Any thread; no state. */
#pragma once
#include <stddef.h>

/* Copies `in` so that it shows as one line: control characters (C0, C1, DEL) and
 * bytes that are not UTF-8 become \n, \t, \r or \xNN.  What does not fit is cut
 * before the first escape or character that would be split, and ends in "...".
 * Always terminated (size must be at least 4).  Returns the length. */
size_t text_escape(char *out, size_t size, const char *in, size_t length);

/* Bytes of the UTF-8 character at the start of `in`, 0 if there is none. */
size_t text_utf8_length(const char *in, size_t length);
