#include "client/effects.h"
#include <errno.h>
#include "client/state.h"

/* For how long an answer may be kept, here and in the kernel: as long as the lease, and no longer than the server
 * said.  Without it, only those of a relaxed volume are kept for a time. */
static uint32_t leave(struct client *c, uint32_t told_ms)
{
	uint32_t own_ms = lease_held(c) ? lease_left_ms(c) : c->volume.relaxed ? RELAXED_MS : 0;
	return told_ms < own_ms ? told_ms : own_ms;
}

static void leave_take(struct client *c, uint16_t op, void *reply)
{
	switch (op) {
	case WIRE__OP__LOOKUP:
	case WIRE__OP__GETATTR:
	case WIRE__OP__CREATE:
	case WIRE__OP__LINK:
	case WIRE__OP__SETATTR: ((Wire__EntryReply *)reply)->valid_ms = leave(c, ((Wire__EntryReply *)reply)->valid_ms); break;
	case WIRE__OP__UNLINK:
	case WIRE__OP__RMDIR: ((Wire__RemovedReply *)reply)->valid_ms = leave(c, ((Wire__RemovedReply *)reply)->valid_ms); break;
	case WIRE__OP__READDIR:
		((Wire__ReaddirReply *)reply)->valid_ms = leave(c, ((Wire__ReaddirReply *)reply)->valid_ms);
		break;
	case WIRE__OP__OPEN:
	case WIRE__OP__EXTENTS:
		((Wire__ExtentsReply *)reply)->valid_ms = leave(c, ((Wire__ExtentsReply *)reply)->valid_ms);
		break;
	default: break;
	}
}

static bool learn(struct client *c, struct begun begun, const ProtobufCBinaryData *packed, uint32_t valid_ms)
{
	struct attr attr;
	uint64_t grant;
	if (packed->len == 0 || attr_unpack(packed->data, packed->len, &attr) < 0)
		return false;
	if (valid_ms)
		return attrs_learn(&c->attrs, begun.attrs, &attr, valid_ms);
	if (attr.flags & ATTR_BEING_WRITTEN)
		return false;
	grant = catalog_grant(&c->catalog, attr_cover(&attr), begun.catalog);
	return grant && attrs_learn_granted(&c->attrs, begun.attrs, &attr, grant);
}

struct begun effects_begin(struct client *c) { return (struct begun){ attrs_begin(&c->attrs), catalog_clock(&c->catalog) }; }

/* A directory in which a name came or went: the answer brings its attributes. */
static void directory_changed(struct client *c, struct begun begun, uint64_t inode, const ProtobufCBinaryData *packed,
			      uint32_t valid_ms)
{
	if (!learn(c, begun, packed, valid_ms))
		attrs_forget(&c->attrs, inode);
}

/* Its attributes are covered by another directory now, perhaps. */
static void moved(struct client *c, uint64_t inode)
{
	struct lease *l = &c->lease;

	attrs_forget(&c->attrs, inode);
	if (!inode || lease_held(c))
		return;
	pthread_rwlock_rdlock(&l->events_lock);
	if (l->events.moved)
		l->events.moved(l->events.context, inode);
	pthread_rwlock_unlock(&l->events_lock);
}

static void renamed(struct client *c, const Wire__RenameRequest *q, const Wire__RemovedReply *reply)
{
	attrs_forget(&c->attrs, q->old_parent);
	attrs_forget(&c->attrs, q->new_parent);
	moved(c, reply->moved);
	if (reply->inode)
		moved(c, reply->inode);
}

static void committed(struct client *c, const Wire__CommitRequest *q)
{
	for (size_t i = 0; i < q->n_files; i++)
		attrs_forget(&c->attrs, q->files[i]->inode);
}

static void done(struct client *c, uint16_t op, const void *q, const void *reply, struct begun begun)
{
	const Wire__EntryReply *entry = reply;
	const Wire__RemovedReply *removed = reply;
	const Wire__ExtentsReply *opened = reply;

	switch (op) {
	case WIRE__OP__LOOKUP:
	case WIRE__OP__GETATTR: learn(c, begun, &entry->attr, entry->valid_ms); break;
	case WIRE__OP__OPEN:
		/* Without a grant somebody else may have written what its attributes do not tell. */
		if (opened->grant != WIRE__GRANT__GRANT_NONE)
			learn(c, begun, &opened->attr, opened->valid_ms);
		break;
	case WIRE__OP__CREATE:
		directory_changed(c, begun, ((const Wire__CreateRequest *)q)->parent, &entry->parent, entry->valid_ms);
		learn(c, begun, &entry->attr, entry->valid_ms);
		break;
	case WIRE__OP__LINK:
		directory_changed(c, begun, ((const Wire__LinkRequest *)q)->parent, &entry->parent, entry->valid_ms);
		moved(c, ((const Wire__LinkRequest *)q)->inode);
		break;
	case WIRE__OP__UNLINK:
	case WIRE__OP__RMDIR:
		directory_changed(c, begun, ((const Wire__NameRequest *)q)->parent, &removed->parent, removed->valid_ms);
		moved(c, removed->inode);
		break;
	case WIRE__OP__RENAME: renamed(c, q, reply); break;
	case WIRE__OP__SETATTR: attrs_forget(&c->attrs, ((const Wire__SetattrRequest *)q)->inode); break;
	case WIRE__OP__SETXATTR:
	case WIRE__OP__REMOVEXATTR: attrs_forget(&c->attrs, ((const Wire__XattrRequest *)q)->inode); break;
	case WIRE__OP__FALLOCATE: attrs_forget(&c->attrs, ((const Wire__FallocateRequest *)q)->inode); break;
	case WIRE__OP__CLONE: attrs_forget(&c->attrs, ((const Wire__CloneRequest *)q)->target); break;
	case WIRE__OP__COMMIT: committed(c, q); break;
	default: break;
	}
}

static bool is_change(uint16_t op)
{
	return (op >= WIRE__OP__CREATE && op <= WIRE__OP__CREATE_MANY) || op == WIRE__OP__COMMIT || op == WIRE__OP__FALLOCATE ||
	       op == WIRE__OP__CLONE;
}

void effects_note(struct client *c, uint16_t op, const void *request, void *reply, int result, struct begun begun)
{
	if (result == 0) {
		leave_take(c, op, reply);
		done(c, op, request, reply, begun);
	} else if (is_change(op) && (result == -EIO || result == -EBADMSG || result == -ENOMEM)) /* perhaps it was made */
		attrs_forget_all(&c->attrs);
}
