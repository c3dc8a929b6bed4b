/* Making the kernel forget its pages of a file, while programs go on asking for them.
 *
 * A request of the kernel holds pages (they are locked), and forgetting them waits for its
 * answer; so requests must be answered meanwhile.  But what is answered behind the
 * forgetting stays.  Two facts bring it to an end:
 *
 *   - A request that was there before forgetting its pages began is no harm: they go with the rest.
 *   - One that comes later can wait, unless the forgetting waits for it.
 *
 * So a file is forgotten stretch by stretch.  Requests that come wait here, until the turn of
 * a stretch comes that they touch: then they are let through.  One that has waited for
 * HOLD_NS may be what the forgetting waits for; it is let through, too, and its pages are
 * forgotten once more at the end.  Those come for single pages of a moment, not for a whole
 * file of a second, so it does not go on for ever.
 *
 * All of it with inode.lock held, which is given up meanwhile.
 *
 * The end.  A read() behind the end the kernel knows of asks for the attributes, but the kernel ignores the answer if pages of the
 * file are forgotten meanwhile, and the read() ends at the old end (fuse/given.h).  So before pages are forgotten the kernel is made to
 * know how long the file is (pages_extend).  That is enough: whoever makes the file longer after that does so after the
 * read() has begun.  When this mount itself cuts the file, the kernel learns of the new end by the answer; a size from before must not
 * come after that (`cutting`).
 *
 * Writing.  A write() puts its bytes into the pages, lets go of those it has filled or that were there, and only then sends
 * them.  Pages that leave in between come back with the next read, without those bytes, as we have not had them yet; when we have,
 * the page would stay as it is.  So, when they have come, such pages are forgotten once more before the write is answered
 * (pages_doubt).  The kernel does one write() to a file at a time: it began after the one before it was answered, and after its
 * file was opened.  If no page has left since, or nothing was read, all is well.
 *
 * Direct I/O writes around the pages.  The kernel makes them leave before it sends such a write, but not after an asynchronous
 * one (io_submit, io_uring).  So these pages have always left, and if any of them was read since, they are forgotten before the
 * write is answered.  Any number of such writes may be under way, beside one through the pages: for that one they count as
 * removals.  Direct I/O that reads leaves nothing in the pages, and costs such writes nothing. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct client_file;
struct inode;

/* Bytes of a file, up to but not including `to`. */
struct stretch {
	uint64_t from, to;
};
/* For what leaves nothing in the kernel's pages. */
#define NO_PAGES ((struct stretch){ 0, 0 })

struct pages {
	bool leaving;
	struct pages_request *waiting; /* requests that are held up */
	struct stretch *again;         /* what was let through, and is to be forgotten once more */
	size_t again_count;
	_Atomic uint64_t removals;  /* begun, and ended */
	struct stretch read;        /* all that was read since the last of all pages began is within it */
	uint64_t written;           /* removals when something was written last through the pages */
	_Atomic unsigned reading;   /* requests that have locked pages to fill, and may wait for the server */
	uint64_t lapse;             /* the number of the last holdings_lapsed that had its pages forgotten: that thread's */
	struct pages_wait *repairs; /* writes that wait for pages to be forgotten (holding_repair) */
	bool extending;             /* the kernel is being told how long the file is */
	unsigned cutting;           /* calls under way that make the file shorter */
};

/* inode.lock is held, and given up meanwhile.  Does nothing without a grant. */
void pages_extend(struct inode *i);
/* Without the lock.  Around a call of this mount that sets the size. */
void pages_cut_begin(struct inode *i);
void pages_cut_end(struct inode *i);
/* From `from` on.  Until the lock is given up the kernel has nothing of it; one at a time. */
void pages_leave(struct inode *i, uint64_t from);
/* While they leave: a request waits for its turn.  False: they have left, and what the request rests upon may have gone. */
bool pages_admit(struct inode *i, struct stretch wanted);
void pages_removal(struct inode *i); /* begins, or has ended; with or without the lock */
void pages_note_read(struct inode *i, struct stretch s);
/* Whether some of the pages that were just written through the file may have come back from before.  `around`: the kernel made
 * them leave itself before it sent what was written. */
bool pages_doubt(const struct client_file *f, struct stretch s, bool around);
/* Without any lock.  Once, whatever comes meanwhile. */
void pages_forget(struct client *c, uint64_t inode, uint64_t from, uint64_t to);
