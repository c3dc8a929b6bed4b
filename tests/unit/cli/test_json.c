#include "capture.h"
#include "cli/json.h"
#include "cli/verbs.h"

static void times_are_utc_to_the_millisecond(void **state)
{
	json_t *t = json_time(1794773109123456789LL), *before = json_time(-1);

	assert_string_equal(json_string_value(t), "2026-11-15T20:05:09.123Z");
	assert_string_equal(json_string_value(before), "1969-12-31T23:59:59.999Z");
	json_decref(t);
	json_decref(before);
}

static void names_that_are_not_utf8_still_make_valid_json(void **state)
{
	json_t *good = json_bytes("caf\xc3\xa9", 5), *bad = json_bytes("a\xff"
								       "b",
								       3);

	assert_string_equal(json_string_value(good), "caf\xc3\xa9");
	assert_string_equal(json_string_value(bad), "a\xef\xbf\xbd"
						    "b");
	json_decref(good);
	json_decref(bad);
}

static void the_printed_value_ends_with_a_line_break(void **state)
{
	struct capture c;
	int code;

	capture_begin(&c, stdout);
	code = json_finish(json_pack("{s:o}", "used_bytes", json_count(5)));
	capture_end(&c);
	assert_int_equal(code, EXIT_DONE);
	assert_string_equal(c.text, "{\n  \"used_bytes\": 5\n}\n");
}

static void a_list_that_lost_an_item_is_not_printed(void **state)
{
	json_t *list = json_array();
	struct capture c;
	int code;

	json_append(&list, json_count(1));
	assert_int_equal(json_array_size(list), 1);
	json_append(&list, NULL);
	assert_null(list);
	capture_begin(&c, stderr);
	code = json_finish(list);
	capture_end(&c);
	assert_int_equal(code, EXIT_FAILED);
	assert_contains(c.text, "out of memory");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(times_are_utc_to_the_millisecond),
		cmocka_unit_test(names_that_are_not_utf8_still_make_valid_json),
		cmocka_unit_test(the_printed_value_ends_with_a_line_break),
		cmocka_unit_test(a_list_that_lost_an_item_is_not_printed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
