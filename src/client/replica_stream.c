/* Following the server.
 *
 * All is well: STREAM_FOLLOW waits at the server until there are changes, which are applied in one update; then the next
 * one.  Every second one is answered without any, and says that there are none.
 *
 * Copying, at first or because the server has no longer what follows (ESTALE: this client was cut off for too long, or the
 * server was restarted): the tables are asked for range by range, each with the number of the batch it was read after.
 * After each range the changes up to now are applied, so that they are never so old that they are gone.  What is here
 * and not in the range goes.  When all is here and the highest of the numbers is reached, it is whole.
 *
 *   at first      each range is an update of its own: nothing is served yet, and what was copied is there if it breaks off
 *   later         all of it is one update, in which only differences are written: the old state is served until then
 *
 * What can go wrong:
 *
 *   the server is away             it goes on being asked; meanwhile the replica is served, and grows old
 *   what comes makes no sense      -EBADMSG: the update is given up, and tried again
 *   the disk is full               the same; the log says so
 *   the server is one of other     EXDEV: nothing is applied any more; the next mount copies anew
 *   data (a copy was restored)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define BULK_BYTES ((16u << 20) + 4096) /* the server sends no more at once */
#define CALL_TIMEOUT_MS 3000            /* answered within a second */
#define PAUSE_NS NS_PER_S
#define WRITE_EVERY_NS (10 * NS_PER_S) /* the head, if nothing else is */
#define COPIES_MAX 20                  /* from the beginning, at a mount */

/* ---- Calls ---- */

static int call(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply, size_t *bulk_bytes)
{
	struct replica *r = c->replica;
	struct iovec bulk = { r->bulk, BULK_BYTES };

	*bulk_bytes = 0;
	r->call.op = op;
	r->call.request = request;
	r->call.reply = reply;
	r->call.bulk_in = &bulk;
	r->call.bulk_in_count = 1;
	r->call.bulk_in_length = bulk_bytes;
	r->call.timeout_ms = CALL_TIMEOUT_MS;
	return rpc_call(c->rpc, &r->call, arena);
}

static ProtobufCBinaryData history_of(struct replica *r)
{
	return (ProtobufCBinaryData){ .len = sizeof(r->head.history), .data = r->head.history };
}

static int follow_call(struct client *c, uint64_t after, bool wait, struct arena *arena, Wire__StreamFollowReply **reply,
		       size_t *bytes)
{
	Wire__StreamFollowRequest request = WIRE__STREAM_FOLLOW_REQUEST__INIT;
	int r;

	request.history = history_of(c->replica);
	request.volume = c->replica->head.volume;
	request.after = after;
	request.wait = wait;
	r = call(c, WIRE__OP__STREAM_FOLLOW, &request, arena, reply, bytes);
	return r == 0 && ((*reply)->batch < after || (*reply)->newest < (*reply)->batch) ? -EBADMSG : r;
}

/* ---- What is known ---- */

/* When it was current, having come to `batch` by a request that was sent at that time; 0: that is not known yet.  If there is always
 * more than an answer holds, it is a little behind, but not as old as the last time there was no more. */
static int64_t current_at(struct replica *r, const Wire__StreamFollowReply *reply, int64_t sent_ns)
{
	int64_t at = 0;

	if (r->mark_ns && reply->batch >= r->mark_batch) {
		at = r->mark_ns;
		r->mark_ns = 0;
	}
	if (reply->batch >= reply->newest) {
		r->mark_ns = 0;
		return sent_ns;
	}
	if (!r->mark_ns) {
		r->mark_ns = sent_ns;
		r->mark_batch = reply->newest;
	}
	return at;
}

/* The head is committed.  `at_ns`: as current_at. */
static void head_set(struct client *c, const struct replica_head *head, int64_t at_ns)
{
	struct replica *r = c->replica;
	LOCKED(&r->lock);

	r->head = *head;
	if (!at_ns)
		return;
	atomic_store(&r->as_of_steady_ns, at_ns);
	pthread_cond_broadcast(&r->current);
	if (atomic_exchange(&r->refusing, false))
		log_info("volume %s: the replica is served again", c->volume.name);
}

static void space_set(struct replica *r, struct replica_head *head, const Wire__StatfsReply *space)
{
	LOCKED(&r->lock);
	if (!space)
		return;
	r->space = (struct client_space){ .total_bytes = space->total_bytes,
					  .free_bytes = space->free_bytes,
					  .used_bytes = space->used_bytes,
					  .total_files = space->total_files,
					  .free_files = space->free_files,
					  .block_size = space->block_size };
	head->space[0] = space->total_bytes;
	head->space[1] = space->free_bytes;
	head->space[2] = space->total_files;
	head->space[3] = space->free_files;
	head->space[4] = space->used_bytes;
}

static void say(struct client *c, bool copying, bool away, bool foreign)
{
	struct replica *r = c->replica;
	bool was_away;

	pthread_mutex_lock(&r->lock);
	was_away = atomic_exchange(&r->away, away);
	r->copying = copying;
	r->foreign = foreign;
	pthread_mutex_unlock(&r->lock);
	if (was_away && !away)
		log_info("volume %s: the replica follows the server again", c->volume.name);
	else if (!was_away && away)
		log_warn("volume %s: the server is away; the replica is served as it is", c->volume.name);
}

/* ---- Following ---- */

/* Only if there is something to write, or the file's own head is long out of date. */
static int follow_write(struct client *c, const struct replica_head *head, size_t bytes)
{
	struct replica *r = c->replica;
	struct replica_update u;
	int failed;

	if (!bytes && monotonic_ns() - r->written_ns < WRITE_EVERY_NS)
		return 0;
	failed = replica_begin(&u, r->meta, head->volume);
	if (failed < 0)
		return failed;
	u.each = r->batch ? news_note : NULL;
	u.context = r->batch;
	failed = replica_apply(&u, r->bulk, bytes);
	if (failed < 0) {
		replica_abort(&u);
		return failed;
	}
	failed = replica_commit(&u, head, NULL);
	if (failed == 0)
		r->written_ns = monotonic_ns();
	return failed;
}

static void news_tell(struct client *c)
{
	struct news_batch *b = c->replica->batch;

	c->replica->batch = NULL;
	if (b)
		news_add(c, b);
}

static void news_drop(struct replica *r)
{
	news_batch_free(r->batch);
	r->batch = NULL;
}

/* Nothing is told before the threads are there: then nobody has asked yet. */
static int news_begin(struct replica *r)
{
	if (!r->news.started)
		return 0;
	r->batch = news_batch_new();
	return r->batch ? 0 : -ENOMEM;
}

/* One answer; *more: there is more at once. */
static int follow(struct client *c, bool wait, bool *more)
{
	struct replica *r = c->replica;
	struct replica_head head = r->head;
	int64_t sent_ns = clock_steady_ns(), at_ns = 0;
	Wire__StreamFollowReply *reply;
	struct arena arena;
	size_t bytes;
	int failed;

	arena_init(&arena, 0);
	failed = follow_call(c, head.batch, wait, &arena, &reply, &bytes);
	if (failed == 0) {
		head.batch = reply->batch;
		*more = reply->batch < reply->newest;
		at_ns = current_at(r, reply, sent_ns);
		if (at_ns)
			head.as_of_ns = client_now_ns(c) - (clock_steady_ns() - at_ns);
		space_set(r, &head, reply->space);
		failed = news_begin(r);
	}
	if (failed == 0)
		failed = follow_write(c, &head, bytes);
	arena_free(&arena);
	if (failed < 0) {
		r->mark_ns = 0;
		news_drop(r);
		return failed;
	}
	/* First: an answer from before that is on its way must not be taken for one of now. */
	news_tell(c);
	head_set(c, &head, at_ns);
	return 0;
}

/* ---- Copying ---- */

struct copy {
	struct client *client;
	bool first; /* nothing is served yet */
	struct replica_update update;
	struct replica_head head;
	uint64_t highest; /* of the batches that ranges were read after */
	bool begun;
	int64_t sent_ns; /* of the last request that found nothing newer */
};

static int copy_open(struct copy *k)
{
	struct replica *r = k->client->replica;
	int failed = k->update.txn ? 0 : replica_begin(&k->update, r->meta, k->head.volume);

	k->update.each = r->batch ? news_note : NULL;
	k->update.context = r->batch;
	return failed;
}

static int copy_step_end(struct copy *k) { return k->first ? replica_commit(&k->update, &k->head, NULL) : 0; }

/* The changes up to now, into the update. */
static int copy_follow(struct copy *k)
{
	struct client *c = k->client;
	bool more = true;
	int failed = 0;

	while (failed == 0 && more) {
		Wire__StreamFollowReply *reply;
		int64_t sent_ns = clock_steady_ns();
		struct arena arena;
		size_t bytes;

		arena_init(&arena, 0);
		failed = follow_call(c, k->head.batch, false, &arena, &reply, &bytes);
		if (failed == 0)
			failed = copy_open(k);
		if (failed == 0)
			failed = replica_apply(&k->update, c->replica->bulk, bytes);
		if (failed == 0) {
			k->head.batch = reply->batch;
			more = reply->batch < reply->newest;
			if (!more) {
				k->sent_ns = sent_ns;
				k->head.as_of_ns = client_now_ns(c) - (clock_steady_ns() - sent_ns);
			}
			space_set(c->replica, &k->head, reply->space);
		}
		arena_free(&arena);
	}
	return failed;
}

/* One range; `after` becomes its end. */
static int copy_range(struct copy *k, enum table t, struct buf *after, bool *end)
{
	struct client *c = k->client;
	Wire__StreamSnapshotRequest request = WIRE__STREAM_SNAPSHOT_REQUEST__INIT;
	Wire__StreamSnapshotReply *reply;
	struct arena arena;
	size_t bytes;
	int failed;

	request.history = history_of(c->replica);
	request.volume = k->head.volume;
	request.table = t;
	request.after = (ProtobufCBinaryData){ .len = after->len, .data = after->data };
	arena_init(&arena, 0);
	failed = call(c, WIRE__OP__STREAM_SNAPSHOT, &request, &arena, &reply, &bytes);
	if (failed == 0 && !reply->end && !reply->last.len)
		failed = -EBADMSG;
	if (failed == 0)
		failed = copy_open(k);
	if (failed == 0)
		failed = replica_range(&k->update, t, after->data, after->len, reply->last.data, reply->end ? 0 : reply->last.len,
				       c->replica->bulk, bytes);
	if (failed == 0) {
		if (!k->begun)
			k->head.batch = reply->batch;
		k->begun = true;
		if (reply->batch > k->highest)
			k->highest = reply->batch;
		*end = reply->end;
		buf_clear(after);
		buf_append(after, reply->last.data, reply->last.len);
		failed = after->failed ? -ENOMEM : 0;
	}
	arena_free(&arena);
	return failed;
}

static int copy_table(struct copy *k, enum table t)
{
	CLEANUP_BUF struct buf after = { 0 };
	bool end = false;
	int failed = 0;

	while (failed == 0 && !end && !atomic_load(&k->client->replica->stopping)) {
		failed = copy_range(k, t, &after, &end);
		if (failed == 0)
			failed = copy_follow(k);
		if (failed == 0)
			failed = copy_step_end(k);
	}
	return failed == 0 && !end ? -ECANCELED : failed;
}

static int copy(struct client *c)
{
	struct replica *r = c->replica;
	struct copy k = { .client = c, .head = r->head, .first = !r->head.whole };
	int failed = news_begin(r);

	for (int i = 0; failed == 0 && i < STREAM_TABLES; i++)
		failed = copy_table(&k, stream_tables[i]);
	while (failed == 0 && k.head.batch < k.highest)
		failed = copy_follow(&k);
	if (failed == 0)
		failed = copy_open(&k);
	if (failed == 0) {
		k.head.whole = true;
		failed = replica_commit(&k.update, &k.head, NULL);
	} else {
		replica_abort(&k.update);
	}
	if (failed < 0) {
		news_drop(r);
		return failed;
	}
	news_tell(c);
	head_set(c, &k.head, k.sent_ns);
	r->written_ns = monotonic_ns();
	return 0;
}

static int copy_again(struct client *c)
{
	int64_t begun = monotonic_ns();
	int failed;

	say(c, true, false, false);
	failed = copy(c);
	if (failed == 0)
		log_info("volume %s: the namespace was copied to %s in %lld ms", c->volume.name, c->replica->folder,
			 (long long)((monotonic_ns() - begun) / NS_PER_MS));
	return failed;
}

int replica_sync(struct client *c)
{
	struct replica *r = c->replica;
	bool more = true;
	int failed = 0;

	r->bulk = r->bulk ? r->bulk : malloc(BULK_BYTES);
	if (!r->bulk)
		return -ENOMEM;
	for (int copies = 0; failed == 0 && more;) {
		failed = r->head.whole ? follow(c, false, &more) : -ESTALE;
		/* Changes come faster than this server keeps them: another time it may go better. */
		while (failed == -ESTALE && copies++ < COPIES_MAX)
			failed = copy_again(c);
	}
	if (failed == 0)
		say(c, false, false, false);
	return failed;
}

/* ---- The thread ---- */

static void pause_a_moment(struct replica *r)
{
	int64_t until = monotonic_ns() + PAUSE_NS;
	LOCKED(&r->lock);

	while (!atomic_load(&r->stopping))
		if (cond_wait_until(&r->current, &r->lock, until) < 0)
			break;
}

static void failed_say(struct client *c, int failed, int *last)
{
	switch (failed) {
	case -EXDEV:
		if (*last != failed)
			log_error("volume %s: the server has other data than the replica in %s is of; unmount it and mount it "
				  "again to copy anew",
				  c->volume.name, c->replica->folder);
		say(c, false, false, true);
		break;
	case -EIO:
	case -ECANCELED: say(c, false, true, false); break;
	default:
		if (*last != failed)
			log_error("volume %s: cannot follow the server in %s: %s; trying again", c->volume.name,
				  c->replica->folder, strerror(-failed));
		say(c, false, true, false);
	}
	*last = failed;
}

void *replica_run(void *context)
{
	struct client *c = context;
	struct replica *r = c->replica;
	int last = 0;

	r->bulk = r->bulk ? r->bulk : malloc(BULK_BYTES);
	if (!r->bulk)
		log_error("volume %s: no memory to follow the server", c->volume.name);
	while (r->bulk && !atomic_load(&r->stopping)) {
		bool more;
		int failed = follow(c, true, &more);

		if (failed == -ESTALE)
			failed = copy_again(c);
		if (atomic_load(&r->stopping))
			break;
		if (failed == 0) {
			say(c, false, false, false);
			last = 0;
			continue;
		}
		failed_say(c, failed, &last);
		pause_a_moment(r);
	}
	return NULL;
}
