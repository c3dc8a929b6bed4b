#include "base/log.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/cleanup.h"
#include "base/notify.h"
#include "base/settings.h"
#include "base/text.h"

#define LOG_FILE "test_log.out"

/* What has been logged since the last call; the caller frees it. */
static char *log_taken(void)
{
	FILE *f = fopen(LOG_FILE, "r");
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	assert_non_null(f);
	for (int c; (c = fgetc(f)) != EOF;)
		fputc(c, out);
	fclose(f);
	fclose(out);
	assert_int_equal(truncate(LOG_FILE, 0), 0);
	return text;
}

static int log_begin(void **state)
{
	unlink(LOG_FILE);
	unsetenv("JOURNAL_STREAM");
	setenv("TZ", "UTC", 1);
	log_set_level(LOG_LEVEL_INFO);
	return log_to_file(LOG_FILE);
}

static int log_end(void **state) { return unlink(LOG_FILE); }

static void a_line_has_date_level_and_text(void **state)
{
	errno = EBUSY;
	log_warn("disk %d is %s", 3, "full");
	assert_int_equal(errno, EBUSY);
	CLEANUP_FREE char *text = log_taken();
	assert_int_equal(strlen(text), strlen("11/15/2026 20:05:09 UTC warn disk 3 is full\n"));
	assert_string_equal(text + 24, "warn disk 3 is full\n");
	assert_int_equal(text[2], '/');
	assert_int_equal(text[16], ':');
}

static void what_is_below_the_level_is_not_logged(void **state)
{
	enum log_level level = LOG_LEVEL_INFO;
	log_debug("not this");
	log_set_level(LOG_LEVEL_OFF);
	log_error("nor this");
	CLEANUP_FREE char *none = log_taken();
	assert_string_equal(none, "");
	assert_int_equal(log_level_parse("debug", &level), 0);
	assert_int_equal(log_level_parse("loud", &level), -EINVAL);
	log_set_level(level);
	log_debug("but this");
	CLEANUP_FREE char *text = log_taken();
	assert_non_null(strstr(text, "debug but this"));
}

static void a_file_name_cannot_forge_a_line(void **state)
{
	log_info("file %s", "a\n11/15/2026 error all is lost\033[2J\r\x7f");
	CLEANUP_FREE char *text = log_taken();
	assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
	assert_non_null(strstr(text, "a\\n11/15/2026 error all is lost\\x1b[2J\\r\\x7f\n"));
}

static void a_very_long_line_is_cut_and_still_ends(void **state)
{
	static char long_text[9000];
	memset(long_text, '\1', sizeof long_text - 1);
	log_info("%s", long_text);
	CLEANUP_FREE char *text = log_taken();
	assert_true(strlen(text) <= 4096);
	assert_string_equal(text + strlen(text) - 8, "\\x01...\n");
}

static void under_systemd_the_date_is_left_to_it(void **state)
{
	struct stat st;
	char stream[64];
	assert_int_equal(stat(LOG_FILE, &st), 0);
	snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	log_info("hello");
	setenv("JOURNAL_STREAM", "1:2", 1); /* inherited from somebody else */
	log_info("hello");
	unsetenv("JOURNAL_STREAM");
	CLEANUP_FREE char *text = log_taken();
	assert_int_equal(strncmp(text, "info hello\n", 11), 0);
	assert_true(text[11] == '0' || text[11] == '1');
}

static void a_log_file_that_cannot_be_opened_is_an_error(void **state)
{
	assert_int_equal(log_to_file("/nowhere/at/all"), -ENOENT);
	log_info("still here");
	CLEANUP_FREE char *text = log_taken();
	assert_non_null(strstr(text, "still here"));
}

static void *log_a_lot(void *name)
{
	for (int i = 0; i < 200; i++)
		log_info("%s %s %s %s", (char *)name, (char *)name, (char *)name, (char *)name);
	return NULL;
}

static void lines_of_several_threads_stay_whole(void **state)
{
	pthread_t threads[3];
	char names[3][8] = { "first", "second", "third" };
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, log_a_lot, names[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	CLEANUP_FREE char *text = log_taken();
	int lines = 0;
	for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
		*end = 0;
		const char *rest = line + 29;
		assert_true(!strcmp(rest, "first first first first") || !strcmp(rest, "second second second second") ||
			    !strcmp(rest, "third third third third"));
	}
	assert_int_equal(lines, 600);
}

static void text_is_escaped_and_cut_between_characters(void **state)
{
	char out[16];
	assert_int_equal(text_escape(out, sizeof out, "plain", 5), 5);
	assert_string_equal(out, "plain");
	text_escape(out, sizeof out, "gr\xc3\xbc\xc3\x9f", 6);
	assert_string_equal(out, "gr\xc3\xbc\xc3\x9f");
	text_escape(out, sizeof out, "\xff\xc2\x9b\xc3", 4); /* not UTF-8; C1 control; cut off */
	assert_string_equal(out, "\\xff\\xc2\\x9b...");
	assert_int_equal(text_escape(out, 4, "abcd", 4), 3);
	assert_string_equal(out, "...");
	assert_int_equal(text_escape(out, 4, "abc", 3), 3);
	assert_string_equal(out, "abc");
	text_escape(out, 8, "abcde\xc3\xbc\xc3\xbc", 9);
	assert_string_equal(out, "abcd...");
	text_escape(out, sizeof out, "a\0b", 3);
	assert_string_equal(out, "a\\x00b");
	assert_int_equal(text_utf8_length("\xed\xa0\x80", 3), 0); /* a surrogate */
	assert_int_equal(text_utf8_length("\xc0\xaf", 2), 0);     /* overlong */
	assert_int_equal(text_utf8_length("\xf4\x90\x80\x80", 4), 0);
	assert_int_equal(text_utf8_length("\xf0\x9f\x98\x80", 4), 4);
	assert_int_equal(text_utf8_length("\xe2\x82\xac", 3), 3);
}

struct heard {
	char text[300];
	int refuse;
};

static int hear(void *context, const char *name, const char *value, char *why, size_t why_size)
{
	struct heard *h = context;
	size_t at = strlen(h->text);
	if (h->refuse) {
		snprintf(why, why_size, "not %s", value);
		return h->refuse;
	}
	snprintf(h->text + at, sizeof h->text - at, "%s=%s;", name, value);
	return 0;
}

static int settings_try(const char *text, struct heard *h, char error[200])
{
	return settings_parse("epochfs.conf", text, strlen(text), hear, h, error, 200);
}

static void settings_are_names_and_values(void **state)
{
	struct heard h = { "", 0 };
	char error[200];
	assert_int_equal(
		settings_try(
			"# comment\n\n data = /var/lib/epochfs \r\nlisten=127.0.0.1:7070 # why\n\tstore  =  dir:/a#b\nempty =",
			&h, error),
		0);
	assert_string_equal(h.text, "data=/var/lib/epochfs;listen=127.0.0.1:7070;store=dir:/a#b;empty=;");
}

static void a_wrong_line_is_named(void **state)
{
	static const char *const wrong[] = { "a = 1\nnonsense\n", "a = 1\n= 2\n", "a = 1\n[section]\n", "a = 1\nB = 1\n",
					     "a = 1\na b = 1" };
	char error[200], text[9000];
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct heard h = { "", 0 };
		assert_int_equal(settings_try(wrong[i], &h, error), -EINVAL);
		assert_string_equal(error, "epochfs.conf line 2: expected `name = value`");
		assert_string_equal(h.text, "a=1;");
	}
	struct heard h = { "", -ERANGE };
	assert_int_equal(settings_try("\n\nport = 99999\n", &h, error), -ERANGE);
	assert_string_equal(error, "epochfs.conf line 3: port: not 99999");
	h.refuse = 5;
	assert_int_equal(settings_try("a=1", &h, error), -EINVAL);
	h.refuse = 0;
	assert_int_equal(settings_parse("f", "a=\0b\n", 5, hear, &h, error, sizeof error), -EINVAL);
	assert_string_equal(error, "f line 1: not text");
	memset(text, 'a', sizeof text - 1);
	text[sizeof text - 1] = 0;
	assert_int_equal(settings_try(text, &h, error), -EINVAL);
	assert_string_equal(error, "epochfs.conf line 1: the line is too long");
}

static void settings_come_from_a_file(void **state)
{
	struct heard h = { "", 0 };
	char error[200];
	FILE *f = fopen("test_settings.conf", "w");
	fputs("data = here\n", f);
	fclose(f);
	assert_int_equal(settings_read("test_settings.conf", hear, &h, error, sizeof error), 0);
	assert_string_equal(h.text, "data=here;");
	unlink("test_settings.conf");
	assert_int_equal(settings_read("test_settings.conf", hear, &h, error, sizeof error), -ENOENT);
	assert_string_equal(error, "cannot read test_settings.conf: No such file or directory");
	assert_int_equal(settings_read("/dev/zero", hear, &h, error, sizeof error), -EFBIG);
	assert_int_equal(settings_read("/", hear, &h, error, sizeof error), -EISDIR);
}

static void notify_to(struct sockaddr_un *address, socklen_t length, const char *name)
{
	char got[20] = "";
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)address, length), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	notify_service_manager("READY=1");
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(recv(fd, got, sizeof got - 1, 0), 7);
	assert_string_equal(got, "READY=1");
	close(fd);
}

static void the_service_manager_hears_that_we_are_ready(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[60];
	int n = snprintf(name, sizeof name, "/tmp/epochfs-notify-%d", getpid());
	memcpy(address.sun_path, name, (size_t)n + 1);
	notify_to(&address, sizeof address, name);
	unlink(name);
	name[0] = '@';
	address.sun_path[0] = 0;
	notify_to(&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n), name);
	notify_service_manager("READY=1"); /* nobody there */
}

#define LOGGED(name) cmocka_unit_test_setup_teardown(name, log_begin, log_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LOGGED(a_line_has_date_level_and_text),          LOGGED(what_is_below_the_level_is_not_logged),
		LOGGED(a_file_name_cannot_forge_a_line),         LOGGED(a_very_long_line_is_cut_and_still_ends),
		LOGGED(under_systemd_the_date_is_left_to_it),    LOGGED(a_log_file_that_cannot_be_opened_is_an_error),
		LOGGED(lines_of_several_threads_stay_whole),     cmocka_unit_test(text_is_escaped_and_cut_between_characters),
		cmocka_unit_test(settings_are_names_and_values), cmocka_unit_test(a_wrong_line_is_named),
		cmocka_unit_test(settings_come_from_a_file),     cmocka_unit_test(the_service_manager_hears_that_we_are_ready),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
