#include "cli/options.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/settings.h"
#include "base/units.h"
#include "cli/verbs.h"
#include "cli/wrap.h"
#include "rpc/connection.h"

#define WHY_TEXT 300

static bool spec_is_end(const struct option_spec *s) { return !s->name; }

static bool spec_is_flag(const struct option_spec *s) { return s->type == OPTION_FLAG || s->type == OPTION_IGNORED; }

static const struct option_spec *spec_by_name(const struct options *o, const char *name, size_t length)
{
	for (const struct option_spec *s = o->specs; s && !spec_is_end(s); s++) {
		if (length && strlen(s->name) == length && !memcmp(s->name, name, length))
			return s;
	}
	return NULL;
}

static const struct option_spec *spec_by_letter(const struct options *o, char letter)
{
	for (const struct option_spec *s = o->specs; s && !spec_is_end(s); s++) {
		if (s->letter && s->letter == letter)
			return s;
	}
	return NULL;
}

static uint64_t spec_bit(const struct options *o, const struct option_spec *s) { return (uint64_t)1 << (s - o->specs); }

static const char *spec_nearest(const struct options *o, const char *typed, bool with_help)
{
	struct nearest n = { 0 };

	for (const struct option_spec *s = o->specs; s && !spec_is_end(s); s++) {
		if (s->type != OPTION_IGNORED && s->name[0])
			nearest_consider(&n, typed, s->name);
	}
	if (with_help)
		nearest_consider(&n, typed, "help");
	return n.best;
}

bool options_given(const struct options *o, const void *value)
{
	for (const struct option_spec *s = o->specs; s && !spec_is_end(s); s++) {
		if (s->value == value && (o->given & spec_bit(o, s)))
			return true;
	}
	return false;
}

int options_misused(const struct options *o, const char *format, ...)
{
	CLEANUP_FREE char *text = NULL;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	verb_complain("%s (see epochfs %s --help)", text ? text : "out of memory", o->name);
	return EXIT_USAGE;
}

/* ---- Values ---------------------------------------------------------------- */

static char *number_format(char *out, enum option_type type, uint64_t value)
{
	if (type == OPTION_SIZE)
		return size_format(out, value);
	return type == OPTION_DURATION ? duration_format(out, value) : count_format(out, value);
}

static int set_number(const struct option_spec *s, const char *text, char *why, size_t why_size)
{
	static const char *const examples[] = {
		[OPTION_SIZE] = "a size such as 256KiB, 4M, 4MB or 1.5GiB",
		[OPTION_DURATION] = "a time such as 90s, 5m, 12h or 30d",
		[OPTION_COUNT] = "a number such as 1000000, 1,000,000 or 1M",
	};
	char low[UNITS_TEXT], high[UNITS_TEXT];
	uint64_t value = 0;
	int r;

	if (!s->min && !strcmp(text, "none"))
		r = 0;
	else if (s->type == OPTION_SIZE)
		r = size_parse(text, &value);
	else
		r = s->type == OPTION_DURATION ? duration_parse(text, &value) : count_parse(text, &value);
	if (r == -ERANGE && !s->max) {
		snprintf(why, why_size, "it is too large");
		return -EINVAL;
	}
	if (r && r != -ERANGE) {
		snprintf(why, why_size, "it must be %s", examples[s->type]);
		return -EINVAL;
	}
	if (r || (s->max && (value < s->min || value > s->max))) {
		snprintf(why, why_size, "the allowed range is %s to %s", number_format(low, s->type, s->min),
			 number_format(high, s->type, s->max));
		return -EINVAL;
	}
	*(uint64_t *)s->value = value;
	return 0;
}

static int set_choice(const struct option_spec *s, const char *text, char *why, size_t why_size)
{
	size_t length = strlen(text);

	for (const char *p = s->choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
		if (length && strcspn(p, "|") == length && !strncmp(p, text, length)) {
			*(const char **)s->value = text;
			return 0;
		}
	}
	snprintf(why, why_size, "it must be one of %s", s->choices);
	return -EINVAL;
}

int option_servers(void *context, const char *value, char *why, size_t why_size)
{
	bool any = false;

	for (const char *p = value; *p; p += *p == ',') {
		char address[PATH_MAX + 16];
		size_t length = strcspn(p, ",");
		int n = snprintf(address, sizeof(address), "%.*s", (int)length, p);

		if (length && (n < 0 || (size_t)n >= sizeof(address) || address_check(address))) {
			snprintf(why, why_size, "an address is unix:PATH or HOST:PORT");
			return -EINVAL;
		}
		any = any || length;
		p += length;
	}
	if (!any) {
		snprintf(why, why_size, "an address is needed, unix:PATH or HOST:PORT");
		return -EINVAL;
	}
	*(const char **)context = value;
	return 0;
}

static int set_flag(const struct option_spec *s, const char *text, char *why, size_t why_size)
{
	bool on = !text || !strcmp(text, "true") || !strcmp(text, "yes");

	if (!on && strcmp(text, "false") && strcmp(text, "no")) {
		snprintf(why, why_size, "it must be true or false");
		return -EINVAL;
	}
	if (s->value)
		*(bool *)s->value = on;
	return 0;
}

/* `text` must live as long as the options are used. */
static int set_value(struct options *o, const struct option_spec *s, const char *text, char *why, size_t why_size)
{
	int r = 0;

	why[0] = 0;
	switch (s->type) {
	case OPTION_FLAG:
	case OPTION_IGNORED: r = set_flag(s, text, why, why_size); break;
	case OPTION_TEXT: *(const char **)s->value = text; break;
	case OPTION_CHOICE: r = set_choice(s, text, why, why_size); break;
	case OPTION_SIZE:
	case OPTION_DURATION:
	case OPTION_COUNT: r = set_number(s, text, why, why_size); break;
	case OPTION_CALL: r = s->call(s->value, text, why, why_size); break;
	}
	if (!r)
		o->given |= spec_bit(o, s);
	return r;
}

/* ---- Help -------------------------------------------------------------------- */

static void print_option(const struct option_spec *s)
{
	if (s->type == OPTION_IGNORED || !s->help)
		return;
	printf("    ");
	if (s->letter)
		printf("-%c%s%s", s->letter, s->placeholder && !s->name[0] ? " " : "",
		       s->placeholder && !s->name[0] ? s->placeholder : "");
	if (s->name[0])
		printf("%s--%s%s%s", s->letter ? ", " : "", s->name, s->placeholder ? " " : "",
		       s->placeholder ? s->placeholder : "");
	printf("\n");
	wrap_print(stdout, 8, s->help);
	if (s->choices)
		printf("        One of: %s.\n", s->choices);
	if (s->max) {
		char low[UNITS_TEXT], high[UNITS_TEXT];

		printf("        Allowed: %s to %s.\n", number_format(low, s->type, s->min), number_format(high, s->type, s->max));
	}
	if (s->environment)
		printf("        Environment: %s.\n", s->environment);
	printf("\n");
}

/* How the values of options are written that more than one option has. */
static void print_units(const struct options *o)
{
	static const struct {
		const char *placeholder, *text;
	} units[] = {
		{ "SIZE",
		  "SIZE is bytes, or a number with a unit, in any case of letters: K, M, G, T, P, E or KiB, MiB, ... count "
		  "by 1,024; KB, MB, ... count by 1,000.  So 4M and 4MiB are 4,194,304 bytes, and 4MB is 4,000,000.  "
		  "Decimals are fine: 1.5GiB." },
		{ "TIME", "TIME is a number with s, m (minutes), h, d or w, or several, the largest first: 90s, 12h, 1d12h." },
		{ "COUNT", "COUNT is a number, with commas if you like, or with K, M, G or T, which count by 1,000: 1,000,000 "
			   "or 1M." },
	};

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		const struct option_spec *s = o->specs;

		while (s && !spec_is_end(s) && (!s->placeholder || strcmp(s->placeholder, units[i].placeholder) != 0))
			s++;
		if (s && !spec_is_end(s)) {
			printf("\n");
			wrap_print(stdout, 4, units[i].text);
		}
	}
}

static void options_help(const struct options *o)
{
	printf("NAME\n    epochfs %s - %s\n\nUSAGE\n    epochfs %s %s\n\n", o->name, o->summary, o->name, o->usage);
	if (o->description) {
		printf("DESCRIPTION\n");
		wrap_print(stdout, 4, o->description);
		printf("\n");
	}
	printf("OPTIONS\n");
	for (const struct option_spec *s = o->specs; s && !spec_is_end(s); s++)
		print_option(s);
	printf("    --help\n        Print this text.\n");
	print_units(o);
	if (o->examples) {
		printf("\n");
		examples_print(stdout, o->examples);
	}
}

/* ---- The command line ------------------------------------------------------------ */

static int wrong_value(const struct options *o, const struct option_spec *s, const char *text, const char *why)
{
	if (!text)
		return options_misused(o, "cannot use --%s: %s", s->name, why);
	if (!s->name[0])
		return options_misused(o, "cannot use -%c %s: %s", s->letter, text, why);
	return options_misused(o, "cannot use --%s %s: %s", s->name, text, why);
}

/* Parses argv[*index] = "--name[=value]"; takes the next argument if it needs one. */
static int parse_long(struct options *o, char **argv, int *index)
{
	const char *name = argv[*index] + 2;
	size_t length = strcspn(name, "=");
	const char *value = name[length] ? name + length + 1 : NULL;
	const struct option_spec *s = spec_by_name(o, name, length);
	char why[WHY_TEXT];

	if (!s) {
		char typed[64];
		const char *meant;

		snprintf(typed, sizeof(typed), "%.*s", (int)length, name);
		meant = spec_nearest(o, typed, true);
		if (meant)
			return options_misused(o, "unknown option --%s; did you mean --%s?", typed, meant);
		return options_misused(o, "unknown option --%s", typed);
	}
	if (spec_is_flag(s)) {
		if (value)
			return options_misused(o, "cannot use --%s=%s: it takes no value", s->name, value);
	} else if (!value) {
		value = argv[*index + 1];
		if (!value)
			return options_misused(o, "cannot use --%s: it needs a value, --%s %s", s->name, s->name,
					       s->placeholder ? s->placeholder : "VALUE");
		(*index)++;
	}
	if (set_value(o, s, value, why, sizeof(why)))
		return wrong_value(o, s, value, why);
	return OPTIONS_RUN;
}

/* Parses argv[*index] = "-abc", "-oVALUE" or "-o VALUE". */
static int parse_letters(struct options *o, char **argv, int *index)
{
	for (const char *p = argv[*index] + 1; *p; p++) {
		const struct option_spec *s = spec_by_letter(o, *p);
		const char *value = NULL;
		char why[WHY_TEXT];

		if (!s)
			return options_misused(o, "unknown option -%c", *p);
		if (!spec_is_flag(s)) {
			value = p[1] ? p + 1 : argv[*index + 1];
			if (!value)
				return options_misused(o, "cannot use -%c: it needs a value", *p);
			if (!p[1])
				(*index)++;
		}
		if (set_value(o, s, value, why, sizeof(why)))
			return wrong_value(o, s, value, why);
		if (value)
			break;
	}
	return OPTIONS_RUN;
}

static int use_environment(struct options *o)
{
	for (const struct option_spec *s = o->specs; s && !spec_is_end(s); s++) {
		const char *value = s->environment ? getenv(s->environment) : NULL;
		char why[WHY_TEXT];

		if (!value || !value[0] || (o->given & spec_bit(o, s)))
			continue;
		if (set_value(o, s, value, why, sizeof(why)))
			return options_misused(o, "cannot use %s=%s from the environment: %s", s->environment, value, why);
	}
	return OPTIONS_RUN;
}

static bool is_help(const char *argument, const struct options *o)
{
	return !strcmp(argument, "--help") || (!strcmp(argument, "-h") && !spec_by_letter(o, 'h'));
}

static int check_operands(const struct options *o)
{
	if (o->operand_count < o->operands_min)
		return options_misused(o, "too few arguments: epochfs %s %s", o->name, o->usage);
	if (o->operands_max >= 0 && o->operand_count > o->operands_max)
		return options_misused(o, "unexpected argument '%s': epochfs %s %s", o->operands[o->operands_max], o->name,
				       o->usage);
	return OPTIONS_RUN;
}

int options_parse(struct options *o, int argc, char **argv)
{
	bool only_operands = false;
	int count = 0, code;

	o->operands = calloc((size_t)argc + 1, sizeof(*o->operands));
	if (!o->operands)
		return verb_fail("cannot read the command line: out of memory");
	for (int i = 1; i < argc; i++) {
		bool is_operand = only_operands || argv[i][0] != '-' || !argv[i][1];

		/* Its options are not ours. */
		if (is_operand && o->command && !only_operands && count == o->operands_min)
			return options_misused(o, "unexpected argument '%s': a command follows after --", argv[i]);
		if (is_operand) {
			o->operands[count++] = argv[i];
			continue;
		}
		if (!strcmp(argv[i], "--")) {
			only_operands = true;
			continue;
		}
		if (is_help(argv[i], o)) {
			options_help(o);
			return EXIT_DONE;
		}
		code = argv[i][1] == '-' ? parse_long(o, argv, &i) : parse_letters(o, argv, &i);
		if (code != OPTIONS_RUN)
			return code;
	}
	o->operand_count = count;
	code = check_operands(o);
	return code == OPTIONS_RUN ? use_environment(o) : code;
}

/* ---- Files and lists of settings ---------------------------------------------------- */

static const char *own_text(struct options *o, const char *text)
{
	char **bigger = reallocarray(o->owned, o->owned_count + 1, sizeof(*o->owned));
	char *copy;

	if (!bigger)
		return NULL;
	o->owned = bigger;
	copy = strdup(text);
	if (copy)
		o->owned[o->owned_count++] = copy;
	return copy;
}

int options_set(struct options *o, const char *name, const char *value, uint64_t stay, char *why, size_t why_size)
{
	const struct option_spec *s = spec_by_name(o, name, strlen(name));
	const char *kept = NULL;
	char reason[WHY_TEXT];

	if (!s || s->not_in_file) {
		const char *meant = s ? NULL : spec_nearest(o, name, false);

		snprintf(why, why_size, s ? "%s can only be given on the command line" : "unknown option %s%s%s%s", name,
			 meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
		return -EINVAL;
	}
	if (!value && !spec_is_flag(s)) {
		snprintf(why, why_size, "%s needs a value, %s=%s", name, name, s->placeholder ? s->placeholder : "VALUE");
		return -EINVAL;
	}
	if (stay & spec_bit(o, s))
		return 0;
	if (value) {
		kept = own_text(o, value);
		if (!kept) {
			snprintf(why, why_size, "out of memory");
			return -ENOMEM;
		}
	}
	if (set_value(o, s, kept, reason, sizeof(reason))) {
		snprintf(why, why_size, "cannot use %s = %s: %s", name, value ? value : "", reason);
		return -EINVAL;
	}
	return 0;
}

struct file_reading {
	struct options *options;
	uint64_t given_before;
};

/* A line of the file yields to the command line, not to a line before it. */
static int set_from_file(void *context, const char *name, const char *value, char *why, size_t why_size)
{
	struct file_reading *reading = context;

	return options_set(reading->options, name, value, reading->given_before, why, why_size);
}

int options_read_file(struct options *o, const char *path, char *error, size_t error_size)
{
	struct file_reading reading = { .options = o, .given_before = o->given };

	return settings_read(path, set_from_file, &reading, error, error_size);
}

void options_free(struct options *o)
{
	for (size_t i = 0; i < o->owned_count; i++)
		free(o->owned[i]);
	free(o->owned);
	free(o->operands);
	o->owned = NULL;
	o->owned_count = 0;
	o->operands = NULL;
}
