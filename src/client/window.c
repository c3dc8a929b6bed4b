#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "client/state.h"

/* A window holds a stretch of a file's extents.  Reading moves it along; every
 * change of the content by this client drops it, and an answer that was asked for
 * before such a change is not taken in. */

#define WINDOW_EXTENTS 1024

void window_drop(struct inode *i)
{
	i->window.known = false;
	i->window.count = 0;
	i->window.generation++;
}

size_t window_find(const struct window *w, uint64_t offset)
{
	size_t low = 0, high = w->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (extent_end(&w->extents[middle]) > offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static int extents_unpack(const Wire__ExtentsReply *reply, struct extent **out, size_t *count)
{
	struct reader in = reader_of(reply->extents.data, reply->extents.len);
	size_t n = reply->extents.len / EXTENT_PACKED;
	struct extent *extents = malloc((n + 1) * sizeof(*extents));
	if (!extents)
		return -ENOMEM;
	for (size_t k = 0; k < n; k++) {
		if (extent_unpack(&in, &extents[k]) < 0 || (k > 0 && extents[k].offset < extent_end(&extents[k - 1]))) {
			free(extents);
			return -EIO;
		}
	}
	*out = extents;
	*count = n;
	return 0;
}

int window_take(struct inode *i, const Wire__ExtentsReply *reply, uint64_t from, uint64_t generation)
{
	struct window *w = &i->window;
	struct extent *extents;
	struct attr attr;
	size_t count;
	int r;
	if (attr_unpack(reply->attr.data, reply->attr.len, &attr) < 0)
		return -EIO;
	r = extents_unpack(reply, &extents, &count);
	if (r < 0)
		return r;
	/* Two answers may arrive in the other order than they were given; extents of one version do not go with another. */
	if (w->generation != generation || (i->attr_known && attr.version < i->attr.version)) {
		free(extents);
		return -EAGAIN;
	}
	inode_attr_set(i, &attr);
	free(w->extents);
	w->extents = extents;
	w->count = count;
	w->from = from;
	w->to = reply->next ? reply->next : UINT64_MAX;
	w->known = true;
	w->valid_until_ns = clock_steady_ns() + (int64_t)reply->valid_ms * NS_PER_MS;
	return 0;
}

static int window_ask(struct inode *i, uint64_t from, uint32_t most)
{
	Wire__ExtentsRequest request = WIRE__EXTENTS_REQUEST__INIT;
	uint64_t generation = i->window.generation;
	Wire__ExtentsReply *reply;
	struct arena arena;
	int r;
	request.inode = i->number;
	request.from = from;
	request.max = most;
	/* Of a file the server does not know to be open it would keep the grant after it was closed. */
	request.want = i->local ? WIRE__GRANT__GRANT_NONE : i->grant;
	arena_init(&arena, 0);
	pthread_mutex_unlock(&i->lock);
	r = client_call_at_once(i->client, WIRE__OP__EXTENTS, &request, &arena, &reply);
	pthread_mutex_lock(&i->lock);
	if (r == 0)
		r = window_take(i, reply, from, generation);
	arena_free(&arena);
	return r;
}

bool window_is_good(const struct inode *i)
{
	return i->window.known &&
	       (i->client->replica || i->grant != WIRE__GRANT__GRANT_NONE || clock_steady_ns() < i->window.valid_until_ns);
}

int window_cover(struct inode *i, uint64_t from, uint64_t to)
{
	struct window *w = &i->window;
	uint32_t most = WINDOW_EXTENTS;
	bool fresh = false;
	for (int tries = 0; tries < 1000; tries++) {
		int r = inode_acquire(i, false, NO_PAGES);
		if (r < 0)
			return r;
		if (w->known && (fresh || window_is_good(i)) && w->from <= from && to <= w->to)
			return 0;
		/* The stretch holds more extents than were asked for: ask for more. */
		if (fresh && w->known && w->from <= from)
			most = most < 65536 ? most * 4 : most;
		r = window_ask(i, from, most);
		if (r < 0 && r != -EAGAIN)
			return r;
		fresh = r == 0;
	}
	return -EIO;
}
