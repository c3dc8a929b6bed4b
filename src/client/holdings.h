/* What this client may keep of open files: grants (proto/epochfs.proto), and giving them back.
 *
 * Whoever reads needs GRANT_READ, whoever writes GRANT_WRITE.  A file that is open for
 * writing here is only ever held with GRANT_WRITE: a mapping of it may be written to
 * without anybody being told.  A grant comes with OPEN where nobody is in the way, else
 * with the first use (inode_acquire).
 *
 * Giving back, on a thread of its own, as it may take long:
 *
 *   1. What is unstored is stored, and the kernel forgets its pages of the file (pages.h).  The
 *      grant still counts: requests of the kernel that the forgetting waits for are served.
 *   2. When the pages are forgotten the grant is gone.  From here on reading and writing wait.
 *   3. What was written during 1 is stored, and the server is told.
 *
 *   state        grant  recalling  reads and writes        leaves by
 *   none         -      no         ask the server          an answer
 *   held         yes    no         go on                   a recall
 *   releasing    yes    yes        go on, in turn          pages forgotten
 *   returning    -      yes        wait                    stored and told
 *
 * A grant that was lost (the server did not hear of us and let others in, or ended the session)
 * leaves unstored data without one.  It is claimed before it is committed (inode_claim): if
 * nobody changed the file meanwhile all is well, else the data is lost, and that is reported.
 *
 * In a relaxed volume reading in company needs no grant; what is known of a file is good for a second. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "client/pages.h"
#include "epochfs.pb-c.h"

struct client;
struct inode;

#define GRANT_THREADS_MOST 32 /* each waits for one file to be stored, or for the kernel */

/* Threads, and what they are to do. */
struct holding_pool {
	pthread_cond_t work;
	struct holding_job *first, **end;
	pthread_t threads[GRANT_THREADS_MOST]; /* made when there is more to do than they can */
	int thread_count, idle, waiting;       /* waiting: jobs */
};

/* Giving back waits for the server.  What makes the kernel forget, and no more, is done by others: when the server is not heard of
 * any more it has to be done in time. */
enum holding_kind { HOLDING_RETURN, HOLDING_FORGET, HOLDING_KINDS };

struct holdings {
	pthread_mutex_t lock; /* guards all below */
	struct holding_pool pools[HOLDING_KINDS];
	bool stopping;
	_Atomic uint64_t epoch;      /* grows before a grant goes, perhaps of an inode that is not known here yet: CREATE's */
	_Atomic unsigned forgetting; /* jobs that make the kernel forget what was lost */
	_Atomic uint64_t repairs;    /* begun, of pages */
	_Atomic unsigned around;     /* writes around the pages that wait for pages to be forgotten */
};

void holdings_init(struct holdings *g);
void holdings_free(struct holdings *g);
int holdings_start(struct client *c);
void holdings_stop(struct client *c);

/* inode.lock is held, and given up while the server is asked.  0: the grant is held (releasing counts), and reading what is
 * known of the file is right until the lock is given up; or -errno.  `pages`: those the kernel will have of it. */
int inode_acquire(struct inode *i, bool write, struct stretch pages);
/* The same for appending: the kernel has nothing behind the end of the file, and the end is what inode_size says. */
int inode_acquire_end(struct inode *i);
/* inode.lock is held.  What an answer granted; `recalls` is inode.recalls from before it was asked for. */
void holding_take(struct inode *i, Wire__Grant grant, uint64_t recalls);
Wire__Grant holding_wanted(const struct inode *i, bool write); /* inode.lock is held */
/* A handle that may write is about to be opened: GRANT_READ would not do any more.  Without any lock. */
void holding_for_writing(struct inode *i);
void holding_forget_pages(struct inode *i); /* the kernel's, soon, from another thread */
/* inode.lock is held, and given up meanwhile: pages that a write in progress may have left behind as they were are forgotten.
 * `around`: it is one around the pages. */
void holding_repair(struct inode *i, struct stretch s, bool around);
void inode_claim_later(struct inode *i); /* inode.lock is held: the grant was lost, and there is unstored data */
/* Before unstored data is committed whose grant was lost.  Without any lock.  0: it may be committed, but for what is lost;
 * -EAGAIN: not now. */
int inode_claim(struct inode *i);

/* From the lease's thread. */
int holding_recall(struct client *c, uint64_t inode, bool all, uint64_t number); /* begins it; 0 or -ENOMEM */
void holding_written(struct client *c, uint64_t inode, Wire__Written *out);
/* All are gone.  Waits for nothing. */
void holdings_lost(struct client *c);
/* Before the server that was restarted is told what is held: answers of the one before, which are still on their way here,
 * grant nothing, as it would not be told of them; and the kernel forgets what grants on directories covered, which are not told. */
void holdings_restarted(struct client *c);
/* The server is silent: others may be let in any moment.  What is held is not lost yet, but the kernel forgets pages.  By one thread,
 * which numbers the times this happens, from 1 on.  Waits for nobody. */
void holdings_lapsed(struct client *c, uint64_t number);
bool holdings_are_stopping(struct client *c);
