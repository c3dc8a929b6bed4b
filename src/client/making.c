#include <errno.h>
#include "base/cleanup.h"
#include "client/state.h"
#include "meta/listing.h"

/* Files made in a directory whose names are not known need a call each.  After a few
 * of them the names are fetched: what follows needs none (newborn.h). */

#define LIST_AFTER 3u
#define LIST_BYTES (256u << 10)
#define LIST_NAMES 100000u
#define NEVER UINT32_MAX

static bool listing_due(struct client *c, uint64_t directory)
{
	struct makings *m = &c->makings;
	uint64_t slot = directory % MAKINGS_SLOTS;
	LOCKED(&m->lock);

	if (m->slots[slot].directory != directory) {
		m->slots[slot].directory = directory;
		m->slots[slot].count = 0;
	}
	if (m->slots[slot].count == NEVER || ++m->slots[slot].count < LIST_AFTER)
		return false;
	m->slots[slot].count = 0;
	return true;
}

static void listing_hopeless(struct client *c, uint64_t directory)
{
	struct makings *m = &c->makings;
	LOCKED(&m->lock);

	if (m->slots[directory % MAKINGS_SLOTS].directory == directory)
		m->slots[directory % MAKINGS_SLOTS].count = NEVER;
}

/* The names of one answer; *cookie is the last one's. */
static int names_add(struct client *c, struct catalog_listing *l, const struct buf *packed, uint64_t *cookie, uint32_t *count)
{
	struct reader in = reader_of(packed->data, packed->len);
	struct listing_entry entry;
	int r;

	while ((r = listing_next(&in, &entry)) > 0) {
		*cookie = entry.cookie;
		++*count;
		r = catalog_listing_add(&c->catalog, l, entry.name, entry.name_length);
		if (r < 0)
			return r;
	}
	return r;
}

static int names_fetch(struct client *c, struct catalog_listing *l, uint64_t directory)
{
	CLEANUP_BUF struct buf packed = { 0 };
	uint32_t count = 0, valid_ms;
	uint64_t cookie = 0;
	bool end = false;
	int r = 0;

	while (r == 0 && !end) {
		r = client_readdir(c, directory, cookie, LIST_BYTES, false, &packed, &end, &valid_ms);
		if (r == 0)
			r = names_add(c, l, &packed, &cookie, &count);
		if (r == 0 && count > LIST_NAMES)
			r = -E2BIG;
		if (r == 0 && !end && packed.len == 0)
			r = -EIO;
	}
	return r;
}

void making_note(struct client *c, uint64_t directory)
{
	struct catalog_listing l;
	int r;

	if (!lease_held(c) || !listing_due(c, directory) || !catalog_listing_begin(&c->catalog, directory, &l))
		return;
	r = names_fetch(c, &l, directory);
	if (!catalog_listing_end(&c->catalog, &l, r == 0) && r == -E2BIG)
		listing_hopeless(c, directory);
}
