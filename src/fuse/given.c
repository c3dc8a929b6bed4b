#include "fuse/given.h"
#include <errno.h>
#include <string.h>
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
/* An answer is sent before the kernel has made an inode of it, and of one that is not there yet it forgets nothing. */
#define AGAIN_NS (20 * NS_PER_MS)

int given_init(struct given *g)
{
	pthread_rwlockattr_t fair;
	int r;

	memset(g, 0, sizeof(*g));
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
	if (!atomic_load(&g->names) && l.name_ms > NAMES_MS)
		l.name_ms = NAMES_MS;
	return l;
}

void given_leave(struct given *g) { pthread_rwlock_unlock(&g->gate); }

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
	g->latest[g->next++ % 256] = node;
}

static int notify(int device, int code, const void *data, size_t size)
{
	struct fuse_out_header h = { .len = (uint32_t)(sizeof(h) + size), .error = code };
	struct iovec parts[2] = { { &h, sizeof(h) }, { (void *)data, size } };

	return writev(device, parts, size ? 2 : 1) < 0 ? -errno : 0;
}

/* One the kernel has dropped by itself is -ENOENT. */
static void attributes_forget(int device, uint64_t node)
{
	struct fuse_notify_inval_inode_out out = { .ino = node, .off = -1 };
	int r = notify(device, FUSE_NOTIFY_INVAL_INODE, &out, sizeof(out));

	if (r < 0 && r != -ENOENT && r != -ENODEV)
		log_warn("fuse: the kernel does not forget the attributes of inode %llu: %s", (unsigned long long)node,
			 strerror(-r));
}

void given_forget(int device, uint64_t node, uint64_t from, uint64_t to)
{
	/* A length of 0 is all that follows. */
	struct fuse_notify_inval_inode_out out = { .ino = node,
						   .off = (int64_t)from,
						   .len = to > INT64_MAX ? 0 : (int64_t)(to - from) };
	int r = notify(device, FUSE_NOTIFY_INVAL_INODE, &out, sizeof(out));

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

void given_recall(struct given *g, int device)
{
	struct intmap now, before;
	uint64_t latest[256];
	int r = 0;

	atomic_fetch_add(&g->recalls, 1);
	pthread_rwlock_wrlock(&g->gate);
	pthread_rwlock_unlock(&g->gate);
	pthread_mutex_lock(&g->lock);
	now = g->now;
	before = g->before;
	memcpy(latest, g->latest, sizeof(latest));
	g->now = g->before = (struct intmap){ 0 };
	pthread_mutex_unlock(&g->lock);
	if (atomic_load(&g->names))
		r = notify(device, FUSE_NOTIFY_INC_EPOCH, NULL, 0);
	if (r < 0 && r != -ENODEV)
		log_warn("fuse: the kernel does not forget names: %s", strerror(-r));
	if (now.used || before.used) {
		all_forget(device, &before);
		all_forget(device, &now);
		nanosleep(&(struct timespec){ .tv_nsec = AGAIN_NS }, NULL);
		for (int i = 0; i < 256; i++)
			if (latest[i])
				attributes_forget(device, latest[i]);
	}
	intmap_free(&now);
	intmap_free(&before);
}
