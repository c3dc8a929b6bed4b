#include "meta/trash.h"
#include <errno.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "meta/content.h"
#include "meta/handlers.h"

#define LIST_DEFAULT 1000u
#define LIST_MAX 10000u
#define LIST_FROM 16u /* a place in the list: time be64, inode be64 */
/* A mount that has just found a name opens the file a moment later; meanwhile another may have replaced it. */
#define LINGER_NS (2ull * NS_PER_S)

void trash_key(uint8_t out[TRASH_KEY], uint32_t volume, int64_t deleted_ns, uint64_t inode)
{
	put_be32(out, volume);
	put_be64(out + TRASH_KEY_TIME, (uint64_t)deleted_ns);
	put_be64(out + TRASH_KEY_INODE, inode);
}

void emptied_key(uint8_t out[EMPTIED_KEY], uint32_t volume)
{
	out[0] = 'e';
	put_be32(out + 1, volume);
}

int emptied_load(struct op *op, int64_t *out)
{
	uint8_t key[EMPTIED_KEY];
	struct span value;
	emptied_key(key, op->volume);
	int r = view_get(op->view, TABLE_META, key, sizeof(key), &value);
	*out = 0;
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (value.size != 8)
		return op_damage(op, TABLE_META, "when the trash of volume %u was emptied", op->volume);
	*out = (int64_t)get_le64(value.data);
	return 0;
}

int trash_limit(struct op *op, int64_t *out)
{
	int64_t emptied;
	int r = emptied_load(op, &emptied);
	if (r < 0)
		return r;
	uint64_t retention = volume_retention_ns(op, op->volume), least = volume_in_company(op) ? LINGER_NS : 0;
	if (retention < least)
		retention = least;
	int64_t aged = op->now_ns > 0 && retention < (uint64_t)op->now_ns ? op->now_ns - (int64_t)retention : 0;
	*out = aged > emptied ? aged : emptied;
	return 0;
}

int trash_add(struct op *op, struct attr *a, uint64_t parent, const void *name, size_t name_size)
{
	uint8_t key[TRASH_KEY], value[8 + 255];
	int64_t emptied;
	if (name_size > 255)
		return -ENAMETOOLONG;
	int r = emptied_load(op, &emptied);
	if (r == 0 && !(a->flags & ATTR_TRASHED)) {
		r = volume_account(op, a, -(int64_t)a->allocated, -1);
		a->flags |= ATTR_TRASHED;
		if (r == 0)
			r = volume_account(op, a, (int64_t)a->allocated, 1);
	}
	if (r < 0)
		return r;
	a->nlink = 0;
	a->parent = parent;
	a->ctime_ns = op->now_ns;
	/* What is deleted after the trash was emptied in the same batch has the same time, but is not part of it. */
	a->deleted_ns = a->flags & ATTR_NO_TRASH ? 0 : op->now_ns > emptied ? op->now_ns : emptied + 1;
	trash_key(key, op->volume, a->deleted_ns, a->inode);
	put_le64(value, parent);
	if (name_size)
		memcpy(value + 8, name, name_size);
	r = view_put(op->view, TABLE_TRASH, key, sizeof(key), value, 8 + name_size);
	return r < 0 ? r : inode_store(op, a, NULL);
}

int trash_forget(struct op *op, const struct attr *a)
{
	uint8_t key[TRASH_KEY];
	trash_key(key, op->volume, a->deleted_ns, a->inode);
	return view_delete(op->view, TABLE_TRASH, key, sizeof(key));
}

int trash_begin_freeing(struct op *op, struct attr *a)
{
	uint8_t key[TRASH_KEY], value[8 + 255];
	struct trash_place place;
	if (a->flags & ATTR_NO_TRASH)
		return 0;
	int r = trash_place(op, a, &place);
	if (r < 0 || place.name.size > 255)
		return r < 0 ? r : -EBADMSG;
	size_t name_size = place.name.size;
	put_le64(value, place.parent);
	memcpy(value + 8, place.name.data, name_size);
	r = trash_forget(op, a);
	a->flags |= ATTR_NO_TRASH;
	a->deleted_ns = 0;
	trash_key(key, op->volume, 0, a->inode);
	return r < 0 ? r : view_put(op->view, TABLE_TRASH, key, sizeof(key), value, 8 + name_size);
}

int trash_remove(struct op *op, struct attr *a)
{
	int r = trash_forget(op, a);
	if (r == -ENOENT)
		r = op_damage(op, TABLE_TRASH, "inode %llu of volume %u is not in it", (unsigned long long)a->inode, op->volume);
	if (r == 0)
		r = volume_account(op, a, -(int64_t)a->allocated, -1);
	a->flags &= ~(uint32_t)(ATTR_TRASHED | ATTR_NO_TRASH);
	a->deleted_ns = 0;
	if (r == 0)
		r = volume_account(op, a, (int64_t)a->allocated, 1);
	return r;
}

int trash_place(struct op *op, const struct attr *a, struct trash_place *out)
{
	uint8_t key[TRASH_KEY];
	struct span value;
	trash_key(key, op->volume, a->deleted_ns, a->inode);
	int r = view_get(op->view, TABLE_TRASH, key, sizeof(key), &value);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r < 0 || value.size < 8)
		return op_damage(op, TABLE_TRASH, "inode %llu of volume %u", (unsigned long long)a->inode, op->volume);
	out->parent = get_le64(value.data);
	out->name = (struct span){ value.data + 8, value.size - 8 };
	return 0;
}

int trash_volume(struct op *op, const char *name)
{
	Wire__Volume *v;
	if (!name[0] && op->volume)
		return 0;
	int r = volume_find(op, name, &v);
	if (r == 0)
		op->volume = v->id;
	return r == -ENOENT ? op_explain(op, r, "there is no volume %.63s; epochfs volume list shows those there are", name) : r;
}

/* ---- TRASH_LIST ---- */

static int list_entry(struct op *op, struct paths *p, const struct attr *a, uint64_t retention_ns, Wire__TrashEntry **out)
{
	CLEANUP_BUF struct buf path = { 0 };
	Wire__TrashEntry *e = arena_take(op->arena, sizeof(*e));
	int r = paths_append(op, p, a->inode, &path);
	if (r < 0 || !e)
		return r < 0 ? r : -ENOMEM;
	wire__trash_entry__init(e);
	e->inode = a->inode;
	e->mode = a->mode;
	e->size = a->size;
	e->deleted_ns = a->deleted_ns;
	if (__builtin_add_overflow(a->deleted_ns, retention_ns, &e->expires_ns))
		e->expires_ns = INT64_MAX;
	e->path.len = path.len;
	e->path.data = arena_copy(op->arena, path.data, path.len);
	*out = e;
	return e->path.data ? 0 : -ENOMEM;
}

/* Where a listing begins: after the place given, and after what is due. */
static int list_start(struct op *op, const ProtobufCBinaryData *from, uint8_t key[TRASH_KEY])
{
	int64_t limit;
	int r = trash_limit(op, &limit);
	if (r < 0)
		return r;
	trash_key(key, op->volume, limit + 1, 0);
	if (from->len == 0)
		return 0;
	if (from->len != LIST_FROM)
		return -EINVAL;
	if (memcmp(from->data, key + TRASH_KEY_TIME, LIST_FROM) > 0)
		memcpy(key + TRASH_KEY_TIME, from->data, LIST_FROM);
	return 0;
}

static int list_collect(struct op *op, uint8_t key[TRASH_KEY], uint32_t max, struct paths *p, Wire__TrashListReply *reply)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint64_t retention = volume_retention_ns(op, op->volume);
	int r = cursor_open(&c, op->view, TABLE_TRASH);
	if (r == 0)
		r = cursor_seek(&c, key, TRASH_KEY);
	for (; r == 0 && c.key.size == TRASH_KEY && memcmp(c.key.data, key, TRASH_KEY_TIME) == 0; r = cursor_next(&c)) {
		struct attr a;
		if (reply->n_entries == max) {
			reply->next.data = arena_copy(op->arena, c.key.data + TRASH_KEY_TIME, LIST_FROM);
			reply->next.len = LIST_FROM;
			return reply->next.data ? 0 : -ENOMEM;
		}
		r = inode_load(op, get_be64(c.key.data + TRASH_KEY_INODE), &a);
		if (r == -ENOENT || (r == 0 && (a.flags & ATTR_NO_TRASH))) {
			r = 0;
			continue;
		}
		if (r == 0)
			r = list_entry(op, p, &a, retention, &reply->entries[reply->n_entries]);
		if (r < 0)
			return r;
		reply->n_entries++;
	}
	return r == -ENOENT ? 0 : r;
}

int op_trash_list(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__TrashListRequest *q = (const Wire__TrashListRequest *)request;
	Wire__TrashListReply *answer = (Wire__TrashListReply *)reply;
	uint32_t max = q->max == 0 ? LIST_DEFAULT : q->max < LIST_MAX ? q->max : LIST_MAX;
	uint8_t key[TRASH_KEY];
	int r = trash_volume(op, q->volume);
	if (r == 0)
		r = list_start(op, &q->from, key);
	if (r < 0)
		return r;
	answer->entries = arena_take(op->arena, max * sizeof(*answer->entries));
	if (!answer->entries)
		return -ENOMEM;
	struct paths p = { 0 };
	r = list_collect(op, key, max, &p, answer);
	paths_free(&p);
	return r;
}

/* ---- TRASH_EMPTY ---- */

/* What was deleted after `after` and up to `until`. */
static int trash_count(struct op *op, int64_t after, int64_t until, Wire__TrashEmptyReply *out)
{
	CLEANUP_CURSOR struct cursor c = { 0 };
	uint8_t key[TRASH_KEY];
	trash_key(key, op->volume, after + 1, 0);
	int r = cursor_open(&c, op->view, TABLE_TRASH);
	if (r == 0)
		r = cursor_seek(&c, key, sizeof(key));
	for (; r == 0; r = cursor_next(&c)) {
		struct attr a;
		if (c.key.size != TRASH_KEY || memcmp(c.key.data, key, TRASH_KEY_TIME) != 0 ||
		    get_be64(c.key.data + TRASH_KEY_TIME) > (uint64_t)until)
			return 0;
		r = inode_load(op, get_be64(c.key.data + TRASH_KEY_INODE), &a);
		if (r < 0 && r != -ENOENT)
			return r;
		if (r == 0) {
			out->files++;
			out->bytes += a.allocated;
		}
	}
	return r == -ENOENT ? 0 : r;
}

/* Only moves the moment up to which everything is due: exact, whatever is
 * deleted meanwhile, and no work per file.  The reaper does the freeing. */
int op_trash_empty(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__TrashEmptyRequest *q = (const Wire__TrashEmptyRequest *)request;
	int64_t limit, emptied;
	int r = trash_volume(op, q->volume);
	if (r == 0)
		r = trash_limit(op, &limit);
	if (r == 0)
		r = emptied_load(op, &emptied);
	if (r < 0)
		return r;
	int64_t latest = op->now_ns > emptied ? op->now_ns : emptied + 1; /* what this batch deleted may stand there */
	int64_t until = q->before_ns <= 0 || q->before_ns > latest ? latest : q->before_ns - 1;
	if (until <= limit)
		return 0;
	r = trash_count(op, limit, until, (Wire__TrashEmptyReply *)reply);
	if (r < 0)
		return r;
	uint8_t key[EMPTIED_KEY], value[8];
	emptied_key(key, op->volume);
	put_le64(value, (uint64_t)until);
	return view_put(op->view, TABLE_META, key, sizeof(key), value, sizeof(value));
}
