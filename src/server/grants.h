/* Grants: what the sessions of a volume in company may keep of single directories and
 * files, so that each of them sees what the others do as if there were one machine.
 *
 *   directory   GRANT_READ: names, own attributes, attributes of the non-directories whose parent it is
 *   file        GRANT_READ: content and extents; any number of sessions
 *               GRANT_WRITE: also data that is not stored yet; one session, and nobody else has any
 *
 * Taking.  grant_take gives what can be given, and, if told to wait, asks those who
 * stand in the way to give theirs back first.  Who waits longer is served first.  A grant
 * is recorded before the caller reads what it is about, so nothing is missed in between.
 *
 * Changing.  Whoever changes something does it between grants_change_begin and
 * grants_change_end.  Begin returns when no other session has a grant on what is
 * touched; until the end nobody gets one.  So a change is made only after everybody
 * has forgotten what it makes untrue.
 *
 * A recall goes out with the answer to the session's LEASE request (recalls_fill).  A
 * directory is given back by acknowledging it, a file with RETURN, after its data is
 * stored.  Nothing waits in a circle: a session that is asked to give back is never made to
 * wait for that same inode, and directories are given back without asking anybody.
 *
 * A session that is silent for the lease's time, or that does not return a file for
 * six times as long, loses all its grants (grants_revoke); it is told so
 * by the number in its next LEASE answer, and its commits of before are refused.
 *
 * Locks: grants.lock, within sessions.lock, outside of session.lock.  No wait holds it. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/intmap.h"
#include "epochfs.pb-c.h"
#include "server/recalls.h"

struct connection;
struct server;
struct session;

#define GRANTS_HOT 4096u

struct grants {
	pthread_mutex_t lock;   /* guards all below, and the recalls of sessions */
	struct intmap subjects; /* inode_key -> struct subject */
	struct grant_heat *heat;
	uint64_t recalls;      /* numbers given so far */
	uint64_t tickets;      /* of those who wait */
	uint64_t writers_gone; /* how often a GRANT_WRITE went */
};

enum touch_kind {
	TOUCH_DIRECTORY, /* names or attributes it covers change */
	TOUCH_CONTENT,   /* content or size of a file changes, or attributes unstored data would change */
	TOUCH_SOURCE,    /* what is unstored of the file must be stored, nothing else */
};
struct touch {
	uint64_t inode;
	enum touch_kind kind;
};

void grants_init(struct server *s);
void grants_begin(struct server *s); /* leases_init was called */
void grants_free(struct server *s);

/* What the session has afterwards is in *got: at least `want`, or GRANT_NONE.  0; -ECONNRESET: the connection is gone; -errno. */
int grant_take(struct server *s, const struct connection *asking, struct session *n, uint64_t inode, Wire__Grant want, bool wait,
	       Wire__Grant *got);
/* What the session has from before a restart, or before the file is there.  Asks nobody; -EBUSY: others have it, -EINVAL: there
 * is no such inode. */
int grant_reclaim(struct server *s, struct session *n, uint64_t inode, Wire__Grant grant);
void grant_return(struct server *s, struct session *n, uint64_t inode, Wire__Grant left, uint64_t recall);
void grant_acknowledged(struct grants *g, const struct session *n, uint64_t inode, uint64_t recall); /* lock held; directories */
void grant_drop(struct server *s, struct session *n, uint64_t inode);                                /* closed */

/* n NULL: an administrator.  0, -ECONNRESET or -errno; after anything but 0 there is nothing to end. */
int grants_change_begin(struct server *s, const struct connection *asking, struct session *n, uint32_t volume,
			const struct touch *touched, size_t count);
void grants_change_end(struct server *s, uint32_t volume, const struct touch *touched, size_t count);

/* The session that has GRANT_WRITE, if it is another one than n, with a reference; else NULL. */
struct session *grant_writer(struct server *s, uint32_t volume, uint64_t inode, const struct session *n);
uint64_t grants_writers_gone(struct server *s); /* grew meanwhile: what one of them stored may have been overlooked */
/* Until the event is raised, or for a moment.  0, or -ECONNRESET: nobody is there any more who asked. */
int grants_event_wait(int event, const struct connection *asking);
bool session_is_lost(struct server *s, struct session *n); /* silent for the lease's time, or known to be gone */
/* What it was granted before now is void; takes sessions.lock.  -errno: that could not be recorded, and it still has it. */
int grants_revoke(struct server *s, struct session *n);
/* The session ends.  `lost`: without a word; what it could write to is logged. */
void grants_forget(struct server *s, struct session *n, bool lost);
