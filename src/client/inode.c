#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

/* The table of inodes in use, and telling the server which ones no longer are.
 *
 * A close is not sent at once: it waits in `closes` for the keeper's next tick, or
 * is taken back when the file is opened again.  An open of an inode whose close is
 * on its way waits until that was answered; otherwise the close could overtake the
 * open and the server would think the file is in nobody's hands. */

static char close_waiting, close_in_flight;

#define CLOSES_AT_ONCE 1024

static struct inode *inode_new(struct client *c, uint64_t number)
{
	struct inode *i = calloc(1, sizeof(*i));
	if (!i)
		return NULL;
	i->number = number;
	i->client = c;
	i->dirty.blocks = &c->uploader.blocks;
	pthread_mutex_init(&i->lock, NULL);
	cond_init_monotonic(&i->changed);
	return i;
}

void inode_free(struct inode *i)
{
	segments_free(&i->dirty);
	segments_free(&i->storing);
	backing_put(i->backing);
	spool_unref(i->spool);
	free(i->window.extents);
	pthread_mutex_destroy(&i->lock);
	pthread_cond_destroy(&i->changed);
	free(i);
}

struct inode *inode_get(struct client *c, uint64_t number)
{
	struct inode *i;
	LOCKED(&c->table_lock);
	i = intmap_get(&c->inodes, number);
	if (i)
		i->refs++;
	return i;
}

struct inode *inode_get_or_add(struct client *c, uint64_t number)
{
	struct inode *i;
	LOCKED(&c->table_lock);
	i = intmap_get(&c->inodes, number);
	if (!i) {
		i = inode_new(c, number);
		if (!i)
			return NULL;
		if (intmap_set(&c->inodes, number, i) < 0) {
			inode_free(i);
			return NULL;
		}
	}
	i->refs++;
	return i;
}

void inode_ref(struct inode *i)
{
	LOCKED(&i->client->table_lock);
	i->refs++;
}

void inode_unref(struct inode *i)
{
	struct client *c = i->client;
	pthread_mutex_lock(&c->table_lock);
	if (--i->refs > 0) {
		pthread_mutex_unlock(&c->table_lock);
		return;
	}
	intmap_remove(&c->inodes, i->number);
	if (i->local)
		atomic_fetch_sub(&c->opens.local, 1);
	/* Without memory to remember the close, the server keeps the file until the session ends. */
	if (i->registered && intmap_set(&c->closes, i->number, &close_waiting) < 0)
		log_warn("no memory to close inode %lu at the server; it is closed at unmount", (unsigned long)i->number);
	pthread_mutex_unlock(&c->table_lock);
	/* Without a grant the kernel may have pages of other versions, too. */
	if (i->attr_known && !i->gone)
		seen_set(c, i->number, i->grant == WIRE__GRANT__GRANT_NONE || i->pages_untold ? UINT64_MAX : i->attr.version);
	inode_free(i);
}

void inodes_each(struct client *c, void (*each)(struct inode *i, void *context), void *context)
{
	struct inode **all;
	size_t position = 0, count = 0;
	uint64_t key;
	void *value;
	pthread_mutex_lock(&c->table_lock);
	all = malloc((c->inodes.used + 1) * sizeof(struct inode *));
	while (all && intmap_next(&c->inodes, &position, &key, &value)) {
		all[count++] = value;
		all[count - 1]->refs++;
	}
	pthread_mutex_unlock(&c->table_lock);
	if (!all)
		log_error("volume %s: no memory to go through the open files", c->volume.name);
	for (size_t k = 0; k < count; k++) {
		each(all[k], context);
		inode_unref(all[k]);
	}
	free(all);
}

bool close_wait(struct client *c, uint64_t number)
{
	bool waited = false;
	LOCKED(&c->table_lock);
	while (intmap_get(&c->closes, number) == &close_in_flight) {
		pthread_cond_wait(&c->close_sent, &c->table_lock);
		waited = true;
	}
	return intmap_remove(&c->closes, number) || waited;
}

/* *number: they were opened with lower ones. */
static size_t closes_take(struct client *c, uint64_t *out, size_t most, uint64_t *number)
{
	size_t position = 0, count = 0;
	uint64_t key;
	void *value;
	LOCKED(&c->table_lock);
	while (count < most && intmap_next(&c->closes, &position, &key, &value))
		if (value == &close_waiting)
			out[count++] = key;
	for (size_t i = 0; i < count; i++)
		intmap_set(&c->closes, out[i], &close_in_flight);
	*number = atomic_load(&c->open_number);
	return count;
}

void closes_send(struct client *c)
{
	uint64_t inodes[CLOSES_AT_ONCE], number;
	size_t count;
	while ((count = closes_take(c, inodes, CLOSES_AT_ONCE, &number)) > 0) {
		Wire__CloseRequest request = WIRE__CLOSE_REQUEST__INIT;
		struct arena arena;
		int r;
		request.n_inodes = count;
		request.inodes = inodes;
		request.number = number;
		arena_init(&arena, 0);
		r = client_call(c, WIRE__OP__CLOSE, &request, &arena, NULL);
		arena_free(&arena);
		pthread_mutex_lock(&c->table_lock);
		for (size_t i = 0; i < count; i++)
			intmap_remove(&c->closes, inodes[i]);
		pthread_cond_broadcast(&c->close_sent);
		pthread_mutex_unlock(&c->table_lock);
		/* A server that restarts has forgotten them anyway. */
		if (r < 0)
			return;
	}
}

void inode_attr_set(struct inode *i, const struct attr *a)
{
	/* Two answers may arrive in the other order than they were given. */
	if (i->attr_known && a->version < i->attr.version)
		return;
	i->attr = *a;
	i->attr_known = true;
}

bool inode_has_unstored(const struct inode *i) { return i->dirty.count > 0 || i->storing.count > 0; }

uint64_t inode_size(const struct inode *i)
{
	uint64_t size = i->attr.size;
	if (segments_end(&i->storing) > size)
		size = segments_end(&i->storing);
	if (segments_end(&i->dirty) > size)
		size = segments_end(&i->dirty);
	return size;
}

void inode_cut_unstored(struct inode *i, uint64_t size)
{
	uint64_t before = i->dirty.bytes;
	int64_t cost = 0;
	segments_cut(&i->dirty, size, &cost);
	uploader_note(i, cost, (int64_t)(i->dirty.bytes - before), false);
	writeback_tend(i);
}

void inode_overlay(const struct inode *i, struct attr *a)
{
	if (!inode_has_unstored(i))
		return;
	if (segments_end(&i->storing) > a->size)
		a->size = segments_end(&i->storing);
	if (segments_end(&i->dirty) > a->size)
		a->size = segments_end(&i->dirty);
	/* st_blocks, roughly: overwritten bytes count twice until they are stored. */
	a->allocated += i->storing.bytes + i->dirty.bytes;
	if (a->allocated > a->size)
		a->allocated = a->size;
	a->mtime_ns = i->mtime_ns;
	if (i->ctime_ns > a->ctime_ns)
		a->ctime_ns = i->ctime_ns;
}

void attr_overlay(struct client *c, struct attr *a)
{
	struct inode *i;
	if (!client_has_unstored(c))
		return;
	i = inode_get(c, a->inode);
	if (!i)
		return;
	pthread_mutex_lock(&i->lock);
	inode_overlay(i, a);
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
}

static uint64_t seen_mark(uint64_t inode, uint64_t version)
{
	uint64_t key[2] = { inode, version };
	return XXH3_64bits(key, sizeof(key));
}

void seen_set(struct client *c, uint64_t inode, uint64_t version)
{
	atomic_store(&c->seen[inode % SEEN_SLOTS], seen_mark(inode, version));
}

bool seen_is(struct client *c, uint64_t inode, uint64_t version)
{
	return atomic_load(&c->seen[inode % SEEN_SLOTS]) == seen_mark(inode, version);
}
