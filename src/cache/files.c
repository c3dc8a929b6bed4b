/* Files in the cache: opening, making and removing them.  The backing file has the size of the file from
 * the beginning, and holes where chunks are absent.  Its map:
 *
 *   header (80 bytes, little-endian):
 *     0 "EPCMAP2\n" | 8 store id | 24 volume 32 | 28 flags 32 (1: whole) | 32 inode 64 | 40 version 64 | 48 size 64
 *     56 inode number of the backing file 64 | 64 its mtime, ns, when it was marked as whole, else 0, 64 | 72 XXH3-64 of the
 *     72 bytes before 64
 *   then for each chunk  XXH3-64 of its bytes, le64; 0: absent (a checksum of 0 is stored as 1)
 *
 * The map is read and written, never mapped: somebody who cuts it off would be a SIGBUS.
 *
 * `whole` is written only after all chunks were verified and synced, and is synced itself.
 * So it can be trusted after a crash, unless the backing file has another mtime by now: somebody has written to it.  Of
 * such a file the first MiB is verified when it is first opened in a process, and the rest by and by (scrub.c).  Of any other file each chunk is
 * verified when it is first read: a crash may have kept the checksum and lost the data.
 *
 * There is one version of a file.  A backing file is made under a temporary name and gets its own
 * when the map is complete, all with the removal lock.  Whoever uses it has a shared lock
 * (flock) on the description that cache_file_whole gives out, so that it stays locked while
 * the kernel passes it through; such a file is not evicted.  When a newer version is
 * opened, it loses its map and becomes s-..., which a count removes once it is unlocked.  So does
 * one that is detached, because its content changes under those it is passed through to. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/map.h"
#include "cache/parts.h"
#include "cache/state.h"

#define HEADER_WHOLE 1u
#define FILE_MAX ((uint64_t)16 << 40) /* 32 MiB of `verified` */
#define FIRST_CHUNKS ((1u << 20) / CACHE_CHUNK)
#define LOCK_PATIENCE_MS 20

static const uint8_t header_text[8] = "EPCMAP2\n";

static int64_t mtime_of(const struct stat *st) { return (int64_t)st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec; }

static void header_make(const struct cache_file *f, uint64_t backing_inode, bool whole, int64_t mtime_ns, uint8_t out[MAP_HEADER])
{
	memcpy(out, header_text, sizeof header_text);
	memcpy(out + 8, f->key.store, CACHE_STORE_ID);
	put_le32(out + 24, f->key.volume);
	put_le32(out + 28, whole ? HEADER_WHOLE : 0);
	put_le64(out + 32, f->key.id);
	put_le64(out + 40, f->version);
	put_le64(out + 48, f->size);
	put_le64(out + 56, backing_inode);
	put_le64(out + 64, whole ? (uint64_t)mtime_ns : 0);
	put_le64(out + MAP_HEADER - 8, XXH3_64bits(out, MAP_HEADER - 8));
}

/* Takes over version, size and whether it is whole, if all the rest is as it should be. */
static bool header_take(struct cache_file *f, const struct stat *backing, const uint8_t in[MAP_HEADER])
{
	uint8_t should[MAP_HEADER];
	bool whole = get_le32(in + 28) & HEADER_WHOLE;
	f->version = get_le64(in + 40);
	f->size = get_le64(in + 48);
	int64_t mtime_ns = (int64_t)get_le64(in + 64);
	header_make(f, backing->st_ino, whole, mtime_ns, should);
	f->mtime_ns = mtime_of(backing);
	atomic_store(&f->sealed, whole && mtime_ns == f->mtime_ns);
	return memcmp(in, should, MAP_HEADER) == 0 && f->size > 0 && f->size <= FILE_MAX && (uint64_t)backing->st_size == f->size;
}

int cache_map_mark(struct cache_file *f, bool whole)
{
	uint8_t header[MAP_HEADER];
	struct stat st;
	if (fstat(f->write_fd, &st) < 0)
		return -errno;
	pthread_mutex_lock(&f->touching);
	/* What somebody else has written since is not what was verified. */
	header_make(f, st.st_ino, whole, f->mtime_ns, header);
	pthread_mutex_unlock(&f->touching);
	atomic_store(&f->sealed, whole);
	return cache_pwrite(f->map_fd, header, MAP_HEADER, 0);
}

bool cache_map_is_whole(struct cache_file *f)
{
	uint8_t header[MAP_HEADER];
	struct stat st;
	return cache_pread(f->map_fd, header, MAP_HEADER, 0) == 0 && (get_le32(header + 28) & HEADER_WHOLE) &&
	       get_le64(header + MAP_HEADER - 8) == XXH3_64bits(header, MAP_HEADER - 8) && fstat(f->read_fd, &st) == 0 &&
	       (int64_t)get_le64(header + 64) == mtime_of(&st);
}

/* The lock is held. */
static bool is_untouched(struct cache_file *f)
{
	struct stat st;
	if (fstat(f->read_fd, &st) < 0)
		return false;
	if (f->writers || ((uint64_t)st.st_size == f->size && f->mtime_ns == mtime_of(&st)))
		return true;
	f->mtime_ns = mtime_of(&st);
	return false;
}

bool cache_backing_is_untouched(struct cache_file *f)
{
	LOCKED(&f->touching);
	return is_untouched(f);
}

/* Somebody else may also be another process that fills it at the same time, with the same bytes: that costs both to verify again what
 * they have, before it is whole to them, and no more. */
void cache_backing_write_begin(struct cache_file *f)
{
	LOCKED(&f->touching);
	if (!is_untouched(f))
		cache_chunks_doubt(f);
	f->writers++;
}

void cache_backing_write_end(struct cache_file *f)
{
	struct stat st;
	LOCKED(&f->touching);
	if (--f->writers == 0 && fstat(f->read_fd, &st) == 0)
		f->mtime_ns = mtime_of(&st);
}

bool cache_map_is_void(struct cache_file *f)
{
	uint8_t text[sizeof header_text];
	return cache_pread(f->map_fd, text, sizeof text, 0) != 0 || memcmp(text, header_text, sizeof text) != 0;
}

/* ---- The memory of it ---- */

static uint64_t number_of(const struct cache_key *key, uint64_t version)
{
	return XXH3_64bits_withSeed(key, sizeof *key, version);
}

static struct cache_file *file_new(struct cache_dir *d, const struct cache_key *key)
{
	struct cache_file *f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	f->cache = d->cache;
	f->dir = d;
	f->generation = d->generation;
	f->key = *key;
	f->hash = cache_key_hash(key);
	f->read_fd = f->write_fd = f->map_fd = -1;
	f->users = 1;
	pthread_rwlock_init(&f->changing, NULL);
	pthread_rwlock_init(&f->syncing, NULL);
	pthread_mutex_init(&f->touching, NULL);
	pthread_mutex_init(&f->filling, NULL);
	return f;
}

static void descriptors_close(struct cache_file *f)
{
	int *fds[] = { &f->read_fd, &f->write_fd, &f->map_fd };
	for (int i = 0; i < 3; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

void cache_file_free(struct cache_file *f)
{
	descriptors_close(f);
	pthread_rwlock_destroy(&f->changing);
	pthread_rwlock_destroy(&f->syncing);
	pthread_mutex_destroy(&f->touching);
	pthread_mutex_destroy(&f->filling);
	free((void *)f->verified);
	free(f);
}

/* ---- On the disk ---- */

static bool backing_lock(int fd)
{
	for (int waited = 0; flock(fd, LOCK_SH | LOCK_NB) < 0; waited++) {
		struct timespec pause = { .tv_nsec = NS_PER_MS };
		if ((errno != EWOULDBLOCK && errno != EINTR) || waited >= LOCK_PATIENCE_MS)
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

static int descriptors_open(struct cache_file *f, int bucket_fd)
{
	char name[CACHE_NAME], map_name[CACHE_NAME];
	cache_name_make(name, 'f', &f->key);
	cache_name_make(map_name, 'm', &f->key);
	f->read_fd = openat(bucket_fd, name, O_RDONLY | CACHE_OPEN_FLAGS);
	if (f->read_fd < 0)
		return -errno;
	if (!f->looked_at && !backing_lock(f->read_fd))
		return -EAGAIN;
	f->write_fd = openat(bucket_fd, name, O_RDWR | CACHE_OPEN_FLAGS);
	f->map_fd = openat(bucket_fd, map_name, O_RDWR | CACHE_OPEN_FLAGS);
	return 0;
}

/* 0; -ENOENT: there is none; -EBADMSG: it is not to be used, or was removed just then; -errno. */
static int file_attach(struct cache_file *f, int bucket_fd)
{
	uint8_t header[MAP_HEADER];
	struct stat st, same;
	int error = descriptors_open(f, bucket_fd);
	if (!error && fstat(f->read_fd, &st) < 0)
		error = -errno;
	if (!error && !S_ISREG(st.st_mode))
		error = -EISDIR;
	if (!error && (st.st_nlink == 0 || f->write_fd < 0 || f->map_fd < 0 || fstat(f->write_fd, &same) < 0 ||
		       same.st_ino != st.st_ino || fstat(f->map_fd, &same) < 0 || !S_ISREG(same.st_mode) ||
		       cache_pread(f->map_fd, header, MAP_HEADER, 0) != 0 || !header_take(f, &st, header)))
		error = -EBADMSG;
	if (error)
		descriptors_close(f);
	return error;
}

static int64_t map_bytes(uint64_t size) { return cache_blocks(MAP_HEADER + (size + CACHE_CHUNK - 1) / CACHE_CHUNK * 8); }

/* With the removal lock. */
static void file_retire(struct cache_dir *d, int bucket_fd, const struct cache_key *key)
{
	char name[CACHE_NAME], other[CACHE_NAME];
	struct stat st;
	if (cache_remove(d, bucket_fd, key, LEVEL_ALL) != -EBUSY)
		return;
	cache_name_make(other, 'm', key);
	if (fstatat(bucket_fd, other, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && unlinkat(bucket_fd, other, 0) == 0)
		cache_room_removed(d, cache_key_bucket(cache_key_hash(key)), key->store, key->volume,
				   cache_blocks((uint64_t)st.st_size) + CACHE_ENTRY_BYTES, 1);
	cache_name_make(name, 'f', key);
	cache_dir_temp(d, 's', other);
	if (renameat(bucket_fd, name, bucket_fd, other) < 0)
		cache_dir_error(d, errno);
}

static int map_make(struct cache_file *f, int bucket_fd)
{
	char name[CACHE_NAME];
	uint8_t header[MAP_HEADER];
	struct stat st;
	cache_name_make(name, 'm', &f->key);
	if (fstat(f->write_fd, &st) < 0)
		return -errno;
	/* One without a backing file was left by a crash. */
	if (unlinkat(bucket_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	f->map_fd = openat(bucket_fd, name, O_RDWR | O_CREAT | O_EXCL | CACHE_OPEN_FLAGS, CACHE_MODE);
	if (f->map_fd < 0)
		return -errno;
	f->mtime_ns = mtime_of(&st);
	header_make(f, st.st_ino, false, 0, header);
	int error = cache_pwrite(f->map_fd, header, MAP_HEADER, 0);
	if (!error && ftruncate(f->map_fd, (off_t)(MAP_HEADER + f->chunks * 8)) < 0)
		error = -errno;
	if (error)
		(void)unlinkat(bucket_fd, name, 0);
	return error;
}

/* With the removal lock. */
static int file_make(struct cache_file *f, int bucket_fd, bool pinned)
{
	char temp[CACHE_NAME], name[CACHE_NAME];
	int error = 0;
	cache_dir_temp(f->dir, 't', temp);
	cache_name_make(name, 'f', &f->key);
	f->write_fd = openat(bucket_fd, temp, O_RDWR | O_CREAT | O_EXCL | CACHE_OPEN_FLAGS,
			     CACHE_MODE | (pinned ? CACHE_PINNED : 0));
	if (f->write_fd < 0)
		return -errno;
	f->read_fd = openat(bucket_fd, temp, O_RDONLY | CACHE_OPEN_FLAGS);
	if (f->read_fd < 0 || !backing_lock(f->read_fd) || ftruncate(f->write_fd, (off_t)f->size) < 0)
		error = -errno;
	if (!error)
		error = map_make(f, bucket_fd);
	if (!error && renameat(bucket_fd, temp, bucket_fd, name) < 0)
		error = -errno;
	if (error) {
		(void)unlinkat(bucket_fd, temp, 0);
		descriptors_close(f);
	}
	return error;
}

/* With the removal lock: what is there now, or a new one in place of one that is older or unusable. */
static int file_replace(struct cache_file *f, const struct cache_file_key *key, int bucket_fd, unsigned flags, bool *made)
{
	int error = file_attach(f, bucket_fd);
	if (!error && f->version == key->version && f->size == key->size)
		return 0;
	if (!error && f->version > key->version)
		return -ESTALE;
	if (error && error != -ENOENT && error != -EBADMSG)
		return error;
	descriptors_close(f);
	if (error != -ENOENT)
		file_retire(f->dir, bucket_fd, &f->key);
	f->version = key->version;
	f->size = key->size;
	f->chunks = (key->size + CACHE_CHUNK - 1) / CACHE_CHUNK;
	atomic_store(&f->sealed, false);
	*made = true;
	return file_make(f, bucket_fd, flags & CACHE_PIN);
}

static int file_obtain(struct cache_file *f, const struct cache_file_key *key, unsigned flags)
{
	struct cache_dir *d = f->dir;
	unsigned bucket = cache_key_bucket(f->hash);
	int64_t bytes = map_bytes(key->size) + 2 * CACHE_ENTRY_BYTES;
	bool made = false;
	CLEANUP_FD int bucket_fd = cache_bucket_open(d, bucket, true);
	if (bucket_fd < 0)
		return cache_dir_error(d, -bucket_fd);
	int error = file_attach(f, bucket_fd);
	if (!error && f->version == key->version && f->size == key->size)
		return 0;
	descriptors_close(f);
	struct cache_newcomer n = { key->volume, flags ? LEVEL_TOLD : LEVEL_AGED, cache_usage_limit_for(d, f->interval) };
	error = cache_room_take(d, bytes, &n);
	if (error)
		return error;
	error = cache_removal_begin(d) ? 0 : -EAGAIN;
	if (!error) {
		error = file_replace(f, key, bucket_fd, flags, &made);
		if (!error && made)
			cache_room_keep(d, bucket, f->key.store, f->key.volume, bytes, 1);
		else
			cache_room_give(d, bytes);
		cache_removal_end(d);
	} else {
		cache_room_give(d, bytes);
	}
	return error && error != -ESTALE ? cache_dir_error(d, -error) : error;
}

int cache_file_find(struct cache_dir *d, const struct cache_key *key, struct cache_file **out)
{
	struct cache_file *f = file_new(d, key);
	CLEANUP_FD int bucket_fd = f ? cache_bucket_open(d, cache_key_bucket(f->hash), false) : -1;
	if (f)
		f->looked_at = true;
	int error = bucket_fd < 0 ? -ENOENT : file_attach(f, bucket_fd);
	if (error) {
		if (f)
			cache_file_free(f);
		return -ENOENT;
	}
	f->chunks = (f->size + CACHE_CHUNK - 1) / CACHE_CHUNK;
	f->number = number_of(&f->key, f->version);
	f->verified = calloc((f->chunks + 63) / 64, 8);
	if (!f->verified) {
		cache_file_free(f);
		return -ENOENT;
	}
	*out = f;
	return 0;
}

int cache_file_drop(struct cache_file *f)
{
	char name[CACHE_NAME];
	struct stat named, open_one;
	CLEANUP_FD int bucket_fd = cache_bucket_open(f->dir, cache_key_bucket(f->hash), false);
	if (bucket_fd < 0)
		return 0;
	if (!cache_removal_begin(f->dir))
		return -EAGAIN;
	cache_name_make(name, 'f', &f->key);
	if (fstatat(bucket_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(f->read_fd, &open_one) == 0 &&
	    named.st_ino == open_one.st_ino)
		file_retire(f->dir, bucket_fd, &f->key);
	cache_removal_end(f->dir);
	return 0;
}

/* ---- Opening ---- */

static struct cache_file *opened_find(struct cache_dir *d, const struct cache_key *key, const struct cache_file_key *wanted)
{
	struct cache *c = d->cache;
	struct cache_file *f;
	LOCKED(&c->files_lock);
	f = intmap_get(&c->files, number_of(key, wanted->version));
	if (!f || memcmp(&f->key, key, sizeof *key) != 0 || f->version != wanted->version || f->size != wanted->size ||
	    f->dir != d || f->generation != d->generation)
		return NULL;
	f->users++;
	return f;
}

static void checked_add(struct cache_file *f)
{
	LOCKED(&f->cache->files_lock);
	(void)intmap_set(&f->cache->checked, f->number, f->cache); /* without memory it is checked again */
}

/* Of a file marked whole the first MiB is verified once in a process.  A chunk that another process found damaged
 * at the moment when it was marked is absent. */
static bool first_use_check(struct cache_file *f)
{
	uint64_t chunk = 0, absent, length;
	bool checked;
	if (!atomic_load(&f->sealed))
		return true;
	pthread_mutex_lock(&f->cache->files_lock);
	checked = intmap_get(&f->cache->checked, f->number) != NULL;
	pthread_mutex_unlock(&f->cache->files_lock);
	if (!checked && cache_file_absent(f, 0, f->size, &absent, &length)) {
		(void)cache_map_mark(f, false);
		return true;
	}
	if (!checked && cache_chunks_verify(f, &chunk, FIRST_CHUNKS, false) != 0)
		return false;
	atomic_store(&f->whole, true);
	checked_add(f);
	return true;
}

static int file_open_once(struct cache_file *f, const struct cache_file_key *key, unsigned flags)
{
	int error = file_obtain(f, key, flags);
	if (error)
		return error;
	f->chunks = (f->size + CACHE_CHUNK - 1) / CACHE_CHUNK;
	f->number = number_of(&f->key, f->version);
	if (!f->verified)
		f->verified = calloc((f->chunks + 63) / 64, 8);
	if (!f->verified)
		return -ENOMEM;
	if (first_use_check(f))
		return 0;
	log_warn("cache: file %jx in %s is damaged; dropped", (uintmax_t)f->key.id, f->dir->path);
	(void)cache_file_drop(f); /* or else it is found to be damaged again */
	cache_chunks_doubt(f);    /* nothing of it is in the new one */
	descriptors_close(f);
	return -EBADMSG;
}

static struct cache_file *file_publish(struct cache_file *f)
{
	struct cache_file *there;
	LOCKED(&f->cache->files_lock);
	there = intmap_get(&f->cache->files, f->number);
	if (there && memcmp(&there->key, &f->key, sizeof f->key) == 0 && there->version == f->version && there->size == f->size &&
	    there->dir == f->dir && there->generation == f->generation) {
		there->users++;
		cache_file_free(f);
		return there;
	}
	if (!there)
		f->listed = intmap_set(&f->cache->files, f->number, f) == 0;
	return f;
}

static int file_open(struct cache_dir *d, const struct cache_key *id, const struct cache_file_key *key, unsigned flags,
		     uint32_t interval, struct cache_file **out)
{
	struct cache_file *f = file_new(d, id);
	int error = f ? 0 : -ENOMEM;
	if (f)
		f->interval = interval;
	for (int i = 0; !error && i < 2; i++) {
		error = file_open_once(f, key, flags);
		if (error != -EBADMSG)
			break;
		error = i ? -ENOSPC : 0;
	}
	if (error) {
		if (f)
			cache_file_free(f);
		return error;
	}
	*out = file_publish(f);
	return 0;
}

int cache_file_open(struct cache *c, const struct cache_file_key *key, unsigned flags, struct cache_file **out)
{
	struct cache_key id = { .id = key->inode, .volume = key->volume, .kind = 'f' };
	struct cache_file *f;
	memcpy(id.store, c->options.store, CACHE_STORE_ID);
	if (key->size == 0 || key->size > FILE_MAX)
		return key->size ? -EFBIG : -EINVAL;
	uint64_t hash = cache_key_hash(&id);
	struct cache_dir *d = cache_dir_enter(c, hash);
	if (!d)
		return -ENOSPC;
	uint32_t interval = 0;
	if (flags & CACHE_TOLD)
		cache_usage_tell(d, hash);
	else
		interval = cache_usage_touch(d, hash, 0);
	f = opened_find(d, &id, key);
	int error = f ? 0 : file_open(d, &id, key, flags, interval, &f);
	if (!error) {
		atomic_fetch_or(&f->flags, flags);
		if (flags & CACHE_PIN)
			cache_file_pin(f, true);
		*out = f;
	}
	cache_dir_leave(d);
	return error;
}

void cache_file_close(struct cache_file *f)
{
	struct cache *c = f->cache;
	pthread_mutex_lock(&c->files_lock);
	bool last = --f->users == 0;
	if (last && f->listed)
		intmap_remove(&c->files, f->number);
	pthread_mutex_unlock(&c->files_lock);
	if (last)
		cache_file_free(f);
}

void cache_file_pin(struct cache_file *f, bool pinned) { (void)fchmod(f->write_fd, CACHE_MODE | (pinned ? CACHE_PINNED : 0)); }

/* ---- Files whose content is changed in place ---- */

static void file_unlist(struct cache_file *f)
{
	LOCKED(&f->cache->files_lock);
	if (f->listed)
		intmap_remove(&f->cache->files, f->number);
	f->listed = false;
	intmap_remove(&f->cache->checked, f->number);
}

/* The map goes first, and durably: it is what makes the file this content. */
static int map_void(struct cache_file *f)
{
	static const uint8_t nothing[MAP_HEADER];
	int error = cache_pwrite(f->map_fd, nothing, MAP_HEADER, 0);
	return error ? error : fdatasync(f->map_fd) < 0 ? -errno : 0;
}

int cache_file_detach(struct cache_file *f)
{
	int error = 0;
	if (atomic_load(&f->retired))
		return 0;
	pthread_rwlock_wrlock(&f->changing);
	atomic_store(&f->detached, true);
	file_unlist(f);
	error = map_void(f);
	pthread_rwlock_unlock(&f->changing);
	/* Another process that fills it may be about to mark it as whole: not where it has no name. */
	if (!error && cache_dir_enter_again(f->dir, f->generation)) {
		error = cache_file_drop(f);
		cache_dir_leave(f->dir);
	}
	atomic_store(&f->retired, !error);
	return error;
}

/* Pages that the kernel could not write stay in memory, as if they were clean: comparing them finds nothing wrong with them until they are
 * dropped.  So nothing that was compared is to be believed. */
void cache_file_lose(struct cache_file *f, int error)
{
	cache_chunks_doubt(f);
	file_unlist(f);
	(void)map_void(f); /* that may fail as well: then it loses its name below */
	if (cache_dir_enter_again(f->dir, f->generation)) {
		(void)cache_file_drop(f);
		cache_dir_leave(f->dir);
	}
	log_warn("cache: file %jx in %s could not be written: %s; dropped", (uintmax_t)f->key.id, f->dir->path, strerror(-error));
}

bool cache_file_is_alone(struct cache_file *f)
{
	if (flock(f->read_fd, LOCK_EX | LOCK_NB) == 0)
		return true;
	/* The attempt has cost the lock there was.  Without one the file may lose its name, nothing else. */
	(void)backing_lock(f->read_fd);
	return false;
}

int cache_file_patch(struct cache_file *f, uint64_t offset, const void *bytes, size_t length)
{
	return cache_pwrite(f->write_fd, bytes, length, offset);
}

int cache_file_cut(struct cache_file *f, uint64_t size) { return ftruncate(f->write_fd, (off_t)size) < 0 ? -errno : 0; }

/* ---- Making whole files durable ---- */

/* `changing` is held.  Alone among those who may be told of an error: whoever is told makes the map void, and that is not undone here. */
static int file_sync_and_mark(struct cache_file *f, bool *lost)
{
	pthread_rwlock_wrlock(&f->syncing);
	int error = fdatasync(f->write_fd) < 0 || fdatasync(f->map_fd) < 0 ? -errno : 0;
	if (error) {
		atomic_store(&f->detached, true);
		*lost = true;
	} else if (!cache_backing_is_untouched(f)) {
		cache_chunks_doubt(f); /* somebody has written to it */
	}
	/* A chunk may have been found damaged meanwhile. */
	bool mark = !atomic_load(&f->detached) && atomic_load(&f->whole);
	if (mark)
		error = cache_map_mark(f, true);
	pthread_rwlock_unlock(&f->syncing);
	if (mark && !error && fdatasync(f->map_fd) < 0)
		error = -errno;
	return error;
}

static void file_seal(struct cache_file *f)
{
	bool lost = false;
	if (!cache_dir_enter_again(f->dir, f->generation))
		return;
	pthread_rwlock_rdlock(&f->changing);
	int error = atomic_load(&f->detached) ? 0 : file_sync_and_mark(f, &lost);
	if (lost)
		cache_file_lose(f, error);
	else if (!error && atomic_load(&f->sealed))
		checked_add(f);
	pthread_rwlock_unlock(&f->changing);
	if (error)
		cache_dir_error(f->dir, -error);
	cache_dir_leave(f->dir);
}

void cache_files_seal(struct cache *c)
{
	for (;;) {
		pthread_mutex_lock(&c->files_lock);
		struct cache_file *f = c->to_seal;
		if (f)
			c->to_seal = f->next_to_seal;
		pthread_mutex_unlock(&c->files_lock);
		if (!f)
			return;
		file_seal(f);
		atomic_store(&f->queued, false);
		cache_file_close(f);
	}
}
