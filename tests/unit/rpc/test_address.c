#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../temporary.h"
#include "rpc/connection.h"

static char error[400];

static void listens_and_answers_at(const char *address, const char *connect_to)
{
	int listening, ours, theirs;

	assert_int_equal(address_listen(address, &listening, error, sizeof(error)), 0);
	assert_int_equal(address_connect(connect_to, 5000, &ours, error, sizeof(error)), 0);
	theirs = accept(listening, NULL, NULL);
	assert_true(theirs >= 0);
	assert_int_equal(write(ours, "x", 1), 1);
	close(ours);
	close(theirs);
	close(listening);
}

static void a_unix_socket_is_reached_by_its_path(void **state)
{
	char folder[100], address[200];

	temporary_template(folder, sizeof(folder), "address");
	assert_non_null(mkdtemp(folder));
	snprintf(address, sizeof(address), "unix:%s/s", folder);
	listens_and_answers_at(address, address);
	unlink(address + 5);
	rmdir(folder);
}

static void a_path_longer_than_the_kernel_takes_works_too(void **state)
{
	char folder[100], deep[300], address[400], name[151];

	temporary_template(folder, sizeof(folder), "address");
	assert_non_null(mkdtemp(folder));
	memset(name, 'd', 150);
	name[150] = 0;
	snprintf(deep, sizeof(deep), "%s/%s", folder, name);
	assert_int_equal(mkdir(deep, 0700), 0);
	snprintf(address, sizeof(address), "unix:%s/epochfs.sock", deep);
	listens_and_answers_at(address, address);
	unlink(address + 5);
	rmdir(deep);
	rmdir(folder);
}

static void a_port_is_no_more_than_sixteen_bits(void **state)
{
	static const char *const wrong[] = { "127.0.0.1:65536", "127.0.0.1:109525", "127.0.0.1:4294967297",
					     "127.0.0.1:99999999999999999999" };
	int fd;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(address_listen(wrong[i], &fd, error, sizeof(error)), -EINVAL);
		assert_int_equal(address_connect(wrong[i], 1000, &fd, error, sizeof(error)), -EINVAL);
	}
}

static void a_tcp_port_of_zero_picks_a_free_one(void **state)
{
	int listening, ours;
	struct sockaddr_in at;
	socklen_t size = sizeof(at);
	char address[60];

	assert_int_equal(address_listen("127.0.0.1:0", &listening, error, sizeof(error)), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&at, &size), 0);
	assert_int_not_equal(ntohs(at.sin_port), 0);
	snprintf(address, sizeof(address), "localhost:%d", ntohs(at.sin_port));
	assert_int_equal(address_connect(address, 5000, &ours, error, sizeof(error)), 0);
	close(ours);
	close(listening);
}

static void the_outside_world_is_refused_with_the_reason(void **state)
{
	static const char *const outside[] = { "0.0.0.0:0", "10.1.2.3:7000", "[::]:0", "192.168.0.1:1" };
	int fd;

	for (size_t i = 0; i < sizeof(outside) / sizeof(*outside); i++) {
		assert_int_equal(address_listen(outside[i], &fd, error, sizeof(error)), -EPERM);
		assert_non_null(strstr(error, outside[i]));
		assert_non_null(strstr(error, "tokens and TLS"));
	}
}

static void what_is_no_address_is_said_to_be_none(void **state)
{
	static const char *const wrong[] = { "", "localhost", "127.0.0.1:", ":70", "127.0.0.1:http", "unix:" };
	int fd;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(address_listen(wrong[i], &fd, error, sizeof(error)), -EINVAL);
		assert_non_null(strstr(error, "not an address"));
		assert_int_equal(address_connect(wrong[i], 100, &fd, error, sizeof(error)), -EINVAL);
	}
}

static void nobody_listening_is_an_error_at_once(void **state)
{
	int fd;

	assert_int_equal(address_connect("unix:/nonexistent/epochfs.sock", 5000, &fd, error, sizeof(error)), -ENOENT);
	assert_int_equal(address_connect("127.0.0.1:1", 5000, &fd, error, sizeof(error)), -ECONNREFUSED);
	assert_string_equal(error, strerror(ECONNREFUSED));
}

static void a_name_that_cannot_be_resolved_is_said_to_be_that(void **state)
{
	static const char expected[] = "the name nohost.invalid cannot be resolved: ";
	int fd;

	assert_int_equal(address_connect("nohost.invalid:7", 5000, &fd, error, sizeof(error)), -ENXIO);
	assert_memory_equal(error, expected, sizeof(expected) - 1);
	assert_true(error[sizeof(expected) - 1]);
	assert_null(strstr(error, strerror(EHOSTUNREACH)));
	assert_int_equal(address_listen("nohost.invalid:7", &fd, error, sizeof(error)), -ENXIO);
	assert_non_null(strstr(error, expected));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_unix_socket_is_reached_by_its_path),
		cmocka_unit_test(a_path_longer_than_the_kernel_takes_works_too),
		cmocka_unit_test(a_port_is_no_more_than_sixteen_bits),
		cmocka_unit_test(a_tcp_port_of_zero_picks_a_free_one),
		cmocka_unit_test(the_outside_world_is_refused_with_the_reason),
		cmocka_unit_test(what_is_no_address_is_said_to_be_none),
		cmocka_unit_test(nobody_listening_is_an_error_at_once),
		cmocka_unit_test(a_name_that_cannot_be_resolved_is_said_to_be_that),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
