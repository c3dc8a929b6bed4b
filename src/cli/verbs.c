#include "cli/verbs.h"
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "cli/json.h"
#include "cli/wrap.h"

/* For the whole program, like the log: every error goes the same way. */
static bool as_json;

void verb_errors_as_json(void) { as_json = true; }

/* A line is written at once: other threads may have something to say as well. */
void verb_complain_list(const char *format, va_list args)
{
	CLEANUP_FREE char *text = NULL, *line = NULL;
	json_t *object = NULL;

	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	if (text && as_json)
		object = json_pack("{s:o}", "error", json_bytes(text, strlen(text)));
	if (object)
		line = json_dumps(object, JSON_COMPACT);
	fprintf(stderr, "%s%s\n", line ? "" : "epochfs: ", line ? line : text ? text : "out of memory");
	json_decref(object);
}

void verb_complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	verb_complain_list(format, args);
	va_end(args);
}

int verb_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	verb_complain_list(format, args);
	va_end(args);
	return EXIT_FAILED;
}

int verb_finish(int code)
{
	bool failed = ferror(stdout);

	errno = 0;
	if (fflush(stdout) == 0 && !failed)
		return code;
	verb_complain("cannot write to standard output%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
	return code == EXIT_DONE ? EXIT_FAILED : code;
}

static void group_help(const struct verb_group *group)
{
	int width = 0;

	printf("NAME\n    %s - %s\n\nUSAGE\n    %s VERB [ARGUMENT...]\n\n", group->name, group->summary, group->name);
	if (group->description) {
		printf("DESCRIPTION\n");
		wrap_print(stdout, 4, group->description);
		printf("\n");
	}
	for (const struct verb *v = group->verbs; v->name; v++)
		width = (int)strlen(v->name) > width ? (int)strlen(v->name) : width;
	printf("VERBS\n");
	for (const struct verb *v = group->verbs; v->name; v++)
		printf("    %-*s  %s\n", width, v->name, v->summary);
	printf("\n    %s VERB --help tells more about each.\n", group->name);
	if (group->examples) {
		printf("\n");
		examples_print(stdout, group->examples);
	}
}

static int unknown_verb(const struct verb_group *group, const char *typed)
{
	struct nearest n = { 0 };

	for (const struct verb *v = group->verbs; v->name; v++)
		nearest_consider(&n, typed, v->name);
	if (n.best)
		verb_complain("unknown verb '%s'; did you mean %s %s? (see %s --help)", typed, group->name, n.best, group->name);
	else
		verb_complain("unknown verb '%s' (see %s --help)", typed, group->name);
	return EXIT_USAGE;
}

static const struct verb *verb_find(const struct verb_group *group, const char *name)
{
	const struct verb *v = group->verbs;

	while (v->name && strcmp(v->name, name) != 0)
		v++;
	return v->name ? v : NULL;
}

/* `help volume create` is `volume create --help`. */
static int help_run(const struct verb_group *group, int argc, char **argv)
{
	const struct verb *v = argc > 2 ? verb_find(group, argv[2]) : NULL;
	char *words[4] = { NULL };
	int count = argc - 2 < 2 ? argc - 2 : 2;

	if (argc == 2) {
		group_help(group);
		return EXIT_DONE;
	}
	if (!v)
		return unknown_verb(group, argv[2]);
	for (int i = 0; i < count; i++)
		words[i] = argv[2 + i];
	words[count++] = "--help";
	return v->run(count, words);
}

int verbs_run(const struct verb_group *group, int argc, char **argv)
{
	const struct verb *v;

	if (argc < 2) {
		verb_complain("what shall be done? (see %s --help)", group->name);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "help"))
		return help_run(group, argc, argv);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		group_help(group);
		return EXIT_DONE;
	}
	v = verb_find(group, argv[1]);
	if (v)
		return v->run(argc - 1, argv + 1);
	if (argv[1][0] == '-') {
		verb_complain("unknown option %s; the verb comes first (see %s --help)", argv[1], group->name);
		return EXIT_USAGE;
	}
	return unknown_verb(group, argv[1]);
}
