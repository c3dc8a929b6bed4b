/* The happy path.  A mount says hello and is alone: its session is offered the lease,
 * and the answer to its LEASE request says so.  It makes files.  A second mount says
 * hello: its HELLO recalls the lease.  The first one's waiting LEASE request is
 * answered at once; it tells the server of its files and then sends the new number back.
 * That ends the recall; the second session begins, and as long as there are two,
 * nobody is offered the lease.  When one ends, the other is.
 *
 *   mount A                    server                      mount B
 *     LEASE seen=1  ------------>
 *     <------- number=2 held
 *     LEASE seen=2  ------------>  (waits)      <------------ HELLO
 *     <------- number=3 not held                              (waits)
 *     CREATE_MANY   ------------>
 *     LEASE seen=3  ------------>
 *                                  SESSION_BEGIN ---------> HELLO's answer
 *
 * What can go wrong:
 *
 *   The holder does not answer.  Its lease runs out `lease_ns` after its last LEASE
 *   request came; it counts from when it sent that, so it stops before we go on.
 *   The holder needs long to tell everything.  It sends the old number again now and
 *   then, each of which is answered "not held" and prolongs the wait, up to RECALL_MAX
 *   leases in all.
 *   The holder was killed.  On this machine the process is watched, and its end ends
 *   the recall; the connections of a dead process close by themselves.
 *   Whoever recalls goes away, or the server stops.  The connection that asks is
 *   watched during the wait.  The recall is released; the holder gives the lease back
 *   nevertheless and is then offered it again.
 *   The server restarts.  The one session of a volume that is on record may hold what
 *   the earlier server gave it.  It counts as told, from the start of this one on.
 *
 * States of a session's lease, and the moves between them:
 *
 *   state      held  is out   moves to
 *   free       no    no       offered: alone, not read-only, no recall
 *   offered    yes   no       held: a LEASE answer said so; free: a recall
 *   held       yes   yes      recalled: a recall
 *   recalled   no    yes      free: acknowledged
 *
 * There is no way from recalled back to held but by an acknowledgement: a mount whose
 * lease was away for a moment always learns of it.
 *
 * Numbers.  The upper bits are that of this start (folder_count_start), so that a
 * number of an earlier server is known as such: it acknowledges nothing, and its
 * mount is told the state of now. */
#include "server/lease.h"
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/marks.h"
#include "server/dispatch.h"
#include "server/state.h"

#define ANSWER_NS (3 * NS_PER_S) /* a LEASE request is answered after this, news or not */
#define LOOK_NS (50 * NS_PER_MS) /* how often a recall looks whether the holder's process lives */
#define RECALL_MAX 6             /* leases: the longest a recall waits for a mount that is alive */
#define NUMBER_BITS 22           /* of a number that count; the rest say which server's it is */

struct lease_waiter {
	struct lease_waiter *next;
	int event;
};

void leases_init(struct server *s, uint64_t start) { s->leases.first = (start << NUMBER_BITS) + 1; }

void leases_free(struct server *s) { intmap_free(&s->leases.recalls); }

/* ---- Waiting ---- */

static void lease_wake(struct lease *l)
{
	for (struct lease_waiter *w = l->waiters; w; w = w->next)
		eventfd_write(w->event, 1);
}

static void waiter_remove(struct lease *l, const struct lease_waiter *w)
{
	struct lease_waiter **at = &l->waiters;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

/* Lets sessions.lock go until something of the lease has changed, or the time has come.  The connection of whoever
 * waits is watched, too: it ends when its client does, when the session ends, and when the server stops. */
static int lease_wait(struct server *s, struct session *n, const struct connection *asking, int64_t until_steady_ns)
{
	struct lease_waiter w = { .next = n->lease.waiters, .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	struct pollfd fds[2] = { { .fd = asking ? connection_fd(asking) : -1, .events = POLLRDHUP },
				 { .fd = w.event, .events = POLLIN } };
	int64_t left_ns = until_steady_ns - clock_steady_ns();

	if (w.event < 0)
		return -errno;
	n->lease.waiters = &w;
	pthread_mutex_unlock(&s->sessions.lock);
	if (left_ns > 0)
		poll(fds, 2, (int)(left_ns / NS_PER_MS) + 1);
	pthread_mutex_lock(&s->sessions.lock);
	waiter_remove(&n->lease, &w);
	close(w.event);
	return fds[0].revents ? -ECONNRESET : 0;
}

/* ---- Who holds it ---- */

/* The mount was told that it holds the lease, and has not said that it knows of the end. */
static bool lease_is_out(const struct lease *l) { return l->told && l->acknowledged <= l->told; }

static bool lease_may_be_held(struct session *n)
{
	return !n->replica && !session_is_ended(n) && (n->lease.held || !lease_is_out(&n->lease));
}

/* The next session on the volume; NULL: there are no more. */
static struct session *volume_next(struct server *s, uint32_t volume, size_t *position)
{
	uint64_t id;
	void *value;

	while (intmap_next(&s->sessions.map, position, &id, &value))
		if (((struct session *)value)->volume == volume)
			return value;
	return NULL;
}

/* There is one session, or all of them only read; and no mount that is away has data of the volume that is not stored.  Replicas do
 * not count: they take in what is told and recall nothing. */
static bool volume_is_quiet(struct server *s, uint32_t volume)
{
	unsigned count = 0, writers = 0;
	struct session *n;

	for (size_t i = 0; (n = volume_next(s, volume, &i));) {
		count += !n->replica;
		writers += !n->read_only;
	}
	return (count == 1 || writers == 0) && !meta_has_orphaned_marks(s->meta, volume);
}

void lease_settle(struct server *s, uint32_t volume)
{
	bool any = !intmap_get(&s->leases.recalls, volume) && volume_is_quiet(s, volume);
	struct session *n;

	for (size_t i = 0; (n = volume_next(s, volume, &i));) {
		bool held = any && lease_may_be_held(n);

		/* During a recall, too: whoever recalls may be about to bring company. */
		session_set_company(n, !any);

		if (held != n->lease.held) {
			n->lease.held = held;
			n->lease.number++;
			lease_wake(&n->lease);
		}
	}
}

void lease_begin(struct server *s, struct session *n)
{
	n->lease.number = s->leases.first;
	n->lease.heard_steady_ns = clock_steady_ns();
}

/* In company nobody held it when the earlier server went down: the second session had to wait for that. */
void leases_recorded(struct server *s)
{
	uint64_t id;
	void *value;
	LOCKED(&s->sessions.lock);

	for (size_t i = 0; intmap_next(&s->sessions.map, &i, &id, &value);) {
		struct session *n = value;

		session_set_company(n, !volume_is_quiet(s, n->volume));
		if (!n->replica && volume_is_quiet(s, n->volume)) {
			n->lease.told = 1; /* a number of no server: any of ours is above */
			n->lease.heard_steady_ns = clock_steady_ns();
		}
	}
}

void lease_ended(struct server *s, struct session *n) { lease_news(s, n); }

void lease_news(struct server *s, struct session *n)
{
	LOCKED(&s->sessions.lock);
	lease_wake(&n->lease);
}

uint64_t lease_void(struct session *n)
{
	n->lease.number++;
	session_set_revoked(n, n->lease.number);
	lease_wake(&n->lease);
	return n->lease.number;
}

uint64_t lease_revoke(struct server *s, struct session *n)
{
	LOCKED(&s->sessions.lock);
	return lease_void(n);
}

/* ---- A mount's side: LEASE ---- */

static int lease_acknowledge(struct server *s, struct session *n, uint64_t seen)
{
	struct lease *l = &n->lease;
	bool ours = seen >= s->leases.first && seen <= l->number;

	if (seen > l->number && seen >> NUMBER_BITS == l->number >> NUMBER_BITS)
		return -EINVAL;
	l->heard_steady_ns = clock_steady_ns();
	if (!ours || seen <= l->acknowledged)
		return 0;
	l->acknowledged = seen;
	lease_wake(l);
	lease_settle(s, n->volume);
	return 0;
}

int serve_lease(struct request *q)
{
	struct server *s = q->server;
	struct session *n = q->peer->session;
	struct lease *l = &n->lease;
	const Wire__LeaseRequest *lease = (const Wire__LeaseRequest *)q->message;
	uint64_t seen = lease->seen;
	Wire__LeaseReply *reply = request_reply(q, &wire__lease_reply__descriptor);
	int64_t until = clock_steady_ns() + (lease->at_once ? 0 : ANSWER_NS);
	int r;
	LOCKED(&s->sessions.lock);

	if (!reply)
		return -ENOMEM;
	session_set_known(n);
	r = lease_acknowledge(s, n, seen);
	if (r)
		return request_explain(q, r, "the lease has no state %llu yet", (unsigned long long)seen);
	recalls_done(s, n, lease->done, lease->written, lease->n_written);
	while (!r && !session_is_ended(n) && l->number == seen && !recalls_wait(s, n) && clock_steady_ns() < until)
		r = lease_wait(s, n, q->peer->connection, until);
	if (r == -ECONNRESET || session_is_ended(n))
		return REQUEST_BROKEN;
	if (r)
		return r;
	reply->number = l->number;
	reply->held = l->held;
	reply->revoked = n->revoked;
	if (l->held)
		l->told = l->number;
	return recalls_fill(s, n, q->arena, reply);
}

/* ---- Everybody else's side: recalls ---- */

static int recalls_add(struct leases *l, uint32_t volume, int count)
{
	uintptr_t now = (uintptr_t)intmap_get(&l->recalls, volume) + (uintptr_t)count;

	if (now)
		return intmap_set(&l->recalls, volume, (void *)now);
	intmap_remove(&l->recalls, volume);
	return 0;
}

static bool lease_has_run_out(struct server *s, const struct lease *l, int64_t give_up_steady_ns)
{
	int64_t now = clock_steady_ns();

	return now >= l->heard_steady_ns + s->lease_ns || now >= give_up_steady_ns;
}

/* One whose mount may have something to tell, with a reference; NULL: there is none. */
static struct session *lease_holder(struct server *s, uint32_t volume, int64_t give_up_steady_ns)
{
	struct session *n;

	for (size_t i = 0; (n = volume_next(s, volume, &i));) {
		if (lease_is_out(&n->lease) && !lease_has_run_out(s, &n->lease, give_up_steady_ns) && !session_is_ended(n) &&
		    !session_is_dead(n)) {
			atomic_fetch_add(&n->refs, 1);
			return n;
		}
	}
	return NULL;
}

int lease_recall(struct server *s, const struct connection *asking, uint32_t volume)
{
	int64_t give_up = clock_steady_ns() + RECALL_MAX * s->lease_ns;
	struct session *n;
	int r;
	LOCKED(&s->sessions.lock);

	r = recalls_add(&s->leases, volume, 1);
	if (r)
		return r;
	lease_settle(s, volume);
	while (!r && (n = lease_holder(s, volume, give_up))) {
		r = lease_wait(s, n, asking, clock_steady_ns() + LOOK_NS);
		if (!r && lease_is_out(&n->lease) && lease_has_run_out(s, &n->lease, give_up))
			log_warn("volume %s: mount %s:%s does not answer: files it made lately may be missing", n->volume_name,
				 n->host, n->mount_point);
		session_unref(n);
	}
	if (r) {
		recalls_add(&s->leases, volume, -1);
		lease_settle(s, volume);
	}
	return r;
}

void lease_release(struct server *s, uint32_t volume)
{
	LOCKED(&s->sessions.lock);
	recalls_add(&s->leases, volume, -1);
	lease_settle(s, volume);
}
