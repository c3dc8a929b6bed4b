#include "capture.h"
#include "cli/wrap.h"

static const char *wrapped(char *out, size_t size, int indent, const char *text)
{
	FILE *f = fmemopen(out, size, "w");

	assert_non_null(f);
	wrap_print(f, indent, text);
	fclose(f);
	return out;
}

static void long_lines_are_broken_between_words(void **state)
{
	char out[2000] = "", text[500] = "";

	for (int i = 0; i < 30; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "word%02d ", i);
	wrapped(out, sizeof(out), 8, text);
	assert_contains(out, "word29\n");
	for (const char *p = out; *p;) {
		size_t length = strcspn(p, "\n");

		assert_true(length <= WRAP_COLUMNS);
		assert_memory_equal(p, "        word", 12);
		p += length + (p[length] == '\n');
	}
}

static void paragraphs_and_indented_lines_are_kept(void **state)
{
	char out[500] = "";

	assert_string_equal(wrapped(out, sizeof(out), 2, "One\ntwo.\n\nThree.\n  code here\nfour"),
			    "  One two.\n\n  Three.\n    code here\n  four\n");
}

static void a_word_longer_than_a_line_is_kept_whole(void **state)
{
	char out[500] = "", word[120];

	memset(word, 'x', 119);
	word[119] = 0;
	wrapped(out, sizeof(out), 4, word);
	assert_int_equal(strlen(out), 4 + 119 + 1);
}

static const char *meant(const char *typed)
{
	static const char *const words[] = { "mount", "umount", "volume", "trash", "gc", "fsck", "status" };
	struct nearest n = { 0 };

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		nearest_consider(&n, typed, words[i]);
	return n.best;
}

static void a_typing_error_finds_the_word_that_was_meant(void **state)
{
	assert_string_equal(meant("mout"), "mount");
	assert_string_equal(meant("unmount"), "umount");
	assert_string_equal(meant("vloume"), "volume");
	assert_string_equal(meant("volumes"), "volume");
	assert_string_equal(meant("stat"), "status");
	assert_string_equal(meant("fcsk"), "fsck");
}

static void a_stranger_finds_nothing(void **state)
{
	assert_null(meant("frobnicate"));
	assert_null(meant(""));
	assert_null(meant("a-word-much-longer-than-any-verb-could-possibly-ever-be"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(long_lines_are_broken_between_words),
		cmocka_unit_test(paragraphs_and_indented_lines_are_kept),
		cmocka_unit_test(a_word_longer_than_a_line_is_kept_whole),
		cmocka_unit_test(a_typing_error_finds_the_word_that_was_meant),
		cmocka_unit_test(a_stranger_finds_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
