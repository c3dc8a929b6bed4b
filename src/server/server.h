/* The server: the metadata service and the block gateway of one data directory.
 *
 *   DIR/lock           held while a server runs on DIR; says its pid
 *   DIR/epochfs.sock   the unix socket; peers must be root or of the server's uid
 *   DIR/address        where it listens, one address a line
 *   DIR/starts         the number of the last start
 *   DIR/meta/          the metadata (meta/meta.h)
 *   DIR/objects/       the store, unless another one is named
 *   DIR/backup/        copies of the metadata, made every hour and at a clean stop
 *
 * server_run is the whole life of `epochfs serve`; server_start and server_stop
 * are for a process that does other things as well, such as a test. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/clock.h"

#define SERVER_GRACE_S 60
#define SERVER_SESSION_TIMEOUT_S 300
#define SERVER_ABANDONED_S 10
#define SERVER_LEASE_MS 10000
#define SERVER_CONNECTIONS_MAX 4096

struct server_options {
	const char *data;          /* made, for its owner only, if missing */
	const char *listen;        /* "127.0.0.1:PORT", "unix:PATH": besides the unix socket of the data directory; NULL: none */
	const char *store;         /* "dir:PATH"; NULL: DIR/objects */
	int64_t grace_s;           /* freed objects stay in the store for so long; < 0: SERVER_GRACE_S */
	int64_t replica_grace_s;   /* the same while there are replicas; <= 0: an hour, as mounts expect */
	int64_t session_timeout_s; /* silent sessions are ended after; <= 0: SERVER_SESSION_TIMEOUT_S */
	int64_t abandoned_s;       /* local ones without a connection after; <= 0: SERVER_ABANDONED_S */
	int64_t lease_ms;          /* a silent session's lease runs out after; <= 0: SERVER_LEASE_MS, as mounts expect */
	int connections_max;       /* at once; <= 0: SERVER_CONNECTIONS_MAX */
	const struct clock *clock; /* NULL: the system's */
};

struct server;

/* Serves when it returns.  `error` is a whole sentence for the user. */
int server_start(const struct server_options *options, struct server **out, char *error, size_t error_size);
/* Answers what has been asked, syncs, and releases everything.  Any thread, once. */
void server_stop(struct server *s);
const char *server_address(const struct server *s);     /* "unix:PATH" */
const char *server_tcp_address(const struct server *s); /* "127.0.0.1:PORT", NULL without `listen` */

/* In the foreground until SIGTERM or SIGINT; the process must have one thread.
 * 0, or -errno with a sentence in `error`. */
int server_run(const struct server_options *options, char *error, size_t error_size);
