/* The cache on the local disk: objects and files are added, read, replaced, evicted, pinned and dropped. */
#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "cache/cache.h"
#include "tests/torture/inject.h"

#define OBJECTS 12u
#define OBJECT_BYTES 300000u
#define FILE_BYTES (5 * CACHE_CHUNK + 100)
#define SIZE (3u << 20) /* ten objects, or eight and a file */

struct scenario {
	char folder[100];
	int64_t now;
	struct clock clock;
	uint8_t bytes[OBJECT_BYTES + FILE_BYTES], got[OBJECT_BYTES + FILE_BYTES];
};

static int64_t scenario_now(void *context) { return ((struct scenario *)context)->now; }

static void prepare(void *context)
{
	struct scenario *s = context;
	torture_folder(s->folder, sizeof s->folder, "cache");
	s->now = 1000 * NS_PER_S;
	s->clock = (struct clock){ .wall_ns = scenario_now, .context = s };
	for (size_t i = 0; i < sizeof s->bytes; i++)
		s->bytes[i] = (uint8_t)(i * 2654435761u >> 24);
}

static int scenario_open(struct scenario *s, struct cache **out)
{
	const char *dirs[] = { s->folder };
	struct cache_options o = { .dirs = dirs, .dir_count = 1, .size.bytes = SIZE, .clock = &s->clock };
	int bad;
	return cache_open(&o, out, &bad);
}

/* Each object is a slice that begins at its number. */
static bool object_read(struct scenario *s, struct cache *c, uint64_t object)
{
	int status = cache_object_read(c, object, 0, &(struct iovec){ s->got, OBJECT_BYTES }, 1);
	REQUIRE(status == 0 || status == -ENOENT);
	REQUIRE(status || memcmp(s->got, s->bytes + object, OBJECT_BYTES) == 0);
	return status == 0;
}

static void objects_use(struct scenario *s, struct cache *c)
{
	for (uint64_t i = 0; i < OBJECTS; i++) {
		if (!object_read(s, c, i))
			(void)cache_object_add(c, 1, i, &(struct iovec){ s->bytes + i, OBJECT_BYTES }, 1, i > 7 ? CACHE_TOLD : 0);
		object_read(s, c, i);
	}
	(void)cache_object_has(c, 11, CACHE_PIN);
	cache_object_unpin(c, 11);
	cache_object_drop(c, 10);
}

static void file_use(struct scenario *s, struct cache *c, uint64_t version)
{
	struct cache_file_key key = { .volume = 1, .inode = 5, .version = version, .size = FILE_BYTES };
	struct iovec into = { s->got, FILE_BYTES };
	struct cache_file *f;
	uint64_t at, length;
	if (cache_file_open(c, &key, CACHE_TOLD, &f) != 0)
		return;
	cache_file_keep_pages(f, version == 2);
	(void)cache_file_add(f, CACHE_CHUNK, s->bytes + version + CACHE_CHUNK, 2 * CACHE_CHUNK);
	while (cache_file_absent(f, 0, FILE_BYTES, &at, &length) && cache_file_add(f, at, s->bytes + version + at, length) == 0)
		;
	if (cache_file_read(f, 0, &into, 1) == 0)
		REQUIRE(memcmp(s->got, s->bytes + version, FILE_BYTES) == 0);
	int fd = cache_file_whole(f);
	memset(s->got, 0, FILE_BYTES);
	if (fd >= 0 && pread(fd, s->got, FILE_BYTES, 0) == FILE_BYTES)
		REQUIRE(memcmp(s->got, s->bytes + version, FILE_BYTES) == 0);
	cache_file_close(f);
}

static void cache_use(struct scenario *s, struct cache *c)
{
	objects_use(s, c);
	file_use(s, c, 1);
	cache_tend(c, 1 << 20);
	file_use(s, c, 2);
	cache_tend(c, 1 << 20);
	s->now += 11 * NS_PER_S;
	cache_tend(c, 1 << 20);
	objects_use(s, c);
}

static int run(void *context)
{
	struct scenario *s = context;
	for (int i = 0; i < 2; i++) {
		struct cache *c;
		int status = scenario_open(s, &c);
		if (status)
			return status;
		cache_use(s, c);
		cache_close(c);
	}
	return 0;
}

/* All that is there is right, it is counted rightly, and the cache can be used. */
static void verify(void *context, int status)
{
	struct scenario *s = context;
	struct cache *c;
	struct cache_stats stats;
	unsigned there = 0;
	REQUIRE(scenario_open(s, &c) == 0);
	for (uint64_t i = 0; i < OBJECTS; i++)
		there += object_read(s, c, i);
	file_use(s, c, 2);
	for (int i = 0; i < 260; i++) { /* all buckets are counted */
		s->now += 6 * NS_PER_S;
		cache_tend(c, 0);
	}
	cache_stats(c, &stats);
	REQUIRE(stats.entries <= OBJECTS + 1 && stats.bytes <= SIZE && stats.bytes >= (stats.entries - 1) * OBJECT_BYTES);
	there = 0;
	for (uint64_t i = 0; i < OBJECTS; i++)
		there += object_read(s, c, i);
	REQUIRE(stats.entries == there + 1);
	cache_object_drop(c, 10);
	REQUIRE(cache_object_add(c, 1, 10, &(struct iovec){ s->bytes + 10, OBJECT_BYTES }, 1, CACHE_TOLD) == 0);
	REQUIRE(object_read(s, c, 10));
	cache_close(c);
	torture_folder_remove(s->folder);
}

int main(int argc, char **argv)
{
	static struct scenario scenario;
	struct torture t = { .name = "cache", .prepare = prepare, .run = run, .verify = verify, .context = &scenario };
	return torture_main(&t, argc, argv);
}
