#include "relay.h"
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include "rpc/connection.h"

#define TICK_MS 2

static void pair_add(struct relay *r)
{
	int client = accept(r->listener, NULL, NULL), server;
	char why[200];

	if (client < 0)
		return;
	if (r->count == RELAY_PAIRS || address_connect(r->server, 1000, &server, why, sizeof(why)) < 0) {
		close(client);
		return;
	}
	r->pairs[r->count][0] = client;
	r->pairs[r->count++][1] = server;
}

static bool pass_on(int from, int to)
{
	char bytes[65536];
	ssize_t n = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT), sent = 0;

	if (n < 0)
		return errno == EAGAIN;
	for (ssize_t k = 0; sent < n && k >= 0; sent += k > 0 ? k : 0)
		k = send(to, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
	return n > 0 && sent == n;
}

static void turn(struct relay *r)
{
	struct pollfd listener = { .fd = r->listener, .events = POLLIN };

	if (poll(&listener, 1, 0) == 1)
		pair_add(r);
	for (int i = 0; i < r->count;) {
		int *p = r->pairs[i];

		if (pass_on(p[0], p[1]) && pass_on(p[1], p[0])) {
			i++;
			continue;
		}
		close(p[0]);
		close(p[1]);
		r->count--;
		p[0] = r->pairs[r->count][0];
		p[1] = r->pairs[r->count][1];
	}
}

/* Until there is something to pass on, or a moment has passed. */
static void rest(struct relay *r)
{
	struct pollfd fds[2 * RELAY_PAIRS + 1];
	int count = 0;

	pthread_mutex_lock(&r->lock);
	if (!r->silent) {
		fds[count++] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
		for (int i = 0; i < 2 * r->count; i++)
			fds[count++] = (struct pollfd){ .fd = r->pairs[i / 2][i % 2], .events = POLLIN };
	}
	pthread_mutex_unlock(&r->lock);
	poll(fds, (nfds_t)count, TICK_MS);
}

static void *relay_run(void *context)
{
	struct relay *r = context;
	bool stopping;

	do {
		rest(r);
		pthread_mutex_lock(&r->lock);
		stopping = r->stopping;
		if (!r->silent)
			turn(r);
		pthread_mutex_unlock(&r->lock);
	} while (!stopping);
	return NULL;
}

void relay_up(struct relay *r, const char *server)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(at);

	*r = (struct relay){ .server = server, .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	assert_true(r->listener >= 0);
	assert_int_equal(bind(r->listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(r->listener, RELAY_PAIRS), 0);
	assert_int_equal(getsockname(r->listener, (struct sockaddr *)&at, &size), 0);
	snprintf(r->address, sizeof(r->address), "127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
	pthread_mutex_init(&r->lock, NULL);
	assert_int_equal(pthread_create(&r->thread, NULL, relay_run, r), 0);
}

void relay_silence(struct relay *r, bool silent)
{
	pthread_mutex_lock(&r->lock);
	r->silent = silent;
	pthread_mutex_unlock(&r->lock);
}

void relay_down(struct relay *r)
{
	pthread_mutex_lock(&r->lock);
	r->stopping = true;
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	for (int i = 0; i < 2 * r->count; i++)
		close(r->pairs[i / 2][i % 2]);
	close(r->listener);
	pthread_mutex_destroy(&r->lock);
}
