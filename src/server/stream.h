/* The stream that replica mounts follow: STREAM_SNAPSHOT and STREAM_FOLLOW (dispatch.h).  What it may hold is said in
 * meta/stream.h.
 *
 * Each request is answered from one short look at meta, so that a replica that reads slowly, or not at all, holds nothing
 * here but its connection and one answer (peer.h closes a connection whose answers are not read).  A replica that fell behind
 * what is kept of the write sets is told so (ESTALE) and copies anew.
 *
 * A replica's session takes part in no lease and no grants (lease.h), has nothing open and nothing to reclaim.  While there
 * is one, and for an hour after the last one ended, freed objects stay in the store for an hour. */
#pragma once
#include <stdint.h>

struct server;

#define SERVER_REPLICA_GRACE_S 3600

int64_t stream_grace_ns(struct server *s); /* for how long freed objects stay now */
