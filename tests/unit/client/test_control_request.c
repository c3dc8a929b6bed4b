#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "client/control_request.h"
#include "client/warm.h"

static struct control_request request;

static int decode(const char *line)
{
	const char *why;
	int r = control_decode(line, strlen(line), &request, &why);

	assert_true(r == 0 ? why == NULL : r == -EBADMSG && why);
	return r;
}

static void every_request_is_understood(void **state)
{
	assert_int_equal(decode("{\"op\": \"status\", \"later\": [1, {}]}"), 0);
	assert_int_equal(request.op, CONTROL_STATUS);
	assert_false(request.pinned);
	assert_int_equal(decode("{\"op\": \"status\", \"pinned\": true}"), 0);
	assert_true(request.pinned);
	assert_int_equal(
		decode("{\"op\": \"warm\", \"files\": [[5, 65536, 1048576], [9223372036854775807, 0, 0]], \"pin\": true}"), 0);
	assert_int_equal(request.op, CONTROL_WARM);
	assert_int_equal(request.flags, WARM_PIN);
	assert_int_equal(request.count, 2);
	assert_int_equal(request.files[0].inode, 5);
	assert_int_equal(request.files[0].from, 65536);
	assert_int_equal(request.files[0].to, 1048576);
	assert_int_equal(request.files[1].inode, INT64_MAX);
	assert_int_equal(decode("{\"op\": \"warm\", \"files\": [], \"verify\": true, \"unpin\": true, \"pin\": false}"), 0);
	assert_int_equal(request.flags, WARM_VERIFY | WARM_UNPIN);
	assert_int_equal(request.count, 0);
	assert_int_equal(decode("{\"op\": \"order\", \"window\": 1000, \"ahead\": 10}"), 0);
	assert_int_equal(request.op, CONTROL_ORDER);
	assert_int_equal(request.window, 1000);
	assert_int_equal(request.ahead, 10);
	assert_int_equal(decode("{\"op\": \"next\", \"files\": [[7, 123]]}"), 0);
	assert_int_equal(request.files[0].to, 123);
	assert_int_equal(decode("{\"op\": \"store\"}"), 0);
	assert_int_equal(request.op, CONTROL_STORE);
	assert_int_equal(decode("{\"op\": \"progress\"}"), 0);
	assert_int_equal(request.op, CONTROL_PROGRESS);
}

static void nonsense_is_refused(void **state)
{
	static const char *const lines[] = {
		"",
		"{}",
		"[]",
		"{\"op\": null}",
		"{\"op\": \"status\"} x",
		"{\"op\": \"warm\", \"files\": {}}",
		"{\"op\": \"warm\", \"files\": [[1, 2, 3, 4]]}",
		"{\"op\": \"warm\", \"files\": [[1, 2]]}",
		"{\"op\": \"warm\", \"files\": [[1.5, 2, 3]]}",
		"{\"op\": \"warm\", \"files\": [[\"1\", 2, 3]]}",
		"{\"op\": \"warm\", \"files\": [[0, 2, 3]]}",
		"{\"op\": \"warm\", \"files\": [[1, 4, 3]]}",
		"{\"op\": \"warm\", \"files\": [], \"pin\": true, \"unpin\": true}",
		"{\"op\": \"order\", \"window\": -1, \"ahead\": 1}",
		"{\"op\": \"order\", \"window\": 1}",
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		assert_int_equal(decode(lines[i]), -EBADMSG);
}

static void no_more_files_than_there_is_room_for_are_taken(void **state)
{
	for (unsigned count = CONTROL_FILES; count <= CONTROL_FILES + 1; count++) {
		static char line[CONTROL_FILES * 8 + 100];
		int length = snprintf(line, sizeof(line), "{\"op\": \"next\", \"files\": [[1,1]");

		for (unsigned i = 1; i < count; i++)
			length += snprintf(line + length, sizeof(line) - (size_t)length, ",[1,1]");
		snprintf(line + length, sizeof(line) - (size_t)length, "]}");
		assert_int_equal(decode(line), count > CONTROL_FILES ? -EBADMSG : 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_request_is_understood),
		cmocka_unit_test(nonsense_is_refused),
		cmocka_unit_test(no_more_files_than_there_is_room_for_are_taken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
