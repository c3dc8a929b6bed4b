#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/job.h"
#include "client/state.h"

/* Storing what was written.
 *
 * An inode with unstored data stands in one of two queues: READY (a whole block
 * is full, or somebody waits) and AGING (everything else, oldest first).  Upload
 * threads take from READY at once; from AGING when a pack's worth of files that were
 * closed has gathered, the oldest is a second old, or a writer waits for room.  What is taken becomes a job
 * (job.c): encode, put one object, commit its extents.  So small files written
 * close in time share a pack.
 *
 *   write -> dirty segment, AGING -> (full, fsync) READY -> job: storing -> put -> commit -> gone
 *                 ^                                          |
 *                 +------------- put or commit failed -------+   (error kept for fsync and open)
 *
 * Jobs are made one at a time (gather lock) and commit in that order for each
 * inode, so that after a crash a file holds a prefix of what was written, never a
 * later block without an earlier one.  A job waits only for jobs made before it.
 *
 * If puts fail, the data stays in memory and is tried again every second; writers
 * wait for room and get the error after the time-out. */

#define AGE_MAX_NS NS_PER_S
#define RETRY_AFTER_NS NS_PER_S
#define RESERVE_STEP (64u << 20)
#define OBJECT_IDS_AT_ONCE 1024
#define REGION_MAX ((uint64_t)256 << 20)
#define REGION_BLOCK (1u << 20)

/* ---- Queues (uploader.lock held) ---------------------------------------------- */

static struct queue_list *list_of(struct uploader *u, enum queue q) { return q == QUEUE_READY ? &u->ready : &u->aging; }

static void queue_remove(struct uploader *u, struct inode *i)
{
	struct queue_list *l = list_of(u, i->queue);
	if (i->queue_previous)
		i->queue_previous->queue_next = i->queue_next;
	else
		l->first = i->queue_next;
	if (i->queue_next)
		i->queue_next->queue_previous = i->queue_previous;
	else
		l->last = i->queue_previous;
	l->cost -= i->dirty_cost;
	l->bytes -= i->queued_bytes;
	i->queued_bytes = 0;
	i->queue = QUEUE_NONE;
	i->queue_next = i->queue_previous = NULL;
}

static void queue_append(struct uploader *u, struct inode *i, enum queue q)
{
	struct queue_list *l = list_of(u, q);
	i->queue = q;
	i->queue_previous = l->last;
	i->queue_next = NULL;
	if (l->last)
		l->last->queue_next = i;
	else
		l->first = i;
	l->last = i;
	l->cost += i->dirty_cost;
}

/* The inode's lock is held, too.  Of a file that is still written there is more to come. */
static void queue_count(struct uploader *u, struct inode *i)
{
	uint64_t bytes = i->spool || i->writers ? 0 : i->dirty.bytes;
	if (i->queue == QUEUE_NONE)
		return;
	list_of(u, i->queue)->bytes += bytes - i->queued_bytes;
	i->queued_bytes = bytes;
}

static void queue_move(struct uploader *u, struct inode *i, enum queue q)
{
	if (i->queue == q)
		return;
	if (i->queue != QUEUE_NONE)
		queue_remove(u, i);
	if (q != QUEUE_NONE)
		queue_append(u, i, q);
}

static bool aging_due(const struct client *c, const struct uploader *u)
{
	if (!u->aging.first)
		return false;
	/* What is being stored gives room, too, and is on its way. */
	if (u->stopping || (u->room_waiters && u->storing <= u->limit / 4))
		return true;
	if (monotonic_ns() < u->paced_ns)
		return false;
	if (writeback_is_on(c) && spool_folder_is_filling(c->writeback.folder))
		return true;
	return u->aging.bytes >= c->volume.block_size || monotonic_ns() >= u->aging.first->dirty_since_ns + AGE_MAX_NS;
}

static bool anything_due(const struct client *c, const struct uploader *u)
{
	if (u->retry_at_ns && monotonic_ns() < u->retry_at_ns)
		return false;
	return u->ready.first || aging_due(c, u);
}

/* Moves the inode to where it belongs (uploader.lock and inode.lock held).  Being
 * queued holds a reference; whoever calls has one of its own. */
static void queue_place(struct uploader *u, struct inode *i, bool was_queued, enum queue q)
{
	if (q == QUEUE_AGING && i->queue != QUEUE_AGING)
		i->dirty_since_ns = monotonic_ns();
	queue_move(u, i, q);
	queue_count(u, i);
	if (!was_queued && q != QUEUE_NONE)
		inode_ref(i);
	if (was_queued && q == QUEUE_NONE)
		inode_unref(i);
	if (anything_due(i->client, u))
		pthread_cond_signal(&u->work);
}

static enum queue queue_for(const struct inode *i, bool ready, enum queue otherwise)
{
	if (i->dirty.count == 0 || i->damaged)
		return QUEUE_NONE;
	/* With a limit on uploads only those are ready that somebody waits for. */
	return (ready && !i->client->writeback.upload_limit) || i->waiters > 0 ? QUEUE_READY : otherwise;
}

static void queue_cost(struct uploader *u, struct inode *i, int64_t cost)
{
	if (i->queue != QUEUE_NONE)
		list_of(u, i->queue)->cost += (uint64_t)cost;
	i->dirty_cost += (uint64_t)cost;
}

void uploader_note(struct inode *i, int64_t cost, int64_t bytes, bool ready)
{
	struct uploader *u = &i->client->uploader;
	enum queue before;
	LOCKED(&u->lock);
	u->cost += (uint64_t)cost;
	u->unstored += (uint64_t)bytes;
	queue_cost(u, i, cost);
	before = i->queue;
	/* With write-back uploading does not compete with who writes: the time begins anew. */
	if (before == QUEUE_AGING && i->spool)
		queue_move(u, i, QUEUE_NONE);
	queue_place(u, i, before != QUEUE_NONE, queue_for(i, ready, before != QUEUE_NONE ? before : QUEUE_AGING));
	if (cost < 0)
		pthread_cond_broadcast(&u->room);
}

void uploader_closed(struct inode *i)
{
	struct uploader *u = &i->client->uploader;
	LOCKED(&u->lock);
	queue_count(u, i);
	if (anything_due(i->client, u))
		pthread_cond_signal(&u->work);
}

void uploader_taken(struct inode *i, uint64_t cost, bool ready, bool blocked)
{
	struct uploader *u = &i->client->uploader;
	int64_t since;
	bool was_queued;
	LOCKED(&u->lock);
	since = i->dirty_since_ns;
	was_queued = i->queue != QUEUE_NONE;
	queue_cost(u, i, -(int64_t)cost);
	u->storing += cost;
	/* To the end of the queue: others wait too. */
	queue_move(u, i, QUEUE_NONE);
	queue_place(u, i, was_queued, blocked ? QUEUE_NONE : queue_for(i, ready, QUEUE_AGING));
	if (i->queue == QUEUE_AGING && i->spool && cost)
		i->dirty_since_ns = since; /* the rest is as old */
}

void uploader_stored(struct inode *i, uint64_t cost, uint64_t bytes)
{
	struct uploader *u = &i->client->uploader;
	LOCKED(&u->lock);
	u->cost -= cost;
	u->storing -= cost;
	u->unstored -= bytes;
	/* What was promised is used up. */
	u->reserved -= bytes < u->reserved ? bytes : u->reserved;
	pthread_cond_broadcast(&u->room);
}

void uploader_paced(struct client *c, uint64_t bytes)
{
	struct uploader *u = &c->uploader;
	int64_t now = monotonic_ns();
	LOCKED(&u->lock);
	if (!c->writeback.upload_limit)
		return;
	if (u->paced_ns < now)
		u->paced_ns = now;
	u->paced_ns += (int64_t)((double)bytes * NS_PER_S / (double)c->writeback.upload_limit);
}

void uploader_failed(struct client *c, int error)
{
	struct uploader *u = &c->uploader;
	LOCKED(&u->lock);
	if (error != -EAGAIN) /* that is nobody's error */
		u->last_error = error;
	u->retry_at_ns = monotonic_ns() + RETRY_AFTER_NS;
}

void uploader_worked(struct client *c)
{
	struct uploader *u = &c->uploader;
	LOCKED(&u->lock);
	u->last_error = 0;
	u->retry_at_ns = 0;
}

/* ---- The threads -------------------------------------------------------------- */

/* The next inode to take from, with a reference; NULL: nothing is due.  `started`
 * and `ready`: which queue the job under way draws from. */
struct inode *uploader_next(struct client *c, bool started, bool *ready)
{
	struct uploader *u = &c->uploader;
	struct inode *i;
	LOCKED(&u->lock);
	if (!started) {
		if (!anything_due(c, u))
			return NULL;
		*ready = u->ready.first != NULL;
	}
	i = *ready ? u->ready.first : u->aging.first;
	if (i)
		inode_ref(i);
	return i;
}

static int64_t next_look(const struct uploader *u)
{
	int64_t now = monotonic_ns(), at = now + 10 * NS_PER_S;
	/* Once it is past, what failed may be gone, or damaged: then nothing takes it away. */
	if (u->retry_at_ns > now)
		return u->retry_at_ns;
	if (u->aging.first && u->aging.first->dirty_since_ns + AGE_MAX_NS < at)
		at = u->aging.first->dirty_since_ns + AGE_MAX_NS;
	if (u->aging.first && at < u->paced_ns)
		at = u->paced_ns;
	return at;
}

static void *uploader_run(void *context)
{
	struct client *c = context;
	struct uploader *u = &c->uploader;
	struct payload payload = { 0 };
	pthread_mutex_lock(&u->lock);
	for (;;) {
		struct job *job = NULL;
		while (!u->stopping && !anything_due(c, u))
			cond_wait_until(&u->work, &u->lock, next_look(u));
		if (u->stopping)
			break;
		pthread_mutex_unlock(&u->lock);
		pthread_mutex_lock(&u->gather);
		job_gather(c, &job);
		pthread_mutex_unlock(&u->gather);
		if (job)
			job_run(c, job, &payload);
		pthread_mutex_lock(&u->lock);
	}
	pthread_mutex_unlock(&u->lock);
	payload_free(&payload);
	return NULL;
}

/* Memory that a server on this host can be shown, for as much as may be unstored and as many buffers again that are
 * in use otherwise; what it has no room for is sent.  Small blocks are. */
static struct region *region_for(const struct client *c, uint64_t limit)
{
	struct region *region = NULL;
	uint64_t size = 2 * limit < REGION_MAX ? 2 * limit : REGION_MAX;
	int r = rpc_is_local(c->rpc) && c->volume.block_size >= REGION_BLOCK ? region_new(size, &region) : 0;
	if (r < 0)
		log_debug("no memory to share with the server: %s", strerror(-r));
	return region;
}

int uploader_start(struct client *c, uint64_t limit)
{
	struct uploader *u = &c->uploader;
	/* Each thread encodes one object at a time: large blocks get fewer threads. */
	int threads = c->volume.block_size > (16u << 20) ? 2 : 4;
	pthread_mutex_init(&u->gather, NULL);
	pthread_mutex_init(&u->lock, NULL);
	pthread_mutex_init(&u->ids_lock, NULL);
	pthread_mutex_init(&u->reserve_lock, NULL);
	cond_init_monotonic(&u->work);
	cond_init_monotonic(&u->room);
	u->limit = limit;
	uploader_paced(c, c->volume.block_size); /* a mount that begins has sent nothing to be measured by: as if it had */
	u->region = region_for(c, limit);
	pool_init(&u->blocks, c->volume.block_size, limit / c->volume.block_size / 2, u->region);
	pool_init(&u->buffers, CLIENT_BUFFER_BYTES, limit / CLIENT_BUFFER_BYTES / 2, u->region);
	for (; u->thread_count < threads; u->thread_count++) {
		int r = pthread_create(&u->threads[u->thread_count], NULL, uploader_run, c);
		if (r)
			return -r;
	}
	return 0;
}

void uploader_stop(struct client *c)
{
	struct uploader *u = &c->uploader;
	pthread_mutex_lock(&u->lock);
	u->stopping = true;
	pthread_cond_broadcast(&u->work);
	pthread_mutex_unlock(&u->lock);
	for (int k = 0; k < u->thread_count; k++)
		pthread_join(u->threads[k], NULL);
}

/* ---- Waiting for it --------------------------------------------------------- */

static void wait_begin(struct inode *i)
{
	struct uploader *u = &i->client->uploader;
	LOCKED(&u->lock);
	i->waiters++;
	u->retry_at_ns = 0;
	/* Not queued: nothing to store, or a job under way must end first and then queues it. */
	if (i->queue != QUEUE_NONE)
		queue_place(u, i, true, QUEUE_READY);
}

static void wait_end(struct inode *i)
{
	LOCKED(&i->client->uploader.lock);
	i->waiters--;
}

static bool pending(const struct segments *s, uint64_t up_to_write)
{
	for (size_t k = 0; k < s->count; k++)
		if (s->at[k]->first_write <= up_to_write)
			return true;
	return false;
}

int inode_flush(struct inode *i)
{
	uint64_t target;
	bool given_up = false;
	int error;
	LOCKED(&i->lock);
	target = i->writes;
	wait_begin(i);
	/* What was lost is seen until its job has ended: whoever is told of the loss sees what others have written. */
	while ((!i->error && !i->damaged && (pending(&i->dirty, target) || pending(&i->storing, target)) && !given_up) ||
	       i->done_jobs < i->lost) {
		/* The jobs of many files wait for a server that is away one after the other. */
		given_up = rpc_work_waited(i->client->rpc);
		if (!given_up || i->done_jobs < i->lost)
			cond_wait_until(&i->changed, &i->lock, monotonic_ns() + NS_PER_S);
	}
	wait_end(i);
	error = i->error ? i->error : i->damaged || given_up ? -EIO : 0;
	i->error = 0;
	return error;
}

void inode_drain(struct inode *i)
{
	uint64_t target;
	LOCKED(&i->lock);
	target = i->writes;
	wait_begin(i);
	while (!i->claim && !i->damaged && !holdings_are_stopping(i->client) &&
	       (pending(&i->dirty, target) || pending(&i->storing, target)))
		cond_wait_until(&i->changed, &i->lock, monotonic_ns() + NS_PER_S);
	wait_end(i);
}

static int all_inodes(struct client *c, struct inode ***out, size_t *count)
{
	size_t position = 0;
	uint64_t key;
	void *value;
	LOCKED(&c->table_lock);
	*count = 0;
	*out = malloc((c->inodes.used + 1) * sizeof(**out));
	if (!*out)
		return -ENOMEM;
	while (intmap_next(&c->inodes, &position, &key, &value)) {
		struct inode *i = value;
		i->refs++;
		(*out)[(*count)++] = i;
	}
	return 0;
}

/* All are marked as wanted first, so that they share packs. */
static int store_all(struct client *c, bool spools_stay)
{
	CLEANUP_FREE struct inode **inodes = NULL;
	CLEANUP_FREE bool *stays = NULL;
	size_t count;
	int error = 0;
	if (!client_has_unstored(c) && !writeback_has_marks(c))
		return 0;
	if (all_inodes(c, &inodes, &count) < 0)
		return -ENOMEM;
	stays = calloc(count + 1, sizeof(*stays));
	for (size_t k = 0; k < count; k++) {
		LOCKED(&inodes[k]->lock);
		if (stays)
			stays[k] = spools_stay && (inodes[k]->spool || inodes[k]->unmarking);
		if (!stays || !stays[k])
			wait_begin(inodes[k]);
	}
	for (size_t k = 0; k < count; k++) {
		int r = stays && stays[k] ? writeback_fsync(inodes[k]) : inode_flush(inodes[k]);
		if (r < 0 && !error)
			error = r;
		if (!stays || !stays[k])
			wait_end(inodes[k]);
		inode_unref(inodes[k]);
	}
	return error;
}

int client_store_all(struct client *c) { return store_all(c, false); }

int client_secure_all(struct client *c) { return store_all(c, true); }

bool client_has_unstored(struct client *c)
{
	LOCKED(&c->uploader.lock);
	return c->uploader.cost > 0;
}

/* ---- Room and space ------------------------------------------------------------ */

static int room_wait(struct client *c, uint64_t bytes)
{
	struct uploader *u = &c->uploader;
	int64_t deadline = monotonic_ns() + c->timeout_ms * NS_PER_MS;
	int r = 0;
	LOCKED(&u->lock);
	u->room_waiters++;
	while (r == 0 && u->cost + bytes > u->limit && u->cost > 0) {
		pthread_cond_signal(&u->work);
		if (cond_wait_until(&u->room, &u->lock, deadline) == -ETIMEDOUT)
			r = u->last_error ? u->last_error : -EIO;
	}
	u->room_waiters--;
	return r;
}

static bool claim(struct uploader *u, uint64_t bytes)
{
	LOCKED(&u->lock);
	if (u->unstored + bytes > u->reserved)
		return false;
	u->unstored += bytes;
	return true;
}

static int reserve_call(struct client *c, uint64_t wanted, uint64_t need)
{
	struct uploader *u = &c->uploader;
	Wire__ReserveRequest request = WIRE__RESERVE_REQUEST__INIT;
	Wire__ReserveReply *reply;
	struct arena arena;
	int r;
	request.bytes = wanted;
	request.need = need;
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__RESERVE, &request, &arena, &reply);
	if (r == 0) {
		LOCKED(&u->lock);
		u->reserved = reply->bytes;
	}
	arena_free(&arena);
	return r;
}

uint64_t uploader_unstored(struct client *c)
{
	LOCKED(&c->uploader.lock);
	c->uploader.reserved = c->uploader.unstored;
	return c->uploader.unstored;
}

static int reserve_more(struct client *c, uint64_t bytes)
{
	uint64_t unstored;
	int r;
	pthread_mutex_lock(&c->uploader.lock);
	unstored = c->uploader.unstored;
	pthread_mutex_unlock(&c->uploader.lock);
	r = reserve_call(c, unstored + bytes + RESERVE_STEP, unstored + bytes);
	if (r != -EDQUOT && r != -ENOSPC)
		return r;
	/* What was committed since the last call still counts as reserved, and storing
	 * overwritten data frees what it replaces: near the limit, store first. */
	client_store_all(c);
	pthread_mutex_lock(&c->uploader.lock);
	unstored = c->uploader.unstored;
	pthread_mutex_unlock(&c->uploader.lock);
	return reserve_call(c, unstored + bytes, unstored + bytes);
}

int uploader_reserve(struct client *c, uint64_t bytes)
{
	struct uploader *u = &c->uploader;
	int r = room_wait(c, bytes);
	if (r < 0)
		return r;
	while (!claim(u, bytes)) {
		LOCKED(&u->reserve_lock);
		if (claim(u, bytes))
			return 0;
		r = reserve_more(c, bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

/* What has become old enough meanwhile: nobody was woken when it began to age. */
static void aged_wake(struct uploader *u)
{
	LOCKED(&u->lock);
	if (u->aging.first && monotonic_ns() >= u->paced_ns && monotonic_ns() >= u->aging.first->dirty_since_ns + AGE_MAX_NS)
		pthread_cond_signal(&u->work);
}

void uploader_tick(struct client *c)
{
	struct uploader *u = &c->uploader;
	bool idle;
	aged_wake(u);
	LOCKED(&u->reserve_lock);
	pthread_mutex_lock(&u->lock);
	idle = u->reserved > 0 && u->unstored == 0;
	if (idle)
		u->reserved = 0;
	pthread_mutex_unlock(&u->lock);
	if (idle)
		reserve_call(c, 0, 0);
}

/* ---- Object ids --------------------------------------------------------------- */

void uploader_session_lost(struct client *c)
{
	/* Not under ids_lock: its holder may be the one whose call found out. */
	atomic_fetch_add(&c->uploader.session_generation, 1);
}

int uploader_object_id(struct client *c, uint64_t *out)
{
	struct uploader *u = &c->uploader;
	LOCKED(&u->ids_lock);
	if (u->ids_generation != atomic_load(&u->session_generation))
		u->objects_left = 0;
	if (u->objects_left == 0) {
		Wire__AllocObjectsRequest request = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
		uint64_t generation = atomic_load(&u->session_generation);
		Wire__AllocObjectsReply *reply;
		struct arena arena;
		int r;
		request.count = OBJECT_IDS_AT_ONCE;
		arena_init(&arena, 0);
		r = client_call(c, WIRE__OP__ALLOC_OBJECTS, &request, &arena, &reply);
		if (r == 0) {
			u->next_object = reply->first;
			u->objects_left = reply->count;
			u->ids_generation = generation;
		}
		arena_free(&arena);
		if (r < 0)
			return r;
		if (u->objects_left == 0)
			return -EIO;
	}
	u->objects_left--;
	*out = u->next_object++;
	return 0;
}
