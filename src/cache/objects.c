/* Objects in the cache.  A file holds the object's bytes and, after them,
 *
 *   trailer (32 bytes): "EPCOBJ1\n" | object id le64 | size le64 | XXH3-64 of the store id and the 24 bytes before, le64
 *
 * so that one that a crash cut off or that somebody misplaced is recognised when it is
 * opened.  Nothing is synced: what a crash damages, the reader's checksums find.
 *
 * read (1 system call if it is among the open ones): preadv.  Otherwise: open and close the bucket,
 * openat, fstat, pread of the trailer, fstat, preadv, and a close later.
 *
 * add (9 system calls, and one for each MiB after the first): open and close the bucket, fstatat, openat of a temporary name, pwritev,
 * pwritev of the trailer, futimens, close, renameat2. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "block/object.h"
#include "cache/parts.h"
#include "cache/state.h"

#define TRAILER 32u
static const uint8_t trailer_text[8] = "EPCOBJ1\n";

static struct cache_key key_of(const struct cache *c, uint64_t object)
{
	struct cache_key k = { .id = object, .kind = 'o' };
	memcpy(k.store, c->options.store, sizeof k.store);
	return k;
}

static void trailer_make(const struct cache_key *k, uint64_t size, uint8_t out[TRAILER])
{
	uint8_t bytes[CACHE_STORE_ID + TRAILER];
	memcpy(bytes, k->store, CACHE_STORE_ID);
	memcpy(out, trailer_text, sizeof trailer_text);
	put_le64(out + 8, k->id);
	put_le64(out + 16, size);
	memcpy(bytes + CACHE_STORE_ID, out, 24);
	put_le64(out + 24, XXH3_64bits(bytes, CACHE_STORE_ID + 24));
}

/* Removes it, in whatever state it is. */
static void object_discard(struct cache_dir *d, const struct cache_key *key)
{
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, cache_key_bucket(cache_key_hash(key)), false);
	descriptor_forget(&d->objects, key->id);
	atomic_fetch_add(&d->cache->damaged, 1);
	log_warn("cache: object %016jx in %s is damaged; dropped", (uintmax_t)key->id, d->path);
	if (bucket_fd >= 0 && cache_removal_begin(d)) {
		/* It may be of another size than when it was added. */
		if (cache_remove(d, bucket_fd, key, LEVEL_ALL) > 0)
			cache_room_doubt(d);
		cache_removal_end(d);
	}
}

/* 0, -EBADMSG: not what it should be. */
static int trailer_check(int fd, const struct cache_key *key)
{
	struct stat st;
	uint8_t is[TRAILER], should[TRAILER];
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	if (st.st_size < (off_t)TRAILER || pread(fd, is, TRAILER, st.st_size - TRAILER) != (ssize_t)TRAILER)
		return -EBADMSG;
	trailer_make(key, (uint64_t)st.st_size - TRAILER, should);
	return memcmp(is, should, TRAILER) == 0 ? 0 : -EBADMSG;
}

static struct descriptor *object_open(struct cache_dir *d, const struct cache_key *key, uint64_t hash)
{
	char name[CACHE_NAME];
	struct descriptor *found = descriptor_find(&d->objects, key->id);
	if (found)
		return found;
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, cache_key_bucket(hash), false);
	if (bucket_fd < 0) {
		cache_dir_error(d, -bucket_fd);
		return NULL;
	}
	cache_name_make(name, 'o', key);
	int fd = openat(bucket_fd, name, O_RDONLY | CACHE_OPEN_FLAGS);
	if (fd < 0) {
		cache_dir_error(d, errno);
		return NULL;
	}
	int error = trailer_check(fd, key);
	if (!error)
		return descriptor_add(&d->objects, key->id, fd);
	close(fd);
	if (error == -EBADMSG)
		object_discard(d, key);
	return NULL;
}

static int object_read(struct cache_dir *d, const struct cache_key *key, uint64_t hash, uint64_t offset, const struct iovec *into,
		       int count)
{
	struct descriptor *o = object_open(d, key, hash);
	size_t length = cache_parts_bytes(into, count);
	if (!o)
		return -ENOENT;
	int error = -ERANGE;
	if (o->size >= TRAILER && offset <= o->size - TRAILER && length <= o->size - TRAILER - offset)
		error = cache_parts_transfer(preadv, o->fd, into, count, offset);
	if (error && error != -ERANGE)
		descriptor_forget(&d->objects, key->id);
	descriptor_put(&d->objects, o);
	return error;
}

static int object_read_here(struct cache_dir *d, const struct cache_key *key, uint64_t hash, uint64_t offset,
			    const struct iovec *into, int count)
{
	int error = object_read(d, key, hash, offset, into, count);
	/* Another process evicted the one we had open: there may be a new one. */
	if (error == -ENODATA)
		error = object_read(d, key, hash, offset, into, count);
	/* A sector that cannot be read: the others can. */
	if (error == -EIO)
		object_discard(d, key);
	return error;
}

int cache_object_read(struct cache *c, uint64_t object, uint64_t offset, const struct iovec *into, int count)
{
	struct cache_key key = key_of(c, object);
	uint64_t hash = cache_key_hash(&key);
	struct cache_dir *d = cache_dir_enter(c, hash);
	int error = -ENOENT;
	if (d) {
		uint32_t interval = cache_usage_touch(d, hash, cache_parts_bytes(into, count));
		error = object_read_here(d, &key, hash, offset, into, count);
		if (error)
			cache_usage_miss(d, hash, interval);
		cache_dir_leave(d);
	}
	atomic_fetch_add(error ? &c->misses : &c->hits, 1);
	return error ? -ENOENT : 0;
}

int cache_object_peek(struct cache *c, uint64_t object, uint64_t offset, const struct iovec *into, int count)
{
	struct cache_key key = key_of(c, object);
	uint64_t hash = cache_key_hash(&key);
	struct cache_dir *d = cache_dir_enter(c, hash);
	int error = -ENOENT;
	if (d) {
		error = object_read_here(d, &key, hash, offset, into, count);
		cache_dir_leave(d);
	}
	return error ? -ENOENT : 0;
}

static bool object_mark(int bucket_fd, const char *name, bool pinned)
{
	CLEANUP_FD int fd = openat(bucket_fd, name, O_RDONLY | CACHE_OPEN_FLAGS);
	struct stat st;
	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && fchmod(fd, CACHE_MODE | (pinned ? CACHE_PINNED : 0)) == 0;
}

static bool object_is_there(struct cache_dir *d, int bucket_fd, const char *name, uint64_t hash, unsigned flags)
{
	struct stat st;
	if (fstatat(bucket_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return false;
	if (flags & CACHE_TOLD)
		cache_usage_tell(d, hash);
	if ((flags & CACHE_PIN) && !(st.st_mode & CACHE_PINNED))
		return object_mark(bucket_fd, name, true);
	return true;
}

bool cache_object_has(struct cache *c, uint64_t object, unsigned flags)
{
	struct cache_key key = key_of(c, object);
	uint64_t hash = cache_key_hash(&key);
	struct cache_dir *d = cache_dir_enter(c, hash);
	char name[CACHE_NAME];
	if (!d)
		return false;
	cache_name_make(name, 'o', &key);
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, cache_key_bucket(hash), false);
	bool there = bucket_fd >= 0 && object_is_there(d, bucket_fd, name, hash, flags);
	cache_dir_leave(d);
	return there;
}

void cache_object_unpin(struct cache *c, uint64_t object)
{
	struct cache_key key = key_of(c, object);
	uint64_t hash = cache_key_hash(&key);
	struct cache_dir *d = cache_dir_enter(c, hash);
	char name[CACHE_NAME];
	if (!d)
		return;
	cache_name_make(name, 'o', &key);
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, cache_key_bucket(hash), false);
	if (bucket_fd >= 0)
		object_mark(bucket_fd, name, false);
	cache_dir_leave(d);
}

void cache_object_drop(struct cache *c, uint64_t object)
{
	struct cache_key key = key_of(c, object);
	struct cache_dir *d = cache_dir_enter(c, cache_key_hash(&key));
	if (!d)
		return;
	object_discard(d, &key);
	cache_dir_leave(d);
}

static int object_fill(int fd, uint32_t volume, const struct cache_key *key, const struct iovec *parts, int count, size_t size)
{
	uint8_t trailer[TRAILER];
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = volume } };
	trailer_make(key, size, trailer);
	int error = cache_parts_transfer(cache_write_some, fd, parts, count, 0);
	if (!error)
		error = cache_pwrite(fd, trailer, TRAILER, size);
	return error ? error : futimens(fd, times) < 0 ? -errno : 0;
}

/* Two file systems in a thousand know no RENAME_NOREPLACE; there the same bytes replace each other. */
static int object_name(int bucket_fd, const char *temp, const char *name)
{
	if (renameat2(bucket_fd, temp, bucket_fd, name, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	return renameat(bucket_fd, temp, bucket_fd, name) < 0 ? -errno : 0;
}

static int object_write(struct cache_dir *d, int bucket_fd, const char *name, uint32_t volume, const struct cache_key *key,
			const struct iovec *parts, int count, unsigned flags)
{
	char temp[CACHE_NAME];
	cache_dir_temp(d, 't', temp);
	int fd = openat(bucket_fd, temp, O_WRONLY | O_CREAT | O_EXCL | CACHE_OPEN_FLAGS,
			CACHE_MODE | (flags & CACHE_PIN ? CACHE_PINNED : 0));
	if (fd < 0)
		return cache_dir_error(d, errno);
	int error = object_fill(fd, volume, key, parts, count, cache_parts_bytes(parts, count));
	close(fd);
	if (!error)
		error = object_name(bucket_fd, temp, name);
	if (error) {
		cache_dir_error(d, -error);
		(void)unlinkat(bucket_fd, temp, 0);
	}
	return error;
}

static struct cache_newcomer newcomer_of(struct cache_dir *d, uint32_t volume, uint64_t hash, unsigned flags)
{
	return (struct cache_newcomer){ volume, flags ? LEVEL_TOLD : LEVEL_AGED,
					cache_usage_limit_for(d, cache_usage_missed(d, hash)) };
}

static int object_add(struct cache_dir *d, uint32_t volume, const struct cache_key *key, uint64_t hash, const struct iovec *parts,
		      int count, unsigned flags)
{
	char name[CACHE_NAME];
	unsigned bucket = cache_key_bucket(hash);
	int64_t bytes = cache_blocks(cache_parts_bytes(parts, count) + TRAILER) + CACHE_ENTRY_BYTES;
	cache_name_make(name, 'o', key);
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, bucket, false);
	if (bucket_fd >= 0 && object_is_there(d, bucket_fd, name, hash, flags))
		return -EEXIST;
	struct cache_newcomer n = newcomer_of(d, volume, hash, flags);
	int error = cache_room_take(d, bytes, &n);
	if (error)
		return error;
	if (bucket_fd == -ENOENT)
		bucket_fd = cache_bucket_open(d, bucket, true);
	error = bucket_fd < 0 ? cache_dir_error(d, -bucket_fd)
			      : object_write(d, bucket_fd, name, volume, key, parts, count, flags);
	if (error) {
		cache_room_give(d, bytes);
		return error;
	}
	cache_room_keep(d, bucket, key->store, volume, bytes, 1);
	if (flags & CACHE_TOLD)
		cache_usage_tell(d, hash);
	atomic_fetch_add(&d->cache->adds, 1);
	return 0;
}

int cache_object_add(struct cache *c, uint32_t volume, uint64_t object, const struct iovec *parts, int count, unsigned flags)
{
	struct cache_key key = key_of(c, object);
	uint64_t hash = cache_key_hash(&key);
	if (cache_parts_bytes(parts, count) > OBJECT_SIZE_MAX)
		return -EFBIG;
	struct cache_dir *d = cache_dir_enter(c, hash);
	if (!d)
		return -ENOSPC;
	int error = object_add(d, volume, &key, hash, parts, count, flags);
	cache_dir_leave(d);
	return error;
}

bool cache_object_wanted(struct cache *c, uint32_t volume, uint64_t object, uint64_t size, unsigned flags)
{
	struct cache_key key = key_of(c, object);
	uint64_t hash = cache_key_hash(&key);
	struct cache_dir *d = cache_dir_enter(c, hash);
	if (!d)
		return false;
	struct cache_newcomer n = newcomer_of(d, volume, hash, flags);
	int64_t bytes = cache_blocks(size + TRAILER) + CACHE_ENTRY_BYTES;
	int error = cache_room_take(d, bytes, &n);
	if (!error)
		cache_room_give(d, bytes);
	cache_dir_leave(d);
	return !error;
}
