/* Write-back (--writeback): fsync returns when the local disk has the data; it is uploaded afterwards.
 *
 *   write() --> spool (client/spool.h) --> idle for a second --> job: read back, encode, put, commit --> UNMARK, spool deleted
 *                 |
 *   fsync() ------+--> note, fdatasync --> MARK: the server knows, durably, that the newest data is here --> returns
 *
 * Large writes go to the file's spool at once, small ones when a block of them is full, or with fsync.  The mark is needed
 * once for all that is written until the file is clean again, so an fsync mostly costs what the local disk takes.
 *
 * What must hold, so that nothing that was promised is lost, and nothing old comes back:
 *
 *   1. A spool is durable before its mark is made; the mark is durable before fsync, rename or link go on.
 *   2. The mark goes only after all of the spool was committed, and the spool only after the mark.  After a crash a spool
 *      with its mark is uploaded again, all of it; nobody else could change the file.  One without is deleted.
 *   3. While a file has a spool all its data goes through it (`stale`: that failed), in the order it was written: else
 *      uploading the spool again would bring older data back.
 *   4. Before anything but writing changes the content (truncating, holes, clones), and before the grant is given back, all is
 *      stored and the mark gone (writeback_settle, writeback_drained).
 *   5. While a mark is being taken away (`unmarking`) no fsync returns.
 *
 * Where the disk fails or is full, fsync stores at the server, as it does without write-back.
 *
 * Locks: inode.lock > writeback.lock.  The disk is written to under inode.lock; fdatasync and calls are made without. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "client/spool.h"

struct client;
struct client_options;
struct inode;

struct writeback {
	struct spool_folder *folder; /* NULL: it is off */
	uint8_t id[SPOOL_ID];
	uint64_t upload_limit;   /* bytes a second; 0: none */
	pthread_mutex_t lock;    /* guards all below */
	struct spool_left *left; /* all of it is stored, and its mark is to go */
	_Atomic uint64_t marks;  /* that the server may have: also of files that are stored, until the mark is gone */
	_Atomic bool unclaimed;  /* files with marks may have lost their grant */
};

#define WRITEBACK_DIRECT (128u << 10) /* writes of so much go to the spool at once */

int writeback_id(struct client *c, const struct client_options *o, char *error, size_t error_size); /* before the hello */
int writeback_open(struct client *c, const struct client_options *o, char *error, size_t error_size);
/* Takes over what an earlier mount left; before anything is asked of this one. */
int writeback_adopt(struct client *c, char *error, size_t error_size);
void writeback_finish(struct client *c); /* at the end: marks that can go do */
void writeback_close(struct client *c);
bool writeback_is_on(const struct client *c);
bool writeback_has_marks(const struct client *c);

/* inode.lock is held. */
int writeback_write(struct inode *i, uint64_t offset, const uint8_t *data, size_t size, int64_t *cost, size_t *written);
int writeback_spool(struct inode *i, bool all); /* what is in memory goes to the disk: all, or what is large */
void writeback_gathering(struct inode *i);      /* before a job takes from it */
void writeback_tend(struct inode *i);           /* it may have become clean */

void writeback_claimed(struct inode *i);  /* the grant that was lost is back; given up meanwhile */
int writeback_is_marked(struct inode *i); /* whether the server has its mark: 1, 0 or -errno; given up meanwhile */

/* Without it. */
int writeback_fsync(struct inode *i);
int writeback_settle(struct inode *i);   /* all is stored, and no mark left */
void writeback_drained(struct inode *i); /* the same for who gives a grant back: until that is lost, or the client stops */
int writeback_mtime(struct inode *i, int64_t mtime_ns); /* it is about to be set */

void writeback_tick(struct client *c);
