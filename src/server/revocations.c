/* Who was given up, on record: see session_record_revoked. */
#include <errno.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/state.h"

static int revocation_record(struct server *s, const struct session *session, uint64_t revoked, uint64_t acknowledged)
{
	Wire__SessionRevoke q = WIRE__SESSION_REVOKE__INIT;
	struct caller who = CALLER_SERVER;
	struct arena arena;
	int r;

	q.session = session->id;
	q.revoked = revoked;
	q.acknowledged = acknowledged;
	arena_init(&arena, 0);
	r = meta_mutate(s->meta, &who, WIRE__OP__SESSION_REVOKE, &q.base, &arena, NULL);
	arena_free(&arena);
	if (r && r != -ENOENT) { /* it has ended */
		log_error("cannot record whether mount %s:%s has lost what it was granted: %s; trying again", session->host,
			  session->mount_point, strerror(-r));
		return r;
	}
	return 0;
}

int session_record_revoked(struct server *s, struct session *session)
{
	uint64_t revoked = session_revoked(session);
	int r = revocation_record(s, session, revoked, 0);
	LOCKED(&session->lock);

	if (!r && session->recorded < revoked)
		session->recorded = revoked;
	return r;
}

bool session_revocation_is_recorded(struct session *session)
{
	LOCKED(&session->lock);
	return session->recorded >= session->revoked;
}

/* One whose mount has acted upon what is on record, with a reference. */
static struct session *sessions_acknowledged(struct server *s, uint64_t *acknowledged)
{
	uint64_t id;
	void *value;
	LOCKED(&s->sessions.lock);

	for (size_t i = 0; intmap_next(&s->sessions.map, &i, &id, &value);) {
		struct session *n = value;
		LOCKED(&n->lock);

		if (n->recorded && n->lease.acknowledged >= n->revoked) {
			atomic_fetch_add(&n->refs, 1);
			*acknowledged = n->lease.acknowledged;
			return n;
		}
	}
	return NULL;
}

void sessions_record_acknowledged(struct server *s)
{
	uint64_t acknowledged;
	struct session *n;
	int r = 0;

	while (!r && (n = sessions_acknowledged(s, &acknowledged))) {
		r = revocation_record(s, n, 0, acknowledged);
		pthread_mutex_lock(&n->lock);
		if (!r && n->recorded <= acknowledged)
			n->recorded = 0;
		pthread_mutex_unlock(&n->lock);
		session_unref(n);
	}
}
