#include "server/gateway.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/memory.h"
#include "block/object.h"
#include "meta/content.h"
#include "server/dispatch.h"
#include "server/orphans.h"
#include "server/state.h"

#define IN_FLIGHT_MAX ((size_t)256 << 20)
#define IDLE_MAX ((size_t)32 << 20)
#define IDLE_NS (10 * NS_PER_S)
#define COMPARE_BYTES ((size_t)256 << 10)
#define CAPACITY_STEP ((size_t)1 << 20) /* sizes are rounded up to this, so that buffers fit the next object */

#define DESCRIPTORS_KEPT 256
#define MEMORY_PARTS_MAX 1024u

/* ---- Buffers ---- */

void gateway_init(struct gateway *g)
{
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->room, NULL);
	descriptors_init(&g->descriptors, DESCRIPTORS_KEPT);
}

static void buffer_free(struct gateway_buffer *b)
{
	memory_unmap(b->bytes, b->capacity);
	free(b);
}

static void idle_free(struct gateway *g)
{
	while (g->idle) {
		struct gateway_buffer *b = g->idle;

		g->idle = b->next;
		buffer_free(b);
	}
	g->idle_bytes = 0;
}

void gateway_free(struct gateway *g)
{
	idle_free(g);
	descriptors_free(&g->descriptors);
	pthread_cond_destroy(&g->room);
	pthread_mutex_destroy(&g->lock);
}

void gateway_trim(struct gateway *g)
{
	LOCKED(&g->lock);
	if (g->idle && clock_steady_ns() - g->used_steady_ns > IDLE_NS)
		idle_free(g);
}

/* Counts the bytes in and finds a buffer that fits, if there is one. */
static struct gateway_buffer *idle_take(struct gateway *g, size_t size)
{
	LOCKED(&g->lock);
	while (g->in_flight && g->in_flight + size > IN_FLIGHT_MAX)
		pthread_cond_wait(&g->room, &g->lock);
	g->in_flight += size;
	for (struct gateway_buffer **at = &g->idle; *at; at = &(*at)->next) {
		struct gateway_buffer *b = *at;

		if (b->capacity == size) {
			*at = b->next;
			g->idle_bytes -= b->capacity;
			return b;
		}
	}
	return NULL;
}

/* In huge pages: fewer to look up for each object, and the store can write from it past its cache. */
static struct gateway_buffer *buffer_new(size_t capacity)
{
	struct gateway_buffer *b = malloc(sizeof(*b));
	void *bytes = b ? memory_map(capacity) : NULL;

	if (!bytes) {
		free(b);
		return NULL;
	}
	*b = (struct gateway_buffer){ .capacity = capacity, .bytes = bytes };
	return b;
}

struct gateway_buffer *buffer_take(struct gateway *g, size_t size)
{
	size_t capacity = (size + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
	struct gateway_buffer *b = idle_take(g, capacity);

	if (b)
		return b;
	b = buffer_new(capacity);
	if (b)
		return b;
	LOCKED(&g->lock);
	g->in_flight -= capacity;
	pthread_cond_broadcast(&g->room);
	return NULL;
}

void buffer_give(struct gateway *g, struct gateway_buffer *b)
{
	pthread_mutex_lock(&g->lock);
	g->in_flight -= b->capacity;
	g->used_steady_ns = clock_steady_ns();
	pthread_cond_broadcast(&g->room);
	if (g->idle_bytes + b->capacity <= IDLE_MAX) {
		b->next = g->idle;
		g->idle = b;
		g->idle_bytes += b->capacity;
		b = NULL;
	}
	pthread_mutex_unlock(&g->lock);
	if (b)
		buffer_free(b);
}

/* ---- In ---- */

/* Whether these very bytes are stored: 1, 0 or -errno. */
static int is_stored(struct request *q, const char *key, const uint8_t *bytes, size_t size)
{
	CLEANUP_FREE uint8_t *piece = malloc(COMPARE_BYTES);
	uint64_t there;
	int r = store_stat(q->server->store, key, &there);

	if (r)
		return r;
	if (there != size)
		return 0;
	if (!piece)
		return -ENOMEM;
	for (size_t at = 0; at < size && !r; at += COMPARE_BYTES) {
		size_t length = size - at < COMPARE_BYTES ? size - at : COMPARE_BYTES;

		r = store_get(q->server->store, key, at, piece, length);
		if (!r && memcmp(piece, bytes + at, length))
			return 0;
	}
	return r ? r : 1;
}

/* The id is taken: by a put of these very bytes whose answer was lost, or by an
 * object of a time that the metadata do not remember, since they were put back from
 * a backup.  Then the client takes new ids, from beyond all such objects. */
static int put_again(struct request *q, const char *key, uint64_t object, const uint8_t *bytes, size_t size)
{
	struct object_record record;
	struct view view;
	int r = is_stored(q, key, bytes, size);

	if (r)
		return r > 0 ? 0 : r;
	r = meta_view_begin(q->server->meta, &view);
	if (r)
		return r;
	r = object_peek(&view, object, &record);
	meta_view_end(&view);
	if (!r) {
		log_error("object %llu was put again with other bytes", (unsigned long long)object);
		return request_explain(q, -EEXIST, "object %llu is already stored with other bytes", (unsigned long long)object);
	}
	if (r != -ENOENT)
		return r;
	log_warn("object %llu is in the store and not in the metadata, which seem to come from a backup: new ids begin after the "
		 "last one in the store",
		 (unsigned long long)object);
	r = orphans_pass_over(q->server);
	return r ? r : request_explain(q, -ESTALE, "object id %llu is already taken", (unsigned long long)object);
}

static int object_store(struct request *q, uint64_t object, const uint8_t *bytes, size_t size)
{
	char key[OBJECT_KEY_TEXT];
	struct iovec part = { (void *)bytes, size };
	int r;

	if (object_footer_check(bytes + size - OBJECT_FOOTER, object, size))
		return request_explain(q, -EBADMSG, "what was sent is not object %llu: its footer is wrong",
				       (unsigned long long)object);
	r = store_put(q->server->store, object_key(key, object), &part, 1);
	if (r == -EEXIST)
		return put_again(q, key, object, bytes, size);
	if (r)
		log_error("cannot store object %llu: %s", (unsigned long long)object, strerror(-r));
	return r;
}

static int put_check(struct request *q, const Wire__ObjectRequest *put, uint32_t size)
{
	int r;

	if (q->peer->who.read_only)
		return request_explain(q, -EROFS, "the volume is mounted read-only");
	if (size <= OBJECT_FOOTER || size > OBJECT_SIZE_MAX)
		return request_explain(q, -EINVAL, "an object has more than %u and at most %u bytes, not %u", OBJECT_FOOTER,
				       OBJECT_SIZE_MAX, size);
	r = session_owns_object(q->server, q->peer->session, put->object);
	if (r == -ESTALE)
		return request_explain(q, r, "object id %llu is not in a range of this session", (unsigned long long)put->object);
	return r ? r : space_may_put(q->server, size);
}

/* The object's bytes: in the mount's memory, then in the bulk.  UINT32_MAX: more than there can be. */
static uint32_t put_size(const Wire__ObjectRequest *put, uint32_t bulk)
{
	uint64_t size = bulk;

	for (size_t k = 0; k < put->n_memory; k++)
		size += put->memory[k]->length;
	return size < UINT32_MAX ? (uint32_t)size : UINT32_MAX;
}

/* The memory the object is in; negative: it is sent, all of it.  Only memory: reading from whatever else a client has open could
 * take for ever. */
static int memory_take(struct request *q, const Wire__ObjectRequest *put, int *out)
{
	int fd;

	if (!put->n_memory)
		return 0;
	if (!q->peer->local)
		return request_explain(q, -EOPNOTSUPP, "descriptors go over the unix socket only");
	if (put->n_memory > MEMORY_PARTS_MAX)
		return request_explain(q, -EOPNOTSUPP, "an object in memory is of at most %u parts", MEMORY_PARTS_MAX);
	fd = connection_take_descriptor(q->peer->connection);
	if (fd < 0 || fcntl(fd, F_GET_SEALS) < 0) {
		if (fd >= 0)
			close(fd);
		return request_explain(q, -EOPNOTSUPP, "an object in memory comes with the descriptor of a memfd");
	}
	*out = fd;
	return 0;
}

/* What is in the mount's memory, to where it is safe from being changed.  *done: how much that was. */
static int memory_copy(struct request *q, const Wire__ObjectRequest *put, int fd, uint8_t *into, uint32_t *done)
{
	*done = 0;
	for (size_t k = 0; k < put->n_memory; k++) {
		const Wire__MemoryPart *part = put->memory[k];
		ssize_t n = part->offset <= INT64_MAX ? pread(fd, into + *done, part->length, (off_t)part->offset) : -1;

		if (n != (ssize_t)part->length)
			return request_explain(q, -EOPNOTSUPP, "an object is not where it is said to be in memory");
		*done += part->length;
	}
	return 0;
}

static int put_receive(struct request *q, const Wire__ObjectRequest *put, int memory, uint8_t *into, uint32_t size)
{
	uint32_t done;
	int r = memory_copy(q, put, memory, into, &done);

	if (r)
		return r;
	q->bulk_taken = true;
	return connection_receive_bulk(q->peer->connection, &(struct iovec){ into + done, size - done }, 1) ? REQUEST_BROKEN : 0;
}

int serve_object_put(struct request *q)
{
	const Wire__ObjectRequest *put = (const Wire__ObjectRequest *)q->message;
	struct gateway *g = &q->server->gateway;
	uint32_t size = put_size(put, q->frame->bulk_length);
	struct gateway_buffer *b;
	CLEANUP_FD int memory = -1;
	int r = put_check(q, put, size);

	if (!r)
		r = memory_take(q, put, &memory);
	if (r)
		return r;
	b = buffer_take(g, size);
	if (!b)
		return -ENOMEM;
	r = put_receive(q, put, memory, b->bytes, size);
	if (!r)
		r = object_store(q, put->object, b->bytes, size);
	buffer_give(g, b);
	if (r)
		return r;
	return request_reply(q, &wire__empty__descriptor) ? 0 : -ENOMEM;
}

/* ---- Out ---- */

/* What is asked for, of an object of that size. */
static int get_range(const Wire__ObjectRequest *get, uint64_t size, struct range *out)
{
	*out = get->whole ? (struct range){ 0, (uint32_t)size } : (struct range){ get->offset, get->length };
	if (get->whole)
		return size > get->length ? -EFBIG : size ? 0 : -ERANGE;
	return out->first + out->count > size ? -ERANGE : 0;
}

static int get_by_copy(struct request *q, const Wire__ObjectRequest *get)
{
	struct gateway *g = &q->server->gateway;
	struct gateway_buffer *b;
	char key[OBJECT_KEY_TEXT];
	struct range range;
	uint64_t size = UINT64_MAX;
	int r = 0;

	object_key(key, get->object);
	if (get->whole)
		r = store_stat(q->server->store, key, &size);
	if (!r)
		r = get_range(get, size, &range);
	if (r)
		return r;
	b = buffer_take(g, range.count);
	if (!b)
		return -ENOMEM;
	r = store_get(q->server->store, key, range.first, b->bytes, range.count);
	if (!r)
		r = peer_answer(q->peer, q->frame, NULL, &(struct iovec){ b->bytes, range.count }, 1) ? REQUEST_BROKEN
												      : REQUEST_ANSWERED;
	buffer_give(g, b);
	return r;
}

/* A read that fails after the answer has begun can only be cut off, and the
 * client asks again: that time through a copy, so that it can be told. */
static void trouble_note(struct gateway *g, uint64_t object)
{
	descriptor_forget(&g->descriptors, object);
	LOCKED(&g->lock);
	g->troubled[g->troubled_next++ % GATEWAY_TROUBLED] = object;
}

static bool is_troubled(struct gateway *g, uint64_t object)
{
	LOCKED(&g->lock);
	for (int i = 0; i < GATEWAY_TROUBLED; i++)
		if (g->troubled[i] == object)
			return true;
	return false;
}

/* -ENOENT: no such object; -EOPNOTSUPP: the store has no descriptors to give. */
static int object_open(struct request *q, uint64_t object, struct descriptor **out)
{
	struct descriptors *all = &q->server->gateway.descriptors;
	char key[OBJECT_KEY_TEXT];
	int fd;

	*out = descriptor_find(all, object);
	if (*out)
		return 0;
	fd = store_descriptor(q->server->store, object_key(key, object));
	if (fd < 0)
		return fd;
	*out = descriptor_add(all, object, fd);
	return *out ? 0 : -ENOMEM;
}

static bool is_deleted(struct request *q, uint64_t object)
{
	char key[OBJECT_KEY_TEXT];
	uint64_t size;

	return store_stat(q->server->store, object_key(key, object), &size) == -ENOENT;
}

static int get_by_descriptor(struct request *q, const Wire__ObjectRequest *get)
{
	struct gateway *g = &q->server->gateway;
	struct descriptor *d;
	struct range range;
	int r = object_open(q, get->object, &d);

	if (r)
		return r;
	r = get_range(get, d->size, &range);
	if (!r) {
		r = peer_answer_file(q->peer, q->frame, d->fd, (uint32_t)range.first, range.count);
		if (r == -EIO && !is_deleted(q, get->object)) {
			log_error("cannot read object %llu: the disk or the file is damaged", (unsigned long long)get->object);
			trouble_note(g, get->object);
		}
		r = r ? REQUEST_BROKEN : REQUEST_ANSWERED;
	}
	descriptor_put(&g->descriptors, d);
	return r;
}

int serve_object_get(struct request *q)
{
	const Wire__ObjectRequest *get = (const Wire__ObjectRequest *)q->message;
	int r;

	if (!get->length || get->length > FRAME_BULK_MAX)
		return request_explain(q, -EINVAL, "a read of %u bytes of an object", get->length);
	r = is_troubled(&q->server->gateway, get->object) ? -EOPNOTSUPP : get_by_descriptor(q, get);
	if (r == -EOPNOTSUPP)
		r = get_by_copy(q, get);
	/* -EIO would look to the client like a server out of reach; these two are the object's fault. */
	if (r == -ERANGE)
		return request_explain(q, r, "object %llu is shorter than %llu bytes", (unsigned long long)get->object,
				       (unsigned long long)get->offset + get->length);
	if (r == -EIO)
		return request_explain(q, -EBADMSG, "object %llu cannot be read", (unsigned long long)get->object);
	return r;
}

/* One of its own, so that what the client does to it (position, flags) is nobody
 * else's business. */
int serve_object_open(struct request *q)
{
	const Wire__ObjectRequest *open = (const Wire__ObjectRequest *)q->message;
	char key[OBJECT_KEY_TEXT];
	CLEANUP_FD int fd = -1;

	if (!q->peer->local)
		return request_explain(q, -EOPNOTSUPP, "descriptors go over the unix socket only");
	if (is_troubled(&q->server->gateway, open->object))
		return request_explain(q, -EOPNOTSUPP, "object %llu cannot be read", (unsigned long long)open->object);
	fd = store_descriptor(q->server->store, object_key(key, open->object));
	if (fd < 0)
		return fd;
	return peer_answer_descriptor(q->peer, q->frame, fd) ? REQUEST_BROKEN : REQUEST_ANSWERED;
}

int gateway_delete(struct server *s, uint64_t object)
{
	char key[OBJECT_KEY_TEXT];
	int r;

	descriptor_forget(&s->gateway.descriptors, object);
	r = store_delete(s->store, object_key(key, object));
	return r == -ENOENT ? 0 : r;
}
