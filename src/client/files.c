#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "client/state.h"

/* Opening and closing.  The server is told of an open before the file is used, so
 * that a file without a name is kept for as long as somebody has it open. */

#define OPEN_EXTENTS 64

static bool flags_write(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

static struct client_file *file_new(struct inode *i, int flags)
{
	struct client_file *f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->inode = i;
	f->flags = flags;
	f->writes = flags_write(flags);
	pthread_mutex_lock(&i->lock);
	i->opens++;
	i->writers += f->writes;
	f->removals = atomic_load(&i->pages.removals);
	pthread_mutex_unlock(&i->lock);
	return f;
}

/* From before the call on: a server that restarts in between is told of it. */
static void inode_register(struct inode *i)
{
	LOCKED(&i->client->table_lock);
	i->registered = true;
}

/* The lock is held. */
static int open_take(struct inode *i, const Wire__ExtentsReply *reply, bool held, uint64_t generation, uint64_t recalls,
		     bool *unchanged)
{
	struct client *c = i->client;
	int r = 0;
	if (i->local && open_told(i, reply, recalls)) {
		*unchanged = !i->pages_old;
	} else {
		*unchanged = held ? i->recalls == recalls && !i->pages_old : seen_is(c, i->number, reply->version);
		if (!held && i->grant == WIRE__GRANT__GRANT_NONE)
			r = window_take(i, reply, 0, generation);
		if (r == 0 && i->window.known && i->window.count == 1 && i->attr.version == reply->version)
			layouts_learn(&c->layouts, &i->attr, i->window.extents);
		if (r == 0)
			holding_take(i, reply->grant, recalls);
	}
	*unchanged = *unchanged && i->grant != WIRE__GRANT__GRANT_NONE;
	i->contested = i->contested || i->grant == WIRE__GRANT__GRANT_NONE;
	if (!*unchanged)
		i->pages_old = true;
	return r == -EAGAIN ? 0 : r; /* what came with it was too old: then it is asked for again */
}

int inode_open(struct inode *i, bool write, bool *unchanged)
{
	struct client *c = i->client;
	Wire__OpenRequest request = WIRE__OPEN_REQUEST__INIT;
	Wire__ExtentsReply *reply;
	struct arena arena;
	uint64_t generation, recalls;
	bool held;
	int r;
	close_wait(c, i->number);
	inode_register(i);
	request.inode = i->number;
	request.max_extents = OPEN_EXTENTS;
	request.number = atomic_fetch_add(&c->open_number, 1) + 1;
	pthread_mutex_lock(&i->lock);
	generation = i->window.generation;
	recalls = i->recalls;
	held = i->grant != WIRE__GRANT__GRANT_NONE && !i->local;
	request.want = holding_wanted(i, write);
	pthread_mutex_unlock(&i->lock);
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__OPEN, &request, &arena, &reply);
	if (r == 0) {
		LOCKED(&i->lock);
		r = open_take(i, reply, held, generation, recalls, unchanged);
	}
	arena_free(&arena);
	return r;
}

/* Of an upload, that nobody was told of yet. */
static int error_take(struct inode *i)
{
	int error;
	LOCKED(&i->lock);
	error = i->error;
	i->error = 0;
	return error;
}

/* The server counts it as open, and what was granted with that is as much as is needed now. */
static bool open_already(struct inode *i, bool write, bool *unchanged)
{
	Wire__Grant want;
	bool registered;
	pthread_mutex_lock(&i->client->table_lock);
	registered = i->registered;
	pthread_mutex_unlock(&i->client->table_lock);
	LOCKED(&i->lock);
	want = holding_wanted(i, write);
	if (!registered || i->local || i->newborn || !i->attr_known || want == WIRE__GRANT__GRANT_NONE || i->grant < want ||
	    i->recalling || i->claim || i->error || !lease_in_contact(i->client))
		return false;
	*unchanged = !i->pages_old;
	return true;
}

static int truncate_at_open(struct client *c, uint64_t inode, bool kill_suidgid, bool kill_sgid)
{
	struct client_setattr s = { .valid = SET_SIZE, .size = 0, .kill_suidgid = kill_suidgid, .kill_sgid = kill_sgid };
	struct entry entry;
	return client_setattr(c, inode, &s, &entry);
}

/* The kernel's pages are good: it is told when they are not (client_news).  What is marked is waited for by who reads it. */
static int open_replica(struct inode *i, int flags, bool *unchanged)
{
	int r;
	LOCKED(&i->lock);
	*unchanged = true;
	r = flags_write(flags) ? -EROFS : replica_refresh(i);
	return r == -EBUSY ? 0 : r;
}

void client_open_untold(struct client_file *f)
{
	LOCKED(&f->inode->lock);
	if (f->dropped)
		f->inode->pages_untold = true;
}

/* `unseen`: by ourselves; the error of an upload is for somebody else then. */
static int file_open(struct client *c, uint64_t inode, int flags, bool unseen, struct client_file **file, bool *unchanged)
{
	struct client_file *f;
	struct inode *i;
	int r = 0;
	*unchanged = false;
	i = inode_get_or_add(c, inode);
	if (!i)
		return -ENOMEM;
	/* It counts as a writer before it asks: GRANT_READ is not taken any more then. */
	f = file_new(i, flags);
	if (!f) {
		inode_unref(i);
		return -ENOMEM;
	}
	if (c->replica)
		r = open_replica(i, flags, unchanged);
	else if (!open_already(i, flags_write(flags), unchanged) && (flags_write(flags) || !open_locally(i, unchanged))) {
		r = inode_open(i, flags_write(flags), unchanged);
		if (r == 0 && !unseen)
			r = error_take(i);
	}
	f->dropped = !*unchanged;
	if (r == 0 && flags_write(flags))
		holding_for_writing(i);
	if (r == 0) {
		*file = f;
	} else {
		client_open_untold(f);
		client_release(f);
	}
	return r;
}

int client_open(struct client *c, uint64_t inode, int flags, bool kill_suidgid, bool kill_sgid, struct client_file **file,
		bool *unchanged)
{
	struct client_file *f;
	int r = file_open(c, inode, flags, false, &f, unchanged);
	if (r < 0)
		return r;
	if (flags & O_TRUNC)
		r = truncate_at_open(c, inode, kill_suidgid, kill_sgid);
	if (r < 0) {
		client_open_untold(f);
		client_release(f);
		return r;
	}
	pthread_mutex_lock(&f->inode->lock);
	f->inode->pages_untold = false;
	if (!*unchanged)
		pages_removal(f->inode); /* the kernel's own, when it is answered */
	f->removals = atomic_load(&f->inode->pages.removals);
	pthread_mutex_unlock(&f->inode->lock);
	told_seen(c, inode);
	*file = f;
	return 0;
}

int open_unseen(struct client *c, uint64_t inode, struct client_file **file)
{
	bool unchanged;
	int r = file_open(c, inode, O_RDONLY, true, file, &unchanged);
	if (r == 0)
		client_open_untold(*file);
	return r;
}

/* The file of a CREATE.  A new one is known to be empty; one that was there
 * already is opened like any other. */
/* *granted becomes none if it may have been asked back before the inode was known here. */
static int created(struct client *c, const struct entry *entry, Wire__Grant *granted, uint64_t epoch, int flags,
		   struct client_file **file)
{
	bool unchanged;
	struct inode *i;
	if (close_wait(c, entry->attr.inode) || *granted != WIRE__GRANT__GRANT_WRITE)
		return client_open(c, entry->attr.inode, flags, false, false, file, &unchanged);
	i = inode_get_or_add(c, entry->attr.inode);
	if (!i)
		return -ENOMEM;
	inode_register(i);
	pthread_mutex_lock(&i->lock);
	if (atomic_load(&c->holdings.epoch) != epoch)
		*granted = WIRE__GRANT__GRANT_NONE;
	if (!i->attr_known && *granted != WIRE__GRANT__GRANT_NONE) {
		inode_attr_set(i, &entry->attr);
		i->window.from = 0;
		i->window.to = UINT64_MAX;
		i->window.known = true;
		holding_take(i, *granted, i->recalls);
	}
	pthread_mutex_unlock(&i->lock);
	*file = file_new(i, flags);
	if (*file)
		return 0;
	inode_unref(i);
	return -ENOMEM;
}

static int create_call(struct client *c, uint64_t parent, const char *name, uint32_t mode, int flags,
		       const struct client_identity *who, struct client_file **file, struct entry *out)
{
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;
	Wire__EntryReply *reply;
	uint64_t epoch = atomic_load(&c->holdings.epoch);
	Wire__Grant granted = WIRE__GRANT__GRANT_NONE;
	struct entry entry = { 0 };
	struct arena arena;
	int r;
	request.parent = parent;
	request.name = (ProtobufCBinaryData){ .len = strlen(name), .data = (uint8_t *)name };
	request.mode = S_IFREG | (mode & 07777);
	request.umask = who->umask;
	request.uid = who->uid;
	request.gid = who->gid;
	request.open = true;
	request.exclusive = flags & O_EXCL;
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__CREATE, &request, &arena, &reply);
	if (r == 0) {
		entry.valid_ms = reply->valid_ms;
		granted = reply->grant;
		r = attr_unpack(reply->attr.data, reply->attr.len, &entry.attr) < 0 ? -EIO : 0;
	}
	arena_free(&arena);
	if (r == 0)
		r = created(c, &entry, &granted, epoch, flags, file);
	if (r < 0)
		return r;
	/* Of a file that was there others may know more. */
	if (granted == WIRE__GRANT__GRANT_NONE) {
		r = client_getattr(c, entry.attr.inode, &entry);
		if (r < 0) {
			client_open_untold(*file);
			client_release(*file);
			return r;
		}
	}
	attr_overlay(c, &entry.attr);
	*out = entry;
	return 0;
}

/* Without asking the server, where that can be; -EAGAIN: not. */
static int create_newborn(struct client *c, uint64_t parent, const char *name, uint32_t mode, int flags,
			  const struct client_identity *who, struct client_file **file, struct entry *out)
{
	struct inode *i;
	int r = newborn_make(c, parent, name, mode, who, &i, out);
	if (r < 0)
		return r;
	*file = file_new(i, flags);
	if (*file)
		return 0;
	inode_unref(i);
	return -ENOMEM;
}

int client_create(struct client *c, uint64_t parent, const char *name, uint32_t mode, int flags,
		  const struct client_identity *who, struct client_file **file, struct entry *out)
{
	struct catalog_change change;
	int r = create_newborn(c, parent, name, mode, flags, who, file, out);
	if (r != -EAGAIN)
		return r;
	catalog_begin(&c->catalog, parent, &change);
	r = create_call(c, parent, name, mode, flags, who, file, out);
	catalog_added(&c->catalog, &change, name, 0);
	catalog_end(&c->catalog, &change);
	if (r == 0)
		habit_made(c, parent);
	return r;
}

int client_tmpfile(struct client *c, uint64_t parent, uint32_t mode, const struct client_identity *who, struct client_file **file,
		   struct entry *out)
{
	return create_call(c, parent, "", mode, O_EXCL, who, file, out);
}

void client_release(struct client_file *f)
{
	struct inode *i = f->inode;
	ahead_end(f);
	if (i->client->cache && !f->writes)
		backing_complete(i, atomic_load(&f->read_bytes));
	pthread_mutex_lock(&i->lock);
	i->opens--;
	i->writers -= f->writes;
	if (f->writes && !i->writers && i->dirty.count)
		uploader_closed(i);
	pthread_mutex_unlock(&i->lock);
	/* By another thread, as making the kernel forget pages takes long. */
	if (passed_is_due(i))
		prefetch_aside(i, 0, 0);
	inode_unref(i);
	free(f);
}

static int flush(struct inode *i) { return writeback_is_on(i->client) ? writeback_fsync(i) : inode_flush(i); }

/* The server is told of a new file while its data is stored, and may refuse it; nothing to
 * store does not mean that it knows the file. */
static int fsync_inode(struct inode *i)
{
	bool newborn;
	int r;
	pthread_mutex_lock(&i->lock);
	newborn = i->newborn;
	pthread_mutex_unlock(&i->lock);
	if (!newborn)
		return flush(i);
	newborns_hasten(i->client);
	r = flush(i);
	if (r == 0)
		r = newborns_settle(i->client);
	return r < 0 ? r : flush(i);
}

int client_fsync(struct client_file *f) { return fsync_inode(f->inode); }

int client_fsync_all(struct client *c)
{
	int r = newborns_settle(c);
	if (r == 0 && writeback_is_on(c))
		return client_secure_all(c);
	return r < 0 ? r : client_store_all(c);
}
