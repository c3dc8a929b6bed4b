/* Files that are read without having been opened.
 *
 * The kernel can be told that opening needs no message.  Then it reads files nobody has heard of being opened, keeps pages
 * of them for as long as it likes, and does not say when they are closed.  For clients that only read (client_view).
 *
 * Kept open here are the files that were read last, KEPT_MOST of them, each until it was not read for KEPT_NS.  One that goes:
 *
 *   under the lease of the volume   its pages may stay, as nobody can change it; it is noted (`paged`)
 *   of a replica                    its pages may stay, as the kernel is told of each change (client_news)
 *   in company                      the kernel forgets its pages first, as we would not be told that they are out of date
 *
 * When the lease goes, or may have gone unnoticed (kept_sweep), the kernel forgets the pages of all that are noted, and
 * what nobody reads just now goes, too.
 *
 * Any thread.  A thread of its own makes the kernel forget, which may wait for reads under way. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"

struct client;
struct kept_file;

struct kept {
	pthread_mutex_t lock; /* guards all below; the last of all locks, but lease_held is asked under it */
	pthread_cond_t work, swept;
	struct intmap files; /* inode -> struct kept_file */
	struct kept_file *newest, *oldest;
	struct intmap paged; /* inode / 64 -> bits */
	uint64_t sweeps, sweeps_done;
	bool stopping, started;
	pthread_t thread;
};

void kept_init(struct kept *k);
int kept_start(struct client *c);
void kept_stop(struct client *c); /* closes all */
void kept_free(struct kept *k);
/* Before the server is told what is open: what nobody reads just now is closed and noted. */
void kept_note_idle(struct client *c);
/* Waits for its end if `alive` is given, which is called from time to time meanwhile.  Not from a thread that handles a read. */
void kept_sweep(struct client *c, void (*alive)(struct client *c));
