#include <errno.h>
#include "base/cleanup.h"
#include "client/state.h"
#include "meta/listing.h"

/* A directory whose names are not known costs a call for each of them.  After a few
 * calls it is listed, in one or a few more, and the catalog answers from then on.  A
 * listing for looking comes with the attributes, one for making files does not need
 * them. */

#define LOOK_AFTER 8u
#define LOOK_NAMES 20000u
#define MAKE_AFTER 3u
#define MAKE_NAMES 100000u
#define LIST_BYTES (256u << 10)
#define NEVER UINT32_MAX /* it is too large */

static struct habit *habit_of(struct client *c, uint64_t directory)
{
	struct habit *h = &c->habits.slots[directory % HABITS_SLOTS];

	if (h->directory != directory)
		*h = (struct habit){ .directory = directory };
	return h;
}

static bool is_due(uint32_t *count, uint32_t after)
{
	if (*count == NEVER || ++*count < after)
		return false;
	*count = 0;
	return true;
}

static void attr_add(struct client *c, const struct catalog_listing *l, uint64_t directory, uint64_t begun, const struct attr *a,
		     uint32_t valid_ms)
{
	if (valid_ms)
		attrs_learn(&c->attrs, begun, a, valid_ms);
	else if (!(a->flags & ATTR_BEING_WRITTEN) && attr_cover(a) == directory)
		attrs_learn_granted(&c->attrs, begun, a, l->id);
}

/* The names of one answer; *cookie is the last one's. */
static int names_add(struct client *c, struct catalog_listing *l, uint64_t directory, const Wire__ReaddirReply *reply,
		     uint64_t begun, uint64_t *cookie, uint32_t *count)
{
	struct reader in = reader_of(reply->entries.data, reply->entries.len);
	struct listing_entry entry;
	struct attr own;
	int r;

	if (reply->attr.len && attr_unpack(reply->attr.data, reply->attr.len, &own) == 0 && own.inode == directory)
		attr_add(c, l, directory, begun, &own, reply->valid_ms);
	while ((r = listing_next(&in, &entry)) > 0) {
		*cookie = entry.cookie;
		++*count;
		r = catalog_listing_add(&c->catalog, l, entry.name, entry.name_length, entry.inode);
		if (r < 0)
			return r;
		if (entry.has_attr)
			attr_add(c, l, directory, begun, &entry.attr, reply->valid_ms);
		if (entry.has_extent)
			layouts_learn(&c->layouts, &entry.attr, &entry.extent);
	}
	return r;
}

static int names_fetch(struct client *c, struct catalog_listing *l, uint64_t directory, bool attributes, uint32_t most)
{
	Wire__ReaddirRequest request = WIRE__READDIR_REQUEST__INIT;
	Wire__ReaddirReply *reply;
	uint32_t count = 0;
	bool end = false;
	int r = 0;

	request.inode = directory;
	request.max_bytes = LIST_BYTES;
	request.attributes = attributes;
	request.grant = !lease_held(c);
	request.extents = attributes && !request.grant;
	while (r == 0 && !end) {
		uint64_t begun = attrs_begin(&c->attrs);
		struct arena arena;

		arena_init(&arena, 0);
		r = client_call(c, WIRE__OP__READDIR, &request, &arena, &reply);
		if (r == 0 && request.grant && request.cookie == 0 && !reply->granted)
			r = -EAGAIN;
		if (r == 0)
			r = names_add(c, l, directory, reply, begun, &request.cookie, &count);
		if (r == 0) {
			end = reply->end;
			r = count > most ? -E2BIG : !end && reply->entries.len == 0 ? -EIO : 0;
		}
		arena_free(&arena);
	}
	return r;
}

/* -E2BIG: it has too many names; -EAGAIN: something was changed meanwhile. */
static int list(struct client *c, uint64_t directory, bool attributes, uint32_t most)
{
	struct catalog_listing l;
	int r;

	if (!catalog_listing_begin(&c->catalog, directory, &l))
		return -EAGAIN;
	r = names_fetch(c, &l, directory, attributes, most);
	return catalog_listing_end(&c->catalog, &l, r == 0) ? 0 : r < 0 ? r : -EAGAIN;
}

/* Of a tree with more files than can be kept single ones are cheaper to ask for; and half of the catalog is for directories
 * in which files are made. */
static bool has_room(struct client *c)
{
	return (!c->volume.relaxed || lease_held(c)) && catalog_has_room(&c->catalog) && attrs_have_room(&c->attrs);
}

/* Then nothing can be kept of it, and it need not bring what is for that. */
static bool comes_in_parts(struct client *c, uint64_t directory, uint32_t max_bytes)
{
	const struct habit *h = &c->habits.slots[directory % HABITS_SLOTS];
	LOCKED(&c->habits.lock);

	return h->directory == directory && max_bytes <= h->parts_bytes;
}

bool listing_begin(struct client *c, uint64_t directory, uint32_t max_bytes, struct listing_seen *s)
{
	s->begun = attrs_begin(&c->attrs);
	s->grant = !lease_held(c);
	return !comes_in_parts(c, directory, max_bytes) && has_room(c) &&
	       catalog_listing_begin(&c->catalog, directory, &s->listing);
}

void listing_end(struct client *c, uint64_t directory, struct listing_seen *s, const Wire__ReaddirReply *reply)
{
	bool whole = reply && reply->end && (!s->grant || reply->granted);
	uint64_t cookie;
	uint32_t count = 0;

	if (whole)
		whole = names_add(c, &s->listing, directory, reply, s->begun, &cookie, &count) == 0;
	catalog_listing_end(&c->catalog, &s->listing, whole);
}

void habit_listed(struct client *c, uint64_t directory, uint32_t max_bytes, bool whole)
{
	LOCKED(&c->habits.lock);
	if (!whole)
		habit_of(c, directory)->parts_bytes = max_bytes;
	else if (c->habits.slots[directory % HABITS_SLOTS].directory == directory)
		habit_of(c, directory)->parts_bytes = 0;
}

bool habit_looked(struct client *c, uint64_t directory)
{
	bool due;
	int r;

	pthread_mutex_lock(&c->habits.lock);
	due = is_due(&habit_of(c, directory)->looked, LOOK_AFTER);
	pthread_mutex_unlock(&c->habits.lock);
	if (!due || !has_room(c))
		return false;
	r = list(c, directory, true, LOOK_NAMES);
	if (r == -E2BIG) {
		LOCKED(&c->habits.lock);
		habit_of(c, directory)->looked = NEVER;
	}
	return r == 0;
}

void habit_made(struct client *c, uint64_t directory)
{
	bool due;

	if (!lease_held(c))
		return;
	pthread_mutex_lock(&c->habits.lock);
	due = is_due(&habit_of(c, directory)->made, MAKE_AFTER);
	pthread_mutex_unlock(&c->habits.lock);
	if (due && list(c, directory, false, MAKE_NAMES) == -E2BIG) {
		LOCKED(&c->habits.lock);
		habit_of(c, directory)->made = NEVER;
	}
}
