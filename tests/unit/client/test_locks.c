/* Locks of two clients, against a real server: waits, cancelling, restarts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"
#include "world.h"

#define INODE 1

static void pause_ms(int ms) { nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000L }, NULL); }

static struct lock lock_of(uint64_t owner, enum lock_type type, uint64_t start, uint64_t end)
{
	return (struct lock){ .file = INODE, .owner = owner, .handle = owner, .start = start, .end = end, .type = type };
}

static int set(struct client *c, uint64_t owner, enum lock_type type, uint64_t start, uint64_t end)
{
	struct lock l = lock_of(owner, type, start, end);

	return client_lock(c, &l);
}

static int flock_set(struct client *c, uint64_t owner, enum lock_type type)
{
	struct lock l = lock_of(owner, type, 0, LOCK_END_MAX);

	l.flock = true;
	return client_lock(c, &l);
}

/* How a wait ends. */
struct end {
	atomic_int status; /* 1: not yet */
	uint64_t ticket;
};

static void ended(void *context, int status) { atomic_store(&((struct end *)context)->status, status); }

static int wait_set(struct client *c, struct end *e, uint64_t owner, enum lock_type type, uint64_t start, uint64_t end)
{
	struct lock l = lock_of(owner, type, start, end);

	atomic_store(&e->status, 1);
	e->ticket = client_lock_ticket(c);
	return client_lock_wait(c, &l, e->ticket, ended, e);
}

static int end_of(struct end *e)
{
	for (int tries = 0; atomic_load(&e->status) == 1; tries++) {
		assert_true(tries < 4000);
		pause_ms(5);
	}
	return atomic_load(&e->status);
}

static size_t held(struct client *c)
{
	LOCKED(&c->locks.lock);
	return locktable_held(c->locks.held, 0);
}

static void two_clients_exclude_each_other_until_a_close(void **state)
{
	struct client *two;
	struct world w;
	struct lock l = lock_of(1, LOCK_SHARED, 0, 99), found;

	world_up(&w, "none");
	two = client_up(&w);
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(set(two, 1, LOCK_SHARED, 5, 5), -EAGAIN);
	assert_int_equal(client_lock_test(two, &l, &found), 1);
	assert_int_equal(found.end, 9);
	assert_int_equal(client_unlock_owner(w.client, INODE, 2), 0);
	assert_int_equal(set(two, 1, LOCK_SHARED, 5, 5), -EAGAIN);
	assert_int_equal(client_unlock_owner(w.client, INODE, 1), 0);
	assert_int_equal(client_lock_test(two, &l, &found), 0);
	assert_int_equal(flock_set(w.client, 7, LOCK_SHARED), 0);
	assert_int_equal(flock_set(two, 7, LOCK_SHARED), 0);
	/* It loses what it had: what is noted here follows. */
	assert_int_equal(held(two), 1);
	assert_int_equal(flock_set(two, 7, LOCK_EXCLUSIVE), -EAGAIN);
	assert_int_equal(held(two), 0);
	client_unlock_handle(w.client, INODE, 7);
	assert_int_equal(flock_set(two, 7, LOCK_EXCLUSIVE), 0);
	assert_int_equal(client_disconnect(two), 0);
	assert_int_equal(flock_set(w.client, 7, LOCK_EXCLUSIVE), 0);
	world_down(&w);
}

static void closing_asks_the_server_only_where_there_are_locks(void **state)
{
	struct world w;
	uint64_t before;

	world_up(&w, "none");
	assert_int_equal(client_unlock_owner(w.client, INODE, 1), 0);
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 0, 9), 0);
	before = w.client->locks.lanes[INODE % LOCK_LANES].number;
	assert_int_equal(client_unlock_owner(w.client, INODE, 2), 0);
	assert_int_equal(client_unlock_owner(w.client, INODE + 1, 1), 0);
	assert_int_equal(w.client->locks.lanes[INODE % LOCK_LANES].number, before);
	assert_int_equal(client_unlock_owner(w.client, INODE, 1), 0);
	assert_int_equal(w.client->locks.lanes[INODE % LOCK_LANES].number, before + 1);
	world_down(&w);
}

static void a_wait_ends_with_the_lock_or_when_it_is_cancelled(void **state)
{
	struct client *two;
	struct end first, second;
	struct world w;

	world_up(&w, "none");
	two = client_up(&w);
	assert_int_equal(wait_set(w.client, &first, 1, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(wait_set(two, &first, 1, LOCK_EXCLUSIVE, 0, 9), -EINPROGRESS);
	assert_int_equal(wait_set(two, &second, 2, LOCK_EXCLUSIVE, 0, 9), -EINPROGRESS);
	client_lock_cancel(two, second.ticket);
	assert_int_equal(atomic_load(&second.status), -EINTR);
	client_lock_cancel(two, second.ticket);
	assert_int_equal(atomic_load(&first.status), 1);
	assert_int_equal(set(w.client, 1, LOCK_NONE, 0, 9), 0);
	assert_int_equal(end_of(&first), 0);
	assert_int_equal(held(two), 1);
	/* Each has one and wants the other's. */
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 20, 29), 0);
	assert_int_equal(wait_set(w.client, &second, 1, LOCK_SHARED, 0, 0), -EINPROGRESS);
	assert_int_equal(wait_set(two, &first, 1, LOCK_SHARED, 20, 20), -EDEADLK);
	/* Whoever is still waiting at the end is told. */
	client_lock_cancel_all(w.client);
	assert_int_equal(atomic_load(&second.status), -EINTR);
	assert_int_equal(wait_set(w.client, &second, 1, LOCK_SHARED, 0, 0), -EINTR);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

static void locks_and_waits_outlive_the_server(void **state)
{
	struct client *two;
	struct end e;
	struct world w;

	world_up(&w, "none");
	two = client_up(&w);
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 0, 99), 0);
	assert_int_equal(set(w.client, 1, LOCK_SHARED, 40, 59), 0);
	assert_int_equal(flock_set(w.client, 7, LOCK_EXCLUSIVE), 0);
	assert_int_equal(wait_set(two, &e, 1, LOCK_EXCLUSIVE, 0, 0), -EINPROGRESS);
	for (int i = 0; i < 3; i++) {
		server_stop(w.server);
		server_up(&w);
		assert_int_equal(set(two, 2, LOCK_SHARED, 39, 39), -EAGAIN);
		assert_int_equal(set(two, 2, LOCK_SHARED, 50, 50), 0);
		assert_int_equal(set(two, 2, LOCK_NONE, 50, 50), 0);
		assert_int_equal(flock_set(two, 8, LOCK_SHARED), -EAGAIN);
		assert_int_equal(atomic_load(&e.status), 1);
		assert_int_equal(held(w.client), 4);
	}
	assert_int_equal(set(w.client, 1, LOCK_NONE, 0, 9), 0);
	assert_int_equal(end_of(&e), 0);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

static void many_locks_are_told_in_several_messages(void **state)
{
	enum { MANY = 20000 };
	struct client *two;
	struct world w;

	world_up(&w, "none");
	two = client_up(&w);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 2ull * i, 2ull * i), 0);
	server_stop(w.server);
	server_up(&w);
	assert_int_equal(set(two, 1, LOCK_SHARED, 0, 0), -EAGAIN);
	assert_int_equal(set(two, 1, LOCK_SHARED, 2ull * (MANY - 1), 2ull * (MANY - 1)), -EAGAIN);
	assert_int_equal(held(w.client), MANY);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

/* As the server does with one that was silent for too long. */
static void session_end(struct world *w, uint64_t session)
{
	Wire__HelloRequest hello = WIRE__HELLO_REQUEST__INIT;
	Wire__Empty none = WIRE__EMPTY__INIT;
	struct connection *connection;
	struct frame f = { .op = WIRE__OP__HELLO, .id = 1 };
	const uint8_t *message;
	struct arena arena;
	char why[200];
	int fd;

	hello.version = PROTOCOL_VERSION;
	hello.mount = true;
	hello.session = session;
	hello.volume = "test";
	arena_init(&arena, 0);
	assert_int_equal(address_connect(w->address, 5000, &fd, why, sizeof(why)), 0);
	assert_int_equal(connection_new(fd, &connection), 0);
	assert_int_equal(connection_send(connection, &f, &hello.base, NULL, 0), 0);
	assert_int_equal(connection_receive(connection, &f, &arena, &message), 0);
	assert_int_equal(f.status, 0);
	f = (struct frame){ .op = WIRE__OP__GOODBYE, .id = 2 };
	assert_int_equal(connection_send(connection, &f, &none.base, NULL, 0), 0);
	assert_int_equal(connection_receive(connection, &f, &arena, &message), 0);
	assert_int_equal(f.status, 0);
	connection_free(connection);
	arena_free(&arena);
}

static void a_client_that_was_given_up_gets_back_what_nobody_took(void **state)
{
	struct client *two;
	struct end mine, other;
	struct world w;

	world_up(&w, "none");
	log_set_level(LOG_LEVEL_OFF);
	two = client_up(&w);
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 20, 29), 0);
	assert_int_equal(set(two, 1, LOCK_EXCLUSIVE, 40, 49), 0);
	assert_int_equal(wait_set(w.client, &mine, 2, LOCK_SHARED, 45, 45), -EINPROGRESS);
	assert_int_equal(wait_set(two, &other, 2, LOCK_SHARED, 5, 5), -EINPROGRESS);
	session_end(&w, rpc_session(w.client->rpc));
	assert_int_equal(end_of(&other), 0);
	/* One of two was taken meanwhile; the wait goes on. */
	for (int tries = 0; held(w.client) != 1; tries++) {
		assert_true(tries < 4000);
		pause_ms(5);
	}
	assert_int_equal(set(two, 1, LOCK_SHARED, 25, 25), -EAGAIN);
	assert_int_equal(set(w.client, 1, LOCK_EXCLUSIVE, 5, 5), -EAGAIN);
	assert_int_equal(set(two, 1, LOCK_NONE, 40, 49), 0);
	assert_int_equal(end_of(&mine), 0);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

/* Who closes does not come again. */
static void a_close_while_the_server_is_away_releases_all_the_same(void **state)
{
	struct client_options o = { .volume = "test", .host = "here", .mount_point = "/y", .timeout_ms = 500 };
	struct client *one, *two;
	char error[512];
	struct end e;
	struct world w;

	world_up(&w, "none");
	log_set_level(LOG_LEVEL_OFF);
	o.servers = w.address;
	assert_int_equal(client_connect(&o, &one, error, sizeof(error)), 0);
	two = w.client;
	assert_int_equal(set(one, 1, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(flock_set(one, 7, LOCK_EXCLUSIVE), 0);
	assert_int_equal(set(two, 1, LOCK_EXCLUSIVE, 20, 29), 0);
	assert_int_equal(wait_set(one, &e, 3, LOCK_EXCLUSIVE, 20, 20), -EINPROGRESS);
	server_stop(w.server);
	assert_int_equal(client_unlock_owner(one, INODE, 1), -EIO);
	client_unlock_handle(one, INODE, 7);
	client_lock_cancel(one, e.ticket);
	assert_int_equal(atomic_load(&e.status), -EINTR);
	server_up(&w);
	assert_int_equal(set(two, 1, LOCK_EXCLUSIVE, 0, 9), 0);
	assert_int_equal(flock_set(two, 7, LOCK_EXCLUSIVE), 0);
	assert_int_equal(set(two, 1, LOCK_NONE, 20, 29), 0);
	assert_int_equal(set(two, 2, LOCK_EXCLUSIVE, 20, 29), 0);
	assert_int_equal(held(one), 0);
	assert_int_equal(client_disconnect(one), 0);
	world_down(&w);
}

/* ---- All at once ---- */

struct fighter {
	struct client *client;
	uint64_t owner;
	atomic_int *inside;
	unsigned took, cancelled;
};

static void *fight(void *context)
{
	struct fighter *f = context;

	for (unsigned i = 0; i < 150; i++) {
		struct end e;
		int r = wait_set(f->client, &e, f->owner, LOCK_EXCLUSIVE, 0, 9);

		if (r == -EINPROGRESS) {
			if (i % 4 == 0)
				client_lock_cancel(f->client, e.ticket);
			r = end_of(&e);
		}
		if (r == -EINTR) {
			f->cancelled++;
			continue;
		}
		assert_int_equal(r, 0);
		assert_int_equal(atomic_fetch_add(f->inside, 1), 0);
		f->took++;
		assert_int_equal(atomic_fetch_sub(f->inside, 1), 1);
		if (i % 3)
			assert_int_equal(set(f->client, f->owner, LOCK_NONE, 0, 9), 0);
		else
			assert_int_equal(client_unlock_owner(f->client, INODE, f->owner), 0);
	}
	return NULL;
}

/* With the server restarted in between. */
static void whoever_has_it_is_alone_with_it(void **state)
{
	enum { FIGHTERS = 6 };
	struct fighter fighters[FIGHTERS];
	pthread_t threads[FIGHTERS];
	atomic_int inside = 0;
	struct client *two;
	struct world w;
	unsigned took = 0;

	world_up(&w, "none");
	two = client_up(&w);
	for (int i = 0; i < FIGHTERS; i++) {
		fighters[i] = (struct fighter){ .client = i % 2 ? two : w.client, .owner = 1 + i, .inside = &inside };
		assert_int_equal(pthread_create(&threads[i], NULL, fight, &fighters[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		pause_ms(100);
		server_stop(w.server);
		server_up(&w);
	}
	for (int i = 0; i < FIGHTERS; i++) {
		pthread_join(threads[i], NULL);
		took += fighters[i].took;
	}
	assert_true(took > 0);
	assert_int_equal(held(two) + held(w.client), 0);
	assert_int_equal(set(w.client, 99, LOCK_EXCLUSIVE, 0, LOCK_END_MAX), 0);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_clients_exclude_each_other_until_a_close),
		cmocka_unit_test(closing_asks_the_server_only_where_there_are_locks),
		cmocka_unit_test(a_wait_ends_with_the_lock_or_when_it_is_cancelled),
		cmocka_unit_test(locks_and_waits_outlive_the_server),
		cmocka_unit_test(many_locks_are_told_in_several_messages),
		cmocka_unit_test(a_client_that_was_given_up_gets_back_what_nobody_took),
		cmocka_unit_test(a_close_while_the_server_is_away_releases_all_the_same),
		cmocka_unit_test(whoever_has_it_is_alone_with_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
