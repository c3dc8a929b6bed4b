#include "server/locks.h"
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/locktable.h"
#include "server/dispatch.h"
#include "server/state.h"

#define ANSWER_NS (3 * NS_PER_S) /* a LOCK_WAIT request is answered after this, news or not */
#define GRANTED_MOST 1024        /* in one answer; the rest comes with the next */

_Static_assert((int)WIRE__LOCK_STATUS__LOCK_DONE == LOCK_RESULT_DONE && (int)WIRE__LOCK_STATUS__LOCK_BUSY == LOCK_RESULT_BUSY &&
		       (int)WIRE__LOCK_STATUS__LOCK_QUEUED == LOCK_RESULT_QUEUED &&
		       (int)WIRE__LOCK_STATUS__LOCK_DEADLOCK == LOCK_RESULT_DEADLOCK &&
		       (int)WIRE__LOCK_STATUS__LOCK_LATER == LOCK_RESULT_FROZEN,
	       "results travel as they are");

struct lock_listener {
	struct lock_listener *next;
	uint64_t session;
	int event;
};

static void session_wake(void *context, uint64_t session)
{
	struct server *s = context;

	for (struct lock_listener *l = s->locks.listeners; l; l = l->next)
		if (l->session == session)
			eventfd_write(l->event, 1);
}

int locks_open(struct server *s)
{
	s->locks.table = locktable_new(session_wake, s);
	return s->locks.table ? 0 : -ENOMEM;
}

void locks_close(struct server *s)
{
	locktable_free(s->locks.table);
	pthread_mutex_destroy(&s->locks.lock);
}

/* ---- Around a restart ---- */

static void freeze(void *context, struct session *n)
{
	struct server *s = context;

	if (!n->replica && locktable_freeze(s->locks.table, n->volume))
		s->locks.frozen = false;
}

/* Nobody is served yet, so no lock of ours is needed. */
int locks_recorded(struct server *s)
{
	s->locks.frozen = true;
	s->locks.frozen_until_steady_ns = clock_steady_ns() + s->lease_ns;
	sessions_each(s, freeze, s);
	return s->locks.frozen ? 0 : -ENOMEM;
}

void locks_settle(struct server *s, uint32_t volume)
{
	bool expected = sessions_are_expected(s, volume);
	LOCKED(&s->locks.lock);

	if (!expected)
		locktable_thaw(s->locks.table, volume);
}

void locks_reclaimed(struct server *s, struct session *n)
{
	pthread_mutex_lock(&s->locks.lock);
	n->locks.settled = true;
	pthread_mutex_unlock(&s->locks.lock);
	locks_settle(s, n->volume);
}

void locks_tick(struct server *s)
{
	LOCKED(&s->locks.lock);
	if (!s->locks.frozen || clock_steady_ns() < s->locks.frozen_until_steady_ns)
		return;
	s->locks.frozen = false;
	locktable_thaw_all(s->locks.table);
}

void locks_ended(struct server *s, const struct session *n)
{
	LOCKED(&s->locks.lock);
	locktable_drop_session(s->locks.table, n->id);
	session_wake(s, n->id);
}

/* ---- LOCK ---- */

static int lock_take(struct request *q, const Wire__Lock *from, struct lock *out)
{
	const struct session *n = q->peer->session;

	if (!from || !from->inode || from->inode > INODE_MAX || from->type > LOCK_EXCLUSIVE)
		return request_explain(q, -EINVAL, "that is no lock on a file");
	if (n->volume > LOCK_VOLUME_MAX)
		return request_explain(q, -ENOLCK, "there are no locks on volumes with a number above %u", LOCK_VOLUME_MAX);
	*out = (struct lock){
		.file = lock_file(n->volume, from->inode),
		.session = n->id,
		.owner = from->owner,
		.handle = from->handle,
		.start = from->start,
		.end = from->end,
		.pid = from->pid,
		.flock = from->flock,
		.type = from->type,
	};
	if (!lock_is_sound(out))
		return request_explain(q, -EINVAL, "a lock cannot be on the bytes %llu to %llu", (unsigned long long)out->start,
				       (unsigned long long)out->end);
	return 0;
}

static int lock_test(struct request *q, const struct lock *l, Wire__LockReply *reply)
{
	struct locktable *t = q->server->locks.table;
	struct lock found;

	if (locktable_is_frozen(t, q->peer->session->volume))
		return LOCK_RESULT_FROZEN;
	if (locktable_test(t, l, &found))
		return LOCK_RESULT_DONE;
	reply->found = arena_take(q->arena, sizeof(*reply->found));
	if (!reply->found)
		return -ENOMEM;
	wire__lock__init(reply->found);
	reply->found->start = found.start;
	reply->found->end = found.end;
	reply->found->type = found.type;
	reply->found->flock = found.flock;
	reply->found->pid = found.session == l->session ? found.pid : 0;
	return LOCK_RESULT_BUSY;
}

static int lock_do(struct locktable *t, const Wire__LockRequest *ask, const struct lock *l)
{
	switch (ask->action) {
	case WIRE__LOCK_ACTION__LOCK_SET: return locktable_set(t, l, ask->wait);
	case WIRE__LOCK_ACTION__LOCK_CANCEL: return locktable_cancel(t, l->session, ask->wait);
	case WIRE__LOCK_ACTION__LOCK_DROP_OWNER: locktable_drop_owner(t, l->file, l->session, l->owner); return 0;
	case WIRE__LOCK_ACTION__LOCK_DROP_HANDLE: locktable_drop_handle(t, l->file, l->session, l->handle); return 0;
	default: return -ENOSYS;
	}
}

int serve_lock(struct request *q)
{
	const Wire__LockRequest *ask = (const Wire__LockRequest *)q->message;
	struct session_locks *mine = &q->peer->session->locks;
	Wire__LockReply *reply = request_reply(q, &wire__lock_reply__descriptor);
	struct lock l;
	int r = reply ? lock_take(q, ask->lock, &l) : -ENOMEM;
	LOCKED(&q->server->locks.lock);

	if (r)
		return r;
	if (session_is_ended(q->peer->session))
		return REQUEST_BROKEN;
	if (ask->action == WIRE__LOCK_ACTION__LOCK_TEST) {
		r = lock_test(q, &l, reply);
	} else if (ask->lane >= LOCK_LANES || !ask->number) {
		return request_explain(q, -EINVAL, "a lock request has a lane below %d and a number", LOCK_LANES);
	} else if (ask->number < mine->lanes[ask->lane].number) {
		return request_explain(q, -EBADMSG, "a later request of this lane was served already");
	} else {
		if (ask->number > mine->lanes[ask->lane].number) {
			mine->settled = true;
			mine->lanes[ask->lane].result = lock_do(q->server->locks.table, ask, &l);
			mine->lanes[ask->lane].number = ask->number;
		}
		r = mine->lanes[ask->lane].result;
	}
	if (r == -ENOLCK)
		return request_explain(q, r, "this mount has %u locks, which is the limit", LOCKS_PER_SESSION);
	if (r < 0)
		return r;
	reply->status = (Wire__LockStatus)r;
	return 0;
}

/* ---- LOCK_WAIT ---- */

/* Lets locks.lock go until something was granted, or the time has come; the connection is watched, too. */
static int listen_until(struct server *s, const struct session *n, const struct connection *asking, int64_t until_steady_ns)
{
	struct lock_listener l = { .next = s->locks.listeners,
				   .session = n->id,
				   .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	struct pollfd fds[2] = { { .fd = connection_fd(asking), .events = POLLRDHUP }, { .fd = l.event, .events = POLLIN } };
	struct lock_listener **at = &s->locks.listeners;
	int64_t left_ns = until_steady_ns - clock_steady_ns();

	if (l.event < 0)
		return -errno;
	s->locks.listeners = &l;
	pthread_mutex_unlock(&s->locks.lock);
	if (left_ns > 0)
		poll(fds, 2, (int)(left_ns / NS_PER_MS) + 1);
	pthread_mutex_lock(&s->locks.lock);
	while (*at != &l)
		at = &(*at)->next;
	*at = l.next;
	close(l.event);
	return fds[0].revents ? -ECONNRESET : 0;
}

int serve_lock_wait(struct request *q)
{
	struct server *s = q->server;
	const struct session *n = q->peer->session;
	Wire__LockWaitReply *reply = request_reply(q, &wire__lock_wait_reply__descriptor);
	int64_t until = clock_steady_ns() + ANSWER_NS;
	int r = 0;

	if (!reply)
		return -ENOMEM;
	reply->granted = arena_take(q->arena, GRANTED_MOST * sizeof(*reply->granted));
	if (!reply->granted)
		return -ENOMEM;
	LOCKED(&s->locks.lock);
	while (!r && !session_is_ended(q->peer->session)) {
		reply->n_granted = locktable_granted(s->locks.table, n->id, reply->granted, GRANTED_MOST);
		if (reply->n_granted || clock_steady_ns() >= until)
			return 0;
		r = listen_until(s, n, q->peer->connection, until);
	}
	return !r || r == -ECONNRESET ? REQUEST_BROKEN : r;
}

/* ---- LOCK_RECLAIM ---- */

/* A mount whose session was ended meanwhile asks in a new one: it gets what is free, once all others have said what is not. */
static int reclaim_one(struct request *q, const Wire__Lock *from, bool expected)
{
	struct locktable *t = q->server->locks.table;
	struct lock l;
	int r = lock_take(q, from, &l);

	if (!r && l.type == LOCK_NONE)
		r = request_explain(q, -EINVAL, "what is not held cannot be reclaimed");
	if (!r && !expected && locktable_is_frozen(t, q->peer->session->volume))
		return LOCK_RESULT_BUSY;
	return r ? r : locktable_reclaim(t, &l);
}

static int reclaim_all(struct request *q, const Wire__LockReclaimRequest *ask, Wire__LockReclaimReply *reply, bool expected)
{
	struct session_locks *mine = &q->peer->session->locks;

	for (size_t i = 0; i < ask->n_numbers && i < LOCK_LANES; i++)
		if (ask->numbers[i] > mine->lanes[i].number)
			mine->lanes[i].number = ask->numbers[i];
	for (size_t i = 0; i < ask->n_locks; i++) {
		int r = reclaim_one(q, ask->locks[i], expected);

		if (r == LOCK_RESULT_BUSY)
			reply->lost[reply->n_lost++] = (uint32_t)i;
		else if (r)
			return r;
	}
	return 0;
}

int serve_lock_reclaim(struct request *q)
{
	const Wire__LockReclaimRequest *ask = (const Wire__LockReclaimRequest *)q->message;
	struct session *n = q->peer->session;
	Wire__LockReclaimReply *reply = request_reply(q, &wire__lock_reclaim_reply__descriptor);
	bool expected = session_is_expected(q->server, n);

	if (!reply)
		return -ENOMEM;
	reply->lost = arena_take(q->arena, (ask->n_locks + 1) * sizeof(*reply->lost));
	if (!reply->lost)
		return -ENOMEM;
	LOCKED(&q->server->locks.lock);
	if (session_is_ended(n))
		return REQUEST_BROKEN;
	/* Its RECLAIM's answer was lost: it tells the same once more. */
	return n->locks.settled ? 0 : reclaim_all(q, ask, reply, expected);
}
