/* A child changes names as fast as it can and says what was acknowledged; it is
 * killed in the middle, 50 times; each time the parent opens what is left. */
#include "world.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "meta/machine.h"

#define ROUNDS 50
#define FILES 3000 /* more than any child gets to make */
#define WINDOW 64  /* mutations in flight */

/* File i of a round is made by mutation 2i+1; every third one is removed again later by mutation 2i+2. */
struct ack {
	uint32_t index;
	bool removed;
};

static char *file_name(char *out, int round, int index)
{
	snprintf(out, 32, "round%d-%d", round, index);
	return out;
}

/* ---- The child ---- */

struct job {
	struct mutation mutation;
	Wire__CreateRequest create;
	Wire__NameRequest remove;
	struct ack ack;
	int pipe;
	char name[32];
	int done;
};

static void job_done(struct mutation *m)
{
	struct job *j = m->context;

	if (m->status == 0 && write(j->pipe, &j->ack, sizeof(j->ack)) != sizeof(j->ack))
		_exit(3);
	buf_free(&m->packed);
	__atomic_store_n(&j->done, 1, __ATOMIC_RELEASE);
}

static void job_prepare(struct job *j, const struct caller *who, int round, int index, bool removed)
{
	memset(j, 0, sizeof(*j));
	file_name(j->name, round, index);
	j->ack = (struct ack){ (uint32_t)index, removed };
	wire__create_request__init(&j->create);
	j->create.parent = ROOT_INODE;
	j->create.name = bytes_of(j->name);
	j->create.mode = S_IFREG | 0644;
	j->create.exclusive = true;
	wire__name_request__init(&j->remove);
	j->remove.parent = ROOT_INODE;
	j->remove.name = bytes_of(j->name);
	j->mutation = (struct mutation){
		.who = *who,
		.number = (uint64_t)round * FILES * 2 + (uint64_t)index * 2 + 1 + removed,
		.op = removed ? WIRE__OP__UNLINK : WIRE__OP__CREATE,
		.request = removed ? &j->remove.base : &j->create.base,
		.done = job_done,
		.context = j,
	};
}

static void wait_for(struct job *j)
{
	while (!__atomic_load_n(&j->done, __ATOMIC_ACQUIRE))
		usleep(50);
}

static _Noreturn void child_run(struct world *w, int round, int pipe)
{
	static struct job creates[FILES], removes[FILES];

	world_start(w);
	for (int i = 0; i < FILES; i++) {
		job_prepare(&creates[i], &w->who, round, i, false);
		creates[i].pipe = pipe;
		if (i >= WINDOW)
			wait_for(&creates[i - WINDOW]);
		meta_submit(w->meta, &creates[i].mutation);
		if (i >= WINDOW && i % 3 == 0) {
			job_prepare(&removes[i], &w->who, round, i - WINDOW, true);
			removes[i].pipe = pipe;
			meta_submit(w->meta, &removes[i].mutation);
		}
	}
	for (;;)
		pause();
}

/* ---- The parent ---- */

struct model {
	uint8_t made[FILES], removed[FILES];
	int acks;
};

static void read_acks(int pipe, struct model *m, int until)
{
	struct ack a;

	while (m->acks < until && read(pipe, &a, sizeof(a)) == sizeof(a)) {
		(a.removed ? m->removed : m->made)[a.index] = 1;
		m->acks++;
	}
}

static void run_and_kill(struct world *w, int round, int acks, struct model *m)
{
	int ends[2], status;
	pid_t child;

	assert_int_equal(pipe(ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[0]);
		child_run(w, round, ends[1]);
	}
	close(ends[1]);
	read_acks(ends[0], m, acks);
	kill(child, SIGKILL);
	read_acks(ends[0], m, INT32_MAX);
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

struct totals {
	uint64_t live, trashed, names, trash;
};

static void count_all(struct world *w, struct totals *t)
{
	struct cursor c;
	struct attr a;
	struct view v;

	*t = (struct totals){ 0 };
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	assert_int_equal(cursor_open(&c, &v, TABLE_INODE), 0);
	for (int r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c)) {
		assert_int_equal(attr_unpack(c.value.data, c.value.size, &a), 0);
		if (a.inode != ROOT_INODE)
			*(a.flags & ATTR_TRASHED ? &t->trashed : &t->live) += 1;
	}
	cursor_close(&c);
	assert_int_equal(cursor_open(&c, &v, TABLE_DENTRY), 0);
	for (int r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c))
		t->names++;
	cursor_close(&c);
	assert_int_equal(cursor_open(&c, &v, TABLE_TRASH), 0);
	for (int r = cursor_seek(&c, NULL, 0); r == 0; r = cursor_next(&c))
		t->trash++;
	cursor_close(&c);
	meta_view_end(&v);
}

static void verify(struct world *w, int round, const struct model *m)
{
	struct totals t;
	char name[32];

	for (int i = 0; i < FILES; i++) {
		int r = do_lookup(w, ROOT_INODE, file_name(name, round, i), NULL);
		if (m->removed[i])
			assert_int_equal(r, -ENOENT);
		else if (m->made[i] && i % 3 != (WINDOW * 2) % 3) /* nobody may have begun to remove it */
			assert_int_equal(r, 0);
	}
	count_all(w, &t);
	assert_int_equal(t.live, t.names);
	assert_int_equal(t.trashed, t.trash);
	assert_int_equal(show_volume(w, "training")->used_files, t.live);
	assert_int_equal(show_volume(w, "training")->trash_files, t.trashed);
}

/* What was not acknowledged is sent again with its number: done once, whether or not it had been done. */
static void retry_unanswered(struct world *w, int round, const struct model *m)
{
	int tried = 0;
	struct job j;

	for (int i = 0; i < FILES && tried < 3; i++) {
		if (m->made[i])
			continue;
		tried++;
		job_prepare(&j, &w->who, round, i, false);
		assert_int_equal(world_numbered(w, j.mutation.number, 0, WIRE__OP__CREATE, &j.create, NULL), 0);
		assert_int_equal(world_numbered(w, j.mutation.number, 0, WIRE__OP__CREATE, &j.create, NULL), 0);
	}
}

static void every_acknowledged_change_survives_a_kill(void **state)
{
	struct world *w = malloc(sizeof(*w));
	static struct model m;
	uint64_t batch = 0;
	unsigned seed = (unsigned)time(NULL);

	print_message("seed %u\n", seed);
	srand(seed);
	world_make_folder(w);
	for (int round = 0; round < ROUNDS; round++) {
		memset(&m, 0, sizeof(m));
		run_and_kill(w, round, rand() % 400, &m);
		world_start(w);
		assert_true(meta_batch(w->meta) >= batch);
		batch = meta_batch(w->meta);
		verify(w, round, &m);
		retry_unanswered(w, round, &m);
		world_stop(w);
		arena_reset(&w->arena);
	}
	world_remove(w);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_acknowledged_change_survives_a_kill),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
