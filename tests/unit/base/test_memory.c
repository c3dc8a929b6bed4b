/* memory_available, with files that stand for the kernel's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/memory.h"

#define MIB ((uint64_t)1 << 20)

static char root[64];

static int root_make(void **state)
{
	snprintf(root, sizeof(root), "/tmp/epochfs-memory-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int root_remove(void **state)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command);
}

static void say(const char *folder, const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "mkdir -p '%s/%s'", root, folder);
	assert_int_equal(system(path), 0);
	snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void say_group(const char *folder, const char *max, const char *current, const char *stat)
{
	say(folder, "memory.max", max);
	say(folder, "memory.current", current);
	say(folder, "memory.stat", stat);
}

static void without_control_groups_it_is_what_the_kernel_says(void **state)
{
	assert_int_equal(memory_available(root), 0);
	say("proc", "meminfo", "MemTotal:       24684092 kB\nMemFree:        1000 kB\nMemAvailable:   2048000 kB\n");
	assert_int_equal(memory_available(root), 2000 * MIB);
	say("proc/self", "cgroup", "4:memory:/old\n");
	assert_int_equal(memory_available(root), 2000 * MIB);
}

static void a_group_leaves_its_limit_less_what_is_used_but_page_cache(void **state)
{
	say("proc", "meminfo", "MemAvailable:   2048000 kB\n");
	say("proc/self", "cgroup", "10:cpu:/old\n0::/job/step\n");
	say_group("sys/fs/cgroup/job/step", "1048576000\n", "943718400\n",
		  "anon 9\ninactive_file 104857600\nactive_file 209715200\n");
	assert_int_equal(memory_available(root), 400 * MIB);
	say_group("sys/fs/cgroup/job/step", "104857600\n", "209715200\n", "anon 1\n");
	assert_int_equal(memory_available(root), 0);
	say_group("sys/fs/cgroup/job/step", "max\n", "209715200\n", "anon 1\n");
	assert_int_equal(memory_available(root), 2000 * MIB);
}

static void groups_above_count_too(void **state)
{
	say("proc", "meminfo", "MemAvailable:   2048000 kB\n");
	say("proc/self", "cgroup", "0::/job/step\n");
	say_group("sys/fs/cgroup/job/step", "max\n", "0\n", "");
	say_group("sys/fs/cgroup/job", "314572800\n", "104857600\n", "inactive_file 0\n");
	assert_int_equal(memory_available(root), 200 * MIB);
	say_group("sys/fs/cgroup", "209715200\n", "104857600\n", "inactive_file 0\n"); /* as within a container */
	assert_int_equal(memory_available(root), 100 * MIB);
}

static void the_real_ones_can_be_read(void **state) { assert_true(memory_available("/") > 0); }

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(without_control_groups_it_is_what_the_kernel_says, root_make, root_remove),
		cmocka_unit_test_setup_teardown(a_group_leaves_its_limit_less_what_is_used_but_page_cache, root_make,
						root_remove),
		cmocka_unit_test_setup_teardown(groups_above_count_too, root_make, root_remove),
		cmocka_unit_test(the_real_ones_can_be_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
