/* Which object ids are a session's: those meta has on record for it, of which the newest are remembered. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "server/state.h"

#define RANGES_KEPT 64

static bool ranges_hold(const struct session *n, uint64_t object)
{
	for (size_t i = 0; i < n->range_count; i++)
		if (object - n->ranges[i].first < n->ranges[i].count)
			return true;
	return false;
}

/* The lock is held.  The newest RANGES_KEPT: a writer uses the last ones. */
static void ranges_note(struct session *n, struct range range)
{
	if (!n->ranges)
		n->ranges = malloc(RANGES_KEPT * sizeof(*n->ranges));
	if (!n->ranges)
		return; /* asked again next time */
	if (n->range_count == RANGES_KEPT)
		memmove(n->ranges, n->ranges + 1, --n->range_count * sizeof(*n->ranges));
	n->ranges[n->range_count++] = range;
}

/* The range in meta that holds the id: see TABLE_RANGE. */
static int range_look_up(struct view *v, uint64_t session, uint64_t object, struct range *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[8];
	int r = cursor_open(&c, v, TABLE_RANGE);

	if (r)
		return r;
	put_be64(key, object);
	r = cursor_seek(&c, key, sizeof(key));
	if (r == -ENOENT)
		r = cursor_last(&c);
	else if (!r && get_be64(c.key.data) != object)
		r = cursor_previous(&c);
	if (r)
		return r == -ENOENT ? -ESTALE : r;
	if (c.key.size != 8 || c.value.size != 12)
		return -EBADMSG;
	*out = (struct range){ get_be64(c.key.data), get_le32(c.value.data) };
	return object - out->first < out->count && get_le64(c.value.data + 4) == session ? 0 : -ESTALE;
}

int session_owns_object(struct server *s, struct session *session, uint64_t object)
{
	struct range range;
	struct view view;
	bool known, ended;
	int r;

	pthread_mutex_lock(&session->lock);
	ended = session->ended;
	known = ranges_hold(session, object);
	pthread_mutex_unlock(&session->lock);
	if (ended)
		return -ESTALE;
	if (known)
		return 0;
	r = meta_view_begin(s->meta, &view);
	if (r)
		return r;
	r = range_look_up(&view, session->id, object, &range);
	meta_view_end(&view);
	if (r)
		return r;
	LOCKED(&session->lock);
	if (!ranges_hold(session, object))
		ranges_note(session, range);
	return 0;
}
