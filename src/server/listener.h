/* A listening socket and the thread that takes its connections.  On the unix
 * socket only root and the server's own user are let in; others are told so. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

struct server;

struct listener {
	struct server *server;
	int fd;
	bool is_unix;
	pthread_t thread;
};

int listener_start(struct server *s, struct listener *l, int fd, bool is_unix); /* takes the descriptor */
void listener_stop(struct listener *l);                                         /* no connection is taken after this */
