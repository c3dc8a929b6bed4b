/* Inside the client: the structures its files share.
 *
 * Lock order, outermost first:
 *   uploader.gather      making one upload job at a time
 *   newborns.lock        the queue of files the server does not know yet
 *   inode.lock           one inode's state; never two at once
 *   uploader.lock        the queues of inodes with unstored data, limits
 *   client.table_lock    which inodes are known, their reference counts, closes to be sent
 *   chunks', attrs', the catalog's, the refresher's and holdings.lock
 * and, with none of those, a lane of locks.h > its lock.  But for the lanes:
 * None of these is held across a call to the server.
 *
 * An inode is in the table while it is open or has unstored data (or somebody
 * works on it): its memory is bounded by what is open and by the limit on
 * unstored data, not by how many files were touched. */
#pragma once
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/clock.h"
#include "base/intmap.h"
#include "block/extent.h"
#include "client/ahead.h"
#include "client/attrs.h"
#include "client/backing.h"
#include "client/catalog.h"
#include "client/chunks.h"
#include "client/client.h"
#include "client/disk.h"
#include "client/effects.h"
#include "client/holdings.h"
#include "client/kept.h"
#include "client/layouts.h"
#include "client/lease.h"
#include "client/locks.h"
#include "client/newborn.h"
#include "client/objects.h"
#include "client/opens.h"
#include "client/packs.h"
#include "client/passed.h"
#include "client/replica.h"
#include "client/segments.h"
#include "client/told.h"
#include "client/writeback.h"
#include "meta/attr.h"
#include "rpc/caller.h"

/* The extents of a stretch of a file, as the server last told: all of those that
 * touch [from, to). */
struct window {
	struct extent *extents;
	size_t count;
	uint64_t from, to;
	bool known;
	int64_t valid_until_ns; /* steady clock: where there is no grant on the file */
	uint64_t generation;    /* grows when the window is dropped: an answer asked for before is not used */
};

enum queue { QUEUE_NONE, QUEUE_READY, QUEUE_AGING };

struct inode {
	uint64_t number;
	struct client *client;
	uint32_t refs;   /* client.table_lock */
	bool registered; /* client.table_lock: the server counts it as open by us */

	pthread_mutex_t lock;   /* guards all below, but for the queue's links */
	pthread_cond_t changed; /* a job ended, or something about the grant changed */
	uint32_t opens;
	bool local;       /* it is open, and the server does not know (opens.h) */
	struct attr attr; /* as the server last told */
	bool attr_known;
	bool newborn; /* the server does not know it yet */
	/* The grant on it; also read without the lock. */
	_Atomic Wire__Grant grant;
	_Atomic Wire__Grant at_server; /* what a server that restarts is told: it goes last, when all is stored */
	uint64_t granted_under;        /* lease_number when GRANT_WRITE was got; 0: from another server than the one now */
	uint64_t recalls;              /* grows when grants may have gone: an answer asked for before grants nothing */
	struct pages pages;
	/* The kernel may have pages of an earlier version: whoever opens it drops them.  Until one who did so has read something. */
	bool pages_old;
	bool pages_untold; /* ... and all who have opened it since are ours (open_unseen), or failed: the kernel was told nothing */
	uint32_t writers; /* open handles that may write */
	/* Others have had, or asked for, a grant on it since it was opened here: the kernel may know of a size from before. */
	bool contested;
	bool asking;            /* somebody asks for a grant */
	bool recalling;         /* it is being given back, or the kernel forgets pages for an append */
	bool claim;             /* it was lost, and there is unstored data */
	uint64_t claim_version; /* of the content that data was written to; others may have told of a later one since */
	uint64_t lost;          /* jobs with lower numbers are not committed: their claim was refused */
	struct window window;
	struct backing *backing; /* of some version; NULL: none */
	struct passed *passed;   /* NULL: the kernel does not read it by itself */
	struct segments dirty, storing;
	uint64_t writes;              /* number of the last write */
	int64_t mtime_ns, ctime_ns;   /* of the last write, while there is unstored data */
	bool gone;                    /* no name, not open, nothing kept: unstored data may be dropped */
	uint64_t next_job, done_jobs; /* jobs commit in the order they were made */
	uint64_t failures;            /* jobs that failed: those made before then fail too */
	uint64_t gathered;            /* uploader.gather: the gathering that last took from it */
	int error;                    /* of an upload, not yet reported */
	/* Write-back (writeback.h). */
	struct spool *spool; /* where what is written goes; NULL: nothing did since all was stored */
	bool told, marked;   /* the server may know, or does know, of it */
	bool marking;        /* it is being told */
	bool stale;          /* newer data than its own is, or will be, stored that is not in it */
	bool damaged;        /* it cannot be read: what is in it stays, and is not uploaded */
	uint32_t securing;   /* the spool stays: somebody syncs it */
	uint32_t unmarking;  /* spools of before whose mark is still there */

	enum queue queue; /* uploader.lock: all below */
	uint32_t waiters; /* somebody waits for it to be stored */
	struct inode *queue_next, *queue_previous;
	int64_t dirty_since_ns;
	uint64_t dirty_cost;   /* memory of the segments not yet in a job */
	uint64_t queued_bytes; /* what its queue counts of it */
};

struct queue_list {
	struct inode *first, *last;
	uint64_t cost;  /* memory */
	uint64_t bytes; /* of files that were closed; not of what is on the local disk (write-back) */
};

struct uploader {
	pthread_mutex_t gather; /* guards the one below */
	uint64_t gatherings;
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t work;  /* something to upload, or stopping */
	pthread_cond_t room;  /* unstored data became less */
	struct queue_list ready, aging;
	uint64_t cost, limit; /* memory of all unstored data */
	uint64_t storing;     /* of that, what is in jobs */
	unsigned room_waiters;
	uint64_t unstored;   /* its bytes, for the reservation */
	uint64_t reserved;   /* what the server granted */
	int64_t retry_at_ns; /* after a failed upload: not before */
	int64_t paced_ns;    /* what nobody waits for: not before (writeback.upload_limit) */
	int last_error;
	bool stopping;
	pthread_t threads[4];
	int thread_count;
	struct region *region;             /* what both pools take their buffers from first; NULL: none */
	_Atomic int64_t region_not_before; /* the server did not take what is in it: not to be tried again before */
	struct pool blocks;                /* buffers of a block, for segments; its own lock */
	struct pool buffers;               /* those of client_buffer_take; its own lock */
	pthread_mutex_t ids_lock;          /* guards the three below; held across the call that gets more */
	uint64_t next_object, objects_left, ids_generation;
	_Atomic uint64_t session_generation; /* grows when the server ended our session: ids are void */
	pthread_mutex_t reserve_lock;        /* one reservation call at a time */
};

#define CLAIM_ANY UINT64_MAX /* claim_version: nobody can have changed it */

struct prefetch_queue {
	struct prefetch *items; /* a ring */
	uint32_t capacity, head, count;
};

struct prefetcher {
	pthread_mutex_t lock; /* guards all below, but for what is pending */
	pthread_cond_t work;
	struct prefetch_queue queue, asides;
	_Atomic bool stopping; /* also looked at without the lock */
	pthread_t *threads;
	unsigned thread_count, busy;
	unsigned asides_most, asides_busy;
	_Atomic uint64_t pending;      /* bytes of memory it will need, queued and under way */
	_Atomic uint64_t pending_kept; /* bytes to be written to the disk that were read already */
};

/* What there is to tell (client_stats) and nobody else counts. */
struct counters {
	_Atomic uint64_t reads, read_bytes, memory_reads, memory_bytes, disk_reads, disk_bytes, server_reads, server_bytes;
	_Atomic uint64_t disk_ahead_fetched, disk_ahead_used;
};

static inline void counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Which content version the kernel's page cache holds of files not open now.  A
 * slot taken by another inode costs a re-read, nothing else. */
#define SEEN_SLOTS (1u << 20)

/* How often the server had to be asked for a name in a directory, or to make one: where
 * it happens again and again, the directory is listed.  A slot taken by another
 * directory begins anew. */
#define HABITS_SLOTS 4096

struct habits {
	pthread_mutex_t lock;
	struct habit {
		uint64_t directory;
		uint32_t looked, made;
		uint32_t parts_bytes; /* an answer of so many did not hold its listing; 0: not known */
	} slots[HABITS_SLOTS];
};

struct client {
	struct rpc *rpc;
	uint64_t root;
	uint32_t volume_id;
	uint8_t store[16]; /* whose object ids and versions these are */
	bool store_known;
	bool read_only, keep_deleted;
	struct volume_info volume;
	enum codec codec;
	int codec_level;
	int64_t timeout_ms;
	int64_t connected_ns; /* steady clock: the server answered the first HELLO */
	sem_t turns;          /* for calls that may wait for other mounts */
	char *servers;
	uint64_t memory_bytes; /* of the chunks */

	pthread_mutex_t table_lock; /* guards the table, inode.refs and registered, and closes */
	pthread_cond_t close_sent;
	struct intmap inodes;
	struct intmap closes; /* inode -> close_waiting or close_in_flight */
	_Atomic uint64_t open_number;
	bool stopping;
	bool leaving; /* nothing is left but the thread that says goodbye */
	pthread_cond_t stop;
	pthread_t keeper;
	bool keeper_started;

	struct lease lease;
	struct holdings holdings;
	struct locks locks;
	struct attrs attrs;
	struct layouts layouts;
	struct catalog catalog;
	struct opens opens;
	struct newborns newborns;
	struct habits habits;
	struct kept kept;
	struct replica *replica; /* NULL: none */
	struct objects objects;
	struct chunks *chunks;
	struct cache *cache; /* on the local disk; NULL: none */
	struct disk disk;
	struct packs packs;
	struct uploader uploader;
	struct writeback writeback;
	struct prefetcher prefetcher;
	struct refresher refresher;
	_Atomic bool passes;      /* client_passing */
	uint64_t readahead_bytes; /* most of one reader; 0: none */
	_Atomic int streams;      /* readers that are read ahead of */
	struct counters counters;
	struct told told;
	struct control *control; /* control.h; NULL: none */
	_Atomic uint64_t *seen;  /* SEEN_SLOTS hashes of (inode, version) */
	/* Grows with every commit, before its segments go: attributes asked for before
	 * and looked at afterwards may miss the commit, so they are asked for again. */
	_Atomic uint64_t commits;
};

struct client_file {
	struct inode *inode;
	struct kept_file *kept; /* it is one of kept.h; else NULL */
	int flags;
	bool writes;
	uint64_t removals;    /* inode.lock: of pages, when it was opened */
	_Atomic bool dropped; /* the kernel has dropped its pages when this was opened; false once that is known to be done */
	_Atomic(struct ahead *) ahead; /* NULL: nobody has read a part of it */
	_Atomic uint64_t read_bytes;   /* of the content, each once (count_once) */
	_Atomic uint64_t read_to;      /* the furthest end of a read */
};

/* names.c: an entry from a reply; asks again where a commit came in between */
int entry_take(struct client *c, const Wire__EntryReply *reply, uint64_t commits_before, struct entry *out);

/* client.c */
/* Whatever could depend on files the server does not know yet waits until it does. */
int client_call(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply);
/* The same without a turn: what giving back depends on, and the server does not make wait. */
int client_call_at_once(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply);
int64_t client_now_ns(struct client *c);
void client_hasten(struct client *c); /* the keeper's next tick comes at once */
/* Waits for `changed` or `room` style conditions on CLOCK_MONOTONIC. */
int cond_init_monotonic(pthread_cond_t *cond);
int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t steady_deadline_ns);
int64_t monotonic_ns(void);

/* habits.c: the server had to be asked for a name in the directory, or to make a file in
 * it.  Under the lease, and if that happens often, the directory is listed; true: just now. */
bool habit_looked(struct client *c, uint64_t directory);
void habit_made(struct client *c, uint64_t directory);
/* Somebody lists a directory from its beginning.  If one answer (NULL: none came) holds all of it, it is known from then on. */
struct listing_seen {
	struct catalog_listing listing;
	uint64_t begun;
	bool grant; /* is asked for */
};
/* False: it is not to be kept. */
bool listing_begin(struct client *c, uint64_t directory, uint32_t max_bytes, struct listing_seen *s);
void listing_end(struct client *c, uint64_t directory, struct listing_seen *s, const Wire__ReaddirReply *reply);
/* The first answer was all of it, or not. */
void habit_listed(struct client *c, uint64_t directory, uint32_t max_bytes, bool whole);

/* files.c: the server counts it as open from here on, and tells what is known of it. */
int inode_open(struct inode *i, bool write, bool *unchanged);
/* For reading by the client itself, which the kernel does not know of, and which is not what somebody who told an order does.  For
 * read_version and the like, not for client_read. */
int open_unseen(struct client *c, uint64_t inode, struct client_file **file);

/* inode.c */
void inodes_each(struct client *c, void (*each)(struct inode *i, void *context), void *context); /* each with a reference */
struct inode *inode_get(struct client *c, uint64_t number);                                      /* NULL: not in the table */
struct inode *inode_get_or_add(struct client *c, uint64_t number);                               /* NULL: no memory */
void inode_ref(struct inode *i);
void inode_unref(struct inode *i);
void inode_free(struct inode *i);                           /* for the table's end */
void inode_attr_set(struct inode *i, const struct attr *a); /* lock held */
uint64_t inode_size(const struct inode *i);                 /* lock held: with unstored data */
bool inode_has_unstored(const struct inode *i);             /* lock held */
void inode_cut_unstored(struct inode *i, uint64_t size);    /* lock held: drops what is not yet in a job */
void inode_overlay(const struct inode *i, struct attr *a);  /* lock held: what unstored data changes */
void attr_overlay(struct client *c, struct attr *a);        /* finds the inode and overlays it */
void seen_set(struct client *c, uint64_t inode, uint64_t version);
bool seen_is(struct client *c, uint64_t inode, uint64_t version);
void closes_send(struct client *c);                 /* what is waiting */
bool close_wait(struct client *c, uint64_t number); /* until no close of it is on its way; was there one? */

/* window.c */
void window_drop(struct inode *i); /* lock held */
/* Gets the grant that reading needs and makes the window cover [from, to); takes and leaves the lock, which it gives up
 * while asking.  0 or -errno. */
int window_cover(struct inode *i, uint64_t from, uint64_t to);
bool window_is_good(const struct inode *i); /* lock held: what it tells, and the attributes with it, is true now */
int window_take(struct inode *i, const Wire__ExtentsReply *reply, uint64_t from, uint64_t generation); /* lock held */
size_t window_find(const struct window *w, uint64_t offset); /* first extent ending after offset */

/* uploader.c */
int uploader_start(struct client *c, uint64_t limit);
void uploader_stop(struct client *c);
/* Before a write: waits for room in memory and makes sure of space in the volume.
 * The bytes count as unstored from here on: uploader_note corrects that. */
int uploader_reserve(struct client *c, uint64_t bytes);
/* The unstored data of the inode changed (inode.lock held, and a reference):
 * memory and bytes by so much; `ready`: a block is full. */
void uploader_note(struct inode *i, int64_t cost, int64_t bytes, bool ready);
void uploader_closed(struct inode *i); /* its last writer has closed it, and there is unstored data; inode.lock held */
/* `cost` of its segments went into a job; queues it again for the rest.  `blocked`:
 * the rest waits for the jobs under way. */
void uploader_taken(struct inode *i, uint64_t cost, bool ready, bool blocked);
void uploader_stored(struct inode *i, uint64_t cost, uint64_t bytes); /* so much less is unstored */
int uploader_object_id(struct client *c, uint64_t *out);
/* The next inode a job may take from, with a reference, or NULL.  A job that has
 * begun draws from the queue it began with. */
struct inode *uploader_next(struct client *c, bool started, bool *ready);
void uploader_paced(struct client *c, uint64_t bytes); /* so much is being uploaded */
void uploader_failed(struct client *c, int error);
void uploader_worked(struct client *c);
/* Until all writes up to now are stored, or the first error. */
int inode_flush(struct inode *i);
void inode_drain(struct inode *i); /* the same, but errors are left for others; until the grant is lost, or the client stops */
int client_store_all(struct client *c);
int client_secure_all(struct client *c); /* the same; what is in a spool may stay there, synced and marked */
bool client_has_unstored(struct client *c);
void uploader_session_lost(struct client *c); /* ids and reservation are void */
uint64_t uploader_unstored(struct client *c); /* bytes, for the reservation */
void uploader_tick(struct client *c);         /* give back what is not needed */

/* prefetch.c */
int prefetcher_start(struct client *c, unsigned parallel); /* 0: as many as is usual */
void prefetcher_stop(struct client *c);                    /* from here on nothing is fetched; files may still be closed */
void prefetcher_free(struct client *c);
/* What the inode's window tells of [from, to), to memory or to the disk, unless the file is closed before. */
void prefetch_range(const struct client_file *f, uint64_t from, uint64_t to);
void prefetch_keep(struct inode *i, uint64_t from, uint64_t to); /* to the disk, if it has its place there: it was read */
bool prefetch_is_behind(struct client *c);                       /* with that */
/* The same, of what nobody has read: in one go, and nobody is held up for it.  Then passed_prepare, also of an empty stretch. */
void prefetch_aside(struct inode *i, uint64_t from, uint64_t to);
void prefetch_forget(const struct client_file *f); /* it is closed */
bool prefetch_is_stopping(struct client *c);
uint64_t prefetch_pending(struct client *c);

/* reader.c: content of that version, from anywhere but the cache on the disk.  -ESTALE: it has another one by now. */
int read_version(struct inode *i, uint64_t version, uint64_t offset, size_t size, void *into);
int read_pinned(struct inode *i, uint64_t version, uint64_t offset, size_t size, struct client_read **out); /* not copied */
uint64_t read_fetched(const struct client_read *r); /* bytes that were not in memory */
