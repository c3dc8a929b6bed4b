#include "client/replica.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"
#include "meta/marks.h"

#define AWAIT_NS (5 * NS_PER_S)
#define MARK_LOOK_NS (50 * NS_PER_MS)

/* ---- How old it is ---- */

int64_t replica_age_ns(const struct replica *r)
{
	int64_t age = clock_steady_ns() - atomic_load(&r->as_of_steady_ns);

	return age > 0 ? age : 0;
}

/* For how long what is answered now may be kept; -EIO: it is too old to be answered. */
static int leave_ms(struct client *c, uint32_t *out)
{
	struct replica *r = c->replica;
	int64_t left = r->max_lag_ns - replica_age_ns(r);

	if (left <= 0) {
		if (!atomic_exchange(&r->refusing, true))
			log_error("volume %s: the replica has not heard of the server for more than %lld s and serves nothing "
				  "any more until it does; see \"A replica is stale\" in docs/operations.md",
				  c->volume.name, (long long)(r->max_lag_ns / NS_PER_S));
		return -EIO;
	}
	*out = (uint32_t)(left / NS_PER_MS);
	return 0;
}

void client_replica_status(struct client *c, struct client_replica *out)
{
	struct replica *r = c->replica;

	*out = (struct client_replica){ 0 };
	if (!r)
		return;
	LOCKED(&r->lock);
	*out = (struct client_replica){ .is_replica = true,
					.following = !r->away && !r->foreign && !r->copying,
					.copying = r->copying,
					.foreign = r->foreign,
					.batch = r->head.batch,
					.age_ms = replica_age_ns(r) / NS_PER_MS,
					.max_lag_ms = r->max_lag_ns / NS_PER_MS };
	snprintf(out->folder, sizeof(out->folder), "%s", r->folder);
}

/* ---- Answers ---- */

static int space_answer(struct replica *r, struct arena *arena, void *reply)
{
	Wire__StatfsReply *space = arena_take(arena, sizeof(*space));

	if (!space)
		return -ENOMEM;
	wire__statfs_reply__init(space);
	LOCKED(&r->lock);
	space->total_bytes = r->space.total_bytes;
	space->free_bytes = r->space.free_bytes;
	space->used_bytes = r->space.used_bytes;
	space->total_files = r->space.total_files;
	space->free_files = r->space.free_files;
	space->block_size = r->space.block_size;
	*(Wire__StatfsReply **)reply = space;
	return 0;
}

static void leave_fill(uint16_t op, ProtobufCMessage *reply, uint32_t ms)
{
	if (op == WIRE__OP__LOOKUP || op == WIRE__OP__GETATTR || op == WIRE__OP__RESOLVE)
		((Wire__EntryReply *)reply)->valid_ms = ms;
	else if (op == WIRE__OP__READDIR)
		((Wire__ReaddirReply *)reply)->valid_ms = ms;
}

int replica_call(struct client *c, uint16_t op, const void *request, struct arena *arena, void *reply)
{
	const struct op_info *info = op_find(op);
	ProtobufCMessage *answer = NULL;
	uint32_t ms = 0;
	int r = leave_ms(c, &ms);

	if (op == WIRE__OP__STATFS)
		return space_answer(c->replica, arena, reply);
	if (!info || info->kind != OP_READ)
		return -EROFS;
	if (r == 0)
		r = meta_read(c->replica->meta, &c->replica->who, op, request, arena, &answer);
	if (r < 0)
		return r == -EBADMSG ? -EIO : r;
	leave_fill(op, answer, op == WIRE__OP__READDIR && meta_has_marks(c->replica->meta) ? 0 : ms);
	if (reply)
		*(ProtobufCMessage **)reply = answer;
	return 0;
}

/* A mark on a file: its newest content is in another mount's write-back directory only.  Its size is known, no more; and nothing of
 * it may be kept. */
static int mark_overlay(struct replica *r, struct entry *e, bool *marked)
{
	Wire__MarkRecord *mark;
	struct arena arena;
	int error;

	*marked = false;
	if (!meta_has_marks(r->meta) || !S_ISREG(e->attr.mode))
		return 0;
	arena_init(&arena, 0);
	error = meta_mark_find(r->meta, r->who.volume, e->attr.inode, &arena, &mark);
	if (error == 0) {
		*marked = true;
		/* It was that long when it was marked; what was stored since may be longer. */
		if (mark->size > e->attr.size)
			e->attr.size = mark->size;
		e->valid_ms = 0;
	}
	arena_free(&arena);
	return error == -ENOENT ? 0 : error;
}

/* It is still marked. */
static void mark_report(struct client *c, uint64_t inode)
{
	Wire__MarkRecord *mark;
	struct arena arena;

	arena_init(&arena, 0);
	if (meta_mark_find(c->replica->meta, c->replica->who.volume, inode, &arena, &mark) == 0)
		log_error("volume %s, inode %lu: its newest content is not uploaded from %s:%s yet; a read got EIO",
			  c->volume.name, (unsigned long)inode, mark->host, mark->mount_point);
	arena_free(&arena);
}

static int replica_attr(struct client *c, uint64_t inode, struct entry *out, bool *marked)
{
	struct replica *r = c->replica;
	struct entry e = { 0 };
	int error = leave_ms(c, &e.valid_ms);

	if (error == 0)
		error = replica_getattr(r->meta, r->who.volume, inode, &e.attr);
	if (error == 0)
		error = mark_overlay(r, &e, marked);
	if (error == 0)
		*out = e;
	return error == -EBADMSG ? -EIO : error;
}

int replica_await_unmarked(struct client *c, uint64_t inode, int64_t deadline_ns)
{
	struct replica *r = c->replica;
	struct entry e;
	bool marked = false;
	int error = replica_attr(c, inode, &e, &marked);

	while (error == 0 && marked && monotonic_ns() < deadline_ns && !atomic_load(&r->stopping)) {
		int64_t moment = monotonic_ns() + MARK_LOOK_NS;

		pthread_mutex_lock(&r->lock);
		cond_wait_until(&r->current, &r->lock, moment < deadline_ns ? moment : deadline_ns);
		pthread_mutex_unlock(&r->lock);
		error = replica_attr(c, inode, &e, &marked);
	}
	if (error == 0 && marked) {
		mark_report(c, inode);
		error = -EIO;
	}
	return error;
}

int replica_find(struct client *c, uint64_t parent, const char *name, struct entry *out)
{
	struct replica *r = c->replica;
	struct entry e = { 0 };
	bool marked = false;
	int error = leave_ms(c, &e.valid_ms);

	if (error == 0)
		error = replica_lookup(r->meta, r->who.volume, parent, name, strlen(name), &e.attr);
	if (error == 0)
		error = mark_overlay(r, &e, &marked);
	*out = e; /* of a name that is not there: for how long */
	return error == -EBADMSG ? -EIO : error;
}

int replica_entry(struct client *c, uint64_t inode, struct entry *out)
{
	bool marked = false;

	return replica_attr(c, inode, out, &marked);
}

int replica_refresh(struct inode *i)
{
	struct entry e;
	bool marked = false;
	int r = replica_attr(i->client, i->number, &e, &marked);

	/* Removed elsewhere, and freed; somebody may have it open. */
	if (r == -ENOENT && i->attr_known && i->window.known && i->window.from == 0 && i->window.to == UINT64_MAX)
		return 0;
	if (r < 0)
		return r == -ENOENT ? -ESTALE : r;
	if (!S_ISREG(e.attr.mode))
		return S_ISDIR(e.attr.mode) ? -EISDIR : -EINVAL;
	if (marked)
		return -EBUSY;
	if (i->attr_known && i->attr.version != e.attr.version)
		window_drop(i);
	i->attr = e.attr;
	i->attr_known = true;
	return 0;
}

void replica_await(struct client *c)
{
	struct replica *r = c->replica;
	int64_t since = clock_steady_ns(), until = monotonic_ns() + AWAIT_NS;
	LOCKED(&r->lock);

	while (atomic_load(&r->as_of_steady_ns) < since && !atomic_load(&r->stopping))
		if (cond_wait_until(&r->current, &r->lock, until) < 0)
			break;
}

/* ---- Life ---- */

/* A file in the folder, which tells that it is a replica's; made if it is missing and nothing else is there. */
static int mark_open(const char *folder)
{
	CLEANUP_FREE char *mark = NULL, *data = NULL;
	int fd;

	if (asprintf(&mark, "%s/replica.lock", folder) < 0 || asprintf(&data, "%s/data.mdb", folder) < 0)
		return -ENOMEM;
	fd = open(mark, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		if (access(data, F_OK) == 0)
			return -ENOTEMPTY; /* a server's, for example */
		fd = open(mark, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	}
	return fd < 0 ? -errno : fd;
}

/* The folder of the volume, for this mount alone. */
static int folder_take(struct replica *r, const char *dir, const char *volume, char *error, size_t error_size)
{
	int failed = 0;

	if (strchr(volume, '/') || volume[0] == '.') {
		snprintf(error, error_size, "there is no volume %s", volume);
		return -ENOENT;
	}
	if (asprintf(&r->folder, "%s/%s", dir, volume) < 0) {
		r->folder = NULL;
		return -ENOMEM;
	}
	if ((mkdir(dir, 0700) < 0 && errno != EEXIST) || (mkdir(r->folder, 0700) < 0 && errno != EEXIST))
		failed = -errno;
	if (failed == 0)
		r->in_use = failed = mark_open(r->folder);
	if (failed < 0) {
		snprintf(error, error_size, "cannot keep a replica in %s: %s", r->folder,
			 failed == -ENOTEMPTY ? "it holds something else; name another --replica-dir" : strerror(-failed));
		return failed;
	}
	if (flock(r->in_use, LOCK_EX | LOCK_NB) == 0)
		return 0;
	snprintf(error, error_size, "the replica in %s is in use by another mount; name another --replica-dir", r->folder);
	return -EBUSY;
}

static void head_take(struct replica *r, const struct replica_head *head)
{
	r->head = *head;
	r->space = (struct client_space){ .total_bytes = head->space[0],
					  .free_bytes = head->space[1],
					  .total_files = head->space[2],
					  .free_files = head->space[3],
					  .used_bytes = head->space[4],
					  .block_size = 4096 };
}

/* By the clock on the wall: the file may be from before the machine was started. */
static void age_take(struct replica *r)
{
	int64_t age = clock_wall_ns() - r->head.as_of_ns;

	atomic_store(&r->as_of_steady_ns, clock_steady_ns() - (age > 0 ? age : 0));
}

int replica_prepare(struct client *c, const struct client_options *o, char *error, size_t error_size)
{
	struct replica *r = calloc(1, sizeof(*r));
	struct replica_head head;
	int failed;

	if (!r)
		return -ENOMEM;
	c->replica = r;
	r->in_use = -1;
	pthread_mutex_init(&r->lock, NULL);
	cond_init_monotonic(&r->current);
	news_init(&r->news);
	r->max_lag_ns = (o->replica_max_lag_ms > 0 ? o->replica_max_lag_ms : REPLICA_LAG_MOST_MS) * NS_PER_MS;
	failed = folder_take(r, o->replica_dir, o->volume, error, error_size);
	if (failed)
		return failed;
	failed = replica_open(r->folder, &r->meta, &head);
	if (failed == 0)
		head_take(r, &head);
	else
		r->meta = NULL;
	if (failed == 0 || failed == -ENOENT)
		return 0;
	snprintf(error, error_size, "cannot use the replica in %s: %s", r->folder, strerror(-failed));
	return failed;
}

bool replica_can_do_without_server(const struct client *c) { return c->replica && c->replica->meta && c->replica->head.whole; }

int replica_hello(struct client *c, const struct client_options *o, struct arena *arena, Wire__HelloReply *out, char *error,
		  size_t error_size)
{
	struct replica *r = c->replica;
	Wire__ResolveRequest resolve = WIRE__RESOLVE_REQUEST__INIT;
	struct caller who = { .volume = r->head.volume, .root = ROOT_INODE };
	ProtobufCMessage *reply;
	struct attr a;
	int failed = replica_volume(r->meta, r->head.volume, arena, &out->volume);

	if (failed == 0) {
		resolve.path.data = (uint8_t *)(o->subdir ? o->subdir : "");
		resolve.path.len = strlen((const char *)resolve.path.data);
		failed = meta_read(r->meta, &who, WIRE__OP__RESOLVE, &resolve.base, arena, &reply);
	}
	if (failed == 0)
		failed = attr_unpack(((Wire__EntryReply *)reply)->attr.data, ((Wire__EntryReply *)reply)->attr.len, &a);
	if (failed == 0 && !S_ISDIR(a.mode))
		failed = -ENOTDIR;
	if (failed < 0) {
		snprintf(error, error_size, "the server cannot be reached, and the replica in %s has no %s: %s", r->folder,
			 o->subdir && o->subdir[0] ? o->subdir : "volume", strerror(-failed));
		return failed;
	}
	out->root = a.inode;
	out->store = (ProtobufCBinaryData){ .len = sizeof(r->head.history), .data = r->head.history };
	return 0;
}

static bool is_of(const struct replica_head *head, const Wire__HelloReply *hello)
{
	return head->volume == hello->volume->id && head->name_seed == hello->name_seed &&
	       hello->store.len == sizeof(head->history) && memcmp(hello->store.data, head->history, sizeof(head->history)) == 0;
}

/* A new file, if there is none or it is of other data. */
static int file_bind(struct replica *r, const Wire__HelloReply *hello, char *error, size_t error_size)
{
	struct replica_head head = { .name_seed = hello->name_seed, .volume = hello->volume->id };
	int failed;

	if (r->meta && is_of(&r->head, hello))
		return 0;
	if (r->meta)
		log_info("the replica in %s is of other data than the server has; it is made anew", r->folder);
	meta_close(r->meta);
	r->meta = NULL;
	memcpy(head.history, hello->store.data, sizeof(head.history));
	failed = replica_make(r->folder, &head, &r->meta, error, error_size);
	if (failed < 0)
		r->meta = NULL;
	else
		head_take(r, &head);
	return failed;
}

/* The volume's settings, for a mount without a server. */
static int volume_keep(struct replica *r, const Wire__Volume *volume)
{
	struct replica_update u;
	int failed = replica_begin(&u, r->meta, r->head.volume);

	return failed < 0 ? failed : replica_commit(&u, &r->head, volume);
}

int replica_bind(struct client *c, const Wire__HelloReply *hello, char *error, size_t error_size)
{
	struct replica *r = c->replica;
	int64_t begun = monotonic_ns();
	int failed = 0;

	if (!hello) {
		age_take(r);
		r->who = (struct caller){ .volume = r->head.volume, .root = c->root, .read_only = true };
		r->away = true;
		log_warn("volume %s: the server cannot be reached; the replica in %s is served, which is %lld s old",
			 c->volume.name, r->folder, (long long)(replica_age_ns(r) / NS_PER_S));
		return 0;
	}
	if (!hello->volume || hello->store.len != sizeof(r->head.history)) {
		snprintf(error, error_size, "the server knows no replicas; install the same release there");
		return -EPROTONOSUPPORT;
	}
	failed = file_bind(r, hello, error, error_size);
	if (failed < 0)
		return failed;
	age_take(r);
	r->who = (struct caller){ .volume = r->head.volume, .root = c->root, .read_only = true };
	failed = volume_keep(r, hello->volume);
	if (failed == 0)
		failed = replica_sync(c);
	if (failed < 0) {
		snprintf(error, error_size, "cannot copy the namespace to %s: %s", r->folder, strerror(-failed));
		return failed;
	}
	log_info("volume %s: the replica in %s is at batch %llu, after %lld ms", c->volume.name, r->folder,
		 (unsigned long long)r->head.batch, (long long)((monotonic_ns() - begun) / NS_PER_MS));
	return 0;
}

int replica_start(struct client *c)
{
	struct replica *r = c->replica;
	int failed = news_start(c);

	if (failed == 0)
		failed = -pthread_create(&r->thread, NULL, replica_run, c);
	r->started = failed == 0;
	return failed;
}

void replica_stop(struct client *c)
{
	struct replica *r = c->replica;

	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	atomic_store(&r->stopping, true);
	pthread_cond_broadcast(&r->current);
	pthread_mutex_unlock(&r->lock);
	news_bar(c);
	if (r->started) {
		rpc_cancel(c->rpc, &r->call);
		pthread_join(r->thread, NULL);
	}
	r->started = false;
	news_stop(c);
}

void replica_free(struct client *c)
{
	struct replica *r = c->replica;

	if (!r)
		return;
	c->replica = NULL;
	meta_close(r->meta);
	news_free(&r->news);
	free(r->bulk);
	if (r->in_use >= 0)
		close(r->in_use);
	pthread_cond_destroy(&r->current);
	pthread_mutex_destroy(&r->lock);
	free(r->folder);
	free(r);
}
