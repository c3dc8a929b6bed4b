/* The reaper: a thread that does what nobody waits for.  It frees deleted files
 * that are due, deletes freed objects from the store after the grace, ends silent
 * sessions, and has the metadata backed up. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct server;

struct reaper {
	pthread_t thread;
	bool started;
	_Atomic bool woken;   /* so that most wake-ups cost no lock */
	pthread_mutex_t lock; /* guards stopping and the relief */
	pthread_cond_t wake;
	bool stopping;
	/* A full store: how many free bytes are wanted (0: nobody waits), and how often that was tried. */
	uint64_t relief_wanted, reliefs;
	pthread_cond_t relieved;
	int reap_error, delete_error; /* of the last pass: the same one is not logged every second */
};

void reaper_init(struct reaper *r);
void reaper_free(struct reaper *r);
int reaper_start(struct server *s);
void reaper_stop(struct server *s); /* finishes what it is at */
/* There may be something to free.  Any thread; does not wait. */
void reaper_wake(struct server *s);
/* The store is full.  Before anybody is told, what was freed is deleted without
 * grace and the oldest deleted files go before their time, until so many bytes
 * are free or there is nothing more.  Waits for that, a few seconds at most. */
void reaper_relieve(struct server *s, uint64_t bytes);
/* Frees and deletes whatever is due at this moment, `grace_ns` after it was
 * freed; for gc.  Counts objects and bytes deleted from the store. */
int reaper_delete_due(struct server *s, int64_t grace_ns, uint64_t *objects, uint64_t *bytes);
