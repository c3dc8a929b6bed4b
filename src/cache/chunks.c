/* The chunks of a file in the cache: reading, verifying and adding them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/map.h"
#include "cache/parts.h"
#include "cache/state.h"

#define MAP_BATCH 512u
#define ADD_BATCH 64u
#define WHOLE_STEP ((8u << 20) / CACHE_CHUNK)
#define FIRST_CHUNKS ((1u << 20) / CACHE_CHUNK)

static uint64_t checksum_of(const void *bytes, size_t length)
{
	uint64_t sum = XXH3_64bits(bytes, length);
	return sum ? sum : 1;
}

/* ---- Verified ---- */

static bool is_verified(const struct cache_file *f, uint64_t chunk)
{
	return atomic_load(&f->verified[chunk / 64]) >> (chunk % 64) & 1;
}

static void seal_later(struct cache_file *f)
{
	LOCKED(&f->cache->files_lock);
	if (atomic_load(&f->sealed) || atomic_exchange(&f->queued, true))
		return;
	f->users++;
	f->next_to_seal = f->cache->to_seal;
	f->cache->to_seal = f;
}

void cache_chunks_doubt(struct cache_file *f)
{
	atomic_store(&f->whole, false);
	for (uint64_t i = 0; i < (f->chunks + 63) / 64; i++) {
		uint64_t was = atomic_exchange(&f->verified[i], 0);
		atomic_fetch_sub(&f->verified_count, (uint64_t)__builtin_popcountll(was));
	}
}

/* All of it was verified, or added. */
static void complete(struct cache_file *f)
{
	/* Alone: nobody else is just being told of an error, which is not told again. */
	pthread_rwlock_wrlock(&f->syncing);
	int error = cache_fill_end(f);
	if (error)
		atomic_store(&f->detached, true);
	/* Or it was doubted meanwhile. */
	bool whole = !atomic_load(&f->detached) && atomic_load(&f->verified_count) == f->chunks;
	if (whole)
		atomic_store(&f->whole, true);
	pthread_rwlock_unlock(&f->syncing);
	if (whole)
		seal_later(f);
	if (!error)
		return;
	cache_file_lose(f, error);
	cache_dir_error(f->dir, -error);
}

/* False: it was already. */
static bool set_verified(struct cache_file *f, uint64_t chunk)
{
	uint64_t bit = 1ULL << (chunk % 64);
	if (atomic_fetch_or(&f->verified[chunk / 64], bit) & bit)
		return false;
	if (atomic_fetch_add(&f->verified_count, 1) + 1 == f->chunks)
		complete(f);
	return true;
}

static void unset_verified(struct cache_file *f, uint64_t chunk)
{
	uint64_t bit = 1ULL << (chunk % 64);
	atomic_store(&f->whole, false);
	if (atomic_fetch_and(&f->verified[chunk / 64], ~bit) & bit)
		atomic_fetch_sub(&f->verified_count, 1);
}

/* And empty: who scrubs has no lock on it, and keeps nobody from that. */
static bool is_removed(const struct cache_file *f)
{
	struct stat st;
	return fstat(f->read_fd, &st) == 0 && st.st_nlink == 0;
}

/* It is not here any more. */
static void chunk_damaged(struct cache_file *f, uint64_t chunk)
{
	uint64_t none = 0;
	unset_verified(f, chunk);
	if (atomic_load(&f->detached) || cache_map_is_void(f) || is_removed(f))
		return;
	(void)cache_pwrite(f->map_fd, &none, sizeof none, cache_map_offset(chunk));
	if (atomic_load(&f->sealed))
		(void)cache_map_mark(f, false);
	pthread_mutex_lock(&f->cache->files_lock);
	intmap_remove(&f->cache->checked, f->number);
	pthread_mutex_unlock(&f->cache->files_lock);
	atomic_fetch_add(&f->cache->damaged, 1);
	log_warn("cache: chunk %ju of file %jx in %s is damaged; dropped", (uintmax_t)chunk, (uintmax_t)f->key.id, f->dir->path);
}

static uint64_t checksum_stored(struct cache_file *f, uint64_t chunk)
{
	uint8_t sum[8];
	return cache_pread(f->map_fd, sum, 8, cache_map_offset(chunk)) ? 0 : get_le64(sum);
}

/* Reads a chunk and compares it: 0, -ENOENT, -EBADMSG. */
static int chunk_load(struct cache_file *f, uint64_t chunk, uint8_t *into)
{
	uint64_t length = cache_chunk_length(f, chunk), sum = checksum_stored(f, chunk);
	if (!sum) {
		unset_verified(f, chunk); /* the map was cut off */
		return -ENOENT;
	}
	int error = cache_pread(f->read_fd, into, length, chunk * CACHE_CHUNK);
	if (!error && checksum_of(into, length) == sum) {
		set_verified(f, chunk);
		return 0;
	}
	chunk_damaged(f, chunk);
	return -EBADMSG;
}

int cache_chunks_verify(struct cache_file *f, uint64_t *chunk, uint64_t count, bool again)
{
	CLEANUP_FREE uint8_t *bytes = malloc(CACHE_CHUNK);
	int error = bytes ? 0 : -ENOENT;
	for (; !error && count > 0 && *chunk < f->chunks; count--, ++*chunk)
		if (again || !is_verified(f, *chunk))
			error = chunk_load(f, *chunk, bytes);
	return error;
}

/* ---- Reading ---- */

/* Chunk by chunk, each verified in memory before its bytes are given out.  Where one is damaged others may be; they
 * are all found in one go. */
static int read_verifying(struct cache_file *f, uint64_t offset, const struct iovec *into, int count, size_t length)
{
	CLEANUP_FREE uint8_t *bytes = malloc(CACHE_CHUNK);
	int error = bytes ? 0 : -ENOENT, worst = 0;
	for (size_t done = 0; bytes && done < length;) {
		uint64_t chunk = (offset + done) / CACHE_CHUNK, skip = (offset + done) % CACHE_CHUNK;
		size_t n = CACHE_CHUNK - skip < length - done ? CACHE_CHUNK - skip : length - done;
		error = chunk_load(f, chunk, bytes);
		if (!error)
			cache_parts_put(into, count, done, bytes + skip, n);
		else
			worst = -ENOENT;
		done += n;
	}
	return error ? -ENOENT : worst;
}

/* Whole chunks are read to where they go, all at once, and compared there. */
static int read_in_place(struct cache_file *f, uint64_t offset, uint8_t *into, size_t length)
{
	uint64_t first = offset / CACHE_CHUNK, count = (length + CACHE_CHUNK - 1) / CACHE_CHUNK, sums[ADD_BATCH];
	bool readable = cache_pread(f->map_fd, sums, count * 8, cache_map_offset(first)) == 0;
	int error = 0;
	for (uint64_t i = 0; readable && i < count; i++) {
		if (sums[i])
			continue;
		unset_verified(f, first + i);
		error = -ENOENT;
	}
	if (error)
		return error; /* and no zeroes are read from holes */
	/* Which of them cannot be read is found one by one. */
	if (!readable || cache_pread(f->read_fd, into, length, offset))
		return read_verifying(f, offset, &(struct iovec){ into, length }, 1, length);
	for (uint64_t i = 0; i < count; i++) {
		if (checksum_of(into + i * CACHE_CHUNK, cache_chunk_length(f, first + i)) ==
		    get_le64((const uint8_t *)&sums[i])) {
			set_verified(f, first + i);
			continue;
		}
		chunk_damaged(f, first + i);
		error = -ENOENT;
	}
	return error;
}

/* Each time anew: a disk may forget, and somebody may write to what is not his. */
static int file_read(struct cache_file *f, uint64_t offset, const struct iovec *into, int count, size_t length)
{
	if (offset > f->size || length > f->size - offset || atomic_load(&f->detached))
		return -ENOENT;
	if (count == 1 && offset % CACHE_CHUNK == 0 && (length % CACHE_CHUNK == 0 || offset + length == f->size) &&
	    length <= ADD_BATCH * CACHE_CHUNK)
		return read_in_place(f, offset, into->iov_base, length);
	return read_verifying(f, offset, into, count, length);
}

int cache_file_read(struct cache_file *f, uint64_t offset, const struct iovec *into, int count)
{
	size_t length = cache_parts_bytes(into, count);
	int error = -ENOENT;
	if (cache_dir_enter_again(f->dir, f->generation)) {
		cache_usage_touch(f->dir, f->hash, length);
		error = file_read(f, offset, into, count, length);
		cache_dir_leave(f->dir);
	}
	atomic_fetch_add(error ? &f->cache->misses : &f->cache->hits, 1);
	return error;
}

/* ---- What is there ---- */

bool cache_file_absent(struct cache_file *f, uint64_t offset, uint64_t length, uint64_t *absent, uint64_t *absent_length)
{
	uint64_t sums[MAP_BATCH];
	if (offset >= f->size || length == 0 || atomic_load(&f->whole))
		return false;
	length = length < f->size - offset ? length : f->size - offset;
	uint64_t chunk = offset / CACHE_CHUNK, end = (offset + length + CACHE_CHUNK - 1) / CACHE_CHUNK, from = end;
	while (chunk < end) {
		uint64_t n = end - chunk < MAP_BATCH ? end - chunk : MAP_BATCH, i = 0;
		if (cache_pread(f->map_fd, sums, n * 8, cache_map_offset(chunk)) != 0)
			memset(sums, 0, sizeof sums); /* a map that was cut off */
		for (; i < n && (from == end ? sums[i] != 0 : sums[i] == 0); i++)
			;
		if (i < n && from == end) {
			from = chunk + i;
			for (; i < n && sums[i] == 0; i++)
				;
		}
		chunk += i;
		if (i < n && from != end)
			break;
	}
	if (from == end)
		return false;
	*absent = from * CACHE_CHUNK;
	uint64_t until = chunk * CACHE_CHUNK;
	*absent_length = (until < f->size ? until : f->size) - *absent;
	return true;
}

static bool stretch_is_here(struct cache_file *f, uint64_t from, uint64_t to)
{
	uint64_t at, length;
	for (; from < to; from += MAP_BATCH * CACHE_CHUNK) {
		uint64_t left = to - from;
		if (!cache_file_absent(f, from, left < MAP_BATCH * CACHE_CHUNK ? left : MAP_BATCH * CACHE_CHUNK, &at, &length))
			continue;
		atomic_store(&f->absent_at, at);
		return false;
	}
	return true;
}

/* Beginning with what was absent the last time: this is asked whenever a file is opened or closed, and the map of a large one is long. */
static bool all_is_here(struct cache_file *f)
{
	uint64_t first = atomic_load(&f->absent_at);
	return stretch_is_here(f, first, f->size) && stretch_is_here(f, 0, first);
}

int cache_file_whole(struct cache_file *f)
{
	uint64_t chunk = 0;
	if (atomic_load(&f->detached))
		return -ENOENT;
	/* The kernel would read it without looking. */
	if (atomic_load(&f->whole) && !cache_backing_is_untouched(f)) {
		log_warn("cache: file %jx in %s was changed by somebody else; it is verified again", (uintmax_t)f->key.id,
			 f->dir->path);
		cache_chunks_doubt(f);
		atomic_store(&f->sealed, false);
		return -EAGAIN;
	}
	if (!atomic_load(&f->whole)) {
		if (!all_is_here(f))
			return -ENOENT;
		bool marked = cache_map_is_whole(f); /* by another process, after it had verified all of it */
		while (chunk < f->chunks && is_verified(f, chunk))
			chunk++;
		if (cache_chunks_verify(f, &chunk, marked ? FIRST_CHUNKS : WHOLE_STEP, false) != 0)
			return -ENOENT;
		if (marked) {
			atomic_store(&f->sealed, true);
			atomic_store(&f->whole, true);
		}
		if (!atomic_load(&f->whole))
			return -EAGAIN;
	}
	if (!cache_dir_enter_again(f->dir, f->generation))
		return -ENOENT;
	/* Whoever asks will most often read all of it; of a huge one not so much that others look old. */
	uint64_t most = f->dir->size / 8;
	cache_usage_touch(f->dir, f->hash, f->size < most ? f->size : most);
	cache_dir_leave(f->dir);
	return f->read_fd;
}

bool cache_file_is_complete(struct cache_file *f) { return atomic_load(&f->whole) && !atomic_load(&f->detached); }

bool cache_file_is_worth_completing(struct cache_file *f)
{
	return !atomic_load(&f->whole) && !atomic_load(&f->detached) &&
	       (atomic_load(&f->verified_count) >= f->chunks - f->chunks / 2 || all_is_here(f));
}

/* ---- Adding ---- */

static int file_take(struct cache_file *f, int64_t bytes)
{
	struct cache_newcomer n = { f->key.volume, atomic_load(&f->flags) ? LEVEL_TOLD : LEVEL_AGED,
				    cache_usage_limit_for(f->dir, f->interval) };
	return cache_room_take(f->dir, bytes, &n);
}

/* A file that cannot become whole is not begun, unless it is too large for that anyway. */
static int file_admit(struct cache_file *f)
{
	struct cache_dir *d = f->dir;
	struct stat st;
	uint64_t tick = cache_usage_tick(d) + 1;
	if (atomic_load(&f->admitted) || (int64_t)f->size > d->limit / 2)
		return 0;
	if (atomic_load(&f->refused_tick) == tick || fstat(f->write_fd, &st) < 0)
		return -ENOSPC;
	int64_t missing = cache_blocks(f->size) - (int64_t)st.st_blocks * 512;
	int error = missing > 0 ? file_take(f, missing) : 0;
	if (!error && missing > 0)
		cache_room_give(d, missing);
	atomic_store(&f->refused_tick, error ? tick : 0);
	atomic_store(&f->admitted, !error);
	return error;
}

/* Those that another thread has added meanwhile, from the same place of the same version, take no room of their own. */
static void run_added(struct cache_file *f, uint64_t first, uint64_t count, const struct iovec *parts, int64_t room)
{
	uint64_t added = 0;
	size_t length = 0;
	for (uint64_t i = 0; i < count; i++) {
		if (!set_verified(f, first + i))
			continue;
		added++;
		length += parts[i].iov_len;
	}
	int64_t kept = cache_blocks(length);
	cache_room_keep(f->dir, cache_key_bucket(f->hash), f->key.store, f->key.volume, kept, 0);
	cache_room_give(f->dir, room - kept);
	atomic_fetch_add(&f->cache->adds, added);
}

/* A run of absent chunks: first the data, then what says that it is there. */
static int run_add(struct cache_file *f, uint64_t first, uint64_t count, const struct iovec *parts)
{
	struct cache_dir *d = f->dir;
	uint8_t sums[ADD_BATCH * 8];
	int64_t room = cache_blocks(cache_parts_bytes(parts, (int)count));
	int error = file_take(f, room);
	if (error) {
		atomic_store(&f->admitted, false);
		return error;
	}
	for (uint64_t i = 0; i < count; i++)
		put_le64(sums + i * 8, checksum_of(parts[i].iov_base, parts[i].iov_len));
	cache_backing_write_begin(f);
	error = cache_fill_write(f, parts, (int)count, first * CACHE_CHUNK);
	cache_backing_write_end(f);
	if (!error)
		error = cache_pwrite(f->map_fd, sums, count * 8, cache_map_offset(first));
	if (error) {
		cache_room_give(d, room);
		return cache_dir_error(d, -error);
	}
	run_added(f, first, count, parts, room);
	return 0;
}

static int batch_add(struct cache_file *f, uint64_t first, uint64_t count, const struct iovec *parts)
{
	uint64_t sums[ADD_BATCH];
	if (cache_pread(f->map_fd, sums, count * 8, cache_map_offset(first)) != 0)
		return -ENOSPC; /* a map that was cut off */
	for (uint64_t i = 0, n; i < count; i += n) {
		bool absent = sums[i] == 0;
		for (n = 1; i + n < count && (sums[i + n] == 0) == absent; n++)
			;
		int error = absent ? run_add(f, first + i, n, parts + i) : 0;
		if (error)
			return error;
	}
	return 0;
}

static bool are_chunks(struct cache_file *f, uint64_t offset, const struct iovec *parts, int count)
{
	for (int i = 0; i < count; offset += parts[i++].iov_len)
		if (offset % CACHE_CHUNK || offset >= f->size || parts[i].iov_len != cache_chunk_length(f, offset / CACHE_CHUNK))
			return false;
	return count > 0;
}

int cache_file_add_chunks(struct cache_file *f, uint64_t offset, const struct iovec *parts, int count)
{
	if (!are_chunks(f, offset, parts, count))
		return -EINVAL;
	if (atomic_load(&f->whole))
		return 0;
	if (!cache_dir_enter_again(f->dir, f->generation))
		return -ENOSPC;
	pthread_rwlock_rdlock(&f->changing);
	int error = atomic_load(&f->detached) ? -ENOSPC : file_admit(f);
	for (int i = 0; !error && i < count; i += (int)ADD_BATCH)
		error = batch_add(f, offset / CACHE_CHUNK + (uint64_t)i,
				  (uint64_t)(count - i < ADD_BATCH ? count - i : ADD_BATCH), parts + i);
	pthread_rwlock_unlock(&f->changing);
	cache_dir_leave(f->dir);
	return error;
}

int cache_file_add(struct cache_file *f, uint64_t offset, const void *bytes, size_t length)
{
	const uint8_t *from = bytes;
	int error = length ? 0 : -EINVAL;
	while (!error && length > 0) {
		struct iovec parts[ADD_BATCH];
		size_t all = 0;
		int count = 0;
		while (all < length && count < (int)ADD_BATCH) {
			size_t n = length - all < CACHE_CHUNK ? length - all : CACHE_CHUNK;
			parts[count++] = (struct iovec){ (void *)(from + all), n };
			all += n;
		}
		error = cache_file_add_chunks(f, offset, parts, count);
		offset += all;
		from += all;
		length -= all;
	}
	return error;
}
