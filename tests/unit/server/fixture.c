#include "../temporary.h"
#include "fixture.h"
#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "block/object.h"

static int64_t fixture_clock(void *context)
{
	struct fixture *f = context;

	return clock_wall_ns() + f->clock_ahead_ns;
}

void fixture_start(struct fixture *f)
{
	char error[600] = "";
	int r = server_start(&f->options, &f->server, error, sizeof(error));

	if (r)
		fail_msg("%s", error);
	snprintf(f->address, sizeof(f->address), "%s", server_address(f->server));
}

void fixture_stop(struct fixture *f)
{
	server_stop(f->server);
	f->server = NULL;
}

static int restarted(void *context, struct rpc *r, struct connection *c, bool known)
{
	struct fixture *f = context;
	Wire__ReclaimRequest q = WIRE__RECLAIM_REQUEST__INIT;
	struct rpc_call call = { .op = WIRE__OP__RECLAIM, .request = &q.base };
	struct arena arena;
	int n;

	f->restarts++;
	f->known = known;
	arena_init(&arena, 0);
	n = rpc_call_on(r, c, &call, &arena);
	arena_free(&arena);
	return n;
}

static struct rpc *connect_as(struct fixture *f, const char *volume, bool read_only)
{
	struct rpc_options options = {
		.servers = f->address,
		.timeout_ms = 20000,
		.hello = WIRE__HELLO_REQUEST__INIT,
		.restarted = restarted,
		.context = f,
	};
	Wire__HelloReply *hello;
	struct rpc *r = NULL;
	int n;

	if (!volume)
		options.restarted = NULL;
	options.hello.mount = volume != NULL;
	options.hello.volume = (char *)(volume ? volume : "");
	options.hello.read_only = read_only;
	options.hello.host = "here";
	options.hello.mount_point = "/mnt/training";
	n = rpc_open(&options, &f->arena, &hello, &r, f->why, sizeof(f->why));
	if (n)
		return errno = -n, NULL;
	return r;
}

struct rpc *fixture_mount(struct fixture *f, const char *volume, bool read_only) { return connect_as(f, volume, read_only); }

int ask(struct fixture *f, struct rpc *r, uint16_t op, const void *request, void *reply)
{
	Wire__Empty none = WIRE__EMPTY__INIT;
	struct rpc_call call = {
		.op = op,
		.request = request ? request : &none,
		.reply = reply,
		.why = f->why,
		.why_size = sizeof(f->why),
	};

	return rpc_call(r, &call, &f->arena);
}

int fixture_setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	Wire__Volume v = WIRE__VOLUME__INIT;

	log_set_level(LOG_LEVEL_OFF);
	temporary_template(f->folder, sizeof(f->folder), "server");
	assert_non_null(mkdtemp(f->folder));
	snprintf(f->data, sizeof(f->data), "%s/data", f->folder);
	f->clock = (struct clock){ fixture_clock, f };
	f->options = (struct server_options){ .data = f->data, .clock = &f->clock };
	arena_init(&f->arena, 0);
	fixture_start(f);
	f->admin = connect_as(f, NULL, false);
	assert_non_null(f->admin);
	v.name = "training";
	v.block_size = BLOCK_DEFAULT;
	v.compression = "none";
	assert_int_equal(ask(f, f->admin, WIRE__OP__VOLUME_CREATE, &v, NULL), 0);
	*state = f;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) { return remove(path); }

int fixture_teardown(void **state)
{
	struct fixture *f = *state;

	rpc_close(f->admin);
	if (f->server)
		fixture_stop(f);
	nftw(f->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	arena_free(&f->arena);
	free(f);
	return 0;
}

/* ---- A connection with frames made by hand ---- */

void raw_open(struct fixture *f, struct raw *w)
{
	int fd;

	assert_int_equal(address_connect(f->address, 5000, &fd, f->why, sizeof(f->why)), 0);
	assert_int_equal(connection_new(fd, &w->c), 0);
	connection_set_timeout(w->c, 20000);
	arena_init(&w->arena, 0);
}

void raw_close(struct raw *w)
{
	connection_free(w->c);
	arena_free(&w->arena);
}

void raw_send(struct raw *w, uint16_t op, uint64_t number, uint64_t answered_below, const void *request)
{
	struct frame q = { .op = op, .id = 7, .number = number, .clock = answered_below };

	connection_send(w->c, &q, request, NULL, 0); /* what fails is not answered, either */
}

int raw_receive(struct raw *w, uint16_t op)
{
	int r = connection_receive(w->c, &w->reply, &w->arena, &w->message);

	if (r)
		return r;
	assert_int_equal(w->reply.flags, FRAME_REPLY);
	assert_int_equal(w->reply.id, 7);
	assert_int_equal(w->reply.op, op);
	return (int)w->reply.status;
}

int raw_ask(struct raw *w, uint16_t op, uint64_t number, uint64_t answered_below, const void *request)
{
	raw_send(w, op, number, answered_below, request);
	return raw_receive(w, op);
}

const char *raw_why(struct raw *w)
{
	Wire__ErrorReply *e = wire__error_reply__unpack(&w->arena.allocator, w->reply.message_length, w->message);

	assert_non_null(e);
	return e->text;
}

uint64_t raw_hello(struct raw *w, uint64_t session)
{
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;
	Wire__HelloReply *reply;

	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	q.session = session;
	assert_int_equal(raw_ask(w, WIRE__OP__HELLO, 0, 0, &q), 0);
	reply = wire__hello_reply__unpack(&w->arena.allocator, w->reply.message_length, w->message);
	assert_non_null(reply);
	assert_int_equal(reply->root, 1);
	assert_string_equal(reply->volume->name, "training");
	return reply->session;
}

/* ---- What mounts do ---- */

static int ask_entry(struct fixture *f, struct rpc *r, uint16_t op, const void *request, struct attr *out)
{
	Wire__EntryReply *reply = NULL;
	int n = ask(f, r, op, request, &reply);

	if (!n && out)
		assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, out), 0);
	return n;
}

int create(struct fixture *f, struct rpc *r, uint64_t parent, const char *name, uint32_t mode, bool open, struct attr *out)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;

	q.parent = parent;
	q.name.data = (uint8_t *)name;
	q.name.len = strlen(name);
	q.mode = mode;
	q.open = open;
	q.exclusive = true;
	return ask_entry(f, r, WIRE__OP__CREATE, &q, out);
}

int lookup(struct fixture *f, struct rpc *r, uint64_t parent, const char *name, struct attr *out)
{
	Wire__NameRequest q = WIRE__NAME_REQUEST__INIT;

	q.parent = parent;
	q.name.data = (uint8_t *)name;
	q.name.len = strlen(name);
	return ask_entry(f, r, WIRE__OP__LOOKUP, &q, out);
}

int getattr(struct fixture *f, struct rpc *r, uint64_t inode, struct attr *out)
{
	Wire__InodeRequest q = WIRE__INODE_REQUEST__INIT;

	q.inode = inode;
	return ask_entry(f, r, WIRE__OP__GETATTR, &q, out);
}

int unlink_name(struct fixture *f, struct rpc *r, uint64_t parent, const char *name)
{
	Wire__NameRequest q = WIRE__NAME_REQUEST__INIT;

	q.parent = parent;
	q.name.data = (uint8_t *)name;
	q.name.len = strlen(name);
	return ask(f, r, WIRE__OP__UNLINK, &q, NULL);
}

int alloc(struct fixture *f, struct rpc *r, uint32_t count, uint64_t *first)
{
	Wire__AllocObjectsRequest q = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *reply;
	int n;

	q.count = count;
	n = ask(f, r, WIRE__OP__ALLOC_OBJECTS, &q, &reply);
	if (!n)
		*first = reply->first;
	return n;
}

int object_put(struct fixture *f, struct rpc *r, uint64_t object, const void *bytes, size_t size)
{
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	struct iovec part = { (void *)bytes, size };
	struct rpc_call call = {
		.op = WIRE__OP__OBJECT_PUT,
		.request = &q.base,
		.bulk_out = &part,
		.bulk_out_count = 1,
		.why = f->why,
		.why_size = sizeof(f->why),
	};

	q.object = object;
	q.length = (uint32_t)size;
	return rpc_call(r, &call, &f->arena);
}

int object_get(struct fixture *f, struct rpc *r, uint64_t object, uint32_t offset, void *into, uint32_t length)
{
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	struct iovec part = { into, length };
	struct rpc_call call = {
		.op = WIRE__OP__OBJECT_GET,
		.request = &q.base,
		.bulk_in = &part,
		.bulk_in_count = 1,
		.why = f->why,
		.why_size = sizeof(f->why),
	};

	q.object = object;
	q.offset = offset;
	q.length = length;
	return rpc_call(r, &call, &f->arena);
}

int commit(struct fixture *f, struct rpc *r, uint64_t inode, const struct extent *e, uint32_t object_size, uint64_t file_size)
{
	Wire__CommitRequest q = WIRE__COMMIT_REQUEST__INIT;
	Wire__NewObject object = WIRE__NEW_OBJECT__INIT, *objects[1] = { &object };
	Wire__FileCommit file = WIRE__FILE_COMMIT__INIT, *files[1] = { &file };
	Wire__CommitReply *reply;
	struct buf packed = { 0 };
	int n;

	extent_pack(&packed, e);
	object.object = e->object;
	object.size = object_size;
	object.raw_bytes = e->raw_length;
	file.inode = inode;
	file.extents.data = packed.data;
	file.extents.len = packed.len;
	file.size = file_size;
	q.objects = objects;
	q.n_objects = 1;
	q.files = files;
	q.n_files = 1;
	n = ask(f, r, WIRE__OP__COMMIT, &q, &reply);
	buf_free(&packed);
	return n ? n : -(int)reply->files[0]->status;
}

int write_file(struct fixture *f, struct rpc *r, uint64_t inode, uint64_t offset, const void *bytes, uint32_t size,
	       struct extent *out)
{
	uint8_t footer[OBJECT_FOOTER];
	struct buf object = { 0 };
	struct extent e = { 0 };
	int n = extent_encode(bytes, size, CODEC_NONE, 0, &object, &e);

	if (!n)
		n = alloc(f, r, 1, &e.object);
	e.offset = offset;
	object_footer_make(e.object, object.len, footer);
	buf_append(&object, footer, sizeof(footer));
	if (!n)
		n = object_put(f, r, e.object, object.data, object.len);
	if (!n)
		n = commit(f, r, inode, &e, (uint32_t)object.len, offset + size);
	buf_free(&object);
	if (!n && out)
		*out = e;
	return n;
}

int first_extent(struct fixture *f, struct rpc *r, uint64_t inode, struct extent *out)
{
	Wire__ExtentsRequest q = WIRE__EXTENTS_REQUEST__INIT;
	Wire__ExtentsReply *reply;
	struct reader in;
	int n;

	q.inode = inode;
	q.max = 10;
	n = ask(f, r, WIRE__OP__EXTENTS, &q, &reply);
	if (n)
		return n;
	in = reader_of(reply->extents.data, reply->extents.len);
	return extent_unpack(&in, out);
}

/* ---- What administrators do ---- */

Wire__JobReply *job(struct fixture *f, const char *kind, bool repair, bool quick)
{
	Wire__JobStartRequest start = WIRE__JOB_START_REQUEST__INIT;
	Wire__JobPollRequest poll = WIRE__JOB_POLL_REQUEST__INIT;
	Wire__JobReply *reply = NULL;

	start.kind = (char *)kind;
	start.repair = repair;
	start.quick = quick;
	assert_int_equal(ask(f, f->admin, WIRE__OP__JOB_START, &start, &reply), 0);
	poll.job = reply->job;
	do {
		usleep(2000);
		assert_int_equal(ask(f, f->admin, WIRE__OP__JOB_POLL, &poll, &reply), 0);
	} while (!reply->done);
	assert_string_equal(reply->kind, kind);
	return reply;
}

uint64_t job_counted(const Wire__JobReply *reply, const char *name)
{
	for (size_t i = 0; i < reply->n_counts; i++)
		if (!strcmp(reply->counts[i]->name, name))
			return reply->counts[i]->value;
	fail_msg("the job counted no %s", name);
	return 0;
}

Wire__StatusReply *status(struct fixture *f)
{
	Wire__StatusReply *reply = NULL;

	assert_int_equal(ask(f, f->admin, WIRE__OP__STATUS, NULL, &reply), 0);
	return reply;
}

char *object_path(struct fixture *f, uint64_t object, char *out, size_t size)
{
	char key[OBJECT_KEY_TEXT];

	snprintf(out, size, "%s/objects/%s", f->data, object_key(key, object));
	return out;
}

bool exists(const char *path) { return access(path, F_OK) == 0; }
