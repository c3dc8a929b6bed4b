/* The happy path of a file that goes from hand to hand:
 *
 *   mount A (has GRANT_WRITE)      server                        mount B
 *     LEASE            ------------>  (waits)    <-------------- EXTENTS want=READ
 *     <------ recall 7: F, WRITE                                 (waits)
 *     LEASE done=7     ------------>
 *     COMMIT F         ------------>
 *     RETURN F, recall 7, READ ---->
 *                                    A: READ, B: READ ---------> extents, READ
 *
 * A hold, from the session's view, and the moves between its states:
 *
 *   state      moves to
 *   none       held: taken, nobody in the way
 *   held       held: more of it; recalled: somebody else wants it or changes it; none: closed
 *   recalled   held: returned, but something may stay; none: returned, acknowledged (directories), revoked
 *
 * While a hold is recalled its session is answered at once and without a grant, as it
 * may need the answer to give the hold back.  RETURN names the recall it answers: one
 * that was sent twice does not touch what was granted in between. */
#include "server/grants.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/marks.h"
#include "server/state.h"

#define LOOK_NS (50 * NS_PER_MS) /* how often a wait looks whether those waited for live */
#define GIVE_UP 6                /* leases: the longest a mount that is alive may need for a recall */
#define HEAT_NS (1 * NS_PER_S)
#define HEAT_MAX 4u /* a directory recalled more often than this within HEAT_NS is not granted for so long */

#define NONE WIRE__GRANT__GRANT_NONE
#define READ WIRE__GRANT__GRANT_READ
#define WRITE WIRE__GRANT__GRANT_WRITE

struct hold {
	struct session *session;
	Wire__Grant grant;
	uint64_t since;  /* session.revoked when it was taken: what is revoked later is void */
	uint64_t recall; /* the number of the last recall; 0: none is under way */
	Wire__RecallKind kind;
	int64_t recalled_ns; /* since when it is asked for */
};

struct grant_waiter {
	struct grant_waiter *next;
	const struct session *session;
	Wire__Grant want; /* none: it waits for others to forget */
	uint64_t ticket;
	int event;
};

/* Lives while it has holds, is changed, or is waited for. */
struct subject {
	uint64_t key;
	struct hold *holds;
	uint32_t count, capacity, changing;
	struct grant_waiter *waiters;
};

struct grant_heat {
	uint64_t key;
	int64_t since_ns;
	uint32_t recalls;
};

void grants_init(struct server *s) { pthread_mutex_init(&s->grants.lock, NULL); }

/* Numbers of recalls, like those of leases, are higher than all of an earlier server. */
void grants_begin(struct server *s) { s->grants.recalls = s->leases.first; }

void grants_free(struct server *s)
{
	uint64_t key;
	void *value;

	for (size_t i = 0; intmap_next(&s->grants.subjects, &i, &key, &value);) {
		free(((struct subject *)value)->holds);
		free(value);
	}
	intmap_free(&s->grants.subjects);
	free(s->grants.heat);
	pthread_mutex_destroy(&s->grants.lock);
}

/* ---- Subjects and holds; the lock is held ---- */

static struct subject *subject_find(struct grants *g, uint64_t key) { return intmap_get(&g->subjects, key); }

static struct subject *subject_get(struct grants *g, uint64_t key)
{
	struct subject *u = subject_find(g, key);

	if (u)
		return u;
	u = calloc(1, sizeof(*u));
	if (!u)
		return NULL;
	u->key = key;
	if (intmap_set(&g->subjects, key, u) < 0) {
		free(u);
		return NULL;
	}
	return u;
}

static void subject_tidy(struct grants *g, struct subject *u)
{
	if (!u || u->count || u->changing || u->waiters)
		return;
	intmap_remove(&g->subjects, u->key);
	free(u->holds);
	free(u);
}

static void subject_wake(struct subject *u)
{
	for (struct grant_waiter *w = u->waiters; w; w = w->next)
		eventfd_write(w->event, 1);
}

static struct hold *hold_find(struct subject *u, const struct session *n)
{
	for (uint32_t i = 0; u && i < u->count; i++)
		if (u->holds[i].session == n)
			return &u->holds[i];
	return NULL;
}

static int hold_set(struct subject *u, struct session *n, Wire__Grant grant)
{
	struct hold *h = hold_find(u, n);

	if (h) {
		h->grant = grant;
		h->since = session_revoked(n);
		return 0;
	}
	/* grants_forget comes after this is set, and after that nothing may be left of it. */
	if (session_is_ended(n))
		return -ESTALE;
	if (u->count == u->capacity) {
		uint32_t capacity = u->capacity ? u->capacity * 2 : 1;
		struct hold *holds = realloc(u->holds, capacity * sizeof(*holds));

		if (!holds)
			return -ENOMEM;
		u->holds = holds;
		u->capacity = capacity;
	}
	u->holds[u->count++] = (struct hold){ .session = n, .grant = grant, .since = session_revoked(n) };
	return 0;
}

static void hold_remove(struct grants *g, struct subject *u, struct hold *h)
{
	g->writers_gone += h->grant == WRITE;
	*h = u->holds[--u->count];
	subject_wake(u);
}

/* ---- Recalls; the lock is held ---- */

static bool recall_is_weaker(const struct hold *h, Wire__RecallKind kind)
{
	return !h->recall || (h->kind == WIRE__RECALL_KIND__RECALL_WRITE && kind == WIRE__RECALL_KIND__RECALL_FILE);
}

static void heat_add(struct grants *g, uint64_t key)
{
	int64_t now = clock_steady_ns();
	struct grant_heat *h;

	if (!g->heat)
		g->heat = calloc(GRANTS_HOT, sizeof(*g->heat));
	if (!g->heat)
		return;
	h = &g->heat[key % GRANTS_HOT];
	if (h->key != key || now - h->since_ns > HEAT_NS)
		*h = (struct grant_heat){ .key = key, .since_ns = now };
	h->recalls++;
}

static bool is_hot(const struct grants *g, uint64_t key)
{
	const struct grant_heat *h = g->heat ? &g->heat[key % GRANTS_HOT] : NULL;

	return h && h->key == key && h->recalls > HEAT_MAX && clock_steady_ns() - h->since_ns < HEAT_NS;
}

/* Whether a hold must go for what the other one wants. */
static bool is_in_the_way(const struct hold *h, const struct session *n, Wire__RecallKind kind)
{
	return h->session != n && (kind != WIRE__RECALL_KIND__RECALL_WRITE || h->grant == WRITE);
}

/* Those who are in the way are told, once each.  Who is to be woken is in `told`; the rest is told the next time. */
#define TOLD_MAX 64
struct told {
	struct session *sessions[TOLD_MAX];
	unsigned count;
};

static void recall_tell(struct grants *g, struct subject *u, struct hold *h, Wire__RecallKind kind, struct told *told)
{
	uint64_t number;

	if (!recall_is_weaker(h, kind) || told->count == TOLD_MAX)
		return;
	number = recall_add(g, h->session, u->key & INODE_MAX, kind);
	if (!number)
		return;
	if (!h->recall)
		h->recalled_ns = clock_steady_ns();
	h->recall = number;
	h->kind = kind;
	atomic_fetch_add(&h->session->refs, 1);
	told->sessions[told->count++] = h->session;
	subject_wake(u); /* its own requests that wait for this subject are answered now */
	if (kind == WIRE__RECALL_KIND__RECALL_DIRECTORY)
		heat_add(g, u->key);
}

/* Whom to wait for, and since when he is asked. */
struct awaited {
	struct session *session; /* with a reference; NULL: nobody */
	int64_t recalled_ns;
	uint64_t inode;
};

static struct awaited recall_others(struct grants *g, struct subject *u, const struct session *n, Wire__RecallKind kind,
				    struct told *told)
{
	struct awaited one = { 0 };

	for (uint32_t i = 0; u && i < u->count; i++) {
		struct hold *h = &u->holds[i];

		if (!is_in_the_way(h, n, kind))
			continue;
		recall_tell(g, u, h, kind, told);
		if (!one.session) {
			one = (struct awaited){ h->session, h->recall ? h->recalled_ns : clock_steady_ns(), u->key & INODE_MAX };
			atomic_fetch_add(&one.session->refs, 1);
		}
	}
	return one;
}

/* ---- Waiting ---- */

/* Without any lock: their LEASE requests are answered. */
static void told_wake(struct server *s, struct told *told)
{
	for (unsigned i = 0; i < told->count; i++) {
		lease_news(s, told->sessions[i]);
		session_unref(told->sessions[i]);
	}
	told->count = 0;
}

int grants_event_wait(int event, const struct connection *asking)
{
	struct pollfd fds[2] = { { .fd = asking ? connection_fd(asking) : -1, .events = POLLRDHUP },
				 { .fd = event, .events = POLLIN } };

	poll(fds, 2, (int)(LOOK_NS / NS_PER_MS));
	return fds[0].revents ? -ECONNRESET : 0;
}

bool session_is_lost(struct server *s, struct session *n)
{
	return clock_steady_ns() >= atomic_load(&n->lease.heard_steady_ns) + s->lease_ns || session_is_ended(n) ||
	       session_is_dead(n);
}

/* One that is heard of, but gives nothing back, is not waited for for ever; unless it uploads what nobody else has. */
static bool awaited_is_lost(struct server *s, const struct awaited *one)
{
	return session_is_lost(s, one->session) ||
	       (clock_steady_ns() >= one->recalled_ns + GIVE_UP * s->lease_ns && !marks_are_its_own(s, one->session, one->inode));
}

static void waiter_remove(struct grant_waiter **list, const struct grant_waiter *w)
{
	while (*list != w)
		list = &(*list)->next;
	*list = w->next;
}

/* Gives the lock up until something about the subject has changed, or a moment has passed: without an event for it, too.  The
 * reference to who is waited for is taken over. */
static int subject_wait(struct server *s, struct subject *u, const struct connection *asking, struct grant_waiter *w,
			struct awaited one, struct told *told)
{
	int r;

	w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->next = u->waiters;
	u->waiters = w;
	pthread_mutex_unlock(&s->grants.lock);
	told_wake(s, told);
	r = grants_event_wait(w->event, asking);
	if (one.session && awaited_is_lost(s, &one))
		grants_revoke(s, one.session); /* if that fails, again in a moment */
	session_unref(one.session);
	pthread_mutex_lock(&s->grants.lock);
	waiter_remove(&u->waiters, w);
	if (w->event >= 0)
		close(w->event);
	return r;
}

/* ---- Taking ---- */

static bool is_free_for(const struct subject *u, const struct session *n, Wire__Grant want)
{
	for (uint32_t i = 0; i < u->count; i++)
		if (u->holds[i].session != n && (want == WRITE || u->holds[i].grant == WRITE))
			return false;
	return true;
}

/* Somebody else has waited longer for what would be in his way. */
static bool is_first(const struct subject *u, const struct grant_waiter *me)
{
	for (const struct grant_waiter *w = u->waiters; w; w = w->next)
		if (w->session != me->session && w->want != NONE && w->ticket < me->ticket &&
		    (w->want == WRITE || me->want == WRITE))
			return false;
	return true;
}

/* 1: decided; 0: others are in the way. */
static int grant_decide(struct grants *g, struct subject *u, struct session *n, const struct grant_waiter *me, bool wait,
			Wire__Grant *got)
{
	Wire__Grant want = me->want;
	struct hold *mine = hold_find(u, n);
	int r;

	*got = NONE;
	if ((mine && mine->recall) || (!wait && is_hot(g, u->key)))
		return 1;
	if (mine && mine->grant >= want) {
		mine->since = session_revoked(n); /* it is being revoked, but asks anew */
		*got = mine->grant;
		return 1;
	}
	if (u->changing || !is_free_for(u, n, want) || !is_first(u, me))
		return wait ? 0 : 1;
	r = hold_set(u, n, want);
	if (!r)
		*got = want;
	return r < 0 ? r : 1;
}

int grant_take(struct server *s, const struct connection *asking, struct session *n, uint64_t inode, Wire__Grant want, bool wait,
	       Wire__Grant *got)
{
	Wire__RecallKind kind = want == WRITE ? WIRE__RECALL_KIND__RECALL_FILE : WIRE__RECALL_KIND__RECALL_WRITE;
	struct grant_waiter me = { .session = n, .want = want };
	struct told told = { .count = 0 };
	bool waited = false;
	struct subject *u;
	int r;
	LOCKED(&s->grants.lock);

	u = subject_get(&s->grants, inode_key(n->volume, inode));
	if (!u)
		return -ENOMEM;
	me.ticket = ++s->grants.tickets;
	while ((r = grant_decide(&s->grants, u, n, &me, wait, got)) == 0) {
		struct awaited one = { 0 };

		if (!u->changing)
			one = recall_others(&s->grants, u, n, kind, &told);
		r = subject_wait(s, u, asking, &me, one, &told);
		waited = true;
		if (r < 0)
			break;
	}
	if (waited) /* whoever is next */
		subject_wake(u);
	subject_tidy(&s->grants, u);
	return r < 0 ? r : 0;
}

int grant_reclaim(struct server *s, struct session *n, uint64_t inode, Wire__Grant grant)
{
	struct subject *u;
	int r = -ENOMEM;
	LOCKED(&s->grants.lock);

	if (!inode || inode > INODE_MAX)
		return -EINVAL;
	u = subject_get(&s->grants, inode_key(n->volume, inode));
	if (u)
		r = is_free_for(u, n, grant) ? hold_set(u, n, grant) : -EBUSY;
	subject_tidy(&s->grants, u);
	return r;
}

void grant_return(struct server *s, struct session *n, uint64_t inode, Wire__Grant left, uint64_t recall)
{
	struct subject *u;
	struct hold *h;
	LOCKED(&s->grants.lock);

	u = subject_find(&s->grants, inode_key(n->volume, inode));
	h = hold_find(u, n);
	if (!h || h->recall != recall)
		return;
	if (left == NONE || h->kind == WIRE__RECALL_KIND__RECALL_FILE) {
		hold_remove(&s->grants, u, h);
	} else {
		s->grants.writers_gone += h->grant == WRITE;
		h->grant = READ;
		h->recall = 0;
		subject_wake(u);
	}
	subject_tidy(&s->grants, u);
}

void grant_acknowledged(struct grants *g, const struct session *n, uint64_t inode, uint64_t recall)
{
	struct subject *u = subject_find(g, inode_key(n->volume, inode));
	struct hold *h = hold_find(u, n);

	if (h && h->recall == recall)
		hold_remove(g, u, h);
	subject_tidy(g, u);
}

void grant_drop(struct server *s, struct session *n, uint64_t inode)
{
	struct subject *u;
	struct hold *h;
	LOCKED(&s->grants.lock);

	u = subject_find(&s->grants, inode_key(n->volume, inode));
	h = hold_find(u, n);
	if (h)
		hold_remove(&s->grants, u, h);
	subject_tidy(&s->grants, u);
}

/* ---- Changing ---- */

static Wire__RecallKind recall_of(enum touch_kind kind)
{
	return kind == TOUCH_DIRECTORY ? WIRE__RECALL_KIND__RECALL_DIRECTORY
	       : kind == TOUCH_SOURCE  ? WIRE__RECALL_KIND__RECALL_WRITE
				       : WIRE__RECALL_KIND__RECALL_FILE;
}

static void changes_unmark(struct grants *g, uint32_t volume, const struct touch *touched, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct subject *u = subject_find(g, inode_key(volume, touched[i].inode));

		if (!u || touched[i].kind == TOUCH_SOURCE)
			continue;
		if (--u->changing == 0)
			subject_wake(u);
		subject_tidy(g, u);
	}
}

static int changes_mark(struct grants *g, uint32_t volume, const struct touch *touched, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct subject *u;

		if (touched[i].kind == TOUCH_SOURCE)
			continue;
		u = subject_get(g, inode_key(volume, touched[i].inode));
		if (!u) {
			changes_unmark(g, volume, touched, i);
			return -ENOMEM;
		}
		u->changing++;
	}
	return 0;
}

int grants_change_begin(struct server *s, const struct connection *asking, struct session *n, uint32_t volume,
			const struct touch *touched, size_t count)
{
	struct grant_waiter me = { .session = n };
	struct told told = { .count = 0 };
	int r;
	LOCKED(&s->grants.lock);

	r = changes_mark(&s->grants, volume, touched, count);
	if (r)
		return r;
	/* All are told before the first is waited for. */
	for (size_t i = 0; i < count; i++)
		session_unref(recall_others(&s->grants, subject_find(&s->grants, inode_key(volume, touched[i].inode)), n,
					    recall_of(touched[i].kind), &told)
				      .session);
	for (size_t i = 0; i < count && !r; i++) {
		uint64_t key = inode_key(volume, touched[i].inode);
		struct awaited one;
		struct subject *u;

		while (!r && (u = subject_find(&s->grants, key)) &&
		       (one = recall_others(&s->grants, u, n, recall_of(touched[i].kind), &told)).session)
			r = subject_wait(s, u, asking, &me, one, &told);
		if (touched[i].kind == TOUCH_SOURCE)
			subject_tidy(&s->grants, subject_find(&s->grants, key));
	}
	if (r)
		changes_unmark(&s->grants, volume, touched, count);
	return r;
}

void grants_change_end(struct server *s, uint32_t volume, const struct touch *touched, size_t count)
{
	LOCKED(&s->grants.lock);
	changes_unmark(&s->grants, volume, touched, count);
}

/* ---- Looking ---- */

uint64_t grants_writers_gone(struct server *s)
{
	LOCKED(&s->grants.lock);
	return s->grants.writers_gone;
}

struct session *grant_writer(struct server *s, uint32_t volume, uint64_t inode, const struct session *n)
{
	struct subject *u;
	LOCKED(&s->grants.lock);

	u = subject_find(&s->grants, inode_key(volume, inode));
	for (uint32_t i = 0; u && i < u->count; i++) {
		if (u->holds[i].session == n || u->holds[i].grant != WRITE)
			continue;
		atomic_fetch_add(&u->holds[i].session->refs, 1);
		return u->holds[i].session;
	}
	return NULL;
}

/* ---- The end ---- */

/* The lock is held.  Those taken before `limit`. */
static void holds_remove(struct grants *g, const struct session *n, uint64_t limit, struct buf *written)
{
	size_t position = 0;
	uint64_t key;
	void *value;

	while (intmap_next(&g->subjects, &position, &key, &value)) {
		struct hold *h = hold_find(value, n);

		if (!h || h->since >= limit)
			continue;
		if (h->grant == WRITE)
			buf_le64(written, key & INODE_MAX);
		hold_remove(g, value, h);
	}
}

/* The map may not change while it is gone through, so what has become empty is taken out afterwards; without memory for
 * that, when it is next used. */
static void subjects_tidy(struct grants *g)
{
	CLEANUP_FREE struct subject **all = malloc((g->subjects.used + 1) * sizeof(struct subject *));
	size_t position = 0, count = 0;
	uint64_t key;
	void *value;

	while (all && intmap_next(&g->subjects, &position, &key, &value))
		all[count++] = value;
	for (size_t i = 0; i < count; i++)
		subject_tidy(g, all[i]);
}

static void grants_remove(struct server *s, struct session *n, uint64_t limit, struct written_files *written)
{
	CLEANUP_BUF struct buf inodes = { 0 };

	pthread_mutex_lock(&s->grants.lock);
	recalls_unask(n);
	holds_remove(&s->grants, n, limit, &inodes);
	subjects_tidy(&s->grants);
	pthread_mutex_unlock(&s->grants.lock);
	/* What it has in its write-back directory is not lost. */
	for (size_t at = 0; at < inodes.len; at += 8) {
		uint64_t inode = get_le64(inodes.data + at);

		if (!marks_are_its_own(s, n, inode) && written->count++ < LOSS_PATHS)
			written->inodes[written->count - 1] = inode;
	}
}

/* First its commits are refused, also by a server that is restarted; and those already let through are done, as they were queued
 * before that was recorded.  Nobody sees the files before. */
int grants_revoke(struct server *s, struct session *n)
{
	struct written_files written = { 0 };
	uint64_t limit = lease_revoke(s, n);
	int r = session_record_revoked(s, n);

	if (r)
		return r;
	grants_remove(s, n, limit, &written);
	log_warn("volume %s: mount %s:%s is given up: others are not kept waiting for it", n->volume_name, n->host,
		 n->mount_point);
	loss_add(s, n, &written, true);
	return 0;
}

void grants_forget(struct server *s, struct session *n, bool lost)
{
	struct written_files written = { 0 };

	grants_remove(s, n, UINT64_MAX, &written);
	if (!lost)
		return;
	loss_add(s, n, &written, false);
	marks_left_log(s, n);
}
