/* Going to the background.  The child of background_begin must not run on in the test,
 * so it always leaves by _exit. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>
#include "../temporary.h"
#include "base/log.h"
#include "fuse/background.h"

static void the_parent_goes_on_when_the_child_is_up(void **state)
{
	struct background b;
	char why[256] = "", path[128], text[256] = "";
	int fd, result, alive[2];

	temporary_template(path, sizeof(path), "background");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(pipe(alive), 0);
	result = background_begin(&b, why, sizeof(why));
	if (result == BACKGROUND_CHILD) {
		int failed = background_up(&b, path);

		log_info("in the background");
		if (write(alive[1], failed || isatty(STDERR_FILENO) ? "x" : "y", 1) != 1)
			_exit(1);
		_exit(0);
	}
	assert_int_equal(result, BACKGROUND_PARENT);
	assert_int_equal(read(alive[0], text, 1), 1);
	assert_string_equal(text, "y");
	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	assert_non_null(strstr(text, "in the background"));
	close(fd);
	close(alive[0]);
	close(alive[1]);
	unlink(path);
}

static void the_child_s_reason_reaches_the_parent(void **state)
{
	struct background b;
	char why[256] = "";
	int result = background_begin(&b, why, sizeof(why));

	if (result == BACKGROUND_CHILD) {
		background_failed(&b, "no such volume");
		_exit(1);
	}
	assert_int_equal(result, -ECHILD);
	assert_string_equal(why, "no such volume");
}

static void a_child_that_dies_is_noticed(void **state)
{
	struct background b;
	char why[256] = "";
	int result = background_begin(&b, why, sizeof(why));

	if (result == BACKGROUND_CHILD)
		raise(SIGKILL);
	assert_int_equal(result, -ECHILD);
	assert_non_null(strstr(why, "Killed"));

	result = background_begin(&b, why, sizeof(why));
	if (result == BACKGROUND_CHILD)
		_exit(7);
	assert_int_equal(result, -ECHILD);
	assert_non_null(strstr(why, "code 7"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_parent_goes_on_when_the_child_is_up),
		cmocka_unit_test(the_child_s_reason_reaches_the_parent),
		cmocka_unit_test(a_child_that_dies_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
