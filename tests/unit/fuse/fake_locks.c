/* The locks of the fake client: a table of them, and a list of who waits. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "client/client.h"
#include "fake_client.h"

struct waiting {
	struct waiting *next;
	struct lock lock;
	uint64_t ticket;
	void (*done)(void *context, int status);
	void *context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct locktable *table;
static struct waiting *waiting;
static _Atomic uint64_t tickets;

static struct locktable *the_table(void)
{
	if (!table)
		table = locktable_new(NULL, NULL);
	return table;
}

static void waiting_end(uint64_t ticket, int status)
{
	for (struct waiting **at = &waiting; *at; at = &(*at)->next) {
		struct waiting *w = *at;

		if (w->ticket != ticket)
			continue;
		*at = w->next;
		w->done(w->context, status);
		free(w);
		return;
	}
}

static void tell_granted(void)
{
	uint64_t granted[64];
	size_t count = locktable_granted(the_table(), 0, granted, 64);

	for (size_t i = 0; i < count; i++) {
		locktable_cancel(the_table(), 0, granted[i]);
		waiting_end(granted[i], 0);
	}
}

static int error_of(int result)
{
	switch (result) {
	case LOCK_RESULT_DONE: return 0;
	case LOCK_RESULT_QUEUED: return -EINPROGRESS;
	case LOCK_RESULT_DEADLOCK: return -EDEADLK;
	default: return result < 0 ? result : -EAGAIN;
	}
}

static void asked_note(const struct lock *l)
{
	atomic_store(&fake_control->lock_owner, l->owner);
	atomic_store(&fake_control->lock_handle, l->handle);
}

int client_lock(struct client *c, const struct lock *l)
{
	int r;
	LOCKED(&lock);

	asked_note(l);
	r = error_of(locktable_set(the_table(), l, 0));
	tell_granted();
	atomic_fetch_add(&fake_control->locks, 1);
	return r;
}

uint64_t client_lock_ticket(struct client *c) { return atomic_fetch_add(&tickets, 1) + 1; }

int client_lock_wait(struct client *c, const struct lock *l, uint64_t ticket, void (*done)(void *context, int status),
		     void *context)
{
	struct waiting *w;
	int r;
	LOCKED(&lock);

	asked_note(l);
	r = error_of(locktable_set(the_table(), l, ticket));
	if (r != -EINPROGRESS)
		return r;
	w = calloc(1, sizeof(*w));
	if (!w)
		abort();
	*w = (struct waiting){ .next = waiting, .lock = *l, .ticket = ticket, .done = done, .context = context };
	waiting = w;
	atomic_fetch_add(&fake_control->waits, 1);
	return r;
}

void client_lock_cancel(struct client *c, uint64_t ticket)
{
	LOCKED(&lock);
	atomic_fetch_add(&fake_control->cancels, 1);
	waiting_end(ticket, locktable_cancel(the_table(), 0, ticket) == LOCK_RESULT_DONE ? 0 : -EINTR);
}

void client_lock_cancel_all(struct client *c)
{
	LOCKED(&lock);
	while (waiting)
		waiting_end(waiting->ticket, -EINTR);
	locktable_free(table);
	table = NULL;
}

int client_lock_test(struct client *c, const struct lock *l, struct lock *found)
{
	fake_stall(&fake_control->stall_files);
	LOCKED(&lock);
	atomic_fetch_add(&fake_control->locks, 1);
	return !locktable_test(the_table(), l, found);
}

int client_unlock_owner(struct client *c, uint64_t inode, uint64_t owner)
{
	LOCKED(&lock);
	atomic_fetch_add(&fake_control->flushes, 1);
	locktable_drop_owner(the_table(), inode, 0, owner);
	tell_granted();
	return 0;
}

void client_unlock_handle(struct client *c, uint64_t inode, uint64_t handle)
{
	while (atomic_load(&fake_control->stall_drops))
		usleep(1000);
	LOCKED(&lock);
	atomic_fetch_add(&fake_control->drops, 1);
	locktable_drop_handle(the_table(), inode, 0, handle);
	tell_granted();
}
