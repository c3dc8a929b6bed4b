/* A server and a client in one process, over the unix socket: mount, make a
 * directory, write two files (a large one of several blocks, a small one that goes
 * into a pack), fsync, read back, rename, overwrite, truncate, list, unlink, make
 * files under the lease, unmount, stop.
 *
 * Afterwards the metadata passes fsck's check, every extent can be read from the
 * store and has its checksum, and a new server and client find every byte whose
 * fsync was answered with success. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "block/object.h"
#include "client/client.h"
#include "client/lease.h"
#include "meta/check.h"
#include "rpc/caller.h"
#include "server/server.h"
#include "store/store.h"
#include "tests/torture/inject.h"

#define BLOCK (64u << 10)
#define LARGE (3 * BLOCK + 1000)
#define SMALL 2000u
#define TIMEOUT_MS 5000

static const struct client_identity root = { 0, 0, 022 };

/* What the volume must hold at least: a name, and how the file begins. */
struct promise {
	const char *name, *other; /* under one of them */
	uint64_t parent;          /* 0: the root */
	uint32_t length;
	bool synced;
};

struct scenario {
	char folder[100], data[120], template[120];
	struct server *server;
	struct promise large, small, made;
	bool unlinked;
};

static uint8_t byte_at(uint32_t i) { return (uint8_t)(i * 7 / 5 + i / 1000); }

static int server_up(struct scenario *s, const char *data)
{
	/* A client that could not say goodbye is not waited for. */
	struct server_options o = { .data = data, .grace_s = 0, .lease_ms = 100 };
	char error[600];
	int r = server_start(&o, &s->server, error, sizeof error);
	if (r < 0 && !inject_failed_call())
		fprintf(stderr, "%s\n", error);
	return r;
}

/* Once: a data folder with a volume, to start every run from. */
static void template_make(struct scenario *s)
{
	struct rpc_options o = { .timeout_ms = TIMEOUT_MS, .hello = WIRE__HELLO_REQUEST__INIT };
	Wire__Volume v = WIRE__VOLUME__INIT;
	struct rpc_call call = { .op = WIRE__OP__VOLUME_CREATE, .request = &v.base };
	Wire__HelloReply *hello;
	struct arena arena;
	struct rpc *rpc;
	char error[600];
	torture_folder(s->folder, sizeof s->folder, "client");
	snprintf(s->template, sizeof s->template, "%s/template", s->folder);
	snprintf(s->data, sizeof s->data, "%s/data", s->folder);
	REQUIRE(server_up(s, s->template) == 0);
	o.servers = server_address(s->server);
	o.hello.version = PROTOCOL_VERSION;
	v.name = "training";
	v.block_size = BLOCK;
	v.compression = "lz4";
	arena_init(&arena, 0);
	REQUIRE(rpc_open(&o, &arena, &hello, &rpc, error, sizeof error) == 0);
	REQUIRE(rpc_call(rpc, &call, &arena) == 0);
	rpc_close(rpc);
	arena_free(&arena);
	server_stop(s->server);
}

static void prepare(void *context)
{
	struct scenario *s = context;
	char command[400];
	if (!s->folder[0])
		template_make(s);
	torture_folder_remove(s->data);
	snprintf(command, sizeof command, "cp -a %s %s", s->template, s->data);
	REQUIRE(system(command) == 0);
	s->large = (struct promise){ .name = "large", .other = "renamed", .length = LARGE };
	s->small = (struct promise){ .name = "small", .length = SMALL };
	s->made = (struct promise){ .name = "7" };
	s->unlinked = false;
}

static int write_all(struct client_file *f, uint32_t length)
{
	uint8_t part[20000];
	for (uint32_t at = 0; at < length;) {
		uint32_t n = length - at < sizeof part ? length - at : sizeof part;
		for (uint32_t i = 0; i < n; i++)
			part[i] = byte_at(at + i);
		ssize_t r = client_write(f, at, part, n, 0);
		if (r < 0)
			return (int)r;
		at += (uint32_t)r;
	}
	return 0;
}

/* What is read is right, or is not read at all. */
static int read_all(struct client_file *f, uint32_t length)
{
	for (uint32_t at = 0; at < length;) {
		struct client_read *r;
		size_t bytes;
		int count, error = client_read(f, at, 100000, &r);
		if (error)
			return error;
		const struct iovec *parts = client_read_parts(r, &count, &bytes);
		REQUIRE(bytes > 0);
		for (int i = 0; i < count; i++)
			for (size_t k = 0; k < parts[i].iov_len && at < length; k++, at++)
				REQUIRE(((uint8_t *)parts[i].iov_base)[k] == byte_at(at));
		client_read_release(r);
	}
	return 0;
}

static int file_write(struct client *c, struct promise *p)
{
	struct client_file *f;
	struct entry e;
	int r = client_create(c, client_root(c), p->name, S_IFREG | 0644, O_RDWR | O_EXCL, &root, &f, &e);
	if (r < 0)
		return r;
	r = write_all(f, p->length);
	if (r == 0)
		r = client_fsync(f);
	p->synced = r == 0;
	if (r == 0)
		r = read_all(f, p->length);
	client_release(f);
	return r;
}

static int contents_change(struct client *c)
{
	struct client_setattr cut = { .valid = SET_SIZE, .size = 700 };
	struct client_file *f;
	struct entry e;
	int r = client_create(c, client_root(c), "scratch", S_IFREG | 0644, O_RDWR, &root, &f, &e);
	if (r < 0)
		return r;
	r = write_all(f, 5000);
	if (r == 0)
		r = client_setattr(c, e.attr.inode, &cut, &e);
	if (r == 0)
		r = write_all(f, 900);
	if (r == 0)
		r = client_setxattr(c, e.attr.inode, "user.color", "blue", 4, 0, false);
	client_release(f);
	return r;
}

static int names_change(struct scenario *s, struct client *c)
{
	CLEANUP_BUF struct buf listing = { 0 };
	struct client_space space;
	struct entry e;
	uint32_t valid_ms;
	bool end;
	int r = client_mkdir(c, client_root(c), "dir", 0755, &root, &e);
	if (r == 0)
		r = client_rename(c, client_root(c), "large", client_root(c), "renamed", 0);
	if (r == 0)
		r = client_readdir(c, client_root(c), 0, 65536, true, &listing, &end, &valid_ms);
	if (r == 0)
		r = client_statfs(c, &space);
	if (r == 0)
		r = client_unlink(c, client_root(c), "scratch");
	s->unlinked = r == 0;
	return r;
}

/* Under the lease, if it comes. */
static int files_make(struct client *c, struct promise *last)
{
	struct client_file *f;
	struct entry directory, e;
	char name[8];
	int r;
	for (int tries = 0; !lease_held(c) && tries < 100; tries++)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	r = client_mkdir(c, client_root(c), "made", 0755, &root, &directory);
	for (int i = 0; i < 8 && r == 0; i++) {
		snprintf(name, sizeof name, "%d", i);
		r = client_create(c, directory.attr.inode, name, 0644, O_EXCL | O_RDWR, &root, &f, &e);
		if (r < 0)
			break;
		if (i == 7)
			r = client_fsync(f);
		client_release(f);
	}
	last->parent = directory.attr.inode;
	last->synced = r == 0;
	return r;
}

static int mount_use(struct scenario *s)
{
	struct client_options o = { .servers = server_address(s->server),
				    .volume = "training",
				    .host = "here",
				    .mount_point = "/x",
				    .timeout_ms = TIMEOUT_MS };
	struct client *c;
	char error[600];
	int r = client_connect(&o, &c, error, sizeof error);
	if (r < 0)
		return r;
	r = file_write(c, &s->large);
	if (r == 0)
		r = file_write(c, &s->small);
	if (r == 0)
		r = contents_change(c);
	if (r == 0)
		r = names_change(s, c);
	if (r == 0)
		r = files_make(c, &s->made);
	int ended = client_disconnect(c);
	return r < 0 ? r : ended;
}

static int run(void *context)
{
	struct scenario *s = context;
	int r = server_up(s, s->data);
	if (r < 0)
		return r;
	r = mount_use(s);
	server_stop(s->server);
	return r;
}

static int object_verify(void *context, const struct check_object *o)
{
	char key[OBJECT_KEY_TEXT];
	uint8_t footer[OBJECT_FOOTER];
	object_key(key, o->object);
	REQUIRE(store_get(context, key, o->record.size - OBJECT_FOOTER, footer, OBJECT_FOOTER) == 0);
	REQUIRE(object_footer_check(footer, o->object, o->record.size) == 0);
	for (size_t i = 0; i < o->count; i++) {
		const struct extent *e = &o->extents[i].extent;
		CLEANUP_FREE uint8_t *stored = malloc(e->stored_length);
		CLEANUP_FREE uint8_t *raw = malloc(e->raw_length);
		REQUIRE(store_get(context, key, e->object_offset, stored, e->stored_length) == 0);
		REQUIRE(extent_decode(e, stored, raw) == 0);
	}
	return 0;
}

static void data_verify(struct scenario *s)
{
	char folder[140], url[140], error[600];
	struct meta_options options = { .folder = folder, .clock = &clock_system };
	struct check_options check = { 0 };
	struct check_result result;
	struct store *store;
	struct meta *m;
	snprintf(folder, sizeof folder, "%s/meta", s->data);
	snprintf(url, sizeof url, "dir:%s/objects", s->data);
	REQUIRE(meta_open(&options, &m, error, sizeof error) == 0);
	REQUIRE(store_open(url, &store, error, sizeof error) == 0);
	REQUIRE(check_run(m, &check, &result) == 0);
	for (size_t i = 0; i < result.findings_count; i++)
		fprintf(stderr, "%s\n", result.findings[i]);
	REQUIRE(result.problems == 0);
	check_result_free(&result);
	struct check_objects_options objects = { .each = object_verify, .context = store };
	REQUIRE(check_objects(m, &objects) == 0);
	store_close(store);
	meta_close(m);
}

static void promise_verify(struct client *c, const struct promise *p)
{
	struct client_file *f;
	struct entry e;
	bool unchanged;
	if (!p->synced)
		return;
	int r = client_lookup(c, p->parent ? p->parent : client_root(c), p->name, &e);
	if (r == -ENOENT && p->other)
		r = client_lookup(c, client_root(c), p->other, &e);
	REQUIRE(r == 0 && e.attr.size == p->length);
	REQUIRE(client_open(c, e.attr.inode, O_RDONLY, false, false, &f, &unchanged) == 0);
	REQUIRE(read_all(f, p->length) == 0);
	client_release(f);
}

static void verify(void *context, int status)
{
	struct scenario *s = context;
	struct client_options o = { .volume = "training", .host = "here", .mount_point = "/x", .timeout_ms = TIMEOUT_MS };
	struct client *c;
	struct entry e;
	char error[600];
	data_verify(s);
	REQUIRE(server_up(s, s->data) == 0);
	o.servers = server_address(s->server);
	REQUIRE(client_connect(&o, &c, error, sizeof error) == 0);
	promise_verify(c, &s->large);
	promise_verify(c, &s->small);
	promise_verify(c, &s->made);
	if (s->unlinked)
		REQUIRE(client_lookup(c, client_root(c), "scratch", &e) == -ENOENT);
	REQUIRE(client_disconnect(c) == 0);
	server_stop(s->server);
}

int main(int argc, char **argv)
{
	static struct scenario s;
	static const struct torture t = { .name = "client", .prepare = prepare, .run = run, .verify = verify, .context = &s };
	int code = torture_main(&t, argc, argv);
	torture_folder_remove(s.folder);
	return code;
}
