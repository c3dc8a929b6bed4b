/* Several threads change and several read at once; ThreadSanitizer looks on. */
#include "world.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "meta/machine.h"

#define WRITERS 4
#define READERS 4
#define ROUNDS 150

struct part {
	struct world *w;
	pthread_t thread;
	int number;
	int made;
	int *stop;
};

static int mutate(struct part *p, struct arena *arena, uint16_t op, void *request)
{
	return meta_mutate(p->w->meta, &p->w->who, op, request, arena, NULL);
}

static int make(struct part *p, struct arena *arena, char *name)
{
	Wire__CreateRequest q = WIRE__CREATE_REQUEST__INIT;

	q.parent = ROOT_INODE;
	q.name = bytes_of(name);
	q.mode = S_IFREG | 0644;
	q.exclusive = true;
	q.open = true;
	return mutate(p, arena, WIRE__OP__CREATE, &q);
}

static int move(struct part *p, struct arena *arena, char *from, char *to)
{
	Wire__RenameRequest q = WIRE__RENAME_REQUEST__INIT;

	q.old_parent = q.new_parent = ROOT_INODE;
	q.old_name = bytes_of(from);
	q.new_name = bytes_of(to);
	return mutate(p, arena, WIRE__OP__RENAME, &q);
}

static int drop(struct part *p, struct arena *arena, char *name)
{
	Wire__NameRequest q = WIRE__NAME_REQUEST__INIT;

	q.parent = ROOT_INODE;
	q.name = bytes_of(name);
	return mutate(p, arena, WIRE__OP__UNLINK, &q);
}

/* Makes two files a round, renames one and removes the other: one stays. */
static void *write_part(void *context)
{
	struct part *p = context;
	char a[32], b[32], c[32];
	struct arena arena;

	arena_init(&arena, 0);
	for (int i = 0; i < ROUNDS; i++) {
		snprintf(a, sizeof(a), "a%d-%d", p->number, i);
		snprintf(b, sizeof(b), "b%d-%d", p->number, i);
		snprintf(c, sizeof(c), "c%d-%d", p->number, i);
		if (make(p, &arena, a) == 0 && make(p, &arena, b) == 0 && move(p, &arena, a, c) == 0 && drop(p, &arena, b) == 0)
			p->made++;
		arena_reset(&arena);
	}
	arena_free(&arena);
	return NULL;
}

static int ignore_set(void *context, uint64_t batch, const void *data, size_t size)
{
	return ++*(int *)context > 20 ? -ECANCELED : 0;
}

static void *read_part(void *context)
{
	struct part *p = context;
	Wire__ReaddirRequest list = WIRE__READDIR_REQUEST__INIT;
	Wire__NameRequest name = WIRE__NAME_REQUEST__INIT;
	struct arena arena;
	void *reply;

	arena_init(&arena, 0);
	list.inode = name.parent = ROOT_INODE;
	list.attributes = true;
	name.name = bytes_of("c0-0");
	while (!__atomic_load_n(p->stop, __ATOMIC_RELAXED)) {
		int sets = 0,
		    r = meta_read(p->w->meta, &p->w->who, WIRE__OP__LOOKUP, &name.base, &arena, (ProtobufCMessage **)&reply);
		if ((r == 0 || r == -ENOENT) &&
		    meta_read(p->w->meta, &p->w->who, WIRE__OP__READDIR, &list.base, &arena, (ProtobufCMessage **)&reply) == 0)
			p->made++;
		meta_write_sets(p->w->meta, meta_batch(p->w->meta) - 1, ignore_set, &sets);
		meta_is_open(p->w->meta, p->w->who.volume, 5);
		arena_reset(&arena);
	}
	arena_free(&arena);
	return NULL;
}

static void writers_and_readers_do_not_disturb_each_other(void **state)
{
	struct world *w = *state;
	struct part parts[WRITERS + READERS];
	int stop = 0;

	for (int i = 0; i < WRITERS + READERS; i++) {
		parts[i] = (struct part){ .w = w, .number = i, .stop = &stop };
		assert_int_equal(pthread_create(&parts[i].thread, NULL, i < WRITERS ? write_part : read_part, &parts[i]), 0);
	}
	for (int i = 0; i < WRITERS + READERS; i++) {
		if (i == WRITERS)
			__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		pthread_join(parts[i].thread, NULL);
		assert_true(parts[i].made > 0);
		if (i < WRITERS)
			assert_int_equal(parts[i].made, ROUNDS);
	}
	assert_int_equal(count_names(w, ROOT_INODE), WRITERS * ROUNDS);
	assert_int_equal(show_volume(w, "training")->used_files, WRITERS * ROUNDS);
	assert_int_equal(show_volume(w, "training")->trash_files, WRITERS * ROUNDS);
	assert_int_equal(meta_open_count(w->meta, SESSION), 2 * WRITERS * ROUNDS);
}

/* More readers at once than LMDB has slots for: they wait, none fails. */
static void *hold_view(void *context)
{
	struct part *p = context;
	struct view v;

	for (int i = 0; i < 20; i++) {
		if (meta_view_begin(p->w->meta, &v) < 0)
			return NULL;
		meta_view_end(&v);
	}
	p->made = 1;
	return NULL;
}

static void readers_wait_when_all_slots_are_taken(void **state)
{
	struct world *w = *state;
	struct view *views = calloc(READERS_POOLED, sizeof(*views));
	struct part p = { .w = w };

	for (int i = 0; i < READERS_POOLED; i++)
		assert_int_equal(meta_view_begin(w->meta, &views[i]), 0);
	assert_int_equal(pthread_create(&p.thread, NULL, hold_view, &p), 0);
	meta_view_end(&views[0]);
	pthread_join(p.thread, NULL);
	assert_int_equal(p.made, 1);
	for (int i = 1; i < READERS_POOLED; i++)
		meta_view_end(&views[i]);
	free(views);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(writers_and_readers_do_not_disturb_each_other, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(readers_wait_when_all_slots_are_taken, world_setup, world_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
