/* A cache in a folder of its own, with content that can be told from its number. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "cache/cache.h"

#define MIB ((uint64_t)1 << 20)

struct place {
	char folder[64];
	char dirs[3][80]; /* folder/0, /1, /2: not made yet */
	const char *dir_names[3];
	bool mounted; /* folder is a tmpfs */
	int64_t now;  /* what the clock says */
	struct clock clock;
	struct cache_options options; /* one directory, 64 MiB */
	struct cache *cache;
};

int place_make(void **state);   /* no cache yet */
int place_remove(void **state); /* closes it, if there is one */
void place_open(struct place *p);
void count_await(struct cache *c); /* on a busy machine opening does not wait for it */
void place_close(struct place *p);
/* The folder becomes a tmpfs of that size.  False: not allowed to; the test is to be skipped. */
bool place_mount(struct place *p, unsigned mib);
/* All that is in the folder, as du would count it. */
uint64_t place_bytes(const char *folder);
/* The path of the only file in directory 0 whose name begins so, or with "" the first of any; false: none. */
bool place_find(struct place *p, const char *prefix, char *out, size_t size);
uint64_t place_count(struct place *p, const char *prefix);

void content_fill(uint64_t number, uint64_t offset, void *out, size_t length);
bool content_is(uint64_t number, uint64_t offset, const void *bytes, size_t length);
int object_add(struct cache *c, uint64_t object, size_t size, unsigned flags);
/* 0 or what cache_object_read says; fails the test if the bytes are wrong. */
int object_read(struct cache *c, uint64_t object, size_t size);
int chunks_add(struct cache_file *f, uint64_t number, uint64_t offset, size_t length);
int chunks_read(struct cache_file *f, uint64_t number, uint64_t offset, size_t length);
void file_damage(const char *path, uint64_t offset); /* as a disk does: its times stay */
