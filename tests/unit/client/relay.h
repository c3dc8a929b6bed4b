/* Between a client and its server: connections can be made to fall silent, without an end. */
#pragma once
#include <pthread.h>
#include <stdbool.h>

#define RELAY_PAIRS 64

struct relay {
	const char *server; /* where to; may change while it is silent */
	char address[64];   /* for the client */
	int listener;
	pthread_t thread;
	pthread_mutex_t lock; /* guards all below; what is passed on is passed on under it */
	bool silent, stopping;
	int pairs[RELAY_PAIRS][2], count;
};

void relay_up(struct relay *r, const char *server);
void relay_down(struct relay *r);
void relay_silence(struct relay *r, bool silent); /* from the return on */
