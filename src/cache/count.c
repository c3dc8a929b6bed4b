/* Counting what is there.
 *
 * A bucket is counted by looking at each of its files, with the removal lock; the same
 * look removes what a killed process left.  All are counted soon when there is doubt
 * (another boot, a process that died, a sum that makes no sense); one every 5 s
 * otherwise, so that whatever went wrong unnoticed is right again in 20 minutes.
 *
 * Adding does not wait for that.  What is added between the look and the correction is
 * counted twice until the next time: too much, which is the harmless side. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/state.h"

#define BUCKET_NS (5 * NS_PER_S)
#define COUNTING_BYTE 1024     /* of the state file: locked by the process that counts all */
#define DOUBT_BYTES (16 << 20) /* a bucket wrong by more than that: so are others */

struct tally {
	struct cache_dir *dir;
	int bucket_fd;
	unsigned bucket;
	int64_t bytes, entries;
	int64_t *volumes; /* may be NULL */
	int error;        /* an errno: not all could be looked at */
};

static bool is_in_use(int bucket_fd, const char *name)
{
	CLEANUP_FD int fd = openat(bucket_fd, name, O_RDONLY | CACHE_OPEN_FLAGS);
	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

/* What a process left that was killed, and old versions that nobody uses any more. */
static bool is_left(struct tally *t, const char *name)
{
	struct cache_temp temp;
	char letter = cache_temp_parse(name, &temp);
	if (letter == 't')
		return !cache_slot_alive(t->dir, temp.slot, temp.nonce);
	return letter == 's' && !is_in_use(t->bucket_fd, name);
}

static bool is_missing(struct tally *t, char letter, const struct cache_key *key)
{
	char name[CACHE_NAME];
	struct stat st;
	cache_name_make(name, letter, key);
	return fstatat(t->bucket_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* A backing file without a map, or the other way round.  Nobody makes one at the moment. */
static bool is_half(struct tally *t, char letter, const struct cache_key *key, const char *name)
{
	if (letter == 'm')
		return is_missing(t, 'f', key);
	return letter == 'f' && is_missing(t, 'm', key) && !is_in_use(t->bucket_fd, name);
}

static void volume_add(struct tally *t, const uint8_t store[CACHE_STORE_ID], uint32_t volume, int64_t bytes)
{
	struct cache_volume *v = t->volumes ? cache_volume_of(t->dir, store, volume) : NULL;
	if (v)
		t->volumes[v - t->dir->state->volumes] += bytes;
}

static int64_t entry_bytes(char letter, const struct stat *st)
{
	bool by_size = letter == 'o' || letter == 'm'; /* the same as when it was added, whatever the file system makes of it */
	return (by_size ? cache_blocks((uint64_t)st->st_size) : (int64_t)st->st_blocks * 512) + CACHE_ENTRY_BYTES;
}

static void entry_count(struct tally *t, const char *name)
{
	struct cache_key key;
	struct cache_temp temp;
	struct stat st;
	char letter = cache_name_parse(name, &key);
	if (letter && cache_key_bucket(cache_key_hash(&key)) != t->bucket)
		return;
	if (!letter && !cache_temp_parse(name, &temp))
		return;
	if (fstatat(t->bucket_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		t->error = errno == ENOENT ? t->error : errno; /* somebody deleted it */
		return;
	}
	if (!S_ISREG(st.st_mode))
		return;
	if ((letter ? is_half(t, letter, &key, name) : is_left(t, name)) && unlinkat(t->bucket_fd, name, 0) == 0)
		return;
	/* Those being written are reserved for; they are counted here only while nobody lives to give that back. */
	if (!letter && *name == 't')
		return;
	int64_t bytes = entry_bytes(letter, &st);
	t->bytes += bytes;
	t->entries += letter == 'o' || letter == 'f';
	if (letter)
		volume_add(t, key.store, letter == 'o' ? (uint32_t)st.st_mtime : key.volume, bytes);
}

/* A bucket that is not there, or no folder, holds nothing. */
static bool is_no_bucket(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

static void bucket_tally(struct tally *t)
{
	struct dirent *entry;
	struct stat st;
	errno = 0;
	DIR *stream = cache_bucket_list(t->dir, t->bucket);
	if (!stream) {
		t->error = is_no_bucket(errno) ? 0 : errno;
		return;
	}
	t->bucket_fd = dirfd(stream);
	if (fstat(t->bucket_fd, &st) == 0)
		t->bytes += (int64_t)st.st_blocks * 512;
	while ((errno = 0, entry = readdir(stream)))
		entry_count(t, entry->d_name);
	t->error = errno ? errno : t->error;
	closedir(stream);
}

/* False: not now.  Another process has the removal lock, for long, or not all could be looked at. */
static bool bucket_count(struct cache_dir *d, unsigned bucket, int64_t *volumes)
{
	struct cache_bucket *b = &d->state->buckets[bucket];
	int64_t before[CACHE_VOLUMES];
	struct tally t = { .dir = d, .bucket = bucket, .volumes = volumes };
	if (!cache_removal_begin(d))
		return false;
	if (volumes)
		memcpy(before, volumes, sizeof before);
	bucket_tally(&t);
	if (t.error) {
		if (volumes)
			memcpy(volumes, before, sizeof before);
		cache_removal_end(d);
		/* Without a count nothing can be added: one that cannot be made is a failure of the directory. */
		cache_dir_error(d, t.error == EACCES || t.error == EPERM ? EIO : t.error);
		return false;
	}
	uint64_t off = (uint64_t)atomic_exchange(&b->bytes, t.bytes) - (uint64_t)t.bytes + DOUBT_BYTES;
	atomic_store(&b->entries, t.entries);
	cache_removal_end(d);
	if (!volumes && off > 2 * (uint64_t)DOUBT_BYTES)
		cache_room_doubt(d);
	return true;
}

static bool counting_lock(struct cache_dir *d, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = COUNTING_BYTE, .l_len = 1 };
	return fcntl(d->state_fd, F_OFD_SETLK, &lock) == 0;
}

static void count_begin(struct cache_dir *d)
{
	if (!counting_lock(d, F_WRLCK))
		return;
	d->count = (struct cache_count){ .running = true, .doubts = atomic_load(&d->state->doubts) };
	for (unsigned i = 0; i < CACHE_SLOTS; i++) {
		uint64_t nonce = atomic_load(&d->state->slots[i].nonce);
		d->count.dead[i] = nonce && !cache_slot_alive(d, i, nonce) ? nonce : 0;
	}
}

/* Whatever the dead reserved is now either counted or was never written.  With the removal lock, which whoever takes a
 * slot has, too. */
static void slots_clean(struct cache_dir *d)
{
	struct cache_state *s = d->state;
	for (unsigned i = 0; i < CACHE_SLOTS; i++) {
		struct cache_slot *slot = &s->slots[i];
		if (d->count.dead[i] && atomic_load(&slot->nonce) == d->count.dead[i]) {
			atomic_store(&slot->reserved, 0);
			atomic_compare_exchange_strong(&slot->nonce, &d->count.dead[i], 0);
		} else if (atomic_load(&slot->nonce) == 0) {
			atomic_store(&slot->reserved, 0);
		}
	}
}

static void count_end(struct cache_dir *d)
{
	struct cache_state *s = d->state;
	if (!cache_removal_begin(d))
		return;
	slots_clean(d);
	cache_removal_end(d);
	for (unsigned i = 0; i < CACHE_VOLUMES; i++)
		atomic_store(&s->volumes[i].bytes, d->count.volumes[i]);
	atomic_store(&s->settled, d->count.doubts);
	atomic_store(&s->boot, d->cache->boot);
	d->count.running = false;
	counting_lock(d, F_UNLCK);
	log_debug("cache: %s holds %jd bytes", d->path, (intmax_t)cache_room_used(d));
}

static bool somebody_died(struct cache_dir *d)
{
	for (unsigned i = 0; i < CACHE_SLOTS; i++) {
		uint64_t nonce = atomic_load(&d->state->slots[i].nonce);
		if (nonce && !cache_slot_alive(d, i, nonce))
			return true;
	}
	return false;
}

void cache_count_tend(struct cache_dir *d, int64_t budget_ns)
{
	struct cache_state *s = d->state;
	int64_t began = clock_steady_ns(), now = clock_read(d->cache->options.clock);
	if (!d->count.running &&
	    (atomic_load(&s->doubts) != atomic_load(&s->settled) || !cache_room_trusted(d) || somebody_died(d)))
		count_begin(d);
	while (d->count.running && clock_steady_ns() - began <= budget_ns) {
		if (d->count.next == CACHE_BUCKETS)
			count_end(d);
		else if (bucket_count(d, d->count.next, d->count.volumes))
			d->count.next++;
		else
			return;
	}
	int64_t since = now - atomic_load(&s->counted_ns);
	if (d->count.running || (since >= 0 && since < BUCKET_NS))
		return;
	atomic_store(&s->counted_ns, now);
	bucket_count(d, (unsigned)(atomic_fetch_add(&s->next_bucket, 1) % CACHE_BUCKETS), NULL);
}

/* ---- What is pinned ---- */

/* Nobody counts these: the bit is in the files alone, so that a killed process leaves nothing that is wrong. */
static int entry_pinned(int bucket_fd, unsigned bucket, const char *name, uint64_t *bytes)
{
	struct cache_key key;
	struct stat st;
	char letter = cache_name_parse(name, &key);
	if ((letter != 'o' && letter != 'f') || cache_key_bucket(cache_key_hash(&key)) != bucket)
		return 0;
	if (fstatat(bucket_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno; /* somebody deleted it */
	if (S_ISREG(st.st_mode) && (st.st_mode & CACHE_PINNED))
		*bytes += (uint64_t)entry_bytes(letter, &st);
	return 0;
}

static int bucket_pinned(struct cache_dir *d, unsigned bucket, uint64_t *bytes)
{
	struct dirent *entry;
	int error = 0;
	DIR *stream = cache_bucket_list(d, bucket);
	if (!stream)
		return is_no_bucket(errno) ? 0 : -errno;
	while (!error && (errno = 0, entry = readdir(stream)))
		error = entry_pinned(dirfd(stream), bucket, entry->d_name, bytes);
	if (!error)
		error = -errno;
	closedir(stream);
	return error;
}

static int dir_pinned(struct cache_dir *d, int64_t deadline_ns, uint64_t *out)
{
	uint64_t bytes = 0;
	if (!atomic_load(&d->in_use))
		return -ENODEV;
	for (unsigned i = 0; i < CACHE_BUCKETS; i++) {
		int error = clock_steady_ns() > deadline_ns ? -ETIMEDOUT : bucket_pinned(d, i, &bytes);
		if (error)
			return error;
	}
	*out = bytes;
	return 0;
}

int cache_dir_pinned(struct cache *c, int dir, int64_t deadline_ns, uint64_t *out)
{
	struct cache_dir *d = &c->dirs[dir];
	pthread_rwlock_rdlock(&d->lock);
	int error = dir_pinned(d, deadline_ns, out);
	pthread_rwlock_unlock(&d->lock);
	return error;
}
