/* REPACK: gc has copied what is still live in a sparse object into a new one and
 * now moves the extents over, each only if it is still exactly what was copied.
 * The bytes of the files stay the same, so their versions do, too; a reader with
 * the old extents finds the old object until the grace has passed. */
#include <errno.h>
#include <stdlib.h>
#include "block/object.h"
#include "meta/content.h"
#include "meta/handlers.h"

struct repack_move {
	uint64_t inode;
	struct extent from, to;
	bool holds;
};

static int repack_check(struct op *op, const Wire__RepackRequest *q, const Wire__Move *given, struct repack_move *move)
{
	struct reader from = reader_of(given->from.data, given->from.len), to = reader_of(given->to.data, given->to.len);
	if (given->volume != op->volume || given->inode == 0 || given->inode > INODE_MAX)
		return -EINVAL;
	if (extent_unpack(&from, &move->from) < 0 || extent_unpack(&to, &move->to) < 0 || reader_left(&from) || reader_left(&to))
		return -EINVAL;
	if (move->to.object != q->object->object || move->to.offset != move->from.offset ||
	    move->to.length != move->from.length || !extent_fits_object(&move->to, q->object->size))
		return -EINVAL;
	uint8_t key[EXTENT_KEY];
	struct span value;
	struct extent now;
	extent_key(key, inode_key(op->volume, given->inode), move->from.offset);
	int r = view_get(op->view, TABLE_EXTENT, key, sizeof(key), &value);
	if (r < 0 && r != -ENOENT)
		return r;
	move->inode = given->inode;
	move->holds = r == 0 && extent_value_unpack(move->from.offset, value.data, value.size, &now) == 0 &&
		      extent_equal(&now, &move->from);
	return 0;
}

static int repack_write(struct op *op, const Wire__RepackRequest *q, const struct repack_move *moves, uint32_t *moved)
{
	CLEANUP_TALLY struct tally t;
	tally_begin(&t);
	int r = object_add(op, q->object);
	if (r == 0)
		r = tally_object(&t, q->object->object, 0, 0);
	for (size_t i = 0; i < q->n_moves && r == 0; i++) {
		uint8_t key[EXTENT_KEY], value[EXTENT_VALUE];
		const struct repack_move *m = &moves[i];
		if (!m->holds)
			continue;
		extent_key(key, inode_key(op->volume, m->inode), m->to.offset);
		extent_value_pack(&m->to, value);
		r = view_put(op->view, TABLE_EXTENT, key, sizeof(key), value, sizeof(value));
		if (r == 0)
			r = tally_object(&t, m->from.object, -1, -(int64_t)m->from.length);
		if (r == 0)
			r = tally_object(&t, m->to.object, 1, m->to.length);
		++*moved;
	}
	return r < 0 ? r : tally_write(op, &t);
}

static int compare_moves(const void *a, const void *b)
{
	const struct repack_move *x = a, *y = b;
	if (x->inode != y->inode)
		return x->inode < y->inode ? -1 : 1;
	return x->from.offset < y->from.offset ? -1 : x->from.offset > y->from.offset;
}

/* A move given twice must not count twice. */
static void repack_sort(struct repack_move *moves, size_t count)
{
	qsort(moves, count, sizeof(*moves), compare_moves);
	for (size_t i = 1; i < count; i++)
		if (compare_moves(&moves[i], &moves[i - 1]) == 0)
			moves[i].holds = false;
}

int op_repack(struct op *op, const ProtobufCMessage *request, ProtobufCMessage *reply)
{
	const Wire__RepackRequest *q = (const Wire__RepackRequest *)request;
	Wire__RepackReply *answer = (Wire__RepackReply *)reply;
	if (!q->object)
		return -EINVAL;
	op->volume = q->n_moves ? q->moves[0]->volume : 0;
	struct repack_move *moves = arena_take(op->arena, (q->n_moves + 1) * sizeof(*moves));
	if (!moves)
		return -ENOMEM;
	int r = object_may_add(op, q->object);
	for (size_t i = 0; i < q->n_moves && r == 0; i++)
		r = repack_check(op, q, q->moves[i], &moves[i]);
	if (r < 0)
		return r;
	repack_sort(moves, q->n_moves);
	return repack_write(op, q, moves, &answer->moved);
}
