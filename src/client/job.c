#include "client/job.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

/* Bounds one commit message: with every segment its own extent it stays under
 * FRAME_MESSAGE_MAX. */
#define SEGMENTS_MAX 16384
#define FILES_MAX 4096
#define MEMORY_WAIT_NS (50 * NS_PER_MS)
#define SHOWN_MAX 64u            /* parts; a block is of a few */
#define SHOWN_BYTES (256u << 10) /* less is sent as quickly */
#define SHOW_AGAIN_NS (10 * NS_PER_S)

struct job_file {
	struct inode *inode;
	uint64_t number, failures; /* see inode.next_job, inode.failures */
	struct segment **segments; /* in the order of their offsets; they are in inode.storing */
	size_t segment_count, segment_capacity;
	int64_t mtime_ns, ctime_ns;
	struct buf extents; /* packed, for the commit */
	uint64_t end;
	bool damaged; /* what is on the local disk of it cannot be read */
};

struct job {
	struct job_file *files;
	size_t file_count, file_capacity, segment_count;
	uint64_t raw_bytes;
	uint8_t **loaded; /* segments that were read back from the local disk */
	size_t loaded_count;
	uint8_t *record;           /* the last one that is wanted in parts, verified */
	const struct spool *spool; /* where it is */
	uint64_t place;
};

/* ---- Gathering ---------------------------------------------------------------- */

static struct job_file *file_add(struct job *job, struct inode *i)
{
	if (job->file_count == job->file_capacity) {
		size_t capacity = job->file_capacity ? job->file_capacity * 2 : 16;
		struct job_file *files = realloc(job->files, capacity * sizeof(*files));
		if (!files)
			return NULL;
		job->files = files;
		job->file_capacity = capacity;
	}
	struct job_file *f = &job->files[job->file_count];
	*f = (struct job_file){ .inode = i };
	return f;
}

static bool is_full(const struct segment *s, uint32_t block_size) { return segment_end(s) % block_size == 0; }

/* Moves dirty segment k to storing and into the job; 0 or -ENOMEM with nothing moved. */
static int segment_take(struct job *job, struct job_file *f, size_t k)
{
	struct inode *i = f->inode;
	struct segment *s = i->dirty.at[k];
	if (f->segment_count == f->segment_capacity) {
		size_t capacity = f->segment_capacity ? f->segment_capacity * 2 : 4;
		struct segment **segments = realloc(f->segments, capacity * sizeof(struct segment *));
		if (!segments)
			return -ENOMEM;
		f->segments = segments;
		f->segment_capacity = capacity;
	}
	if (segments_add(&i->storing, s) < 0)
		return -ENOMEM;
	segments_take(&i->dirty, k);
	f->segments[f->segment_count++] = s;
	job->segment_count++;
	job->raw_bytes += s->length;
	return 0;
}

/* Where the oldest of what can be taken lies: who waits for it must not be overtaken by what is written anew before it. */
static size_t oldest(const struct inode *i)
{
	size_t found = i->dirty.count;
	for (size_t k = 0; k < i->dirty.count; k++) {
		const struct segment *s = i->dirty.at[k];
		if ((found == i->dirty.count || s->first_write < i->dirty.at[found]->first_write) &&
		    !segments_overlap(&i->storing, s->offset, segment_end(s)))
			found = k;
	}
	return found;
}

/* Takes from the inode (its lock held) what fits.  A full block makes a job of
 * its own.  Sets *closed when the job should take no more. */
static uint64_t segments_gather(struct job *job, struct job_file *f, uint32_t block_size, bool *closed)
{
	struct inode *i = f->inode;
	uint64_t cost = 0;
	for (size_t k = oldest(i); k < i->dirty.count;) {
		struct segment *s = i->dirty.at[k];
		bool full = is_full(s, block_size) && s->length >= block_size / 2;
		if (segments_overlap(&i->storing, s->offset, segment_end(s))) {
			k++;
			continue;
		}
		if (job->segment_count > 0 &&
		    (full || job->raw_bytes + s->length > block_size || job->segment_count >= SEGMENTS_MAX)) {
			*closed = true;
			break;
		}
		if (segment_take(job, f, k) < 0) {
			*closed = true;
			break;
		}
		cost += segment_cost(s);
		if (full) {
			*closed = true;
			break;
		}
	}
	return cost;
}

static bool has_full(const struct inode *i, uint32_t block_size)
{
	for (size_t k = 0; k < i->dirty.count; k++)
		if (is_full(i->dirty.at[k], block_size))
			return true;
	return false;
}

/* Everything left overlaps what is being stored. */
static bool is_blocked(const struct inode *i)
{
	for (size_t k = 0; k < i->dirty.count; k++)
		if (!segments_overlap(&i->storing, i->dirty.at[k]->offset, segment_end(i->dirty.at[k])))
			return false;
	return i->dirty.count > 0;
}

static void inode_gather(struct job *job, struct inode *i, bool *closed)
{
	uint32_t block_size = i->client->volume.block_size;
	struct job_file *f;
	uint64_t cost;
	pthread_mutex_lock(&i->lock);
	f = file_add(job, i);
	if (!f) {
		*closed = true;
		pthread_mutex_unlock(&i->lock);
		inode_unref(i);
		return;
	}
	writeback_gathering(i);
	cost = segments_gather(job, f, block_size, closed);
	if (f->segment_count > 0) {
		i->gathered = i->client->uploader.gatherings;
		f->number = i->next_job++;
		f->failures = i->failures;
		f->mtime_ns = i->mtime_ns;
		f->ctime_ns = i->ctime_ns;
		job->file_count++;
	}
	uploader_taken(i, cost, has_full(i, block_size), is_blocked(i));
	pthread_mutex_unlock(&i->lock);
	if (f->segment_count == 0) {
		free(f->segments);
		inode_unref(i);
	}
}

void job_gather(struct client *c, struct job **out)
{
	bool closed = false, ready = false;
	struct job *job = calloc(1, sizeof(*job));
	struct inode *i;
	if (!job)
		return;
	c->uploader.gatherings++;
	while (!closed && job->file_count < FILES_MAX && (i = uploader_next(c, job->file_count > 0, &ready))) {
		/* Written to meanwhile.  Taken twice, it would wait in this job for this job to end. */
		if (i->gathered == c->uploader.gatherings) {
			inode_unref(i);
			break;
		}
		inode_gather(job, i, &closed);
	}
	if (job->file_count > 0) {
		if (!ready) /* what somebody waits for is not limited, nor does it hold up the rest */
			uploader_paced(c, job->raw_bytes);
		*out = job;
		return;
	}
	free(job->files);
	free(job);
}

/* ---- Encoding ----------------------------------------------------------------- */

/* Segments that touch within a block become one extent. */
static size_t run_length(const struct job_file *f, size_t first, uint32_t block_size)
{
	size_t n = 1;
	while (first + n < f->segment_count && segment_end(f->segments[first + n - 1]) == f->segments[first + n]->offset &&
	       f->segments[first + n]->offset % block_size != 0)
		n++;
	return n;
}

static void loaded_free(struct job *job)
{
	for (size_t k = 0; k < job->loaded_count; k++)
		free(job->loaded[k]);
	free(job->loaded);
	job->loaded = NULL;
	job->loaded_count = 0;
	free(job->record);
	job->record = NULL;
}

/* Reads all of the record, of which other parts follow most often. */
static int part_read(struct job *job, const struct segment *s, uint8_t *into)
{
	const struct spool_record *record = &s->record;
	if (!job->record || job->spool != s->spool || job->place != record->place) {
		free(job->record);
		job->record = malloc(record->length);
		if (!job->record)
			return -ENOMEM;
		job->spool = s->spool;
		job->place = record->place;
		int r = spool_read_record(s->spool, record, job->record);
		if (r < 0) {
			free(job->record);
			job->record = NULL;
			return r;
		}
	}
	memcpy(into, job->record + (s->place - record->place), s->length);
	return 0;
}

/* The bytes of a segment, from the local disk if they are there. */
static int segment_load(struct job *job, struct job_file *f, const struct segment *s, struct iovec *out)
{
	uint8_t *data;
	int r;
	*out = (struct iovec){ s->data, s->length };
	if (!s->spool)
		return 0;
	if (!job->loaded)
		job->loaded = calloc(job->segment_count, sizeof(*job->loaded));
	data = job->loaded ? malloc(s->length) : NULL;
	if (!data)
		return -ENOMEM;
	job->loaded[job->loaded_count++] = data;
	out->iov_base = data;
	r = s->length == s->record.length ? spool_read_record(s->spool, &s->record, data) : part_read(job, s, data);
	if (r == 0 || r == -ENOMEM)
		return r;
	log_error("volume %s, inode %lu: synced data that is not uploaded, %u bytes at %lu, cannot be read back from the "
		  "write-back "
		  "directory; see \"The disk of a write-back directory is broken\" in docs/operations.md",
		  f->inode->client->volume.name, (unsigned long)f->inode->number, s->length, (unsigned long)s->offset);
	f->damaged = true;
	return -EIO;
}

static int run_encode(struct client *c, struct job *job, struct job_file *f, size_t first, size_t count, struct payload *out,
		      struct extent *e)
{
	struct iovec one, *raw = count == 1 ? &one : malloc(count * sizeof(*raw));
	int r = 0;
	if (!raw)
		return -ENOMEM;
	for (size_t k = 0; k < count && r == 0; k++)
		r = segment_load(job, f, f->segments[first + k], &raw[k]);
	if (r == 0)
		r = payload_add(out, raw, count, c->codec, c->codec_level, e);
	if (raw != &one)
		free(raw);
	return r;
}

static int job_encode(struct client *c, struct job *job, uint64_t object, struct payload *out)
{
	payload_clear(out);
	loaded_free(job);
	for (size_t k = 0; k < job->file_count; k++) {
		struct job_file *f = &job->files[k];
		buf_clear(&f->extents);
		for (size_t s = 0; s < f->segment_count;) {
			size_t n = run_length(f, s, c->volume.block_size);
			struct extent e = { 0 };
			int r = run_encode(c, job, f, s, n, out, &e);
			if (r < 0)
				return r;
			e.offset = f->segments[s]->offset;
			e.object = object;
			extent_pack(&f->extents, &e);
			f->end = extent_end(&e);
			s += n;
		}
		if (f->extents.failed)
			return -ENOMEM;
	}
	return 0;
}

/* ---- Put and commit -------------------------------------------------------------- */

static int put_send(struct client *c, uint64_t object, struct rpc_call *call, Wire__ObjectRequest *request, uint64_t bytes)
{
	struct arena arena;
	int r;
	call->op = WIRE__OP__OBJECT_PUT;
	call->request = &request->base;
	request->object = object;
	request->length = (uint32_t)bytes;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, call, &arena);
	arena_free(&arena);
	return r;
}

/* To a server on this host only words are sent of what is in memory that it can be shown: the first parts, as the
 * data of a large file comes first.  -EOPNOTSUPP: it is to be sent. */
static int put_show(struct client *c, uint64_t object, const struct iovec *parts, size_t count, uint64_t bytes)
{
	struct uploader *u = &c->uploader;
	Wire__ObjectRequest request = WIRE__OBJECT_REQUEST__INIT;
	Wire__MemoryPart shown[SHOWN_MAX], *list[SHOWN_MAX];
	struct rpc_call call = { 0 };
	size_t n = 0, shown_bytes = 0;
	int descriptor, r;
	if (!u->region || clock_steady_ns() < atomic_load(&u->region_not_before))
		return -EOPNOTSUPP;
	for (; n < count && n < SHOWN_MAX && region_holds(u->region, parts[n].iov_base, parts[n].iov_len); n++) {
		wire__memory_part__init(&shown[n]);
		shown[n].offset = region_offset(u->region, parts[n].iov_base);
		shown[n].length = (uint32_t)parts[n].iov_len;
		list[n] = &shown[n];
		shown_bytes += parts[n].iov_len;
	}
	if (shown_bytes < SHOWN_BYTES)
		return -EOPNOTSUPP;
	request.n_memory = n;
	request.memory = list;
	descriptor = region_descriptor(u->region);
	call.descriptor_out = &descriptor;
	call.bulk_out = parts + n;
	call.bulk_out_count = (int)(count - n);
	r = put_send(c, object, &call, &request, bytes);
	/* The last two: a server that does not know of memory finds no footer where the object ends, or nothing before it. */
	if (r != -EOPNOTSUPP && r != -EBADMSG && r != -EINVAL)
		return r;
	atomic_store(&u->region_not_before, clock_steady_ns() + SHOW_AGAIN_NS);
	return -EOPNOTSUPP;
}

static int job_put(struct client *c, uint64_t object, struct payload *payload)
{
	Wire__ObjectRequest request = WIRE__OBJECT_REQUEST__INIT;
	struct rpc_call call = { 0 };
	size_t count;
	int r = payload_finish(payload, object, &call.bulk_out, &count);
	if (r < 0)
		return r;
	r = put_show(c, object, call.bulk_out, count, payload->bytes);
	if (r != -EOPNOTSUPP)
		return r;
	call.bulk_out_count = (int)count;
	return put_send(c, object, &call, &request, payload->bytes);
}

/* Until the jobs made before this one, for the same files, have ended.  If one of
 * them failed, so does this: its data would lie behind a gap.  That one may be claimed, and all goes
 * well the next time (-EAGAIN): then nobody is to be told of an error. */
static int job_wait_turn(struct job *job)
{
	int error = 0;
	for (size_t k = 0; k < job->file_count; k++) {
		struct job_file *f = &job->files[k];
		LOCKED(&f->inode->lock);
		while (f->inode->done_jobs != f->number)
			pthread_cond_wait(&f->inode->changed, &f->inode->lock);
		if (f->inode->failures != f->failures)
			error = f->inode->error ? f->inode->error : -EAGAIN;
	}
	return error;
}

/* What was lost goes to an inode that is never there. */
static uint64_t file_lease(const struct job_file *f, uint64_t *inode)
{
	LOCKED(&f->inode->lock);
	if (f->number < f->inode->lost)
		*inode = 0;
	return f->inode->granted_under;
}

static int job_claim(struct job *job)
{
	int r = 0;
	for (size_t k = 0; k < job->file_count && r == 0; k++)
		r = inode_claim(job->files[k].inode);
	return r;
}

static int job_commit(struct client *c, struct job *job, uint64_t object, uint32_t size, struct arena *arena,
		      Wire__CommitReply **reply)
{
	Wire__CommitRequest request = WIRE__COMMIT_REQUEST__INIT;
	Wire__NewObject new_object = WIRE__NEW_OBJECT__INIT, *objects[1] = { &new_object };
	Wire__FileCommit *files = arena_take(arena, job->file_count * sizeof(*files));
	Wire__FileCommit **list = arena_take(arena, job->file_count * sizeof(*list));
	int r;
	if (!files || !list)
		return -ENOMEM;
	new_object.object = object;
	new_object.size = size;
	new_object.raw_bytes = (uint32_t)job->raw_bytes;
	request.n_objects = 1;
	request.objects = objects;
	for (size_t k = 0; k < job->file_count; k++) {
		struct job_file *f = &job->files[k];
		wire__file_commit__init(&files[k]);
		files[k].inode = f->inode->number;
		files[k].extents = (ProtobufCBinaryData){ .len = f->extents.len, .data = f->extents.data };
		files[k].size = f->end;
		files[k].mtime_ns = f->mtime_ns;
		files[k].mtime_given = true;
		files[k].ctime_ns = f->ctime_ns;
		files[k].lease = file_lease(f, &files[k].inode);
		list[k] = &files[k];
	}
	request.n_files = job->file_count;
	request.files = list;
	r = client_call(c, WIRE__OP__COMMIT, &request, arena, reply);
	if (r == 0 && (*reply)->n_files != job->file_count)
		return -EIO;
	return r;
}

static int job_store(struct client *c, struct job *job, struct payload *payload, struct arena *arena, Wire__CommitReply **reply)
{
	int r = -ESTALE;
	/* -ESTALE: the server ended our session and with it our ids; with new ones it goes through. */
	for (int tries = 0; r == -ESTALE && tries < 3; tries++) {
		uint64_t object;
		r = uploader_object_id(c, &object);
		if (r == 0)
			r = job_encode(c, job, object, payload);
		if (r == 0)
			r = job_put(c, object, payload);
		if (r == 0)
			r = job_wait_turn(job);
		if (r == 0)
			r = job_claim(job);
		if (r == 0)
			r = job_commit(c, job, object, (uint32_t)payload->bytes, arena, reply);
		if (r == -ESTALE)
			uploader_session_lost(c);
	}
	return r == -ESTALE ? -EIO : r;
}

/* ---- The end ------------------------------------------------------------------ */

static void file_stored(struct job_file *f, const Wire__FileCommitted *answer)
{
	struct inode *i = f->inode;
	uint64_t cost = 0, bytes = 0;
	struct attr attr;
	for (size_t k = 0; k < f->segment_count; k++) {
		segments_drop(&i->storing, f->segments[k]);
		cost += segment_cost(f->segments[k]);
		bytes += f->segments[k]->length;
		segment_free(f->segments[k]);
	}
	if (answer->status == 0 && attr_unpack(answer->attr.data, answer->attr.len, &attr) == 0) {
		inode_attr_set(i, &attr);
		i->claim_version = attr.version; /* nobody had changed it before this was stored */
	} else if (answer->status != ENOENT) {
		i->error = -(int)answer->status;
		passed_lost(i);
	}
	window_drop(i);
	uploader_stored(i, cost, bytes);
}

static bool is_awaited(const struct inode *i)
{
	LOCKED(&i->client->uploader.lock);
	return i->waiters > 0;
}

/* -ENOMEM: it still is in storing, and perhaps some of it in dirty as well, where it hides nothing newer. */
static int segment_restore(struct inode *i, struct segment *s)
{
	uint64_t before = i->dirty.bytes, old_cost = segment_cost(s), old_bytes = s->length;
	int64_t cost = 0;
	int r;
	segments_drop(&i->storing, s);
	r = segments_restore(&i->dirty, i->client->volume.block_size, s, &cost);
	if (r < 0)
		segments_add(&i->storing, s); /* there is room: it was there */
	else
		uploader_stored(i, old_cost, old_bytes);
	uploader_note(i, cost, (int64_t)(i->dirty.bytes - before), false);
	return r;
}

/* It may have been synced: until there is memory for it the job has not ended.  The lock is given up meanwhile. */
static void segment_give_back(const struct job_file *f, struct segment *s)
{
	struct inode *i = f->inode;
	bool said = false;
	while (!i->gone && f->number >= i->lost) {
		if (segment_restore(i, s) == 0)
			return;
		if (!said)
			log_error("volume %s, inode %lu: no memory to keep what could not be stored; it waits for some",
				  i->client->volume.name, (unsigned long)i->number);
		said = true;
		pthread_mutex_unlock(&i->lock);
		nanosleep(&(struct timespec){ .tv_nsec = MEMORY_WAIT_NS }, NULL);
		pthread_mutex_lock(&i->lock);
	}
	segments_drop(&i->storing, s); /* nobody misses it any more */
	uploader_stored(i, segment_cost(s), s->length);
	segment_free(s);
}

static void file_failed(struct job_file *f, int error)
{
	struct inode *i = f->inode;
	/* That is not the end of it: it is claimed first.  What is on the local disk is safe, and nobody's trouble but who waits. */
	if (error != -ESTALE && error != -EAGAIN && (!i->marked || i->stale || is_awaited(i)))
		i->error = error;
	if (f->damaged && !i->damaged) {
		i->damaged = true;
		inode_ref(i); /* no queue holds it any more, and it is not to be forgotten */
	}
	for (size_t k = 0; k < f->segment_count; k++)
		segment_give_back(f, f->segments[k]);
	i->failures++; /* at last: also for jobs that were made of what is back already */
}

static void file_end(struct job_file *f, int error, const Wire__FileCommitted *answer)
{
	struct inode *i = f->inode;
	uint32_t block_size = i->client->volume.block_size;
	pthread_mutex_lock(&i->lock);
	/* A refused file among accepted ones keeps its data like a failed job's. */
	if (!error && answer->status != 0 && answer->status != ENOENT)
		error = -(int)answer->status;
	if (error == -ESTALE && f->number >= i->lost) /* what was lost is not claimed again */
		inode_claim_later(i);
	if (error && !i->gone && f->number >= i->lost)
		file_failed(f, error);
	else
		file_stored(f, error ? &(Wire__FileCommitted){ .status = ENOENT } : answer); /* or nobody misses it */
	i->done_jobs++;
	uploader_taken(i, 0, has_full(i, block_size), is_blocked(i));
	writeback_tend(i);
	pthread_cond_broadcast(&i->changed);
	pthread_mutex_unlock(&i->lock);
	free(f->segments);
	buf_free(&f->extents);
	inode_unref(i);
}

void job_run(struct client *c, struct job *job, struct payload *payload)
{
	Wire__CommitReply *reply = NULL;
	struct arena arena;
	int error;
	arena_init(&arena, 0);
	error = job_store(c, job, payload, &arena, &reply);
	if (error) {
		uploader_failed(c, error);
		log_warn("cannot store data of %zu file(s), first inode %lu of volume %s: %s; it is kept and tried again",
			 job->file_count, (unsigned long)job->files[0].inode->number, c->volume.name, strerror(-error));
		/* Even then the turn must be waited for: jobs end in the order they were made. */
		job_wait_turn(job);
	} else {
		uploader_worked(c);
		atomic_fetch_add(&c->commits, 1);
	}
	for (size_t k = 0; k < job->file_count; k++)
		file_end(&job->files[k], error, error ? NULL : reply->files[k]);
	arena_free(&arena);
	loaded_free(job);
	free(job->files);
	free(job);
}
