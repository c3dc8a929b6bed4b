#include "server/written.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "meta/attr.h"
#include "meta/listing.h"
#include "meta/marks.h"
#include "server/marks.h"
#include "server/state.h"

/* The writer is asked first and meta afterwards: what was stored in between is then in
 * one of the two.  All files of an answer are asked for at once. */

/* One packed attr of an answer. */
typedef int (*attr_visitor)(void *context, uint8_t *packed, struct attr *a);

static int visit(void *context, attr_visitor each, uint8_t *packed, size_t size)
{
	struct attr a;

	if (attr_unpack(packed, size, &a) < 0)
		return -EBADMSG;
	return S_ISREG(a.mode) ? each(context, packed, &a) : 0;
}

static int visit_listing(const Wire__ReaddirReply *reply, void *context, attr_visitor each)
{
	struct reader in = reader_of(reply->entries.data, reply->entries.len);
	struct listing_entry e;
	int r;

	while ((r = listing_next(&in, &e)) > 0) {
		if (!e.has_attr)
			continue;
		r = visit(context, each, (uint8_t *)in.p - ATTR_PACKED, ATTR_PACKED);
		if (r)
			return r;
	}
	return r;
}

static int visit_all(struct request *q, uint16_t op, void *context, attr_visitor each)
{
	const Wire__EntryReply *entry = (const Wire__EntryReply *)q->reply;

	if (op == WIRE__OP__READDIR)
		return visit_listing((const Wire__ReaddirReply *)q->reply, context, each);
	return visit(context, each, entry->attr.data, entry->attr.len);
}

struct asked {
	struct request *q;
	struct grant_asks asks;
	struct intmap files;  /* inode -> struct grant_ask of the arena */
	struct intmap marked; /* inode -> its size, and 1, as its mark says; nobody is there to ask */
};

static int ask_mark(struct asked *asked, uint64_t inode)
{
	struct request *q = asked->q;
	Wire__MarkRecord *mark;
	int r = marks_are_anothers(q->server, q->peer->session, inode);

	if (r > 0)
		r = meta_mark_find(q->server->meta, q->peer->session->volume, inode, q->arena, &mark);
	else
		return r;
	if (r)
		return r == -ENOENT ? 0 : r;
	return intmap_set(&asked->marked, inode, (void *)(uintptr_t)(mark->size + 1));
}

static int ask(void *context, uint8_t *packed, struct attr *a)
{
	struct asked *asked = context;
	struct request *q = asked->q;
	struct session *writer = grant_writer(q->server, q->peer->session->volume, a->inode, q->peer->session);
	struct grant_ask *one;
	int r = 0;

	if (!writer)
		return ask_mark(asked, a->inode);
	if (!asked->files.used)
		r = grant_asks_begin(&asked->asks);
	one = arena_take(q->arena, sizeof(*one));
	if (!r)
		r = one ? intmap_set(&asked->files, a->inode, one) : -ENOMEM;
	if (!r)
		r = grant_asks_add(q->server, &asked->asks, one, writer, a->inode);
	if (r)
		session_unref(writer);
	return r;
}

static int complete(void *context, uint8_t *packed, struct attr *a)
{
	struct asked *asked = context;
	const struct grant_ask *one = intmap_get(&asked->files, a->inode);
	const Wire__Written *w = one ? &one->written : NULL;

	if (!w)
		return 0;
	a->flags |= ATTR_BEING_WRITTEN;
	if (w->unstored) {
		if (w->size > a->size)
			a->size = w->size;
		if (w->ctime_ns > a->ctime_ns)
			a->ctime_ns = w->ctime_ns;
		a->mtime_ns = w->mtime_ns;
	}
	attr_pack(a, packed);
	return 0;
}

/* Larger than what is stored: it never looks empty while its data is elsewhere. */
static int complete_marked(void *context, uint8_t *packed, struct attr *a)
{
	struct asked *asked = context;
	uint64_t size = (uintptr_t)intmap_get(&asked->marked, a->inode);

	if (!size)
		return 0;
	a->flags |= ATTR_BEING_WRITTEN;
	if (size - 1 > a->size)
		a->size = size - 1;
	attr_pack(a, packed);
	return 0;
}

int written_complete(struct request *q, uint16_t op)
{
	struct asked asked = { .q = q, .asks = { .event = -1 } };
	int r = visit_all(q, op, &asked, ask);

	if (!r && asked.files.used) {
		r = grant_asks_wait(q->server, q->peer->connection, &asked.asks);
		q->reply = NULL;
		if (!r)
			r = meta_read(q->server->meta, &q->peer->who, op, q->message, q->arena, &q->reply);
		if (!r)
			r = visit_all(q, op, &asked, complete);
	}
	if (!r && asked.marked.used)
		r = visit_all(q, op, &asked, complete_marked);
	intmap_free(&asked.marked);
	if (asked.asks.event >= 0)
		grant_asks_end(q->server, &asked.asks);
	intmap_free(&asked.files);
	return r;
}
