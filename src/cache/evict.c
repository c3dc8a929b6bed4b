/* Who goes.
 *
 * The directory itself is the index: a hand goes round the buckets, whose names say which
 * keys they hold, and whose cells say how old they are.  A search looks at 16 buckets or
 * 4096 names at most and keeps the oldest of those that may go for the next times; one in vain is not
 * repeated within a tick (room.c).  With a million entries that is some milliseconds
 * every 1/64 of the cache's size that is requested, while nobody is out of use; and 20 µs an entry
 * that goes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "cache/state.h"

#define SEARCH_BUCKETS 16u
#define SEARCH_NAMES 4096u
#define VICTIMS 512u
#define CHOICE 64u

static bool may_go(struct cache_dir *d, uint64_t hash, const struct cache_newcomer *n, uint32_t *age)
{
	bool told;
	*age = cache_usage_age(d, hash, &told);
	if (told && n->level <= LEVEL_TOLD && *age <= cache_usage_limit(d))
		return false;
	return n->level != LEVEL_AGED || *age > n->limit;
}

/* Where most are pinned, or of other volumes, it is worth a look whether this one is. */
static bool is_wanted(int bucket_fd, const char *name, const struct cache_key *key, const struct cache_newcomer *n,
		      bool only_its_volume)
{
	struct stat st;
	if (n->level < LEVEL_ANY && !only_its_volume)
		return true;
	if (fstatat(bucket_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || (n->level == LEVEL_ANY && (st.st_mode & CACHE_PINNED)))
		return false;
	return !only_its_volume || n->volume == (key->kind == 'f' ? key->volume : (uint32_t)st.st_mtime);
}

static int by_age(const void *a, const void *b)
{
	const struct cache_victim *x = a, *y = b;
	return x->age < y->age ? -1 : x->age > y->age;
}

static unsigned bucket_search(struct cache_dir *d, unsigned bucket, const struct cache_newcomer *n, bool only_its_volume)
{
	DIR *stream = cache_bucket_list(d, bucket);
	uint32_t age;
	unsigned looked = 0;
	struct dirent *entry;
	while (stream && d->victim_count < VICTIMS && (entry = readdir(stream))) {
		struct cache_key key;
		char letter = cache_name_parse(entry->d_name, &key);
		if (letter != 'o' && letter != 'f')
			continue;
		uint64_t hash = cache_key_hash(&key);
		looked++;
		if (cache_key_bucket(hash) != bucket || !may_go(d, hash, n, &age) ||
		    !is_wanted(dirfd(stream), entry->d_name, &key, n, only_its_volume))
			continue;
		struct cache_victim *v = &d->victims[d->victim_count++];
		*v = (struct cache_victim){ .hash = hash, .age = age };
		memcpy(v->name, entry->d_name, strlen(entry->d_name) + 1);
	}
	if (stream)
		closedir(stream);
	return looked;
}

/* Those out of use are looked for a little at a time: the hand goes on the next time.  Where all but the told may go,
 * some are needed to choose from; for min_free or a smaller size any at all. */
static bool is_enough(const struct cache_dir *d, enum cache_level level, unsigned looked, unsigned buckets)
{
	if (level == LEVEL_AGED)
		return looked >= SEARCH_NAMES || buckets >= SEARCH_BUCKETS;
	if (level >= LEVEL_ANY && d->victim_count == 0)
		return false;
	return looked >= SEARCH_NAMES || d->victim_count >= CHOICE;
}

/* Fills the list, the oldest last.  Where not only those out of use may go, just the older half of those seen does. */
static void search(struct cache_dir *d, const struct cache_newcomer *n, bool only_its_volume)
{
	unsigned looked = 0, buckets = 0;
	d->victim_count = 0;
	d->victims_level = n->level;
	if (!d->victims && !(d->victims = malloc(VICTIMS * sizeof *d->victims)))
		return;
	for (unsigned i = 0; i < CACHE_BUCKETS && !is_enough(d, n->level, looked, buckets); i++) {
		unsigned bucket = d->hand++ % CACHE_BUCKETS;
		if (atomic_load(&d->state->buckets[bucket].entries) == 0)
			continue;
		looked += bucket_search(d, bucket, n, only_its_volume);
		buckets++;
	}
	qsort(d->victims, d->victim_count, sizeof *d->victims, by_age);
	if (n->level != LEVEL_AGED && d->victim_count > CHOICE / 2) {
		unsigned half = d->victim_count / 2;
		memmove(d->victims, d->victims + d->victim_count - half, half * sizeof *d->victims);
		d->victim_count = half;
	}
}

/* ---- Removing one ---- */

/* Of what has no name any more the space is to be free before it is counted so.  Others may have an object open, and
 * notice.  Somebody may have given it another name, outside: then it is his. */
static void backing_free(struct cache_dir *d, int fd)
{
	struct stat st;
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 0 && ftruncate(fd, 0) < 0)
		cache_dir_error(d, errno);
}

static int64_t object_remove(struct cache_dir *d, int bucket_fd, const char *name, const struct cache_key *key,
			     enum cache_level level)
{
	struct stat st;
	CLEANUP_FD int fd = openat(bucket_fd, name, O_WRONLY | CACHE_OPEN_FLAGS);
	if (fstatat(bucket_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	if ((st.st_mode & CACHE_PINNED) && level < LEVEL_ALL)
		return -EBUSY;
	if (unlinkat(bucket_fd, name, 0) < 0)
		return cache_dir_error(d, errno);
	if (memcmp(key->store, d->cache->options.store, CACHE_STORE_ID) == 0)
		descriptor_forget(&d->objects, key->id);
	backing_free(d, fd);
	int64_t bytes = cache_blocks((uint64_t)st.st_size) + CACHE_ENTRY_BYTES;
	cache_room_removed(d, cache_key_bucket(cache_key_hash(key)), key->store, (uint32_t)st.st_mtime, bytes, 1);
	return bytes;
}

/* Whoever uses a backing file holds a shared lock on it. */
static int64_t file_remove(struct cache_dir *d, int bucket_fd, const char *name, const struct cache_key *key,
			   enum cache_level level)
{
	char map_name[CACHE_NAME];
	struct stat st, map;
	CLEANUP_FD int fd = openat(bucket_fd, name, O_RDWR | CACHE_OPEN_FLAGS);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	if (((st.st_mode & CACHE_PINNED) && level < LEVEL_ALL) || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return -EBUSY;
	cache_name_make(map_name, 'm', key);
	int64_t bytes = (int64_t)st.st_blocks * 512 + CACHE_ENTRY_BYTES;
	if (fstatat(bucket_fd, map_name, &map, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(map.st_mode) &&
	    unlinkat(bucket_fd, map_name, 0) == 0)
		bytes += cache_blocks((uint64_t)map.st_size) + CACHE_ENTRY_BYTES;
	if (unlinkat(bucket_fd, name, 0) < 0)
		return cache_dir_error(d, errno);
	backing_free(d, fd);
	cache_room_removed(d, cache_key_bucket(cache_key_hash(key)), key->store, key->volume, bytes, 1);
	return bytes;
}

int64_t cache_remove(struct cache_dir *d, int bucket_fd, const struct cache_key *key, enum cache_level level)
{
	char name[CACHE_NAME];
	cache_name_make(name, (char)key->kind, key);
	return key->kind == 'o' ? object_remove(d, bucket_fd, name, key, level) : file_remove(d, bucket_fd, name, key, level);
}

static int64_t victim_remove(struct cache_dir *d, const struct cache_victim *v, const struct cache_newcomer *n)
{
	struct cache_key key;
	uint32_t age;
	/* It may have been used since it was found. */
	if (!cache_name_parse(v->name, &key) || !may_go(d, v->hash, n, &age))
		return 0;
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, cache_key_bucket(v->hash), false);
	int64_t freed = bucket_fd < 0 ? 0 : cache_remove(d, bucket_fd, &key, n->level);
	if (freed > 0)
		atomic_fetch_add(&d->cache->evictions, 1);
	return freed > 0 ? freed : 0;
}

int64_t cache_evict(struct cache_dir *d, int64_t bytes, const struct cache_newcomer *n, bool only_its_volume)
{
	int64_t freed = 0;
	if (n->level != d->victims_level || only_its_volume)
		d->victim_count = 0;
	for (int searches = 0; freed < bytes; searches++) {
		if (d->victim_count == 0) {
			/* The second one goes where the first one, which may have found a few that are in use, did not look. */
			if (searches == 2)
				break;
			search(d, n, only_its_volume);
		}
		while (d->victim_count > 0 && freed < bytes)
			freed += victim_remove(d, &d->victims[--d->victim_count], n);
	}
	if (only_its_volume)
		d->victim_count = 0; /* chosen by volume: not for others */
	return freed;
}
