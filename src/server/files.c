/* Open files, and the grants on them: OPEN, EXTENTS, CLOSE, RETURN.
 *
 * Whoever gets GRANT_WRITE changes size and times from then on without telling us.  What
 * others may keep of these is covered by their grant on the directory, which is
 * recalled; afterwards nobody is told anything of the file that he may keep (written.h). */
#include <errno.h>
#include "base/cleanup.h"
#include "meta/attr.h"
#include "server/dispatch.h"
#include "server/marks.h"
#include "server/state.h"
#include "server/touched.h"

/* Under its lock, so that nothing is opened for a session that has ended. */
static int session_open(struct request *q, uint64_t inode, uint64_t number)
{
	struct session *n = q->peer->session;
	LOCKED(&n->opening);
	LOCKED(&n->lock);

	if (!inode || inode > INODE_MAX)
		return -ENOENT;
	return n->ended ? -ESTALE : meta_opened(q->server->meta, n->id, n->volume, inode, number);
}

/* A session that came so late that others were let in has lost what it had. */
int file_reclaim(struct request *q, uint64_t inode, Wire__Grant grant)
{
	struct session *n = q->peer->session;
	int r = session_open(q, inode, 0);

	if (r || n->passed_over || grant <= WIRE__GRANT__GRANT_NONE || grant > WIRE__GRANT__GRANT_WRITE)
		return r;
	return grant_reclaim(q->server, n, inode, grant);
}

/* Those who know the file's attributes forget them. */
static int attributes_recall(struct request *q, uint64_t inode)
{
	struct session *n = q->peer->session;
	struct touch cover;
	int r = touched_cover(q->server, n->volume, inode, &cover);

	if (!r)
		r = grants_change_begin(q->server, q->peer->connection, n, n->volume, &cover, 1);
	if (!r)
		grants_change_end(q->server, n->volume, &cover, 1);
	return r == -ENOENT ? 0 : r;
}

static int want_check(struct request *q, Wire__Grant want)
{
	if (want < WIRE__GRANT__GRANT_NONE || want > WIRE__GRANT__GRANT_WRITE)
		return request_explain(q, -EINVAL, "there is no grant %d", (int)want);
	if (want == WIRE__GRANT__GRANT_WRITE && q->peer->session->read_only)
		return request_explain(q, -EROFS, "the volume is mounted read-only");
	return 0;
}

static int file_take(struct request *q, uint64_t inode, Wire__Grant want, bool wait, Wire__Grant *got)
{
	struct session *n = q->peer->session;
	bool fresh = want == WIRE__GRANT__GRANT_WRITE;
	int r = 0;

	*got = WIRE__GRANT__GRANT_NONE;
	if (want > WIRE__GRANT__GRANT_NONE)
		r = grant_take(q->server, q->peer->connection, n, inode, want, wait, got);
	if (!r && fresh && *got == WIRE__GRANT__GRANT_WRITE && session_in_company(n))
		r = attributes_recall(q, inode);
	return r == -ECONNRESET ? REQUEST_BROKEN : r;
}

static int extents_read(struct request *q, Wire__ExtentsRequest *extents, Wire__Grant got)
{
	int r = meta_read(q->server->meta, &q->peer->who, WIRE__OP__EXTENTS, &extents->base, q->arena, &q->reply);

	if (!r)
		((Wire__ExtentsReply *)q->reply)->grant = got;
	return r;
}

/* It is marked: its writer is given up and has not stored it, or is back and has not asked for it yet.  The grant is worth nothing. */
static bool marked_meanwhile(struct request *q, uint64_t inode, Wire__Grant got)
{
	if (marks_are_anothers(q->server, q->peer->session, inode) == 0)
		return false;
	if (got != WIRE__GRANT__GRANT_NONE)
		grant_drop(q->server, q->peer->session, inode);
	return true;
}

/* Open first, look second: what is there at the look then stays. */
int serve_open(struct request *q)
{
	const Wire__OpenRequest *open = (const Wire__OpenRequest *)q->message;
	const struct caller *who = &q->peer->who;
	Wire__ExtentsRequest extents = WIRE__EXTENTS_REQUEST__INIT;
	Wire__Grant got;
	int r = want_check(q, open->want);

	/* Who reads without a grant has no other moment to wait in. */
	if (!r)
		r = open->want == WIRE__GRANT__GRANT_NONE ? marks_await(q, open->inode) : marks_look(q, open->inode);
	if (!r)
		r = session_open(q, open->inode, open->number);
	if (!r)
		r = file_take(q, open->inode, open->want, false, &got);
	if (r)
		return r;
	if (marked_meanwhile(q, open->inode, got))
		got = WIRE__GRANT__GRANT_NONE;
	extents.inode = open->inode;
	extents.max = open->max_extents;
	r = extents_read(q, &extents, got);
	if (r == -ENOENT) {
		meta_closed(q->server->meta, who->session, who->volume, open->inode, open->number);
		grant_drop(q->server, q->peer->session, open->inode);
	}
	return r;
}

int serve_extents(struct request *q)
{
	Wire__ExtentsRequest *extents = (Wire__ExtentsRequest *)q->message;
	Wire__Grant got = WIRE__GRANT__GRANT_NONE;
	struct touch cover;
	int r = want_check(q, extents->want);

	/* Nobody has a grant on what is not there: nobody would give it back. */
	if (!r && extents->want != WIRE__GRANT__GRANT_NONE)
		r = touched_cover(q->server, q->peer->session->volume, extents->inode, &cover);
	do {
		if (!r)
			r = marks_await(q, extents->inode);
		if (!r)
			r = file_take(q, extents->inode, extents->want, true, &got);
	} while (!r && marked_meanwhile(q, extents->inode, got));
	return r ? r : extents_read(q, extents, got);
}

int serve_close(struct request *q)
{
	const Wire__CloseRequest *close = (const Wire__CloseRequest *)q->message;
	const struct caller *who = &q->peer->who;

	for (size_t i = 0; i < close->n_inodes; i++) {
		LOCKED(&q->peer->session->opening);
		if (meta_closed(q->server->meta, who->session, who->volume, close->inodes[i], close->number))
			grant_drop(q->server, q->peer->session, close->inodes[i]);
	}
	if (close->n_inodes)
		reaper_wake(q->server);
	return request_reply(q, &wire__empty__descriptor) ? 0 : -ENOMEM;
}

int serve_return(struct request *q)
{
	const Wire__ReturnRequest *back = (const Wire__ReturnRequest *)q->message;

	grant_return(q->server, q->peer->session, back->inode, back->grant, back->recall);
	return request_reply(q, &wire__empty__descriptor) ? 0 : -ENOMEM;
}
