/* The metadata's state machine under hostile requests and damaged records.
 *
 * A small volume is made once.  An input is then a list of steps, run inside one
 * write transaction that is thrown away at the end:
 *
 *   an operation, its request made field by field from the bytes (so that it is
 *   always well-formed: fuzz_message does the rest)
 *   damage: a record of any table changed, cut, or put
 *
 * Whatever happens, nothing crashes or hangs.  Without damage, what requests have
 * done must be flawless in the eyes of fsck's own check. */
#include <errno.h>
#include <sys/stat.h>
#include "../unit/temporary.h"
#include "base/arena.h"
#include "base/log.h"
#include "block/object.h"
#include "meta/check.h"
#include "meta/machine.h"
#include "meta/tail.h"
#include "tests/fuzz/fuzz.h"

#define SESSION 7u
#define VOLUME "training"
#define STEPS_MOST 12
#define LIST_MOST 3

struct world {
	struct meta *meta;
	struct arena arena;
	MDB_txn *txn; /* what every view sees while an input runs */
	struct view view;
	struct view_tail tails[TABLE_COUNT];
	struct buf write_set;
	struct caller who;
	bool damaged;
};
static struct world world;

/* The checks read through views of their own: they get the input's transaction. */
int __real_meta_view_begin(struct meta *m, struct view *out);
int __wrap_meta_view_begin(struct meta *m, struct view *out);
int __wrap_meta_view_begin(struct meta *m, struct view *out)
{
	if (!world.txn)
		return __real_meta_view_begin(m, out);
	*out = (struct view){ .meta = m, .txn = world.txn };
	return 0;
}
void __real_meta_view_end(struct view *v);
void __wrap_meta_view_end(struct view *v);
void __wrap_meta_view_end(struct view *v)
{
	if (!world.txn)
		__real_meta_view_end(v);
}

static int64_t fixed_wall_ns(void *context) { return 1700000000LL * NS_PER_S; }

static void must(uint16_t op, const void *request)
{
	int r = meta_mutate(world.meta, &world.who, op, request, &world.arena, NULL);
	if (r < 0) {
		fprintf(stderr, "cannot make the world: %s: %s\n", op_find(op)->name, strerror(-r));
		exit(1);
	}
}

static ProtobufCBinaryData bytes_of(const char *text) { return (ProtobufCBinaryData){ strlen(text), (uint8_t *)text }; }

static void create(uint64_t parent, const char *name, uint32_t mode, const char *target)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;
	q.parent = parent;
	q.name = bytes_of(name);
	q.mode = mode;
	q.target = bytes_of(target);
	must(WIRE__OP__CREATE, &q);
}

static void commit(uint64_t inode, uint64_t object)
{
	CLEANUP_BUF struct buf packed = { 0 };
	for (uint64_t i = 0; i < 4; i++) {
		struct extent e = { .offset = i * 8192,
				    .length = 4096,
				    .raw_length = 4096,
				    .stored_length = 4096,
				    .object_offset = (uint32_t)i * 4096,
				    .object = object };
		extent_pack(&packed, &e);
	}
	Wire__NewObject n = WIRE__NEW_OBJECT__INIT, *objects[] = { &n };
	Wire__FileCommit f = WIRE__FILE_COMMIT__INIT, *files[] = { &f };
	Wire__CommitRequest q = WIRE__COMMIT_REQUEST__INIT;
	n.object = object;
	n.size = 4 * 4096 + OBJECT_FOOTER;
	n.raw_bytes = 4 * 4096;
	f.inode = inode;
	f.extents = (ProtobufCBinaryData){ packed.len, packed.data };
	f.size = 8 * 4096;
	q.objects = objects;
	q.n_objects = 1;
	q.files = files;
	q.n_files = 1;
	must(WIRE__OP__COMMIT, &q);
}

static void session_begin(void)
{
	Wire__Volume v = WIRE__VOLUME__INIT;
	Wire__SessionBegin s = WIRE__SESSION_BEGIN__INIT;
	Wire__AllocObjectsRequest a = WIRE__ALLOC_OBJECTS_REQUEST__INIT;
	Wire__AllocObjectsReply *range;
	v.name = VOLUME;
	v.block_size = BLOCK_DEFAULT;
	v.compression = "none";
	v.retention_s = 86400;
	must(WIRE__OP__VOLUME_CREATE, &v);
	Wire__Volume *made;
	REQUIRE(meta_volume_find(world.meta, VOLUME, &world.arena, &made) == 0);
	s.session = SESSION;
	s.volume = made->id;
	s.root = ROOT_INODE;
	must(WIRE__OP__SESSION_BEGIN, &s);
	world.who = (struct caller){ .session = SESSION, .volume = made->id, .root = ROOT_INODE };
	a.count = 16;
	REQUIRE(meta_mutate(world.meta, &world.who, WIRE__OP__ALLOC_OBJECTS, &a.base, &world.arena,
			    (ProtobufCMessage **)&range) == 0);
}

/* 2 /dir, 3 /dir/file with extents, 4 /link, 5 /empty, 6 /dir/below, 7 in the trash, 8 nameless. */
static void tree_make(void)
{
	Wire__XattrRequest x = WIRE__XATTR_REQUEST__INIT;
	Wire__NameRequest n = WIRE__NAME_REQUEST__INIT;
	create(1, "dir", S_IFDIR | 0755, "");
	create(2, "file", S_IFREG | 0644, "");
	create(1, "link", S_IFLNK | 0777, "dir/file");
	create(1, "empty", S_IFREG | 0600, "");
	create(2, "below", S_IFDIR | 02775, "");
	create(1, "gone", S_IFREG | 0644, "");
	commit(3, 1);
	commit(7, 2);
	x.inode = 3;
	x.name = bytes_of("user.color");
	x.value = bytes_of("blue");
	must(WIRE__OP__SETXATTR, &x);
	n.parent = 1;
	n.name = bytes_of("gone");
	must(WIRE__OP__UNLINK, &n);
	create(1, "", S_IFREG | 0600, "");
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static char folder[64];
	static const struct clock clock = { .wall_ns = fixed_wall_ns };
	struct meta_options options = { .folder = folder, .clock = &clock, .map_bytes = 64u << 20 };
	char error[300], path[100];
	temporary_template(folder, sizeof folder, "fuzz");
	REQUIRE(mkdtemp(folder));
	log_set_level(LOG_LEVEL_OFF);
	arena_init(&world.arena, 0);
	if (meta_open(&options, &world.meta, error, sizeof error) < 0) {
		fprintf(stderr, "%s\n", error);
		exit(1);
	}
	session_begin();
	tree_make();
	/* The files are open and mapped: their names can go, and nothing stays behind. */
	for (const char *const *name = (const char *const[]){ "data.mdb", "lock.mdb", NULL }; *name; name++) {
		snprintf(path, sizeof path, "%s/%s", folder, *name);
		unlink(path);
	}
	rmdir(folder);
	return 0;
}

/* Small numbers are what exists here; the rest is anything. */
static uint64_t number_take(struct reader *in)
{
	uint8_t b = take_le8(in);
	if (b < 0xf0)
		return b % 48;
	if (b < 0xf8)
		return (uint64_t)1 << (take_le8(in) % 64);
	if (b < 0xfc)
		return take_le16(in);
	return take_le64(in);
}

static ProtobufCBinaryData bytes_take(struct reader *in)
{
	static const char *const known[] = { "dir",
					     "file",
					     "link",
					     "empty",
					     "below",
					     "gone",
					     "",
					     "x",
					     ".",
					     "..",
					     "a/b",
					     "user.color",
					     "system.posix_acl_access",
					     "system.posix_acl_default",
					     "security.capability",
					     VOLUME,
					     "/dir/below",
					     "zstd:3",
					     "compression",
					     "retention" };
	uint8_t b = take_le8(in);
	if (b < 0xa0)
		return bytes_of(known[b % (sizeof known / sizeof *known)]);
	size_t size = b < 0xc0 ? b - 0xa0u : take_le16(in) % 600;
	if (size > reader_left(in))
		size = reader_left(in);
	return (ProtobufCBinaryData){ size, (uint8_t *)take_bytes(in, size) };
}

/* Extents that are nearly right: of the objects there are. */
static ProtobufCBinaryData extents_take(struct reader *in)
{
	CLEANUP_BUF struct buf packed = { 0 };
	for (int i = take_le8(in) % 5; i > 0; i--) {
		struct extent e = { .offset = number_take(in) * 1024,
				    .length = (uint32_t)number_take(in) * 512,
				    .object = number_take(in),
				    .skip = (uint32_t)number_take(in),
				    .raw_length = 4096,
				    .stored_length = 4096 };
		e.object_offset = (take_le8(in) % 6) * 4096u;
		e.codec = take_le8(in) % 4;
		extent_pack(&packed, &e);
	}
	return (ProtobufCBinaryData){ packed.len, arena_copy(&world.arena, packed.data, packed.len) };
}

static char *string_take(struct reader *in)
{
	ProtobufCBinaryData b = bytes_take(in);
	char *s = arena_zero(&world.arena, b.len + 1);
	if (b.len)
		memcpy(s, b.data, b.len);
	return s;
}

static ProtobufCMessage *message_take(struct reader *in, const ProtobufCMessageDescriptor *type, int depth);

static void value_take(struct reader *in, const ProtobufCFieldDescriptor *f, void *at, int depth)
{
	uint32_t n;
	uint64_t w;
	ProtobufCBinaryData b;
	void *p;
	switch (f->type) {
	case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)at = take_le8(in) & 1; return;
	case PROTOBUF_C_TYPE_STRING:
		p = string_take(in);
		memcpy(at, &p, sizeof p);
		return;
	case PROTOBUF_C_TYPE_BYTES:
		b = strcmp(f->name, "extents") == 0 ? extents_take(in) : bytes_take(in);
		memcpy(at, &b, sizeof b);
		return;
	case PROTOBUF_C_TYPE_MESSAGE:
		p = depth > 3 ? NULL : message_take(in, f->descriptor, depth + 1);
		memcpy(at, &p, sizeof p);
		return;
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_INT64:
		w = number_take(in);
		memcpy(at, &w, sizeof w);
		return;
	default:
		n = (uint32_t)number_take(in);
		if (strcmp(f->name, "mode") == 0 && n < 8)
			n = (uint32_t[]){ S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR, S_IFIFO, S_IFSOCK, S_IFBLK, 0 }[n] | 0640;
		memcpy(at, &n, sizeof n);
	}
}

static size_t value_size(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
	case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_INT64: return 8;
	default: return 4;
	}
}

static ProtobufCMessage *message_take(struct reader *in, const ProtobufCMessageDescriptor *type, int depth)
{
	uint8_t *m = arena_take(&world.arena, type->sizeof_message);
	REQUIRE(m);
	protobuf_c_message_init(type, m);
	uint32_t set = take_le8(in) | (uint32_t)take_le8(in) << 8;
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &type->fields[i];
		if (!(set >> i % 16 & 1))
			continue;
		if (f->label != PROTOBUF_C_LABEL_REPEATED) {
			value_take(in, f, m + f->offset, depth);
			continue;
		}
		size_t count = take_le8(in) % (LIST_MOST + 1), size = value_size(f->type);
		uint8_t *list = arena_zero(&world.arena, (count + 1) * size);
		for (size_t k = 0; k < count; k++)
			value_take(in, f, list + k * size, f->type == PROTOBUF_C_TYPE_MESSAGE ? 0 : depth);
		memcpy(m + f->offset, &list, sizeof list);
		memcpy(m + f->quantifier_offset, &count, sizeof count);
	}
	return (ProtobufCMessage *)m;
}

/* The writer refuses those whose session has ended. */
static bool session_lives(void)
{
	uint8_t key[8];
	struct span value;
	put_be64(key, SESSION);
	return view_get(&world.view, TABLE_SESSION, key, sizeof key, &value) == 0;
}

/* False: it failed after it had written, and the writer would give the batch up. */
static bool operation_run(struct reader *in)
{
	static const uint16_t inside[] = { WIRE__OP__REAP, WIRE__OP__OBJECTS_DELETED, WIRE__OP__SESSION_END,
					   WIRE__OP__SESSION_REVOKE };
	uint8_t b = take_le8(in);
	uint16_t number = b < 240 ? b % 108 : inside[b % 4];
	const struct op_info *info = op_find(number);
	if (!info || !op_handler_of(info) || !session_lives())
		return true;
	struct op op = { .view = &world.view,
			 .meta = world.meta,
			 .who = &world.who,
			 .volume = world.who.volume,
			 .now_ns = 1700000100LL * NS_PER_S,
			 .arena = &world.arena };
	ProtobufCMessage *request = message_take(in, info->request, 0);
	ProtobufCMessage *reply = arena_take(&world.arena, info->reply->sizeof_message);
	protobuf_c_message_init(info->reply, reply);
	size_t before = world.write_set.len;
	int r = op_handler_of(info)(&op, request, reply);
	REQUIRE(r <= 0);
	if (r == 0) {
		CLEANUP_FREE uint8_t *packed = malloc(protobuf_c_message_get_packed_size(reply) + 1);
		protobuf_c_message_pack(reply, packed);
	}
	if (info->kind == OP_READ)
		REQUIRE(world.write_set.len == before);
	return !world.view.poisoned && (r == 0 || world.write_set.len == before);
}

/* A record lost, moved to another key, cut off, longer, or with other bytes in it. */
static bool damage_do(struct reader *in)
{
	enum table t = take_le8(in) % TABLE_COUNT;
	int index = take_le8(in) % 16;
	CLEANUP_CURSOR struct cursor c;
	CLEANUP_BUF struct buf value = { 0 };
	uint8_t key[VIEW_KEY_MAX];
	if (cursor_open(&c, &world.view, t) < 0 || cursor_seek(&c, NULL, 0) < 0)
		return true;
	while (index-- > 0 && cursor_next(&c) == 0)
		;
	size_t key_size = c.key.size;
	memcpy(key, c.key.data, key_size);
	buf_append(&value, c.value.data, c.value.size);
	uint8_t how = take_le8(in);
	world.damaged = true;
	if (how < 0x20)
		return view_delete(&world.view, t, key, key_size) == 0;
	if (how < 0x40 && value.len)
		value.len = take_le16(in) % (value.len + 1);
	else if (how < 0x60)
		key[take_le8(in) % key_size] ^= (uint8_t)(1 << (how & 7));
	else if (how < 0x70)
		key_size = 1 + take_le8(in) % key_size;
	else if (how < 0x80)
		buf_append(&value, "more", 4);
	else
		for (int i = how % 4; i >= 0 && value.len; i--)
			value.data[take_le16(in) % value.len] = take_le8(in);
	return view_put(&world.view, t, key, key_size, value.data ? value.data : (uint8_t *)"", value.len) == 0;
}

static int look_at_object(void *context, const struct check_object *o)
{
	for (size_t i = 0; i < o->count; i++)
		REQUIRE(o->extents[i].extent.object == o->object);
	REQUIRE(o->count > 0 || world.damaged);
	return 0;
}

static void check_all(void)
{
	static const struct check_options options = { .max_findings = 5 };
	static const struct check_objects_options objects = { .each = look_at_object };
	struct check_result result;
	int r = check_run(world.meta, &options, &result);
	REQUIRE(r == 0 || world.damaged);
	for (size_t i = 0; !world.damaged && i < result.findings_count; i++)
		fprintf(stderr, "fsck: %s\n", result.findings[i]);
	REQUIRE(world.damaged || result.problems == 0);
	check_result_free(&result);
	r = check_objects(world.meta, &objects);
	REQUIRE(r == 0 || world.damaged);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct reader in = reader_of(data, size);
	bool good = true;
	REQUIRE(mdb_txn_begin(world.meta->env, NULL, 0, &world.txn) == 0);
	buf_clear(&world.write_set);
	buf_le64(&world.write_set, 1);
	for (int t = 0; t < TABLE_COUNT; t++)
		world.tails[t].known = false;
	world.view = (struct view){
		.meta = world.meta, .txn = world.txn, .writable = true, .write_set = &world.write_set, .tails = world.tails
	};
	world.damaged = false;
	for (int i = 0; good && i < STEPS_MOST && reader_left(&in) > 0; i++) {
		good = take_le8(&in) < 0xc0 ? operation_run(&in) : damage_do(&in);
		arena_reset(&world.arena);
	}
	if (good)
		check_all();
	mdb_txn_abort(world.txn);
	world.txn = NULL;
	return 0;
}
