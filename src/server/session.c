#include "server/session.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/attr.h"
#include "meta/marks.h"
#include "server/dispatch.h"
#include "server/process.h"
#include "server/state.h"

#define HOST_TEXT 256u
#define HOLD_NS (15 * NS_PER_S)  /* mounts that are alive have reclaimed by then */
#define SETTLE_NS (2 * NS_PER_S) /* after the last reclaim: for calls that were under way when we went down */
#define SESSION_ID_BITS 52       /* random; fits in a JSON number */
#define AWAIT_MS 10
#define SHARES 4 /* of the connections a mount may have, at most */

/* ---- One session ---- */

struct caller session_caller(const struct session *session)
{
	return (struct caller){
		.session = session->id, .volume = session->volume, .root = session->root, .read_only = session->read_only
	};
}

void session_heard(struct session *session)
{
	atomic_store_explicit(&session->heard_steady_ns, clock_steady_ns(), memory_order_relaxed);
}

bool session_was_heard(const struct session *session)
{
	return atomic_load_explicit(&session->heard_steady_ns, memory_order_relaxed) != session->loaded_steady_ns;
}

/* A pidfd of who is at the other end, -1 if there is none.  Should the process be gone and its number be another's by
 * now, we take that one's life for its life, which only means to wait longer. */
static int socket_process(int socket)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.pid <= 0)
		return -1;
	return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

void session_joined(struct session *session, int socket, bool local)
{
	int process = local ? socket_process(socket) : -1, before;

	pthread_mutex_lock(&session->lock);
	session->connections++;
	session->local = local;
	before = session->process;
	session->process = process;
	pthread_mutex_unlock(&session->lock);
	if (before >= 0)
		close(before);
}

void session_left(struct session *session)
{
	LOCKED(&session->lock);
	session->connections--;
	session->alone_steady_ns = clock_steady_ns();
}

/* A connection over the network may break while the mount lives; a local one does not.  A hello whose answer got lost left
 * a session nobody knows of. */
static bool session_is_abandoned(struct server *s, struct session *session)
{
	LOCKED(&session->lock);
	return (session->local || !session->known_back) && !session->connections &&
	       clock_steady_ns() - session->alone_steady_ns > (session->local ? s->abandoned_ns : s->lease_ns);
}

void session_set_known(struct session *session)
{
	LOCKED(&session->lock);
	session->known_back = true;
}

/* A process that lost its connections but lives comes back with new ones.  One that ended while no server was there, or
 * with the machine, is known to be gone by its record. */
bool session_is_dead(struct session *session)
{
	struct pollfd process = { .events = POLLIN };
	LOCKED(&session->lock);

	process.fd = session->process;
	if (!session->local || session->connections)
		return false;
	return session->gone || (process.fd >= 0 && poll(&process, 1, 0) == 1 && process.revents & POLLIN);
}

bool session_is_ended(struct session *session)
{
	LOCKED(&session->lock);
	return session->ended;
}

void session_set_company(struct session *session, bool company)
{
	LOCKED(&session->lock);
	session->company = company;
}

bool session_in_company(struct session *session)
{
	LOCKED(&session->lock);
	return session->company;
}

void session_set_revoked(struct session *session, uint64_t number)
{
	LOCKED(&session->lock);
	session->revoked = number;
}

uint64_t session_revoked(struct session *session)
{
	LOCKED(&session->lock);
	return session->revoked;
}

void session_unref(struct session *session)
{
	if (!session || atomic_fetch_sub(&session->refs, 1) != 1)
		return;
	free(session->volume_name);
	free(session->host);
	free(session->mount_point);
	free(session->ranges);
	recalls_drop(session);
	if (session->process >= 0)
		close(session->process);
	pthread_cond_destroy(&session->less);
	pthread_mutex_destroy(&session->opening);
	pthread_mutex_destroy(&session->lock);
	free(session);
}

static struct session *session_new(struct server *s, const Wire__SessionBegin *record, const char *volume_name)
{
	struct session *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->id = record->session;
	n->volume = record->volume;
	n->root = record->root;
	n->read_only = record->read_only;
	n->replica = record->replica;
	n->pid = record->pid;
	n->nonce = record->nonce;
	n->since_ns = record->since_ns;
	n->has_writeback = record->writeback.len == sizeof(n->writeback);
	if (n->has_writeback)
		memcpy(n->writeback, record->writeback.data, sizeof(n->writeback));
	n->refs = 1;
	n->process = -1;
	n->alone_steady_ns = clock_steady_ns(); /* its first connection joins in a moment */
	n->recalls.end = &n->recalls.first;
	pthread_mutex_init(&n->opening, NULL);
	pthread_cond_init(&n->less, NULL);
	pthread_mutex_init(&n->lock, NULL);
	lease_begin(s, n);
	session_heard(n);
	n->volume_name = strdup(volume_name);
	n->host = strdup(record->host);
	n->mount_point = strdup(record->mount_point);
	if (!n->volume_name || !n->host || !n->mount_point) {
		session_unref(n);
		return NULL;
	}
	return n;
}

/* ---- All of them ---- */

static int sessions_add(struct server *s, struct session *n, bool reclaimed)
{
	struct sessions *all = &s->sessions;
	int r;
	LOCKED(&all->lock);

	r = reclaimed ? 0 : intmap_set(&all->unreclaimed, n->id, n);
	if (!r)
		r = intmap_set(&all->map, n->id, n);
	if (r)
		intmap_remove(&all->unreclaimed, n->id);
	else if (reclaimed)
		lease_settle(s, n->volume);
	return r;
}

static struct session *sessions_find(struct sessions *all, uint64_t id)
{
	struct session *n;
	LOCKED(&all->lock);

	n = intmap_get(&all->map, id);
	if (n)
		atomic_fetch_add(&n->refs, 1);
	return n;
}

static void sessions_reclaimed(struct sessions *all, uint64_t id)
{
	LOCKED(&all->lock);
	if (intmap_remove(&all->unreclaimed, id))
		all->reclaimed_steady_ns = clock_steady_ns();
	if (!all->unreclaimed.used)
		atomic_store(&all->settling, false);
}

/* The lock is held.  What it had is void, and it is told so when it comes back: it may still think that it has it. */
static void session_pass_over(struct session *n)
{
	if (!atomic_exchange(&n->passed_over, true))
		lease_void(n);
}

/* The lock is held.  Whether others of the volume have not said yet what they have; those whose time is over are passed over.
 * *late: one of which that is not on record yet, with a reference. */
static bool others_are_away(struct sessions *all, uint32_t volume, const struct session *session, struct session **late)
{
	bool over = clock_steady_ns() >= all->grace_until_steady_ns, away = false;
	uint64_t id;
	void *value;

	for (size_t i = 0; intmap_next(&all->unreclaimed, &i, &id, &value);) {
		struct session *n = value;

		if (n == session || n->volume != volume || session_is_dead(n))
			continue;
		if (over)
			session_pass_over(n);
		if (!atomic_load(&n->passed_over)) {
			away = true;
		} else if (!*late && !session_revocation_is_recorded(n)) {
			*late = n;
			atomic_fetch_add(&n->refs, 1);
		}
	}
	return away;
}

int sessions_await(struct server *s, const struct connection *asking, uint32_t volume, const struct session *session)
{
	struct sessions *all = &s->sessions;
	struct pollfd connection = { .fd = asking ? connection_fd(asking) : -1, .events = POLLRDHUP };

	while (atomic_load(&all->settling)) {
		struct session *late = NULL;
		bool away;
		int r = 0;

		pthread_mutex_lock(&all->lock);
		away = others_are_away(all, volume, session, &late);
		pthread_mutex_unlock(&all->lock);
		if (late)
			r = session_record_revoked(s, late);
		session_unref(late);
		if (r)
			return r;
		if (late)
			continue;
		if (!away)
			return 0;
		if (poll(&connection, 1, AWAIT_MS) > 0)
			return -ECONNRESET;
	}
	return 0;
}

void sessions_each(struct server *s, void (*each)(void *context, struct session *session), void *context)
{
	uint64_t id;
	void *value;
	LOCKED(&s->sessions.lock);

	for (size_t i = 0; intmap_next(&s->sessions.map, &i, &id, &value);)
		each(context, value);
}

bool sessions_allow_reaping(struct server *s)
{
	struct sessions *all = &s->sessions;
	int64_t now = clock_steady_ns();
	LOCKED(&all->lock);

	if (!all->hold_until_steady_ns)
		return true;
	if (now < all->hold_until_steady_ns && (all->unreclaimed.used || now < all->reclaimed_steady_ns + SETTLE_NS))
		return false;
	all->hold_until_steady_ns = 0;
	return true;
}

bool sessions_are_expected(struct server *s, uint32_t volume)
{
	uint64_t id;
	void *value;
	LOCKED(&s->sessions.lock);

	for (size_t i = 0; intmap_next(&s->sessions.unreclaimed, &i, &id, &value);)
		if (((const struct session *)value)->volume == volume)
			return true;
	return false;
}

bool session_is_expected(struct server *s, const struct session *session)
{
	LOCKED(&s->sessions.lock);
	return intmap_get(&s->sessions.unreclaimed, session->id) != NULL;
}

void sessions_free(struct sessions *all)
{
	uint64_t id;
	void *value;

	for (size_t i = 0; intmap_next(&all->map, &i, &id, &value);)
		session_unref(value);
	intmap_free(&all->map);
	intmap_free(&all->unreclaimed);
	pthread_mutex_destroy(&all->lock);
}

static const char *volume_name(const Wire__VolumeListReply *volumes, uint32_t id)
{
	for (size_t i = 0; i < volumes->n_volumes; i++)
		if (volumes->volumes[i]->id == id)
			return volumes->volumes[i]->name;
	return "";
}

/* The mount of a session on record, if that was on this machine: it may have ended since. */
static void session_find_process(struct session *n, const Wire__SessionBegin *record)
{
	struct process p = { .pid = record->process, .started = record->process_started };

	snprintf(p.boot, sizeof(p.boot), "%s", record->boot);
	n->process = process_find(&p);
	n->gone = n->process == -ESRCH;
	n->local = n->gone || n->process >= 0;
	n->known_back = true;
}

static int sessions_load_record(struct server *s, const struct cursor *c, const Wire__VolumeListReply *volumes,
				struct arena *arena)
{
	Wire__SessionBegin *record = wire__session_begin__unpack(&arena->allocator, c->value.size, c->value.data);
	struct session *n;
	int r;

	if (!record)
		return -EBADMSG;
	n = session_new(s, record, volume_name(volumes, record->volume));
	if (!n)
		return -ENOMEM;
	n->loaded_steady_ns = atomic_load(&n->heard_steady_ns); /* its time-out begins anew */
	session_find_process(n, record);
	if (record->revoked) { /* others may have been let in: nobody waits for it, and what it says it has is void */
		session_pass_over(n);
		n->recorded = n->revoked;
	}
	r = sessions_add(s, n, false);
	if (!r && n->replica) /* which has nothing to say again */
		intmap_remove(&s->sessions.unreclaimed, n->id);
	if (r)
		session_unref(n);
	return r;
}

static int sessions_load_all(struct server *s, struct view *v, const Wire__VolumeListReply *volumes, struct arena *arena)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	int r = cursor_open(&c, v, TABLE_SESSION);

	if (r)
		return r;
	for (r = cursor_seek(&c, NULL, 0); !r; r = cursor_next(&c)) {
		r = sessions_load_record(s, &c, volumes, arena);
		if (r)
			return r;
	}
	return r == -ENOENT ? 0 : r;
}

int sessions_load(struct server *s)
{
	Wire__Empty none = WIRE__EMPTY__INIT;
	ProtobufCMessage *volumes;
	struct caller who = CALLER_SERVER;
	struct arena arena;
	struct view view;
	int r;

	arena_init(&arena, 0);
	r = meta_read(s->meta, &who, WIRE__OP__VOLUME_LIST, &none.base, &arena, &volumes);
	if (!r)
		r = meta_view_begin(s->meta, &view);
	if (!r) {
		r = sessions_load_all(s, &view, (Wire__VolumeListReply *)volumes, &arena);
		meta_view_end(&view);
	}
	arena_free(&arena);
	leases_recorded(s);
	if (!r)
		r = locks_recorded(s);
	if (s->sessions.unreclaimed.used) {
		log_info("%zu mounts are expected to come back", s->sessions.unreclaimed.used);
		s->sessions.hold_until_steady_ns = clock_steady_ns() + HOLD_NS;
		s->sessions.grace_until_steady_ns = clock_steady_ns() + s->lease_ns;
		atomic_store(&s->sessions.settling, true);
	}
	return r;
}

/* ---- The end of a session ---- */

static int session_end_record(struct server *s, struct session *n, const char *reason)
{
	Wire__SessionEnd q = WIRE__SESSION_END__INIT;
	struct caller who = CALLER_SERVER;
	struct arena arena;
	int r;

	q.session = n->id;
	q.reason = (char *)reason;
	arena_init(&arena, 0);
	r = meta_mutate(s->meta, &who, WIRE__OP__SESSION_END, &q.base, &arena, NULL);
	arena_free(&arena);
	return r;
}

/* Again is fine: what failed in the middle is done when it is called next. */
static int session_end(struct server *s, struct session *n, const char *reason, const struct peer *by)
{
	bool mine;
	int r;

	pthread_mutex_lock(&n->lock);
	n->ended = n->ending = true;
	pthread_cond_broadcast(&n->less);
	pthread_mutex_unlock(&n->lock);
	peers_cut(s, n, by);
	lease_ended(s, n);
	locks_ended(s, n);
	r = session_end_record(s, n, reason);
	if (r && r != -ENOENT) {
		log_error("cannot end the session of %s:%s: %s; trying again", n->host, n->mount_point, strerror(-r));
		pthread_mutex_lock(&n->lock);
		n->ending = false;
		pthread_mutex_unlock(&n->lock);
		return r;
	}
	meta_session_forget(s->meta, n->id);
	space_forget(s, n);
	grants_forget(s, n, !by);
	pthread_mutex_lock(&s->sessions.lock);
	mine = intmap_remove(&s->sessions.map, n->id) != NULL;
	intmap_remove(&s->sessions.unreclaimed, n->id);
	if (!s->sessions.unreclaimed.used)
		atomic_store(&s->sessions.settling, false);
	lease_settle(s, n->volume);
	pthread_mutex_unlock(&s->sessions.lock);
	if (mine) {
		log_info("volume %s: mount %s:%s ended (%s)", n->volume_name, n->host, n->mount_point, reason);
		locks_settle(s, n->volume);
		session_unref(n);
	}
	reaper_wake(s);
	return 0;
}

static bool session_is_ending(struct session *n)
{
	LOCKED(&n->lock);
	return n->ending;
}

/* Why a session is due to be ended; NULL: it is not. */
static const char *session_due(struct server *s, struct session *n)
{
	if (session_is_dead(n))
		return "its process has ended";
	if (session_is_ended(n) || session_is_abandoned(s, n))
		return "it has closed all its connections";
	if (clock_steady_ns() - atomic_load(&n->heard_steady_ns) > s->session_timeout_ns)
		return "not heard of for too long";
	return NULL;
}

/* One that is due, with a reference. */
static struct session *sessions_due(struct server *s, const char **why)
{
	uint64_t id;
	void *value;
	LOCKED(&s->sessions.lock);

	for (size_t i = 0; intmap_next(&s->sessions.map, &i, &id, &value);) {
		struct session *n = value;

		if (session_is_ending(n))
			continue; /* a GOODBYE, which is to be answered */
		*why = session_due(s, n);
		if (*why) {
			atomic_fetch_add(&n->refs, 1);
			return n;
		}
	}
	return NULL;
}

void sessions_expire(struct server *s)
{
	struct session *n;
	const char *why;
	int r = 0;

	while (!r && (n = sessions_due(s, &why))) {
		r = session_end(s, n, why, NULL);
		session_unref(n);
	}
}

int serve_goodbye(struct request *q)
{
	struct session *n = q->peer->session;
	int r;

	atomic_fetch_add(&n->refs, 1);
	r = session_end(q->server, n, "unmounted", q->peer);
	if (!r)
		peer_join(q->peer, NULL);
	session_unref(n);
	if (r)
		return r;
	return request_reply(q, &wire__empty__descriptor) ? 0 : -ENOMEM;
}

/* ---- Hello ---- */

static int hello_root(struct request *q, const Wire__HelloRequest *hello, const Wire__Volume *volume, uint64_t *root)
{
	Wire__ResolveRequest resolve = WIRE__RESOLVE_REQUEST__INIT;
	struct caller who = { .volume = volume->id, .root = ROOT_INODE };
	ProtobufCMessage *reply;
	struct attr a;
	int r;

	*root = ROOT_INODE;
	if (!hello->subdir[0])
		return 0;
	resolve.path.data = (uint8_t *)hello->subdir;
	resolve.path.len = strlen(hello->subdir);
	r = meta_read(q->server->meta, &who, WIRE__OP__RESOLVE, &resolve.base, q->arena, &reply);
	if (!r) {
		Wire__EntryReply *e = (Wire__EntryReply *)reply;
		r = attr_unpack(e->attr.data, e->attr.len, &a);
	}
	if (!r && !S_ISDIR(a.mode))
		r = -ENOTDIR;
	if (r)
		return request_explain(q, r, "the volume %s has no directory %s: %s", volume->name, hello->subdir, strerror(-r));
	*root = a.inode;
	return 0;
}

static int session_make(struct request *q, const Wire__HelloRequest *hello, const Wire__Volume *volume, struct session **out)
{
	Wire__SessionBegin record = WIRE__SESSION_BEGIN__INIT;
	struct caller who = CALLER_SERVER;
	struct process mount = { 0 };
	struct session *n;
	int r = hello_root(q, hello, volume, &record.root);

	if (r)
		return r;
	if (getrandom(&record.session, sizeof(record.session), 0) != sizeof(record.session))
		return -EIO;
	record.session = (record.session >> (64 - SESSION_ID_BITS)) | 1;
	record.volume = volume->id;
	record.read_only = hello->read_only;
	record.replica = hello->replica;
	record.host = hello->host;
	record.mount_point = hello->mount_point;
	record.pid = hello->pid;
	record.nonce = hello->nonce;
	record.writeback = hello->writeback;
	record.writeback_dir = hello->writeback_dir;
	record.since_ns = clock_read(&q->server->clock);
	if (q->peer->local)
		process_of_peer(connection_fd(q->peer->connection), &mount);
	record.process = mount.pid;
	record.process_started = mount.started;
	record.boot = mount.boot;
	n = session_new(q->server, &record, volume->name);
	if (!n)
		return -ENOMEM;
	r = meta_mutate(q->server->meta, &who, WIRE__OP__SESSION_BEGIN, &record.base, q->arena, NULL);
	if (!r) {
		r = sessions_add(q->server, n, true);
		if (r)
			session_end_record(q->server, n, "no memory");
	}
	if (r) {
		session_unref(n);
		return r;
	}
	atomic_fetch_add(&n->refs, 1);
	log_info("volume %s: mounted by %s on %s%s", n->volume_name, n->host, n->mount_point,
		 n->replica     ? ", a replica"
		 : n->read_only ? ", read-only"
				: "");
	*out = n;
	return 0;
}

/* Nobody gets the volume's lease before the new session is known: from then on it is company. */
static int session_begin(struct request *q, const Wire__HelloRequest *hello, const Wire__Volume *volume, struct session **out)
{
	int r;

	if (hello->replica) /* it sees what is told, when it is told */
		return session_make(q, hello, volume, out);
	r = lease_recall(q->server, q->peer->connection, volume->id);
	if (r)
		return r == -ECONNRESET ? REQUEST_BROKEN : r;
	r = session_make(q, hello, volume, out);
	lease_release(q->server, volume->id);
	return r;
}

static int session_connections(struct session *n)
{
	LOCKED(&n->lock);
	return n->connections;
}

/* However many requests one mount has, others get through. */
static int session_share(const struct server *s) { return s->connections_max / SHARES + 1; }

/* The one this very hello has begun before: its answer was lost, or somebody repeats it. */
static struct session *sessions_find_begun(struct sessions *all, uint64_t nonce)
{
	uint64_t id;
	void *value;
	LOCKED(&all->lock);

	for (size_t i = 0; nonce && intmap_next(&all->map, &i, &id, &value);) {
		struct session *n = value;

		if (n->nonce == nonce) {
			atomic_fetch_add(&n->refs, 1);
			return n;
		}
	}
	return NULL;
}

/* The session asked for if it is there, else a new one. */
static int session_take(struct request *q, const Wire__HelloRequest *hello, const Wire__Volume *volume, struct session **out)
{
	struct session *n = hello->session ? sessions_find(&q->server->sessions, hello->session)
					   : sessions_find_begun(&q->server->sessions, hello->nonce);

	if (n && !session_is_ended(n) && n->volume == volume->id && n->replica == hello->replica) {
		if (session_connections(n) >= session_share(q->server)) {
			session_unref(n);
			return request_explain(q, -EAGAIN,
					       "this mount has its share of the server's connections; try again later");
		}
		session_heard(n);
		*out = n;
		return 0;
	}
	session_unref(n);
	return session_begin(q, hello, volume, out);
}

/* What a mount says of itself is kept with its session and with every mark it makes. */
static bool is_of_reasonable_length(const Wire__HelloRequest *hello)
{
	return strlen(hello->host) < HOST_TEXT && strlen(hello->mount_point) < PATH_MAX &&
	       strlen(hello->writeback_dir) < PATH_MAX;
}

static int hello_mount(struct request *q, const Wire__HelloRequest *hello, Wire__HelloReply *reply)
{
	struct session *n;
	int r = meta_volume_find(q->server->meta, hello->volume, q->arena, &reply->volume);

	if (r == -ENOENT)
		return request_explain(q, r, "there is no volume %s; epochfs volume list shows those there are", hello->volume);
	if (!r && hello->writeback.len && hello->writeback.len != WRITEBACK_ID)
		return request_explain(q, -EINVAL, "the id of a write-back directory has %u bytes", WRITEBACK_ID);
	if (!r && !is_of_reasonable_length(hello))
		return request_explain(q, -ENAMETOOLONG,
				       "the name of the host, the mount point or the write-back directory is too long");
	if (!r)
		r = session_take(q, hello, reply->volume, &n);
	if (r)
		return r;
	reply->session = n->id;
	reply->root = n->root;
	reply->name_seed = n->replica ? meta_name_seed(q->server->meta) : 0;
	peer_join(q->peer, n);
	return 0;
}

int serve_hello(struct request *q)
{
	const Wire__HelloRequest *hello = (const Wire__HelloRequest *)q->message;
	Wire__HelloReply *reply;
	int r;

	if (q->peer->refusal)
		return request_explain(q, q->peer->refusal, "%s", q->peer->refusal_text);
	if (q->peer->greeted)
		return request_explain(q, -EPROTO, "hello was said before on this connection");
	if (hello->version != PROTOCOL_VERSION)
		return request_explain(q, -EPROTONOSUPPORT,
				       "this server speaks version %u of the protocol, the client version %u; "
				       "install the same release on both",
				       PROTOCOL_VERSION, hello->version);
	reply = request_reply(q, &wire__hello_reply__descriptor);
	if (!reply)
		return -ENOMEM;
	reply->version = PROTOCOL_VERSION;
	reply->instance = q->server->instance;
	reply->store = (ProtobufCBinaryData){ .len = 16, .data = (uint8_t *)meta_history(q->server->meta) };
	if (hello->replica && !hello->read_only)
		return request_explain(q, -EINVAL, "a replica is read-only");
	r = hello->mount ? hello_mount(q, hello, reply) : 0;
	q->peer->greeted = !r;
	return r;
}

/* ---- After a restart ---- */

int serve_reclaim(struct request *q)
{
	const Wire__ReclaimRequest *reclaim = (const Wire__ReclaimRequest *)q->message;
	struct session *n = q->peer->session;
	bool taken = false;
	int r = 0;

	for (size_t i = 0; i < reclaim->n_opens && !r; i++) {
		r = file_reclaim(q, reclaim->opens[i], i < reclaim->n_grants ? reclaim->grants[i] : WIRE__GRANT__GRANT_NONE);
		taken = taken || r == -EBUSY;
		if (r == -EBUSY)
			r = 0;
	}
	if (r)
		return r;
	if (taken) /* somebody is wrong: it does as one that was given up does, and looks before it stores */
		r = grants_revoke(q->server, n);
	else if (n->passed_over) /* nobody may be let in before that is on record; after this nobody waits for it */
		r = session_record_revoked(q->server, n);
	if (r)
		return r;
	space_reclaim(q->server, n, reclaim->reserved);
	sessions_reclaimed(&q->server->sessions, n->id);
	locks_reclaimed(q->server, n);
	return request_reply(q, &wire__empty__descriptor) ? 0 : -ENOMEM;
}
