#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/memory.h"
#include "client/control.h"
#include "client/state.h"

/* The life of a client: connect, a keeper thread that sends closes and gives back
 * reservations, and disconnect, which stores what is unstored first.
 *
 * When the server restarts, rpc calls `server_restarted` before anything else is
 * sent: opens and the reservation live in the server's memory and are told to it
 * again.  If it ended our session meanwhile, object ids we held are void: uploads
 * under way are refused with -ESTALE and made again with new ids. */

#define KEEPER_TICK_NS (100 * NS_PER_MS)
#define TIMEOUT_DEFAULT_MS 60000
#define DIRTY_DEFAULT (64u << 20)
#define CACHE_DEFAULT (64u << 20)
#define TURNS 128
#define SLOW_SERVER_MS 10000
#define GONE_SERVER_MS 1000
#define CATALOG_BYTES (40u << 20) /* a directory of a million names is 32 MiB */

int64_t monotonic_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

int cond_init_monotonic(pthread_cond_t *cond)
{
	pthread_condattr_t a;
	int r = pthread_condattr_init(&a);
	if (r == 0) {
		pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
		r = pthread_cond_init(cond, &a);
		pthread_condattr_destroy(&a);
	}
	return -r;
}

int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns)
{
	struct timespec t = { .tv_sec = deadline_ns / NS_PER_S, .tv_nsec = deadline_ns % NS_PER_S };
	return -pthread_cond_timedwait(cond, lock, &t);
}

/* Whether the answer, or what is done, has nothing to do with names and files the server may not know yet. */
static bool is_independent(uint16_t op)
{
	switch (op) {
	case WIRE__OP__RESERVE:
	case WIRE__OP__ALLOC_OBJECTS:
	case WIRE__OP__ALLOC_INODES:
	case WIRE__OP__STATFS:
	case WIRE__OP__RETURN:
	case WIRE__OP__UNMARK:
	case WIRE__OP__CLOSE: return true;
	default: return false;
	}
}

/* Whether the server may make it wait for other mounts.  Giving back what those wait for must not queue behind it. */
static bool may_wait(uint16_t op) { return op != WIRE__OP__COMMIT && op != WIRE__OP__CREATE_MANY && op != WIRE__OP__MARK; }

/* So many at a time: a mount with thousands of callers does not take all of the server's threads. */
static int turn_take(struct client *c)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += c->timeout_ms / 1000 + 1;
	while (sem_clockwait(&c->turns, CLOCK_MONOTONIC, &until) < 0)
		if (errno != EINTR)
			return -EIO;
	return 0;
}

static int call_noted(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply)
{
	ProtobufCMessage *answer = NULL;
	struct rpc_call call = { .op = op, .request = request, .reply = &answer };
	struct begun begun = effects_begin(c);
	int r = rpc_call(c->rpc, &call, arena);
	effects_note(c, op, request, answer, r, begun);
	if (r == 0 && reply)
		*(ProtobufCMessage **)reply = answer;
	return r;
}

int client_call(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply)
{
	int r;
	if (c->replica)
		return replica_call(c, op, request, arena, reply);
	if (is_independent(op)) {
		struct rpc_call call = { .op = op, .request = request, .reply = reply };
		return rpc_call(c->rpc, &call, arena);
	}
	r = newborns_settle(c);
	if (r == 0 && may_wait(op))
		r = turn_take(c);
	if (r < 0)
		return r;
	r = call_noted(c, op, request, arena, reply);
	if (may_wait(op))
		sem_post(&c->turns);
	return r;
}

int client_call_at_once(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply)
{
	int r;
	if (c->replica)
		return replica_call(c, op, request, arena, reply);
	r = newborns_settle(c);
	return r < 0 ? r : call_noted(c, op, request, arena, reply);
}

int64_t client_now_ns(struct client *c) { return rpc_server_clock_ns(c->rpc); }

bool client_is_alone(struct client *c) { return lease_held(c); }

bool client_is_replica(const struct client *c) { return c->replica != NULL; }

uint64_t client_root(const struct client *c) { return c->root; }

void client_volume(const struct client *c, struct volume_info *out) { *out = c->volume; }

void client_stats(struct client *c, struct client_stats *out)
{
	const struct counters *n = &c->counters;
	/* What one reader has fetched, where another was to be read ahead of, is no merit of that. */
	uint64_t fetched = n->disk_ahead_fetched, used = n->disk_ahead_used;
	struct chunks_stats chunks;
	chunks_stats(c->chunks, &chunks);
	*out = (struct client_stats){ .reads = n->reads,
				      .read_bytes = n->read_bytes,
				      .memory_reads = n->memory_reads,
				      .memory_bytes = n->memory_bytes,
				      .disk_reads = n->disk_reads,
				      .disk_bytes = n->disk_bytes,
				      .server_reads = n->server_reads,
				      .server_bytes = n->server_bytes,
				      .round_trips = rpc_exchanges(c->rpc),
				      .ahead_fetched = chunks.ahead_fetched + fetched,
				      .ahead_used = chunks.ahead_used + (used < fetched ? used : fetched),
				      .ahead_wasted = chunks.ahead_wasted,
				      .ahead_unread = chunks.ahead_bytes };
}

/* ---- The server's restart --------------------------------------------------- */

/* Those the server counts as open, and what we hold of each. */
static int registered_inodes(struct client *c, uint64_t **out, uint32_t **grants, size_t *count)
{
	size_t position = 0;
	uint64_t key;
	void *value;
	LOCKED(&c->table_lock);
	*count = 0;
	*out = malloc((c->inodes.used + 1) * sizeof(**out));
	*grants = malloc((c->inodes.used + 1) * sizeof(**grants));
	if (!*out || !*grants)
		return -ENOMEM;
	while (intmap_next(&c->inodes, &position, &key, &value)) {
		const struct inode *i = value;
		if (!i->registered)
			continue;
		(*grants)[*count] = (uint32_t)i->at_server;
		(*out)[(*count)++] = key;
	}
	return 0;
}

static int server_restarted(void *context, struct rpc *rpc, struct connection *connection, bool known)
{
	struct client *c = context;
	Wire__ReclaimRequest request = WIRE__RECLAIM_REQUEST__INIT;
	struct rpc_call call = { .op = WIRE__OP__RECLAIM, .request = &request.base };
	CLEANUP_FREE uint64_t *opens = NULL;
	CLEANUP_FREE uint32_t *grants = NULL;
	struct arena arena;
	int r;
	/* Of a replica nothing is open as far as the server knows, nor was anything granted; and who leaves has let go of all of it. */
	if (c->replica || c->leaving)
		return 0;
	log_info("the server of volume %s restarted; telling it what is open%s", c->volume.name,
		 known ? "" : " (it had given up on this mount: a new session was begun)");
	if (!known) {
		uploader_session_lost(c);
		lease_session_lost(c);
	}
	lease_restarted(c);
	/* Grants on directories are not reclaimed; others are let in from here on. */
	if (!lease_held(c)) {
		catalog_clear(&c->catalog);
		attrs_forget_all(&c->attrs);
	}
	holdings_restarted(c);
	r = locks_restarted(c, rpc, connection);
	if (r < 0)
		return r;
	request.reserved = uploader_unstored(c);
	r = registered_inodes(c, &opens, &grants, &request.n_opens);
	if (r < 0)
		return r;
	request.opens = opens;
	request.n_grants = request.n_opens;
	request.grants = grants;
	arena_init(&arena, 0);
	r = rpc_call_on(rpc, connection, &call, &arena);
	arena_free(&arena);
	return r;
}

/* ---- The keeper -------------------------------------------------------------- */

static void *keeper_run(void *context)
{
	struct client *c = context;
	struct memory memory = { 0 };
	pthread_mutex_lock(&c->table_lock);
	while (!c->stopping) {
		cond_wait_until(&c->stop, &c->table_lock, monotonic_ns() + KEEPER_TICK_NS);
		pthread_mutex_unlock(&c->table_lock);
		closes_send(c);
		uploader_tick(c);
		writeback_tick(c);
		memory_tend(&memory);
		pthread_mutex_lock(&c->table_lock);
	}
	pthread_mutex_unlock(&c->table_lock);
	return NULL;
}

void client_hasten(struct client *c)
{
	LOCKED(&c->table_lock);
	pthread_cond_signal(&c->stop);
}

static void keeper_stop(struct client *c)
{
	if (!c->keeper_started)
		return;
	pthread_mutex_lock(&c->table_lock);
	c->stopping = true;
	pthread_cond_signal(&c->stop);
	pthread_mutex_unlock(&c->table_lock);
	pthread_join(c->keeper, NULL);
	c->keeper_started = false;
}

/* ---- Connect, disconnect ---------------------------------------------------------- */

static int volume_take(struct client *c, const Wire__HelloReply *hello, char *error, size_t error_size)
{
	const Wire__Volume *v = hello->volume;
	if (!v || v->block_size < BLOCK_MIN || v->block_size > BLOCK_MAX ||
	    codec_parse(v->compression, &c->codec, &c->codec_level) < 0) {
		snprintf(error, error_size, "the server's answer makes no sense; do server and client have the same version?");
		return -EBADMSG;
	}
	snprintf(c->volume.name, sizeof(c->volume.name), "%s", v->name);
	c->volume.block_size = v->block_size;
	c->volume.relaxed = v->relaxed;
	c->keep_deleted = v->retention_s > 0;
	c->root = hello->root;
	c->volume_id = v->id;
	c->store_known = hello->store.len == sizeof(c->store);
	if (c->store_known)
		memcpy(c->store, hello->store.data, sizeof(c->store));
	return 0;
}

static int client_hello(struct client *c, const struct client_options *o, char *error, size_t error_size)
{
	struct rpc_options options = {
		.servers = o->servers,
		.timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_DEFAULT_MS,
		.hello = WIRE__HELLO_REQUEST__INIT,
		.restarted = server_restarted,
		.context = c,
	};
	Wire__HelloReply *reply, told = WIRE__HELLO_REPLY__INIT;
	struct arena arena;
	bool away;
	int r;
	options.hello.version = PROTOCOL_VERSION;
	options.hello.mount = true;
	options.hello.volume = (char *)o->volume;
	options.hello.read_only = o->read_only;
	options.hello.replica = c->replica != NULL;
	options.may_be_away = replica_can_do_without_server(c);
	options.hello.subdir = (char *)(o->subdir ? o->subdir : "");
	options.hello.host = (char *)(o->host ? o->host : "");
	options.hello.mount_point = (char *)(o->mount_point ? o->mount_point : "");
	options.hello.pid = (uint32_t)getpid();
	if (o->writeback_dir) {
		options.hello.writeback = (ProtobufCBinaryData){ .len = SPOOL_ID, .data = c->writeback.id };
		options.hello.writeback_dir = (char *)o->writeback_dir;
	}
	/* Without it a hello that is said again after its answer was lost leaves a session nobody uses, nothing worse. */
	if (getrandom(&options.hello.nonce, sizeof(options.hello.nonce), 0) < 0)
		options.hello.nonce = 0;
	c->timeout_ms = options.timeout_ms;
	arena_init(&arena, 0);
	r = rpc_open(&options, &arena, &reply, &c->rpc, error, error_size);
	away = r == 0 && !reply;
	if (away) {
		reply = &told;
		r = replica_hello(c, o, &arena, reply, error, error_size);
	}
	if (r == 0)
		r = volume_take(c, reply, error, error_size);
	if (r == 0 && c->replica)
		r = replica_bind(c, away ? NULL : reply, error, error_size);
	arena_free(&arena);
	return r;
}

static void client_free(struct client *c)
{
	replica_free(c);
	rpc_close(c->rpc);
	chunks_free(c->chunks);
	objects_free(&c->objects);
	kept_free(&c->kept);
	pool_free(&c->uploader.blocks);
	pool_free(&c->uploader.buffers);
	region_free(c->uploader.region);
	intmap_free(&c->inodes);
	intmap_free(&c->closes);
	pthread_mutex_destroy(&c->table_lock);
	attrs_free(&c->attrs);
	layouts_free(&c->layouts);
	catalog_free(&c->catalog);
	pthread_mutex_destroy(&c->habits.lock);
	newborns_free(&c->newborns);
	holdings_free(&c->holdings);
	lease_free(&c->lease);
	locks_free(&c->locks);
	pthread_cond_destroy(&c->close_sent);
	pthread_cond_destroy(&c->stop);
	sem_destroy(&c->turns);
	free(c->servers);
	pthread_mutex_destroy(&c->writeback.lock);
	free(c->seen);
	free(c);
}

int client_connect(const struct client_options *o, struct client **out, char *error, size_t error_size)
{
	struct client *c = calloc(1, sizeof(*c));
	uint64_t dirty = o->dirty_bytes ? o->dirty_bytes : DIRTY_DEFAULT;
	int r;
	if (!c)
		return -ENOMEM;
	pthread_mutex_init(&c->table_lock, NULL);
	pthread_mutex_init(&c->habits.lock, NULL);
	newborns_init(&c->newborns);
	holdings_init(&c->holdings);
	lease_init(&c->lease);
	kept_init(&c->kept);
	pthread_mutex_init(&c->writeback.lock, NULL);
	objects_init(&c->objects);
	pthread_cond_init(&c->close_sent, NULL);
	cond_init_monotonic(&c->stop);
	sem_init(&c->turns, 0, TURNS);
	told_init(&c->told);
	c->read_only = o->read_only;
	c->readahead_bytes = o->readahead_bytes;
	c->memory_bytes = o->cache_bytes ? o->cache_bytes : CACHE_DEFAULT;
	c->servers = strdup(o->servers);
	c->seen = calloc(SEEN_SLOTS, sizeof(*c->seen));
	r = attrs_init(&c->attrs);
	if (layouts_init(&c->layouts) < 0 || catalog_init(&c->catalog, CATALOG_BYTES) < 0 || locks_init(&c->locks) < 0 ||
	    !c->seen || !c->servers)
		r = -ENOMEM;
	if (r == 0 && o->replica_dir)
		r = replica_prepare(c, o, error, error_size);
	if (r == 0)
		r = writeback_id(c, o, error, error_size);
	if (r == 0)
		r = client_hello(c, o, error, error_size);
	if (r < 0) {
		client_free(c);
		return r;
	}
	/* Two blocks must fit, or a writer could never fill one while another is stored. */
	if (dirty < 2ull * c->volume.block_size)
		dirty = 2ull * c->volume.block_size;
	r = disk_open(c, o, error, error_size);
	if (r == 0)
		r = writeback_open(c, o, error, error_size);
	if (r < 0) {
		client_disconnect(c);
		return r;
	}
	r = newborns_start(c);
	if (r == 0)
		r = packs_start(c);
	if (r == 0)
		r = chunks_new(c->memory_bytes, object_fetch, object_doubt, c, &c->chunks);
	if (r == 0)
		r = uploader_start(c, dirty);
	if (r == 0)
		r = prefetcher_start(c, o->parallel);
	if (r == 0 && c->cache)
		r = refresher_start(c);
	if (r == 0)
		r = holdings_start(c);
	if (r == 0 && c->read_only)
		r = kept_start(c);
	c->connected_ns = clock_steady_ns();
	if (r == 0)
		r = c->replica ? replica_start(c) : lease_start(c);
	if (r == 0 && !c->replica)
		r = locks_start(c);
	if (r == 0)
		r = -pthread_create(&c->keeper, NULL, keeper_run, c);
	if (r == 0) {
		c->keeper_started = true;
		r = writeback_adopt(c, error, error_size);
		if (r == 0) {
			*out = c;
			return 0;
		}
		client_disconnect(c);
		return r;
	}
	snprintf(error, error_size, "not enough memory or threads: %s", strerror(-r));
	client_disconnect(c);
	return r;
}

/* Files still in the table when everything has stopped: closing them failed. */
static void inodes_drop(struct client *c)
{
	size_t position = 0;
	uint64_t key;
	void *value;
	while (intmap_next(&c->inodes, &position, &key, &value)) {
		struct inode *i = value;
		if (inode_has_unstored(i) && i->marked)
			log_warn("volume %s, inode %lu: %lu bytes are not uploaded; they stay in %s until the volume is mounted "
				 "with it again",
				 c->volume.name, (unsigned long)key, (unsigned long)(i->dirty.bytes + i->storing.bytes),
				 spool_folder_path(c->writeback.folder));
		else if (inode_has_unstored(i))
			log_error("volume %s, inode %lu: %lu bytes were written but could not be stored and are lost",
				  c->volume.name, (unsigned long)key, (unsigned long)(i->dirty.bytes + i->storing.bytes));
		inode_free(i);
	}
}

/* Who is leaving does not wait long for a server that is gone.  One that is there but slow is waited for, if we may have had
 * anything that others want: over TCP it takes a mount that left without a word for alive, with all that it had open, for minutes. */
static int call_before_leaving(struct client *c, uint16_t op)
{
	Wire__Empty request = WIRE__EMPTY__INIT;
	struct rpc_call call = { .op = op, .request = &request.base, .unreached_ms = GONE_SERVER_MS };
	struct arena arena;
	int r;
	call.timeout_ms = c->read_only ? GONE_SERVER_MS : SLOW_SERVER_MS;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &call, &arena);
	arena_free(&arena);
	return r;
}

/* Whether the server answers at all. */
static bool server_is_away(struct client *c) { return call_before_leaving(c, WIRE__OP__STATFS) == -EIO; }

static void stats_log(struct client *c)
{
	struct client_stats s;
	if (!c->chunks)
		return;
	client_stats(c, &s);
	/* Of what the kernel reads from the cache itself nobody knows. */
	if (!s.reads && !s.ahead_fetched && !c->cache)
		return;
	log_info("volume %s: %lu bytes were read; %lu came from the server, %lu from the disk; of %lu bytes read ahead %lu were "
		 "used, %lu wasted; %lu round-trips",
		 c->volume.name, (unsigned long)s.read_bytes, (unsigned long)s.server_bytes, (unsigned long)s.disk_bytes,
		 (unsigned long)s.ahead_fetched, (unsigned long)s.ahead_used, (unsigned long)s.ahead_wasted,
		 (unsigned long)s.round_trips);
}

void client_unmounted(struct client *c)
{
	if (c->read_only && server_is_away(c))
		rpc_abort(c->rpc);
}

int client_store_everything(struct client *c)
{
	int r, stored;
	rpc_work_begin(); /* a server that is away is waited for once, for all that is to be stored */
	r = client_fsync_all(c);
	stored = writeback_is_on(c) ? client_store_all(c) : 0;
	return r < 0 ? r : stored;
}

int client_disconnect(struct client *c)
{
	int r = c->read_only ? 0 : client_store_everything(c);
	/* It was waited for as long as there was something to store; the rest it finds out by itself. */
	rpc_work_begin();
	if (server_is_away(c))
		rpc_abort(c->rpc);
	control_stop(c);
	told_stop(c);
	replica_stop(c);
	prefetcher_stop(c);
	refresher_stop(c);
	uploader_stop(c);
	lease_stop(c);
	holdings_stop(c);
	locks_stop(c);
	kept_stop(c);
	prefetcher_free(c);
	newborns_stop(c);
	keeper_stop(c);
	writeback_finish(c);
	closes_send(c);
	/* If it does not arrive, the server ends the session by itself after a while.  One that was heard but not answered is said
	 * again: it begins a session, and ends that. */
	c->leaving = true;
	call_before_leaving(c, WIRE__OP__GOODBYE);
	inodes_drop(c);
	writeback_close(c);
	stats_log(c);
	packs_stop(c);
	disk_close(c);
	client_free(c);
	return r;
}
