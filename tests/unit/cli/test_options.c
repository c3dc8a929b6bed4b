#include "capture.h"
#include <errno.h>
#include "cli/options.h"
#include "cli/verbs.h"

struct values {
	bool ro, foreground, ignored_by_us;
	const char *server, *mode;
	uint64_t size, time_s, count;
	char listed[100];
};

static int collect(void *context, const char *value, char *why, size_t why_size)
{
	struct values *v = context;
	size_t used = strlen(v->listed);

	if (!strcmp(value, "bad")) {
		snprintf(why, why_size, "bad is not good");
		return -EINVAL;
	}
	snprintf(v->listed + used, sizeof(v->listed) - used, "[%s]", value);
	return 0;
}

#define SPECS(v) \
	{ \
		{ "server", "ADDRESS", OPTION_TEXT, &(v).server, "The server.", .environment = "EPOCHFS_TEST_SERVER" }, \
			{ "ro", NULL, OPTION_FLAG, &(v).ro, "Read-only." }, \
			{ "foreground", NULL, OPTION_FLAG, &(v).foreground, "Stay.", .letter = 'f' }, \
			{ "consistency", "MODE", OPTION_CHOICE, &(v).mode, "How.", .choices = "strict|relaxed" }, \
			{ "block-size", "SIZE", OPTION_SIZE, &(v).size, "Of a block.", .min = 65536, .max = 64 << 20 }, \
			{ "retention", "TIME", OPTION_DURATION, &(v).time_s, "For how long.", .max = 864000 }, \
			{ "max-files", "COUNT", OPTION_COUNT, &(v).count, "At most." }, \
			{ "", "LIST", OPTION_CALL, &(v), "Options of mount(8).", .letter = 'o', .call = collect }, \
			{ "", NULL, OPTION_IGNORED, NULL, NULL, .letter = 'n' }, \
			{ "config", "FILE", OPTION_TEXT, &(v).ignored_by_us, "A file.", .not_in_file = true }, \
		{ \
			0 \
		} \
	}
#define OPTIONS(specs_) \
	{ \
		.name = "mount", .usage = "VOLUME DIR [OPTION...]", .summary = "mount a volume", .specs = (specs_), \
		.operands_min = 1, .operands_max = 2, .examples = "epochfs mount training /mnt\nMount it.\n", \
		.description = "First paragraph.\n\nSecond paragraph." \
	}
#define PARSE(o, ...) parse(o, (char *[]){ "mount", __VA_ARGS__, NULL })

static int parse(struct options *o, char **argv)
{
	int argc = 0;

	while (argv[argc])
		argc++;
	return options_parse(o, argc, argv);
}

/* Parses, expects it to be refused, and returns what was said. */
#define REFUSED(c, ...) \
	do { \
		struct values v_ = { 0 }; \
		struct option_spec specs_[] = SPECS(v_); \
		CLEANUP_OPTIONS struct options o_ = OPTIONS(specs_); \
		int code_; \
		capture_begin(c, stderr); \
		code_ = PARSE(&o_, __VA_ARGS__); \
		capture_end(c); \
		assert_int_equal(code_, EXIT_USAGE); \
		assert_contains((c)->text, "epochfs: "); \
		assert_contains((c)->text, "(see epochfs mount --help)"); \
	} while (0)

static void options_stand_anywhere_among_the_operands(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);

	assert_int_equal(PARSE(&o, "--ro", "training", "--server", "unix:/a", "/mnt", "--max-files=1,000"), OPTIONS_RUN);
	assert_int_equal(o.operand_count, 2);
	assert_string_equal(o.operands[0], "training");
	assert_string_equal(o.operands[1], "/mnt");
	assert_null(o.operands[2]);
	assert_true(v.ro);
	assert_false(v.foreground);
	assert_string_equal(v.server, "unix:/a");
	assert_int_equal(v.count, 1000);
}

static void a_value_follows_a_space_or_an_equals_sign(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);

	assert_int_equal(PARSE(&o, "x", "--block-size=256KiB", "--retention", "5d", "--consistency=relaxed", "--server=a=b"),
			 OPTIONS_RUN);
	assert_int_equal(v.size, 256 << 10);
	assert_int_equal(v.time_s, 5 * 86400);
	assert_string_equal(v.mode, "relaxed");
	assert_string_equal(v.server, "a=b");
}

static void a_double_dash_ends_the_options(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);

	assert_int_equal(PARSE(&o, "--", "--ro", "-"), OPTIONS_RUN);
	assert_string_equal(o.operands[0], "--ro");
	assert_string_equal(o.operands[1], "-");
	assert_false(v.ro);
}

static void letters_are_read_as_mount_8_writes_them(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);

	assert_int_equal(PARSE(&o, "training", "/mnt", "-nf", "-o", "ro,dev", "-oserver=x"), OPTIONS_RUN);
	assert_true(v.foreground);
	assert_string_equal(v.listed, "[ro,dev][server=x]");
}

static void the_last_of_two_wins(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);

	assert_int_equal(PARSE(&o, "x", "--server", "one", "--server", "two"), OPTIONS_RUN);
	assert_string_equal(v.server, "two");
}

static void only_what_was_said_counts_as_given(void **state)
{
	struct values v = { .size = 4 << 20 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);

	assert_int_equal(PARSE(&o, "x", "--max-files", "0"), OPTIONS_RUN);
	assert_true(options_given(&o, &v.count));
	assert_false(options_given(&o, &v.size));
	assert_false(options_given(&o, &o));
}

static void an_unknown_option_is_refused_with_the_likely_one(void **state)
{
	struct capture c;

	REFUSED(&c, "x", "--sever", "unix:/a");
	assert_contains(c.text, "unknown option --sever; did you mean --server?");
	REFUSED(&c, "x", "--consistancy=strict");
	assert_contains(c.text, "did you mean --consistency?");
	REFUSED(&c, "x", "--hlep");
	assert_contains(c.text, "did you mean --help?");
	REFUSED(&c, "x", "--frobnicate");
	assert_null(strstr(c.text, "did you mean"));
	REFUSED(&c, "x", "-q");
	assert_contains(c.text, "unknown option -q");
}

static void a_wrong_value_is_answered_with_what_is_allowed(void **state)
{
	struct capture c;

	REFUSED(&c, "x", "--block-size", "12KiB");
	assert_contains(c.text, "cannot use --block-size 12KiB: the allowed range is 64 KiB to 64 MiB");
	REFUSED(&c, "x", "--block-size", "128MiB");
	assert_contains(c.text, "64 KiB to 64 MiB");
	REFUSED(&c, "x", "--block-size", "big");
	assert_contains(c.text, "a size such as 256KiB");
	REFUSED(&c, "x", "--block-size=");
	assert_contains(c.text, "a size such as 256KiB");
	REFUSED(&c, "x", "--retention", "1 fortnight");
	assert_contains(c.text, "a time such as");
	REFUSED(&c, "x", "--max-files", "-1");
	assert_contains(c.text, "a number such as");
	REFUSED(&c, "x", "--max-files", "99999999999999999999999");
	assert_contains(c.text, "too large");
	REFUSED(&c, "x", "--consistency", "strictly");
	assert_contains(c.text, "one of strict|relaxed");
	REFUSED(&c, "x", "--consistency", "");
	REFUSED(&c, "x", "-o", "bad");
	assert_contains(c.text, "bad is not good");
}

static void a_missing_or_needless_value_is_refused(void **state)
{
	struct capture c;

	REFUSED(&c, "x", "--server");
	assert_contains(c.text, "--server ADDRESS");
	REFUSED(&c, "x", "--ro=yes");
	assert_contains(c.text, "takes no value");
	REFUSED(&c, "x", "-o");
	assert_contains(c.text, "needs a value");
}

static void too_few_and_too_many_operands_are_refused(void **state)
{
	struct capture c;

	REFUSED(&c, "--ro");
	assert_contains(c.text, "too few arguments: epochfs mount VOLUME DIR");
	REFUSED(&c, "a", "b", "c");
	assert_contains(c.text, "unexpected argument 'c'");
}

static void none_is_zero_where_zero_is_allowed(void **state)
{
	struct values v = { .time_s = 7, .count = 7 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);
	struct capture c;

	assert_int_equal(PARSE(&o, "x", "--retention", "none", "--max-files=none"), OPTIONS_RUN);
	assert_int_equal(v.time_s, 0);
	assert_int_equal(v.count, 0);
	REFUSED(&c, "x", "--block-size", "none");
}

static void the_environment_stands_in_for_what_was_not_said(void **state)
{
	struct values v = { 0 }, w = { 0 };
	struct option_spec specs[] = SPECS(v), more[] = SPECS(w);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);
	CLEANUP_OPTIONS struct options p = OPTIONS(more);

	setenv("EPOCHFS_TEST_SERVER", "unix:/environment", 1);
	assert_int_equal(PARSE(&o, "x"), OPTIONS_RUN);
	assert_int_equal(PARSE(&p, "x", "--server", "unix:/argument"), OPTIONS_RUN);
	unsetenv("EPOCHFS_TEST_SERVER");
	assert_string_equal(v.server, "unix:/environment");
	assert_string_equal(w.server, "unix:/argument");
}

static void help_shows_everything_and_runs_nothing(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);
	struct capture c;
	int code;

	capture_begin(&c, stdout);
	code = PARSE(&o, "--help");
	capture_end(&c);
	assert_int_equal(code, EXIT_DONE);
	assert_contains(c.text, "epochfs mount - mount a volume");
	assert_contains(c.text, "    epochfs mount VOLUME DIR [OPTION...]\n");
	assert_contains(c.text, "    First paragraph.\n\n    Second paragraph.\n");
	assert_contains(c.text, "    --block-size SIZE\n        Of a block.\n        Allowed: 64 KiB to 64 MiB.\n");
	assert_contains(c.text, "    -f, --foreground\n");
	assert_contains(c.text, "    -o LIST\n");
	assert_contains(c.text, "Environment: EPOCHFS_TEST_SERVER.");
	assert_contains(c.text, "One of: strict|relaxed.");
	assert_contains(c.text, "EXAMPLES\n    epochfs mount training /mnt\n        Mount it.\n");
	assert_null(strstr(c.text, "-n"));
}

static void write_file(char *path, const char *text)
{
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void a_file_fills_in_what_the_command_line_left_open(void **state)
{
	char path[] = "/tmp/epochfs-options-XXXXXX";
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);
	char error[300] = "";

	write_file(path, "# settings\nserver = unix:/file\nblock-size = 1MiB\nro = true\nretention = 1d\nretention = 2d\n");
	assert_int_equal(PARSE(&o, "x", "--block-size", "2MiB"), OPTIONS_RUN);
	assert_int_equal(options_read_file(&o, path, error, sizeof(error)), 0);
	unlink(path);
	assert_string_equal(v.server, "unix:/file");
	assert_int_equal(v.size, 2 << 20);
	assert_int_equal(v.time_s, 2 * 86400);
	assert_true(v.ro);
}

static void a_wrong_line_in_a_file_is_named(void **state)
{
	static const char *const lines[][2] = {
		{ "sever = x\n", "did you mean server?" },
		{ "block-size = 1\n", "64 KiB to 64 MiB" },
		{ "config = other\n", "only be given on the command line" },
		{ "ro = perhaps\n", "true or false" },
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		char path[] = "/tmp/epochfs-options-XXXXXX";
		struct values v = { 0 };
		struct option_spec specs[] = SPECS(v);
		CLEANUP_OPTIONS struct options o = OPTIONS(specs);
		char error[300] = "";

		write_file(path, lines[i][0]);
		assert_int_equal(PARSE(&o, "x"), OPTIONS_RUN);
		assert_true(options_read_file(&o, path, error, sizeof(error)) < 0);
		unlink(path);
		assert_contains(error, path);
		assert_contains(error, lines[i][1]);
	}
}

static void a_single_setting_is_taken_by_name(void **state)
{
	struct values v = { 0 };
	struct option_spec specs[] = SPECS(v);
	CLEANUP_OPTIONS struct options o = OPTIONS(specs);
	char why[300] = "";

	assert_int_equal(PARSE(&o, "x", "--server", "said"), OPTIONS_RUN);
	assert_int_equal(options_set(&o, "ro", NULL, o.given, why, sizeof(why)), 0);
	assert_int_equal(options_set(&o, "server", "listed", o.given, why, sizeof(why)), 0);
	assert_true(v.ro);
	assert_string_equal(v.server, "said");
	assert_int_equal(options_set(&o, "server", "listed", 0, why, sizeof(why)), 0);
	assert_string_equal(v.server, "listed");
	assert_int_equal(options_set(&o, "retention", NULL, 0, why, sizeof(why)), -EINVAL);
	assert_contains(why, "retention needs a value");
	assert_int_equal(options_set(&o, "", NULL, 0, why, sizeof(why)), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_stand_anywhere_among_the_operands),
		cmocka_unit_test(a_value_follows_a_space_or_an_equals_sign),
		cmocka_unit_test(a_double_dash_ends_the_options),
		cmocka_unit_test(letters_are_read_as_mount_8_writes_them),
		cmocka_unit_test(the_last_of_two_wins),
		cmocka_unit_test(only_what_was_said_counts_as_given),
		cmocka_unit_test(an_unknown_option_is_refused_with_the_likely_one),
		cmocka_unit_test(a_wrong_value_is_answered_with_what_is_allowed),
		cmocka_unit_test(a_missing_or_needless_value_is_refused),
		cmocka_unit_test(too_few_and_too_many_operands_are_refused),
		cmocka_unit_test(none_is_zero_where_zero_is_allowed),
		cmocka_unit_test(the_environment_stands_in_for_what_was_not_said),
		cmocka_unit_test(help_shows_everything_and_runs_nothing),
		cmocka_unit_test(a_file_fills_in_what_the_command_line_left_open),
		cmocka_unit_test(a_wrong_line_in_a_file_is_named),
		cmocka_unit_test(a_single_setting_is_taken_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
