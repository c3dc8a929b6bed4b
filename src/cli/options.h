/* Long options, declared once: parsed, checked, read from a configuration file and
 * printed as help.
 *
 *	uint64_t timeout_s = 60;
 *	bool read_only = false;
 *	const char *server = NULL;
 *	struct option_spec specs[] = {
 *		OPTION_SERVER(&server),
 *		{ "timeout", "TIME", OPTION_DURATION, &timeout_s, "How long to wait for ...  Default: 60s.", .min = 1, .max = 86400 },
 *		{ "ro", NULL, OPTION_FLAG, &read_only, "Mount read-only." },
 *		{ 0 },
 *	};
 *	CLEANUP_OPTIONS struct options o = { .name = "mount", .usage = "VOLUME DIR [OPTION...]",
 *		.summary = "mount a volume", .specs = specs, .operands_min = 2, .operands_max = 2 };
 *	int code = options_parse(&o, argc, argv);
 *	if (code != OPTIONS_RUN)
 *		return code;
 *	... o.operands[0], o.operands[1] ...
 *
 * Options may stand anywhere, as `--name value` or `--name=value`; `--` ends them.
 * --help is always there.  Every option is checked when it is seen, and a wrong
 * value is answered with what is allowed.  An option said twice: the last one wins.
 *
 * What has precedence: the command line, then the environment, then the file.
 *
 * Text values point into argv, the environment, or memory freed by options_free.
 * One thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_type {
	OPTION_FLAG,     /* bool *: no value on the command line; true, false, yes, no in a file */
	OPTION_TEXT,     /* const char ** */
	OPTION_CHOICE,   /* const char **: one of `choices` */
	OPTION_SIZE,     /* uint64_t *: bytes, as 4MiB */
	OPTION_DURATION, /* uint64_t *: seconds, as 30d */
	OPTION_COUNT,    /* uint64_t *: a number, as 1,000,000 */
	OPTION_CALL,     /* value is passed to `call` with `value` as its context; it may be said often */
	OPTION_IGNORED,  /* a flag taken for others' sake and not shown in the help */
};

struct option_spec {
	const char *name;        /* without dashes; "" if there is only a letter */
	const char *placeholder; /* of the value: "SIZE"; NULL for flags */
	enum option_type type;
	void *value;
	const char *help;        /* sentences; wrapped when printed */
	uint64_t min, max;       /* of numbers; max 0: no bounds.  With a min of 0, "none" is 0 */
	const char *choices;     /* "strict|relaxed" */
	const char *environment; /* the variable that stands in for it */
	char letter;             /* -o VALUE, -oVALUE; flags may be put together: -sf */
	bool not_in_file;        /* makes no sense in a configuration file */
	/* 0, or -EINVAL with `why`: "the port must be a number" */
	int (*call)(void *context, const char *value, char *why, size_t why_size);
};

#define OPTIONS_MAX 64

struct options {
	const char *name;        /* "mount", "volume create" */
	const char *usage;       /* "VOLUME DIR [OPTION...]" */
	const char *summary;     /* half a sentence, lower case, no full stop */
	const char *description; /* paragraphs parted by empty lines; NULL: none */
	/* Pairs of lines: a command, then what it does. */
	const char *examples;
	const struct option_spec *specs; /* at most OPTIONS_MAX, the last one all zero */
	int operands_min, operands_max;  /* what is not an option; a max of -1: any number */
	bool command;                    /* those beyond the min are one, and stand after -- */

	/* Filled in by options_parse; operands[operand_count] is NULL. */
	char **operands;
	int operand_count;

	/* Private. */
	uint64_t given;
	char **owned;
	size_t owned_count;
};

enum { OPTIONS_RUN = -1 };

/* OPTIONS_RUN to go on, or the exit code to leave with: 0 after --help was
 * printed, EXIT_USAGE after what is wrong was said. */
int options_parse(struct options *o, int argc, char **argv);

/* One option by name, as from a file or the -o of mount(8).  `value` NULL: it stood
 * there without one.  0; or -EINVAL and `why` ("unknown option sever; did you mean
 * server?").  Those of `stay` (bits of o->given) stay as they are. */
int options_set(struct options *o, const char *name, const char *value, uint64_t stay, char *why, size_t why_size);

/* Reads a configuration file (base/settings.h) for everything not given before.
 * 0, or -errno with a text that names file and line. */
int options_read_file(struct options *o, const char *path, char *error, size_t error_size);

/* Whether the option that sets *value was given. */
bool options_given(const struct options *o, const void *value);

/* "epochfs: TEXT (see epochfs NAME --help)" on standard error; returns EXIT_USAGE. */
int options_misused(const struct options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));

void options_free(struct options *o);
#define CLEANUP_OPTIONS __attribute__((cleanup(options_free)))

/* The options that many verbs share. */
#define SERVER_DEFAULT "unix:/var/lib/epochfs/epochfs.sock"
int option_servers(void *context, const char *value, char *why, size_t why_size); /* a const char *, of addresses */
#define OPTION_SERVER(pointer) \
	{ \
		"server", "ADDRESS", OPTION_CALL, (pointer), \
			"The server: unix:PATH or HOST:PORT; several, parted by commas, are tried in turn.  " \
			"Default: " SERVER_DEFAULT ".", \
			.environment = "EPOCHFS_SERVER", .call = option_servers \
	}
#define OPTION_JSON(pointer) \
	{ \
		"json", NULL, OPTION_FLAG, (pointer), "Print JSON instead of text." \
	}
