/* The directories: taking possession of one, losing it, finding it again; and which one a
 * key belongs to.
 *
 * A directory is used if it has our marker.  Without one it must be empty to become a
 * cache; so nothing of anybody else's is ever touched.  One that fails (the disk, its file
 * system, somebody who removes or unmounts it) is out of use from that moment on, with a
 * line in the log; the others take over its keys.  It is tried again every 10 s.  When it is found again
 * on another file system without a marker, it is a mount point whose disk is missing, and
 * stays out of use. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/guard.h"
#include "cache/state.h"

#define MARKER_TEXT "EpochFS cache, format 1\nid "
#define MARKER_BYTES (sizeof MARKER_TEXT - 1 + 16 + 1)
#define FOLDER_MODE 0750
#define RETRY_NS (10 * NS_PER_S)
#define DESCRIPTORS_MAX 4096
#define OPEN_PATIENCE_MS 2000
#define REMOVAL_PATIENCE_MS 20
#define ROOT_BYTES (128 << 10) /* marker, state's inode, folders made at the same moment */

/* flock without waiting for ever for a process that is stopped. */
static bool marker_lock(int fd, int patience_ms)
{
	for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited++) {
		struct timespec pause = { .tv_nsec = NS_PER_MS };
		if ((errno != EWOULDBLOCK && errno != EINTR) || waited >= patience_ms)
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

bool cache_removal_begin(struct cache_dir *d)
{
	pthread_mutex_lock(&d->removal);
	if (marker_lock(d->marker, REMOVAL_PATIENCE_MS))
		return true;
	pthread_mutex_unlock(&d->removal);
	return false;
}

void cache_removal_end(struct cache_dir *d)
{
	(void)flock(d->marker, LOCK_UN);
	pthread_mutex_unlock(&d->removal);
}

/* ---- Taking possession ---- */

/* 1: empty but for what a fresh file system or a cut-off first open leaves; 0: not; -errno. */
static int root_is_empty(int root)
{
	int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	if (!stream) {
		int error = errno;
		if (fd >= 0)
			close(fd);
		return -error;
	}
	int empty = 1;
	struct dirent *entry;
	while (empty && (errno = 0, entry = readdir(stream)))
		empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
			strcmp(entry->d_name, "lost+found") == 0 ||
			strncmp(entry->d_name, CACHE_MARKER, sizeof CACHE_MARKER - 1) == 0;
	if (empty && errno != 0)
		empty = -errno;
	closedir(stream);
	return empty;
}

static int marker_make(int root)
{
	char temp[64], text[MARKER_BYTES + 1];
	uint64_t id;
	int error = 0;
	if (getrandom(&id, sizeof id, 0) != sizeof id)
		return -EIO;
	snprintf(temp, sizeof temp, CACHE_MARKER ".%016jx", (uintmax_t)id);
	snprintf(text, sizeof text, MARKER_TEXT "%016jx\n", (uintmax_t)id);
	CLEANUP_FD int fd = openat(root, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, CACHE_MODE);
	if (fd < 0)
		return -errno;
	/* Complete before it has its name; whoever comes second takes what is there. */
	ssize_t n = write(fd, text, MARKER_BYTES);
	if (n != (ssize_t)MARKER_BYTES)
		error = n < 0 ? -errno : -ENOSPC;
	else if (linkat(root, temp, root, CACHE_MARKER, 0) < 0 && errno != EEXIST)
		error = -errno;
	(void)unlinkat(root, temp, 0);
	return error;
}

static int marker_read(struct cache_dir *d)
{
	char text[MARKER_BYTES + 1] = "", *end;
	d->marker = openat(d->root, CACHE_MARKER, O_RDWR | CACHE_OPEN_FLAGS);
	if (d->marker < 0)
		return errno == ELOOP || errno == EISDIR ? -EPROTONOSUPPORT : -errno;
	ssize_t n = pread(d->marker, text, sizeof text, 0);
	if (n < 0)
		return -errno;
	if (n != (ssize_t)MARKER_BYTES || memcmp(text, MARKER_TEXT, sizeof MARKER_TEXT - 1) != 0)
		return -EPROTONOSUPPORT;
	text[MARKER_BYTES] = 0;
	d->id = strtoull(text + sizeof MARKER_TEXT - 1, &end, 16);
	return *end == '\n' ? 0 : -EPROTONOSUPPORT;
}

static int root_claim(struct cache_dir *d, bool may_claim)
{
	int error = marker_read(d);
	if (error != -ENOENT || !may_claim)
		return error;
	int empty = root_is_empty(d->root);
	if (empty < 0)
		return empty;
	if (empty == 0) { /* another process may have made it a cache meanwhile */
		error = marker_read(d);
		return error == -ENOENT ? -ENOTEMPTY : error;
	}
	error = marker_make(d->root);
	return error ? error : marker_read(d);
}

static int root_open(struct cache_dir *d)
{
	struct stat st;
	if (mkdir(d->path, FOLDER_MODE) < 0 && errno != EEXIST)
		return -errno;
	d->root = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (d->root < 0 || fstat(d->root, &st) < 0)
		return -errno;
	int error = root_claim(d, !d->claimed || st.st_dev == d->device);
	if (!error) {
		d->claimed = true;
		d->device = st.st_dev;
	}
	return error;
}

/* ---- The state file ---- */

static size_t state_size(uint64_t cells) { return sizeof(struct cache_state) + cells * sizeof(uint16_t); }

static int state_map(struct cache_dir *d, size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, d->state_fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	d->state = p;
	d->state_bytes = size;
	guard_add(p, size);
	return 0;
}

/* All processes count in the same ticks, unless they make no sense. */
static void tick_choose(struct cache_dir *d)
{
	uint64_t ours = cache_usage_tick_bytes(d->size), theirs = atomic_load(&d->state->tick_bytes);
	d->tick_bytes = theirs > ours / 16 && theirs / 16 < ours ? theirs : ours;
	atomic_store(&d->state->tick_bytes, d->tick_bytes);
}

/* -EINVAL: this is none. */
static int state_use(struct cache_dir *d)
{
	struct stat st;
	d->state_fd = openat(d->root, CACHE_STATE, O_RDWR | CACHE_OPEN_FLAGS);
	if (d->state_fd < 0)
		return errno == ENOENT || errno == ELOOP || errno == ENXIO ? -EINVAL : -errno;
	if (fstat(d->state_fd, &st) < 0)
		return -errno;
	uint64_t cells = st.st_size < (off_t)sizeof(struct cache_state) ? 0 : (st.st_size - sizeof(struct cache_state)) / 2;
	if (!S_ISREG(st.st_mode) || cells < cache_usage_cells(0) || (cells & (cells - 1)) ||
	    state_size(cells) != (size_t)st.st_size)
		return -EINVAL;
	/* Somebody may have punched holes, or copied it without the zeroes. */
	if (fallocate(d->state_fd, 0, 0, st.st_size) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
		return -errno;
	int error = state_map(d, (size_t)st.st_size);
	if (error)
		return error;
	d->cells = cells;
	tick_choose(d);
	return atomic_load(&d->state->magic) == CACHE_MAGIC && atomic_load(&d->state->cells) == cells ? 0 : -EINVAL;
}

static void state_close(struct cache_dir *d)
{
	if (d->state) {
		guard_remove(d->state);
		munmap(d->state, d->state_bytes);
	}
	if (d->state_fd >= 0)
		close(d->state_fd);
	d->state = NULL;
	d->state_fd = -1;
}

/* In place of whatever has that name.  Processes that use the old one see that it is gone. */
static int state_make(struct cache_dir *d)
{
	uint64_t cells = cache_usage_cells(d->size);
	if (unlinkat(d->root, CACHE_STATE, 0) < 0 && errno != ENOENT)
		return -errno;
	d->state_fd = openat(d->root, CACHE_STATE, O_RDWR | O_CREAT | O_EXCL | CACHE_OPEN_FLAGS, CACHE_MODE);
	if (d->state_fd < 0)
		return -errno;
	int error = -posix_fallocate(d->state_fd, 0, (off_t)state_size(cells));
	if (!error)
		error = state_map(d, state_size(cells));
	if (error) {
		(void)unlinkat(d->root, CACHE_STATE, 0);
		return error;
	}
	d->cells = cells;
	d->tick_bytes = cache_usage_tick_bytes(d->size);
	atomic_store(&d->state->cells, cells);
	atomic_store(&d->state->tick_bytes, d->tick_bytes);
	atomic_store(&d->state->doubts, 1);
	atomic_store(&d->state->magic, CACHE_MAGIC);
	return 0;
}

static bool slot_lock(struct cache_dir *d, unsigned slot, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1 };
	return fcntl(d->state_fd, F_OFD_SETLK, &lock) == 0;
}

bool cache_slot_alive(struct cache_dir *d, unsigned slot, uint64_t nonce)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1 };
	if (slot >= CACHE_SLOTS || atomic_load(&d->state->slots[slot].nonce) != nonce)
		return false;
	return (slot == d->slot && nonce == d->nonce) || fcntl(d->state_fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/* A slot of a dead process is only taken if there is no other: what it reserved is of unknown fate. */
static int slot_take(struct cache_dir *d)
{
	if (getrandom(&d->nonce, sizeof d->nonce, 0) != sizeof d->nonce)
		return -EIO;
	d->nonce |= 1;
	for (unsigned i = 0; i < 2 * CACHE_SLOTS; i++) {
		struct cache_slot *s = &d->state->slots[i % CACHE_SLOTS];
		bool dead = atomic_load(&s->nonce) != 0;
		if ((dead && i < CACHE_SLOTS) || !slot_lock(d, i % CACHE_SLOTS, F_WRLCK))
			continue;
		if (dead)
			atomic_store(&d->state->boot, 0);
		atomic_store(&s->reserved, 0);
		atomic_store(&s->nonce, d->nonce);
		d->slot = i % CACHE_SLOTS;
		return 0;
	}
	return -EMFILE;
}

static int state_open(struct cache_dir *d)
{
	int error;
	if (!marker_lock(d->marker, OPEN_PATIENCE_MS))
		return -EBUSY;
	error = state_use(d);
	if (error == -EINVAL) {
		state_close(d);
		error = state_make(d);
	}
	if (!error)
		error = slot_take(d);
	if (!error && atomic_load(&d->state->boot) != d->cache->boot)
		atomic_store(&d->state->boot, 0);
	if (!error && atomic_load(&d->state->boot) == 0)
		cache_room_doubt(d);
	(void)flock(d->marker, LOCK_UN);
	return error;
}

/* ---- Opening and closing ---- */

static uint64_t amount_of(const struct cache_amount *a, uint64_t all) { return a->percent ? all / 100 * a->percent : a->bytes; }

static int limits_set(struct cache_dir *d)
{
	struct statvfs v;
	if (fstatvfs(d->root, &v) < 0)
		return -errno;
	if (v.f_flag & ST_RDONLY)
		return -EROFS;
	uint64_t all = (uint64_t)v.f_blocks * v.f_frsize;
	d->size = amount_of(&d->cache->options.size, all);
	if (d->size > INT64_MAX / 4)
		d->size = INT64_MAX / 4;
	uint64_t keep = amount_of(&d->cache->options.min_free, all);
	d->min_free = keep > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)keep;
	return 0;
}

static void dir_close(struct cache_dir *d)
{
	if (d->state && d->nonce && atomic_load(&d->state->slots[d->slot].nonce) == d->nonce)
		atomic_store(&d->state->slots[d->slot].nonce, 0);
	d->nonce = 0;
	d->count = (struct cache_count){ 0 };
	d->victim_count = 0;
	state_close(d);
	descriptors_trim(&d->objects, INT64_MAX);
	if (d->marker >= 0)
		close(d->marker);
	if (d->root >= 0)
		close(d->root);
	d->marker = d->root = -1;
}

int cache_dir_open(struct cache_dir *d)
{
	pthread_rwlock_wrlock(&d->lock);
	int error = root_open(d);
	if (!error)
		error = limits_set(d);
	if (!error)
		error = state_open(d);
	if (!error) {
		/* 1/256 for what the file system needs for itself to find the blocks of large files. */
		d->limit = (int64_t)(d->size - d->size / 256) - (int64_t)d->state_bytes - ROOT_BYTES;
		atomic_store(&d->free_ns, INT64_MIN / 2);
		d->hand = (unsigned)(d->nonce >> 8) % CACHE_BUCKETS;
		for (int i = 0; i < LEVELS; i++)
			atomic_store(&d->vain[i], 0);
		d->generation++;
		atomic_store(&d->failed, 0);
		atomic_store(&d->in_use, true);
	} else {
		dir_close(d);
		atomic_store(&d->failed, -error);
		d->retry_ns = clock_read(d->cache->options.clock) + RETRY_NS;
	}
	pthread_rwlock_unlock(&d->lock);
	return error;
}

/* An eighth of what the process may open. */
static size_t descriptors_kept(void)
{
	struct rlimit most;
	if (getrlimit(RLIMIT_NOFILE, &most) < 0)
		return 64;
	return most.rlim_cur / 8 < DESCRIPTORS_MAX ? most.rlim_cur / 8 : DESCRIPTORS_MAX;
}

int cache_dir_init(struct cache_dir *d, struct cache *c, const char *path)
{
	d->cache = c;
	d->root = d->marker = d->state_fd = -1;
	d->path = strdup(path);
	pthread_rwlock_init(&d->lock, NULL);
	pthread_mutex_init(&d->removal, NULL);
	descriptors_init(&d->objects, descriptors_kept());
	return d->path ? 0 : -ENOMEM;
}

void cache_dir_free(struct cache_dir *d)
{
	dir_close(d);
	descriptors_free(&d->objects);
	pthread_mutex_destroy(&d->removal);
	pthread_rwlock_destroy(&d->lock);
	free(d->victims);
	free(d->path);
}

/* ---- Failing ---- */

int cache_dir_error(struct cache_dir *d, int error)
{
	int none = 0;
	switch (error) {
	case EIO:
	case EROFS:
	case ENODEV:
	case ENXIO:
	case ESTALE:
	case EUCLEAN:
	case ENOTCONN:
	case ESHUTDOWN: break;
	default: return -error;
	}
	if (atomic_compare_exchange_strong(&d->failed, &none, error)) {
		atomic_store(&d->in_use, false);
		log_warn("cache: %s is out of use: %s; tried again every 10 s", d->path, strerror(error));
	}
	return -error;
}

/* Is what the path names still what is open? */
static void dir_check(struct cache_dir *d)
{
	struct stat named, open_one;
	struct statvfs v;
	if (stat(d->path, &named) < 0 || fstat(d->root, &open_one) < 0)
		cache_dir_error(d, errno == ENOENT || errno == ENOTDIR ? ENODEV : errno);
	else if (named.st_dev != open_one.st_dev || named.st_ino != open_one.st_ino)
		cache_dir_error(d, ENODEV);
	else if (fstatat(d->root, CACHE_STATE, &named, AT_SYMLINK_NOFOLLOW) < 0 || fstat(d->state_fd, &open_one) < 0 ||
		 named.st_ino != open_one.st_ino)
		cache_dir_error(d, ESTALE);
	else if (fstatvfs(d->root, &v) == 0 && (v.f_flag & ST_RDONLY))
		cache_dir_error(d, EROFS);
}

void cache_dir_tend(struct cache_dir *d)
{
	int64_t now = clock_read(d->cache->options.clock);
	if (atomic_load(&d->in_use))
		dir_check(d);
	if (atomic_load(&d->in_use))
		return;
	if (d->root >= 0) {
		pthread_rwlock_wrlock(&d->lock);
		dir_close(d);
		pthread_rwlock_unlock(&d->lock);
		/* Somebody made a new state, or removed it: nothing to wait for. */
		d->retry_ns = now + (atomic_load(&d->failed) == ESTALE ? 0 : RETRY_NS);
	}
	if (now < d->retry_ns || cache_dir_open(d) != 0)
		return;
	log_info("cache: %s is in use again", d->path);
}

/* ---- Which one ---- */

/* Rendezvous hashing, weighted by size: a directory more or less moves only its own share. */
static double dir_score(const struct cache_dir *d, uint64_t hash)
{
	uint64_t mixed = XXH3_64bits_withSeed(&hash, sizeof hash, d->id);
	return -(double)d->size / log(((double)(mixed >> 11) + 0.5) / 9007199254740992.0);
}

struct cache_dir *cache_dir_enter(struct cache *c, uint64_t hash)
{
	struct cache_dir *best = NULL;
	double best_score = 0;
	for (int i = 0; i < c->dir_count; i++) {
		struct cache_dir *d = &c->dirs[i];
		pthread_rwlock_rdlock(&d->lock);
		double score = !atomic_load(&d->in_use) ? 0 : c->dir_count > 1 ? dir_score(d, hash) : 1;
		if (score <= best_score) {
			pthread_rwlock_unlock(&d->lock);
			continue;
		}
		if (best)
			pthread_rwlock_unlock(&best->lock);
		best = d;
		best_score = score;
	}
	return best;
}

bool cache_dir_enter_again(struct cache_dir *d, uint64_t generation)
{
	pthread_rwlock_rdlock(&d->lock);
	if (atomic_load(&d->in_use) && d->generation == generation)
		return true;
	pthread_rwlock_unlock(&d->lock);
	return false;
}

void cache_dir_leave(struct cache_dir *d) { pthread_rwlock_unlock(&d->lock); }

/* ---- Buckets ---- */

int cache_bucket_open(struct cache_dir *d, unsigned bucket, bool make)
{
	char name[4];
	struct stat st;
	cache_bucket_name(name, bucket);
	int fd = openat(d->root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 || errno != ENOENT || !make)
		return fd >= 0 ? fd : -errno;
	if (mkdirat(d->root, name, FOLDER_MODE) < 0 && errno != EEXIST)
		return -(errno == ENOENT ? ENODEV : errno); /* the directory itself is gone */
	fd = openat(d->root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && fstat(fd, &st) == 0)
		atomic_fetch_add(&d->state->buckets[bucket].bytes, (int64_t)st.st_blocks * 512);
	return fd >= 0 ? fd : -errno;
}

DIR *cache_bucket_list(struct cache_dir *d, unsigned bucket)
{
	int fd = cache_bucket_open(d, bucket, false);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	int error = fd < 0 ? -fd : errno;
	if (!stream && fd >= 0)
		close(fd);
	errno = error;
	return stream;
}

void cache_dir_temp(struct cache_dir *d, char letter, char name[CACHE_NAME])
{
	struct cache_temp t = { .slot = d->slot, .nonce = d->nonce, .number = atomic_fetch_add(&d->temp_next, 1) };
	cache_temp_make(name, letter, &t);
}
