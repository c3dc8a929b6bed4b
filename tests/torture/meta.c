/* Metadata: make a volume, a session and a small tree, commit contents, rename,
 * unlink, truncate, clone, free, and close.  Afterwards it can be opened, fsck's
 * check finds nothing, and what was answered with success is there. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "base/arena.h"
#include "base/cleanup.h"
#include "block/object.h"
#include "meta/check.h"
#include "meta/meta.h"
#include "tests/torture/inject.h"

#define SESSION 7u

enum step { MADE_DIR, MADE_FILE, COMMITTED, RENAMED, UNLINKED, STEPS };

struct scenario {
	char folder[100], meta[120];
	struct meta *m;
	struct arena arena;
	struct caller who;
	uint64_t objects, dir, file;
	bool done[STEPS];
};

static void prepare(void *context)
{
	struct scenario *s = context;
	*s = (struct scenario){ 0 };
	torture_folder(s->folder, sizeof s->folder, "meta");
	snprintf(s->meta, sizeof s->meta, "%s/meta", s->folder);
}

static ProtobufCBinaryData bytes_of(const char *text) { return (ProtobufCBinaryData){ strlen(text), (uint8_t *)text }; }

static int mutate(struct scenario *s, uint16_t op, const void *request, void *out_reply)
{
	return meta_mutate(s->m, &s->who, op, request, &s->arena, out_reply);
}

static int volume_make(struct scenario *s)
{
	Wire__Volume v = WIRE__VOLUME__INIT;
	Wire__VolumeReply *made;
	Wire__SessionBegin b = WIRE__SESSION_BEGIN__INIT;
	Wire__AllocObjectsRequest a = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *range;
	v.name = "training";
	v.block_size = BLOCK_DEFAULT;
	v.compression = "none";
	v.retention_s = 0;
	int r = mutate(s, WIRE__OP__VOLUME_CREATE, &v, &made);
	if (r < 0)
		return r;
	b.session = SESSION;
	b.volume = made->volume->id;
	b.root = 1;
	b.host = "here";
	r = mutate(s, WIRE__OP__SESSION_BEGIN, &b, NULL);
	if (r < 0)
		return r;
	s->who = (struct caller){ .session = SESSION, .volume = b.volume, .root = 1 };
	a.count = 8;
	r = mutate(s, WIRE__OP__ALLOC_OBJECTS, &a, &range);
	if (r == 0)
		s->objects = range->first;
	return r;
}

static int create(struct scenario *s, uint64_t parent, const char *name, uint32_t mode, uint64_t *out)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;
	Wire__EntryReply *reply;
	struct attr a;
	q.parent = parent;
	q.name = bytes_of(name);
	q.mode = mode;
	q.exclusive = true;
	if (S_ISLNK(mode))
		q.target = bytes_of("somewhere");
	int r = mutate(s, WIRE__OP__CREATE, &q, &reply);
	if (r == 0)
		r = attr_unpack(reply->attr.data, reply->attr.len, &a);
	if (r == 0)
		*out = a.inode;
	return r;
}

static int commit(struct scenario *s, uint64_t inode, uint64_t object)
{
	uint8_t packed[2 * EXTENT_PACKED];
	for (uint64_t i = 0; i < 2; i++) {
		struct extent e = { .offset = i * 8192,
				    .length = 4096,
				    .raw_length = 4096,
				    .stored_length = 4096,
				    .object_offset = (uint32_t)i * 4096,
				    .object = object };
		put_le64(packed + i * EXTENT_PACKED, e.offset);
		extent_value_pack(&e, packed + i * EXTENT_PACKED + 8);
	}
	Wire__NewObject n = WIRE__NEW_OBJECT__INIT, *objects[] = { &n };
	Wire__FileCommit f = WIRE__FILE_COMMIT__INIT, *files[] = { &f };
	Wire__CommitRequest q = WIRE__COMMIT_REQUEST__INIT;
	n.object = object;
	n.size = 2 * 4096 + OBJECT_FOOTER;
	n.raw_bytes = 2 * 4096;
	f.inode = inode;
	f.extents = (ProtobufCBinaryData){ sizeof packed, packed };
	f.size = 12288;
	q.objects = objects;
	q.n_objects = 1;
	q.files = files;
	q.n_files = 1;
	return mutate(s, WIRE__OP__COMMIT, &q, NULL);
}

static int contents_change(struct scenario *s)
{
	Wire__SetattrRequest t = WIRE__SETATTR_REQUEST__INIT;
	Wire__CloneRequest c = WIRE__CLONE_REQUEST__INIT;
	Wire__XattrRequest x = WIRE__XATTR_REQUEST__INIT;
	uint64_t copy = 0;
	int r = create(s, s->dir, "copy", S_IFREG | 0644, &copy);
	if (r < 0)
		return r;
	c.source = s->file;
	c.target = copy;
	c.length = 12288;
	r = mutate(s, WIRE__OP__CLONE, &c, NULL);
	t.inode = copy;
	t.valid = SET_SIZE | SET_MODE;
	t.size = 100;
	t.mode = 0600;
	if (r == 0)
		r = mutate(s, WIRE__OP__SETATTR, &t, NULL);
	x.inode = s->file;
	x.name = bytes_of("user.color");
	x.value = bytes_of("blue");
	return r < 0 ? r : mutate(s, WIRE__OP__SETXATTR, &x, NULL);
}

static int names_change(struct scenario *s)
{
	Wire__RenameRequest n = WIRE__RENAME_REQUEST__INIT;
	Wire__NameRequest u = WIRE__NAME_REQUEST__INIT;
	Wire__ReapRequest reap = WIRE__REAP_REQUEST__INIT;
	n.old_parent = s->dir;
	n.old_name = bytes_of("file");
	n.new_parent = 1;
	n.new_name = bytes_of("renamed");
	int r = mutate(s, WIRE__OP__RENAME, &n, NULL);
	s->done[RENAMED] = r == 0;
	u.parent = s->dir;
	u.name = bytes_of("copy");
	if (r == 0)
		r = mutate(s, WIRE__OP__UNLINK, &u, NULL);
	s->done[UNLINKED] = r == 0;
	reap.volume = s->who.volume;
	reap.max_extents = 100;
	return r < 0 ? r : mutate(s, WIRE__OP__REAP, &reap, NULL);
}

static int tree_use(struct scenario *s)
{
	Wire__ReaddirRequest d = WIRE__READDIR_REQUEST__INIT;
	ProtobufCMessage *listing;
	uint64_t link;
	int r = volume_make(s);
	if (r == 0)
		r = create(s, 1, "dir", S_IFDIR | 0755, &s->dir);
	s->done[MADE_DIR] = r == 0;
	if (r == 0)
		r = create(s, s->dir, "file", S_IFREG | 0644, &s->file);
	s->done[MADE_FILE] = r == 0;
	if (r == 0)
		r = create(s, 1, "link", S_IFLNK | 0777, &link);
	if (r == 0)
		r = commit(s, s->file, s->objects);
	s->done[COMMITTED] = r == 0;
	if (r == 0)
		r = contents_change(s);
	d.inode = 1;
	d.max_bytes = 4096;
	d.attributes = true;
	if (r == 0)
		r = meta_read(s->m, &s->who, WIRE__OP__READDIR, &d.base, &s->arena, &listing);
	return r < 0 ? r : names_change(s);
}

static int run(void *context)
{
	struct scenario *s = context;
	struct meta_options options = { .folder = s->meta, .clock = &clock_system, .map_bytes = 32u << 20 };
	char error[400];
	arena_init(&s->arena, 0);
	int r = meta_open(&options, &s->m, error, sizeof error);
	if (r == 0) {
		r = tree_use(s);
		meta_close(s->m);
	}
	arena_free(&s->arena);
	return r;
}

static int lookup(struct scenario *s, struct meta *m, uint64_t parent, const char *name, struct attr *out)
{
	Wire__NameRequest q = WIRE__NAME_REQUEST__INIT;
	Wire__EntryReply *reply;
	q.parent = parent;
	q.name = bytes_of(name);
	int r = meta_read(m, &s->who, WIRE__OP__LOOKUP, &q.base, &s->arena, (ProtobufCMessage **)&reply);
	return r < 0 ? r : attr_unpack(reply->attr.data, reply->attr.len, out);
}

static void verify(void *context, int status)
{
	struct scenario *s = context;
	struct meta_options options = { .folder = s->meta, .clock = &clock_system, .map_bytes = 32u << 20 };
	struct check_options check = { 0 };
	struct check_result result;
	struct meta *m;
	struct attr a;
	char error[400];
	arena_init(&s->arena, 0);
	if (meta_open(&options, &m, error, sizeof error) < 0) {
		fprintf(stderr, "%s\n", error);
		REQUIRE(!"opens again");
	}
	REQUIRE(check_run(m, &check, &result) == 0);
	for (size_t i = 0; i < result.findings_count; i++)
		fprintf(stderr, "%s\n", result.findings[i]);
	REQUIRE(result.problems == 0);
	check_result_free(&result);
	if (s->done[MADE_DIR])
		REQUIRE(lookup(s, m, 1, "dir", &a) == 0 && a.inode == s->dir);
	if (s->done[RENAMED])
		REQUIRE(lookup(s, m, s->dir, "file", &a) == -ENOENT && lookup(s, m, 1, "renamed", &a) == 0);
	else if (s->done[MADE_FILE])
		REQUIRE(lookup(s, m, s->dir, "file", &a) == 0 || lookup(s, m, 1, "renamed", &a) == 0);
	if (s->done[COMMITTED])
		REQUIRE(a.inode == s->file && a.allocated == 8192 && a.size == 12288);
	if (s->done[UNLINKED])
		REQUIRE(lookup(s, m, s->dir, "copy", &a) == -ENOENT);
	meta_close(m);
	arena_free(&s->arena);
	torture_folder_remove(s->folder);
}

int main(int argc, char **argv)
{
	static struct scenario s;
	static const struct torture t = { .name = "meta", .prepare = prepare, .run = run, .verify = verify, .context = &s };
	return torture_main(&t, argc, argv);
}
