/* Newborns: files this client has made by itself, under the lease of the volume, and
 * has not told the server of yet.
 *
 *   create() --> number from our range, name claimed in the catalog --> queued, the call returns
 *                                                                          |
 *   another create() --> queued                                            v
 *   another create() --> queued ----------------------------> one CREATE_MANY for all of them
 *
 * Order: the server learns of newborns before it gets any other request of ours that
 * could depend on them (client_call waits for those made before it), so every change
 * of names reaches it in the order it was made here.  After a crash of the client
 * the namespace is as it was at some moment, at most a few milliseconds before; what
 * was fsynced is there.
 *
 * What can go wrong, and what is done:
 *   no lease, no numbers, the directory's names are not known,   the server is asked, as without
 *   it has a default ACL                                         a lease
 *   too many are queued                                          the call waits
 *   the server is away                                           they are kept and told when it is back; who waits for
 *                                                                them gets -EIO after the time-out
 *   the server refuses one (only when the lease had run out      it is logged, its data is dropped, and the file's error
 *   and somebody else was quicker)                               is reported at the next fsync
 *
 * Any thread.  */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "client/client.h"

struct client;
struct inode;

struct newborns {
	pthread_mutex_t lock; /* guards all below but `waiting` */
	pthread_cond_t work, told;
	struct newborn *first, **end;
	uint32_t queued;
	uint64_t made, settled; /* how many, ever */
	uint64_t wanted;        /* so many of them are to be told without delay */
	uint64_t next_number, numbers_left;
	int64_t ask_numbers_at_ns; /* not before: the server had none to give */
	bool stopping, started;
	pthread_t thread;
	_Atomic uint64_t waiting; /* made - settled */
};

void newborns_init(struct newborns *n);
void newborns_free(struct newborns *n);
int newborns_start(struct client *c);
void newborns_stop(struct client *c); /* what cannot be told now is lost, and logged */

/* A new file.  -EAGAIN: the server is to be asked.  *inode comes with a reference. */
int newborn_make(struct client *c, uint64_t parent, const char *name, uint32_t mode, const struct client_identity *who,
		 struct inode **inode, struct entry *out);
/* The attributes of one; false: it is none. */
bool newborn_entry(struct client *c, uint64_t inode, struct entry *out);
/* Has the server told of all that were made before, without delay and without waiting for it. */
void newborns_hasten(struct client *c);
/* Until the server knows of all that were made before; -EIO after the time-out. */
int newborns_settle(struct client *c);
int newborns_settle_within(struct client *c, int64_t timeout_ms); /* likewise */
/* The lease is gone: nobody makes any from here on; numbers are void. */
void newborns_bar(struct client *c);
