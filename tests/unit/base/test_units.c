#include "base/units.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/progress.h"

typedef int (*parser)(const char *text, uint64_t *out);
struct example {
	const char *text;
	uint64_t value;
};

static void assert_parses(parser parse, const struct example *e)
{
	for (; e->text; e++) {
		uint64_t value = 12345;
		if (parse(e->text, &value) != 0 || value != e->value)
			fail_msg("%s became %ju", e->text, (uintmax_t)value);
	}
}

static void assert_refuses(parser parse, int error, const char *const *texts)
{
	for (; *texts; texts++) {
		uint64_t value = 12345;
		int status = parse(*texts, &value);
		if (status != error || value != 12345)
			fail_msg("%s gave %d", *texts, status);
	}
}

static void sizes_are_read_as_people_type_them(void **state)
{
	assert_parses(size_parse, (const struct example[]){ { "0", 0 },
							    { "4096", 4096 },
							    { "256KiB", 262144 },
							    { "4MiB", 4194304 },
							    { "1.5GiB", 1610612736 },
							    { "1GB", 1000000000 },
							    { "1.5 GiB", 1610612736 },
							    { "64K", 65536 },
							    { "1m", 1048576 },
							    { "2tib", 2199023255552 },
							    { "1byte", 1 },
							    { "7 bytes", 7 },
							    { "0.5KiB", 512 },
							    { "1.0001KB", 1000 },
							    { "15EiB", 17293822569102704640u },
							    { "18446744073709551615", UINT64_MAX },
							    { "12B", 12 },
							    { "1PB", 1000000000000000 },
							    { NULL, 0 } });
	assert_refuses(size_parse, -EINVAL,
		       (const char *const[]){
			       "",     " ",     "-1",   "+1",  "1.5", "1.",  ".5",    "1.5.5G",          "MiB",   "4 ", "4  MiB",
			       "4XiB", "4MiBs", "0x10", "4iB", "1e3", "4Mi", "1,000", "1.1234567890MiB", " 4MiB", NULL });
	assert_refuses(size_parse, -ERANGE,
		       (const char *const[]){ "16EiB", "18446744073709551616", "99999999999999999999999999999999", NULL });
}

static void durations_are_read_as_people_type_them(void **state)
{
	assert_parses(duration_parse, (const struct example[]){ { "30d", 2592000 },
								{ "12h", 43200 },
								{ "90s", 90 },
								{ "5m", 300 },
								{ "0", 0 },
								{ "0s", 0 },
								{ "none", 0 },
								{ "1h 5m", 3900 },
								{ "1d2h3m4s", 93784 },
								{ "2w", 1209600 },
								{ NULL, 0 } });
	assert_refuses(duration_parse, -EINVAL,
		       (const char *const[]){ "", "5", "d", "5x", "-5s", "5m 1h", "5m5m", "1h ", " 1h", "1.5h", "5 m", "None",
					      "1h  5m", NULL });
	assert_refuses(duration_parse, -ERANGE,
		       (const char *const[]){ "18446744073709551615d", "99999999999999999999s", "213503982334601d 23h", NULL });
}

static void counts_are_read_as_people_type_them(void **state)
{
	assert_parses(count_parse, (const struct example[]){ { "0", 0 },
							     { "1000000", 1000000 },
							     { "1,000,000", 1000000 },
							     { "1M", 1000000 },
							     { "1.5k", 1500 },
							     { "12,345", 12345 },
							     { "2G", 2000000000 },
							     { "18,446,744,073,709,551,615", UINT64_MAX },
							     { NULL, 0 } });
	assert_refuses(count_parse, -EINVAL,
		       (const char *const[]){ "", ",", "1,00", "1,0000", "1000,000", "1.5", "1.2345k", "1KiB", "-1", "1 M",
					      "1,000,", "1MM", NULL });
	assert_refuses(count_parse, -ERANGE,
		       (const char *const[]){ "18,446,744,073,709,551,616", "18446744073709551615k", NULL });
}

static void sizes_are_shown_short(void **state)
{
	char t[UNITS_TEXT];
	assert_string_equal(size_format(t, 0), "0 bytes");
	assert_string_equal(size_format(t, 1), "1 byte");
	assert_string_equal(size_format(t, 1023), "1023 bytes");
	assert_string_equal(size_format(t, 1024), "1 KiB");
	assert_string_equal(size_format(t, 1536ULL << 20), "1.5 GiB");
	assert_string_equal(size_format(t, 4 << 20), "4 MiB");
	assert_string_equal(size_format(t, (1 << 20) - 1), "1 MiB");
	assert_string_equal(size_format(t, UINT64_MAX), "16 EiB");
}

static void counts_have_commas(void **state)
{
	char t[UNITS_TEXT];
	assert_string_equal(count_format(t, 0), "0");
	assert_string_equal(count_format(t, 999), "999");
	assert_string_equal(count_format(t, 1000), "1,000");
	assert_string_equal(count_format(t, 1234567), "1,234,567");
	assert_string_equal(count_format(t, UINT64_MAX), "18,446,744,073,709,551,615");
	assert_string_equal(counted_format(t, 0, "file"), "0 files");
	assert_string_equal(counted_format(t, 1, "file"), "1 file");
	assert_string_equal(counted_format(t, 1234, "file"), "1,234 files");
	assert_string_equal(counted_format(t, UINT64_MAX, "abcdefghijklmnopqr"),
			    "18,446,744,073,709,551,615 abcdefghijklmnopqrs");
}

static void durations_read_back_as_they_are_shown(void **state)
{
	static const uint64_t values[] = { 0, 1, 60, 3600, 3900, 86399, 86400, 2592000, 93784, UINT64_MAX };
	char t[UNITS_TEXT];
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		uint64_t back;
		assert_int_equal(duration_parse(duration_format(t, values[i]), &back), 0);
		assert_true(back == values[i]);
	}
	assert_string_equal(duration_format(t, 2592000), "30d");
	assert_string_equal(duration_format(t, 3900), "1h 5m");
	assert_string_equal(duration_format(t, 0), "none");
}

static void dates_are_american_and_local(void **state)
{
	char t[UNITS_TEXT];
	setenv("TZ", "UTC", 1);
	tzset();
	assert_string_equal(date_format(t, 1794773109LL * NS_PER_S + 999), "11/15/2026 20:05:09 UTC");
	assert_string_equal(date_format(t, 0), "01/01/1970 00:00:00 UTC");
	assert_string_equal(date_format(t, -1), "12/31/1969 23:59:59 UTC");
	assert_string_equal(date_format(t, 43200 * NS_PER_S), "01/01/1970 12:00:00 UTC");
	date_format(t, INT64_MAX);
	date_format(t, INT64_MIN);
	setenv("TZ", "EST5", 1);
	tzset();
	assert_string_equal(date_format(t, 1794773109LL * NS_PER_S), "11/15/2026 15:05:09 EST");
}

static void clocks_move_forward(void **state)
{
	int64_t steady = clock_steady_ns(), wall = clock_read(&clock_system);
	assert_true(clock_steady_ns() >= steady);
	assert_true(clock_wall_ns() - wall < 60 * NS_PER_S);
	assert_true(wall > 1577836800 * NS_PER_S);
}

static void progress_tells_how_much_is_left(void **state)
{
	char line[200], tiny[10];
	assert_string_equal(progress_line(line, sizeof line, "fsck", "objects", 1234, 2600, 11 * NS_PER_S),
			    "fsck  objects  [=========>          ]  47 %  1,234 / 2,600  ETA 0:12");
	assert_string_equal(progress_line(line, sizeof line, "gc", "files", 5, 0, NS_PER_S), "gc  files  5");
	assert_string_equal(progress_line(line, sizeof line, "gc", "files", 9, 3, NS_PER_S),
			    "gc  files  [====================]  100 %  9 / 3  ETA 0:00");
	assert_string_equal(progress_line(line, sizeof line, "gc", "files", 0, 3, NS_PER_S),
			    "gc  files  [>                   ]   0 %  0 / 3");
	assert_string_equal(progress_line(line, sizeof line, "gc", "files", 1, 3, 3600 * NS_PER_S),
			    "gc  files  [======>             ]  33 %  1 / 3  ETA 2:00:00");
	progress_line(tiny, sizeof tiny, "gc", "files", 1, UINT64_MAX, INT64_MAX);
	assert_string_equal(tiny, "gc  files");
	progress_show(NULL, "files", 1, 2);
	progress_end(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_read_as_people_type_them),
		cmocka_unit_test(durations_are_read_as_people_type_them),
		cmocka_unit_test(counts_are_read_as_people_type_them),
		cmocka_unit_test(sizes_are_shown_short),
		cmocka_unit_test(counts_have_commas),
		cmocka_unit_test(durations_read_back_as_they_are_shown),
		cmocka_unit_test(dates_are_american_and_local),
		cmocka_unit_test(clocks_move_forward),
		cmocka_unit_test(progress_tells_how_much_is_left),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
