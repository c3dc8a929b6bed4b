#include "server/recalls.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "server/state.h"

#define RECALLS_AT_ONCE 4096u

struct recall {
	struct recall *next;
	uint64_t number, inode;
	Wire__RecallKind kind;
	struct grant_ask *ask; /* whose answer it is about; NULL: nobody's any more */
};

uint64_t recall_add(struct grants *g, struct session *n, uint64_t inode, Wire__RecallKind kind)
{
	struct recall *r = malloc(sizeof(*r));

	if (!r)
		return 0;
	*r = (struct recall){ .number = ++g->recalls, .inode = inode, .kind = kind };
	*n->recalls.end = r;
	n->recalls.end = &r->next;
	return r->number;
}

static struct recall *recall_last(struct session *n)
{
	return (struct recall *)((char *)n->recalls.end - offsetof(struct recall, next));
}

/* ---- Being told ---- */

bool recalls_wait(struct server *s, struct session *n)
{
	LOCKED(&s->grants.lock);
	return n->recalls.first != NULL;
}

int recalls_fill(struct server *s, struct session *n, struct arena *arena, Wire__LeaseReply *reply)
{
	struct recall *r;
	size_t count = 0;
	Wire__Recall *all;
	LOCKED(&s->grants.lock);

	for (r = n->recalls.first; r && count < RECALLS_AT_ONCE; r = r->next)
		count++;
	if (!count)
		return 0;
	all = arena_take(arena, count * sizeof(*all));
	reply->recalls = arena_take(arena, count * sizeof(*reply->recalls));
	if (!all || !reply->recalls)
		return -ENOMEM;
	r = n->recalls.first;
	for (size_t i = 0; i < count; i++, r = r->next) {
		wire__recall__init(&all[i]);
		all[i].inode = r->inode;
		all[i].kind = r->kind;
		all[i].number = reply->last = r->number;
		reply->recalls[i] = &all[i];
	}
	reply->n_recalls = count;
	return 0;
}

static void ask_answer(struct grant_ask *a, uint64_t inode, Wire__Written *const *written, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (written[i]->inode == inode)
			a->written = *written[i];
	a->recall = NULL;
	if (--a->all->open == 0)
		eventfd_write(a->all->event, 1);
}

void recalls_done(struct server *s, struct session *n, uint64_t done, Wire__Written *const *written, size_t count)
{
	struct recall *r;
	LOCKED(&s->grants.lock);

	if (done > s->grants.recalls) /* of an earlier server, whose clock was ahead */
		return;
	while ((r = n->recalls.first) && r->number <= done) {
		n->recalls.first = r->next;
		if (!r->next)
			n->recalls.end = &n->recalls.first;
		if (r->kind == WIRE__RECALL_KIND__RECALL_DIRECTORY)
			grant_acknowledged(&s->grants, n, r->inode, r->number);
		else if (r->ask)
			ask_answer(r->ask, r->inode, written, count);
		free(r);
	}
}

void recalls_unask(struct session *n)
{
	for (struct recall *r = n->recalls.first; r; r = r->next)
		if (r->ask) {
			ask_answer(r->ask, r->inode, NULL, 0);
			r->ask = NULL;
		}
}

void recalls_drop(struct session *n)
{
	struct recall *r;

	while ((r = n->recalls.first)) {
		n->recalls.first = r->next;
		free(r);
	}
	n->recalls.end = &n->recalls.first;
}

/* ---- Asking a writer ---- */

int grant_asks_begin(struct grant_asks *all)
{
	*all = (struct grant_asks){ .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	return all->event < 0 ? -errno : 0;
}

int grant_asks_add(struct server *s, struct grant_asks *all, struct grant_ask *a, struct session *writer, uint64_t inode)
{
	LOCKED(&s->grants.lock);
	*a = (struct grant_ask){ .all = all, .next = all->first, .writer = writer, .written = WIRE__WRITTEN__INIT };
	if (!recall_add(&s->grants, writer, inode, WIRE__RECALL_KIND__RECALL_TELL))
		return -ENOMEM;
	a->recall = recall_last(writer);
	a->recall->ask = a;
	all->first = a;
	all->open++;
	return 0;
}

/* One who has not answered, with a reference. */
static struct session *asks_open(struct server *s, const struct grant_asks *all)
{
	LOCKED(&s->grants.lock);

	for (const struct grant_ask *a = all->first; a; a = a->next)
		if (a->recall) {
			atomic_fetch_add(&a->writer->refs, 1);
			return a->writer;
		}
	return NULL;
}

static void asks_wake(struct server *s, const struct grant_asks *all)
{
	for (const struct grant_ask *a = all->first; a; a = a->next)
		if (!a->next || a->next->writer != a->writer)
			lease_news(s, a->writer);
}

int grant_asks_wait(struct server *s, const struct connection *asking, struct grant_asks *all)
{
	struct session *one;
	int r = 0;

	asks_wake(s, all);
	while (!r && (one = asks_open(s, all))) {
		r = grants_event_wait(all->event, asking);
		if (session_is_lost(s, one))
			grants_revoke(s, one);
		session_unref(one);
	}
	return r;
}

void grant_asks_end(struct server *s, struct grant_asks *all)
{
	pthread_mutex_lock(&s->grants.lock);
	for (struct grant_ask *a = all->first; a; a = a->next)
		if (a->recall)
			a->recall->ask = NULL;
	pthread_mutex_unlock(&s->grants.lock);
	close(all->event);
	for (struct grant_ask *a = all->first; a; a = a->next)
		session_unref(a->writer);
}
