#include "company.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- A mount: a session with a connection for all and one for its lease ---- */

uint64_t hello(struct raw *w, uint64_t session, bool read_only)
{
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	Wire__HelloReply *reply;

	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	q.session = session;
	q.read_only = read_only;
	assert_int_equal(raw_ask(w, WIRE__OP__HELLO, 0, 0, &q), 0);
	reply = wire__hello_reply__unpack(&w->arena.allocator, w->reply.message_length, w->message);
	assert_non_null(reply);
	return reply->session;
}

bool answered_within(struct raw *w, int ms)
{
	struct pollfd fd = { .fd = connection_fd(w->c), .events = POLLIN };

	return poll(&fd, 1, ms) == 1;
}

/* A LEASE request under way: it is answered when there is something to say. */
void listen_with(struct mount *m, uint64_t done, Wire__Written *written)
{
	Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;

	q.seen = m->number;
	q.done = done;
	q.written = &written;
	q.n_written = written != NULL;
	raw_send(&m->lease, WIRE__OP__LEASE, 0, 0, &q);
}

void listen_on(struct mount *m) { listen_with(m, m->done, NULL); }

const Wire__LeaseReply *hear(struct mount *m)
{
	Wire__LeaseReply *reply;

	assert_int_equal(raw_receive(&m->lease, WIRE__OP__LEASE), 0);
	reply = wire__lease_reply__unpack(&m->lease.arena.allocator, m->lease.reply.message_length, m->lease.message);
	assert_non_null(reply);
	m->number = reply->number;
	m->revoked = reply->revoked;
	if (reply->n_recalls)
		m->done = reply->last;
	return m->told = reply;
}

void mount_open(struct fixture *f, struct mount *m, bool read_only)
{
	*m = (struct mount){ 0 };
	raw_open(f, &m->talk);
	m->session = hello(&m->talk, 0, read_only);
	raw_open(f, &m->lease);
	hello(&m->lease, m->session, read_only);
}

void mount_close(struct mount *m)
{
	raw_close(&m->talk);
	raw_close(&m->lease);
}

/* Mounts that know of each other, and what state their lease is in. */
void company_open(struct fixture *f, int64_t lease_ms, struct mount *all, int count)
{
	fixture_stop(f);
	f->options.lease_ms = lease_ms;
	fixture_start(f);
	for (int i = 0; i < count; i++)
		mount_open(f, &all[i], false);
	for (int i = 0; i < count; i++) {
		listen_on(&all[i]);
		assert_false(hear(&all[i])->held);
	}
}

void company_close(struct mount *all, int count)
{
	for (int i = 0; i < count; i++)
		mount_close(&all[i]);
}

/* The recall the LEASE request under way is answered with: its number. */
uint64_t expect_recall(struct mount *m, uint64_t inode, Wire__RecallKind kind)
{
	const Wire__LeaseReply *reply = hear(m);

	for (int i = 0; i < 5 && !reply->n_recalls; i++) { /* one of those that come every three seconds */
		listen_on(m);
		reply = hear(m);
	}
	assert_int_equal(reply->n_recalls, 1);
	assert_int_equal(reply->recalls[0]->inode, inode);
	assert_int_equal(reply->recalls[0]->kind, kind);
	assert_int_equal(reply->recalls[0]->number, reply->last);
	return reply->last;
}

/* ---- What they ask ---- */

void mutation_send(struct mount *m, uint16_t op, const void *request)
{
	m->mutations++;
	raw_send(&m->talk, op, m->mutations, m->mutations, request);
}

int mutate(struct mount *m, uint16_t op, const void *request)
{
	mutation_send(m, op, request);
	return raw_receive(&m->talk, op);
}

const struct attr *entry(struct mount *m, Wire__Grant *grant)
{
	Wire__EntryReply *reply = wire__entry_reply__unpack(&m->talk.arena.allocator, m->talk.reply.message_length,
							    m->talk.message);
	struct attr *out = arena_take(&m->talk.arena, sizeof(*out));

	assert_non_null(reply);
	assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, out), 0);
	if (grant)
		*grant = reply->grant;
	return out;
}

Wire__CreateRequest create_request(uint64_t parent, const char *name, uint32_t mode)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;

	q.parent = parent;
	q.name.data = (uint8_t *)name;
	q.name.len = strlen(name);
	q.mode = mode;
	q.exclusive = true;
	return q;
}

uint64_t make(struct mount *m, uint64_t parent, const char *name, uint32_t mode)
{
	Wire__CreateRequest q = create_request(parent, name, mode);

	assert_int_equal(mutate(m, WIRE__OP__CREATE, &q), 0);
	return entry(m, NULL)->inode;
}

uint64_t make_file(struct mount *m, const char *name) { return make(m, ROOT, name, S_IFREG | 0644); }

int granted(struct mount *m, uint16_t op)
{
	int r = raw_receive(&m->talk, op);
	Wire__ExtentsReply *reply;

	if (r)
		return -r;
	reply = wire__extents_reply__unpack(&m->talk.arena.allocator, m->talk.reply.message_length, m->talk.message);
	assert_non_null(reply);
	return (int)reply->grant;
}

/* What was granted, or -errno. */
int open_file(struct mount *m, uint64_t inode, int want)
{
	Wire__OpenRequest q = WIRE__OPEN_REQUEST__INIT;

	q.inode = inode;
	q.want = (Wire__Grant)want;
	q.number = ++m->mutations;
	raw_send(&m->talk, WIRE__OP__OPEN, 0, 0, &q);
	return granted(m, WIRE__OP__OPEN);
}

void want_send(struct mount *m, uint64_t inode, int want)
{
	Wire__ExtentsRequest q = WIRE__EXTENTS_REQUEST__INIT;

	q.inode = inode;
	q.max = 8;
	q.want = (Wire__Grant)want;
	raw_send(&m->talk, WIRE__OP__EXTENTS, 0, 0, &q);
}

int want_got(struct mount *m) { return granted(m, WIRE__OP__EXTENTS); }

int want(struct mount *m, uint64_t inode, int grant)
{
	want_send(m, inode, grant);
	return want_got(m);
}

void give_back(struct mount *m, uint64_t inode, int left, uint64_t recall)
{
	Wire__ReturnRequest q = WIRE__RETURN_REQUEST__INIT;

	q.inode = inode;
	q.grant = (Wire__Grant)left;
	q.recall = recall;
	assert_int_equal(raw_ask(&m->talk, WIRE__OP__RETURN, 0, 0, &q), 0);
}

/* Whether the directory was granted. */
bool list(struct mount *m, uint64_t inode)
{
	Wire__ReaddirRequest q = WIRE__READDIR_REQUEST__INIT;
	Wire__ReaddirReply *reply;

	q.inode = inode;
	q.max_bytes = 4096;
	q.attributes = q.grant = true;
	assert_int_equal(raw_ask(&m->talk, WIRE__OP__READDIR, 0, 0, &q), 0);
	reply = wire__readdir_reply__unpack(&m->talk.arena.allocator, m->talk.reply.message_length, m->talk.message);
	assert_non_null(reply);
	return reply->granted;
}

void create_send(struct mount *m, uint64_t parent, const char *name)
{
	Wire__CreateRequest q = create_request(parent, name, S_IFREG | 0644);

	mutation_send(m, WIRE__OP__CREATE, &q);
}

void chmod_send(struct mount *m, uint64_t inode, uint32_t mode)
{
	Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;

	q.inode = inode;
	q.valid = SET_MODE;
	q.mode = mode;
	mutation_send(m, WIRE__OP__SETATTR, &q);
}

/* The status of the file in a commit that makes it longer and holds nothing. */
int commit_size(struct mount *m, uint64_t inode, uint64_t size, uint64_t lease)
{
	Wire__CommitRequest q = WIRE__COMMIT_REQUEST__INIT;
	Wire__FileCommit file = WIRE__FILE_COMMIT__INIT, *files[1] = { &file };
	Wire__CommitReply *reply;

	file.inode = inode;
	file.size = size;
	file.lease = lease;
	q.files = files;
	q.n_files = 1;
	assert_int_equal(mutate(m, WIRE__OP__COMMIT, &q), 0);
	reply = wire__commit_reply__unpack(&m->talk.arena.allocator, m->talk.reply.message_length, m->talk.message);
	assert_non_null(reply);
	assert_int_equal(reply->n_files, 1);
	return (int)reply->files[0]->status;
}

uint64_t files_open(struct fixture *f)
{
	Wire__StatusReply *all = status(f);
	uint64_t count = 0;

	for (size_t i = 0; i < all->n_sessions; i++)
		count += all->sessions[i]->open_files;
	return count;
}

const struct attr *look(struct mount *m, uint64_t inode)
{
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;

	q.inode = inode;
	assert_int_equal(raw_ask(&m->talk, WIRE__OP__GETATTR, 0, 0, &q), 0);
	return entry(m, NULL);
}

int reclaim(struct mount *m, uint64_t *opens, size_t open_count, uint32_t *grants, size_t grant_count)
{
	Wire__ReclaimRequest q = WIRE__RECLAIM_REQUEST__INIT;

	q.opens = opens;
	q.n_opens = open_count;
	q.grants = grants;
	q.n_grants = grant_count;
	return raw_ask(&m->talk, WIRE__OP__RECLAIM, 0, 0, &q);
}

void mount_again(struct fixture *f, struct mount *m)
{
	uint64_t session = m->session;

	mount_close(m);
	raw_open(f, &m->talk);
	assert_int_equal(hello(&m->talk, session, false), session);
	raw_open(f, &m->lease);
	assert_int_equal(hello(&m->lease, session, false), session);
}
