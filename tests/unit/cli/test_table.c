#include "capture.h"
#include "cli/table.h"

static void columns_are_as_wide_as_their_widest_cell(void **state)
{
	char titles[] = "NAME|>FILES|MODE";
	struct capture c;
	struct table t;

	table_init(&t, titles, 0);
	table_cell(&t, "training");
	table_cell(&t, "%s", "1,234,567");
	table_cell(&t, "rw");
	table_cell(&t, "a");
	table_cell(&t, "%d", 5);
	table_cell(&t, "ro");
	capture_begin(&c, stdout);
	assert_int_equal(table_print(&t, stdout), 0);
	capture_end(&c);
	assert_string_equal(c.text, "NAME          FILES  MODE\n"
				    "training  1,234,567  rw\n"
				    "a                 5  ro\n");
}

static void characters_are_counted_and_not_bytes(void **state)
{
	struct capture c;
	struct table t;

	table_init(&t, NULL, 2);
	table_cell(&t, "\xc3\xa4\xc3\xb6");
	table_cell(&t, "x");
	table_cell(&t, "abc");
	table_cell(&t, "y");
	capture_begin(&c, stdout);
	assert_int_equal(table_print(&t, stdout), 0);
	capture_end(&c);
	assert_string_equal(c.text, "\xc3\xa4\xc3\xb6   x\nabc  y\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(columns_are_as_wide_as_their_widest_cell),
		cmocka_unit_test(characters_are_counted_and_not_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
