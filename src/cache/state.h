/* Inside the cache: what its files share.
 *
 * The state file of a directory is mapped by every process that uses it.  All of it is
 * in the byte order of the host and may hold anything (a crash, another program): nothing
 * in it is used as a size or an index without a bound.  Losing it loses nothing but
 * the memory of who was used when, and a count that is made again.  It is as long as
 * struct cache_state with its cells, its blocks are allocated beforehand, and it is never cut
 * off, only replaced.  Should somebody else do so, or the disk fail, what is missing reads as
 * zeroes (guard.h).
 *
 * The bytes taken in a directory are the sum of what the slots reserve and what the
 * buckets hold.  There is no other total that could become wrong:
 *
 *   add      slot += n, look at the sum (too much: slot -= n); write; name; bucket += n; slot -= n
 *   remove   unlink; bucket -= n                               with the removal lock
 *   count    look at each file of a bucket; bucket = that      with the removal lock
 *
 * Killed anywhere in between, a process leaves the sum too high, never too low: a dead
 * process's reservation stands until all has been counted again.
 *
 * Locks, in the order they are taken: the directory's rwlock; removal (a mutex, then flock
 * of the marker); the cache's files; the descriptors. */
#pragma once
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include "base/descriptors.h"
#include "base/intmap.h"
#include "cache/cache.h"
#include "cache/names.h"

#define CACHE_MAGIC 0x3145544154534645ULL /* "EFSTATE1" */
#define CACHE_SLOTS 256u
#define CACHE_VOLUMES 64u
#define CACHE_INTERVALS 64u
#define CACHE_MISSED 1024u
#define CACHE_ENTRY_BYTES 512u /* of an inode and a name, beside the blocks */
#define CACHE_MODE 0640
#define CACHE_PINNED S_ISVTX
#define CACHE_OPEN_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)

struct cache_slot {
	_Atomic uint64_t nonce; /* 0: free.  Its user holds a lock (F_OFD) on byte number slot of the file */
	_Atomic int64_t reserved;
};
struct cache_bucket {
	_Atomic int64_t bytes, entries;
};
struct cache_volume {
	_Atomic uint64_t key; /* hash of store and volume; 0: free */
	_Atomic int64_t bytes;
};

struct cache_state {
	_Atomic uint64_t magic;
	_Atomic uint64_t boot;            /* the boot in which the buckets were counted; 0: they are not to be trusted */
	_Atomic uint64_t tick_bytes;      /* as many bytes of requests are a tick */
	_Atomic uint64_t cells;           /* a power of two */
	_Atomic uint64_t clock;           /* bytes requested so far */
	_Atomic uint32_t doubts, settled; /* not equal: count all of it soon */
	_Atomic int64_t counted_ns;       /* when a bucket was counted last */
	_Atomic uint64_t next_bucket;     /* to be counted */
	_Atomic uint32_t intervals[CACHE_INTERVALS];
	struct cache_volume volumes[CACHE_VOLUMES];
	struct cache_slot slots[CACHE_SLOTS];
	struct cache_bucket buckets[CACHE_BUCKETS];
	_Atomic uint16_t cell[]; /* last use, by hash: usage.c */
};

/* Who may be evicted. */
enum cache_level {
	LEVEL_AGED, /* those out of use: for a newcomer */
	LEVEL_TOLD, /* all but those told: for one that is told */
	LEVEL_ANY,  /* all that is not pinned: the size was made smaller */
	LEVEL_ALL,  /* min_free */
	LEVELS
};

/* Who wants in. */
struct cache_newcomer {
	uint32_t volume;
	enum cache_level level;
	uint32_t limit; /* at LEVEL_AGED: at the expense of those not used for longer than that, in ticks */
};

struct cache_victim {
	uint64_t hash;
	uint32_t age;
	char name[CACHE_NAME];
};

/* A count of all buckets on its way.  One process at a time (an F_OFD lock) makes it. */
struct cache_count {
	bool running;
	unsigned next;
	uint32_t doubts;
	uint64_t dead[CACHE_SLOTS]; /* nonces of those that were dead when it began */
	int64_t volumes[CACHE_VOLUMES];
};

struct cache_dir {
	struct cache *cache;
	char *path;
	pthread_rwlock_t lock; /* held for reading by all who use what follows; for writing to open and close it */
	_Atomic bool in_use;
	_Atomic int failed; /* an errno: why it is not in use; to be closed by cache_tend, if it is open */
	uint64_t generation;
	int root, marker, state_fd;
	struct cache_state *state;
	size_t state_bytes;
	uint64_t cells, tick_bytes;
	uint64_t id, nonce;
	unsigned slot;
	int64_t limit, min_free; /* of what is counted; of the file system */
	uint64_t size;
	dev_t device;
	bool claimed; /* `device` is known */
	int64_t retry_ns;
	struct descriptors objects; /* of the cache's store, by id */
	_Atomic uint64_t temp_next;
	_Atomic uint64_t missed[CACHE_MISSED]; /* objects asked for in vain: usage.c */

	_Atomic int64_t free_bytes, free_spent, free_ns; /* beyond min_free, at free_ns; taken since then */

	pthread_mutex_t removal; /* guards all below; nobody else removes, counts or makes files */
	unsigned hand;           /* the next bucket to look for victims in */
	enum cache_level victims_level;
	unsigned victim_count;
	struct cache_victim *victims;
	_Atomic uint64_t vain[LEVELS];       /* the tick + 1 of a search that found none */
	_Atomic uint32_t vain_limit[LEVELS]; /* and the limit it was made with */
	struct cache_count count;            /* of the thread that tends */
};

struct cache_scrub {
	int dir;
	unsigned bucket;
	struct cache_key *keys; /* of the bucket's files that are still to be looked at */
	size_t key_count;
	struct cache_file *file;
	uint64_t chunk;
};

struct cache {
	struct cache_dir *dirs;
	int dir_count;
	struct cache_options options; /* dirs is not used */
	struct cache_share *shares;
	uint64_t boot;
	_Atomic uint64_t hits, misses, adds, refusals, evictions, damaged, scrubbed;
	_Atomic int64_t memory_ns; /* when it was asked for what is available */
	_Atomic uint64_t memory_bytes;
	pthread_mutex_t files_lock; /* guards all below, and users of the files */
	struct intmap files;        /* hash of key and version -> cache_file */
	struct intmap checked;      /* the same, of whole files that were verified at first use */
	struct cache_file *to_seal;
	struct cache_scrub scrub; /* of the thread that tends */
};

#define FILL_RUNS 8u

struct cache_run {
	uint64_t offset, length;
};

struct cache_file {
	struct cache *cache;
	struct cache_dir *dir;
	uint64_t generation; /* of the directory, when it was opened */
	struct cache_key key;
	uint64_t version, size, chunks, hash, number;
	int read_fd, write_fd, map_fd;
	int users;      /* guarded by files_lock */
	bool listed;    /* in cache->files */
	bool looked_at; /* only that: without a lock, it may be removed or changed meanwhile */
	_Atomic uint64_t *verified;
	_Atomic uint64_t verified_count;
	_Atomic uint64_t absent_at; /* a chunk that was absent when that was last asked, in bytes */
	_Atomic bool whole, sealed, queued;
	pthread_mutex_t touching;  /* guards the two below */
	int64_t mtime_ns;          /* of the backing file, as we know it: what was verified was so since then */
	unsigned writers;          /* of ours under way: it is not known meanwhile */
	pthread_rwlock_t changing; /* shared by who adds to it; alone by who detaches it */
	pthread_rwlock_t syncing;  /* shared by who writes pages to the disk; alone by who says that all of it is there */
	_Atomic bool detached;     /* it is not this content any more: it was changed in place, or could not be written */
	_Atomic bool retired;
	_Atomic unsigned flags;
	uint32_t interval;             /* ticks between the last two times it was opened */
	_Atomic uint64_t refused_tick; /* + 1 */
	_Atomic bool admitted;
	_Atomic bool keeps_pages;
	pthread_mutex_t filling;           /* guards the two below; nothing is taken under it */
	struct cache_run begun[FILL_RUNS]; /* being written to the disk, from the page cache */
	unsigned next_begun;
	struct cache_file *next_to_seal;
};

/* ---- dirs.c ---- */
int cache_dir_init(struct cache_dir *d, struct cache *c, const char *path); /* not yet opened */
void cache_dir_free(struct cache_dir *d);
int cache_dir_open(struct cache_dir *d);
void cache_dir_tend(struct cache_dir *d); /* closes it if it failed, opens it again */
/* The directory for a key, to be left again; NULL: there is none in use. */
struct cache_dir *cache_dir_enter(struct cache *c, uint64_t hash);
bool cache_dir_enter_again(struct cache_dir *d, uint64_t generation);
void cache_dir_leave(struct cache_dir *d);
/* Takes note of an error: one that says that the directory is broken takes it out of use.  Returns it. */
int cache_dir_error(struct cache_dir *d, int error);
/* A descriptor of the bucket, or -errno. */
int cache_bucket_open(struct cache_dir *d, unsigned bucket, bool make);
DIR *cache_bucket_list(struct cache_dir *d, unsigned bucket); /* NULL: errno says why */
void cache_dir_temp(struct cache_dir *d, char letter, char name[CACHE_NAME]);
bool cache_slot_alive(struct cache_dir *d, unsigned slot, uint64_t nonce);
/* Nobody else removes, counts or makes files until the end; false: another process does, for long. */
bool cache_removal_begin(struct cache_dir *d);
void cache_removal_end(struct cache_dir *d);

/* ---- room.c ---- */
static inline int64_t cache_blocks(uint64_t bytes) { return (int64_t)((bytes + 4095) & ~(uint64_t)4095); }
/* Reserves bytes, evicting if need be.  0 or -ENOSPC. */
int cache_room_take(struct cache_dir *d, int64_t bytes, const struct cache_newcomer *n);
void cache_room_give(struct cache_dir *d, int64_t bytes); /* back */
/* It is written: from the reservation into the bucket. */
void cache_room_keep(struct cache_dir *d, unsigned bucket, const uint8_t store[CACHE_STORE_ID], uint32_t volume, int64_t bytes,
		     int entries);
void cache_room_removed(struct cache_dir *d, unsigned bucket, const uint8_t store[CACHE_STORE_ID], uint32_t volume, int64_t bytes,
			int entries);
struct cache_volume *cache_volume_of(struct cache_dir *d, const uint8_t store[CACHE_STORE_ID], uint32_t volume); /* or NULL */
int64_t cache_room_used(struct cache_dir *d);
bool cache_room_trusted(struct cache_dir *d);
void cache_room_doubt(struct cache_dir *d);
void cache_room_tend(struct cache_dir *d); /* down to the size and min_free */

/* ---- count.c ---- */
void cache_count_tend(struct cache_dir *d, int64_t budget_ns);

/* ---- usage.c ---- */
uint64_t cache_usage_tick(const struct cache_dir *d);
/* Returns the ticks since its last use, 0 if that tells nothing. */
uint32_t cache_usage_touch(struct cache_dir *d, uint64_t hash, uint64_t bytes);
void cache_usage_miss(struct cache_dir *d, uint64_t hash, uint32_t interval); /* remembered for a while ... */
uint32_t cache_usage_missed(struct cache_dir *d, uint64_t hash);              /* ... for this */
void cache_usage_tell(struct cache_dir *d, uint64_t hash);
uint32_t cache_usage_age(const struct cache_dir *d, uint64_t hash, bool *told); /* in ticks */
uint32_t cache_usage_limit(const struct cache_dir *d);                          /* older than that: out of use */
/* For a newcomer that was used again after such an interval. */
uint32_t cache_usage_limit_for(const struct cache_dir *d, uint32_t interval);
uint64_t cache_usage_cells(uint64_t size);
uint64_t cache_usage_tick_bytes(uint64_t size);

/* ---- evict.c ---- */
/* With the removal lock.  Bytes freed, 0 if nobody may go. */
int64_t cache_evict(struct cache_dir *d, int64_t bytes, const struct cache_newcomer *n, bool only_its_volume);
/* With the removal lock.  Bytes freed; -EBUSY, -errno. */
int64_t cache_remove(struct cache_dir *d, int bucket_fd, const struct cache_key *key, enum cache_level level);

/* ---- files.c ---- */
/* Without making it, to be looked at; any version.  0 or -ENOENT. */
int cache_file_find(struct cache_dir *d, const struct cache_key *key, struct cache_file **out);
void cache_file_free(struct cache_file *f);
int cache_file_drop(struct cache_file *f); /* whoever opens it next begins anew; -EAGAIN: another process is busy */
void cache_files_seal(struct cache *c);
/* It is detached because some of it could not be written: nobody has it from here any more, and whoever opens it next begins anew. */
void cache_file_lose(struct cache_file *f, int error);

/* ---- chunks.c ---- */
/* Verifies up to that many chunks from *chunk on, which it moves on.  0; -ENOENT: one is absent; -EBADMSG: was damaged. */
int cache_chunks_verify(struct cache_file *f, uint64_t *chunk, uint64_t count, bool again);
void cache_chunks_doubt(struct cache_file *f); /* all of it is to be verified again */
static inline uint64_t cache_chunk_length(const struct cache_file *f, uint64_t chunk)
{
	return chunk + 1 < f->chunks ? CACHE_CHUNK : f->size - chunk * CACHE_CHUNK;
}

/* ---- fill.c ---- */
/* Chunks of the file, to where they belong.  Where an error says that other chunks may be lost as well, the file is. */
int cache_fill_write(struct cache_file *f, const struct iovec *parts, int count, uint64_t offset);
/* What the kernel will read itself is on the disk, though the disk may not have it durably yet; or -errno. */
int cache_fill_end(struct cache_file *f);

/* ---- scrub.c ---- */
void cache_scrub_tend(struct cache *c, uint64_t bytes);
void cache_scrub_free(struct cache *c);
