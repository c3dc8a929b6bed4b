#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "client/state.h"

/* Setting size or mtime meets unstored data.  A job under way must end first: its
 * commit would make the file longer again, or set its mtime back to that of the last
 * write.  One made from here on carries what is set.  What lies behind a new end is
 * dropped.  The kernel lets no write of this file run meanwhile. */
static void unstored_prepare(struct inode *i, bool cut, uint64_t size, int64_t mtime_ns)
{
	LOCKED(&i->lock);
	i->mtime_ns = mtime_ns;
	if (cut)
		inode_cut_unstored(i, size);
	while (i->storing.count > 0)
		pthread_cond_wait(&i->changed, &i->lock);
	/* A job that failed meanwhile has given its segments back. */
	if (cut)
		inode_cut_unstored(i, size);
}

/* The mtime that goes with the change, if it has one.  Where data is unstored it is
 * chosen here, so that the server and the jobs that follow agree on it. */
static void mtime_choose(struct client *c, struct inode *i, Wire__SetattrRequest *request)
{
	if (!(request->valid & (SET_SIZE | SET_MTIME | SET_MTIME_NOW)))
		return;
	if (!(request->valid & SET_MTIME)) {
		request->valid = (request->valid & ~(uint32_t)SET_MTIME_NOW) | SET_MTIME;
		request->mtime_ns = client_now_ns(c);
	}
	unstored_prepare(i, request->valid & SET_SIZE, request->size, request->mtime_ns);
}

/* What the server answered becomes what we know; unstored data goes on with the
 * times that were set. */
static void setattr_known(struct inode *i, const struct client_setattr *s, const struct attr *a)
{
	LOCKED(&i->lock);
	if ((s->valid & SET_SIZE) || (i->attr_known && a->version != i->attr.version))
		window_drop(i);
	inode_attr_set(i, a);
	if (s->valid & (SET_MTIME | SET_MTIME_NOW | SET_SIZE))
		i->mtime_ns = a->mtime_ns;
}

/* What was synced must not come back after a crash over a new end; nor its mtime over the one that is set. */
static int writeback_prepare(struct inode *i, const struct client_setattr *s)
{
	if (!writeback_is_on(i->client))
		return 0;
	if (s->valid & SET_SIZE)
		return writeback_settle(i);
	if (s->valid & SET_MTIME)
		return writeback_mtime(i, s->mtime_ns);
	return s->valid & SET_MTIME_NOW ? writeback_mtime(i, client_now_ns(i->client)) : 0;
}

int client_setattr(struct client *c, uint64_t inode, const struct client_setattr *s, struct entry *out)
{
	uint64_t commits = atomic_load(&c->commits);
	Wire__SetattrRequest request = WIRE__SETATTR_REQUEST__INIT;
	/* Somebody may open it meanwhile, and must learn of the new size. */
	struct inode *i = s->valid & SET_SIZE ? inode_get_or_add(c, inode) : inode_get(c, inode);
	Wire__EntryReply *reply;
	struct arena arena;
	struct attr attr;
	int r;
	request.inode = inode;
	request.valid = s->valid;
	request.mode = s->mode;
	request.uid = s->uid;
	request.gid = s->gid;
	request.size = s->size;
	request.atime_ns = s->atime_ns;
	request.mtime_ns = s->mtime_ns;
	request.kill_suidgid = s->kill_suidgid;
	request.kill_sgid = s->kill_sgid;
	r = i ? writeback_prepare(i, s) : 0;
	if (r < 0) {
		inode_unref(i);
		return r;
	}
	if (i)
		mtime_choose(c, i, &request);
	if (i && (s->valid & SET_SIZE))
		pages_cut_begin(i);
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__SETATTR, &request, &arena, &reply);
	if (r == 0 && attr_unpack(reply->attr.data, reply->attr.len, &attr) < 0)
		r = -EIO;
	if (r == 0 && i)
		setattr_known(i, s, &attr);
	if (i && (s->valid & SET_SIZE))
		pages_cut_end(i);
	if (r == 0 && i && (s->valid & SET_SIZE))
		passed_changed(i, s->size, s->size);
	if (r == 0)
		r = entry_take(c, reply, commits, out);
	arena_free(&arena);
	if (i)
		inode_unref(i);
	return r;
}

static int xattr_call(struct client *c, uint16_t op, uint64_t inode, const char *name, const void *value, size_t size, int flags,
		      bool kill_sgid, struct arena *arena, void *reply)
{
	Wire__XattrRequest request = WIRE__XATTR_REQUEST__INIT;
	request.inode = inode;
	request.name = (ProtobufCBinaryData){ .len = strlen(name), .data = (uint8_t *)name };
	request.value = (ProtobufCBinaryData){ .len = size, .data = (uint8_t *)value };
	request.flags = (uint32_t)flags;
	request.kill_sgid = kill_sgid;
	return client_call(c, op, &request, arena, reply);
}

static int xattr_change(struct client *c, uint16_t op, uint64_t inode, const char *name, const void *value, size_t size,
			int flags, bool kill_sgid)
{
	struct arena arena;
	int r;
	arena_init(&arena, 0);
	r = xattr_call(c, op, inode, name, value, size, flags, kill_sgid, &arena, NULL);
	arena_free(&arena);
	return r;
}

int client_setxattr(struct client *c, uint64_t inode, const char *name, const void *value, size_t size, int flags, bool kill_sgid)
{
	return xattr_change(c, WIRE__OP__SETXATTR, inode, name, value, size, flags, kill_sgid);
}

int client_removexattr(struct client *c, uint64_t inode, const char *name)
{
	return xattr_change(c, WIRE__OP__REMOVEXATTR, inode, name, NULL, 0, 0, false);
}

/* The length; the bytes too, where there is room for them. */
static int bytes_take(const Wire__BytesReply *reply, void *out, size_t size)
{
	if (reply->data.len > INT32_MAX)
		return -EIO;
	if (size == 0)
		return (int)reply->data.len;
	if (reply->data.len > size)
		return -ERANGE;
	if (reply->data.len)
		memcpy(out, reply->data.data, reply->data.len);
	return (int)reply->data.len;
}

int client_getxattr(struct client *c, uint64_t inode, const char *name, void *out, size_t size)
{
	Wire__BytesReply *reply;
	struct arena arena;
	int r;
	arena_init(&arena, 0);
	r = xattr_call(c, WIRE__OP__GETXATTR, inode, name, NULL, 0, 0, false, &arena, &reply);
	if (r == 0)
		r = bytes_take(reply, out, size);
	arena_free(&arena);
	return r;
}

int client_listxattr(struct client *c, uint64_t inode, char *out, size_t size)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	Wire__BytesReply *reply;
	struct arena arena;
	int r;
	request.inode = inode;
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__LISTXATTR, &request, &arena, &reply);
	if (r == 0)
		r = bytes_take(reply, out, size);
	arena_free(&arena);
	return r;
}

int client_statfs(struct client *c, struct client_space *out)
{
	Wire__Empty request = WIRE__EMPTY__INIT;
	Wire__StatfsReply *reply;
	struct arena arena;
	int r;
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__STATFS, &request, &arena, &reply);
	if (r == 0)
		*out = (struct client_space){ .total_bytes = reply->total_bytes,
					      .free_bytes = reply->free_bytes,
					      .used_bytes = reply->used_bytes,
					      .total_files = reply->total_files,
					      .free_files = reply->free_files,
					      .block_size = reply->block_size };
	arena_free(&arena);
	return r;
}
