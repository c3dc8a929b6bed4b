#include "../temporary.h"
#include "world.h"
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "meta/listing.h"

static int64_t world_clock(void *context) { return __atomic_load_n(&((struct world *)context)->now_ns, __ATOMIC_RELAXED); }

void world_make_folder(struct world *w)
{
	*w = (struct world){ .now_ns = START_NS, .retention_s = 3600, .map_bytes = (uint64_t)1 << 30 };
	w->clock = (struct clock){ world_clock, w };
	temporary_template(w->folder, sizeof(w->folder), "meta");
	assert_non_null(mkdtemp(w->folder));
	snprintf(w->meta_folder, sizeof(w->meta_folder), "%s/meta", w->folder);
	arena_init(&w->arena, 0);
}

static void make_volume(struct world *w)
{
	static const struct caller admin;
	Wire__Volume volume = WIRE__VOLUME__INIT;

	volume.name = "training";
	volume.retention_s = w->retention_s;
	assert_int_equal(meta_mutate(w->meta, &admin, WIRE__OP__VOLUME_CREATE, &volume.base, &w->arena, NULL), 0);
}

static void begin_session(struct world *w)
{
	static const struct caller admin;
	Wire__SessionBegin begin = WIRE__SESSION_BEGIN__INIT;
	int r;

	begin.session = SESSION;
	begin.volume = w->who.volume;
	begin.host = "testhost";
	begin.mount_point = "/mnt/training";
	r = meta_mutate(w->meta, &admin, WIRE__OP__SESSION_BEGIN, &begin.base, &w->arena, NULL);
	assert_true(r == 0 || r == -EEXIST);
}

void world_start(struct world *w)
{
	struct meta_options options = { .folder = w->meta_folder, .clock = &w->clock, .map_bytes = w->map_bytes };
	char error[500];
	Wire__Volume *v;

	if (meta_open(&options, &w->meta, error, sizeof(error)) < 0)
		fail_msg("meta_open: %s", error);
	if (meta_volume_find(w->meta, "training", &w->arena, &v) == -ENOENT)
		make_volume(w);
	assert_int_equal(meta_volume_find(w->meta, "training", &w->arena, &v), 0);
	w->who = (struct caller){ .session = SESSION, .volume = v->id, .root = ROOT_INODE };
	begin_session(w);
}

void world_stop(struct world *w)
{
	meta_close(w->meta);
	w->meta = NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

void world_remove(struct world *w)
{
	nftw(w->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	arena_free(&w->arena);
}

int world_setup(void **state)
{
	struct world *w = malloc(sizeof(*w));

	assert_non_null(w);
	world_make_folder(w);
	world_start(w);
	*state = w;
	return 0;
}

int world_teardown(void **state)
{
	struct world *w = *state;

	world_stop(w);
	world_remove(w);
	free(w);
	return 0;
}

struct wait {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;
};

static void wait_done(struct mutation *m)
{
	struct wait *wait = m->context;

	pthread_mutex_lock(&wait->lock);
	wait->done = true;
	pthread_cond_signal(&wait->changed);
	pthread_mutex_unlock(&wait->lock);
}

static void take_why(struct world *w, const struct mutation *m)
{
	Wire__ErrorReply *e = m->status < 0 && m->packed.len ? wire__error_reply__unpack(NULL, m->packed.len, m->packed.data)
							     : NULL;

	snprintf(w->why, sizeof(w->why), "%s", e ? e->text : "");
	if (e)
		wire__error_reply__free_unpacked(e, NULL);
}

int world_numbered(struct world *w, uint64_t number, uint64_t answered_below, uint16_t op, const void *request,
		   void *reply_pointer)
{
	struct wait wait = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	struct mutation m = { .who = w->who,
			      .number = number,
			      .answered_below = answered_below,
			      .op = op,
			      .request = request,
			      .done = wait_done,
			      .context = &wait };
	void *reply;

	meta_submit(w->meta, &m);
	pthread_mutex_lock(&wait.lock);
	while (!wait.done)
		pthread_cond_wait(&wait.changed, &wait.lock);
	pthread_mutex_unlock(&wait.lock);
	take_why(w, &m);
	if (m.status == 0 && reply_pointer) {
		reply = protobuf_c_message_unpack(op_find(op)->reply, &w->arena.allocator, m.packed.len, m.packed.data);
		assert_non_null(reply);
		*(void **)reply_pointer = reply;
	}
	buf_free(&m.packed);
	return m.status;
}

int world_mutate(struct world *w, uint16_t op, const void *request, void *reply_pointer)
{
	return world_numbered(w, 0, 0, op, request, reply_pointer);
}

int world_read(struct world *w, uint16_t op, const void *request, void *reply_pointer)
{
	return meta_read(w->meta, &w->who, op, request, &w->arena, reply_pointer);
}

struct burst {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int left, error;
};

static void burst_done(struct mutation *m)
{
	struct burst *b = m->context;

	buf_free(&m->packed);
	pthread_mutex_lock(&b->lock);
	if (m->status < 0 && b->error == 0)
		b->error = m->status;
	if (--b->left == 0)
		pthread_cond_signal(&b->changed);
	pthread_mutex_unlock(&b->lock);
}

int world_burst(struct world *w, uint16_t op, int count, const void *(*make)(struct world *w, int i, void *context),
		void *context)
{
	struct burst b = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .left = count };
	struct mutation *all = calloc((size_t)count, sizeof(*all));

	assert_non_null(all);
	for (int i = 0; i < count; i++) {
		all[i] = (struct mutation){
			.who = w->who, .op = op, .request = make(w, i, context), .done = burst_done, .context = &b
		};
		meta_submit(w->meta, &all[i]);
	}
	pthread_mutex_lock(&b.lock);
	while (b.left > 0)
		pthread_cond_wait(&b.changed, &b.lock);
	pthread_mutex_unlock(&b.lock);
	free(all);
	return b.error;
}

char *numbered_name(struct world *w, const char *format, int i)
{
	char *name = arena_take(&w->arena, 32);

	assert_non_null(name);
	snprintf(name, 32, format, i);
	return name;
}

static int entry_of(int status, const Wire__EntryReply *reply, struct attr *out)
{
	if (status == 0 && out)
		assert_int_equal(attr_unpack(reply->attr.data, reply->attr.len, out), 0);
	return status;
}

static int create(struct world *w, Wire__CreateRequest *request, struct attr *out)
{
	Wire__EntryReply *reply = NULL;
	int r = world_mutate(w, WIRE__OP__CREATE, request, &reply);

	return entry_of(r, reply, out);
}

int do_create(struct world *w, uint64_t parent, const char *name, uint32_t mode, struct attr *out)
{
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;

	request.parent = parent;
	request.name = bytes_of(name);
	request.mode = mode;
	request.exclusive = true;
	request.uid = 1000;
	request.gid = 1000;
	return create(w, &request, out);
}

int do_file(struct world *w, uint64_t parent, const char *name, struct attr *out)
{
	return do_create(w, parent, name, S_IFREG | 0644, out);
}

int do_directory(struct world *w, uint64_t parent, const char *name, struct attr *out)
{
	return do_create(w, parent, name, S_IFDIR | 0755, out);
}

int do_symlink(struct world *w, uint64_t parent, const char *name, const char *target, struct attr *out)
{
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;

	request.parent = parent;
	request.name = bytes_of(name);
	request.mode = S_IFLNK | 0777;
	request.target = bytes_of(target);
	request.exclusive = true;
	return create(w, &request, out);
}

int do_tmpfile(struct world *w, uint64_t parent, struct attr *out)
{
	Wire__CreateRequest request = WIRE__CREATE_REQUEST__INIT;

	request.parent = parent;
	request.mode = S_IFREG | 0600;
	request.open = true;
	return create(w, &request, out);
}

int do_lookup(struct world *w, uint64_t parent, const char *name, struct attr *out)
{
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;
	Wire__EntryReply *reply = NULL;
	int r;

	request.parent = parent;
	request.name = bytes_of(name);
	r = world_read(w, WIRE__OP__LOOKUP, &request, &reply);
	return entry_of(r, reply, out);
}

int do_getattr(struct world *w, uint64_t inode, struct attr *out)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	Wire__EntryReply *reply = NULL;
	int r;

	request.inode = inode;
	r = world_read(w, WIRE__OP__GETATTR, &request, &reply);
	return entry_of(r, reply, out);
}

int do_link(struct world *w, uint64_t inode, uint64_t parent, const char *name, struct attr *out)
{
	Wire__LinkRequest request = WIRE__LINK_REQUEST__INIT;
	Wire__EntryReply *reply = NULL;
	int r;

	request.inode = inode;
	request.parent = parent;
	request.name = bytes_of(name);
	r = world_mutate(w, WIRE__OP__LINK, &request, &reply);
	return entry_of(r, reply, out);
}

static int remove_name(struct world *w, uint16_t op, uint64_t parent, const char *name)
{
	Wire__NameRequest request = WIRE__NAME_REQUEST__INIT;

	request.parent = parent;
	request.name = bytes_of(name);
	return world_mutate(w, op, &request, NULL);
}

int do_unlink(struct world *w, uint64_t parent, const char *name) { return remove_name(w, WIRE__OP__UNLINK, parent, name); }

int do_rmdir(struct world *w, uint64_t parent, const char *name) { return remove_name(w, WIRE__OP__RMDIR, parent, name); }

int do_rename(struct world *w, uint64_t old_parent, const char *old_name, uint64_t new_parent, const char *new_name,
	      uint32_t flags)
{
	Wire__RenameRequest request = WIRE__RENAME_REQUEST__INIT;

	request.old_parent = old_parent;
	request.old_name = bytes_of(old_name);
	request.new_parent = new_parent;
	request.new_name = bytes_of(new_name);
	request.flags = flags;
	return world_mutate(w, WIRE__OP__RENAME, &request, NULL);
}

int do_resolve(struct world *w, const char *path, struct attr *out)
{
	Wire__ResolveRequest request = WIRE__RESOLVE_REQUEST__INIT;
	Wire__EntryReply *reply = NULL;
	int r;

	request.path = bytes_of(path);
	r = world_read(w, WIRE__OP__RESOLVE, &request, &reply);
	return entry_of(r, reply, out);
}

void assert_attr_equal(const struct attr *a, const struct attr *b)
{
	uint8_t packed_a[ATTR_PACKED], packed_b[ATTR_PACKED];

	attr_pack(a, packed_a);
	attr_pack(b, packed_b);
	assert_memory_equal(packed_a, packed_b, ATTR_PACKED);
}

Wire__Volume *show_volume(struct world *w, const char *name)
{
	Wire__VolumeNameRequest request = WIRE__VOLUME_NAME_REQUEST__INIT;
	Wire__VolumeReply *reply = NULL;

	request.name = (char *)name;
	assert_int_equal(world_read(w, WIRE__OP__VOLUME_SHOW, &request, &reply), 0);
	return reply->volume;
}

int count_names(struct world *w, uint64_t directory)
{
	Wire__ReaddirRequest request = WIRE__READDIR_REQUEST__INIT;
	Wire__ReaddirReply *reply;
	struct listing_entry e;
	struct reader in;
	int count = 0;

	request.inode = directory;
	request.max_bytes = 4096;
	request.attributes = true;
	do {
		assert_int_equal(world_read(w, WIRE__OP__READDIR, &request, &reply), 0);
		in = reader_of(reply->entries.data, reply->entries.len);
		while (listing_next(&in, &e) == 1) {
			assert_true(e.cookie > request.cookie);
			request.cookie = e.cookie;
			count++;
		}
		assert_false(in.bad);
	} while (!reply->end);
	return count;
}
