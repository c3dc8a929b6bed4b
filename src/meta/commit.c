/* COMMIT: the objects a client has put into the store become the contents of
 * files, all in one mutation.
 *
 * Everything is checked before anything is written.  What the client could not
 * help (a file that was deleted and freed meanwhile) is an answer per file; the
 * rest of the pack is committed.  What only a broken client sends refuses the
 * whole. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "block/object.h"
#include "meta/content.h"
#include "meta/handlers.h"

struct commit_file {
	const Wire__FileCommit *given;
	struct extent *extents;
	size_t count;
	bool gone;
};

struct commit {
	const Wire__CommitRequest *request;
	struct commit_file *files;
	struct intmap objects; /* of the request: id -> Wire__NewObject */
};

static int commit_check_objects(struct op *op, struct commit *c)
{
	for (size_t i = 0; i < c->request->n_objects; i++) {
		Wire__NewObject *n = c->request->objects[i];
		int r = object_may_add(op, n);
		if (r < 0)
			return r;
		if (intmap_get(&c->objects, n->object))
			return op_explain(op, -EINVAL, "object %llu is given twice", (unsigned long long)n->object);
		r = intmap_set(&c->objects, n->object, n);
		if (r < 0)
			return r;
	}
	return 0;
}

static int commit_check_extent(struct op *op, struct commit *c, const struct extent *e)
{
	if (extent_check(e) < 0 || e->length == 0)
		return op_explain(op, -EINVAL, "an extent contradicts itself");
	if (extent_end(e) > FILE_SIZE_MAX)
		return -EFBIG;
	uint32_t size;
	const Wire__NewObject *n = intmap_get(&c->objects, e->object);
	if (n) {
		size = n->size;
	} else {
		struct object_record record;
		int r = object_load(op, e->object, &record);
		if (r < 0 && r != -ENOENT)
			return r;
		/* One without references may be deleted from the store at any moment. */
		if (r < 0 || record.volume != op->volume || record.refs == 0)
			return op_explain(op, -ESTALE, "there is no object %llu in this volume", (unsigned long long)e->object);
		size = record.size;
	}
	if (!extent_fits_object(e, size))
		return op_explain(op, -EINVAL, "an extent does not fit in object %llu", (unsigned long long)e->object);
	return 0;
}

static int commit_check_file(struct op *op, struct commit *c, struct commit_file *f)
{
	const ProtobufCBinaryData *packed = &f->given->extents;
	struct reader in = reader_of(packed->data, packed->len);
	if (packed->len % EXTENT_PACKED)
		return op_explain(op, -EINVAL, "extents are cut off");
	f->count = packed->len / EXTENT_PACKED;
	f->extents = arena_take(op->arena, (f->count + 1) * sizeof(*f->extents));
	if (!f->extents)
		return -ENOMEM;
	for (size_t i = 0; i < f->count; i++) {
		if (extent_unpack(&in, &f->extents[i]) < 0)
			return op_explain(op, -EINVAL, "an extent contradicts itself");
		int r = commit_check_extent(op, c, &f->extents[i]);
		if (r < 0)
			return r;
	}
	if (f->given->size > FILE_SIZE_MAX)
		return -EFBIG;

	struct attr a;
	int r = inode_load(op, f->given->inode, &a);
	if (r == -ENOENT || f->given->revoked) {
		f->gone = true;
		return 0;
	}
	if (r == 0 && !S_ISREG(a.mode))
		return op_explain(op, -EINVAL, "inode %llu is not a regular file", (unsigned long long)a.inode);
	return r;
}

static int compare_offset(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* What the file grows by: the union of the new extents less what has extents already. */
static int commit_growth(struct op *op, const struct commit_file *f, uint64_t *growth)
{
	struct extent *sorted = arena_copy(op->arena, f->extents, (f->count + 1) * sizeof(*sorted));
	if (!sorted)
		return -ENOMEM;
	qsort(sorted, f->count, sizeof(*sorted), compare_offset);
	for (size_t i = 0; i < f->count;) {
		uint64_t from = sorted[i].offset, to = extent_end(&sorted[i]), covered;
		for (i++; i < f->count && sorted[i].offset <= to; i++)
			if (extent_end(&sorted[i]) > to)
				to = extent_end(&sorted[i]);
		int r = content_covered(op, f->given->inode, from, to, &covered);
		if (r < 0)
			return r;
		*growth += to - from - covered;
	}
	return 0;
}

static int commit_check_quota(struct op *op, const struct commit *c)
{
	uint64_t given = 0, growth = 0;
	for (size_t i = 0; i < c->request->n_files; i++)
		for (size_t j = 0; !c->files[i].gone && j < c->files[i].count; j++)
			given += c->files[i].extents[j].length;
	if (given == 0 || volume_may_add_bytes(op, given) == 0)
		return 0;
	for (size_t i = 0; i < c->request->n_files; i++) {
		int r = c->files[i].gone ? 0 : commit_growth(op, &c->files[i], &growth);
		if (r < 0)
			return r;
	}
	return growth ? volume_may_add_bytes(op, growth) : 0;
}

static int commit_check(struct op *op, struct commit *c)
{
	c->files = arena_zero(op->arena, (c->request->n_files + 1) * sizeof(*c->files));
	if (!c->files)
		return -ENOMEM;
	int r = commit_check_objects(op, c);
	for (size_t i = 0; i < c->request->n_files && r == 0; i++) {
		c->files[i].given = c->request->files[i];
		r = commit_check_file(op, c, &c->files[i]);
	}
	return r < 0 ? r : commit_check_quota(op, c);
}

/* ctime is the server's, but as of when the client wrote: it never goes back and
 * never lies in the future. */
static int64_t commit_ctime(struct op *op, const struct attr *before, int64_t given_ns)
{
	int64_t at = given_ns && given_ns < op->now_ns ? given_ns : op->now_ns;
	return at > before->ctime_ns ? at : before->ctime_ns;
}

static int commit_write_file(struct op *op, const struct commit_file *f, struct tally *t, struct attr *out)
{
	struct attr a, before;
	int r = inode_load(op, f->given->inode, &a);
	if (r < 0)
		return r;
	before = a;
	if (f->given->size > a.size)
		a.size = f->given->size;
	for (size_t i = 0; i < f->count; i++) {
		r = content_insert_tallied(op, &a, &f->extents[i], t);
		if (r < 0)
			return r;
		if (extent_end(&f->extents[i]) > a.size)
			a.size = extent_end(&f->extents[i]);
	}
	inode_touch_content(op, &a);
	a.ctime_ns = commit_ctime(op, &before, f->given->ctime_ns);
	if (f->given->mtime_ns || f->given->mtime_given)
		a.mtime_ns = f->given->mtime_ns;
	/* A capability that was given after the write stays. */
	if (!f->given->ctime_ns || f->given->ctime_ns > before.ctime_ns)
		r = inode_kill_capability(op, &a);
	if (r == 0)
		r = inode_store(op, &a, NULL);
	*out = a;
	return r;
}

static int commit_answer(struct op *op, const struct commit_file *f, const struct attr *a, Wire__FileCommitted **out)
{
	Wire__FileCommitted *done = arena_take(op->arena, sizeof(*done));
	if (!done)
		return -ENOMEM;
	wire__file_committed__init(done);
	done->inode = f->given->inode;
	*out = done;
	if (f->gone) {
		done->status = f->given->revoked ? ESTALE : ENOENT;
		return 0;
	}
	done->attr.data = arena_take(op->arena, ATTR_PACKED);
	if (!done->attr.data)
		return -ENOMEM;
	done->attr.len = ATTR_PACKED;
	attr_pack(a, done->attr.data);
	done->version = a->version;
	return 0;
}

static int commit_write(struct op *op, struct commit *c, Wire__CommitReply *reply)
{
	CLEANUP_TALLY struct tally t;
	tally_begin(&t);
	int r = 0;
	for (size_t i = 0; i < c->request->n_objects && r == 0; i++) {
		r = object_add(op, c->request->objects[i]);
		if (r == 0) /* of one that nothing refers to in the end, too: it goes to FREE then */
			r = tally_object(&t, c->request->objects[i]->object, 0, 0);
	}
	for (size_t i = 0; i < c->request->n_files && r == 0; i++) {
		struct attr a = { 0 };
		if (!c->files[i].gone)
			r = commit_write_file(op, &c->files[i], &t, &a);
		if (r == 0)
			r = commit_answer(op, &c->files[i], &a, &reply->files[i]);
	}
	return r < 0 ? r : tally_write(op, &t);
}

int op_commit(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	struct commit c = { .request = (const Wire__CommitRequest *)request };
	Wire__CommitReply *answer = (Wire__CommitReply *)reply;
	int r = commit_check(op, &c);
	if (r == 0) {
		answer->files = arena_take(op->arena, (c.request->n_files + 1) * sizeof(*answer->files));
		if (!answer->files)
			r = -ENOMEM;
		else
			r = commit_write(op, &c, answer);
		if (r == 0)
			answer->n_files = c.request->n_files;
	}
	intmap_free(&c.objects);
	return r;
}
