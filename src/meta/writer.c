/* The writer: one thread that takes what is queued and makes a batch of it.
 *
 *   queue -> begin a transaction -> apply each mutation -> commit (durable) -> tell each `done`
 *
 * While it commits, the next batch gathers in the queue.  A commit costs two
 * flushes of the disk, whatever is in it.  Callers that were just answered come
 * back with their next mutation a moment later; so before it begins, the writer
 * waits for as many as it has seen in flight lately, but never longer than a
 * quarter of what a commit takes.  A lone caller is never made to wait.
 *
 * What can go wrong, and what is done:
 *
 *   a mutation is refused            it has written nothing; the others go on
 *   a mutation fails after writing   the transaction is of no use (view.h: poisoned), so it is given up and the
 *   or a write fails                 batch's mutations are applied again, each in a transaction of its own
 *   the commit fails (full disk)     nothing has changed; every mutation of the batch gets the error
 *   LMDB says MDB_PANIC, or could    it does not know what is on disk: every mutation from now on is -EIO, and the
 *   not write its meta page          log says to restart the server, which reads the truth back
 *   nothing was written              no commit, and no batch number is used
 *
 * A batch's time is the clock's, but never before that of the batch before, also
 * across restarts: META "batch" holds both. */
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/machine.h"
#include "meta/tail.h"

#define BATCH_MUTATIONS 512u
#define BATCH_BYTES (4u << 20) /* of changes */
#define ANSWERS_TRIMMED 16u    /* at most, with one mutation */
#define WRITE_SET_HEAD 8u
#define GATHER_NS (300 * 1000LL) /* the longest wait for more to come */

struct writer {
	struct meta *meta;
	pthread_t thread;

	pthread_mutex_t queue_lock;
	pthread_cond_t queued;
	struct mutation *first, **end;
	unsigned count, wanted; /* in the queue; the thread is to be woken for this many */
	bool stopping;

	/* The thread's own: */
	struct arena arena;
	struct view view;
	struct view_tail tails[TABLE_COUNT];
	struct buf write_set;
	uint64_t batch;          /* number of the open batch */
	int64_t now_ns, last_ns; /* time of the open batch, of the last durable one */
	struct intmap answered;  /* session -> numbers below this are answered for good */
	unsigned in_flight;      /* how many mutations there were at once when the last batch was answered */
	int64_t commit_ns;       /* what a commit takes, on average */
	int failing;             /* the error of the last commit, logged when it changes: a full disk fails every time */
	bool broken;
};

static const char batch_key[] = "batch";

static int batch_load(struct writer *w)
{
	struct meta *m = w->meta;
	struct span value;
	struct view v;
	int r = meta_view_begin(m, &v);

	if (r < 0)
		return r;
	r = view_get(&v, TABLE_META, batch_key, sizeof(batch_key) - 1, &value);
	if (r == 0 && value.size != 16)
		r = -EBADMSG;
	if (r == 0) {
		atomic_store(&m->batch, get_le64(value.data));
		w->last_ns = (int64_t)get_le64(value.data + 8);
	}
	meta_view_end(&v);
	m->recent.last_batch = atomic_load(&m->batch);
	return r == -ENOENT ? 0 : r;
}

static int batch_begin(struct writer *w)
{
	struct meta *m = w->meta;
	int64_t now = clock_read(&m->clock);
	MDB_txn *txn;
	int r;

	meta_space_look(m);
	r = view_error(mdb_txn_begin(m->env, NULL, 0, &txn));
	if (r < 0)
		return r;
	w->now_ns = now > w->last_ns ? now : w->last_ns;
	w->batch = atomic_load(&m->batch) + 1;
	buf_clear(&w->write_set);
	buf_le64(&w->write_set, w->batch);
	for (int t = 0; t < TABLE_COUNT; t++)
		w->tails[t].known = false;
	w->view = (struct view){ .meta = m, .txn = txn, .writable = true, .write_set = &w->write_set, .tails = w->tails };
	if (w->write_set.failed)
		w->view.poisoned = -ENOMEM;
	return 0;
}

static void batch_abort(struct writer *w)
{
	mdb_txn_abort(w->view.txn);
	w->view.txn = NULL;
}

static int batch_number(struct writer *w)
{
	uint8_t value[16];

	put_le64(value, w->batch);
	put_le64(value + 8, (uint64_t)w->now_ns);
	return view_put(&w->view, TABLE_META, batch_key, sizeof(batch_key) - 1, value, sizeof(value));
}

static int batch_commit(struct writer *w)
{
	struct meta *m = w->meta;
	bool wrote = w->write_set.len > WRITE_SET_HEAD;
	int r = wrote ? batch_number(w) : 0, mdb = MDB_SUCCESS;
	int64_t start;

	if (!wrote || r < 0) {
		batch_abort(w);
		return r;
	}
	start = clock_steady_ns();
	mdb = mdb_txn_commit(w->view.txn);
	w->view.txn = NULL;
	w->commit_ns += (clock_steady_ns() - start - w->commit_ns) / 8;
	if (mdb != MDB_SUCCESS) {
		if (w->failing != mdb)
			log_error("cannot write metadata to %s: %s", m->folder, mdb_strerror(mdb));
		w->failing = mdb;
		r = view_error(mdb);
		return r == -EBADMSG ? -EIO : r;
	}
	if (w->failing)
		log_info("metadata can be written to %s again", m->folder);
	w->failing = 0;
	w->last_ns = w->now_ns;
	atomic_store(&m->batch, w->batch);
	recent_add(&m->recent, w->batch, &w->write_set);
	if (w->view.touched & (1u << TABLE_VOLUME | 1u << TABLE_SESSION)) {
		r = roster_reload(m);
		if (r < 0)
			log_error("cannot read the volumes and sessions back: %s", strerror(-r));
	}
	return 0;
}

/* After this LMDB itself refuses to write; only opening the file again helps. */
static void break_if_panic(struct writer *w)
{
	MDB_txn *txn;
	int r = w->broken ? MDB_NOTFOUND : mdb_txn_begin(w->meta->env, NULL, 0, &txn);

	if (r == MDB_SUCCESS)
		mdb_txn_abort(txn);
	if (r != MDB_PANIC)
		return;
	w->broken = true;
	log_error("the metadata in %s cannot be changed any more after a failed write; restart the server", w->meta->folder);
}

/* Whether this number was answered so long ago that its answer is gone. */
static bool number_passed(struct writer *w, const struct mutation *mu)
{
	uint64_t below = (uintptr_t)intmap_get(&w->answered, mu->who.session);

	if (mu->answered_below > below) {
		below = mu->answered_below;
		intmap_set(&w->answered, mu->who.session, (void *)(uintptr_t)below); /* without memory: kept a while longer */
	}
	return mu->number < below;
}

/* A remembered CREATE leaves its file open, too: the reply was lost, and perhaps the server that knew of the open. */
static void answer_reopen(struct writer *w, struct mutation *mu, struct span packed)
{
	Wire__EntryReply *reply;
	struct attr a;
	struct op op = { .arena = &w->arena };

	if (mu->op == WIRE__OP__CREATE && ((const Wire__CreateRequest *)mu->request)->open &&
	    op_unpack(&op, &wire__entry_reply__descriptor, packed, &reply) == 0 &&
	    attr_unpack(reply->attr.data, reply->attr.len, &a) == 0)
		mu->opened = a.inode;
}

/* 1: answered from memory; 0: to be applied; -errno. */
static int answer_again(struct writer *w, struct mutation *mu)
{
	struct span packed;
	int status, r;

	if (number_passed(w, mu))
		return -EBADMSG;
	r = answer_find(&w->view, mu->who.session, mu->number, &status, &packed);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	mu->status = status;
	buf_append(&mu->packed, packed.data, packed.size);
	if (mu->packed.failed)
		return -ENOMEM;
	answer_reopen(w, mu, packed);
	return 1;
}

static int session_check(struct writer *w, const struct mutation *mu)
{
	struct span value;
	uint8_t key[8];
	int r;

	put_be64(key, mu->who.session);
	r = view_get(&w->view, TABLE_SESSION, key, sizeof(key), &value);
	return r == -ENOENT ? -ENOTCONN : r;
}

static void pack_into(struct buf *out, const ProtobufCMessage *message)
{
	uint8_t *room = buf_extend(out, protobuf_c_message_get_packed_size(message));

	if (room)
		protobuf_c_message_pack(message, room);
}

static int handle(struct writer *w, struct mutation *mu, const struct op_info *info)
{
	struct op op = { .view = &w->view,
			 .meta = w->meta,
			 .who = &mu->who,
			 .volume = mu->who.volume,
			 .now_ns = w->now_ns,
			 .arena = &w->arena,
			 .mutation = mu };
	ProtobufCMessage *reply = arena_take(&w->arena, info->reply->sizeof_message);
	Wire__ErrorReply error = WIRE__ERROR_REPLY__INIT;
	int r;

	if (!reply)
		return -ENOMEM;
	protobuf_c_message_init(info->reply, reply);
	r = op_handler_of(info)(&op, mu->request, reply);
	if (r == 0) {
		pack_into(&mu->packed, reply);
		mu->opened = op.opened;
		return mu->packed.failed ? -ENOMEM : 0;
	}
	if (op.why[0]) {
		error.text = op.why;
		pack_into(&mu->packed, &error.base);
	}
	return r;
}

static int apply_checked(struct writer *w, struct mutation *mu)
{
	const struct op_info *info = op_find(mu->op);
	bool ending = mu->op == WIRE__OP__GOODBYE;
	bool numbered = mu->who.session && mu->number && !ending;
	int r;

	if (!info || info->kind != OP_MUTATION || mu->request->descriptor != info->request)
		return -EINVAL;
	if (mu->who.session && !ending) {
		r = session_check(w, mu);
		if (r < 0)
			return r;
	}
	if (numbered) {
		r = answer_again(w, mu);
		if (r != 0)
			return r < 0 ? r : mu->status;
	}
	if (mu->who.read_only && !ending)
		return -EROFS;
	r = handle(w, mu, info);
	if (r < 0 || !numbered)
		return r;
	r = answers_trim(&w->view, mu->who.session, mu->answered_below, ANSWERS_TRIMMED);
	return r < 0 ? r : answer_keep(&w->view, mu->who.session, mu->number, 0, mu->packed.data, mu->packed.len);
}

/* False: it has failed after it had written, so the transaction must be given up. */
static bool apply(struct writer *w, struct mutation *mu)
{
	size_t before = w->write_set.len;

	buf_clear(&mu->packed);
	mu->opened = mu->made = mu->undeclared = 0;
	mu->status = apply_checked(w, mu);
	arena_reset(&w->arena);
	if (w->view.poisoned && mu->status >= 0)
		mu->status = w->view.poisoned;
	if (mu->status < 0 && mu->packed.failed)
		buf_clear(&mu->packed);
	return mu->status == 0 || (!w->view.poisoned && w->write_set.len == before);
}

static void fail(struct mutation *mu, int error)
{
	mu->status = error;
	mu->opened = mu->made = 0;
	buf_clear(&mu->packed);
}

static void apply_alone(struct writer *w, struct mutation *mu)
{
	int r = w->broken ? -EIO : batch_begin(w);

	if (r < 0) {
		fail(mu, r);
		return;
	}
	if (!apply(w, mu)) {
		batch_abort(w);
		return;
	}
	r = batch_commit(w);
	if (r < 0) {
		fail(mu, r);
		break_if_panic(w);
	}
}

static void note_open(struct writer *w, const struct mutation *mu, uint64_t inode)
{
	if (meta_opened(w->meta, mu->who.session, mu->who.volume, inode, 0) < 0)
		log_error("no memory to note that inode %llu of volume %u is open", (unsigned long long)inode, mu->who.volume);
}

/* What else a durable mutation means, outside LMDB.  Files of CREATE_MANY are open until the session closes them. */
static void settle(struct writer *w, const struct mutation *mu)
{
	uint64_t ended = 0;

	if (mu->status < 0)
		return;
	if (mu->opened)
		note_open(w, mu, mu->opened);
	if (mu->op == WIRE__OP__CREATE_MANY) {
		const Wire__CreateManyRequest *request = (const Wire__CreateManyRequest *)mu->request;

		for (size_t i = 0; i < request->n_files; i++)
			note_open(w, mu, request->files[i]->inode);
	}
	if (mu->op == WIRE__OP__GOODBYE)
		ended = mu->who.session;
	else if (mu->op == WIRE__OP__SESSION_END)
		ended = ((const Wire__SessionEnd *)mu->request)->session;
	if (ended) {
		meta_session_forget(w->meta, ended);
		intmap_remove(&w->answered, ended);
	}
}

/* REAP asks which files are open, and what a batch leaves open is only noted when it is durable: so it begins one. */
static bool batch_full(const struct writer *w, const struct mutation *next, unsigned count)
{
	return count == BATCH_MUTATIONS || w->write_set.len >= BATCH_BYTES || (count && next->op == WIRE__OP__REAP);
}

/* Applies the first `count` of the list in one transaction; false: none of them. */
static bool apply_together(struct writer *w, struct mutation *list, unsigned *count)
{
	unsigned n = 0;
	int r = w->broken ? -EIO : batch_begin(w);

	if (r == 0) {
		for (struct mutation *mu = list; mu && !batch_full(w, mu, n); mu = mu->next, n++)
			if (!apply(w, mu)) {
				batch_abort(w);
				*count = n + 1;
				return false;
			}
		r = batch_commit(w);
	}
	if (r < 0) {
		n = 0;
		for (struct mutation *mu = list; mu && n < BATCH_MUTATIONS; mu = mu->next, n++)
			fail(mu, r);
		break_if_panic(w);
	}
	*count = n;
	return true;
}

/* Waits for those that are about to come; with queue_lock. */
static void queue_gather(struct writer *w)
{
	int64_t patience = w->commit_ns / 4 < GATHER_NS ? w->commit_ns / 4 : GATHER_NS;
	struct timespec until;

	w->wanted = w->in_flight < BATCH_MUTATIONS ? w->in_flight : BATCH_MUTATIONS;
	if (w->count >= w->wanted || patience == 0)
		return;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += patience;
	until.tv_sec += until.tv_nsec / NS_PER_S;
	until.tv_nsec %= NS_PER_S;
	while (w->count < w->wanted && !w->stopping)
		if (pthread_cond_timedwait(&w->queued, &w->queue_lock, &until) != 0)
			return;
}

/* All that is queued, or NULL when it is time to go. */
static struct mutation *queue_take(struct writer *w)
{
	struct mutation *list;
	LOCKED(&w->queue_lock);

	w->wanted = 1;
	while (!w->first && !w->stopping)
		pthread_cond_wait(&w->queued, &w->queue_lock);
	queue_gather(w);
	list = w->first;
	w->first = NULL;
	w->end = &w->first;
	w->count = 0;
	return list;
}

/* Before those of the batch are answered and some of them come back. */
static void in_flight_count(struct writer *w, unsigned answered)
{
	LOCKED(&w->queue_lock);
	w->in_flight = answered + w->count;
}

/* Returns what is left of the list. */
static struct mutation *batch_run(struct writer *w, struct mutation *list)
{
	struct mutation *mu, *next;
	unsigned count, i;

	if (!apply_together(w, list, &count))
		for (mu = list, i = 0; i < count; i++, mu = mu->next)
			apply_alone(w, mu);
	in_flight_count(w, count);
	for (mu = list, i = 0; i < count; i++, mu = next) {
		next = mu->next;
		settle(w, mu);
		mu->done(mu);
	}
	return mu;
}

static void *writer_main(void *context)
{
	struct writer *w = context;
	struct mutation *list;

	pthread_setname_np(pthread_self(), "meta-writer");
	prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: the usual 50 us are as long as what queue_gather waits for */
	while ((list = queue_take(w)))
		while (list)
			list = batch_run(w, list);
	return NULL;
}

void meta_submit(struct meta *m, struct mutation *mutation)
{
	struct writer *w = m->writer;
	LOCKED(&w->queue_lock);

	mutation->next = NULL;
	*w->end = mutation;
	w->end = &mutation->next;
	if (++w->count >= w->wanted)
		pthread_cond_signal(&w->queued);
}

static void writer_free(struct writer *w)
{
	arena_free(&w->arena);
	buf_free(&w->write_set);
	intmap_free(&w->answered);
	pthread_cond_destroy(&w->queued);
	pthread_mutex_destroy(&w->queue_lock);
	free(w);
}

int writer_start(struct meta *m)
{
	struct writer *w = calloc(1, sizeof(*w));
	pthread_condattr_t monotonic;
	int r;

	if (!w)
		return -ENOMEM;
	w->meta = m;
	w->end = &w->first;
	arena_init(&w->arena, 0);
	w->wanted = 1;
	pthread_mutex_init(&w->queue_lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&w->queued, &monotonic);
	pthread_condattr_destroy(&monotonic);
	r = batch_load(w);
	if (r == 0)
		r = -pthread_create(&w->thread, NULL, writer_main, w);
	if (r < 0) {
		writer_free(w);
		return r;
	}
	m->writer = w;
	return 0;
}

void writer_stop(struct meta *m)
{
	struct writer *w = m->writer;

	if (!w)
		return;
	pthread_mutex_lock(&w->queue_lock);
	w->stopping = true;
	pthread_cond_signal(&w->queued);
	pthread_mutex_unlock(&w->queue_lock);
	pthread_join(w->thread, NULL);
	writer_free(w);
	m->writer = NULL;
}

struct waiting {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
};

static void waiting_done(struct mutation *mu)
{
	struct waiting *waiting = mu->context;
	LOCKED(&waiting->lock);

	waiting->done = true;
	pthread_cond_signal(&waiting->changed);
}

int meta_mutate(struct meta *m, const struct caller *who, uint16_t op, const ProtobufCMessage *request, struct arena *arena,
		ProtobufCMessage **reply)
{
	struct waiting waiting = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	struct mutation mu = { .who = *who, .op = op, .request = request, .done = waiting_done, .context = &waiting };
	ProtobufCMessage *message;

	meta_submit(m, &mu);
	pthread_mutex_lock(&waiting.lock);
	while (!waiting.done)
		pthread_cond_wait(&waiting.changed, &waiting.lock);
	pthread_mutex_unlock(&waiting.lock);
	if (mu.status == 0 && reply) {
		message = protobuf_c_message_unpack(op_find(op)->reply, &arena->allocator, mu.packed.len, mu.packed.data);
		if (message)
			*reply = message;
		else
			mu.status = -ENOMEM;
	}
	buf_free(&mu.packed);
	return mu.status;
}
