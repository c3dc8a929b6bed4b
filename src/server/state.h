/* The inside of struct server, for the files of this folder.
 *
 * A request's way: listener.c takes the connection and gives it a thread, peer.c
 * reads its frames, dispatch.c decodes them and calls meta, or session.c,
 * gateway.c, space.c, jobs.c, status.c; peer.c sends the answer, from the peer's
 * thread or from meta's writer.
 *
 * Locks, outer first.  None is held while meta or the store works, but
 * session.lock while a mutation is queued (which does not wait), and none while a
 * client is waited for:
 *
 *   peers.lock, space.lock > sessions.lock (and all of lease.c) > grants.lock > session.lock
 *   jobs.lock > job.lock
 *   locks.lock > session.lock
 *   gateway.lock, descriptors.lock, reaper.lock, peer.lock, refusals.lock: alone */
#pragma once
#include "base/clock.h"
#include "meta/meta.h"
#include "server/backup.h"
#include "server/dispatch.h"
#include "server/gateway.h"
#include "server/grants.h"
#include "server/jobs.h"
#include "server/lease.h"
#include "server/listener.h"
#include "server/locks.h"
#include "server/losses.h"
#include "server/marks.h"
#include "server/peer.h"
#include "server/reaper.h"
#include "server/server.h"
#include "server/session.h"
#include "server/socket.h"
#include "server/space.h"
#include "store/store.h"

struct server {
	char *data; /* the folder */
	char *unix_address, *tcp_address;
	struct named_socket other; /* a second unix socket */
	int lock_fd;
	struct clock clock;
	int64_t grace_ns, replica_grace_ns, session_timeout_ns, abandoned_ns, lease_ns;
	int connections_max;
	uint64_t instance; /* random at every start */
	int64_t started_ns;
	struct meta *meta;
	struct store *store;
	struct peers peers;
	struct retries retries;
	struct sessions sessions;
	struct leases leases;
	struct grants grants;
	struct locks locks;
	struct losses losses;
	struct refusals refusals;
	struct gateway gateway;
	struct space space;
	struct reaper reaper;
	struct jobs jobs;
	struct backup backup;
	struct listener listeners[2];
	int listener_count;
	bool serving; /* the start went through */
};

/* The server itself asking meta. */
#define CALLER_SERVER ((struct caller){ 0 })
