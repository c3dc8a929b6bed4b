#include "client/newborn.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"

#define QUEUED_MAX 4096u
#define TOLD_AT_ONCE 512u
#define NUMBERS_AT_ONCE 2048u
#define GATHER_NS (5 * NS_PER_MS) /* newborns are gathered for so long, unless somebody waits */
#define GATHER_ENOUGH 128u
#define AGAIN_NS (1 * NS_PER_S)
#define NAME_BYTES_MAX 255u
#define NUMBER_MAX ((1ull << 40) - 1)

struct newborn {
	struct newborn *next;
	struct inode *inode; /* a reference */
	uint64_t parent;
	char name[];
};

/* ---- Making ------------------------------------------------------------------ */

static bool name_is_plain(const char *name)
{
	size_t size = strlen(name);

	return size > 0 && size <= NAME_BYTES_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* 0: none left; more are asked for. */
static uint64_t number_take(struct newborns *n)
{
	LOCKED(&n->lock);
	if (n->numbers_left <= NUMBERS_AT_ONCE / 2)
		pthread_cond_signal(&n->work);
	if (n->numbers_left == 0)
		return 0;
	n->numbers_left--;
	return n->next_number++;
}

static struct newborn *newborn_new(struct client *c, const struct attr *a, const char *name)
{
	size_t size = strlen(name) + 1;
	struct newborn *b = malloc(sizeof(*b) + size);
	struct inode *i = b ? inode_get_or_add(c, a->inode) : NULL;

	if (!i) {
		free(b);
		return NULL;
	}
	b->next = NULL;
	b->inode = i;
	b->parent = a->parent;
	memcpy(b->name, name, size);
	pthread_mutex_lock(&i->lock);
	inode_attr_set(i, a);
	i->newborn = true;
	i->grant = i->at_server = WIRE__GRANT__GRANT_WRITE;
	i->granted_under = lease_number(c);
	i->window.from = 0;
	i->window.to = UINT64_MAX;
	i->window.known = true;
	pthread_mutex_unlock(&i->lock);
	return b;
}

/* Queues it, unless the lease is gone; waits while too many are queued.  From here on
 * the server is told. */
static int newborn_add(struct client *c, struct newborn *b, uint64_t clears)
{
	struct newborns *n = &c->newborns;
	int64_t deadline = monotonic_ns() + c->timeout_ms * NS_PER_MS;
	LOCKED(&n->lock);

	while (n->queued >= QUEUED_MAX && lease_held(c))
		if (cond_wait_until(&n->told, &n->lock, deadline) < 0)
			return -EIO;
	/* It may have gone and come back: then the claim is void. */
	if (!lease_held(c) || n->stopping || catalog_cleared(&c->catalog) != clears)
		return -EAGAIN;
	pthread_mutex_lock(&c->table_lock);
	b->inode->registered = true;
	b->inode->refs++; /* the caller's */
	pthread_mutex_unlock(&c->table_lock);
	*n->end = b;
	n->end = &b->next;
	n->made++;
	atomic_fetch_add(&n->waiting, 1);
	if (++n->queued == 1 || n->queued == GATHER_ENOUGH)
		pthread_cond_signal(&n->work);
	return 0;
}

static void newborn_drop(struct newborn *b)
{
	pthread_mutex_lock(&b->inode->lock);
	b->inode->newborn = false;
	pthread_mutex_unlock(&b->inode->lock);
	inode_unref(b->inode);
	free(b);
}

int newborn_make(struct client *c, uint64_t parent, const char *name, uint32_t mode, const struct client_identity *who,
		 struct inode **inode, struct entry *out)
{
	struct attr a = { .mode = S_IFREG | (mode & ~who->umask & 07777), .uid = who->uid, .nlink = 1 };
	struct entry directory;
	struct newborn *b;
	uint64_t other, clears;
	int r;

	if (!lease_held(c) || !name_is_plain(name) || catalog_find(&c->catalog, parent, name, &other) != CATALOG_ABSENT)
		return -EAGAIN;
	r = client_getattr(c, parent, &directory);
	if (r < 0)
		return r;
	if (!S_ISDIR(directory.attr.mode) || (directory.attr.flags & (ATTR_TRASHED | ATTR_HAS_DEFAULT)))
		return -EAGAIN;
	a.inode = number_take(&c->newborns);
	if (!a.inode)
		return -EAGAIN;
	a.gid = directory.attr.mode & S_ISGID ? directory.attr.gid : who->gid;
	a.parent = parent;
	a.atime_ns = a.mtime_ns = a.ctime_ns = a.btime_ns = client_now_ns(c);
	b = newborn_new(c, &a, name);
	if (!b)
		return -ENOMEM;
	*inode = b->inode;
	r = catalog_claim(&c->catalog, parent, name, a.inode, &clears) ? newborn_add(c, b, clears) : -EAGAIN;
	if (r < 0) {
		/* The claim is only good with the newborn. */
		catalog_drop(&c->catalog, parent);
		newborn_drop(b);
		return r;
	}
	attrs_grown(&c->attrs, parent, a.mtime_ns);
	*out = (struct entry){ .attr = a, .valid_ms = lease_left_ms(c) };
	return 0;
}

bool newborn_entry(struct client *c, uint64_t inode, struct entry *out)
{
	struct inode *i;
	bool is;

	if (atomic_load(&c->newborns.waiting) == 0)
		return false;
	i = inode_get(c, inode);
	if (!i)
		return false;
	pthread_mutex_lock(&i->lock);
	is = i->newborn;
	if (is) {
		*out = (struct entry){ .attr = i->attr, .valid_ms = lease_left_ms(c) };
		inode_overlay(i, &out->attr);
	}
	pthread_mutex_unlock(&i->lock);
	inode_unref(i);
	return is;
}

void newborns_hasten(struct client *c)
{
	struct newborns *n = &c->newborns;

	if (atomic_load(&n->waiting) == 0)
		return;
	LOCKED(&n->lock);
	n->wanted = n->made;
	pthread_cond_signal(&n->work);
}

int newborns_settle(struct client *c) { return newborns_settle_within(c, c->timeout_ms); }

int newborns_settle_within(struct client *c, int64_t timeout_ms)
{
	struct newborns *n = &c->newborns;
	int64_t deadline;
	uint64_t upto;

	if (atomic_load(&n->waiting) == 0)
		return 0;
	deadline = monotonic_ns() + timeout_ms * NS_PER_MS;
	LOCKED(&n->lock);
	upto = n->wanted = n->made;
	pthread_cond_signal(&n->work);
	while (n->settled < upto && monotonic_ns() < deadline && !rpc_work_waited(c->rpc)) {
		int64_t step = monotonic_ns() + NS_PER_S;

		cond_wait_until(&n->told, &n->lock, step < deadline ? step : deadline);
	}
	return n->settled < upto ? -EIO : 0;
}

void newborns_bar(struct client *c)
{
	LOCKED(&c->newborns.lock);
	c->newborns.numbers_left = 0;
	pthread_cond_broadcast(&c->newborns.told);
}

/* ---- Telling ----------------------------------------------------------------- */

static int tell_call(struct client *c, struct newborn *list, uint32_t count, struct arena *arena, Wire__CreateManyReply **reply)
{
	Wire__CreateManyRequest request = WIRE__CREATE_MANY_REQUEST__INIT;
	struct rpc_call call = { .op = WIRE__OP__CREATE_MANY, .request = &request.base, .reply = (ProtobufCMessage **)reply };
	Wire__NewFile *files = arena_take(arena, count * sizeof(*files));
	Wire__NewFile **pointers = arena_take(arena, count * sizeof(*pointers));
	struct newborn *b = list;
	int r;

	if (!files || !pointers)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++, b = b->next) {
		const struct attr *a = &b->inode->attr; /* does not change while it is a newborn */

		wire__new_file__init(&files[i]);
		files[i].inode = a->inode;
		files[i].parent = b->parent;
		files[i].name = (ProtobufCBinaryData){ .len = strlen(b->name), .data = (uint8_t *)b->name };
		files[i].mode = a->mode & 07777;
		files[i].uid = a->uid;
		files[i].gid = a->gid;
		files[i].time_ns = a->btime_ns;
		pointers[i] = &files[i];
	}
	request.n_files = count;
	request.files = pointers;
	r = rpc_call(c->rpc, &call, arena);
	if (r == 0 && (*reply)->n_status != 0 && (*reply)->n_status != count)
		return -EIO;
	return r;
}

static void newborn_refused(struct client *c, struct newborn *b, int error)
{
	struct inode *i = b->inode;

	if (error >= 0 || error < -4095) /* a server that talks nonsense */
		error = -EIO;
	log_error("volume %s: the new file %s (inode %lu, in directory inode %lu) could not be kept: %s", c->volume.name, b->name,
		  (unsigned long)i->number, (unsigned long)b->parent, strerror(-error));
	catalog_drop(&c->catalog, b->parent);
	attrs_forget(&c->attrs, b->parent);
	LOCKED(&i->lock);
	inode_cut_unstored(i, 0);
	i->gone = true;
	i->error = error;
}

/* The server could not be asked, or cannot do it now. */
static bool is_passing(int error)
{
	return error == -EIO || error == -ENOMEM || error == -ENOSPC || error == -EAGAIN || error == -ESHUTDOWN;
}

/* Tells the server of the first `count`.  They are tried again until it works, or it is time to go.  A refusal of all of
 * them is perhaps because of one: then it is told of each. */
static void tell_and_drop(struct client *c, struct newborn *list, uint32_t count)
{
	struct newborns *n = &c->newborns;
	Wire__CreateManyReply *reply = NULL;
	struct newborn *next;
	struct arena arena;
	int r;

	arena_init(&arena, 0);
	while (is_passing(r = tell_call(c, list, count, &arena, &reply))) {
		LOCKED(&n->lock);
		if (n->stopping)
			break;
		log_warn("volume %s: cannot tell the server of %u new files: %s; trying again", c->volume.name, count,
			 strerror(-r));
		cond_wait_until(&n->work, &n->lock, monotonic_ns() + AGAIN_NS);
		arena_reset(&arena);
	}
	for (uint32_t k = 0; k < count; k++, list = next) {
		next = list->next;
		if (r < 0 && !is_passing(r) && count > 1) {
			tell_and_drop(c, list, 1);
			continue;
		}
		if (r < 0)
			newborn_refused(c, list, r);
		else if (reply->n_status && reply->status[k])
			newborn_refused(c, list, -(int)(reply->status[k] & INT32_MAX));
		newborn_drop(list);
	}
	arena_free(&arena);
}

static void tell(struct client *c, struct newborn *list, uint32_t count)
{
	struct newborns *n = &c->newborns;

	tell_and_drop(c, list, count);
	LOCKED(&n->lock);
	n->settled += count;
	atomic_fetch_sub(&n->waiting, count);
	pthread_cond_broadcast(&n->told);
}

/* Whatever else a server says would name inodes that are there already, or none that can be. */
static bool are_numbers(const Wire__AllocInodesReply *reply)
{
	return reply->count > 0 && reply->count <= NUMBERS_AT_ONCE && reply->first > 1 &&
	       reply->first <= NUMBER_MAX - reply->count;
}

static void numbers_ask(struct client *c)
{
	Wire__AllocInodesRequest request = WIRE__ALLOC_INODES_REQUEST__INIT;
	struct newborns *n = &c->newborns;
	Wire__AllocInodesReply *reply;
	struct arena arena;
	int r;

	request.count = NUMBERS_AT_ONCE;
	arena_init(&arena, 0);
	r = client_call(c, WIRE__OP__ALLOC_INODES, &request, &arena, &reply);
	pthread_mutex_lock(&n->lock);
	if (r < 0 || !are_numbers(reply)) {
		n->ask_numbers_at_ns = monotonic_ns() + AGAIN_NS;
	} else if (lease_held(c)) {
		/* What is left of the range before is given up: numbers are plenty. */
		n->next_number = reply->first;
		n->numbers_left = reply->count;
	}
	pthread_mutex_unlock(&n->lock);
	arena_free(&arena);
}

/* The lock is held. */
static bool numbers_wanted(struct client *c)
{
	const struct newborns *n = &c->newborns;

	return !c->read_only && n->numbers_left <= NUMBERS_AT_ONCE / 8 && lease_held(c) && monotonic_ns() >= n->ask_numbers_at_ns;
}

/* The lock is held.  Those that are queued, after a while in which more may come. */
static struct newborn *gather(struct newborns *n, uint32_t *count)
{
	int64_t until = monotonic_ns() + GATHER_NS;
	struct newborn *list = n->first, *last = list;

	while (n->queued < GATHER_ENOUGH && n->wanted <= n->settled && !n->stopping)
		if (cond_wait_until(&n->work, &n->lock, until) < 0)
			break;
	for (*count = 1; *count < TOLD_AT_ONCE && last->next; ++*count)
		last = last->next;
	n->first = last->next;
	last->next = NULL;
	if (!n->first)
		n->end = &n->first;
	n->queued -= *count;
	return list;
}

static void *newborns_run(void *context)
{
	struct client *c = context;
	struct newborns *n = &c->newborns;
	struct newborn *list;
	uint32_t count;

	pthread_mutex_lock(&n->lock);
	while (n->first || !n->stopping) {
		if (numbers_wanted(c)) {
			pthread_mutex_unlock(&n->lock);
			numbers_ask(c);
			pthread_mutex_lock(&n->lock);
		} else if (n->first) {
			list = gather(n, &count);
			pthread_mutex_unlock(&n->lock);
			tell(c, list, count);
			pthread_mutex_lock(&n->lock);
		} else {
			pthread_cond_wait(&n->work, &n->lock);
		}
	}
	pthread_mutex_unlock(&n->lock);
	return NULL;
}

void newborns_init(struct newborns *n)
{
	n->end = &n->first;
	pthread_mutex_init(&n->lock, NULL);
	cond_init_monotonic(&n->work);
	cond_init_monotonic(&n->told);
}

void newborns_free(struct newborns *n)
{
	pthread_mutex_destroy(&n->lock);
	pthread_cond_destroy(&n->work);
	pthread_cond_destroy(&n->told);
}

int newborns_start(struct client *c)
{
	struct newborns *n = &c->newborns;
	int r;

	r = -pthread_create(&n->thread, NULL, newborns_run, c);
	n->started = r == 0;
	return r;
}

void newborns_stop(struct client *c)
{
	struct newborns *n = &c->newborns;

	if (!n->started)
		return;
	pthread_mutex_lock(&n->lock);
	n->stopping = true;
	pthread_cond_broadcast(&n->work);
	pthread_mutex_unlock(&n->lock);
	pthread_join(n->thread, NULL);
	n->started = false;
}
