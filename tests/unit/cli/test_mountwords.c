#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <cmocka.h>
#include "cli/mountwords.h"

static struct mount_flags flags_of(const char *list)
{
	struct mount_flags flags = { 0 };
	char *copy = strdup(list), *rest = copy, *word;

	while ((word = strsep(&rest, ",")))
		assert_true(mount_flags_add(&flags, word));
	free(copy);
	assert_int_equal(flags.set & flags.clear, 0);
	return flags;
}

static void the_last_word_counts(void **state)
{
	static const struct {
		const char *list;
		unsigned long set, clear;
	} cases[] = {
		{ "ro", MS_RDONLY, 0 },
		{ "ro,rw", 0, MS_RDONLY },
		{ "rw,nosuid,ro", MS_RDONLY | MS_NOSUID, 0 },
		{ "nodev,noexec,exec,suid", MS_NODEV, MS_NOEXEC | MS_NOSUID },
		{ "noatime,relatime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME },
		{ "relatime,noatime", MS_NOATIME, MS_RELATIME | MS_STRICTATIME },
		{ "noatime,strictatime", MS_STRICTATIME, MS_NOATIME | MS_RELATIME },
		{ "noatime,nodiratime,diratime,atime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME | MS_NODIRATIME },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct mount_flags flags = flags_of(cases[i].list);

		assert_int_equal(flags.set, cases[i].set);
		assert_int_equal(flags.clear, cases[i].clear);
	}
}

static void other_words_are_no_flags(void **state)
{
	static const char *const ignored[] = { "_netdev", "x-systemd.automount", "user_id", "default_permissions", "lazytime" };
	static const char *const ours[] = { "server", "cache-dir", "allow_other", "remount", "relatme", "" };
	struct mount_flags flags = { 0 };

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
		assert_true(mount_word_is_ignored(ignored[i]));
		assert_false(mount_flags_add(&flags, ignored[i]));
	}
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		assert_false(mount_word_is_ignored(ours[i]));
		assert_false(mount_flags_add(&flags, ours[i]));
	}
	assert_int_equal(flags.set | flags.clear, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_word_counts),
		cmocka_unit_test(other_words_are_no_flags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
