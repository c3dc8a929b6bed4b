/* Starting: lock, metadata, store, sessions, threads, sockets, in that order, so
 * that nobody is let in before everything works.  Stopping: the other way round;
 * what has been asked is answered first.
 *
 * A start that fails half-way stops what has been started: server_stop knows by
 * what is set. */
#include "server/server.h"
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/notify.h"
#include "rpc/connection.h"
#include "server/folder.h"
#include "server/state.h"
#include "server/stream.h"

/* ---- Sockets ---- */

/* "127.0.0.1:7000" of a listening socket: the port may have been 0. */
static char *tcp_name(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} at;
	socklen_t size = sizeof(at);
	char host[INET6_ADDRSTRLEN], *text = NULL;
	bool v6;

	if (getsockname(fd, &at.any, &size))
		return NULL;
	v6 = at.any.sa_family == AF_INET6;
	if (!inet_ntop(at.any.sa_family, v6 ? (void *)&at.v6.sin6_addr : (void *)&at.v4.sin_addr, host, sizeof(host)))
		return NULL;
	if (asprintf(&text, v6 ? "[%s]:%d" : "%s:%d", host, ntohs(v6 ? at.v6.sin6_port : at.v4.sin_port)) < 0)
		return NULL;
	return text;
}

static int listen_unix(struct server *s, char *error, size_t error_size)
{
	const char *path = s->unix_address + strlen("unix:");
	int fd, r;

	/* Left by a server that was killed: we hold the lock, so there is no other. */
	unlink(path);
	r = address_listen(s->unix_address, &fd, error, error_size);
	if (r)
		return r;
	/* Who may come in is decided by looking at the peer, which can be told why not. */
	chmod(path, 0666);
	r = listener_start(s, &s->listeners[s->listener_count], fd, true);
	s->listener_count += !r;
	return r;
}

static int listen_tcp(struct server *s, const char *address, char *error, size_t error_size)
{
	int fd, r = address_listen(address, &fd, error, error_size);

	if (r)
		return r;
	s->tcp_address = tcp_name(fd);
	if (!s->tcp_address) {
		close(fd);
		return -ENOMEM;
	}
	r = listener_start(s, &s->listeners[s->listener_count], fd, false);
	s->listener_count += !r;
	return r;
}

static int listen_other(struct server *s, const char *address, char *error, size_t error_size)
{
	int fd, r = socket_make(address, &s->other, &fd, error, error_size);

	if (r)
		return r;
	r = listener_start(s, &s->listeners[s->listener_count], fd, true);
	s->listener_count += !r;
	return r;
}

static int listen_also(struct server *s, const char *address, char *error, size_t error_size)
{
	if (strncmp(address, "unix:", 5))
		return listen_tcp(s, address, error, error_size);
	/* Its own, which it listens at in any case. */
	if (!strcmp(address, s->unix_address))
		return 0;
	return listen_other(s, address, error, error_size);
}

/* What it listens at beside its own socket; NULL: nothing. */
static const char *also_at(const struct server *s) { return s->tcp_address ? s->tcp_address : s->other.address; }

/* ---- Starting ---- */

static int server_new(const struct server_options *o, struct server **out, char *error, size_t error_size)
{
	struct server *s = calloc(1, sizeof(*s));
	char path[PATH_MAX];
	uint64_t start;
	int r;

	if (!s)
		return -ENOMEM;
	*out = s;
	s->lock_fd = -1;
	s->clock = o->clock ? *o->clock : clock_system;
	s->grace_ns = (o->grace_s < 0 ? SERVER_GRACE_S : o->grace_s) * NS_PER_S;
	s->replica_grace_ns = (o->replica_grace_s > 0 ? o->replica_grace_s : SERVER_REPLICA_GRACE_S) * NS_PER_S;
	s->session_timeout_ns = (o->session_timeout_s <= 0 ? SERVER_SESSION_TIMEOUT_S : o->session_timeout_s) * NS_PER_S;
	s->abandoned_ns = (o->abandoned_s <= 0 ? SERVER_ABANDONED_S : o->abandoned_s) * NS_PER_S;
	s->lease_ns = (o->lease_ms <= 0 ? SERVER_LEASE_MS : o->lease_ms) * NS_PER_MS;
	s->connections_max = o->connections_max > 0 ? o->connections_max : SERVER_CONNECTIONS_MAX;
	s->started_ns = clock_read(&s->clock);
	peers_init(&s->peers);
	retries_init(&s->retries);
	losses_init(&s->losses);
	refusals_init(&s->refusals);
	pthread_mutex_init(&s->sessions.lock, NULL);
	grants_init(s);
	pthread_mutex_init(&s->locks.lock, NULL);
	gateway_init(&s->gateway);
	space_init(&s->space);
	reaper_init(&s->reaper);
	jobs_init(&s->jobs);
	s->data = realpath(o->data, path) ? strdup(path) : NULL;
	if (!s->data || asprintf(&s->unix_address, "unix:%s/epochfs.sock", s->data) < 0)
		return -ENOMEM;
	if (locks_open(s))
		return -ENOMEM;
	r = folder_count_start(s, &start, error, error_size);
	if (r)
		return r;
	leases_init(s, start);
	grants_begin(s);
	return getrandom(&s->instance, sizeof(s->instance), 0) == sizeof(s->instance) ? 0 : -EIO;
}

static int open_metadata(struct server *s, char *error, size_t error_size)
{
	CLEANUP_FREE char *folder = NULL;
	struct meta_options options = { .clock = &s->clock };

	if (asprintf(&folder, "%s/meta", s->data) < 0)
		return -ENOMEM;
	options.folder = folder;
	return meta_open(&options, &s->meta, error, error_size);
}

static int open_store(struct server *s, const char *url, char *error, size_t error_size)
{
	CLEANUP_FREE char *ours = NULL;
	int r;

	if (!url && asprintf(&ours, "dir:%s/objects", s->data) < 0)
		return -ENOMEM;
	r = store_open(url ? url : ours, &s->store, error, error_size);
	return r ? r : folder_check_store(s, error, error_size);
}

static int give_up_own_ids(struct server *s)
{
	Wire__SessionEnd q = WIRE__SESSION_END__INIT;
	struct caller who = CALLER_SERVER;
	struct arena arena;
	int r;

	arena_init(&arena, 0);
	r = meta_mutate(s->meta, &who, WIRE__OP__SESSION_END, &q.base, &arena, NULL);
	arena_free(&arena);
	return r;
}

static int server_bring_up(struct server *s, const struct server_options *o, char *error, size_t error_size)
{
	int r = open_metadata(s, error, error_size);

	if (!r)
		r = open_store(s, o->store, error, error_size);
	/* Those of a gc that a crash interrupted. */
	if (!r)
		r = give_up_own_ids(s);
	if (!r)
		r = sessions_load(s);
	if (!r) {
		backup_init(s);
		r = reaper_start(s);
	}
	if (!r && o->listen)
		r = listen_also(s, o->listen, error, error_size);
	/* Whoever finds the socket finds the addresses, too. */
	if (!r)
		folder_write_address(s);
	if (!r)
		r = listen_unix(s, error, error_size);
	return r;
}

int server_start(const struct server_options *o, struct server **out, char *error, size_t error_size)
{
	struct server *s = NULL;
	int lock_fd, r = folder_lock(o->data, &lock_fd, error, error_size);

	if (r)
		return r;
	error[0] = 0;
	r = server_new(o, &s, error, error_size);
	if (s)
		s->lock_fd = lock_fd;
	else
		close(lock_fd);
	if (!r)
		r = server_bring_up(s, o, error, error_size);
	if (r) {
		if (!error[0])
			snprintf(error, error_size, "cannot serve %s: %s", o->data, strerror(-r));
		server_stop(s);
		return r;
	}
	s->serving = true;
	log_info("serving %s at %s%s%s, objects in %s", s->data, s->unix_address, also_at(s) ? " and " : "",
		 also_at(s) ? also_at(s) : "", store_url(s->store));
	if (s->tcp_address)
		log_warn("every user of this machine can connect to %s: tokens and TLS come in a later version", s->tcp_address);
	*out = s;
	return 0;
}

const char *server_address(const struct server *s) { return s->unix_address; }

const char *server_tcp_address(const struct server *s) { return s->tcp_address; }

/* ---- Stopping ---- */

static void server_free(struct server *s)
{
	reaper_free(&s->reaper);
	sessions_free(&s->sessions);
	leases_free(s);
	grants_free(s);
	retries_free(&s->retries);
	losses_free(&s->losses);
	refusals_free(&s->refusals);
	locks_close(s);
	gateway_free(&s->gateway);
	space_free(&s->space);
	peers_free(&s->peers);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	free(s->data);
	free(s->unix_address);
	free(s->tcp_address);
	free(s);
}

void server_stop(struct server *s)
{
	if (!s)
		return;
	socket_remove(&s->other);
	while (s->listener_count)
		listener_stop(&s->listeners[--s->listener_count]);
	peers_stop(s);
	retries_stop(s);
	jobs_stop(&s->jobs);
	reaper_stop(s);
	if (s->serving) {
		backup_now(s);
		unlink(s->unix_address + strlen("unix:"));
	}
	/* Answers still under way are sent by meta's writer before this returns. */
	meta_close(s->meta);
	if (s->store)
		store_close(s->store);
	if (s->serving)
		log_info("stopped serving %s", s->data);
	server_free(s);
}

/* ---- In the foreground ---- */

int server_run(const struct server_options *o, char *error, size_t error_size)
{
	struct server *s;
	sigset_t signals;
	int number, r;

	descriptors_allow_all(); /* each connection is one, and each object being read */
	signal(SIGPIPE, SIG_IGN);
	/* Before any thread is made, so that none of them takes the signal. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	r = server_start(o, &s, error, error_size);
	if (r)
		return r;
	notify_service_manager("READY=1");
	while (sigwait(&signals, &number))
		;
	notify_service_manager("STOPPING=1");
	log_info("stopping on signal %s", number == SIGTERM ? "TERM" : "INT");
	/* A second signal ends the process at once. */
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	server_stop(s);
	return 0;
}
