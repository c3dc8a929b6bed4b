/* How long a cache directory with many entries takes to be there: cached DIR ENTRIES
 *
 * Fills DIR (which must not exist, and is left for the caller to remove) with so many small objects, closes the cache, drops the
 * kernel's caches where it may, and prints the milliseconds until cache_open has returned, until the first hit after that, and until all is
 * counted again; the second time as after kill -9, when everything has to be counted. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cache/cache.h"

#define OBJECT_BYTES 64
#define VOLUME 1
#define SIZE_BYTES (1ull << 40)

static struct cache *place_open(const char *folder)
{
	struct cache_options options = {
		.dirs = &folder, .dir_count = 1, .size.bytes = SIZE_BYTES, .store = "a store for this", .clock = &clock_system
	};
	struct cache *c;
	int bad, r = cache_open(&options, &c, &bad);

	if (r) {
		fprintf(stderr, "cached: cannot open a cache in %s: %s\n", folder, strerror(-r));
		exit(1);
	}
	return c;
}

static void fill(const char *folder, uint64_t entries)
{
	struct cache *c = place_open(folder);
	uint8_t bytes[OBJECT_BYTES] = { 1 };

	for (uint64_t i = 1; i <= entries; i++) {
		int r = cache_object_add(c, VOLUME, i, &(struct iovec){ bytes, sizeof(bytes) }, 1, 0);

		if (r) {
			fprintf(stderr, "cached: object %llu is not kept: %s\n", (unsigned long long)i, strerror(-r));
			exit(1);
		}
	}
	cache_close(c);
}

static void caches_drop(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	sync();
	if (fd < 0 || write(fd, "3", 1) != 1)
		fprintf(stderr, "cached: not root, so the kernel's caches are not dropped\n");
	if (fd >= 0)
		close(fd);
}

static double since_ms(int64_t began_ns) { return (double)(clock_steady_ns() - began_ns) / 1e6; }

/* In a process of its own; `killed`: it ends without closing. */
static void measure(const char *folder, uint64_t entries, const char *how, bool killed)
{
	int64_t began = clock_steady_ns();
	struct cache *c = place_open(folder);
	double opened = since_ms(began), hit;
	struct cache_dir_stats s = { 0 };
	uint8_t bytes[OBJECT_BYTES];
	int r = cache_object_read(c, entries / 2 + 1, 0, &(struct iovec){ bytes, sizeof(bytes) }, 1);

	hit = since_ms(began);
	do {
		cache_tend(c, 0);
		cache_dir_stats(c, 0, &s);
	} while (s.counting);
	printf("%s: opened after %.1f ms, first %s after %.1f ms, counted %llu entries after %.1f ms\n", how, opened,
	       r ? "MISS" : "hit", hit, (unsigned long long)s.entries, since_ms(began));
	fflush(stdout);
	if (killed)
		_exit(r ? 1 : 0);
	cache_close(c);
	exit(r ? 1 : 0);
}

static int in_child(const char *folder, uint64_t entries, const char *how, bool killed)
{
	pid_t child;
	int status;

	caches_drop();
	child = fork();
	if (!child)
		measure(folder, entries, how, killed);
	return child < 0 || waitpid(child, &status, 0) < 0 || status;
}

int main(int argc, char **argv)
{
	uint64_t entries = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	int64_t began = clock_steady_ns();
	int failed;

	if (!entries) {
		fprintf(stderr, "usage: cached DIR ENTRIES\n");
		return 2;
	}
	fill(argv[1], entries);
	printf("%llu entries made in %.1f s\n", (unsigned long long)entries, since_ms(began) / 1e3);
	fflush(stdout);
	failed = in_child(argv[1], entries, "after a clean end", true);
	return in_child(argv[1], entries, "after kill -9", false) || failed;
}
