#include "cli/verbs.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "cli/wrap.h"

int verb_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("epochfs: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return EXIT_FAILED;
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
		fprintf(stderr, "epochfs: unknown verb '%s'; did you mean %s %s? (see %s --help)\n", typed, group->name, n.best,
			group->name);
	else
		fprintf(stderr, "epochfs: unknown verb '%s' (see %s --help)\n", typed, group->name);
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
		fprintf(stderr, "epochfs: what shall be done? (see %s --help)\n", group->name);
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
		fprintf(stderr, "epochfs: unknown option %s; the verb comes first (see %s --help)\n", argv[1], group->name);
		return EXIT_USAGE;
	}
	return unknown_verb(group, argv[1]);
}
