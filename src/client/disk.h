/* The cache on the local disk (cache/cache.h), as a client has it: opened for the history its server serves, and tended by a thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct client;
struct client_options;

struct disk {
	pthread_mutex_t lock;
	pthread_cond_t stop;
	pthread_t thread;
	bool started, stopping;
};

/* Where the options name no directory there is none.  0, or -errno and a text for the user. */
int disk_open(struct client *c, const struct client_options *o, char *error, size_t error_size);
void disk_close(struct client *c); /* nobody reads any more */
