/* Which of the threads that read from /dev/fuse get requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "mounted.h"

#define THREADS 64

long __real_sysconf(int name);
long __wrap_sysconf(int name);

/* Where there are more CPUs, more threads read. */
long __wrap_sysconf(int name) { return name == _SC_NPROCESSORS_ONLN ? 2 : __real_sysconf(name); }

static void start(struct mounted *m)
{
	static const struct mountpoint_flags plain = { 0 };

	mounted_new(m, 0);
	if (mounted_start(m, &plain, 0))
		fail_msg("cannot mount: %s", m->why);
	assert_int_equal(mkdir(at(m, "dir"), 0755), 0);
}

/* Each of them is one request. */
static void ask(const struct mounted *m, int count)
{
	struct stat st;
	char name[32];

	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "dir/none%d", i);
		assert_int_equal(stat(at(m, name), &st), -1);
	}
}

/* A thread that was busy a moment ago gets the next one, too: with all of them in turn each would run an eighth of the time. */
static void quick_requests_keep_to_few_threads(void **state)
{
	unsigned long before[THREADS], after[THREADS], most = 0, all = 0;
	struct mounted m;
	unsigned count;

#ifdef __SANITIZE_THREAD__
	skip(); /* no request is quick */
#endif
	start(&m);
	count = mounted_ran_ns(&m, before, THREADS);
	ask(&m, 4000);
	assert_true(mounted_ran_ns(&m, after, THREADS) >= count);
	for (unsigned i = 0; i < count; i++) {
		all += after[i] - before[i];
		most = after[i] - before[i] > most ? after[i] - before[i] : most;
	}
	assert_true(all > 0);
	if (most < all / 6)
		fail_msg("of %lu ns no thread ran more than %lu", all, most);
	assert_int_equal(mounted_stop(&m), 0);
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quick_requests_keep_to_few_threads),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
