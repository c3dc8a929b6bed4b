#include "client/objects.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/cache.h"
#include "client/state.h"

#define FILES_KEPT 4096
#define FILES_LEAST 64
#define DIRECT_KEPT 64
#define OPEN_NS (2 * NS_PER_S)
#define ASK_AGAIN_NS (10 * NS_PER_S)
#define DIRECT_BYTES (1u << 20)
#define DIRECT_ALIGN 4096u /* enough for every disk */
#define PARTS 256

/* Packs are read in random order: one that was closed meanwhile costs a round-trip a file.  But an eighth of what
 * the process may open at most. */
static size_t files_kept(void)
{
	struct rlimit most;
	if (getrlimit(RLIMIT_NOFILE, &most) < 0 || most.rlim_cur / 8 < FILES_LEAST)
		return FILES_LEAST;
	return most.rlim_cur / 8 < FILES_KEPT ? most.rlim_cur / 8 : FILES_KEPT;
}

void objects_init(struct objects *o)
{
	*o = (struct objects){ 0 };
	descriptors_init(&o->files, files_kept());
	descriptors_init(&o->direct, DIRECT_KEPT);
	pthread_mutex_init(&o->lock, NULL);
	cond_init_monotonic(&o->work);
}

void objects_free(struct objects *o)
{
	pthread_mutex_lock(&o->lock);
	o->stopping = true;
	pthread_cond_signal(&o->work);
	pthread_mutex_unlock(&o->lock);
	if (o->closer_started)
		pthread_join(o->closer, NULL);
	descriptors_free(&o->files);
	descriptors_free(&o->direct);
	pthread_cond_destroy(&o->work);
	pthread_mutex_destroy(&o->lock);
}

/* ---- The closer ----------------------------------------------------------------- */

static void *closer_run(void *context)
{
	struct objects *o = context;
	LOCKED(&o->lock);
	while (!o->stopping) {
		int64_t before = clock_steady_ns() - OPEN_NS;
		size_t left = descriptors_trim(&o->files, before) + descriptors_trim(&o->direct, before);
		o->any_open = left > 0;
		if (o->any_open)
			cond_wait_until(&o->work, &o->lock, monotonic_ns() + OPEN_NS / 4);
		else
			pthread_cond_wait(&o->work, &o->lock);
	}
	return NULL;
}

/* Something was opened.  False: there is nobody to close it again. */
static bool closer_tell(struct objects *o)
{
	LOCKED(&o->lock);
	if (!o->closer_started)
		o->closer_started = pthread_create(&o->closer, NULL, closer_run, o) == 0;
	if (!o->any_open)
		pthread_cond_signal(&o->work);
	o->any_open = true;
	return o->closer_started;
}

/* ---- The file ------------------------------------------------------------------- */

static int file_ask(struct client *c, uint64_t object, int *fd)
{
	Wire__ObjectRequest request = WIRE__OBJECT_REQUEST__INIT;
	struct rpc_call call = { .op = WIRE__OP__OBJECT_OPEN, .request = &request.base, .descriptor = fd };
	struct arena arena;
	struct stat st;
	int r;
	request.object = object;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &call, &arena);
	arena_free(&arena);
	if (r == 0 && (fstat(*fd, &st) < 0 || !S_ISREG(st.st_mode))) {
		log_warn("the server gave something else than a file for object %016lx", (unsigned long)object);
		close(*fd);
		r = -EBADMSG;
	}
	return r;
}

/* The object's file, with a use counted.  -EOPNOTSUPP and others: it is to be asked for by call. */
static int file_get(struct client *c, uint64_t object, bool direct, struct descriptor **out)
{
	struct objects *o = &c->objects;
	struct descriptors *all = direct ? &o->direct : &o->files;
	int fd, r;
	*out = descriptor_find(all, object);
	if (*out)
		return 0;
	/* A replica whose server is away tries the cache first. */
	if (clock_steady_ns() < atomic_load(&o->not_before) || (c->replica && atomic_load(&c->replica->away)))
		return -EOPNOTSUPP;
	r = file_ask(c, object, &fd);
	if (r == -EOPNOTSUPP || r == -ENOSYS || r == -EBADMSG)
		atomic_store(&o->not_before, clock_steady_ns() + ASK_AGAIN_NS);
	if (r < 0)
		return r;
	if (direct && fcntl(fd, F_SETFL, O_DIRECT) < 0) {
		atomic_store(&o->no_direct, true);
		close(fd);
		return -EOPNOTSUPP;
	}
	*out = descriptor_add(all, object, fd);
	if (!closer_tell(o))
		descriptor_forget(all, object);
	return *out ? 0 : -ENOMEM;
}

/* Takes n bytes off the front; what is left of the window. */
static int window_advance(struct iovec *window, int count, size_t n)
{
	int i = 0;
	while (i < count && n >= window[i].iov_len)
		n -= window[i++].iov_len;
	memmove(window, window + i, (size_t)(count - i) * sizeof(*window));
	if (i < count) {
		window[0].iov_base = (char *)window[0].iov_base + n;
		window[0].iov_len -= n;
	}
	return count - i;
}

static int parts_read(int fd, uint64_t offset, const struct iovec *into, int into_count)
{
	struct iovec window[PARTS];
	int count = 0, next = 0;
	for (;;) {
		while (count < PARTS && next < into_count)
			window[count++] = into[next++];
		if (count == 0)
			return 0;
		ssize_t n = preadv(fd, window, count, (off_t)offset);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			return -ERANGE;
		if (n > 0) {
			offset += (uint64_t)n;
			count = window_advance(window, count, (size_t)n);
		}
	}
}

/* The last part may be of any length, up to a page: it takes a way round. */
static bool is_direct(const struct objects *o, uint32_t offset, uint32_t length, const struct iovec *into, int count)
{
	if (length < DIRECT_BYTES || count >= PARTS || offset % DIRECT_ALIGN || atomic_load(&o->no_direct))
		return false;
	for (int i = 0; i < count; i++) {
		bool fits = (uintptr_t)into[i].iov_base % DIRECT_ALIGN == 0 && into[i].iov_len % DIRECT_ALIGN == 0;
		if (!fits && (i < count - 1 || into[i].iov_len > DIRECT_ALIGN))
			return false;
	}
	return true;
}

/* Neighbours in memory become one part, which costs the kernel less.  How many are left. */
static int parts_join(const struct iovec *parts, int count, struct iovec *out)
{
	int n = 0;
	for (int i = 0; i < count; i++) {
		if (n > 0 && (char *)out[n - 1].iov_base + out[n - 1].iov_len == parts[i].iov_base)
			out[n - 1].iov_len += parts[i].iov_len;
		else
			out[n++] = parts[i];
	}
	return n;
}

/* What follows the last part in the file may come too, into the rest of a page. */
static int direct_read(int fd, uint64_t offset, uint32_t length, const struct iovec *into, int count)
{
	uint8_t page[DIRECT_ALIGN] __attribute__((aligned(DIRECT_ALIGN)));
	const struct iovec *last = &into[count - 1];
	bool detour = last->iov_len <= DIRECT_ALIGN;
	struct iovec parts[PARTS];
	ssize_t n;
	count = parts_join(into, detour ? count - 1 : count, parts);
	if (detour)
		parts[count++] = (struct iovec){ page, DIRECT_ALIGN };
	do {
		n = preadv(fd, parts, count, (off_t)offset);
	} while (n < 0 && errno == EINTR);
	/* Less than all in one go is not worth going on with. */
	if (n < (ssize_t)length)
		return n < 0 ? -errno : -ERANGE;
	if (detour)
		memcpy(last->iov_base, page, last->iov_len);
	return 0;
}

static int file_read(struct client *c, bool direct, uint64_t object, uint32_t offset, uint32_t length, const struct iovec *into,
		     int count)
{
	struct descriptors *all = direct ? &c->objects.direct : &c->objects.files;
	struct descriptor *d;
	int r = file_get(c, object, direct, &d);
	if (r < 0)
		return r;
	if ((uint64_t)offset + length > d->size)
		r = -ERANGE;
	else
		r = direct ? direct_read(d->fd, offset, length, into, count) : parts_read(d->fd, offset, into, count);
	if (direct && r == -EINVAL)
		atomic_store(&c->objects.no_direct, true);
	if (r < 0)
		descriptor_forget(all, object);
	descriptor_put(all, d);
	/* Only the server says that there is no such object. */
	return r == -ENOENT ? -EIO : r;
}

/* ---- By call -------------------------------------------------------------------- */

static int call_read(struct client *c, uint64_t object, uint32_t offset, uint32_t length, const struct iovec *into, int count)
{
	Wire__ObjectRequest request = WIRE__OBJECT_REQUEST__INIT;
	struct rpc_call call = { .op = WIRE__OP__OBJECT_GET, .request = &request.base, .bulk_in = into, .bulk_in_count = count };
	struct arena arena;
	int r;
	request.object = object;
	request.offset = offset;
	request.length = length;
	arena_init(&arena, 0);
	r = rpc_call(c->rpc, &call, &arena);
	arena_free(&arena);
	return r;
}

void objects_count(struct client *c, uint64_t bytes)
{
	counter_add(&c->counters.server_reads, 1);
	counter_add(&c->counters.server_bytes, bytes);
}

/* Whether others may be in its object.  A block of a large file has one of its own, of which no more is fetched than is read. */
static bool is_packed(const struct client *c, const struct extent *e)
{
	return e->raw_length <= OBJECT_PACKED && e->raw_length < c->volume.block_size;
}

int object_fetch(void *client, const struct extent *e, uint32_t offset, uint32_t length, const struct iovec *into, int count)
{
	struct client *c = client;
	bool direct = is_direct(&c->objects, offset, length, into, count);
	int r = file_read(c, direct, e->object, offset, length, into, count);
	if (r != 0 && r != -ENOENT && is_packed(c, e)) {
		r = packs_read(c, e, offset, length, into, count);
		if (r == 0)
			return 0;
	}
	if (r != 0 && r != -ENOENT)
		r = call_read(c, e->object, offset, length, into, count);
	if (r == 0)
		objects_count(c, length);
	return r;
}

bool object_is_here(struct client *c, uint64_t object)
{
	struct descriptor *d;
	if (file_get(c, object, false, &d) < 0)
		return false;
	descriptor_put(&c->objects.files, d);
	return true;
}

bool object_doubt(void *client, uint64_t object)
{
	struct client *c = client;
	bool dropped = packs_drop(c, object);
	if (c->cache)
		cache_object_drop(c->cache, object);
	return dropped || c->cache;
}
