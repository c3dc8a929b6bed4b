#include "client/opens.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define ALIVE_NS (2 * NS_PER_S)

/* The lock is held: an inode nothing is known of yet, or one that is open in this way already. */
static bool content_known(struct inode *i)
{
	struct client *c = i->client;
	struct window *w = &i->window;
	struct extent *e;
	struct attr a;

	if (i->local)
		return w->known && w->from == 0 && w->to == UINT64_MAX;
	if (i->attr_known || i->writers || !attrs_find(&c->attrs, i->number, lease_left_ms(c), &a) || !S_ISREG(a.mode) ||
	    !a.nlink)
		return false;
	e = malloc(sizeof(*e));
	if (!e)
		return false;
	if (a.size && !layouts_find(&c->layouts, &a, e)) {
		free(e);
		return false;
	}
	inode_attr_set(i, &a);
	window_drop(i);
	w->extents = e;
	w->count = a.size != 0;
	w->from = 0;
	w->to = UINT64_MAX;
	w->known = true;
	return true;
}

/* The order, with the inode in the table: it is counted; then it is looked whether somebody removes names, who looks at the
 * count after he has said so; then what is known of it, which one who has removed it has made this client forget.  And opens_tell
 * goes through the table after the lease has gone. */
bool open_locally(struct inode *i, bool *unchanged)
{
	struct client *c = i->client;
	LOCKED(&i->lock);

	if (!i->local)
		atomic_fetch_add(&c->opens.local, 1);
	if (!atomic_load(&c->opens.removals) && lease_held(c) && !i->recalling && !i->claim && !i->error && content_known(i)) {
		*unchanged = i->local ? !i->pages_old : seen_is(c, i->number, i->attr.version);
		i->pages_old = !*unchanged;
		i->local = true;
		i->grant = WIRE__GRANT__GRANT_READ;
		return true;
	}
	if (!i->local)
		atomic_fetch_sub(&c->opens.local, 1);
	return false;
}

void open_local_end(struct inode *i)
{
	if (!i->local)
		return;
	i->local = false;
	atomic_fetch_sub(&i->client->opens.local, 1);
	if (i->grant != WIRE__GRANT__GRANT_NONE && !i->pages_old)
		seen_set(i->client, i->number, i->attr.version);
	i->grant = WIRE__GRANT__GRANT_NONE;
	passed_doubt(i);
	i->recalls++;
	window_drop(i);
}

bool open_told(struct inode *i, const Wire__ExtentsReply *reply, uint64_t recalls)
{
	bool enough = reply->grant == WIRE__GRANT__GRANT_WRITE || (reply->grant == WIRE__GRANT__GRANT_READ && !i->writers);

	if (i->recalls != recalls || i->attr.version != reply->version || !enough) {
		open_local_end(i);
		return false;
	}
	i->local = false;
	atomic_fetch_sub(&i->client->opens.local, 1);
	i->grant = i->at_server = reply->grant;
	if (reply->grant == WIRE__GRANT__GRANT_WRITE)
		i->granted_under = lease_number(i->client);
	return true;
}

/* ---- Telling ---- */

/* With the grant, so that pages stay good; those of what was changed after the lease had run out are forgotten. */
static int inode_tell(struct inode *i)
{
	bool local, unchanged = false;
	int r;

	pthread_mutex_lock(&i->lock);
	local = i->local;
	pthread_mutex_unlock(&i->lock);
	if (!local)
		return 0;
	r = inode_open(i, false, &unchanged);
	if (r < 0)
		log_warn("volume %s, inode %lu: it is open here, but the server cannot be told: %s", i->client->volume.name,
			 (unsigned long)i->number, strerror(-r));
	if (r < 0 || !unchanged)
		holding_forget_pages(i);
	return r;
}

struct telling {
	void (*alive)(struct client *c);
	int64_t next_ns;
};

static void tell_one(struct inode *i, void *context)
{
	struct telling *t = context;

	if (atomic_load(&i->client->lease.stopping))
		return;
	if (inode_tell(i) < 0) { /* the lease goes all the same, and what was granted by it */
		pthread_mutex_lock(&i->lock);
		open_local_end(i);
		pthread_mutex_unlock(&i->lock);
	}
	if (monotonic_ns() < t->next_ns)
		return;
	t->alive(i->client);
	t->next_ns = monotonic_ns() + ALIVE_NS;
}

void opens_tell(struct client *c, void (*alive)(struct client *c))
{
	struct telling t = { alive, monotonic_ns() + ALIVE_NS };

	if (atomic_load(&c->opens.local))
		inodes_each(c, tell_one, &t);
}

/* ---- Removing ---- */

int removal_begin(struct client *c, uint64_t parent, const char *name)
{
	struct entry e;
	struct inode *i;
	int r;

	atomic_fetch_add(&c->opens.removals, 1);
	if (!atomic_load(&c->opens.local))
		return 0;
	r = client_lookup(c, parent, name, &e);
	/* If the name is not there, the call itself says so. */
	i = r == 0 ? inode_get(c, e.attr.inode) : NULL;
	if (i) {
		r = inode_tell(i);
		inode_unref(i);
	}
	if (r < 0 && r != -ENOENT)
		removal_end(c);
	return r == -ENOENT ? 0 : r;
}

void removal_end(struct client *c) { atomic_fetch_sub(&c->opens.removals, 1); }
