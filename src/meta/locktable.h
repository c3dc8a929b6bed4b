/* Who holds which lock on which file, and who waits for one: the rules of fcntl, OFD and
 * flock locks.  The server keeps one for all its sessions; a client keeps one of what it
 * holds, so that it can tell a server that has restarted.
 *
 * An owner is (session, owner): a process for fcntl, an open file for OFD and flock
 * locks.  Range locks and flocks know nothing of each other, as on Linux.
 *
 *   range   a new lock replaces what its owner has in the range, in parts if need be;
 *           neighbours of the same type and handle become one
 *   flock   the whole file.  Changing the type gives up the old lock first, also if the
 *           new one is then not to be had
 *
 * Each lock remembers the handle (of an open file) it was set through, as some go when
 * that one is closed, whoever the owner is.
 *
 * Who waits is served first come, first served; but a lock that can be had is had,
 * whoever waits for more.  A wait for a range lock that closes a circle of owners, each of
 * which waits for a lock of the next, is refused.  (Whether a range lock belongs to a
 * process or to an open file, FUSE does not say: OFD locks are looked at, too.)
 *
 * A volume can be frozen: then nothing new is granted there, because sessions that held
 * locks before a restart have not said so yet.
 *
 * No sockets, no clock, no lock of its own: one thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOCKS_PER_SESSION 65536u  /* held and waited for */
#define LOCK_END_MAX INT64_MAX    /* the last byte there can be */
#define LOCK_VOLUME_MAX 0xffffffu /* volumes above have no locks */

struct locktable;

enum lock_type { LOCK_NONE, LOCK_SHARED, LOCK_EXCLUSIVE };

struct lock {
	uint64_t file; /* lock_file */
	uint64_t session, owner, handle;
	uint64_t start, end; /* the first and the last byte; of a flock 0 and LOCK_END_MAX */
	uint32_t pid;        /* for F_GETLK only */
	bool flock;
	enum lock_type type; /* LOCK_NONE: to be released */
};

static inline uint64_t lock_file(uint32_t volume, uint64_t inode) { return (uint64_t)volume << 40 | inode; }
bool lock_is_sound(const struct lock *l); /* the range is one, and that of a flock is everything */

enum lock_result {
	LOCK_RESULT_DONE,
	LOCK_RESULT_BUSY,     /* somebody has it */
	LOCK_RESULT_QUEUED,   /* it will be granted */
	LOCK_RESULT_DEADLOCK, /* waiting would never end */
	LOCK_RESULT_FROZEN,   /* ask again later */
};

/* `granted`: a waiter of the session was; called from within the functions below.  NULL if nobody ever waits.
 * NULL: no memory. */
struct locktable *locktable_new(void (*granted)(void *context, uint64_t session), void *context);
void locktable_free(struct locktable *t);

/* Sets, changes or releases.  `wait` 0: now or not at all; else the number under which the session waits, which may be
 * said again.  An enum lock_result; -ENOLCK: the session has too many; -ENOMEM.  Except for a flock that changes its type, nothing has
 * changed if it is not LOCK_RESULT_DONE. */
int locktable_set(struct locktable *t, const struct lock *l, uint64_t wait);
/* Whether *l is to be had; if not, *found is in its way. */
bool locktable_test(const struct locktable *t, const struct lock *l, struct lock *found);
/* Without looking at others, frozen or not: what a server granted. */
int locktable_note(struct locktable *t, const struct lock *l);
/* Frozen or not, but only if nobody else has it: LOCK_RESULT_DONE, _BUSY, or -errno. */
int locktable_reclaim(struct locktable *t, const struct lock *l);
/* Ends a wait: LOCK_RESULT_DONE if it had been granted before, else LOCK_RESULT_BUSY. */
int locktable_cancel(struct locktable *t, uint64_t session, uint64_t wait);

void locktable_drop_owner(struct locktable *t, uint64_t file, uint64_t session, uint64_t owner);   /* its range locks */
void locktable_drop_handle(struct locktable *t, uint64_t file, uint64_t session, uint64_t handle); /* all set through it */
void locktable_drop_session(struct locktable *t, uint64_t session);                                /* locks and waits */

bool locktable_owns(const struct locktable *t, uint64_t file, uint64_t session, uint64_t owner); /* any range lock */
size_t locktable_held(const struct locktable *t, uint64_t session);                              /* how many locks */
/* The waits of the session that were granted and neither set again nor cancelled since: their numbers, up to `most`. */
size_t locktable_granted(const struct locktable *t, uint64_t session, uint64_t *out, size_t most);
/* Locks of the session, up to `most`. */
size_t locktable_list(const struct locktable *t, uint64_t session, struct lock *out, size_t most);

int locktable_freeze(struct locktable *t, uint32_t volume); /* 0 or -ENOMEM */
bool locktable_is_frozen(const struct locktable *t, uint32_t volume);
void locktable_thaw(struct locktable *t, uint32_t volume); /* and grants what can be */
void locktable_thaw_all(struct locktable *t);
