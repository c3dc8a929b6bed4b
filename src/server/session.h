/* Sessions: the mounts of volumes, as the server knows them.
 *
 * A session is a record in meta and a struct here.  It begins with a HELLO, is
 * joined by every further connection of the mount, survives restarts of the
 * server (the mount then reclaims its open files), and ends with GOODBYE, or when
 * nothing was heard of it for the session time-out.  A mount on this machine whose
 * last connection is gone, and that does not come back within seconds, was killed:
 * it is not waited for that long, and not at all if its process is gone.
 *
 *   known -> ended (takes no more mutations) -> SESSION_END durable -> forgotten
 *
 * After a start nothing that is without a name may be freed until every session
 * has reclaimed what it has open, or had time enough to. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "base/intmap.h"
#include "meta/meta.h"
#include "server/grants.h"
#include "server/lease.h"
#include "server/locks.h"

struct server;
struct request;

struct range {
	uint64_t first;
	uint32_t count;
};

struct session {
	uint64_t id, root;
	uint64_t nonce; /* of the hello that began it; 0: none */
	uint32_t volume, pid;
	bool read_only, replica;
	bool has_writeback;
	uint8_t writeback[16]; /* the id of its mount's write-back directory, if it has one */
	char *volume_name, *host, *mount_point;
	int64_t since_ns;
	_Atomic int refs;
	_Atomic int64_t heard_steady_ns;
	int64_t loaded_steady_ns;   /* what heard_steady_ns was when it was loaded; 0: it began since the start */
	uint64_t reserved;          /* bytes; guarded by space.lock */
	struct lease lease;         /* guarded by sessions.lock */
	struct recalls recalls;     /* guarded by grants.lock */
	struct session_locks locks; /* guarded by locks.lock */

	pthread_mutex_t opening; /* one opens, or closes and gives up its grant; outside of all other locks */
	pthread_mutex_t lock;    /* guards all below, and is held while a mutation of it is queued */
	pthread_cond_t less;     /* of those below */
	unsigned queued;         /* mutations on their way through meta */
	bool ended;
	bool ending;              /* somebody is at it */
	bool company;             /* there may be other sessions on the volume, and one of them may write */
	uint64_t revoked;         /* grants from before the lease had this number are void */
	uint64_t recorded;        /* up to what number that is on record; 0: nothing is */
	_Atomic bool passed_over; /* it has not come back after the restart, and others were let in */
	bool local;               /* its last connection came by the unix socket */
	bool known_back;          /* its mount knows of it: it has asked for its lease, or is on record */
	int process;              /* a pidfd of the mount, if local; negative: not known */
	bool gone;                /* it is on record only, and has ended */
	int connections;
	int64_t alone_steady_ns; /* since when there is none */
	struct range *ranges;    /* object ids known to be the session's */
	size_t range_count;
};

struct sessions {
	pthread_mutex_t lock;          /* guards all below */
	struct intmap map;             /* id -> struct session */
	struct intmap unreclaimed;     /* ids recorded before this start, not heard of since */
	int64_t reclaimed_steady_ns;   /* when the last of them was */
	int64_t hold_until_steady_ns;  /* nothing is reaped before; 0: not held */
	int64_t grace_until_steady_ns; /* others are not let in before, as long as one is unreclaimed */
	_Atomic bool settling;         /* there are unreclaimed ones */
};

int sessions_load(struct server *s); /* those meta has on record */
void sessions_free(struct sessions *all);
void sessions_expire(struct server *s);              /* from time to time */
void sessions_record_acknowledged(struct server *s); /* the same; of what session_record_revoked has recorded */
bool sessions_allow_reaping(struct server *s);
bool sessions_are_expected(struct server *s, uint32_t volume); /* some of before this start have not reclaimed yet */
/* Calls `each` under the lock. */
void sessions_each(struct server *s, void (*each)(void *context, struct session *session), void *context);

struct caller session_caller(const struct session *session);
void session_heard(struct session *session);
bool session_was_heard(const struct session *session); /* since the server's start */
void session_joined(struct session *session, int socket, bool local);
void session_left(struct session *session);
bool session_is_expected(struct server *s, const struct session *session); /* it is one of these */
bool session_is_ended(struct session *session);
void session_set_known(struct session *session);
void session_set_company(struct session *session, bool company);
bool session_in_company(struct session *session);
void session_set_revoked(struct session *session, uint64_t number);
uint64_t session_revoked(struct session *session);
/* Durably, with all of its mutations that were queued before.  Before others are let in: a server that is restarted believes
 * nothing the session says it has, until its mount knows. */
int session_record_revoked(struct server *s, struct session *session);
bool session_revocation_is_recorded(struct session *session);
/* After a restart: returns when all sessions of the volume, but for one (NULL: none), have said what they have, or their time
 * is over.  0; -ECONNRESET: nobody is there any more who asked; -errno. */
int sessions_await(struct server *s, const struct connection *asking, uint32_t volume, const struct session *session);
bool session_is_dead(struct session *session); /* its mount's process is known to be gone */
void session_unref(struct session *session);   /* NULL is fine */
/* Whether the id was handed to the session; asks meta if it is not known yet.
 * 0, -ESTALE, or what meta says. */
int session_owns_object(struct server *s, struct session *session, uint64_t object);
