#include "base/units.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/clock.h"

typedef unsigned __int128 wide;

#define FRACTION_DIGITS 9 /* of a decimal: enough to name any byte of a GiB */

/* A decimal number read so far: value = whole + fraction / scale. */
struct decimal {
	uint64_t whole, fraction, scale;
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int digits_take(const char **text, uint64_t *out)
{
	wide v = 0;
	if (!is_digit(**text))
		return -EINVAL;
	for (; is_digit(**text); (*text)++) {
		v = v * 10 + (wide)(**text - '0');
		if (v > UINT64_MAX)
			return -ERANGE;
	}
	*out = (uint64_t)v;
	return 0;
}

/* 1,234,567: groups of three after the first comma, or the commas are a mistake. */
static int groups_take(const char **text, uint64_t *value)
{
	while (**text == ',') {
		const char *p = *text + 1;
		if (!is_digit(p[0]) || !is_digit(p[1]) || !is_digit(p[2]) || is_digit(p[3]))
			return -EINVAL;
		wide v = (wide)*value * 1000 + (wide)((p[0] - '0') * 100 + (p[1] - '0') * 10 + (p[2] - '0'));
		if (v > UINT64_MAX)
			return -ERANGE;
		*value = (uint64_t)v;
		*text = p + 3;
	}
	return 0;
}

static int fraction_take(const char **text, struct decimal *d)
{
	d->fraction = 0;
	d->scale = 1;
	if (**text != '.')
		return 0;
	int digits = 0;
	for ((*text)++; is_digit(**text); (*text)++, digits++) {
		if (digits == FRACTION_DIGITS)
			return -EINVAL;
		d->fraction = d->fraction * 10 + (uint64_t)(**text - '0');
		d->scale *= 10;
	}
	return digits ? 0 : -EINVAL;
}

static int decimal_times(const struct decimal *d, uint64_t unit, uint64_t *out)
{
	if (d->fraction && unit == 1)
		return -EINVAL; /* half a byte */
	wide v = (wide)d->whole * unit + (wide)d->fraction * unit / d->scale;
	if (v > UINT64_MAX)
		return -ERANGE;
	*out = (uint64_t)v;
	return 0;
}

/* "", "B", "K", "KiB", "KB", ...: 0 if it is none of them. */
static uint64_t size_unit(const char *name)
{
	static const char letters[] = "kmgtpe";
	if (!*name || !strcasecmp(name, "b") || !strcasecmp(name, "byte") || !strcasecmp(name, "bytes"))
		return 1;
	const char *at = strchr(letters, name[0] | 0x20);
	if (!at)
		return 0;
	int power = (int)(at - letters) + 1;
	uint64_t base = !name[1] || !strcasecmp(name + 1, "ib") ? 1024 : !strcasecmp(name + 1, "b") ? 1000 : 0;
	uint64_t unit = base ? 1 : 0;
	for (int i = 0; i < power; i++)
		unit *= base;
	return unit;
}

int size_parse(const char *text, uint64_t *out_bytes)
{
	struct decimal d;
	int error = digits_take(&text, &d.whole);
	if (!error)
		error = fraction_take(&text, &d);
	if (error)
		return error;
	if (*text == ' ' && text[1])
		text++;
	uint64_t unit = size_unit(text);
	return unit ? decimal_times(&d, unit, out_bytes) : -EINVAL;
}

static uint64_t duration_unit(char c)
{
	switch (c) {
	case 'w': return 7 * 86400;
	case 'd': return 86400;
	case 'h': return 3600;
	case 'm': return 60;
	case 's': return 1;
	default: return 0;
	}
}

/* One or more numbers with their units, from the largest to the smallest. */
int duration_parse(const char *text, uint64_t *out_seconds)
{
	wide sum = 0;
	uint64_t last = UINT64_MAX;
	if (strcmp(text, "none") == 0 || strcmp(text, "0") == 0) {
		*out_seconds = 0;
		return 0;
	}
	do {
		uint64_t n;
		int error = digits_take(&text, &n);
		if (error)
			return error;
		uint64_t unit = duration_unit(*text);
		if (unit == 0 || unit >= last)
			return -EINVAL;
		sum += (wide)n * unit;
		if (sum > UINT64_MAX)
			return -ERANGE;
		last = unit;
		text++;
		if (*text == ' ' && text[1])
			text++;
	} while (*text);
	*out_seconds = (uint64_t)sum;
	return 0;
}

static uint64_t count_unit(const char *name)
{
	if (!*name)
		return 1;
	if (name[1])
		return 0;
	switch (name[0]) {
	case 'k':
	case 'K': return 1000;
	case 'm':
	case 'M': return 1000000;
	case 'g':
	case 'G': return 1000000000;
	case 't':
	case 'T': return 1000000000000;
	default: return 0;
	}
}

int count_parse(const char *text, uint64_t *out)
{
	struct decimal d;
	const char *first = text;
	int error = digits_take(&text, &d.whole);
	if (!error && *text == ',' && text - first > 3)
		return -EINVAL;
	if (!error)
		error = groups_take(&text, &d.whole);
	if (!error)
		error = fraction_take(&text, &d);
	if (error)
		return error;
	uint64_t unit = count_unit(text);
	if (unit == 0 || (wide)d.fraction * unit % d.scale)
		return -EINVAL;
	return decimal_times(&d, unit, out);
}

/* One decimal, which is left out where it is 0. */
char *size_format(char *out, uint64_t bytes)
{
	static const char *const names[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	if (bytes < 1024) {
		snprintf(out, UNITS_TEXT, "%d byte%s", (int)bytes, bytes == 1 ? "" : "s");
		return out;
	}
	uint64_t unit = 1024, tenths;
	int i = 0;
	while ((tenths = (uint64_t)(((wide)bytes * 10 + unit / 2) / unit)) >= 10240 && i < 5) {
		unit *= 1024;
		i++;
	}
	if (tenths % 10)
		snprintf(out, UNITS_TEXT, "%u.%u %s", (unsigned)(tenths / 10), (unsigned)(tenths % 10), names[i]);
	else
		snprintf(out, UNITS_TEXT, "%u %s", (unsigned)(tenths / 10), names[i]);
	return out;
}

char *count_format(char *out, uint64_t n)
{
	char digits[24];
	int length = snprintf(digits, sizeof digits, "%ju", (uintmax_t)n);
	char *at = out;
	for (int i = 0; i < length; i++) {
		if (i && (length - i) % 3 == 0)
			*at++ = ',';
		*at++ = digits[i];
	}
	*at = 0;
	return out;
}

char *counted_format(char *out, uint64_t n, const char *noun)
{
	char *end = count_format(out, n) + strlen(out);
	snprintf(end, UNITS_TEXT - (size_t)(end - out), " %.*s%s", UNITS_NOUN, noun, n == 1 ? "" : "s");
	return out;
}

char *duration_format(char *out, uint64_t seconds)
{
	static const char units[] = "dhms";
	size_t at = 0;
	for (const char *u = units; *u; u++) {
		uint64_t unit = duration_unit(*u), n = seconds / unit;
		seconds %= unit;
		if (n)
			at += (size_t)snprintf(out + at, UNITS_TEXT - at, "%s%ju%c", at ? " " : "", (uintmax_t)n, *u);
	}
	if (at == 0)
		snprintf(out, UNITS_TEXT, "none");
	return out;
}

char *date_format(char *out, int64_t wall_ns)
{
	struct tm tm;
	time_t seconds = wall_ns / NS_PER_S - (wall_ns % NS_PER_S < 0);
	if (!localtime_r(&seconds, &tm))
		memset(&tm, 0, sizeof tm);
	if (!strftime(out, UNITS_TEXT, "%m/%d/%Y %H:%M:%S %Z", &tm))
		out[0] = 0;
	return out;
}
