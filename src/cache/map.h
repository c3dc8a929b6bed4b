/* The map of a file in the cache: files.c says what it looks like. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define MAP_HEADER 80u

struct cache_file;

static inline uint64_t cache_map_offset(uint64_t chunk) { return MAP_HEADER + chunk * 8; }
/* Writes the header: all chunks are here and synced, or not. */
int cache_map_mark(struct cache_file *f, bool whole);
bool cache_map_is_whole(struct cache_file *f); /* whoever marked it */
/* Nobody else has written to the backing file, or cut it off, since it was opened or this was asked last.  False: all of it is to be
 * verified again. */
bool cache_backing_is_untouched(struct cache_file *f);
/* Around our own writes to it. */
void cache_backing_write_begin(struct cache_file *f);
void cache_backing_write_end(struct cache_file *f);
bool cache_map_is_void(struct cache_file *f); /* somebody has detached it: its content may be another one now */
