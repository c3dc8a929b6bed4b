#include "cli/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "cli/verbs.h"

json_t *json_time(int64_t wall_ns)
{
	int64_t rest = wall_ns % NS_PER_S;
	time_t seconds = (time_t)(wall_ns / NS_PER_S - (rest < 0));
	struct tm tm;
	char day[64], text[96];

	if (!gmtime_r(&seconds, &tm))
		return json_null();
	strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text, sizeof(text), "%s.%03dZ", day, (int)((rest < 0 ? rest + NS_PER_S : rest) / NS_PER_MS));
	return json_string(text);
}

json_t *json_bytes(const void *bytes, size_t size)
{
	CLEANUP_FREE char *text = malloc(3 * size + 1);
	const char *p = bytes, *end = p + size;
	char *to = text;

	if (!text)
		return NULL;
	while (p < end) {
		size_t length = text_utf8_length(p, (size_t)(end - p));

		memcpy(to, length ? p : "\xef\xbf\xbd", length ? length : 3);
		to += length ? length : 3;
		p += length ? length : 1;
	}
	return json_stringn(text, (size_t)(to - text));
}

json_t *json_count(uint64_t n) { return json_integer((json_int_t)n); }

void json_append(json_t **list, json_t *item)
{
	if (*list && !json_array_append_new(*list, item))
		return;
	json_decref(*list);
	*list = NULL;
}

int json_finish(json_t *value)
{
	int r;

	if (!value)
		return verb_fail("cannot print JSON: out of memory");
	r = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
	json_decref(value);
	fputc('\n', stdout);
	/* What could not be written is told in the end (verb_finish). */
	return r && !ferror(stdout) ? verb_fail("cannot print JSON: out of memory") : EXIT_DONE;
}
