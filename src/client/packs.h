/* Small files come in packs, objects that many of them share.  With a cache on the local disk (cache/cache.h) the first read of
 * one of them brings the whole pack in one round-trip, and the others are here.  Without one, and of packs it does not want, the
 * fourth does, of files that were lately read alone: who reads in the order of writing, as whoever copies a directory, wants the rest, too.
 *
 * A flight is a pack on its way:
 *
 *   free --(a read misses it)--> fetching --> landed --(written to the disk)--> free
 *                                  |    |
 *                                  |    +--(not for the disk)--> held --(another takes its place, or it is damaged)--> free
 *                                  |                              +--(told to be kept: pack_keep)--> landed
 *                                  +--(failed, or the cache does not want it)--> free
 *
 * Whoever wants something of it waits until it has landed and reads it from the flight's buffer; a thread
 * writes it to the disk meanwhile.  One that is held goes when the flight is wanted for the disk; for another to be held, once most of it
 * was read, or nothing of it while 64 others were.  A flight has room for the packs of the volume, PACKS_BYTES or a block and a quarter of one, and as
 * many are under way as PACKS_MEMORY has room for, PACKS_FLIGHTS at most and one at least; memory that was used for one stays
 * for the next.  When all are taken, and for packs that are larger or that nobody wants whole, readers fetch their own range alone.
 *
 * Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include "base/intmap.h"

struct client;
struct extent;

#define PACKS_FLIGHTS 8
#define PACKS_KEEPING 5 /* of so many, at most, for packs that nobody reads yet (pack_keep); of fewer the same share, but one */
#define PACKS_BYTES (8u << 20)
#define PACKS_MEMORY (64u << 20)
#define PACKS_REFUSED 4096u
#define PACKS_ALONE 16u /* in a random order over some dozens of packs no four of so many files are of the same one */

struct packs {
	pthread_mutex_t lock;    /* guards all below, but for the buffers of flights that are not free */
	pthread_mutex_t mending; /* one of warm's drops, fetches and compares a pack; taken before `lock` */
	pthread_cond_t landed, work;
	struct flight *flights;
	int count;
	uint32_t bytes;                  /* of the buffer of each */
	uint64_t refused[PACKS_REFUSED]; /* objects that were not wanted, or too large, lately */
	uint64_t forget_at;              /* the next of them to be given another chance */
	struct {
		uint64_t object;
		uint32_t place;
	} alone[PACKS_ALONE]; /* whose content was read last without a flight, in turn */
	uint32_t alone_at;
	uint64_t reads;        /* that were not of the disk */
	struct intmap fetched; /* 64 objects -> a bit for each that was written to the disk since the volume was mounted */
	bool stopping;
	pthread_t thread;
	bool started;
};

int packs_start(struct client *c); /* after its cache was opened, if it has one */
void packs_stop(struct client *c);
/* Brings the whole object to the cache on the disk, if it is not there, and marks it (enum of cache/cache.h).  When it returns it is
 * written.  Counts what was fetched.  0; -ENOENT; -ENOSPC: there is no room for it, and it was not fetched (but if the room was
 * taken meanwhile); -EFBIG: it is larger than PACKS_BYTES; -errno. */
int pack_keep(struct client *c, uint64_t object, unsigned flags, uint64_t *fetched);
/* Whether the pack came to the cache since the volume was mounted: its files may be damaged, but for those that were read. */
bool pack_was_fetched(struct client *c, uint64_t object);
/* A range of the stored bytes of an extent that may be in a pack, from the disk or by way of a flight.  0; -ENOENT: there is no such
 * object; -EAGAIN: the range must be fetched alone. */
int packs_read(struct client *c, const struct extent *e, uint32_t offset, uint32_t length, const struct iovec *into, int count);
/* What came of an object was damaged: whether that is forgotten now, and another read may bring it whole. */
bool packs_drop(struct client *c, uint64_t object);
