#include "cache/cache.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/state.h"

#define OPEN_COUNT_NS (200 * NS_PER_MS) /* a small cache is counted at once */
#define TEND_COUNT_NS (20 * NS_PER_MS)

/* Never 0.  Where there is no such file, a reboot is not noticed as one, but as processes that died. */
static uint64_t boot_read(void)
{
	char text[64] = "";
	CLEANUP_FD int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
	return XXH3_64bits(text, n > 0 ? (size_t)n : 0) | 1;
}

/* What the user must mend, rather than what may pass. */
static bool is_mistake(int error)
{
	return error == -ENOTEMPTY || error == -EPROTONOSUPPORT || error == -ENOTDIR || error == -EINVAL;
}

static int options_check(const struct cache_options *o)
{
	if (o->dir_count < 1 || o->size.percent > 100 || o->min_free.percent > 100 || !o->clock)
		return -EINVAL;
	for (int i = 0; i < o->share_count; i++)
		if (o->shares[i].percent > 100)
			return -EINVAL;
	return 0;
}

static int cache_new(const struct cache_options *o, struct cache **out)
{
	struct cache *c = calloc(1, sizeof *c);
	if (!c)
		return -ENOMEM;
	c->options = *o;
	c->options.dirs = NULL;
	c->options.shares = NULL;
	c->boot = boot_read();
	c->dirs = calloc((size_t)o->dir_count, sizeof *c->dirs);
	c->shares = calloc((size_t)o->share_count + 1, sizeof *c->shares);
	pthread_mutex_init(&c->files_lock, NULL);
	int error = c->dirs && c->shares ? 0 : -ENOMEM;
	for (; !error && c->dir_count < o->dir_count; c->dir_count++)
		error = cache_dir_init(&c->dirs[c->dir_count], c, o->dirs[c->dir_count]);
	if (error) {
		cache_close(c);
		return error;
	}
	if (o->share_count)
		memcpy(c->shares, o->shares, (size_t)o->share_count * sizeof *c->shares);
	*out = c;
	return 0;
}

int cache_open(const struct cache_options *options, struct cache **out, int *bad)
{
	struct cache *c;
	*bad = 0;
	int error = options_check(options);
	if (!error)
		error = cache_new(options, &c);
	if (error)
		return error;
	for (int i = 0; i < c->dir_count; i++) {
		struct cache_dir *d = &c->dirs[i];
		error = cache_dir_open(d);
		if (is_mistake(error)) {
			*bad = i;
			cache_close(c);
			return error;
		}
		if (error)
			log_warn("cache: %s is out of use: %s; tried again every 10 s", d->path, strerror(-error));
		else
			cache_count_tend(d, OPEN_COUNT_NS);
	}
	*out = c;
	return 0;
}

void cache_close(struct cache *c)
{
	cache_files_seal(c);
	cache_scrub_free(c);
	for (int i = 0; i < c->dir_count; i++)
		cache_dir_free(&c->dirs[i]);
	intmap_free(&c->files);
	intmap_free(&c->checked);
	pthread_mutex_destroy(&c->files_lock);
	free(c->dirs);
	free(c->shares);
	free(c);
}

void cache_tend(struct cache *c, uint64_t scrub_bytes)
{
	for (int i = 0; i < c->dir_count; i++) {
		struct cache_dir *d = &c->dirs[i];
		cache_dir_tend(d);
		pthread_rwlock_rdlock(&d->lock);
		if (atomic_load(&d->in_use)) {
			cache_count_tend(d, TEND_COUNT_NS);
			cache_room_tend(d);
		}
		pthread_rwlock_unlock(&d->lock);
	}
	cache_files_seal(c);
	if (scrub_bytes)
		cache_scrub_tend(c, scrub_bytes);
}

static uint64_t not_below_0(int64_t n) { return n > 0 ? (uint64_t)n : 0; }

void cache_dir_stats(struct cache *c, int dir, struct cache_dir_stats *out)
{
	struct cache_dir *d = &c->dirs[dir];
	uint64_t entries = 0;
	pthread_rwlock_rdlock(&d->lock);
	*out = (struct cache_dir_stats){ .path = d->path, .size_bytes = d->size, .in_use = atomic_load(&d->in_use) };
	if (!out->in_use)
		out->error = atomic_load(&d->failed);
	else {
		for (unsigned i = 0; i < CACHE_BUCKETS; i++)
			entries += (uint64_t)atomic_load(&d->state->buckets[i].entries);
		out->counting = !cache_room_trusted(d);
		out->bytes = not_below_0(cache_room_used(d));
		out->entries = not_below_0((int64_t)entries);
	}
	pthread_rwlock_unlock(&d->lock);
}

void cache_stats(struct cache *c, struct cache_stats *out)
{
	*out = (struct cache_stats){
		.hits = atomic_load(&c->hits),
		.misses = atomic_load(&c->misses),
		.adds = atomic_load(&c->adds),
		.refusals = atomic_load(&c->refusals),
		.evictions = atomic_load(&c->evictions),
		.damaged = atomic_load(&c->damaged),
		.scrubbed_bytes = atomic_load(&c->scrubbed),
		.dir_count = c->dir_count,
	};
	for (int i = 0; i < c->dir_count; i++) {
		struct cache_dir_stats d;
		cache_dir_stats(c, i, &d);
		out->bytes += d.bytes;
		out->entries += d.entries;
	}
}
