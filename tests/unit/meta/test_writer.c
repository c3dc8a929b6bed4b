#include "world.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "meta/machine.h"

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

static const void *one_more_file(struct world *w, int i, void *prefix)
{
	Wire__CreateRequest *request = arena_take(&w->arena, sizeof(*request));

	wire__create_request__init(request);
	request->parent = ROOT_INODE;
	request->name = bytes_of(numbered_name(w, prefix, i));
	request->mode = S_IFREG | 0644;
	request->exclusive = true;
	return request;
}

static void many_mutations_share_few_commits(void **state)
{
	struct world *w = *state;
	uint64_t before = meta_batch(w->meta);

	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 5000, one_more_file, "f%d"), 0);
	assert_in_range(meta_batch(w->meta) - before, 5000 / 512, 500);
	assert_int_equal(count_names(w, ROOT_INODE), 5000);
}

static void a_refused_mutation_does_not_disturb_its_batch(void **state)
{
	struct world *w = *state;

	assert_int_equal(do_file(w, ROOT_INODE, "f50", NULL), 0);
	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 100, one_more_file, "f%d"), -EEXIST);
	assert_int_equal(count_names(w, ROOT_INODE), 100);
	assert_int_equal(show_volume(w, "training")->used_files, 100);
}

static void what_is_no_mutation_is_refused(void **state)
{
	struct world *w = *state;
	Wire__NameRequest name = WIRE__NAME_REQUEST__INIT;
	void *reply;

	assert_int_equal(world_mutate(w, 250, &name, NULL), -EINVAL);
	assert_int_equal(world_mutate(w, WIRE__OP__LOOKUP, &name, NULL), -EINVAL);
	assert_int_equal(world_mutate(w, WIRE__OP__CREATE, &name, NULL), -EINVAL); /* another op's message */
	assert_int_equal(world_read(w, WIRE__OP__UNLINK, &name, &reply), -EINVAL);
	assert_int_equal(world_read(w, WIRE__OP__GETATTR, &name, &reply), -EINVAL);
	assert_null(op_find(0));
	assert_null(op_find(60000));
	assert_string_equal(op_find(WIRE__OP__HELLO)->name, "hello");
	assert_int_equal(op_find(WIRE__OP__HELLO)->kind, OP_OTHER);
	assert_true(op_find(WIRE__OP__REAP)->internal);
	assert_true(op_find(WIRE__OP__VOLUME_LIST)->admin);
	assert_false(op_find(WIRE__OP__CREATE)->admin);
}

static void time_never_goes_back(void **state)
{
	struct world *w = *state;
	struct attr a;

	w->now_ns = START_NS + 1000;
	assert_int_equal(do_file(w, ROOT_INODE, "a", &a), 0);
	w->now_ns = START_NS;
	assert_int_equal(do_file(w, ROOT_INODE, "b", &a), 0);
	assert_int_equal(a.btime_ns, START_NS + 1000);
	world_stop(w);
	world_start(w);
	assert_int_equal(do_file(w, ROOT_INODE, "c", &a), 0);
	assert_int_equal(a.btime_ns, START_NS + 1000);
}

/* ---- Write sets ---- */

struct replica {
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi tables[TABLE_COUNT];
	uint64_t batch;
};

static int replay(void *context, uint64_t batch, const void *data, size_t size)
{
	struct replica *r = context;
	struct reader in = reader_of(data, size);

	assert_int_equal(take_le64(&in), batch);
	assert_int_equal(batch, r->batch + 1);
	r->batch = batch;
	while (reader_left(&in)) {
		uint8_t table = take_le8(&in);
		uint16_t key_size = take_le16(&in);
		uint32_t value_size = take_le32(&in);
		MDB_val k = { key_size, (void *)take_bytes(&in, key_size) }, d = { 0 };
		assert_in_range(table, 0, TABLE_COUNT - 1);
		if (value_size == UINT32_MAX) {
			assert_int_equal(mdb_del(r->txn, r->tables[table], &k, NULL), 0);
			continue;
		}
		d = (MDB_val){ value_size, (void *)take_bytes(&in, value_size) };
		assert_false(in.bad);
		assert_int_equal(mdb_put(r->txn, r->tables[table], &k, &d, 0), 0);
	}
	return 0;
}

static void replica_open(struct world *w, struct replica *r)
{
	char path[100];

	*r = (struct replica){ 0 };
	snprintf(path, sizeof(path), "%s/replica", w->folder);
	assert_int_equal(meta_environment_open(path, MDB_NOSUBDIR | MDB_NOLOCK, 1 << 28, &r->env), 0);
	assert_int_equal(mdb_txn_begin(r->env, NULL, 0, &r->txn), 0);
	for (int t = 0; t < TABLE_COUNT; t++)
		assert_int_equal(mdb_dbi_open(r->txn, table_names[t], MDB_CREATE, &r->tables[t]), 0);
}

static void assert_table_equal(struct replica *r, struct view *v, enum table t)
{
	struct cursor c;
	MDB_cursor *other;
	MDB_val k, d;
	int more;

	assert_int_equal(cursor_open(&c, v, t), 0);
	assert_int_equal(mdb_cursor_open(r->txn, r->tables[t], &other), 0);
	for (more = cursor_seek(&c, NULL, 0); more == 0; more = cursor_next(&c)) {
		if (t == TABLE_META && c.key.size == 6 && memcmp(c.key.data, "format", 6) == 0)
			continue; /* made with the file, before the first batch */
		assert_int_equal(mdb_cursor_get(other, &k, &d, MDB_NEXT), 0);
		assert_int_equal(k.mv_size, c.key.size);
		assert_memory_equal(k.mv_data, c.key.data, k.mv_size);
		assert_int_equal(d.mv_size, c.value.size);
		assert_memory_equal(d.mv_data, c.value.data, d.mv_size);
	}
	assert_int_equal(mdb_cursor_get(other, &k, &d, MDB_NEXT), MDB_NOTFOUND);
	mdb_cursor_close(other);
	cursor_close(&c);
}

static void a_replica_made_of_write_sets_is_the_same(void **state)
{
	struct world *w = *state;
	struct replica r;
	struct view v;
	struct attr d;

	assert_int_equal(do_directory(w, ROOT_INODE, "d", &d), 0);
	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 1000, one_more_file, "f%d"), 0);
	assert_int_equal(do_rename(w, ROOT_INODE, "f1", d.inode, "g", 0), 0);
	assert_int_equal(do_unlink(w, ROOT_INODE, "f2"), 0);
	replica_open(w, &r);
	assert_int_equal(meta_write_sets(w->meta, 0, replay, &r), 0);
	assert_int_equal(r.batch, meta_batch(w->meta));
	assert_int_equal(meta_view_begin(w->meta, &v), 0);
	for (int t = 0; t < TABLE_COUNT; t++)
		assert_table_equal(&r, &v, t);
	meta_view_end(&v);
	mdb_txn_abort(r.txn);
	mdb_env_close(r.env);
}

static int stop_at_once(void *context, uint64_t batch, const void *data, size_t size)
{
	(*(int *)context)++;
	return -ECANCELED;
}

static int count_only(void *context, uint64_t batch, const void *data, size_t size)
{
	(*(int *)context)++;
	return 0;
}

static void write_sets_that_are_gone_are_stale(void **state)
{
	struct world *w = *state;
	uint64_t batch = meta_batch(w->meta);
	int calls = 0;

	assert_int_equal(meta_write_sets(w->meta, 0, stop_at_once, &calls), -ECANCELED);
	assert_int_equal(calls, 1);
	assert_int_equal(meta_write_sets(w->meta, batch, count_only, &calls), 0);
	assert_int_equal(calls, 1);
	assert_int_equal(meta_write_sets(w->meta, batch + 1, count_only, &calls), -ESTALE);
	world_stop(w);
	world_start(w);
	assert_int_equal(meta_write_sets(w->meta, 0, count_only, &calls), -ESTALE);
	assert_int_equal(meta_write_sets(w->meta, meta_batch(w->meta), count_only, &calls), 0);
}

static void only_the_newest_write_sets_are_kept(void **state)
{
	struct recent r = { 0 };
	struct meta m;
	int calls = 0;

	recent_init(&r);
	for (uint64_t batch = 1; batch <= 40; batch++) {
		struct buf data = { 0 };
		memset(buf_extend(&data, 1 << 20), 0, 1 << 20);
		recent_add(&r, batch, &data);
	}
	assert_int_equal(r.bytes, 16 << 20);
	memset(&m, 0, sizeof(m));
	m.recent = r;
	assert_int_equal(meta_write_sets(&m, 23, count_only, &calls), -ESTALE);
	assert_int_equal(meta_write_sets(&m, 24, count_only, &calls), 0);
	assert_int_equal(calls, 16);
	recent_free(&m.recent);
}

/* ---- Full disks ---- */

static void assert_counts_add_up(struct world *w)
{
	Wire__Volume *v = show_volume(w, "training");
	int names = count_names(w, ROOT_INODE);

	assert_int_equal(v->used_files, names);
}

static void a_full_map_refuses_what_does_not_fit_and_keeps_the_rest(void **state)
{
	struct world *w = *state;
	int made = 0, r;

	world_stop(w);
	w->map_bytes = 2 << 20;
	world_start(w);
	do
		r = world_burst(w, WIRE__OP__CREATE, 500, one_more_file, numbered_name(w, "r%d-%%d", made++));
	while (r == 0);
	assert_int_equal(r, -ENOSPC);
	assert_counts_add_up(w);
	world_stop(w);
	w->map_bytes = 1 << 30;
	world_start(w);
	assert_counts_add_up(w);
	assert_int_equal(do_file(w, ROOT_INODE, "more", NULL), 0);
}

/* RLIMIT_FSIZE makes every write beyond it fail, as a full disk does. */
static void a_commit_that_cannot_be_written_changes_nothing(void **state)
{
	struct world *w = *state;
	struct rlimit before, tight;
	uint64_t batch;
	int r;

	assert_int_equal(do_file(w, ROOT_INODE, "first", NULL), 0);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	tight = (struct rlimit){ meta_file_bytes(w->meta), before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
	batch = meta_batch(w->meta);
	r = world_burst(w, WIRE__OP__CREATE, 3000, one_more_file, "f%d");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(r, -EFBIG);
	assert_counts_add_up(w);
	assert_int_equal(meta_batch(w->meta) >= batch, 1);
	assert_int_equal(do_file(w, ROOT_INODE, "last", NULL), 0);
	assert_int_equal(do_lookup(w, ROOT_INODE, "first", NULL), 0);
	world_stop(w);
	world_start(w);
	assert_counts_add_up(w);
	assert_int_equal(do_lookup(w, ROOT_INODE, "last", NULL), 0);
}

/* ---- Ends ---- */

static pthread_mutex_t ends_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_end(struct mutation *m)
{
	pthread_mutex_lock(&ends_lock);
	assert_int_equal(m->status, 0);
	++*(int *)m->context;
	buf_free(&m->packed);
	pthread_mutex_unlock(&ends_lock);
}

static void closing_finishes_what_is_queued(void **state)
{
	struct world *w = *state;
	struct mutation *all = calloc(2000, sizeof(*all));
	int ended = 0;

	for (int i = 0; i < 2000; i++) {
		all[i] = (struct mutation){ .who = w->who,
					    .op = WIRE__OP__CREATE,
					    .request = one_more_file(w, i, "f%d"),
					    .done = count_end,
					    .context = &ended };
		meta_submit(w->meta, &all[i]);
	}
	world_stop(w);
	assert_int_equal(ended, 2000);
	free(all);
	world_start(w);
	assert_int_equal(count_names(w, ROOT_INODE), 2000);
}

/* Serves a copy of the file in a folder of its own. */
static void restore(struct world *w, const char *file, const char *folder)
{
	char command[300];

	world_stop(w);
	snprintf(w->meta_folder, sizeof(w->meta_folder), "%s/%s", w->folder, folder);
	assert_int_equal(mkdir(w->meta_folder, 0700), 0);
	snprintf(command, sizeof(command), "cp %s %s/data.mdb", file, w->meta_folder);
	assert_int_equal(system(command), 0);
	world_start(w);
}

static void what_is_done_with_a_copy_is_another_history(void **state)
{
	struct world *w = *state;
	uint8_t ids[4][16];
	char file[100];

	memcpy(ids[0], meta_history(w->meta), 16);
	snprintf(file, sizeof(file), "%s/copy.mdb", w->folder);
	assert_int_equal(meta_backup(w->meta, file), 0);
	world_stop(w);
	world_start(w);
	assert_memory_equal(meta_history(w->meta), ids[0], 16);
	restore(w, file, "once");
	memcpy(ids[1], meta_history(w->meta), 16);
	world_stop(w);
	world_start(w);
	assert_memory_equal(meta_history(w->meta), ids[1], 16);
	restore(w, file, "twice");
	memcpy(ids[2], meta_history(w->meta), 16);
	memset(ids[3], 0, 16);
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < i; k++)
			assert_memory_not_equal(ids[i], ids[k], 16);
}

static void a_backup_can_be_opened_in_place_of_the_original(void **state)
{
	struct world *w = *state;
	char file[100];

	assert_int_equal(world_burst(w, WIRE__OP__CREATE, 300, one_more_file, "f%d"), 0);
	snprintf(file, sizeof(file), "%s/copy.mdb", w->folder);
	assert_int_equal(meta_backup(w->meta, file), 0);
	assert_int_equal(do_file(w, ROOT_INODE, "after", NULL), 0);
	assert_int_equal(meta_backup(w->meta, "/nonexistent/copy.mdb"), -ENOENT);
	world_stop(w);
	snprintf(w->meta_folder, sizeof(w->meta_folder), "%s/restored", w->folder);
	assert_int_equal(mkdir(w->meta_folder, 0700), 0);
	char restored[120];
	snprintf(restored, sizeof(restored), "%s/data.mdb", w->meta_folder);
	assert_int_equal(rename(file, restored), 0);
	world_start(w);
	assert_int_equal(count_names(w, ROOT_INODE), 300);
	assert_int_equal(do_file(w, ROOT_INODE, "onwards", NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(many_mutations_share_few_commits),
		TEST(a_refused_mutation_does_not_disturb_its_batch),
		TEST(what_is_no_mutation_is_refused),
		TEST(time_never_goes_back),
		TEST(a_replica_made_of_write_sets_is_the_same),
		TEST(write_sets_that_are_gone_are_stale),
		cmocka_unit_test(only_the_newest_write_sets_are_kept),
		TEST(a_full_map_refuses_what_does_not_fit_and_keeps_the_rest),
		TEST(a_commit_that_cannot_be_written_changes_nothing),
		TEST(closing_finishes_what_is_queued),
		TEST(a_backup_can_be_opened_in_place_of_the_original),
		TEST(what_is_done_with_a_copy_is_another_history),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
