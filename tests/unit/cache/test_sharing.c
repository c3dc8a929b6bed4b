/* Several processes and threads in one directory. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "place.h"
#include "base/clock.h"

#define PROCESSES 4
#define THREADS 4

struct worker {
	struct cache *cache;
	unsigned seed;
	int steps;
	_Atomic bool wrong;
};

static size_t size_of(uint64_t object) { return 1000 + object * 7919 % 300000; }

/* The content changes with the version, which goes up in each process at its own pace. */
static void file_step(struct worker *w, uint64_t inode, uint64_t version)
{
	uint8_t bytes[CACHE_CHUNK];
	struct cache_file_key key = { .volume = 1, .inode = inode, .version = version, .size = 20 * CACHE_CHUNK };
	uint64_t number = inode * 1000 + version;
	struct cache_file *f;
	if (cache_file_open(w->cache, &key, 0, &f) != 0)
		return;
	for (int i = 0; i < 8; i++) {
		uint64_t offset = (uint64_t)rand_r(&w->seed) % 20 * CACHE_CHUNK;
		if (cache_file_read(f, offset, &(struct iovec){ bytes, CACHE_CHUNK }, 1) == 0) {
			if (!content_is(number, offset, bytes, CACHE_CHUNK))
				w->wrong = true;
			continue;
		}
		content_fill(number, offset, bytes, CACHE_CHUNK);
		(void)cache_file_add(f, offset, bytes, CACHE_CHUNK);
	}
	int fd = cache_file_whole(f);
	if (fd >= 0 && (pread(fd, bytes, CACHE_CHUNK, 5 * CACHE_CHUNK) != CACHE_CHUNK ||
			!content_is(number, 5 * CACHE_CHUNK, bytes, CACHE_CHUNK)))
		w->wrong = true;
	cache_file_close(f);
}

static void object_step(struct worker *w, uint64_t object)
{
	size_t size = size_of(object);
	uint8_t *bytes = malloc(size);
	unsigned flags = rand_r(&w->seed) % 4 ? 0 : CACHE_TOLD;
	if (cache_object_read(w->cache, object, 0, &(struct iovec){ bytes, size }, 1) == 0) {
		if (!content_is(object, 0, bytes, size))
			w->wrong = true;
	} else {
		content_fill(object, 0, bytes, size);
		(void)cache_object_add(w->cache, 1, object, &(struct iovec){ bytes, size }, 1, flags);
	}
	if (rand_r(&w->seed) % 50 == 0)
		cache_object_drop(w->cache, object);
	free(bytes);
}

static void *worker_run(void *context)
{
	struct worker *w = context;
	for (int i = 0; i < w->steps; i++) {
		if (rand_r(&w->seed) % 6 == 0)
			file_step(w, (uint64_t)rand_r(&w->seed) % 12, 1 + (uint64_t)i / 150);
		else
			object_step(w, (uint64_t)rand_r(&w->seed) % 300);
	}
	return NULL;
}

/* A process with its own cache; tends it while its threads work. */
static int process_run(struct place *p, unsigned seed, int steps)
{
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	struct cache *c;
	int bad, wrong = 0;
	p->options.clock = &clock_system;
	if (cache_open(&p->options, &c, &bad) != 0)
		return 2;
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .cache = c, .seed = seed * 100 + (unsigned)i, .steps = steps };
		pthread_create(&threads[i], NULL, worker_run, &workers[i]);
	}
	for (int i = 0; i < 20; i++)
		cache_tend(c, MIB);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		wrong |= workers[i].wrong;
	}
	cache_close(c);
	return wrong;
}

static void processes_start(struct place *p, pid_t *pids, unsigned seed, int steps)
{
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
			_exit(process_run(p, seed + (unsigned)i, steps));
		}
	}
}

static void assert_all_is_right(struct place *p)
{
	struct cache_stats s;
	uint64_t bytes;
	p->options.clock = &p->clock;
	place_open(p);
	for (int i = 0; i < 600; i++) {
		p->now += 6 * NS_PER_S;
		cache_tend(p->cache, MIB);
	}
	cache_stats(p->cache, &s);
	bytes = place_bytes(p->dirs[0]);
	assert_int_equal(s.entries, place_count(p, "o-") + place_count(p, "f-"));
	assert_int_equal(place_count(p, "f-"), place_count(p, "m-"));
	assert_int_equal(place_count(p, "t-") + place_count(p, "s-"), 0);
	assert_true(bytes <= p->options.size.bytes);
	assert_in_range(s.bytes + MIB / 2, bytes, bytes + MIB);
	for (uint64_t i = 0; i < 300; i++)
		(void)object_read(p->cache, i, size_of(i));
	/* And it takes more. */
	cache_object_drop(p->cache, 9999);
	assert_int_equal(object_add(p->cache, 9999, 1000, CACHE_TOLD), 0);
	place_close(p);
}

/* At one moment: a walk would count one that is evicted meanwhile and the one that takes its place. */
static uint64_t bytes_now(struct place *p)
{
	struct statvfs v;
	assert_int_equal(statvfs(p->folder, &v), 0);
	return (v.f_blocks - v.f_bfree) * v.f_frsize;
}

/* All wait for the pipe to be closed. */
static void many_processes_can_make_a_cache_at_once(void **state)
{
	struct place *p = *state;
	int status, bad, start[2];
	char byte;
	for (int round = 0; round < 100; round++) {
		snprintf(p->dirs[0], sizeof p->dirs[0], "%s/%d", p->folder, round);
		assert_int_equal(pipe(start), 0);
		for (int i = 0; i < PROCESSES; i++) {
			pid_t pid = fork();
			assert_true(pid >= 0);
			if (pid == 0) {
				close(start[1]);
				_exit(read(start[0], &byte, 1) != 0 || cache_open(&p->options, &p->cache, &bad) != 0);
			}
		}
		close(start[0]);
		close(start[1]);
		for (int i = 0; i < PROCESSES; i++) {
			assert_true(wait(&status) > 0);
			assert_int_equal(status, 0);
		}
	}
}

static void many_processes_and_threads_never_exceed_the_size(void **state)
{
	struct place *p = *state;
	pid_t pids[PROCESSES];
	int running = PROCESSES, status;
	uint64_t most = 0;
	if (!place_mount(p, 100))
		skip();
	p->options.size.bytes = 24 * MIB; /* they want about 60 */
	processes_start(p, pids, 1, 400);
	while (running > 0) {
		uint64_t bytes = bytes_now(p);
		most = bytes > most ? bytes : most;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		running -= pid > 0;
		assert_true(pid <= 0 || status == 0);
	}
	print_message("most: %.2f of %.2f MiB\n", (double)most / (double)MIB, (double)p->options.size.bytes / (double)MIB);
	assert_true(most <= p->options.size.bytes);
	assert_all_is_right(p);
}

/* Killed at any point, again and again, with one that goes on. */
static void processes_that_are_killed_leave_nothing_wrong_for_ever(void **state)
{
	struct place *p = *state;
	pid_t pids[PROCESSES];
	int status;
	unsigned seed = 7;
	if (!place_mount(p, 100))
		skip();
	p->options.size.bytes = 24 * MIB;
	for (int round = 0; round < 6; round++) {
		processes_start(p, pids, seed + (unsigned)round * 10, 1000000);
		for (int i = 0; i < PROCESSES; i++) {
			struct timespec pause = { .tv_nsec = (rand_r(&seed) % 60 + 5) * NS_PER_MS };
			nanosleep(&pause, NULL); /* any moment will do */
			kill(pids[i], SIGKILL);
			assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
			assert_true(WIFSIGNALED(status));
			assert_true(bytes_now(p) <= p->options.size.bytes);
		}
		assert_all_is_right(p);
	}
}

static void a_process_that_is_stopped_does_not_hold_up_others(void **state)
{
	struct place *p = *state;
	int ready[2], status;
	char byte;
	place_open(p);
	assert_int_equal(pipe(ready), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct cache *c;
		int bad;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (cache_open(&p->options, &c, &bad) != 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		for (uint64_t i = 0;; i++)
			(void)object_add(c, i % 200, MIB / 2, CACHE_TOLD);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	for (int i = 0; i < 10; i++) {
		kill(pid, SIGSTOP);
		assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
		int64_t began = clock_steady_ns();
		(void)object_add(p->cache, 1000 + (uint64_t)i, MIB, CACHE_TOLD);
		(void)object_read(p->cache, 1000 + (uint64_t)i, MIB);
		cache_tend(p->cache, 0);
		assert_true(clock_steady_ns() - began < 20 * NS_PER_S);
		kill(pid, SIGCONT);
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(ready[0]);
	close(ready[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, place_make, place_remove)
int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(many_processes_can_make_a_cache_at_once),
		TEST(many_processes_and_threads_never_exceed_the_size),
		TEST(processes_that_are_killed_leave_nothing_wrong_for_ever),
		TEST(a_process_that_is_stopped_does_not_hold_up_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
