#include "client/holdings.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define MOMENT_NS (2 * NS_PER_MS)
#define FORGET_MOST_NS (4 * NS_PER_S) /* others are let in ten seconds after the server's start */
#define ACQUIRE_EXTENTS 64u
/* A page that was not there when its write() came, and is not filled by it, stays locked until the write is answered: that one
 * is never stale, and would be waited for in vain. */
#define REPAIR_MOST_NS (100 * NS_PER_MS)
/* Of direct I/O nothing is locked.  But the kernel has only so many asynchronous requests under way (BACKGROUND_MAX of
 * fuse/session.c), and a read that has locked the page may queue behind these very writes: so half of them do not wait for long. */
#define REPAIR_AROUND_MOST_NS (2 * NS_PER_S)
#define REPAIR_AROUND_MOST 32u

#define NONE WIRE__GRANT__GRANT_NONE
#define READ WIRE__GRANT__GRANT_READ
#define WRITE WIRE__GRANT__GRANT_WRITE

/* On the stack of the write that waits for it. */
struct pages_wait {
	struct pages_wait *next;
	uint64_t repair;
	bool ended;
};

struct holding_job {
	struct holding_job *next;
	/* number 0: the grant is gone already, only pages are to be forgotten; inode 0: all names and attributes are */
	uint64_t inode, number;
	bool all;
	uint64_t repair; /* not 0: only these pages are to be forgotten */
	bool around;     /* after a write around them */
	struct stretch pages;
};

/* ---- Having ---- */

Wire__Grant holding_wanted(const struct inode *i, bool write)
{
	struct client *c = i->client;

	if (write || (i->writers && !c->read_only))
		return WRITE;
	return c->volume.relaxed && !lease_held(c) ? NONE : READ;
}

void holding_take(struct inode *i, Wire__Grant grant, uint64_t recalls)
{
	if (i->recalls != recalls || grant <= i->grant || (grant == READ && i->writers))
		return;
	if (grant == WRITE)
		i->granted_under = lease_number(i->client);
	i->grant = i->at_server = grant;
}

static bool is_enough(const struct inode *i, Wire__Grant want)
{
	return want == NONE || (i->grant >= want && lease_in_contact(i->client));
}

/* The lock is held, and given up meanwhile; one at a time.  *version: of the content, as the server knows it. */
static int ask(struct inode *i, Wire__Grant want, uint64_t *version)
{
	Wire__ExtentsRequest request = WIRE__EXTENTS_REQUEST__INIT;
	uint64_t recalls = i->recalls, generation = i->window.generation;
	bool claim = i->claim;
	Wire__ExtentsReply *reply;
	struct arena arena;
	int r;

	request.inode = i->number;
	request.max = ACQUIRE_EXTENTS;
	request.want = want;
	i->asking = true;
	arena_init(&arena, 0);
	pthread_mutex_unlock(&i->lock);
	r = (claim ? client_call_at_once : client_call)(i->client, WIRE__OP__EXTENTS, &request, &arena, &reply);
	pthread_mutex_lock(&i->lock);
	i->asking = false;
	pthread_cond_broadcast(&i->changed);
	if (r == 0) {
		*version = reply->version;
		if (!i->claim || !i->attr_known)
			r = window_take(i, reply, 0, generation);
	}
	if (r == 0 && reply->grant == NONE) /* ours is asked back, and we have not heard of it yet */
		cond_wait_until(&i->changed, &i->lock, monotonic_ns() + MOMENT_NS);
	else if (r == 0) {
		/* One that was got while the loss was being noted counts as from before it, and every commit under it would be
		 * refused: what is claimed is as good as new, also where it is there already. */
		if (claim && reply->grant == WRITE && i->recalls == recalls)
			i->granted_under = lease_number(i->client);
		holding_take(i, reply->grant, recalls);
	}
	arena_free(&arena);
	return r == -EAGAIN ? 0 : r; /* what came with it was too old: without that the grant is worth nothing */
}

/* The lock is held, and given up meanwhile: until the server may have been asked, or answered. */
static void wait_a_moment(struct inode *i, int64_t ns) { cond_wait_until(&i->changed, &i->lock, monotonic_ns() + ns); }

int inode_acquire(struct inode *i, bool write, struct stretch pages)
{
	int64_t deadline = monotonic_ns() + i->client->timeout_ms * NS_PER_MS;
	bool admitted = false;
	uint64_t version;
	int r = 0;

	if (i->client->replica)
		return write ? -EROFS : replica_refresh(i);
	for (;;) {
		Wire__Grant want = holding_wanted(i, write);

		/* Opened for writing just now: what was read before leaves first, and the kernel may wait for this. */
		if (!write && i->pages.leaving && i->grant == READ)
			want = READ;
		if (is_enough(i, want)) {
			if (!i->pages.leaving || admitted || want == NONE) {
				if (!write)
					pages_note_read(i, pages);
				break;
			}
			admitted = pages_admit(i, pages);
			continue;
		}
		admitted = false;
		if (monotonic_ns() > deadline) {
			return -EIO;
		} else if (i->recalling || i->asking) {
			wait_a_moment(i, NS_PER_S);
		} else if (i->grant >= want) {
			wait_a_moment(i, MOMENT_NS); /* the server is away */
		} else if (i->claim && i->done_jobs != i->next_job) {
			wait_a_moment(i, NS_PER_S); /* jobs under way claim it; what they have stored is ours, not another's */
		} else if (i->claim) {
			pthread_mutex_unlock(&i->lock);
			inode_claim(i);
			pthread_mutex_lock(&i->lock);
		} else {
			r = ask(i, want, &version);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* What was read under it goes before the handle can be used.  As with a recall the grant counts until the pages are gone: else
 * it could be given back while they are still there. */
void holding_for_writing(struct inode *i)
{
	LOCKED(&i->lock);

	while (i->recalling)
		pthread_cond_wait(&i->changed, &i->lock);
	if (i->grant != READ)
		return;
	i->recalling = true;
	pages_leave(i, 0);
	if (i->grant == READ)
		i->grant = NONE;
	passed_doubt(i);
	i->recalls++;
	window_drop(i);
	i->recalling = false;
	pthread_cond_broadcast(&i->changed);
}

/* ---- Claiming ---- */

/* The lock is held. */
static void claim_refused(struct inode *i, bool gone)
{
	struct client *c = i->client;
	unsigned long bytes = (unsigned long)(i->dirty.bytes + i->storing.bytes);

	if (gone)
		log_info("volume %s, inode %lu: the file was deleted, and %lu bytes of it that were not stored go with it",
			 c->volume.name, (unsigned long)i->number, bytes);
	else
		log_error("volume %s, inode %lu: another mount changed the file while the server did not hear of this one: %lu "
			  "bytes written here are lost",
			  c->volume.name, (unsigned long)i->number, bytes);
	inode_cut_unstored(i, 0);
	i->lost = i->next_job;     /* jobs made before are not committed */
	if (!gone || i->opens > 0) /* else nobody misses it */
		i->error = -EIO;
	/* Size, extents and pages are those from before: they come with the grant, which is asked for again. */
	i->grant = i->at_server = NONE;
	window_drop(i);
	holding_forget_pages(i);
	passed_lost(i);
}

void inode_claim_later(struct inode *i)
{
	if (!i->claim)
		i->claim_version = i->attr.version;
	i->claim = true;
	if (i->marked)
		atomic_store(&i->client->writeback.unclaimed, true);
}

/* The lock is held, and given up meanwhile.  Whether others may have changed it: 1, 0; -EAGAIN: that is not known. */
static int is_changed(struct inode *i, uint64_t version)
{
	int r;

	if (version == i->claim_version || i->claim_version == CLAIM_ANY)
		return 0;
	if (!i->told)
		return 1;
	/* A mark has kept everybody else away: then it was ourselves, and no answer came. */
	i->asking = true;
	r = writeback_is_marked(i);
	i->asking = false;
	pthread_cond_broadcast(&i->changed);
	return r < 0 || i->grant != WRITE ? -EAGAIN : !r;
}

int inode_claim(struct inode *i)
{
	uint64_t version;
	bool gone;
	int r, changed;
	LOCKED(&i->lock);

	while (i->asking && i->claim)
		pthread_cond_wait(&i->changed, &i->lock);
	if (!i->claim)
		return 0;
	r = ask(i, WRITE, &version);
	if ((r < 0 && r != -ENOENT) || (r == 0 && i->grant != WRITE))
		return -EAGAIN;
	gone = r == -ENOENT;
	changed = gone ? 1 : is_changed(i, version);
	if (changed < 0)
		return -EAGAIN;
	i->claim = false;
	if (changed)
		claim_refused(i, gone);
	else if (i->claim_version != CLAIM_ANY)
		writeback_claimed(i);
	return 0;
}

/* ---- Giving back ---- */

bool holdings_are_stopping(struct client *c)
{
	LOCKED(&c->holdings.lock);
	return c->holdings.stopping;
}

int inode_acquire_end(struct inode *i)
{
	uint64_t end;
	int r;

	do {
		r = inode_acquire(i, true, NO_PAGES);
		if (r < 0)
			return r;
		while (i->recalling)
			wait_a_moment(i, NS_PER_S);
		i->recalling = true;
		end = inode_size(i);
		pages_leave(i, end);
		i->recalling = false;
		pthread_cond_broadcast(&i->changed);
	} while (i->grant != WRITE || inode_size(i) != end);
	return 0;
}

static void return_call(struct client *c, uint64_t inode, Wire__Grant left, uint64_t number)
{
	Wire__ReturnRequest request = WIRE__RETURN_REQUEST__INIT;
	struct arena arena;

	request.inode = inode;
	request.grant = left;
	request.recall = number;
	arena_init(&arena, 0);
	/* If it does not arrive the server takes the grant back by itself, and tells us so. */
	client_call(c, WIRE__OP__RETURN, &request, &arena, NULL);
	arena_free(&arena);
}

static void inode_release(struct inode *i, bool all, uint64_t number)
{
	Wire__Grant left = NONE;

	pthread_mutex_lock(&i->lock);
	while (i->recalling)
		pthread_cond_wait(&i->changed, &i->lock);
	passed_doubt(i);
	i->recalls++;
	i->contested = true;
	if (i->grant != NONE) {
		i->recalling = true;
		pthread_mutex_unlock(&i->lock);
		inode_drain(i);
		pthread_mutex_lock(&i->lock);
		left = !all && !i->writers ? READ : NONE;
		if (left == NONE)
			pages_leave(i, 0);
		if (i->grant > left)
			i->grant = left;
		if (left == NONE)
			window_drop(i);
		pthread_mutex_unlock(&i->lock);
		inode_drain(i);
		writeback_drained(i);
		pthread_mutex_lock(&i->lock);
	}
	/* From here on a server that restarts is not told any more that we have it: the one before may have given it to another,
	 * though its answer to the return never came. */
	i->at_server = left;
	pthread_mutex_unlock(&i->lock);
	return_call(i->client, i->number, left, number);
	pthread_mutex_lock(&i->lock);
	i->recalling = false;
	pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
}

/* The grant has gone already. */
static void pages_lose(struct client *c, uint64_t inode)
{
	struct inode *i;

	pages_forget(c, inode, 0, UINT64_MAX);
	i = inode_get(c, inode);
	if (!i)
		return;
	pages_removal(i);
	inode_unref(i);
}

/* The lock is held.  NULL: the write has been answered. */
static struct pages_wait *repair_find(struct inode *i, uint64_t repair)
{
	struct pages_wait *w = i->pages.repairs;

	while (w && w->repair != repair)
		w = w->next;
	return w;
}

static void pages_repair(struct client *c, const struct holding_job *job)
{
	struct inode *i = inode_get(c, job->inode);
	struct pages_wait *w;

	if (i && job->around)
		pages_removal(i);
	if (!i) {
		pages_forget(c, job->inode, job->pages.from, job->pages.to);
		return;
	}
	pthread_mutex_lock(&i->lock);
	pages_extend(i);
	pthread_mutex_unlock(&i->lock);
	pages_forget(c, job->inode, job->pages.from, job->pages.to);
	pthread_mutex_lock(&i->lock);
	w = repair_find(i, job->repair);
	if (w)
		w->ended = true;
	/* Another write may have begun before these pages went. */
	if (!w || job->around)
		pages_removal(i);
	pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
}

static void job_do(struct client *c, const struct holding_job *job)
{
	struct inode *i;

	if (job->repair) {
		pages_repair(c, job);
		return;
	}
	if (!job->number) {
		if (job->inode)
			pages_lose(c, job->inode);
		else
			lease_kernel_forgets(c);
		atomic_fetch_sub(&c->holdings.forgetting, 1);
		return;
	}
	atomic_fetch_add(&c->holdings.epoch, 1);
	i = inode_get(c, job->inode);
	if (!i) {
		return_call(c, job->inode, NONE, job->number);
		return;
	}
	inode_release(i, job->all, job->number);
	inode_unref(i);
}

static struct holding_job *job_take(struct holdings *g, struct holding_pool *p)
{
	struct holding_job *job;
	LOCKED(&g->lock);

	p->idle++;
	while (!p->first && !g->stopping)
		pthread_cond_wait(&p->work, &g->lock);
	p->idle--;
	job = p->first;
	if (job) {
		p->first = job->next;
		if (!p->first)
			p->end = &p->first;
		p->waiting--;
	}
	return job;
}

static void pool_run(struct client *c, enum holding_kind kind)
{
	struct holding_job *job;

	while ((job = job_take(&c->holdings, &c->holdings.pools[kind]))) {
		job_do(c, job);
		free(job);
	}
}

static void *returns_run(void *context)
{
	pool_run(context, HOLDING_RETURN);
	return NULL;
}

static void *forgets_run(void *context)
{
	pool_run(context, HOLDING_FORGET);
	return NULL;
}

/* The lock is held. */
static int thread_add(struct client *c, enum holding_kind kind)
{
	struct holding_pool *p = &c->holdings.pools[kind];
	int r = -pthread_create(&p->threads[p->thread_count], NULL, kind == HOLDING_RETURN ? returns_run : forgets_run, c);

	p->thread_count += r == 0;
	return r;
}

static int job_add(struct client *c, const struct holding_job *what)
{
	enum holding_kind kind = what->number ? HOLDING_RETURN : HOLDING_FORGET;
	struct holdings *g = &c->holdings;
	struct holding_pool *p = &g->pools[kind];
	struct holding_job *job;
	LOCKED(&g->lock);

	if (g->stopping) /* nothing is mounted any more that could remember anything, and who recalls it hears the goodbye */
		return 0;
	job = malloc(sizeof(*job));
	if (!job)
		return -ENOMEM;
	if (!what->number && !what->repair)
		atomic_fetch_add(&g->forgetting, 1);
	*job = *what;
	*p->end = job;
	p->end = &job->next;
	p->waiting++;
	if (p->waiting > p->idle && p->thread_count < GRANT_THREADS_MOST)
		thread_add(c, kind); /* without one more those there are take longer */
	pthread_cond_signal(&p->work);
	return 0;
}

int holding_recall(struct client *c, uint64_t inode, bool all, uint64_t number)
{
	return job_add(c, &(struct holding_job){ .inode = inode, .all = all, .number = number });
}

/* The lock is held, and given up meanwhile. */
static void repair_await(struct inode *i, uint64_t repair, int64_t most_ns)
{
	struct pages_wait w = { .next = i->pages.repairs, .repair = repair }, **at = &i->pages.repairs;
	int64_t until = monotonic_ns() + most_ns;

	i->pages.repairs = &w;
	while (!w.ended && monotonic_ns() < until)
		cond_wait_until(&i->changed, &i->lock, until);
	while (*at != &w)
		at = &(*at)->next;
	*at = w.next;
}

void holding_repair(struct inode *i, struct stretch s, bool around)
{
	struct holdings *g = &i->client->holdings;
	struct holding_job job = {
		.inode = i->number, .repair = atomic_fetch_add(&g->repairs, 1) + 1, .around = around, .pages = s
	};

	if (job_add(i->client, &job) < 0) {
		log_error("no memory to make the kernel forget what it has of inode %lu", (unsigned long)i->number);
		return;
	}
	if (around && atomic_fetch_add(&g->around, 1) < REPAIR_AROUND_MOST)
		repair_await(i, job.repair, REPAIR_AROUND_MOST_NS);
	else
		repair_await(i, job.repair, REPAIR_MOST_NS);
	if (around)
		atomic_fetch_sub(&g->around, 1);
}

void holding_written(struct client *c, uint64_t inode, Wire__Written *out)
{
	struct inode *i = inode_get(c, inode);

	if (!i)
		return;
	pthread_mutex_lock(&i->lock);
	if (inode_has_unstored(i)) {
		out->unstored = true;
		out->size = inode_size(i);
		out->mtime_ns = i->mtime_ns;
		out->ctime_ns = i->ctime_ns;
	}
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
}

/* ---- Losing ---- */

void holding_forget_pages(struct inode *i)
{
	pages_removal(i);
	if (job_add(i->client, &(struct holding_job){ .inode = i->number, .all = true }) < 0)
		log_error("no memory to make the kernel forget inode %lu", (unsigned long)i->number);
}

static void inode_lose(struct inode *i, void *context)
{
	bool had;

	pthread_mutex_lock(&i->lock);
	had = i->grant != NONE;
	passed_doubt(i);
	i->recalls++;
	i->contested = true;
	/* Also what is being given back, and not stored yet. */
	if ((i->grant == WRITE || i->at_server == WRITE) && inode_has_unstored(i) && !i->newborn)
		inode_claim_later(i);
	i->grant = i->at_server = NONE;
	window_drop(i);
	pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
	if (had)
		holding_forget_pages(i);
}

void holdings_lost(struct client *c)
{
	atomic_fetch_add(&c->holdings.epoch, 1);
	inodes_each(c, inode_lose, NULL);
}

static void answers_void(struct inode *i, void *context)
{
	LOCKED(&i->lock);
	passed_doubt(i);
	i->recalls++;
	i->granted_under = 0;
}

/* The kernel may make it wait for a request that waits for us: then what is left of it is done afterwards. */
static void names_forget(struct client *c)
{
	int64_t until = monotonic_ns() + FORGET_MOST_NS;

	if (job_add(c, &(struct holding_job){ .all = true }) < 0)
		log_error("volume %s: no memory to make the kernel forget", c->volume.name);
	while (atomic_load(&c->holdings.forgetting) && lease_in_contact(c) && monotonic_ns() < until)
		nanosleep(&(struct timespec){ .tv_nsec = MOMENT_NS }, NULL);
}

void holdings_restarted(struct client *c)
{
	atomic_fetch_add(&c->holdings.epoch, 1);
	inodes_each(c, answers_void, NULL);
	if (!lease_held(c))
		names_forget(c);
}

struct lapse {
	uint64_t number;
	bool idle; /* only those that nobody reads just now */
};

/* No lock of the inode's is taken: whoever has it may wait for a disk. */
static void inode_lapse(struct inode *i, void *context)
{
	const struct lapse *l = context;

	if (i->pages.lapse == l->number || (l->idle && atomic_load(&i->pages.reading)))
		return;
	i->pages.lapse = l->number;
	holding_forget_pages(i);
}

/* A read that waits for the server holds pages, and a thread that is to forget them waits for it.  Of these there may be more than
 * threads: so they come last. */
void holdings_lapsed(struct client *c, uint64_t number)
{
	inodes_each(c, inode_lapse, &(struct lapse){ .number = number, .idle = true });
	inodes_each(c, inode_lapse, &(struct lapse){ .number = number });
}

/* ---- Life ---- */

void holdings_init(struct holdings *g)
{
	pthread_mutex_init(&g->lock, NULL);
	for (int k = 0; k < HOLDING_KINDS; k++) {
		g->pools[k].end = &g->pools[k].first;
		pthread_cond_init(&g->pools[k].work, NULL);
	}
}

void holdings_free(struct holdings *g)
{
	for (int k = 0; k < HOLDING_KINDS; k++)
		pthread_cond_destroy(&g->pools[k].work);
	pthread_mutex_destroy(&g->lock);
}

int holdings_start(struct client *c)
{
	int r;
	LOCKED(&c->holdings.lock);

	r = thread_add(c, HOLDING_RETURN);
	return r < 0 ? r : thread_add(c, HOLDING_FORGET);
}

void holdings_stop(struct client *c)
{
	struct holdings *g = &c->holdings;

	pthread_mutex_lock(&g->lock);
	g->stopping = true;
	for (int k = 0; k < HOLDING_KINDS; k++)
		pthread_cond_broadcast(&g->pools[k].work);
	pthread_mutex_unlock(&g->lock);
	for (int k = 0; k < HOLDING_KINDS; k++)
		for (struct holding_pool *p = &g->pools[k]; p->thread_count > 0; p->thread_count--)
			pthread_join(p->threads[p->thread_count - 1], NULL);
}
