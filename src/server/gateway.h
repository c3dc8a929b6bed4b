/* The block gateway: objects in from and out to mounts.
 *
 * An object is taken whole, checked to be what it says (footer, an id that was
 * handed to the session) and put into the store before the answer.  A put that is
 * repeated is answered like the first.  A mount on this host leaves most of an object in memory that it shows us, and
 * it is copied from there.  What is read goes from the store's file to
 * the socket without passing through memory here; a mount on this host is given the
 * file's descriptor and reads it itself.
 *
 * Memory for objects on their way in is bounded for all peers together; who would
 * pass the bound waits. */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include "base/descriptors.h"

struct server;

#define GATEWAY_TROUBLED 16

struct gateway {
	pthread_mutex_t lock; /* guards all but the descriptors, which have their own */
	pthread_cond_t room;
	size_t in_flight;            /* bytes of buffers in use */
	struct gateway_buffer *idle; /* kept for the next object: fresh pages are dear */
	size_t idle_bytes;
	int64_t used_steady_ns;
	uint64_t troubled[GATEWAY_TROUBLED]; /* objects that could not be sent from their file lately */
	unsigned troubled_next;
	struct descriptors descriptors;
};

void gateway_init(struct gateway *g);
void gateway_free(struct gateway *g);
void gateway_trim(struct gateway *g); /* from time to time: gives idle memory back */

/* Takes an object out of the store.  0 also if it was not there. */
int gateway_delete(struct server *s, uint64_t object);

struct gateway_buffer {
	struct gateway_buffer *next;
	size_t capacity;
	uint8_t *bytes;
};
/* Waits for room.  NULL: no memory. */
struct gateway_buffer *buffer_take(struct gateway *g, size_t size);
void buffer_give(struct gateway *g, struct gateway_buffer *b);
