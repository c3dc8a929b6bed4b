#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <cmocka.h>
#include "fuse/mountinfo.h"

static const char text[] = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
			   "23 22 0:21 / /proc rw,nosuid - proc proc rw\n"
			   "40 22 0:50 / /mnt/a rw,noatime shared:7 master:3 - fuse.epochfs training rw,user_id=0\n"
			   "41 22 0:51 / /mnt/with\\040blank\\134 rw - fuse.epochfs data\\040set rw,user_id=1000,group_id=5\n"
			   "42 40 0:52 /sub /mnt/a ro - fuse.epochfs other rw\n"
			   "45 22 0:55 / /mnt/ro ro - fuse.epochfs kept ro,user_id=0\n"
			   "46 22 0:56 / /mnt/root rw - fuse.epochfs kept root\n"
			   "43 22 0:53 / /mnt/broken rw\n"
			   "44 22 0:54 / /mnt/last rw - tmpfs tmpfs rw";

static void a_mount_is_found_by_its_path(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse(text, "/proc", &info), 0);
	assert_string_equal(info.type, "proc");
	assert_int_equal(info.device, makedev(0, 21));
	assert_int_equal(mountinfo_parse(text, "/mnt/last", &info), 0);
	assert_string_equal(info.type, "tmpfs");
	assert_int_equal(mountinfo_parse(text, "/mnt", &info), -ENOENT);
	assert_int_equal(mountinfo_parse("", "/", &info), -ENOENT);
}

static void of_several_mounts_the_one_on_top_is_told(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse(text, "/mnt/a", &info), 0);
	assert_string_equal(info.source, "other");
	assert_int_equal(info.device, makedev(0, 52));
}

static void what_is_open_is_told_from_what_is_mounted_over_it(void **state)
{
	static const char lines[] = "7 0 0:1 / /a rw - fuse.epochfs one rw\n77 7 0:1 / /a rw - fuse.epochfs two rw\n";
	struct mountinfo info;
	int fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

	assert_int_equal(mountinfo_parse_id(lines, 7, &info), 0);
	assert_string_equal(info.source, "one");
	assert_int_equal(mountinfo_parse_id(lines, 77, &info), 0);
	assert_string_equal(info.source, "two");
	assert_int_equal(mountinfo_parse_id(lines, 6, &info), -ENOENT);
	assert_int_equal(mountinfo_find_open(fd, &info), 0);
	assert_string_equal(info.point, "/proc");
	close(fd);
	assert_int_equal(mountinfo_find_open(fd, &info), -ENOENT);
}

static void what_is_mounted_beneath_a_path_is_found(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse_beneath(text, "/mnt", &info), 0);
	assert_string_equal(info.point, "/mnt/last");
	assert_int_equal(mountinfo_parse_beneath(text, "/mnt/a", &info), -ENOENT); /* on it, not beneath */
	assert_int_equal(mountinfo_parse_beneath(text, "/mnt/las", &info), -ENOENT);
}

static void flags_and_who_is_let_in_are_known(void **state)
{
	static const char lines[] =
		"1 0 0:1 / /a rw,nosuid,nodev,noexec,noatime,nodiratime - fuse.epochfs v rw,user_id=5,allow_other\n"
		"1 0 0:1 / /b ro,relatime - fuse.epochfs v rw,user_id=12\n"
		"1 0 0:1 / /c rw - fuse.epochfs v ro,xallow_other,xro\n";
	struct mountinfo info;

	assert_int_equal(mountinfo_parse(lines, "/a", &info), 0);
	assert_int_equal(info.flags, MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME);
	assert_true(info.others);
	assert_false(info.read_only);
	assert_int_equal(info.user, 5);
	assert_int_equal(mountinfo_parse(lines, "/b", &info), 0);
	assert_int_equal(info.flags, MS_RDONLY | MS_RELATIME);
	assert_false(info.others);
	assert_false(info.read_only); /* through another directory it is not */
	assert_int_equal(info.user, 12);
	assert_int_equal(mountinfo_parse(lines, "/c", &info), 0);
	assert_int_equal(info.flags, MS_RDONLY);
	assert_false(info.others);
	assert_true(info.read_only);
	assert_int_equal(info.user, 0);
}

static void what_can_only_be_read_is_known(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse(text, "/mnt/ro", &info), 0);
	assert_true(info.read_only);
	assert_int_equal(mountinfo_parse(text, "/mnt/a", &info), 0); /* only looked at through one that is */
	assert_false(info.read_only);
	assert_int_equal(mountinfo_parse(text, "/mnt/root", &info), 0);
	assert_false(info.read_only);
}

static void blanks_in_names_are_understood(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse(text, "/mnt/with blank\\", &info), 0);
	assert_string_equal(info.source, "data set");
	assert_string_equal(info.type, "fuse.epochfs");
}

static void a_mount_is_found_by_its_device(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse_device(text, makedev(0, 51), &info), 0);
	assert_string_equal(info.point, "/mnt/with blank\\");
	assert_string_equal(info.type, "fuse.epochfs");
	assert_int_equal(info.user, 1000);
	assert_int_equal(mountinfo_parse_device(text, makedev(0, 50), &info), 0);
	assert_int_equal(info.user, 0);
	assert_int_equal(mountinfo_parse_device(text, makedev(0, 53), &info), -ENOENT);
	assert_int_equal(mountinfo_parse_device(text, makedev(9, 50), &info), -ENOENT);
}

static void a_line_that_is_cut_off_is_skipped(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_parse(text, "/mnt/broken", &info), -ENOENT);
}

static void the_list_of_this_machine_can_be_read(void **state)
{
	struct mountinfo info;

	assert_int_equal(mountinfo_find("/proc", &info), 0);
	assert_string_equal(info.type, "proc");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_mount_is_found_by_its_path),
		cmocka_unit_test(of_several_mounts_the_one_on_top_is_told),
		cmocka_unit_test(what_is_open_is_told_from_what_is_mounted_over_it),
		cmocka_unit_test(what_is_mounted_beneath_a_path_is_found),
		cmocka_unit_test(flags_and_who_is_let_in_are_known),
		cmocka_unit_test(what_can_only_be_read_is_known),
		cmocka_unit_test(blanks_in_names_are_understood),
		cmocka_unit_test(a_mount_is_found_by_its_device),
		cmocka_unit_test(a_line_that_is_cut_off_is_skipped),
		cmocka_unit_test(the_list_of_this_machine_can_be_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
