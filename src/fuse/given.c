#include "fuse/given.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "fuse/protocol.h"

/* Leave is never given for longer. */
#define LEAVE_NS (11 * NS_PER_S)
/* To a kernel that cannot be told to forget names. */
#define NAMES_MS 1000u
/* Attributes of what has several names, to one that is told of every change (news.h). */
#define LINKED_MS 1000u
/* An answer is sent before the kernel has made an inode of it, and of one that is not there yet it forgets nothing. */
#define AGAIN_NS (20 * NS_PER_MS)

static int ring_init(struct given_ring *r, uint32_t size)
{
	r->slots = calloc(size, sizeof(*r->slots));
	r->index = calloc(size, sizeof(*r->index));
	r->size = size;
	return r->slots && r->index ? 0 : -ENOMEM;
}

static void ring_free(struct given_ring *r)
{
	free(r->slots);
	free(r->index);
}

/* Where the node is already, else the next slot; NULL: that is still needed. */
static struct given_covered *ring_slot(struct given_ring *r, uint64_t node, uint64_t cover, int64_t now)
{
	uint32_t *index = &r->index[node % r->size];
	struct given_covered *c = &r->slots[*index];

	if (c->node == node && c->cover == cover)
		return c;
	c = &r->slots[r->next];
	if (c->cover && now < c->until_ns)
		return NULL;
	*index = r->next;
	r->next = (r->next + 1) % r->size;
	return c;
}

int given_init(struct given *g)
{
	pthread_rwlockattr_t fair;
	int r;

	memset(g, 0, sizeof(*g));
	if (ring_init(&g->files, GIVEN_FILES) < 0 || ring_init(&g->directories, GIVEN_DIRECTORIES) < 0) {
		ring_free(&g->files);
		ring_free(&g->directories);
		return -ENOMEM;
	}
	g->unreadable = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g->unreadable == MAP_FAILED) {
		g->unreadable = NULL;
		log_warn("fuse: no memory for telling the kernel that files have become longer");
	}
	pthread_mutex_init(&g->lock, NULL);
	pthread_rwlockattr_init(&fair);
	/* Else a recall would wait for a moment in which nobody sends. */
	pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	r = -pthread_rwlock_init(&g->gate, &fair);
	pthread_rwlockattr_destroy(&fair);
	return r;
}

void given_free(struct given *g)
{
	intmap_free(&g->now);
	intmap_free(&g->before);
	ring_free(&g->files);
	ring_free(&g->directories);
	if (g->unreadable)
		munmap(g->unreadable, 1);
	pthread_rwlock_destroy(&g->gate);
	pthread_mutex_destroy(&g->lock);
}

uint64_t given_begin(struct given *g) { return atomic_load(&g->recalls); }

struct given_leave given_enter(struct given *g, uint64_t begun, uint32_t valid_ms)
{
	struct given_leave l = { valid_ms, valid_ms };

	pthread_rwlock_rdlock(&g->gate);
	if (begun != atomic_load(&g->recalls))
		return (struct given_leave){ 0, 0 };
	if (!g->told && !atomic_load(&g->names) && l.name_ms > NAMES_MS)
		l.name_ms = NAMES_MS;
	return l;
}

void given_leave(struct given *g) { pthread_rwlock_unlock(&g->gate); }

struct given_leave given_of(const struct given *g, struct given_leave l, const struct attr *a)
{
	if (g->told && a->nlink > 1 && !S_ISDIR(a->mode) && l.attr_ms > LINKED_MS)
		l.attr_ms = LINKED_MS;
	return l;
}

static void turn(struct given *g)
{
	int64_t now = clock_steady_ns();

	if (now - g->turned_ns < LEAVE_NS)
		return;
	intmap_free(&g->before);
	g->before = g->now;
	g->now = (struct intmap){ 0 };
	g->turned_ns = now;
}

void given_note(struct given *g, uint64_t node)
{
	uint64_t bit = 1ull << (node % 64), bits;
	LOCKED(&g->lock);

	turn(g);
	bits = (uintptr_t)intmap_get(&g->now, node / 64);
	/* Without memory for it, the kernel keeps it until its time has run out. */
	if (!(bits & bit) && intmap_set(&g->now, node / 64, (void *)(uintptr_t)(bits | bit)) < 0)
		return;
	g->latest[g->next++ % GIVEN_LATEST] = node;
}

bool given_was(struct given *g, uint64_t node)
{
	uint64_t bits;
	LOCKED(&g->lock);

	bits = (uintptr_t)intmap_get(&g->now, node / 64) | (uintptr_t)intmap_get(&g->before, node / 64);
	return bits >> (node % 64) & 1;
}

uint32_t given_cover(struct given *g, uint64_t begun, uint64_t node, const struct attr *a, uint32_t granted_ms)
{
	struct given_ring *ring = S_ISDIR(a->mode) ? &g->directories : &g->files;
	int64_t now = clock_steady_ns();
	struct given_covered *c;
	LOCKED(&g->lock);

	if (!granted_ms || begun != atomic_load(&g->recalls))
		return 0;
	c = ring_slot(ring, node, attr_cover(a), now);
	if (!c)
		return 0;
	*c = (struct given_covered){ node, attr_cover(a), now, now + granted_ms * NS_PER_MS };
	return granted_ms;
}

int given_notify(int device, int code, const void *data, size_t size)
{
	struct fuse_out_header h = { .len = (uint32_t)(sizeof(h) + size), .error = code };
	struct iovec parts[2] = { { &h, sizeof(h) }, { (void *)data, size } };

	return writev(device, parts, size ? 2 : 1) < 0 ? -errno : 0;
}

/* False: it has none; it has dropped it by itself, or not made it yet. */
static bool attributes_forget(int device, uint64_t node)
{
	struct fuse_notify_inval_inode_out out = { .ino = node, .off = -1 };
	int r = given_notify(device, FUSE_NOTIFY_INVAL_INODE, &out, sizeof(out));

	if (r < 0 && r != -ENOENT && r != -ENODEV)
		log_warn("fuse: the kernel does not forget the attributes of inode %llu: %s", (unsigned long long)node,
			 strerror(-r));
	return r != -ENOENT;
}

void given_moved(int device, uint64_t node) { attributes_forget(device, node); }

static int store_notify(int device, const struct fuse_notify_store_out *out, void *data)
{
	struct fuse_out_header h = { .len = (uint32_t)(sizeof(h) + sizeof(*out) + out->size), .error = FUSE_NOTIFY_STORE };
	struct iovec parts[3] = { { &h, sizeof(h) }, { (void *)out, sizeof(*out) }, { data, out->size } };

	return writev(device, parts, out->size ? 3 : 2) < 0 ? -errno : 0;
}

void given_extend(const struct given *g, int device, uint64_t node, uint64_t size)
{
	struct fuse_notify_store_out out = { .nodeid = node, .offset = size - 1, .size = 1 };
	int r;

	if (!g->unreadable || !size)
		return;
	r = store_notify(device, &out, g->unreadable);
	if (r != -EFAULT && r != -ENOENT && r != -ENODEV)
		log_warn("fuse: the kernel does not take in that inode %llu is longer: %s", (unsigned long long)node,
			 strerror(-r));
}

/* Storing nothing changes nothing. */
bool given_is_there(int device, uint64_t node)
{
	return store_notify(device, &(struct fuse_notify_store_out){ .nodeid = node }, NULL) != -ENOENT;
}

void given_forget(int device, uint64_t node, uint64_t from, uint64_t to)
{
	/* A length of 0 is all that follows. */
	struct fuse_notify_inval_inode_out out = { .ino = node,
						   .off = (int64_t)from,
						   .len = to > INT64_MAX ? 0 : (int64_t)(to - from) };
	int r = given_notify(device, FUSE_NOTIFY_INVAL_INODE, &out, sizeof(out));

	if (r < 0 && r != -ENOENT && r != -ENODEV)
		log_warn("fuse: the kernel does not forget the content of inode %llu: %s", (unsigned long long)node,
			 strerror(-r));
}

static void all_forget(int device, const struct intmap *nodes)
{
	uint64_t key;
	void *value;

	for (size_t at = 0; intmap_next(nodes, &at, &key, &value);)
		for (uint64_t bits = (uintptr_t)value; bits; bits &= bits - 1)
			attributes_forget(device, key * 64 + (uint64_t)__builtin_ctzll(bits));
}

#define TAKEN_AT_ONCE 256
#define SLACK_NS (1 * NS_PER_S) /* the kernel counts from when it looks at the answer */

/* From *at on, those of one directory, or of all (cover 0); 0: there are no more. */
static size_t covered_take(struct given *g, struct given_ring *ring, uint64_t cover, uint32_t *at, struct given_covered *out)
{
	int64_t now = clock_steady_ns();
	size_t count = 0;
	LOCKED(&g->lock);

	for (; *at < ring->size && count < TAKEN_AT_ONCE; ++*at) {
		struct given_covered *c = &ring->slots[*at];

		if (!c->cover || (cover && c->cover != cover))
			continue;
		if (now < c->until_ns + SLACK_NS)
			out[count++] = *c;
		c->cover = 0;
	}
	return count;
}

/* One that is not there, but was given a moment ago, may be about to be made. */
static void covered_forget(struct given *g, struct given_ring *ring, int device, uint64_t cover)
{
	struct given_covered taken[TAKEN_AT_ONCE];
	uint32_t at = 0;
	size_t count, young;

	while ((count = covered_take(g, ring, cover, &at, taken)) > 0) {
		young = 0;
		for (size_t i = 0; i < count; i++)
			if (!attributes_forget(device, taken[i].node) && clock_steady_ns() - taken[i].given_ns < AGAIN_NS)
				taken[young++] = taken[i];
		if (young)
			nanosleep(&(struct timespec){ .tv_nsec = AGAIN_NS }, NULL);
		for (size_t i = 0; i < young; i++)
			attributes_forget(device, taken[i].node);
	}
}

static void names_forget(int device)
{
	int r = given_notify(device, FUSE_NOTIFY_INC_EPOCH, NULL, 0);

	if (r < 0 && r != -ENODEV)
		log_warn("fuse: the kernel does not forget names: %s", strerror(-r));
}

void given_pass(struct given *g)
{
	atomic_fetch_add(&g->recalls, 1);
	pthread_rwlock_wrlock(&g->gate);
	pthread_rwlock_unlock(&g->gate);
}

void given_uncover(struct given *g, int device, uint64_t cover)
{
	given_pass(g);
	covered_forget(g, &g->directories, device, cover);
	covered_forget(g, &g->files, device, cover);
}

/* So that opening looks at few. */
static void unmade_pack(struct given *g)
{
	uint32_t count = 0;
	LOCKED(&g->lock);

	for (uint32_t i = 0; i < g->unmade_count; i++)
		if (g->unmade[i])
			g->unmade[count++] = g->unmade[i];
	atomic_store(&g->unmade_count, count);
}

/* What is there by now forgets; the rest may come at any time. */
static void latest_forget(struct given *g, int device, const uint64_t *latest)
{
	/* Each counts as not made until it has forgotten, as it may be made, and opened, before its turn comes. */
	pthread_mutex_lock(&g->lock);
	memcpy(g->unmade, latest, sizeof(g->unmade));
	g->unmade_until_ns = clock_steady_ns() + LEAVE_NS;
	atomic_store(&g->unmade_count, GIVEN_LATEST);
	pthread_mutex_unlock(&g->lock);
	for (uint32_t i = 0; i < GIVEN_LATEST; i++)
		if (latest[i] && attributes_forget(device, latest[i])) {
			LOCKED(&g->lock);
			g->unmade[i] = 0;
		}
	unmade_pack(g);
}

void given_opened(struct given *g, int device, uint64_t node)
{
	bool found = false;

	if (!atomic_load_explicit(&g->unmade_count, memory_order_relaxed))
		return;
	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; i < g->unmade_count; i++)
		if (g->unmade[i] == node) {
			g->unmade[i] = 0;
			found = true;
		}
	if (clock_steady_ns() > g->unmade_until_ns)
		atomic_store(&g->unmade_count, 0);
	pthread_mutex_unlock(&g->lock);
	if (found)
		attributes_forget(device, node);
}

void given_recall(struct given *g, int device)
{
	struct intmap now, before;
	uint64_t latest[GIVEN_LATEST];

	given_pass(g);
	pthread_mutex_lock(&g->lock);
	now = g->now;
	before = g->before;
	memcpy(latest, g->latest, sizeof(latest));
	g->now = g->before = (struct intmap){ 0 };
	pthread_mutex_unlock(&g->lock);
	if (atomic_load(&g->names))
		names_forget(device);
	covered_forget(g, &g->directories, device, 0);
	covered_forget(g, &g->files, device, 0);
	if (now.used || before.used) {
		all_forget(device, &before);
		all_forget(device, &now);
		nanosleep(&(struct timespec){ .tv_nsec = AGAIN_NS }, NULL);
		latest_forget(g, device, latest);
	}
	intmap_free(&now);
	intmap_free(&before);
}
