#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Rejects overlong forms, surrogates and what is past U+10FFFF, as RFC 3629 asks. */
size_t text_utf8_length(const char *in, size_t length)
{
	const uint8_t *p = (const uint8_t *)in;
	if (length == 0)
		return 0;
	if (p[0] < 0x80)
		return 1;
	size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	if (p[0] < 0xc2 || p[0] > 0xf4 || length < n)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
	    (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

/* One character or escape into `unit` (room for 4); *used is what it took of `in`. */
static size_t unit_make(char unit[4], const char *in, size_t length, size_t *used)
{
	static const char hex[] = "0123456789abcdef";
	const uint8_t *p = (const uint8_t *)in;
	size_t n = text_utf8_length(in, length);
	bool control = n == 1 ? (p[0] < 0x20 || p[0] == 0x7f) : n == 2 && p[0] == 0xc2 && p[1] < 0xa0;
	if (n > 0 && !control) {
		memcpy(unit, in, n);
		*used = n;
		return n;
	}
	*used = 1;
	unit[0] = '\\';
	if (p[0] == '\n' || p[0] == '\t' || p[0] == '\r') {
		unit[1] = p[0] == '\n' ? 'n' : p[0] == '\t' ? 't' : 'r';
		return 2;
	}
	unit[1] = 'x';
	unit[2] = hex[p[0] >> 4];
	unit[3] = hex[p[0] & 15];
	return 4;
}

size_t text_escape(char *out, size_t size, const char *in, size_t length)
{
	size_t at = 0, safe = 0; /* up to `safe` there is still room for "..." */
	while (length > 0) {
		char unit[4];
		size_t used, n = unit_make(unit, in, length, &used);
		if (at + n + 1 > size) {
			memcpy(out + safe, "...", 3);
			at = safe + 3;
			break;
		}
		memcpy(out + at, unit, n);
		at += n;
		if (at + 4 <= size)
			safe = at;
		in += used;
		length -= used;
	}
	out[at] = 0;
	return at;
}
