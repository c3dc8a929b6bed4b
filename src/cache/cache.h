/* The cache on the local disk.
 *
 * In one or several directories, shared by all processes of the host that name the
 * same ones; it survives them, kill -9 and reboots, and is there at once however much
 * it holds.  It never exceeds its size, leaves `min_free` of the file system to others,
 * and is never a source of wrong data or of errors: what cannot be read is "not here"
 * (-ENOENT), what cannot be kept is "not kept".  Two kinds of content:
 *
 * Objects of the store, whole, as stored, by their id.  They never change.  Their
 * readers verify every byte; here only the length is checked.  A hit is one system call
 * (preadv) while the object is among those open, the last used (an eighth of what the process may
 * open, at most 4096 a directory); eight otherwise.
 *
 * Files: the content of one large file at one version, in a backing file of the same
 * layout that the kernel can read by itself (passthrough).  It is filled in chunks of
 * CACHE_CHUNK bytes in any order by any number of threads and processes.  Each chunk has
 * a checksum, compared whenever it is read through us; a damaged one is not here any
 * more.  A hit is two system calls, if it is of whole chunks, else two for each chunk.
 *
 * Who stays.  Training reads a set larger than the cache in random order, again and
 * again; whatever is replaced by something as often used is lost work.  So while there is
 * no room a newcomer is only let in at the expense of entries that have not been used for
 * longer than those in use are observed to take from one use to the next (usage.c), that
 * is, of those of a set that is no longer read.  With 60 % of the set in the cache 60 % of
 * the reads are hits, in every epoch, where LRU would have 23 % (random) or none (the same
 * order each time).  The price: after a change of the set the old one stays for up to one
 * and a half of its longest intervals, at least for one cache size of requests (and 4
 * while nothing is known); told entries (CACHE_TOLD) do not wait for that.
 *
 * Any thread may call anything, except that cache_close is the last call and that one
 * thread calls cache_tend.  Nothing here waits for another process for more than 20 ms at a
 * time, but for opening a directory (2 s). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/clock.h"

#define CACHE_STORE_ID 16u
#define CACHE_CHUNK 65536u

struct cache;
struct cache_file;

/* Bytes, or a percentage of the file system where that is not 0. */
struct cache_amount {
	uint64_t bytes;
	unsigned percent;
};

struct cache_share {
	uint32_t volume; /* of the cache's store */
	unsigned percent;
};

struct cache_options {
	const char *const *dirs;
	int dir_count;
	struct cache_amount size;     /* in each directory */
	struct cache_amount min_free; /* on the file system of each */
	uint8_t store[CACHE_STORE_ID];
	const struct cache_share *shares; /* volumes that may not have all of it */
	int share_count;
	const struct clock *clock;
	uint64_t (*memory)(void); /* how many bytes are available; NULL: memory_available (base/memory.h) */
};

/* Copies the options, but for the clock.  A directory that is missing is made; one that cannot be used now
 * is tried again later, with a line in the log.  An error is a mistake that the user must
 * mend: -ENOTEMPTY (a directory that holds something else), -EPROTONOSUPPORT (a cache of
 * another format), -ENOTDIR, -EINVAL; *bad is then which directory; -ENOMEM. */
int cache_open(const struct cache_options *options, struct cache **out, int *bad);
void cache_close(struct cache *c); /* all files must be closed */

/* The housekeeping; to be called about 10 times a second by one thread.  Makes room when
 * others fill the disk, takes directories out of use and back, counts what the directories
 * hold (all of it after an unclean end, a bit now and then otherwise), makes whole files
 * durable, and verifies up to scrub_bytes of them. */
void cache_tend(struct cache *c, uint64_t scrub_bytes);

enum {
	CACHE_TOLD = 1, /* will be read soon: let in before all that is not told; until its next read */
	CACHE_PIN = 2,  /* never evicted but for min_free */
};

/* ---- Objects ---- */

/* 0; -ENOENT: not here (or no longer, or not as long as that). */
int cache_object_read(struct cache *c, uint64_t object, uint64_t offset, const struct iovec *into, int count);
/* The same, to verify it: counts as no use. */
int cache_object_peek(struct cache *c, uint64_t object, uint64_t offset, const struct iovec *into, int count);
/* With CACHE_TOLD or CACHE_PIN: and is marked so, if it is here.  Counts as no use. */
bool cache_object_has(struct cache *c, uint64_t object, unsigned flags);
/* 0; -EEXIST (and marked, as above); -ENOSPC: not worth what it would replace, at present; another: not kept.
 * As large as an object can be (block/object.h). */
int cache_object_add(struct cache *c, uint32_t volume, uint64_t object, const struct iovec *parts, int count, unsigned flags);
/* Whether an object of that size would be let in now, with these flags; room is made for it.  For those who have to fetch it first. */
bool cache_object_wanted(struct cache *c, uint32_t volume, uint64_t object, uint64_t size, unsigned flags);
void cache_object_unpin(struct cache *c, uint64_t object);
void cache_object_drop(struct cache *c, uint64_t object); /* it was found to be damaged */

/* ---- Files ---- */

struct cache_file_key {
	uint32_t volume;
	uint64_t inode, version, size; /* a higher version is a newer one */
};

/* Opens the file in the cache, empty if it is not there.  An older version makes way: whoever
 * has it open can go on reading it.  0; -ESTALE: a newer version is here; -ENOSPC, -EAGAIN
 * (another process is busy there) and others: go on without. */
int cache_file_open(struct cache *c, const struct cache_file_key *key, unsigned flags, struct cache_file **out);
void cache_file_close(struct cache_file *f);
/* Within the file's size.  0; -ENOENT: not all of it is here. */
int cache_file_read(struct cache_file *f, uint64_t offset, const struct iovec *into, int count);
/* Whole chunks from a multiple of CACHE_CHUNK on, the last one of the file shorter.  0, also for what is
 * there already; -ENOSPC, -errno: some or all of it was not kept. */
int cache_file_add(struct cache_file *f, uint64_t offset, const void *bytes, size_t length);
/* The same of chunks that are not side by side in memory: each part is one. */
int cache_file_add_chunks(struct cache_file *f, uint64_t offset, const struct iovec *parts, int count);
/* Whether what is added from here on stays in memory, too, in the page cache, as far as there is room (fill.c has the rule): for a file
 * that the kernel will read by itself when it is opened next.  At first it does not. */
void cache_file_keep_pages(struct cache_file *f, bool keep);
/* The first absent run of chunks in [offset, offset + length): false if there is none. */
bool cache_file_absent(struct cache_file *f, uint64_t offset, uint64_t length, uint64_t *absent, uint64_t *absent_length);
bool cache_file_is_complete(struct cache_file *f); /* all of it is here and verified */
/* A descriptor for reading, once all of it is here and verified; else -ENOENT.  A file that another
 * process filled and left is verified a few MiB a call, -EAGAIN meanwhile.  It belongs to the file; a duplicate of it
 * (the kernel's included) keeps the content in the cache after cache_file_close. */
int cache_file_whole(struct cache_file *f);
/* It is not whole yet, and half of it was read or added by this process, or all of it is here and only to be verified. */
bool cache_file_is_worth_completing(struct cache_file *f);
void cache_file_pin(struct cache_file *f, bool pinned);

/* A file that is passed through, and is to show another content from now on.  From here on nobody takes it for
 * what it was: neither here, where it reads as "not here", nor in another process, nor after a crash of the machine.
 * 0; -errno: it could not be made sure of, and it must not be changed. */
int cache_file_detach(struct cache_file *f);
/* Of a detached one: whether no other process has it open, too, and shows it as what it was. */
bool cache_file_is_alone(struct cache_file *f);
int cache_file_patch(struct cache_file *f, uint64_t offset, const void *bytes, size_t length); /* 0 or -errno */
int cache_file_cut(struct cache_file *f, uint64_t size);                                       /* longer or shorter */

/* ---- What there is to tell ---- */

struct cache_dir_stats {
	const char *path; /* lives as long as the cache */
	bool in_use, counting;
	int error; /* an errno: why it is out of use */
	uint64_t bytes, entries, size_bytes;
	uint64_t room_bytes; /* that are not taken yet */
	uint64_t free_bytes; /* on its file system, beyond min_free, a moment ago */
};
struct cache_stats {
	uint64_t bytes, entries; /* in the directories in use, of all processes */
	uint64_t hits, misses, adds, refusals, evictions, damaged, scrubbed_bytes; /* of this one */
	int dir_count;
};
void cache_stats(struct cache *c, struct cache_stats *out);
void cache_dir_stats(struct cache *c, int dir, struct cache_dir_stats *out);
/* The bytes that are pinned in a directory: of all processes.  Each file is looked at, until `deadline_ns` (clock_steady_ns): 0;
 * -ETIMEDOUT, -errno: not all of them were. */
int cache_dir_pinned(struct cache *c, int dir, int64_t deadline_ns, uint64_t *out);
