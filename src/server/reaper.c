#include "server/reaper.h"
#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/units.h"
#include "block/object.h"
#include "meta/content.h"
#include "meta/reap.h"
#include "server/state.h"
#include "server/stream.h"

#define EVERY_NS NS_PER_S
#define GATHER_NS (20 * NS_PER_MS) /* after being woken: what comes in bursts is done at once */
#define REAP_EXTENTS 2000          /* a mutation: short enough for others not to notice */
#define DELETE_AT_ONCE 256

/* ---- Files ---- */

static bool stopping(struct server *s)
{
	LOCKED(&s->reaper.lock);
	return s->reaper.stopping;
}

static void reap_files(struct server *s)
{
	struct reap_counts done = { 0 };
	bool more = true;
	int r = 0;

	if (!sessions_allow_reaping(s))
		return;
	while (more && !r && !stopping(s))
		r = reap_pass(s->meta, clock_read(&s->clock), REAP_EXTENTS, &done, &more);
	if (r && r != s->reaper.reap_error)
		log_error("cannot free deleted files: %s", strerror(-r));
	s->reaper.reap_error = r;
	if (done.files)
		log_debug("freed %llu deleted files", (unsigned long long)done.files);
}

/* ---- Objects ---- */

static int due_objects(struct server *s, int64_t until_ns, uint64_t *objects, size_t *count)
{
	struct view view;
	int r = meta_view_begin(s->meta, &view);

	if (r)
		return r;
	r = objects_due(&view, until_ns, objects, DELETE_AT_ONCE, count);
	meta_view_end(&view);
	return r;
}

/* Those that could be deleted come first afterwards. */
static int delete_objects(struct server *s, uint64_t *objects, size_t *count, uint64_t *bytes)
{
	size_t done = 0;
	int first = 0;

	for (size_t i = 0; i < *count; i++) {
		char key[OBJECT_KEY_TEXT];
		uint64_t size = 0;
		int r;

		store_stat(s->store, object_key(key, objects[i]), &size);
		r = gateway_delete(s, objects[i]);
		if (!r) {
			objects[done++] = objects[i];
			*bytes += size;
		} else if (!first) {
			first = r;
		}
	}
	*count = done;
	return first;
}

int reaper_delete_due(struct server *s, int64_t grace_ns, uint64_t *objects, uint64_t *bytes)
{
	int64_t until_ns = clock_read(&s->clock) - grace_ns;
	uint64_t ids[DELETE_AT_ONCE];
	struct caller who = CALLER_SERVER;
	size_t count = DELETE_AT_ONCE;
	int r = 0;

	while (!r && count == DELETE_AT_ONCE && !stopping(s)) {
		Wire__ObjectList list = WIRE__OBJECT_LIST__INIT;
		struct arena arena;
		int failed;

		r = due_objects(s, until_ns, ids, &count);
		if (r || !count)
			break;
		failed = delete_objects(s, ids, &count, bytes);
		list.objects = ids;
		list.n_objects = count;
		arena_init(&arena, 0);
		r = count ? meta_mutate(s->meta, &who, WIRE__OP__OBJECTS_DELETED, &list.base, &arena, NULL) : 0;
		arena_free(&arena);
		if (!r)
			*objects += count;
		if (failed)
			return failed;
	}
	return r;
}

static void delete_objects_due(struct server *s)
{
	uint64_t objects = 0, bytes = 0;
	int r = reaper_delete_due(s, stream_grace_ns(s), &objects, &bytes);

	if (r && r != s->reaper.delete_error)
		log_error("cannot delete freed objects: %s", strerror(-r));
	s->reaper.delete_error = r;
	if (objects)
		log_debug("deleted %llu objects", (unsigned long long)objects);
}

/* ---- A full store ---- */

#define RELIEF_FILES 256 /* made due in one step */
#define RELIEF_WAIT_S 10

/* The volume whose trash holds the oldest file, and a time that makes a step's
 * worth of it due; -ENOENT: there is no trash. */
static int oldest_trash(struct server *s, struct arena *arena, Wire__TrashEmptyRequest *out)
{
	struct caller who = CALLER_SERVER;
	Wire__Empty all = WIRE__EMPTY__INIT;
	Wire__VolumeListReply *volumes;
	int64_t oldest = INT64_MAX;
	int r = meta_read(s->meta, &who, WIRE__OP__VOLUME_LIST, &all.base, arena, (ProtobufCMessage **)&volumes);

	for (size_t i = 0; !r && i < volumes->n_volumes; i++) {
		Wire__TrashListRequest list = WIRE__TRASH_LIST_REQUEST__INIT;
		Wire__TrashListReply *trash;

		list.volume = volumes->volumes[i]->name;
		list.max = RELIEF_FILES;
		r = meta_read(s->meta, &who, WIRE__OP__TRASH_LIST, &list.base, arena, (ProtobufCMessage **)&trash);
		if (r || !trash->n_entries || trash->entries[0]->deleted_ns >= oldest)
			continue;
		oldest = trash->entries[0]->deleted_ns;
		out->volume = list.volume;
		out->before_ns = trash->entries[trash->n_entries - 1]->deleted_ns + 1;
	}
	return r ? r : oldest == INT64_MAX ? -ENOENT : 0;
}

/* One step: 0 if something was made due. */
static int empty_oldest(struct server *s)
{
	struct caller who = CALLER_SERVER;
	Wire__TrashEmptyRequest request = WIRE__TRASH_EMPTY_REQUEST__INIT;
	struct arena arena;
	char date[UNITS_TEXT];
	int r;

	arena_init(&arena, 0);
	r = oldest_trash(s, &arena, &request);
	if (!r)
		r = meta_mutate(s->meta, &who, WIRE__OP__TRASH_EMPTY, &request.base, &arena, NULL);
	if (!r)
		log_warn("the store is full: what was deleted from volume %s up to %s is freed before its time", request.volume,
			 date_format(date, request.before_ns));
	arena_free(&arena);
	return r;
}

static bool store_has(struct server *s, uint64_t bytes)
{
	struct store_space space;

	return !space_of_store_now(s, &space) && space_usable(&space) >= bytes;
}

static void relieve(struct server *s)
{
	uint64_t wanted, objects = 0, bytes = 0;

	pthread_mutex_lock(&s->reaper.lock);
	wanted = s->reaper.relief_wanted;
	s->reaper.relief_wanted = 0;
	pthread_mutex_unlock(&s->reaper.lock);
	if (!wanted)
		return;
	do {
		reap_files(s);
		reaper_delete_due(s, 0, &objects, &bytes);
	} while (!store_has(s, wanted) && !stopping(s) && sessions_allow_reaping(s) && !empty_oldest(s));
	LOCKED(&s->reaper.lock);
	s->reaper.reliefs++;
	pthread_cond_broadcast(&s->reaper.relieved);
}

void reaper_relieve(struct server *s, uint64_t bytes)
{
	struct reaper *r = &s->reaper;
	struct timespec until;
	uint64_t before;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += RELIEF_WAIT_S;
	LOCKED(&r->lock);
	if (!r->started || r->stopping)
		return;
	if (r->relief_wanted < bytes)
		r->relief_wanted = bytes;
	/* One under way may have looked before we asked. */
	before = r->reliefs;
	atomic_store(&r->woken, true);
	pthread_cond_signal(&r->wake);
	while (r->relief_wanted || r->reliefs == before)
		if (r->stopping || pthread_cond_timedwait(&r->relieved, &r->lock, &until))
			break;
}

/* ---- The thread ---- */

void reaper_wake(struct server *s)
{
	if (atomic_exchange(&s->reaper.woken, true))
		return;
	LOCKED(&s->reaper.lock);
	pthread_cond_signal(&s->reaper.wake);
}

/* Until woken, stopped, or `ns` have passed. */
static void wait_for(struct reaper *r, int64_t ns, bool for_wake)
{
	struct timespec until;
	int64_t at;

	clock_gettime(CLOCK_MONOTONIC, &until);
	at = until.tv_sec * NS_PER_S + until.tv_nsec + ns;
	until = (struct timespec){ .tv_sec = at / NS_PER_S, .tv_nsec = at % NS_PER_S };
	LOCKED(&r->lock);
	while (!r->stopping && !(for_wake && atomic_load(&r->woken)))
		if (pthread_cond_timedwait(&r->wake, &r->lock, &until))
			break;
}

static void *reaper_run(void *context)
{
	struct server *s = context;
	struct memory memory = { 0 };

	pthread_setname_np(pthread_self(), "reaper");
	while (!stopping(s)) {
		wait_for(&s->reaper, EVERY_NS, true);
		if (atomic_load(&s->reaper.woken))
			wait_for(&s->reaper, GATHER_NS, false);
		atomic_store(&s->reaper.woken, false);
		sessions_expire(s);
		sessions_record_acknowledged(s);
		locks_tick(s);
		relieve(s);
		reap_files(s);
		delete_objects_due(s);
		gateway_trim(&s->gateway);
		backup_if_due(s);
		memory_tend(&memory);
	}
	return NULL;
}

void reaper_init(struct reaper *r)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&r->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&r->wake, &attr);
	pthread_cond_init(&r->relieved, &attr);
	pthread_condattr_destroy(&attr);
}

void reaper_free(struct reaper *r)
{
	pthread_cond_destroy(&r->wake);
	pthread_cond_destroy(&r->relieved);
	pthread_mutex_destroy(&r->lock);
}

int reaper_start(struct server *s)
{
	int r = -pthread_create(&s->reaper.thread, NULL, reaper_run, s);

	s->reaper.started = !r;
	return r;
}

void reaper_stop(struct server *s)
{
	struct reaper *r = &s->reaper;

	if (!r->started)
		return;
	pthread_mutex_lock(&r->lock);
	r->stopping = true;
	pthread_cond_broadcast(&r->wake);
	pthread_cond_broadcast(&r->relieved);
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	r->started = false;
}
