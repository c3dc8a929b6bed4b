#include "client/writeback.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/units.h"
#include "client/state.h"

#define SIZE_PERCENT 50u
#define UNMARKED_AT_ONCE 1024u
#define FALL_BACK 1 /* of secure: the server has to store it */

struct spool_left {
	struct spool_left *next;
	struct inode *inode; /* a reference */
	struct spool *spool; /* likewise */
};

bool writeback_is_on(const struct client *c) { return c->writeback.folder != NULL; }

bool writeback_has_marks(const struct client *c) { return atomic_load(&c->writeback.marks) > 0; }

/* ---- Life ---- */

int writeback_id(struct client *c, const struct client_options *o, char *error, size_t error_size)
{
	return o->writeback_dir ? spool_id(o->writeback_dir, c->writeback.id, error, error_size) : 0;
}

static uint64_t limit_of(const struct client_options *o)
{
	unsigned percent = o->writeback_size.percent;
	struct statvfs fs;

	if (o->writeback_size.bytes)
		return o->writeback_size.bytes;
	if (statvfs(o->writeback_dir, &fs) < 0)
		return 0;
	return (uint64_t)fs.f_blocks * fs.f_frsize / 100 * (percent ? percent : SIZE_PERCENT);
}

int writeback_open(struct client *c, const struct client_options *o, char *error, size_t error_size)
{
	if (!o->writeback_dir)
		return 0;
	if (!c->store_known) {
		snprintf(error, error_size, "the server does not say whose data it serves; write-back needs a newer one");
		return -EPROTONOSUPPORT;
	}
	c->writeback.upload_limit = o->upload_limit;
	return spool_folder_open(o->writeback_dir, c->store, c->volume_id, limit_of(o), &c->writeback.folder, error, error_size);
}

void writeback_close(struct client *c)
{
	spool_folder_close(c->writeback.folder);
	c->writeback.folder = NULL;
}

/* ---- Writing; inode.lock is held ---- */

static int spool_take(struct inode *i)
{
	int r;

	if (i->spool)
		return i->stale ? -EAGAIN : 0;
	r = spool_new(i->client->writeback.folder, i->number, &i->spool);
	if (r < 0 && r != -ENOSPC)
		log_warn("cannot write to the write-back directory %s: %s; data is stored at the server instead",
			 spool_folder_path(i->client->writeback.folder), strerror(-r));
	return r;
}

int writeback_write(struct inode *i, uint64_t offset, const uint8_t *data, size_t size, int64_t *cost, size_t *written)
{
	uint32_t block_size = i->client->volume.block_size;
	int r = spool_take(i);

	*written = 0;
	while (r == 0 && *written < size) {
		uint64_t at = offset + *written;
		struct spool_record record;
		uint32_t n = block_size - (uint32_t)(at % block_size);

		if (n > size - *written)
			n = (uint32_t)(size - *written);
		r = spool_append(i->spool, at, data + *written, n, &record);
		if (r == 0) {
			r = segments_put_spooled(&i->dirty, at, n, i->spool, record.place, &record, i->writes, cost);
			if (r < 0)
				i->stale = true; /* the spool has what the file has not */
		}
		if (r == 0)
			*written += n;
	}
	return r;
}

static bool is_large(const struct segment *s, uint32_t block_size)
{
	return segment_end(s) % block_size == 0 && s->length >= block_size / 2;
}

int writeback_spool(struct inode *i, bool all)
{
	uint32_t block_size = i->client->volume.block_size;
	int64_t cost = 0;
	int r = 0;

	for (size_t k = 0; k < i->dirty.count && r == 0; k++) {
		struct segment *s = i->dirty.at[k];
		struct spool_record record;

		if (s->spool || !(all || is_large(s, block_size)))
			continue;
		r = spool_take(i);
		if (r == 0)
			r = spool_append(i->spool, s->offset, s->data, s->length, &record);
		if (r == 0)
			segment_set_spooled(s, i->spool, &record, &cost);
	}
	if (cost)
		uploader_note(i, cost, 0, false);
	return r;
}

void writeback_gathering(struct inode *i)
{
	if (i->spool && !i->stale && writeback_spool(i, true) < 0)
		i->stale = true;
}

static void left_add(struct inode *i, struct spool_left *left)
{
	struct writeback *w = &i->client->writeback;

	inode_ref(i);
	left->inode = i;
	left->spool = i->spool;
	i->unmarking++;
	LOCKED(&w->lock);
	left->next = w->left;
	w->left = left;
}

void writeback_tend(struct inode *i)
{
	struct spool_left *left = NULL;

	if (!i->spool || inode_has_unstored(i) || i->securing)
		return;
	if (i->told) {
		left = malloc(sizeof(*left));
		if (!left)
			return; /* whoever waits for it tries again */
		left_add(i, left);
		client_hasten(i->client);
	} else {
		spool_delete(i->spool);
		spool_unref(i->spool);
	}
	i->spool = NULL;
	i->marked = i->told = i->stale = false;
	pthread_cond_broadcast(&i->changed);
}

/* ---- Marks ---- */

/* 0, an errno of the mark, or -errno. */
static int mark_call(struct client *c, uint16_t op, Wire__Mark *mark)
{
	Wire__MarkRequest request = WIRE__MARK_REQUEST__INIT;
	Wire__MarkReply *reply;
	struct arena arena;
	int r;

	request.n_marks = 1;
	request.marks = &mark;
	arena_init(&arena, 0);
	r = client_call(c, op, &request, &arena, &reply);
	if (r == 0 && reply->n_status != 1)
		r = -EIO;
	else if (r == 0)
		r = (int)(reply->status[0] & INT32_MAX);
	arena_free(&arena);
	return r;
}

/* inode.lock is held, and given up meanwhile.  The spool stays: somebody secures it.  Where the grant was lost, whoever stores it
 * claims it first. */
static int mark(struct inode *i)
{
	Wire__Mark m = WIRE__MARK__INIT;
	int r;

	while (i->marking)
		pthread_cond_wait(&i->changed, &i->lock);
	if (i->marked || !inode_has_unstored(i))
		return 0;
	m.inode = i->number;
	m.generation = spool_generation(i->spool);
	m.size = inode_size(i);
	m.lease = i->granted_under;
	m.ctime_ns = i->ctime_ns;
	if (!i->told)
		atomic_fetch_add(&i->client->writeback.marks, 1);
	i->marking = i->told = true;
	pthread_mutex_unlock(&i->lock);
	r = mark_call(i->client, WIRE__OP__MARK, &m);
	pthread_mutex_lock(&i->lock);
	i->marking = false;
	i->marked = r == 0;
	pthread_cond_broadcast(&i->changed);
	if (r == ESTALE)
		inode_claim_later(i);
	return r == 0 || r == ENOENT ? 0 : FALL_BACK; /* a file that is gone needs none */
}

/* Its mark may have been given up while nobody heard of us.  If it cannot be made now, the next fsync does. */
void writeback_claimed(struct inode *i)
{
	if (!i->marked)
		return;
	i->marked = false;
	i->securing++;
	mark(i);
	i->securing--;
	writeback_tend(i);
}

int writeback_is_marked(struct inode *i)
{
	Wire__MarksRequest request = WIRE__MARKS_REQUEST__INIT;
	struct client *c = i->client;
	uint64_t generation;
	Wire__MarksReply *reply;
	struct arena arena;
	int r;

	if (!i->spool)
		return 0;
	generation = spool_generation(i->spool);
	request.writeback = (ProtobufCBinaryData){ .len = SPOOL_ID, .data = c->writeback.id };
	request.after = i->number - 1;
	arena_init(&arena, 0);
	pthread_mutex_unlock(&i->lock);
	r = client_call_at_once(c, WIRE__OP__MARKS, &request, &arena, &reply);
	if (r == 0)
		r = reply->n_marks && reply->marks[0]->inode == i->number && reply->marks[0]->mark &&
		    reply->marks[0]->mark->generation == generation;
	arena_free(&arena);
	pthread_mutex_lock(&i->lock);
	return r;
}

/* ---- fsync ---- */

static bool in_memory(const struct segments *s, uint64_t up_to_write)
{
	for (size_t k = 0; k < s->count; k++)
		if (!s->at[k]->spool && s->at[k]->first_write <= up_to_write)
			return true;
	return false;
}

/* inode.lock is held, and given up meanwhile.  All written up to `target` is in the spool, or stored. */
static int spool_all(struct inode *i, uint64_t target)
{
	for (;;) {
		if (i->error)
			return i->error;
		if (i->stale || i->damaged || i->lost > i->done_jobs || writeback_spool(i, true) < 0)
			return FALL_BACK;
		if (!in_memory(&i->storing, target))
			return 0;
		pthread_cond_wait(&i->changed, &i->lock);
	}
}

/* Likewise. */
static int unmarked_wait(struct inode *i)
{
	int64_t deadline = monotonic_ns() + i->client->timeout_ms * NS_PER_MS;

	while (i->unmarking) {
		if (monotonic_ns() > deadline || rpc_work_waited(i->client->rpc))
			return -EIO;
		cond_wait_until(&i->changed, &i->lock, monotonic_ns() + NS_PER_S);
	}
	return 0;
}

static int secure(struct inode *i)
{
	struct spool *s;
	uint64_t end;
	int r = spool_all(i, i->writes);

	if (r == 0)
		r = unmarked_wait(i);
	/* Stored, but marked until another fsync is done: what is noted so far would come back over it. */
	if (r || !i->spool || (!inode_has_unstored(i) && !i->told))
		return r;
	s = i->spool;
	if (i->stale || spool_note(s, inode_size(i), i->mtime_ns, i->ctime_ns) < 0)
		return FALL_BACK;
	end = spool_end(s);
	pthread_mutex_unlock(&i->lock);
	r = spool_sync(s, end);
	pthread_mutex_lock(&i->lock);
	if (r < 0) {
		log_error("cannot sync what is in the write-back directory %s: %s; data is stored at the server instead",
			  spool_folder_path(i->client->writeback.folder), strerror(-r));
		i->stale = true;
		return FALL_BACK;
	}
	return mark(i);
}

int writeback_fsync(struct inode *i)
{
	int r;

	pthread_mutex_lock(&i->lock);
	i->securing++;
	r = secure(i);
	i->securing--;
	/* Also one that came meanwhile: the data was dropped, because its claim or the new file was refused. */
	if (r == 0)
		r = i->error;
	if (r != FALL_BACK)
		i->error = 0;
	writeback_tend(i);
	pthread_mutex_unlock(&i->lock);
	return r == FALL_BACK ? writeback_settle(i) : r;
}

int writeback_settle(struct inode *i)
{
	int64_t deadline = monotonic_ns() + i->client->timeout_ms * NS_PER_MS;
	int r = inode_flush(i);

	if (r < 0 || !writeback_is_on(i->client))
		return r;
	LOCKED(&i->lock);
	while ((i->spool || i->unmarking) && r == 0) {
		writeback_tend(i);
		if (i->spool && inode_has_unstored(i)) {
			pthread_mutex_unlock(&i->lock);
			r = inode_flush(i);
			pthread_mutex_lock(&i->lock);
		} else if (i->spool || i->unmarking) {
			cond_wait_until(&i->changed, &i->lock, monotonic_ns() + NS_PER_S);
		}
		if (r == 0 && (monotonic_ns() > deadline || rpc_work_waited(i->client->rpc)))
			r = -EIO;
	}
	return r;
}

void writeback_drained(struct inode *i)
{
	LOCKED(&i->lock);

	while (!i->claim && !holdings_are_stopping(i->client) && (i->unmarking || (i->spool && !inode_has_unstored(i)))) {
		writeback_tend(i);
		if (i->unmarking || i->spool)
			cond_wait_until(&i->changed, &i->lock, monotonic_ns() + NS_PER_S);
	}
}

/* What is uploaded again after a crash brings the mtime of the last note with it. */
int writeback_mtime(struct inode *i, int64_t mtime_ns)
{
	int r = 0;

	pthread_mutex_lock(&i->lock);
	i->securing++;
	if (i->told && i->spool) {
		struct spool *s = i->spool;
		uint64_t end;

		r = i->stale ? -EIO : spool_note(s, inode_size(i), mtime_ns, i->ctime_ns);
		end = spool_end(s);
		pthread_mutex_unlock(&i->lock);
		if (r == 0)
			r = spool_sync(s, end);
		pthread_mutex_lock(&i->lock);
	}
	i->securing--;
	writeback_tend(i);
	pthread_mutex_unlock(&i->lock);
	return r < 0 ? writeback_settle(i) : 0;
}

/* ---- Taking marks away ---- */

static struct spool_left *left_take(struct writeback *w, size_t *count)
{
	struct spool_left *list, *last;
	LOCKED(&w->lock);

	list = last = w->left;
	for (*count = list ? 1 : 0; list && last->next && *count < UNMARKED_AT_ONCE; ++*count)
		last = last->next;
	if (list) {
		w->left = last->next;
		last->next = NULL;
	}
	return list;
}

static int unmark_call(struct client *c, const struct spool_left *list, size_t count)
{
	Wire__MarkRequest request = WIRE__MARK_REQUEST__INIT;
	struct arena arena;
	int r = -ENOMEM;

	arena_init(&arena, 0);
	Wire__Mark *marks = arena_take(&arena, count * sizeof(*marks)),
		   **pointers = arena_take(&arena, count * sizeof(*pointers));
	for (size_t k = 0; marks && pointers && k < count; k++, list = list->next) {
		wire__mark__init(&marks[k]);
		marks[k].inode = list->inode->number;
		marks[k].generation = spool_generation(list->spool);
		pointers[k] = &marks[k];
	}
	if (marks && pointers) {
		request.n_marks = count;
		request.marks = pointers;
		r = client_call(c, WIRE__OP__UNMARK, &request, &arena, NULL);
	}
	arena_free(&arena);
	return r;
}

static void left_end(struct spool_left *left)
{
	struct inode *i = left->inode;

	spool_delete(left->spool);
	spool_unref(left->spool);
	pthread_mutex_lock(&i->lock);
	i->unmarking--;
	atomic_fetch_sub(&i->client->writeback.marks, 1);
	pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
	free(left);
}

/* Whether there was something, and it could be done. */
static bool unmark_some(struct client *c)
{
	struct writeback *w = &c->writeback;
	size_t count;
	struct spool_left *list = left_take(w, &count), *next;

	if (!list)
		return false;
	if (unmark_call(c, list, count) < 0) { /* in a moment, again */
		LOCKED(&w->lock);
		for (next = list; next->next;)
			next = next->next;
		next->next = w->left;
		w->left = list;
		return false;
	}
	for (; list; list = next) {
		next = list->next;
		left_end(list);
	}
	return true;
}

/* What was lost, or left by an earlier mount, is asked for at once: only then can it be recalled, and others get it. */
static void claim_one(struct inode *i, void *context)
{
	struct client *c = context;
	bool wanted;

	pthread_mutex_lock(&i->lock);
	wanted = i->claim && i->marked;
	pthread_mutex_unlock(&i->lock);
	if (wanted && inode_claim(i) < 0)
		atomic_store(&c->writeback.unclaimed, true);
}

void writeback_tick(struct client *c)
{
	if (atomic_exchange(&c->writeback.unclaimed, false))
		inodes_each(c, claim_one, c);
	while (unmark_some(c))
		;
}

void writeback_finish(struct client *c)
{
	struct spool_left *list, *next;
	size_t count;

	writeback_tick(c);
	while ((list = left_take(&c->writeback, &count)))
		for (; list; list = next) { /* the next mount sees to it */
			next = list->next;
			spool_unref(list->spool);
			pthread_mutex_lock(&list->inode->lock);
			list->inode->unmarking--;
			pthread_mutex_unlock(&list->inode->lock);
			inode_unref(list->inode);
			free(list);
		}
}

/* ---- For people ---- */

struct listing {
	void (*each)(void *context, const struct client_unuploaded *file);
	void *context;
};

static void list_one(struct inode *i, void *context)
{
	const struct listing *l = context;
	struct client_unuploaded file = { .inode = i->number };
	bool spooled;

	pthread_mutex_lock(&i->lock);
	spooled = i->spool != NULL;
	file.bytes = i->dirty.bytes + i->storing.bytes;
	file.synced = i->marked;
	file.damaged = i->damaged;
	pthread_mutex_unlock(&i->lock);
	if (spooled)
		l->each(l->context, &file);
}

void client_writeback_list(struct client *c, void (*each)(void *context, const struct client_unuploaded *file), void *context)
{
	struct listing l = { each, context };

	if (writeback_is_on(c))
		inodes_each(c, list_one, &l);
}

uint64_t client_writeback_bytes(struct client *c) { return writeback_is_on(c) ? spool_folder_bytes(c->writeback.folder) : 0; }

/* ---- Taking over ---- */

struct adoption {
	struct client *client;
	struct intmap marks; /* inode -> generation, of those not found yet */
	struct inode *inode; /* whose spool is being read */
	int64_t cost;
	uint64_t files, bytes;
	bool unanswered; /* the server was waited for in vain; -EIO alone may be what it said */
	char *error;
	size_t error_size;
};

static int marks_ask(struct adoption *a)
{
	Wire__MarksRequest request = WIRE__MARKS_REQUEST__INIT;
	struct client *c = a->client;
	Wire__MarksReply *reply;
	bool more = true;
	int64_t began;
	int r = 0;

	request.writeback = (ProtobufCBinaryData){ .len = SPOOL_ID, .data = c->writeback.id };
	while (r == 0 && more) {
		struct arena arena;

		arena_init(&arena, 0);
		began = monotonic_ns();
		r = client_call(c, WIRE__OP__MARKS, &request, &arena, &reply);
		a->unanswered = r == -EIO && monotonic_ns() - began >= c->timeout_ms * NS_PER_MS;
		for (size_t k = 0; r == 0 && k < reply->n_marks; k++) {
			request.after = reply->marks[k]->inode;
			r = reply->marks[k]->mark && reply->marks[k]->inode && reply->marks[k]->mark->generation
				    ? intmap_set(&a->marks, request.after, (void *)(uintptr_t)reply->marks[k]->mark->generation)
				    : -EBADMSG;
		}
		more = r == 0 && reply->more && reply->n_marks;
		arena_free(&arena);
	}
	return r;
}

/* Cut at the blocks of the volume: these may be others than those it was written with. */
static int adopt_data(void *context, struct spool *s, uint64_t offset, const struct spool_record *record)
{
	struct adoption *a = context;
	uint32_t block_size = a->client->volume.block_size;
	int r = 0;

	for (uint32_t done = 0, n; done < record->length && r == 0; done += n) {
		n = block_size - (uint32_t)((offset + done) % block_size);
		if (n > record->length - done)
			n = record->length - done;
		r = segments_put_spooled(&a->inode->dirty, offset + done, n, s, record->place + done, record, a->inode->writes,
					 &a->cost);
	}
	return r;
}

static int adopt_inode(struct adoption *a, struct inode *i, uint64_t generation)
{
	struct client *c = a->client;
	struct spool_state state;
	int r;
	LOCKED(&i->lock);

	a->inode = i;
	a->cost = 0;
	i->writes++;
	r = spool_load(c->writeback.folder, i->number, generation, adopt_data, a, &state, &i->spool);
	if (r < 0)
		return r;
	i->marked = i->told = true;
	atomic_fetch_add(&c->writeback.marks, 1);
	i->mtime_ns = state.mtime_ns;
	i->ctime_ns = state.ctime_ns;
	/* The mark has kept everybody else away. */
	i->claim = true;
	i->claim_version = CLAIM_ANY;
	atomic_store(&c->writeback.unclaimed, true);
	a->files++;
	a->bytes += i->dirty.bytes;
	uploader_note(i, a->cost, (int64_t)i->dirty.bytes, false);
	writeback_tend(i);
	return 0;
}

static int adopt_one(void *context, uint64_t inode, uint64_t generation)
{
	struct adoption *a = context;
	struct client *c = a->client;
	struct inode *i;
	int r;

	if ((uintptr_t)intmap_get(&a->marks, inode) != generation) {
		log_info("volume %s: inode %" PRIu64 ": what is left in %s of it is stored, or was never synced", c->volume.name,
			 inode, spool_folder_path(c->writeback.folder));
		spool_folder_delete(c->writeback.folder, inode, generation);
		return 0;
	}
	intmap_remove(&a->marks, inode);
	i = inode_get_or_add(c, inode);
	if (!i)
		return -ENOMEM;
	pthread_mutex_lock(&c->table_lock);
	i->registered = true;
	pthread_mutex_unlock(&c->table_lock);
	r = adopt_inode(a, i, generation);
	inode_unref(i);
	if (r == -EBADMSG || r == -ENODATA) {
		snprintf(a->error, a->error_size,
			 "%s/%016" PRIx64 ".%016" PRIx64 ", synced data of inode %" PRIu64
			 " that is not uploaded, is damaged; see \"The disk of a write-back "
			 "directory is broken\" in docs/operations.md",
			 spool_folder_path(c->writeback.folder), inode, generation, inode);
		r = -EBADMSG;
	}
	return r;
}

static void marks_explain(const struct adoption *a, int r)
{
	char waited[UNITS_TEXT];

	if (a->unanswered)
		snprintf(a->error, a->error_size,
			 "the server did not say within %s what is not uploaded: after its start it waits for the mounts it had "
			 "before; mount again, or with a longer --timeout",
			 duration_format(waited, (uint64_t)a->client->timeout_ms / 1000));
	else
		snprintf(a->error, a->error_size, "the server cannot be asked what is not uploaded: %s", strerror(-r));
}

int writeback_adopt(struct client *c, char *error, size_t error_size)
{
	struct adoption a = { .client = c, .error = error, .error_size = error_size };
	int r = writeback_is_on(c) ? marks_ask(&a) : 0;

	if (writeback_is_on(c) && r == 0) {
		error[0] = 0;
		r = spool_folder_each(c->writeback.folder, adopt_one, &a);
		if (r < 0 && !error[0])
			snprintf(error, error_size, "%s cannot be read: %s", spool_folder_path(c->writeback.folder),
				 strerror(-r));
	} else if (r < 0) {
		marks_explain(&a, r);
	}
	if (r == 0 && a.marks.used) {
		snprintf(error, error_size,
			 "synced data of %zu files that is not uploaded should be in %s and is not; put it back, or give it up "
			 "with epochfs writeback drop",
			 a.marks.used, spool_folder_path(c->writeback.folder));
		r = -ENODATA;
	}
	intmap_free(&a.marks);
	if (r == 0 && a.files) {
		char files[UNITS_TEXT], bytes[UNITS_TEXT];

		log_info("volume %s: %s, %s, in %s not uploaded; that goes on now", c->volume.name,
			 counted_format(files, a.files, "file"), size_format(bytes, a.bytes),
			 spool_folder_path(c->writeback.folder));
	}
	return r;
}
