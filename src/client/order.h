/* The order in which a job says it will read files, and how far ahead of it to fetch.
 *
 *   position:   first ........ furthest ............ next .............. first + count
 *               |  read, or about to be  |  fetched   |  known, waiting  |
 *
 * `furthest` follows the last file of the order that was seen to be opened.  Many workers read it, each a bit of its own, so those
 * before it that were not seen are still to come; some never will (a file whose pages the kernel has is read without a word).  So the
 * low-water mark `first` goes past those seen, and past those that lie more than `lag` behind the furthest.
 *
 * Fetched and not yet seen are at most `window` bytes and `ahead` files.  A file that is larger than the window counts, and is
 * to be fetched, as far as the window goes.  Of these at most `memory` bytes are in memory rather than on the
 * disk; which it is turns out when they are fetched, so the first few that go there may be more.
 *
 * A file may stand in it many times (epochs).  Seeing it once is the first of them that was not seen.  One that is further ahead than
 * `ahead` files is not believed by itself: a file that is read in several pieces would bring the next epoch; several in a row are.
 *
 * Pure: no threads, no clock, no client.  About 56 bytes a file of those between first and the end. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"

struct order_entry;

enum order_outcome { ORDER_FAILED, ORDER_ON_DISK, ORDER_IN_MEMORY };

struct order {
	uint64_t window, ahead, memory, lag;
	struct order_entry *entries; /* a ring */
	uint32_t capacity;
	uint64_t first, count, next, furthest;
	uint64_t ahead_bytes, ahead_files; /* taken and not seen, from `first` on */
	uint64_t memory_bytes;             /* those of them in memory */
	uint64_t flying_bytes;             /* taken and not done */
	uint64_t far, far_count;           /* the last one that was not believed, and how many there were in a row */
	struct intmap waiting;             /* inode -> its first position that was not seen, + 1 */
	struct intmap latest;              /* inode -> its last position, + 1 */
	/* For those who look. */
	uint64_t added, seen, passed, failed;
	uint64_t ready, ready_bytes; /* fetched, or found to be here, ahead of the reader */
};

int order_init(struct order *o, uint32_t capacity, uint64_t window, uint64_t ahead, uint64_t memory); /* 0 or -ENOMEM */
void order_free(struct order *o);
int order_add(struct order *o, uint64_t inode, uint64_t bytes); /* 0; -ENOSPC: later; -ENOMEM */
/* The next to be fetched, `bytes` of it; false: none, at present. */
bool order_take(struct order *o, uint64_t *position, uint64_t *inode, uint64_t *bytes);
void order_done(struct order *o, uint64_t position, uint64_t bytes, enum order_outcome outcome); /* one that was taken */
bool order_seen(struct order *o, uint64_t inode); /* true: there may be more to take, or to add */
