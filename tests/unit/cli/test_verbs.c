#include "capture.h"
#include "cli/ask.h"
#include "cli/verbs.h"

static int run_count(int argc, char **argv)
{
	assert_string_equal(argv[0], "count");
	return 10 + argc;
}

static int run_other(int argc, char **argv) { return 7; }

static const struct verb verbs[] = { { "count", "count arguments", run_count },
				     { "other", "do something else", run_other },
				     { 0 } };
static const struct verb_group group = {
	.name = "epochfs test", .summary = "try things", .verbs = verbs, .examples = "epochfs test count\nCount.\n"
};

static int run(struct capture *c, FILE *stream, char **argv)
{
	int argc = 0, code;

	while (argv[argc])
		argc++;
	capture_begin(c, stream);
	code = verbs_run(&group, argc, argv);
	capture_end(c);
	return code;
}
#define RUN(c, stream, ...) run(c, stream, (char *[]){ "test", __VA_ARGS__, NULL })

static void a_verb_gets_its_arguments_and_gives_the_exit_code(void **state)
{
	struct capture c;

	assert_int_equal(RUN(&c, stderr, "count", "a", "b"), 13);
	assert_int_equal(RUN(&c, stderr, "other"), 7);
	assert_string_equal(c.text, "");
}

static void an_unknown_verb_is_answered_with_the_nearest(void **state)
{
	struct capture c;

	assert_int_equal(RUN(&c, stderr, "cuont"), EXIT_USAGE);
	assert_contains(c.text, "epochfs: unknown verb 'cuont'; did you mean epochfs test count?");
	assert_int_equal(RUN(&c, stderr, "zzz"), EXIT_USAGE);
	assert_null(strstr(c.text, "did you mean"));
}

static void no_verb_and_a_leading_option_are_wrong_usage(void **state)
{
	struct capture c;

	assert_int_equal(run(&c, stderr, (char *[]){ "test", NULL }), EXIT_USAGE);
	assert_contains(c.text, "epochfs test --help");
	assert_int_equal(RUN(&c, stderr, "--json", "count"), EXIT_USAGE);
	assert_contains(c.text, "the verb comes first");
}

static void help_lists_the_verbs(void **state)
{
	struct capture c;

	assert_int_equal(RUN(&c, stdout, "--help"), EXIT_DONE);
	assert_contains(c.text, "epochfs test - try things");
	assert_contains(c.text, "    count  count arguments\n    other  do something else\n");
	assert_contains(c.text, "EXAMPLES\n    epochfs test count\n        Count.\n");
}

static int confirm_with(struct capture *c, const char *typed)
{
	int pipes[2], saved = dup(0), answer;

	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(write(pipes[1], typed, strlen(typed)), strlen(typed));
	close(pipes[1]);
	dup2(pipes[0], 0);
	close(pipes[0]);
	clearerr(stdin);
	capture_begin(c, stderr);
	answer = ask_confirm("Delete %s?", "training");
	capture_end(c);
	dup2(saved, 0);
	close(saved);
	return answer;
}

static void only_a_clear_yes_is_a_yes(void **state)
{
	struct capture c;

	assert_int_equal(confirm_with(&c, "y\n"), 1);
	assert_string_equal(c.text, "Delete training? [y/N] ");
	assert_int_equal(confirm_with(&c, "YES\n"), 1);
	assert_int_equal(confirm_with(&c, "yes"), 1);
	assert_int_equal(confirm_with(&c, "\n"), 0);
	assert_int_equal(confirm_with(&c, ""), 0);
	assert_int_equal(confirm_with(&c, "yeah\n"), 0);
	assert_int_equal(confirm_with(&c, "no\n"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_verb_gets_its_arguments_and_gives_the_exit_code),
		cmocka_unit_test(an_unknown_verb_is_answered_with_the_nearest),
		cmocka_unit_test(no_verb_and_a_leading_option_are_wrong_usage),
		cmocka_unit_test(help_lists_the_verbs),
		cmocka_unit_test(only_a_clear_yes_is_a_yes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
