/* What lies in a cache directory, and how it is called.
 *
 *   epochfs-cache      says that this is a cache: "EpochFS cache, format 1\nid " and 16 hex
 *                      digits, random, and "\n".  Locked (flock) by whoever removes, counts
 *                      or makes files
 *   state              what the processes share: state.h
 *   00 .. ff           buckets, by the first byte of the key's hash; in them
 *   o-STORE-OBJECT         an object's bytes and a trailer: objects.c
 *   f-STORE-VOLUME-INODE   a file's backing file: files.c
 *   m-STORE-VOLUME-INODE   its map
 *   t-SLOT-NONCE-NUMBER    being written, by the process with that slot and nonce
 *   s-SLOT-NONCE-NUMBER    a backing file that made way for a newer one while it was in use
 *
 * All fields are lower-case hex of fixed width.  Whatever else lies there is not ours:
 * neither counted nor touched.  The same goes for what is no regular file.  The mode of an
 * object or backing file has the sticky bit while it is pinned, and the time of modification of an
 * object is its volume, in seconds: both can be had by one stat. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define CACHE_NAME 64
#define CACHE_BUCKETS 256u
#define CACHE_MARKER "epochfs-cache"
#define CACHE_STATE "state"

/* No padding: it is hashed as it is. */
struct cache_key {
	uint8_t store[16];
	uint64_t id;     /* of the object or the inode */
	uint32_t volume; /* of a file; 0 for objects */
	uint32_t kind;   /* 'o' or 'f' */
};
_Static_assert(sizeof(struct cache_key) == 32, "no padding");

uint64_t cache_key_hash(const struct cache_key *k);
static inline unsigned cache_key_bucket(uint64_t hash) { return (unsigned)(hash >> 56); }

/* letter: 'o', 'f' or 'm'. */
void cache_name_make(char out[CACHE_NAME], char letter, const struct cache_key *k);
/* The letter of a name made so, or 0. */
char cache_name_parse(const char *name, struct cache_key *out);

struct cache_temp {
	unsigned slot;
	uint64_t nonce, number;
};
/* letter: 't' or 's'. */
void cache_temp_make(char out[CACHE_NAME], char letter, const struct cache_temp *t);
char cache_temp_parse(const char *name, struct cache_temp *out);
void cache_bucket_name(char out[4], unsigned bucket);
