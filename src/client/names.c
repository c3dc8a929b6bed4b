#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "client/state.h"
#include "meta/listing.h"

/* Names: each is one call to the server, but for what the catalog knows.  Attributes
 * that come back do not know of data this client has not stored yet; they are
 * corrected here. */

static ProtobufCBinaryData bytes_of(const char *text)
{
	return (ProtobufCBinaryData){ .len = strlen(text), .data = (uint8_t *)text };
}

int entry_take(struct client *c, const Wire__EntryReply *reply, uint64_t commits_before, struct entry *out)
{
	struct entry entry = { .valid_ms = reply->valid_ms };
	int r = attr_unpack(reply->attr.data, reply->attr.len, &entry.attr);
	if (r < 0)
		return -EIO;
	attr_overlay(c, &entry.attr);
	if (atomic_load(&c->commits) != commits_before)
		return client_getattr(c, entry.attr.inode, out);
	*out = entry;
	return 0;
}

/* One call whose answer is an entry. */
static int entry_call(struct client *c, uint16_t op, const void *request, struct entry *out)
{
	uint64_t commits = atomic_load(&c->commits);
	Wire__EntryReply *reply;
	struct arena arena;
	int r;
	arena_init(&arena, 0);
	r = client_call(c, op, request, &arena, &reply);
	if (r == 0)
		r = entry_take(c, reply, commits, out);
	arena_free(&arena);
	return r;
}

/* Makes a name: as entry_call, and the catalog knows of it.  An answer that was lost, or a name
 * that was there already, makes it one to be asked for. */
static int making_call(struct client *c, uint16_t op, const void *request, uint64_t parent, const char *name, struct entry *out)
{
	struct catalog_change change;
	int r;
	catalog_begin(&c->catalog, parent, &change);
	r = entry_call(c, op, request, out);
	catalog_added(&c->catalog, &change, name, r == 0 ? out->attr.inode : 0);
	if (r == 0 && S_ISDIR(out->attr.mode) && lease_held(c))
		catalog_made(&c->catalog, &change, out->attr.inode);
	catalog_end(&c->catalog, &change);
	return r;
}

/* In company, under the grant of the directory. */
static bool granted_known(struct client *c, uint64_t inode, struct attr *out)
{
	uint64_t grant = lease_in_contact(c) ? attrs_find_granted(&c->attrs, inode, out) : 0;
	return grant && catalog_grant(&c->catalog, attr_cover(out), UINT64_MAX) == grant;
}

static bool is_contested(struct client *c, uint64_t inode)
{
	struct inode *i = inode_get(c, inode);
	bool contested;
	if (!i)
		return false;
	pthread_mutex_lock(&i->lock);
	contested = i->contested;
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
	return contested;
}

/* The attributes of an inode, if they are known.  A commit that comes in between takes away
 * what they are corrected by. */
static bool entry_known(struct client *c, uint64_t inode, struct entry *out)
{
	uint64_t commits = atomic_load(&c->commits);
	if (newborn_entry(c, inode, out))
		return true;
	*out = (struct entry){ 0 };
	out->valid_ms = attrs_find(&c->attrs, inode, lease_left_ms(c), &out->attr);
	if (!out->valid_ms) {
		out->granted_ms = lease_contact_ms(c);
		if (!granted_known(c, inode, &out->attr))
			return false;
		out->contested = is_contested(c, inode);
	}
	attr_overlay(c, &out->attr);
	return atomic_load(&c->commits) == commits;
}

/* Without asking the server: 0, -ENOENT; -EAGAIN: it must be asked. */
static int lookup_known(struct client *c, uint64_t parent, const char *name, struct entry *out)
{
	enum catalog_answer answer;
	uint64_t inode;
	if (!lease_in_contact(c))
		return -EAGAIN;
	answer = catalog_find(&c->catalog, parent, name, &inode);
	if (answer == CATALOG_UNKNOWN && habit_looked(c, parent))
		answer = catalog_find(&c->catalog, parent, name, &inode);
	if (answer == CATALOG_ABSENT) {
		*out = (struct entry){ .valid_ms = lease_left_ms(c) };
		return -ENOENT;
	}
	return answer == CATALOG_PRESENT && inode && entry_known(c, inode, out) ? 0 : -EAGAIN;
}

int client_lookup(struct client *c, uint64_t parent, const char *name, struct entry *out)
{
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;
	int r = c->replica ? replica_find(c, parent, name, out) : lookup_known(c, parent, name, out);
	if (r != -EAGAIN)
		return r;
	request.parent = parent;
	request.name = bytes_of(name);
	*out = (struct entry){ 0 };
	return entry_call(c, WIRE__OP__LOOKUP, &request, out);
}

int client_getattr(struct client *c, uint64_t inode, struct entry *out)
{
	if (c->replica)
		return replica_entry(c, inode, out);
	if (entry_known(c, inode, out))
		return 0;
	/* Bounded: a commit in between is rare, and then the next answer is newer. */
	for (int tries = 0; tries < 1000; tries++) {
		uint64_t commits = atomic_load(&c->commits);
		Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
		struct entry entry = { 0 };
		Wire__EntryReply *reply;
		struct arena arena;
		int r;
		request.inode = inode;
		arena_init(&arena, 0);
		r = client_call(c, WIRE__OP__GETATTR, &request, &arena, &reply);
		if (r == 0) {
			entry.valid_ms = reply->valid_ms;
			r = attr_unpack(reply->attr.data, reply->attr.len, &entry.attr) < 0 ? -EIO : 0;
		}
		arena_free(&arena);
		if (r < 0)
			return r;
		attr_overlay(c, &entry.attr);
		if (atomic_load(&c->commits) == commits) {
			*out = entry;
			return 0;
		}
	}
	return -EIO;
}

static void create_request(Wire__CreateRequest *request, uint64_t parent, const char *name, uint32_t mode,
			   const struct client_identity *who)
{
	wire__create_request__init(request);
	request->parent = parent;
	request->name = bytes_of(name);
	request->mode = mode;
	request->umask = who->umask;
	request->uid = who->uid;
	request->gid = who->gid;
	request->exclusive = true;
}

int client_mknod(struct client *c, uint64_t parent, const char *name, uint32_t mode, uint64_t rdev,
		 const struct client_identity *who, struct entry *out)
{
	Wire__CreateRequest request;
	create_request(&request, parent, name, mode, who);
	request.rdev = rdev;
	return making_call(c, WIRE__OP__CREATE, &request, parent, name, out);
}

int client_mkdir(struct client *c, uint64_t parent, const char *name, uint32_t mode, const struct client_identity *who,
		 struct entry *out)
{
	Wire__CreateRequest request;
	create_request(&request, parent, name, S_IFDIR | (mode & 07777), who);
	return making_call(c, WIRE__OP__CREATE, &request, parent, name, out);
}

int client_symlink(struct client *c, uint64_t parent, const char *name, const char *target, const struct client_identity *who,
		   struct entry *out)
{
	Wire__CreateRequest request;
	create_request(&request, parent, name, S_IFLNK | 0777, who);
	request.target = bytes_of(target);
	return making_call(c, WIRE__OP__CREATE, &request, parent, name, out);
}

/* Stores the unstored data of an inode, if it has any; with write-back the local disk will do. */
static int flush_number(struct client *c, uint64_t number)
{
	struct inode *i = inode_get(c, number);
	int r = 0;
	if (i) {
		r = writeback_is_on(c) ? writeback_fsync(i) : inode_flush(i);
		inode_unref(i);
	}
	return r;
}

static int flush_name(struct client *c, uint64_t parent, const char *name)
{
	struct entry entry;
	int r;
	if (!client_has_unstored(c) && !writeback_has_marks(c))
		return 0;
	r = client_lookup(c, parent, name, &entry);
	/* If the name is not there, the operation itself says so. */
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	return flush_number(c, entry.attr.inode);
}

int client_link(struct client *c, uint64_t inode, uint64_t parent, const char *name, struct entry *out)
{
	Wire__LinkRequest request = WIRE__LINK_REQUEST__INIT;
	int r = flush_number(c, inode);
	if (r < 0)
		return r;
	request.inode = inode;
	request.parent = parent;
	request.name = bytes_of(name);
	return making_call(c, WIRE__OP__LINK, &request, parent, name, out);
}

/* A file that lost its last name and is not open need not be stored, unless the
 * trash keeps it.  In company another mount may have it open. */
static void removed(struct client *c, const Wire__RemovedReply *reply)
{
	struct inode *i;
	if (reply->gone)
		catalog_drop(&c->catalog, reply->inode); /* if it was a directory: nobody asks for its names any more */
	if (!reply->gone || c->keep_deleted || !lease_held(c))
		return;
	i = inode_get(c, reply->inode);
	if (!i)
		return;
	pthread_mutex_lock(&i->lock);
	if (i->opens == 0) {
		inode_cut_unstored(i, 0);
		i->gone = true;
	}
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
}

/* *moved: of a rename, the inode that has the new name; 0: nothing was done. */
static int remove_call(struct client *c, uint16_t op, const void *request, uint64_t *moved)
{
	Wire__RemovedReply *reply;
	struct arena arena;
	int r;
	arena_init(&arena, 0);
	r = client_call(c, op, request, &arena, &reply);
	if (r == 0) {
		removed(c, reply);
		*moved = reply->moved;
	}
	arena_free(&arena);
	return r;
}

static int remove_name(struct client *c, uint16_t op, uint64_t parent, const char *name)
{
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;
	struct catalog_change change;
	uint64_t moved;
	int r;
	request.parent = parent;
	request.name = bytes_of(name);
	r = removal_begin(c, parent, name);
	if (r < 0)
		return r;
	catalog_begin(&c->catalog, parent, &change);
	r = remove_call(c, op, &request, &moved);
	removal_end(c);
	if (r == 0)
		catalog_removed(&c->catalog, &change, name);
	else
		catalog_doubted(&c->catalog, &change, name);
	catalog_end(&c->catalog, &change);
	return r;
}

int client_unlink(struct client *c, uint64_t parent, const char *name) { return remove_name(c, WIRE__OP__UNLINK, parent, name); }

int client_rmdir(struct client *c, uint64_t parent, const char *name) { return remove_name(c, WIRE__OP__RMDIR, parent, name); }

int client_rename(struct client *c, uint64_t old_parent, const char *old_name, uint64_t new_parent, const char *new_name,
		  uint32_t flags)
{
	Wire__RenameRequest request = WIRE__RENAME_REQUEST__INIT;
	struct catalog_change from, to;
	bool two = old_parent != new_parent;
	uint64_t moved = 0;
	/* Write-temp-and-rename must never replace good data by nothing. */
	int r = flush_name(c, old_parent, old_name);
	if (r == 0 && (flags & RENAME_EXCHANGE))
		r = flush_name(c, new_parent, new_name);
	if (r < 0)
		return r;
	request.old_parent = old_parent;
	request.old_name = bytes_of(old_name);
	request.new_parent = new_parent;
	request.new_name = bytes_of(new_name);
	request.flags = flags;
	r = removal_begin(c, new_parent, new_name);
	if (r < 0)
		return r;
	catalog_begin(&c->catalog, old_parent, &from);
	if (two)
		catalog_begin(&c->catalog, new_parent, &to);
	r = remove_call(c, WIRE__OP__RENAME, &request, &moved);
	removal_end(c);
	/* Where the new name was one of the same file already, the old one stays. */
	if (r == 0 && moved && !(flags & RENAME_EXCHANGE))
		catalog_removed(&c->catalog, &from, old_name);
	else
		catalog_doubted(&c->catalog, &from, old_name);
	catalog_added(&c->catalog, two ? &to : &from, new_name, 0);
	catalog_end(&c->catalog, &from);
	if (two)
		catalog_end(&c->catalog, &to);
	return r;
}

int client_readlink(struct client *c, uint64_t inode, char *out, size_t size)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	Wire__BytesReply *reply;
	struct arena arena;
	int r;
	request.inode = inode;
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__READLINK, &request, &arena, &reply);
	if (r == 0) {
		size_t n = reply->data.len < size ? reply->data.len : size;
		memcpy(out, reply->data.data, n);
		r = (int)n;
	}
	arena_free(&arena);
	return r;
}

/* Copies the listing, correcting the attributes of files with unstored data. */
static int listing_take(struct client *c, const Wire__ReaddirReply *reply, struct buf *out)
{
	struct reader in = reader_of(reply->entries.data, reply->entries.len);
	struct listing_entry entry;
	int r;
	if (!client_has_unstored(c)) {
		buf_append(out, reply->entries.data, reply->entries.len);
		return out->failed ? -ENOMEM : 0;
	}
	while ((r = listing_next(&in, &entry)) > 0) {
		if (entry.has_attr)
			attr_overlay(c, &entry.attr);
		listing_append(out, &entry);
	}
	if (r < 0)
		return -EIO;
	return out->failed ? -ENOMEM : 0;
}

int client_readdir(struct client *c, uint64_t inode, uint64_t cookie, uint32_t max_bytes, bool attributes, struct buf *out,
		   bool *end, uint32_t *valid_ms)
{
	for (int tries = 0;; tries++) {
		uint64_t commits = atomic_load(&c->commits);
		Wire__ReaddirRequest request = WIRE__READDIR_REQUEST__INIT;
		Wire__ReaddirReply *reply;
		struct listing_seen seen;
		bool keep = !c->replica && cookie == 0 && attributes && listing_begin(c, inode, max_bytes, &seen);
		struct arena arena;
		int r;
		request.inode = inode;
		request.cookie = cookie;
		request.max_bytes = max_bytes;
		request.attributes = attributes;
		request.grant = keep && seen.grant;
		request.extents = keep && !seen.grant;
		if (request.extents)
			request.max_bytes += max_bytes / 4; /* what they take of it */
		arena_init(&arena, 0);
		r = client_call(c, WIRE__OP__READDIR, &request, &arena, &reply);
		if (keep)
			listing_end(c, inode, &seen, r == 0 ? reply : NULL);
		if (r == 0 && attributes && cookie == 0)
			habit_listed(c, inode, max_bytes, reply->end);
		buf_clear(out);
		if (r == 0)
			r = listing_take(c, reply, out);
		if (r == 0) {
			*end = reply->end;
			*valid_ms = reply->valid_ms;
		}
		arena_free(&arena);
		if (r < 0 || !attributes || atomic_load(&c->commits) == commits)
			return r;
		/* Commits come faster than listings: then the kernel may not keep these attributes. */
		if (tries == 3) {
			*valid_ms = 0;
			return 0;
		}
	}
}
