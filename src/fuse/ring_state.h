/* What the parts of the ring share: ring.c (its life), ring_worker.c, ring_attendant.c.
 *
 * On the hot path a worker waits in its io_uring instance, handles and answers.  It takes no lock
 * for that, and writes to nothing that others write to. */
#pragma once
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include "fuse/ring.h"
#include "fuse/slot.h"

#define RING_QUEUES_MOST 4096u
#define RING_THREADS_MOST 512u /* and so many for each queue, as a worker that waits with a slot serves its queue alone: */
#define RING_THREADS_A_QUEUE 8u
#define RING_KEPT_MOST 1024u  /* in one queue: requests that are answered later */
#define RING_SLEEPING_MOST 2u /* in one queue: workers without a slot; so each queue always has one */

enum worker_state { WORKER_FREE, WORKER_RUNNING, WORKER_ENDED };

struct queue {
	unsigned number;  /* and its CPU */
	atomic_uint kept; /* requests that are answered later */
	/* Under the ring's lock: */
	pthread_cond_t work;                 /* there is something in `waiting`, or the ring stops */
	struct slot *waiting, *waiting_last; /* with a request, for a worker */
	unsigned waiting_count, sleeping;
	/* The attendant's: */
	unsigned reserve; /* slots armed in its own instance */
	unsigned slots;   /* all that it has registered */
};

struct worker {
	struct ring *ring;
	enum worker_state state; /* the ring's lock guards it, and `thread` */
	pthread_t thread;
	atomic_bool waiting; /* in its io_uring instance: may be woken */
	atomic_bool nudged;  /* a message is on its way: others wait for a worker */
	atomic_uint handled; /* requests; its own to count */

	/* Its own: */
	struct queue *queue;
	bool first; /* of its queue: begins with a new slot, others with one that is given to them */
	struct io_uring uring;
	bool has_uring;
	struct slot *armed; /* the one it waits with; NULL: none */
	struct slot *kept;  /* of the request it handles, if that will be answered later */
	uint8_t copy[SLOT_COPY_BYTES];

	/* What it works on.  Whoever changes `unique` from that of the request to 0 is the one to answer. */
	_Atomic(struct slot *) slot;
	atomic_uint_fast64_t unique;
	atomic_uint waiter; /* the process it may be answered early for; 0: nobody, or not yet */
	uint64_t seen;      /* the attendant's: what it worked on at the last round, and how many it had handled */
	unsigned seen_handled;
};

/* Everything is made ready while STARTING; then the reserve is registered, then the first workers' slots. */
enum ring_phase { PHASE_STARTING, PHASE_RESERVE, PHASE_OPEN, PHASE_STOPPING };

struct ring {
	struct session *session;
	int device;
	struct queue *queues;
	unsigned queue_count, reserve_batch;
	bool trims;                    /* memory of slots is given back (ring_trims) */
	atomic_bool stopping, closing; /* for workers; for the attendant, after them */
	pthread_t attendant;
	int mail_event; /* wakes the attendant */

	pthread_mutex_t lock; /* guards what follows; nothing is called under it that waits for long */
	pthread_cond_t moved; /* `phase`, `reached` or `running` has changed */
	enum ring_phase phase;
	unsigned reached; /* threads that are through with the phase; `error`: the first one of them */
	int error;
	struct slot *mail; /* answered, for the attendant to commit */
	unsigned given;    /* requests in the `waiting` of all queues */
	/* There are some, and no more workers can be started: those with a slot take them, too.  Read without the lock. */
	atomic_bool starved;
	unsigned running;
	bool attending;
	struct slot *slots; /* all */
	struct worker **workers;
	unsigned workers_most;
};

/* ring.c */
int uring_open(struct io_uring *u, unsigned entries, int device); /* 0 or -errno; by the thread that will use it */
struct slot *ring_slot_new(struct ring *r, unsigned queue);
void ring_reached(struct ring *r, int error);          /* a thread is through with the phase */
bool ring_wait(struct ring *r, enum ring_phase phase); /* until it begins; false: it will not */
void cpu_pin(int cpu);                                 /* the calling thread; negative: it may run anywhere */

/* ring_worker.c; the lock is held. */
int worker_start(struct ring *r, struct queue *q, bool first);
void request_give(struct ring *r, struct slot *s); /* to a worker of its queue */
/* Without the lock, by the attendant.  Answers requests that nobody will look at the answer of, and that have been worked on since the
 * last round: */
void workers_look_after(struct ring *r);
/* While there are requests that no worker could be started for: starts some after all, or else chooses workers that wait with their
 * slots.  How many instances it has put to `fds`, to be sent a message with no data: */
unsigned starved_choose(struct ring *r, int *fds, unsigned most);
void nudges_forget(struct ring *r); /* one of these messages was not delivered */

/* ring_attendant.c */
void *attendant_run(void *ring);
void mail_send(struct ring *r, struct slot *answered); /* any thread; takes the lock */
void mail_wake(struct ring *r);
