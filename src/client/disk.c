#include "client/disk.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/cache.h"
#include "client/state.h"

#define TEND_NS (100 * NS_PER_MS)
#define SCRUB_BYTES (1u << 20) /* each time: 10 MB/s */

static void *disk_run(void *context)
{
	struct client *c = context;
	struct disk *d = &c->disk;
	LOCKED(&d->lock);

	while (!d->stopping) {
		pthread_mutex_unlock(&d->lock);
		cache_tend(c->cache, SCRUB_BYTES);
		pthread_mutex_lock(&d->lock);
		if (!d->stopping)
			cond_wait_until(&d->stop, &d->lock, monotonic_ns() + TEND_NS);
	}
	return NULL;
}

static const char *reason(int error)
{
	switch (error) {
	case -ENOTEMPTY: return "it holds something else than a cache; name an empty directory, or a new one";
	case -EPROTONOSUPPORT: return "it is the cache of another version of EpochFS; empty it, or name another directory";
	default: return strerror(-error);
	}
}

int disk_open(struct client *c, const struct client_options *o, char *error, size_t error_size)
{
	struct cache_options options = { .dirs = o->cache_dirs,
					 .dir_count = o->cache_dir_count,
					 .size = o->cache_size,
					 .min_free = o->cache_min_free,
					 .clock = &clock_system };
	struct cache_share share = { c->volume_id, o->cache_share };
	struct disk *d = &c->disk;
	int bad = 0, r;

	if (!o->cache_dir_count)
		return 0;
	if (!c->store_known) {
		snprintf(error, error_size,
			 "the server does not say whose data it serves, so nothing of it can be kept; install the same "
			 "release there, or mount without --cache-dir");
		return -EPROTONOSUPPORT;
	}
	if (share.percent) {
		options.shares = &share;
		options.share_count = 1;
	}
	memcpy(options.store, c->store, sizeof(options.store));
	r = cache_open(&options, &c->cache, &bad);
	if (r < 0) {
		snprintf(error, error_size, "cannot use the cache directory %s: %s", o->cache_dirs[bad], reason(r));
		return r;
	}
	pthread_mutex_init(&d->lock, NULL);
	cond_init_monotonic(&d->stop);
	r = -pthread_create(&d->thread, NULL, disk_run, c);
	d->started = r == 0;
	if (r < 0)
		snprintf(error, error_size, "not enough threads for the cache: %s", strerror(-r));
	return r;
}

int client_cache_error(struct client *c, int dir)
{
	struct cache_dir_stats d;

	if (!c->cache)
		return -ENOENT;
	cache_dir_stats(c->cache, dir, &d);
	return d.in_use ? 0 : d.error ? -d.error : -EIO;
}

void disk_close(struct client *c)
{
	struct disk *d = &c->disk;
	struct cache_stats s;

	if (!c->cache)
		return;
	pthread_mutex_lock(&d->lock);
	d->stopping = true;
	pthread_cond_signal(&d->stop);
	pthread_mutex_unlock(&d->lock);
	if (d->started)
		pthread_join(d->thread, NULL);
	pthread_cond_destroy(&d->stop);
	pthread_mutex_destroy(&d->lock);
	cache_stats(c->cache, &s);
	log_info("volume %s: of %lu reads of the cache %lu were hits; %lu entries were added, %lu evicted, %lu found damaged",
		 c->volume.name, (unsigned long)(s.hits + s.misses), (unsigned long)s.hits, (unsigned long)s.adds,
		 (unsigned long)s.evictions, (unsigned long)s.damaged);
	cache_close(c->cache);
	c->cache = NULL;
}
