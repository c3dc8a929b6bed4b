/* Grants: who may keep what of single directories and files, over raw connections. */
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
#include "fixture.h"

#define FOR_EVER_MS 600000 /* a lease no test waits for */
#define SHORT_MS 700
#define A_WHILE_MS 100 /* an answer that must not come is waited for so long */

#define NONE WIRE__GRANT__GRANT_NONE
#define READ WIRE__GRANT__GRANT_READ
#define WRITE WIRE__GRANT__GRANT_WRITE
#define ROOT 1

/* ---- A mount: a session with a connection for all and one for its lease ---- */

struct mount {
	struct raw talk, lease;
	uint64_t session, mutations;
	uint64_t number, revoked; /* of the lease, as told last */
	uint64_t done;
	const Wire__LeaseReply *told;
};

static uint64_t hello(struct raw *w, uint64_t session, bool read_only)
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

static bool answered_within(struct raw *w, int ms)
{
	struct pollfd fd = { .fd = connection_fd(w->c), .events = POLLIN };

	return poll(&fd, 1, ms) == 1;
}

/* A LEASE request under way: it is answered when there is something to say. */
static void listen_with(struct mount *m, uint64_t done, Wire__Written *written)
{
	Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;

	q.seen = m->number;
	q.done = done;
	q.written = &written;
	q.n_written = written != NULL;
	raw_send(&m->lease, WIRE__OP__LEASE, 0, 0, &q);
}

static void listen_on(struct mount *m) { listen_with(m, m->done, NULL); }

static const Wire__LeaseReply *hear(struct mount *m)
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

static void mount_open(struct fixture *f, struct mount *m, bool read_only)
{
	*m = (struct mount){ 0 };
	raw_open(f, &m->talk);
	m->session = hello(&m->talk, 0, read_only);
	raw_open(f, &m->lease);
	hello(&m->lease, m->session, read_only);
}

static void mount_close(struct mount *m)
{
	raw_close(&m->talk);
	raw_close(&m->lease);
}

/* Mounts that know of each other, and what state their lease is in. */
static void company_open(struct fixture *f, int64_t lease_ms, struct mount *all, int count)
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

static void company_close(struct mount *all, int count)
{
	for (int i = 0; i < count; i++)
		mount_close(&all[i]);
}

/* The recall the LEASE request under way is answered with: its number. */
static uint64_t expect_recall(struct mount *m, uint64_t inode, Wire__RecallKind kind)
{
	const Wire__LeaseReply *reply = hear(m);

	while (!reply->n_recalls) { /* one of those that come every three seconds */
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

static void mutation_send(struct mount *m, uint16_t op, const void *request)
{
	m->mutations++;
	raw_send(&m->talk, op, m->mutations, m->mutations, request);
}

static int mutate(struct mount *m, uint16_t op, const void *request)
{
	mutation_send(m, op, request);
	return raw_receive(&m->talk, op);
}

static const struct attr *entry(struct mount *m, Wire__Grant *grant)
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

static Wire__CreateRequest create_request(uint64_t parent, const char *name, uint32_t mode)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;

	q.parent = parent;
	q.name.data = (uint8_t *)name;
	q.name.len = strlen(name);
	q.mode = mode;
	q.exclusive = true;
	return q;
}

static uint64_t make(struct mount *m, uint64_t parent, const char *name, uint32_t mode)
{
	Wire__CreateRequest q = create_request(parent, name, mode);

	assert_int_equal(mutate(m, WIRE__OP__CREATE, &q), 0);
	return entry(m, NULL)->inode;
}

static uint64_t make_file(struct mount *m, const char *name) { return make(m, ROOT, name, S_IFREG | 0644); }

static int granted(struct mount *m, uint16_t op)
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
static int open_file(struct mount *m, uint64_t inode, int want)
{
	Wire__OpenRequest q = WIRE__OPEN_REQUEST__INIT;

	q.inode = inode;
	q.want = (Wire__Grant)want;
	q.number = ++m->mutations;
	raw_send(&m->talk, WIRE__OP__OPEN, 0, 0, &q);
	return granted(m, WIRE__OP__OPEN);
}

static void want_send(struct mount *m, uint64_t inode, int want)
{
	Wire__ExtentsRequest q = WIRE__EXTENTS_REQUEST__INIT;

	q.inode = inode;
	q.max = 8;
	q.want = (Wire__Grant)want;
	raw_send(&m->talk, WIRE__OP__EXTENTS, 0, 0, &q);
}

static int want_got(struct mount *m) { return granted(m, WIRE__OP__EXTENTS); }

static int want(struct mount *m, uint64_t inode, int grant)
{
	want_send(m, inode, grant);
	return want_got(m);
}

static void give_back(struct mount *m, uint64_t inode, int left, uint64_t recall)
{
	Wire__ReturnRequest q = WIRE__RETURN_REQUEST__INIT;

	q.inode = inode;
	q.grant = (Wire__Grant)left;
	q.recall = recall;
	assert_int_equal(raw_ask(&m->talk, WIRE__OP__RETURN, 0, 0, &q), 0);
}

/* Whether the directory was granted. */
static bool list(struct mount *m, uint64_t inode)
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

static void create_send(struct mount *m, uint64_t parent, const char *name)
{
	Wire__CreateRequest q = create_request(parent, name, S_IFREG | 0644);

	mutation_send(m, WIRE__OP__CREATE, &q);
}

static void chmod_send(struct mount *m, uint64_t inode, uint32_t mode)
{
	Wire__SetattrRequest q = WIRE__SETATTR_REQUEST__INIT;

	q.inode = inode;
	q.valid = SET_MODE;
	q.mode = mode;
	mutation_send(m, WIRE__OP__SETATTR, &q);
}

/* The status of the file in a commit that makes it longer and holds nothing. */
static int commit_size(struct mount *m, uint64_t inode, uint64_t size, uint64_t lease)
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

static uint64_t files_open(struct fixture *f)
{
	Wire__StatusReply *all = status(f);
	uint64_t count = 0;

	for (size_t i = 0; i < all->n_sessions; i++)
		count += all->sessions[i]->open_files;
	return count;
}

static const struct attr *look(struct mount *m, uint64_t inode)
{
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;

	q.inode = inode;
	assert_int_equal(raw_ask(&m->talk, WIRE__OP__GETATTR, 0, 0, &q), 0);
	return entry(m, NULL);
}

/* ---- Files ---- */

static void a_file_nobody_has_is_granted_as_it_is_wanted(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t one, two;

	company_open(f, FOR_EVER_MS, m, 2);
	one = make_file(&m[0], "one");
	two = make_file(&m[0], "two");
	assert_int_equal(open_file(&m[0], one, NONE), NONE);
	assert_int_equal(open_file(&m[0], one, READ), READ);
	assert_int_equal(open_file(&m[1], one, READ), READ); /* any number of readers */
	assert_int_equal(open_file(&m[0], two, WRITE), WRITE);
	assert_int_equal(open_file(&m[0], two, READ), WRITE); /* what it has is more */
	assert_int_equal(open_file(&m[1], two, READ), NONE);  /* an open never waits */
	assert_int_equal(open_file(&m[1], two, WRITE), NONE);
	assert_int_equal(open_file(&m[0], one, WRITE), NONE);
	company_close(m, 2);
}

static void whoever_makes_a_file_and_leaves_it_open_may_write_to_it(void **state)
{
	struct fixture *f = *state;
	Wire__CreateRequest q = create_request(ROOT, "new", S_IFREG | 0644);
	const struct attr *made;
	Wire__Grant grant;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	q.open = true;
	assert_int_equal(mutate(&m[0], WIRE__OP__CREATE, &q), 0);
	made = entry(&m[0], &grant);
	assert_int_equal(grant, WRITE);
	assert_int_equal(open_file(&m[1], made->inode, READ), NONE);
	company_close(m, 2);
}

static void a_reader_waits_for_the_writer_who_goes_on_reading(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, recall;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	listen_on(&m[0]);
	want_send(&m[1], file, READ);
	recall = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	listen_on(&m[0]); /* it has heard of it, which is not the same as having done it */
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	assert_int_equal(want(&m[0], file, READ), NONE); /* asked back, so answered at once and without */
	give_back(&m[0], file, READ, recall);
	assert_int_equal(want_got(&m[1]), READ);
	assert_int_equal(want(&m[0], file, READ), READ);

	/* Writing is for one alone. */
	want_send(&m[1], file, WRITE);
	recall = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	give_back(&m[0], file, NONE, recall);
	assert_int_equal(want_got(&m[1]), WRITE);
	assert_int_equal(open_file(&m[0], file, READ), NONE);
	company_close(m, 2);
}

static void a_return_that_comes_again_takes_nothing_away(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, first, second;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	listen_on(&m[0]);
	want_send(&m[1], file, READ);
	first = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	give_back(&m[0], file, READ, first);
	assert_int_equal(want_got(&m[1]), READ);

	give_back(&m[0], file, NONE, first);
	listen_on(&m[0]);
	want_send(&m[1], file, WRITE);
	second = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE); /* so it had READ still */
	assert_true(second > first);
	give_back(&m[0], file, NONE, first);
	give_back(&m[0], file, NONE, second + 1);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	give_back(&m[0], file, NONE, second);
	assert_int_equal(want_got(&m[1]), WRITE);
	company_close(m, 2);
}

static void a_recall_grows_when_somebody_wants_more(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];
	uint64_t file, weak, strong;

	company_open(f, FOR_EVER_MS, m, 3);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	listen_on(&m[0]);
	want_send(&m[1], file, READ);
	weak = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	listen_on(&m[0]);
	chmod_send(&m[2], file, 0600);
	strong = expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_FILE);
	assert_true(strong > weak);
	give_back(&m[0], file, READ, weak); /* that would have been enough for the reader */
	assert_false(answered_within(&m[2].talk, A_WHILE_MS));
	assert_false(answered_within(&m[1].talk, 0));
	give_back(&m[0], file, READ, strong); /* nothing may stay, whatever is said */
	assert_int_equal(raw_receive(&m[2].talk, WIRE__OP__SETATTR), 0);
	assert_int_equal(want_got(&m[1]), READ);
	assert_int_equal(open_file(&m[0], file, WRITE), NONE);
	company_close(m, 3);
}

static void a_close_gives_the_grant_back_but_not_a_late_one(void **state)
{
	struct fixture *f = *state;
	Wire__CloseRequest q = WIRE__CLOSE_REQUEST__INIT;
	struct mount m[2];
	uint64_t file, number;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, READ), READ);
	number = m[0].mutations;
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	q.inodes = &file;
	q.n_inodes = 1;
	q.number = number;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__CLOSE, 0, 0, &q), 0);
	assert_int_equal(open_file(&m[1], file, READ), NONE);
	q.number = m[0].mutations;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__CLOSE, 0, 0, &q), 0);
	assert_int_equal(open_file(&m[1], file, READ), READ);
	company_close(m, 2);
}

static void the_end_of_a_session_lets_those_who_wait_go_on(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 3);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	want_send(&m[1], file, WRITE);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	assert_int_equal(mutate(&m[0], WIRE__OP__GOODBYE, NULL), 0);
	assert_int_equal(want_got(&m[1]), WRITE);
	/* And one who waits and goes away is in nobody's way afterwards. */
	want_send(&m[2], file, READ);
	listen_on(&m[1]);
	expect_recall(&m[1], file, WIRE__RECALL_KIND__RECALL_WRITE);
	raw_close(&m[2].talk);
	give_back(&m[1], file, NONE, m[1].done);
	AWAIT(want(&m[1], file, WRITE) == WRITE);
	mount_close(&m[0]);
	mount_close(&m[1]);
	raw_close(&m[2].lease);
}

/* ---- Directories ---- */

static void a_name_is_made_after_others_have_forgotten_the_directory(void **state)
{
	struct fixture *f = *state;
	struct mount m[3];

	company_open(f, FOR_EVER_MS, m, 3);
	assert_true(list(&m[0], ROOT));
	assert_true(list(&m[1], ROOT));
	listen_on(&m[0]);
	create_send(&m[1], ROOT, "file"); /* its own is not in its way */
	expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	/* While it is changed nobody gets it, and nobody waits for it either. */
	assert_false(list(&m[0], ROOT));
	assert_false(list(&m[2], ROOT));
	listen_on(&m[0]);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	assert_true(list(&m[2], ROOT));
	assert_true(list(&m[0], ROOT));
	company_close(m, 3);
}

static void a_recall_comes_again_until_it_is_said_to_be_done(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t recall;

	company_open(f, FOR_EVER_MS, m, 2);
	assert_true(list(&m[0], ROOT));
	listen_on(&m[0]);
	create_send(&m[1], ROOT, "file");
	recall = expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	for (int i = 0; i < 3; i++) {
		listen_with(&m[0], recall - 1, NULL);
		assert_int_equal(expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY), recall);
	}
	assert_false(answered_within(&m[1].talk, 0));
	listen_with(&m[0], recall, NULL);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	company_close(m, 2);
}

static void a_directory_that_changes_all_the_time_is_not_granted_for_a_while(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	char name[] = "0";
	int granted_times = 0;

	company_open(f, FOR_EVER_MS, m, 2);
	listen_on(&m[0]);
	for (; granted_times < 60 && list(&m[0], ROOT); granted_times++) {
		name[0]++;
		create_send(&m[1], ROOT, name);
		expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
		listen_on(&m[0]);
		assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	}
	assert_in_range(granted_times, 4, 59);
	AWAIT(list(&m[0], ROOT)); /* and when it is quiet again, it is */
	company_close(m, 2);
}

/* The chmod looks where the file is, waits for somebody, and meanwhile the file goes to another directory. */
static void a_file_that_was_moved_meanwhile_is_forgotten_where_it_is_now(void **state)
{
	struct fixture *f = *state;
	Wire__RenameRequest move = WIRE__RENAME_REQUEST__INIT;
	struct mount m[3];
	uint64_t from, to, file, recall;

	company_open(f, FOR_EVER_MS, m, 3);
	from = make(&m[0], ROOT, "from", S_IFDIR | 0755);
	to = make(&m[0], ROOT, "to", S_IFDIR | 0755);
	file = make(&m[0], from, "file", S_IFREG | 0644);
	assert_int_equal(open_file(&m[2], file, READ), READ);
	listen_on(&m[2]);
	chmod_send(&m[1], file, 0600);
	recall = expect_recall(&m[2], file, WIRE__RECALL_KIND__RECALL_FILE);

	move.old_parent = from;
	move.new_parent = to;
	move.old_name.data = move.new_name.data = (uint8_t *)"file";
	move.old_name.len = move.new_name.len = 4;
	assert_int_equal(mutate(&m[0], WIRE__OP__RENAME, &move), 0);
	assert_true(list(&m[0], to));
	listen_on(&m[0]);
	give_back(&m[2], file, NONE, recall);
	expect_recall(&m[0], to, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	listen_on(&m[0]);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__SETATTR), 0);
	assert_int_equal(look(&m[0], file)->mode, S_IFREG | 0600);
	assert_true(list(&m[2], from)); /* nothing is left marked as changing */
	assert_true(list(&m[2], to));
	company_close(m, 3);
}

static void what_is_restored_from_the_trash_is_forgotten_by_all_before(void **state)
{
	struct fixture *f = *state;
	Wire__TrashRestoreRequest restore = WIRE__TRASH_RESTORE_REQUEST__INIT;
	Wire__VolumeSetRequest set = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__HelloRequest administrate = WIRE__HELLO_REQUEST__INIT;
	Wire__NameRequest name = WIRE__NAME_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *field = "retention";
	struct raw admin;
	struct mount m[2];
	uint64_t folder;

	company_open(f, FOR_EVER_MS, m, 2);
	raw_open(f, &admin);
	administrate.version = PROTOCOL_VERSION;
	assert_int_equal(raw_ask(&admin, WIRE__OP__HELLO, 0, 0, &administrate), 0);
	v.name = "training";
	v.retention_s = 3600;
	set.volume = &v;
	set.fields = &field;
	set.n_fields = 1;
	assert_int_equal(raw_ask(&admin, WIRE__OP__VOLUME_SET, 0, 0, &set), 0);

	folder = make(&m[0], ROOT, "folder", S_IFDIR | 0755);
	restore.volume = "training";
	restore.inode = make(&m[0], folder, "file", S_IFREG | 0644);
	name.parent = folder;
	name.name.data = (uint8_t *)"file";
	name.name.len = 4;
	assert_int_equal(mutate(&m[0], WIRE__OP__UNLINK, &name), 0);
	assert_true(list(&m[1], folder));
	listen_on(&m[1]);
	raw_send(&admin, WIRE__OP__TRASH_RESTORE, 0, 0, &restore);
	expect_recall(&m[1], folder, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&admin, A_WHILE_MS));
	assert_int_equal(raw_ask(&m[1].talk, WIRE__OP__LOOKUP, 0, 0, &name), ENOENT);
	listen_on(&m[1]);
	assert_int_equal(raw_receive(&admin, WIRE__OP__TRASH_RESTORE), 0);
	assert_int_equal(raw_ask(&m[1].talk, WIRE__OP__LOOKUP, 0, 0, &name), 0);
	assert_true(list(&m[1], folder));
	raw_close(&admin);
	company_close(m, 2);
}

/* ---- Asking a writer ---- */

static void a_writer_is_asked_for_the_size_and_stores_nothing(void **state)
{
	struct fixture *f = *state;
	Wire__Written written = WIRE__WRITTEN__INIT;
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;
	const struct attr *a;
	struct mount m[2];
	uint64_t recall;

	company_open(f, FOR_EVER_MS, m, 2);
	q.inode = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], q.inode, WRITE), WRITE);
	for (int unstored = 0; unstored < 2; unstored++) {
		if (!unstored)
			listen_on(&m[0]);
		raw_send(&m[1].talk, WIRE__OP__GETATTR, 0, 0, &q);
		recall = expect_recall(&m[0], q.inode, WIRE__RECALL_KIND__RECALL_TELL);
		assert_false(answered_within(&m[1].talk, A_WHILE_MS));
		written.inode = q.inode;
		written.unstored = unstored;
		written.size = 12345;
		written.mtime_ns = 77;
		listen_with(&m[0], recall, &written);
		assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__GETATTR), 0);
		a = entry(&m[1], NULL);
		assert_true(a->flags & ATTR_BEING_WRITTEN);
		assert_int_equal(a->size, unstored ? 12345 : 0);
		assert_int_equal(a->mtime_ns == 77, unstored);
	}
	assert_int_equal(look(&m[0], q.inode)->size, 0); /* the writer itself is told what is stored */
	company_close(m, 2);
}

static void a_writer_that_does_not_answer_is_not_asked_for_ever(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	assert_int_equal(look(&m[1], file)->size, 0);
	assert_int_equal(open_file(&m[1], file, WRITE), WRITE); /* it has lost it for that */
	company_close(m, 2);
}

/* ---- Silent ones ---- */

static void a_silent_writer_loses_the_file_and_may_not_store_any_more(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, before;
	int64_t began = clock_steady_ns();

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	assert_int_equal(commit_size(&m[0], file, 100, before), 0);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	assert_true(clock_steady_ns() - began >= SHORT_MS * NS_PER_MS);

	assert_int_equal(commit_size(&m[0], file, 200, before), ESTALE);
	assert_int_equal(look(&m[1], file)->size, 100);
	listen_on(&m[0]);
	hear(&m[0]);
	assert_true(m[0].revoked > before);
	assert_true(m[0].number >= m[0].revoked);
	/* The other one is silent as well by now: under the new number all is as if nothing had been. */
	assert_int_equal(want(&m[0], file, WRITE), WRITE);
	assert_int_equal(commit_size(&m[0], file, 300, before), ESTALE);
	assert_int_equal(commit_size(&m[0], file, 300, m[0].number), 0);
	company_close(m, 2);
}

static void one_that_answers_but_never_returns_the_file_loses_it_in_the_end(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, before;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	want_send(&m[1], file, READ);
	while (!answered_within(&m[1].talk, SHORT_MS / 4)) {
		Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;

		/* A state it has not acted upon is answered at once. */
		q.done = m[0].done;
		q.seen = before - 1;
		raw_send(&m[0].lease, WIRE__OP__LEASE, 0, 0, &q);
		hear(&m[0]);
	}
	assert_int_equal(want_got(&m[1]), READ);
	assert_int_equal(commit_size(&m[0], file, 200, before), ESTALE);
	company_close(m, 2);
}

static void a_silent_one_that_is_in_nobodys_way_keeps_what_it_has(void **state)
{
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file, folder;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	folder = make(&m[0], ROOT, "folder", S_IFDIR | 0755);
	assert_true(list(&m[1], folder));
	make(&m[0], folder, "other", S_IFREG | 0644); /* takes the lease's time: the other one says nothing */
	assert_int_equal(commit_size(&m[0], file, 100, m[0].number), 0);
	company_close(m, 2);
}

/* ---- After a restart ---- */

static int reclaim(struct mount *m, uint64_t *opens, size_t open_count, uint32_t *grants, size_t grant_count)
{
	Wire__ReclaimRequest q = WIRE__RECLAIM_REQUEST__INIT;

	q.opens = opens;
	q.n_opens = open_count;
	q.grants = grants;
	q.n_grants = grant_count;
	return raw_ask(&m->talk, WIRE__OP__RECLAIM, 0, 0, &q);
}

static void mount_again(struct fixture *f, struct mount *m)
{
	uint64_t session = m->session;

	mount_close(m);
	raw_open(f, &m->talk);
	assert_int_equal(hello(&m->talk, session, false), session);
	raw_open(f, &m->lease);
	assert_int_equal(hello(&m->lease, session, false), session);
}

static void after_a_restart_a_grant_is_what_its_holder_says(void **state)
{
	struct fixture *f = *state;
	uint32_t write[] = { WRITE };
	struct mount m[2];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	fixture_stop(f);
	fixture_start(f);
	mount_again(f, &m[1]);
	assert_int_equal(reclaim(&m[1], NULL, 0, NULL, 0), 0);
	want_send(&m[1], file, READ);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS)); /* who knows what the other one has */
	mount_again(f, &m[0]);
	assert_int_equal(reclaim(&m[0], &file, 1, write, 1), 0);
	listen_on(&m[0]);
	hear(&m[0]); /* the number of the lease */
	if (!m[0].told->n_recalls) {
		listen_on(&m[0]);
		expect_recall(&m[0], file, WIRE__RECALL_KIND__RECALL_WRITE);
	}
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	give_back(&m[0], file, NONE, m[0].done);
	assert_int_equal(want_got(&m[1]), READ);
	company_close(m, 2);
}

static void one_that_comes_back_too_late_has_lost_its_grants_and_learns_of_it(void **state)
{
	struct fixture *f = *state;
	uint32_t write[] = { WRITE };
	struct mount m[2];
	uint64_t file, before;

	company_open(f, SHORT_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	before = m[0].number;
	fixture_stop(f);
	fixture_start(f);
	mount_again(f, &m[1]);
	assert_int_equal(reclaim(&m[1], NULL, 0, NULL, 0), 0);
	assert_int_equal(want(&m[1], file, WRITE), WRITE);
	mount_again(f, &m[0]);
	assert_int_equal(reclaim(&m[0], &file, 1, write, 1), 0);
	assert_int_equal(open_file(&m[0], file, READ), NONE);
	assert_int_equal(commit_size(&m[0], file, 100, before), ESTALE);
	listen_on(&m[0]);
	assert_true(hear(&m[0])->revoked > before);
	assert_int_equal(commit_size(&m[0], file, 100, m[0].number), 0);
	company_close(m, 2);
}

/* ---- Those who say what they should not ---- */

static void there_are_no_other_grants(void **state)
{
	static const int wrong[] = { 3, 77, -1, INT32_MIN };
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(open_file(&m[0], file, wrong[i]), -EINVAL);
		assert_non_null(strstr(raw_why(&m[0].talk), "there is no grant"));
		assert_int_equal(want(&m[0], file, wrong[i]), -EINVAL);
	}
	assert_int_equal(files_open(f), 0); /* what is refused is not left open */
	assert_int_equal(open_file(&m[1], file, WRITE), WRITE);
	company_close(m, 2);
}

static void one_that_may_only_read_gets_no_grant_to_write(void **state)
{
	struct fixture *f = *state;
	struct mount m[2], reader;
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	mount_open(f, &reader, true);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&reader, file, WRITE), -EROFS);
	assert_int_equal(want(&reader, file, WRITE), -EROFS);
	assert_int_equal(open_file(&reader, file, READ), READ);
	mount_close(&reader);
	company_close(m, 2);
}

static void returns_of_what_was_never_granted_change_nothing(void **state)
{
	static const uint64_t inodes[] = { 0, ROOT, 12345, UINT64_MAX };
	struct fixture *f = *state;
	struct mount m[2];
	uint64_t file;

	company_open(f, FOR_EVER_MS, m, 2);
	file = make_file(&m[0], "file");
	assert_int_equal(open_file(&m[0], file, WRITE), WRITE);
	for (size_t i = 0; i < sizeof(inodes) / sizeof(*inodes); i++) {
		give_back(&m[1], inodes[i], NONE, 0);
		give_back(&m[1], inodes[i], 77, UINT64_MAX);
	}
	give_back(&m[1], file, NONE, 0);
	give_back(&m[1], file, WRITE, 1);
	assert_int_equal(open_file(&m[1], file, READ), NONE);
	company_close(m, 2);
}

static void recalls_that_never_were_cannot_be_done(void **state)
{
	struct fixture *f = *state;
	Wire__Written written = WIRE__WRITTEN__INIT;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	assert_true(list(&m[0], ROOT));
	written.inode = 12345;
	written.unstored = true;
	listen_with(&m[0], UINT64_MAX, &written);
	create_send(&m[1], ROOT, "file");
	expect_recall(&m[0], ROOT, WIRE__RECALL_KIND__RECALL_DIRECTORY);
	assert_false(answered_within(&m[1].talk, A_WHILE_MS));
	listen_on(&m[0]);
	assert_int_equal(raw_receive(&m[1].talk, WIRE__OP__CREATE), 0);
	company_close(m, 2);
}

static void nobody_gets_a_grant_by_saying_that_he_had_it(void **state)
{
	struct fixture *f = *state;
	uint32_t grants[] = { WRITE, 77, UINT32_MAX, WRITE, WRITE };
	Wire__CreateManyRequest many = WIRE__CREATE_MANY_REQUEST__INIT;
	Wire__NewFile made = WIRE__NEW_FILE__INIT, *files[] = { &made };
	struct mount m[2];
	uint64_t opens[3];

	company_open(f, FOR_EVER_MS, m, 2);
	opens[0] = make_file(&m[0], "one");
	opens[1] = make_file(&m[0], "two");
	opens[2] = make_file(&m[0], "three");
	assert_int_equal(open_file(&m[0], opens[0], WRITE), WRITE);
	reclaim(&m[1], opens, 3, grants, 5);
	assert_int_equal(open_file(&m[1], opens[0], READ), NONE);
	assert_int_equal(open_file(&m[0], opens[1], WRITE), WRITE);
	assert_int_equal(open_file(&m[0], opens[2], WRITE), WRITE);
	/* Nor by making a file under its number. */
	made.inode = opens[1];
	made.parent = ROOT;
	made.name.data = (uint8_t *)"two";
	made.name.len = 3;
	made.mode = 0644;
	many.files = files;
	many.n_files = 1;
	mutate(&m[1], WIRE__OP__CREATE_MANY, &many);
	assert_int_equal(open_file(&m[1], opens[1], READ), NONE);
	company_close(m, 2);
}

static void inodes_that_cannot_be_are_granted_to_nobody(void **state)
{
	static const uint64_t inodes[] = { 0, 1ull << 40, (1ull << 40) + ROOT, UINT64_MAX };
	struct fixture *f = *state;
	Wire__ReaddirRequest q = WIRE__READDIR_REQUEST__INIT;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	for (size_t i = 0; i < sizeof(inodes) / sizeof(*inodes); i++) {
		for (int k = 0; k < 2; k++) { /* what one had got would be in the other's way for ever */
			assert_int_equal(open_file(&m[k], inodes[i], WRITE), -ENOENT);
			assert_int_equal(want(&m[k], inodes[i], WRITE), -ENOENT);
			q.inode = inodes[i];
			q.grant = true;
			assert_int_equal(raw_ask(&m[k].talk, WIRE__OP__READDIR, 0, 0, &q), ENOENT);
			assert_int_equal(reclaim(&m[k], &q.inode, 1, (uint32_t[]){ WRITE }, 1), ENOENT);
		}
	}
	assert_int_equal(want(&m[0], 99999, WRITE), -ENOENT);
	assert_int_equal(want(&m[1], 99999, WRITE), -ENOENT);
	company_close(m, 2);
}

static void nothing_is_opened_under_a_number_none_can_follow(void **state)
{
	struct fixture *f = *state;
	Wire__OpenRequest q = WIRE__OPEN_REQUEST__INIT;
	struct mount m[2];

	company_open(f, FOR_EVER_MS, m, 2);
	q.inode = make_file(&m[0], "file");
	q.number = UINT64_MAX;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__OPEN, 0, 0, &q), EINVAL);
	assert_int_equal(files_open(f), 0);
	q.number--;
	assert_int_equal(raw_ask(&m[0].talk, WIRE__OP__OPEN, 0, 0, &q), 0);
	assert_int_equal(files_open(f), 1);
	company_close(m, 2);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(a_file_nobody_has_is_granted_as_it_is_wanted),
		WITH_SERVER(whoever_makes_a_file_and_leaves_it_open_may_write_to_it),
		WITH_SERVER(a_reader_waits_for_the_writer_who_goes_on_reading),
		WITH_SERVER(a_return_that_comes_again_takes_nothing_away),
		WITH_SERVER(a_recall_grows_when_somebody_wants_more),
		WITH_SERVER(a_close_gives_the_grant_back_but_not_a_late_one),
		WITH_SERVER(the_end_of_a_session_lets_those_who_wait_go_on),
		WITH_SERVER(a_name_is_made_after_others_have_forgotten_the_directory),
		WITH_SERVER(a_recall_comes_again_until_it_is_said_to_be_done),
		WITH_SERVER(a_directory_that_changes_all_the_time_is_not_granted_for_a_while),
		WITH_SERVER(a_file_that_was_moved_meanwhile_is_forgotten_where_it_is_now),
		WITH_SERVER(what_is_restored_from_the_trash_is_forgotten_by_all_before),
		WITH_SERVER(a_writer_is_asked_for_the_size_and_stores_nothing),
		WITH_SERVER(a_writer_that_does_not_answer_is_not_asked_for_ever),
		WITH_SERVER(a_silent_writer_loses_the_file_and_may_not_store_any_more),
		WITH_SERVER(one_that_answers_but_never_returns_the_file_loses_it_in_the_end),
		WITH_SERVER(a_silent_one_that_is_in_nobodys_way_keeps_what_it_has),
		WITH_SERVER(after_a_restart_a_grant_is_what_its_holder_says),
		WITH_SERVER(one_that_comes_back_too_late_has_lost_its_grants_and_learns_of_it),
		WITH_SERVER(there_are_no_other_grants),
		WITH_SERVER(one_that_may_only_read_gets_no_grant_to_write),
		WITH_SERVER(returns_of_what_was_never_granted_change_nothing),
		WITH_SERVER(recalls_that_never_were_cannot_be_done),
		WITH_SERVER(nobody_gets_a_grant_by_saying_that_he_had_it),
		WITH_SERVER(inodes_that_cannot_be_are_granted_to_nobody),
		WITH_SERVER(nothing_is_opened_under_a_number_none_can_follow),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
