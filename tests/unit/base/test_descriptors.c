#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/descriptors.h"

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static int file_of(off_t size)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	return fd;
}

static void a_descriptor_is_found_again_and_a_second_one_is_closed(void **state)
{
	struct descriptors all;
	struct descriptor *d, *again;
	int first = file_of(1234), second = file_of(1);
	descriptors_init(&all, 4);
	assert_null(descriptor_find(&all, 7));
	d = descriptor_add(&all, 7, first);
	assert_int_equal(d->size, 1234);
	again = descriptor_add(&all, 7, second);
	assert_ptr_equal(d, again);
	assert_false(is_open(second));
	assert_ptr_equal(descriptor_find(&all, 7), d);
	for (int k = 0; k < 3; k++)
		descriptor_put(&all, d);
	assert_true(is_open(first));
	descriptors_free(&all);
	assert_false(is_open(first));
	descriptors_init(&all, 4);
	assert_null(descriptor_add(&all, 8, -1));
	descriptors_free(&all);
}

static void one_in_use_is_closed_by_its_last_user(void **state)
{
	struct descriptors all;
	struct descriptor *d;
	int fd = file_of(1), other;
	descriptors_init(&all, 4);
	d = descriptor_add(&all, 7, fd);
	descriptor_forget(&all, 7);
	descriptor_forget(&all, 7);
	assert_true(is_open(fd));
	assert_null(descriptor_find(&all, 7));
	other = file_of(2);
	descriptor_put(&all, descriptor_add(&all, 7, other));
	descriptor_put(&all, d);
	assert_false(is_open(fd));
	assert_true(is_open(other));
	descriptor_forget(&all, 7);
	assert_false(is_open(other));
	descriptors_free(&all);
}

static void the_least_recently_used_one_goes(void **state)
{
	struct descriptors all;
	int fds[4];
	descriptors_init(&all, 3);
	for (int k = 0; k < 3; k++)
		descriptor_put(&all, descriptor_add(&all, (uint64_t)k, fds[k] = file_of(1)));
	descriptor_put(&all, descriptor_find(&all, 0));
	descriptor_put(&all, descriptor_add(&all, 3, fds[3] = file_of(1)));
	assert_true(is_open(fds[0]));
	assert_false(is_open(fds[1]));
	assert_true(is_open(fds[2]));
	descriptors_free(&all);
}

static void those_opened_long_ago_are_closed_however_much_they_are_used(void **state)
{
	struct descriptors all;
	struct descriptor *busy;
	int64_t before;
	int old = file_of(1), fresh = file_of(1), used = file_of(1);
	descriptors_init(&all, 4);
	descriptor_put(&all, descriptor_add(&all, 1, old));
	busy = descriptor_add(&all, 3, used);
	do {
		before = clock_steady_ns();
	} while (before <= busy->since_ns);
	descriptor_put(&all, descriptor_add(&all, 2, fresh));
	descriptor_put(&all, descriptor_find(&all, 1));
	assert_int_equal(descriptors_trim(&all, before), 1);
	assert_false(is_open(old));
	assert_true(is_open(fresh));
	assert_true(is_open(used));
	descriptor_put(&all, busy);
	assert_false(is_open(used));
	descriptors_free(&all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_is_found_again_and_a_second_one_is_closed),
		cmocka_unit_test(one_in_use_is_closed_by_its_last_user),
		cmocka_unit_test(the_least_recently_used_one_goes),
		cmocka_unit_test(those_opened_long_ago_are_closed_however_much_they_are_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
