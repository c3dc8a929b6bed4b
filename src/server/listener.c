#include "server/listener.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/state.h"

#define REFUSALS_MAX 64 /* beyond the limit, so many are still told why */

static bool may_enter(const struct listener *l, int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (!l->is_unix)
		return true;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return false;
	if (peer.uid == 0 || peer.uid == geteuid())
		return true;
	log_warn("refused a connection of process %d of user %u", (int)peer.pid, (unsigned)peer.uid);
	return false;
}

static int connection_count(struct server *s)
{
	LOCKED(&s->peers.lock);
	return s->peers.count;
}

static void take(struct listener *l, int fd)
{
	int count = connection_count(l->server), r;

	if (count >= l->server->connections_max + REFUSALS_MAX) {
		close(fd);
		return;
	}
	if (!may_enter(l, fd))
		r = peer_start(l->server, fd, l->is_unix, -EACCES,
			       "only root and the user the server runs as may use its socket");
	else if (count >= l->server->connections_max)
		r = peer_start(l->server, fd, l->is_unix, -EAGAIN,
			       "the server has all the connections it can serve; try again later");
	else
		r = peer_start(l->server, fd, l->is_unix, 0, NULL);
	if (r && r != -ESHUTDOWN)
		log_error("cannot serve a connection: %s", strerror(-r));
}

static void *listener_run(void *context)
{
	struct listener *l = context;

	for (;;) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd >= 0) {
			take(l, fd);
		} else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			/* The connection stays in the queue: without a pause this would spin. */
			log_error("cannot take a connection: %s", strerror(errno));
			nanosleep(&(struct timespec){ .tv_nsec = 100 * NS_PER_MS }, NULL);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			return NULL; /* shut down by listener_stop */
		}
	}
}

int listener_start(struct server *s, struct listener *l, int fd, bool is_unix)
{
	int r;

	*l = (struct listener){ .server = s, .fd = fd, .is_unix = is_unix };
	r = -pthread_create(&l->thread, NULL, listener_run, l);
	if (r)
		close(fd);
	return r;
}

void listener_stop(struct listener *l)
{
	shutdown(l->fd, SHUT_RDWR);
	pthread_join(l->thread, NULL);
	close(l->fd);
}
