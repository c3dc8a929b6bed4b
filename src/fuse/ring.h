/* The transport by io_uring (Linux 6.14): the kernel puts a request straight into the memory of
 * a thread on the same CPU, and one system call answers it and asks for the next.  A
 * round-trip costs about half of what it does by /dev/fuse.
 *
 * The kernel has one queue for every possible CPU; a request goes to that of the CPU it was
 * made on, into any slot (slot.h) that is armed there, the one armed last first.
 *
 *   workers     threads of one queue, each with an io_uring instance of its own, and one armed slot in it or none.  A worker
 *               handles what comes into its slot, for as long as that takes, and nobody else's request waits behind it.  It
 *               is pinned to the CPU of its queue, which saves waking another one.
 *   attendant   one thread that never blocks.  It holds some armed slots of every queue in reserve.  When a request comes
 *               into one of these, because the queue's workers are busy, it gives the slot to one that has none, or starts
 *               one.  After answering, that worker keeps the slot.  One whose slot went back to the attendant (it goes on after
 *               answering, or somebody else answers later) sleeps, and if too many sleep, ends.  Where no more can be started,
 *               it sends messages to workers that wait with slots of their own, of whatever queue, to take such a request, too.
 *               These go the long way then, and something may have to wait behind them.
 *
 * So there are as many workers as requests were ever handled at once.  Were any to give its slot back without need, it would be the one
 * armed last: the next request came to the attendant, though workers wait, and one more of them to keep it would have to be
 * started, again and again.
 *
 * A request that is answered later (a lock that is waited for) keeps its slot but not its worker.
 * When a queue's reserve runs low the attendant registers new slots; a thousand requests can be
 * kept in each queue, and one more is refused (struct reply's keep fails: ENOLCK), so that there
 * is always a slot for who unlocks.
 *
 * INIT comes by /dev/fuse, and so do FORGETs and INTERRUPTs, also later: there must be a
 * channel.  The order is
 *
 *   ring_start    before INIT is answered: everything that can fail is made ready
 *   INIT is answered with FUSE_OVER_IO_URING (session.ring_wanted; ring_agreed)
 *   ring_open     until then the kernel holds all requests back
 *   ring_stop     after the mount was unmounted or detached, takes no more requests, waits for those being handled
 *   ring_free     after session_end: replies kept for later refer to it */
#pragma once
#include "fuse/session.h"

struct ring;

/* Whether the kernel offers it to mounts that are made now; else `why` says what to do. */
bool ring_possible(char *why, size_t why_size);

/* fd: the mounted /dev/fuse; stays the caller's, and open until ring_stop. */
int ring_start(struct session *s, int fd, struct ring **out);

/* 0: requests come by it now.  -EOPNOTSUPP: the kernel does not want it after all, and sends them by /dev/fuse.  Other
 * errors: nothing will come at all; the mount is of no use. */
int ring_open(struct ring *r);

void ring_stop(struct ring *r);
void ring_free(struct ring *r); /* NULL: does nothing */

/* The kernel no longer wants the answer to a request: if a worker is busy with it, it changes nothing and the process that waits
 * for it is being killed, it is answered now.  False: no worker has it.  Any thread but workers. */
bool ring_interrupt(struct ring *r, uint64_t unique);
