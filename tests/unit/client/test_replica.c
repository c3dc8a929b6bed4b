#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "client/state.h"
#include "world.h"

#define ROOT_INODE 1
#define LARGE 65536 /* the most an attribute's value can have */
#define MANY 300    /* of these are more than the server keeps of its write sets */

static char replicas[80];

static int replica_up_with(struct world *w, int64_t max_lag_ms, const char *cache, struct client **out)
{
	struct client_options o = { .servers = w->address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/replica",
				    .timeout_ms = 20000,
				    .read_only = true,
				    .replica_dir = replicas,
				    .replica_max_lag_ms = max_lag_ms,
				    .cache_dirs = &cache,
				    .cache_dir_count = cache != NULL,
				    .cache_size = { .bytes = 1u << 30 } };
	char error[600] = "";
	int r = client_connect(&o, out, error, sizeof(error));

	if (r < 0)
		assert_true(strlen(error) > 10);
	return r;
}

static int replica_up(struct world *w, int64_t max_lag_ms, struct client **out)
{
	return replica_up_with(w, max_lag_ms, NULL, out);
}

static int setup(void **state)
{
	struct world *w = malloc(sizeof(*w));

	assert_non_null(w);
	world_up(w, "none");
	snprintf(replicas, sizeof(replicas), "%s/replicas", w->folder);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	if (w->server) {
		world_down(w);
	}
	free(w);
	return 0;
}

static uint64_t make(struct client *c, const char *name)
{
	struct client_file *f;
	struct entry e;

	assert_int_equal(client_create(c, ROOT_INODE, name, 0644, O_RDWR, &root, &f, &e), 0); /* or opens it */
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
	return e.attr.inode;
}

static int find(struct client *c, const char *name)
{
	struct entry e;

	return client_lookup(c, ROOT_INODE, name, &e);
}

static uint64_t size_of(struct client *c, const char *name)
{
	struct entry e;

	return client_lookup(c, ROOT_INODE, name, &e) == 0 ? e.attr.size : UINT64_MAX;
}

static void write_all(struct client *c, uint64_t inode, const char *text)
{
	struct client_file *f;
	bool unchanged;

	assert_int_equal(client_open(c, inode, O_RDWR, false, false, &f, &unchanged), 0);
	assert_int_equal(client_write(f, 0, text, strlen(text), 0), strlen(text));
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
}

static void assert_reads(struct client *c, uint64_t inode, const char *text)
{
	struct client_file *f;
	struct client_read *r;
	size_t bytes;
	bool unchanged;
	int count;

	assert_int_equal(client_open(c, inode, O_RDONLY, false, false, &f, &unchanged), 0);
	assert_int_equal(client_read(f, 0, 1000, &r), 0);
	const struct iovec *parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, strlen(text));
	assert_memory_equal(parts[0].iov_base, text, bytes);
	client_read_release(r);
	client_release(f);
}

/* ---- What is told ---- */

struct heard {
	pthread_mutex_t lock;
	unsigned names, inodes, contents, nowhere; /* the last: contents of files that are in no directory */
	char last_name[300];
};

static void hear(void *context, const struct client_news *news, size_t count)
{
	struct heard *t = context;
	LOCKED(&t->lock);

	for (size_t i = 0; i < count; i++) {
		t->names += news[i].name_length > 0;
		t->inodes += !news[i].name_length;
		t->contents += news[i].content;
		t->nowhere += news[i].content && !news[i].cover;
		if (news[i].name_length) {
			assert_int_equal(strlen(news[i].name), news[i].name_length);
			snprintf(t->last_name, sizeof(t->last_name), "%s", news[i].name);
		}
	}
}

static bool has_told(struct heard *t, unsigned names, unsigned contents, const char *name)
{
	LOCKED(&t->lock);
	return t->names >= names && t->contents >= contents && !strcmp(t->last_name, name);
}

static void what_others_do_is_seen_and_told(void **state)
{
	struct world *w = *state;
	struct heard told = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct client_replica status;
	struct client *c;
	struct entry e;
	uint64_t inode;

	assert_int_equal(replica_up(w, 0, &c), 0);
	client_on_recall(c, &(struct client_events){ .changed = hear, .context = &told });
	assert_int_equal(client_lookup(c, ROOT_INODE, "f", &e), -ENOENT);
	assert_true(e.valid_ms > 3000000); /* that, too, may be kept for long */
	inode = make(w->client, "f");
	AWAIT(find(c, "f") == 0);
	AWAIT(has_told(&told, 1, 0, "f"));
	write_all(w->client, inode, "hello");
	AWAIT(size_of(c, "f") == 5);
	AWAIT(has_told(&told, 1, 1, "f"));
	assert_reads(c, inode, "hello");
	write_all(w->client, inode, "other");
	AWAIT(has_told(&told, 1, 2, "f"));
	assert_reads(c, inode, "other");
	assert_int_equal(client_rename(w->client, ROOT_INODE, "f", ROOT_INODE, "g", 0), 0);
	AWAIT(find(c, "g") == 0);
	assert_int_equal(find(c, "f"), -ENOENT);
	AWAIT(has_told(&told, 3, 2, "g") || has_told(&told, 3, 2, "f"));
	client_replica_status(c, &status);
	assert_true(status.is_replica && status.following && !status.copying && !status.foreign);
	assert_true(status.age_ms < 20000 && status.max_lag_ms == 3600 * 1000);
	client_on_recall(c, NULL);
	assert_int_equal(client_disconnect(c), 0);
	client_replica_status(w->client, &status);
	assert_false(status.is_replica);
}

/* Telling the kernel waits for those who look for a name there: else one who does may take in the old size for an hour. */
static void of_what_is_not_uploaded_it_is_told_where_it_is(void **state)
{
	struct world *w = *state;
	struct heard told = { .lock = PTHREAD_MUTEX_INITIALIZER };
	char spools[96], error[600] = "";
	struct client_options o = { .servers = w->address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/writer",
				    .timeout_ms = 20000,
				    .writeback_dir = spools };
	struct client *c, *writer;
	uint64_t inode;

	snprintf(spools, sizeof(spools), "%s/spools", w->folder);
	assert_int_equal(replica_up(w, 0, &c), 0);
	assert_int_equal(client_connect(&o, &writer, error, sizeof(error)), 0);
	client_on_recall(c, &(struct client_events){ .changed = hear, .context = &told });
	inode = make(writer, "f");
	AWAIT(has_told(&told, 1, 0, "f"));
	for (unsigned k = 0; k < 3; k++) {
		write_all(writer, inode, "hello"); /* it is marked, and the mark goes when it is uploaded */
		assert_int_equal(client_fsync_all(writer), 0);
	}
	assert_int_equal(client_disconnect(writer), 0);
	AWAIT(has_told(&told, 1, 3, "f"));
	AWAIT(size_of(c, "f") == 5);
	assert_int_equal(told.nowhere, 0);
	client_on_recall(c, NULL);
	assert_int_equal(client_disconnect(c), 0);
}

/* ---- What is read of it ---- */

#define PART (128u << 10)
#define PARTS 32u /* of which one is read: too little to be completed when the file is closed */

static bool is_idle(struct client *c)
{
	LOCKED(&c->prefetcher.lock);
	return !c->prefetcher.queue.count && !c->prefetcher.busy;
}

static void part_read(struct client_file *f, uint8_t byte)
{
	struct client_read *r;
	size_t bytes;
	int count;

	assert_int_equal(client_read(f, 0, PART, &r), 0);
	const struct iovec *parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, PART);
	for (int k = 0; k < count; k++)
		for (size_t at = 0; at < parts[k].iov_len; at++)
			assert_int_equal(((const uint8_t *)parts[k].iov_base)[at], byte);
	client_read_release(r);
}

/* Until it is uploaded the replica knows nothing of a file but its size. */
static void what_was_opened_before_it_was_uploaded_is_kept_when_it_is_read(void **state)
{
	struct world *w = *state;
	char spools[96], cache[96], error[600] = "";
	struct client_options o = { .servers = w->address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/writer",
				    .timeout_ms = 20000,
				    .writeback_dir = spools,
				    .upload_limit = 1 };
	CLEANUP_FREE uint8_t *data = malloc(PART);
	struct client *c, *writer;
	struct client_file *f;
	struct entry e;
	bool unchanged;

	snprintf(spools, sizeof(spools), "%s/spools", w->folder);
	snprintf(cache, sizeof(cache), "%s/cache", w->folder);
	assert_int_equal(replica_up_with(w, 0, cache, &c), 0);
	assert_int_equal(client_connect(&o, &writer, error, sizeof(error)), 0);
	assert_int_equal(client_create(writer, ROOT_INODE, "f", 0644, O_RDWR, &root, &f, &e), 0);
	memset(data, 7, PART);
	for (unsigned k = 0; k < PARTS; k++)
		assert_int_equal(client_write(f, (uint64_t)k * PART, data, PART, 0), PART);
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
	AWAIT(size_of(c, "f") == PARTS * PART);
	assert_int_equal(client_open(c, e.attr.inode, O_RDONLY, false, false, &f, &unchanged), 0);
	assert_int_equal(client_disconnect(writer), 0); /* which uploads it */
	part_read(f, 7);
	AWAIT(is_idle(c));
	client_release(f);
	assert_int_equal(client_disconnect(c), 0);
	assert_int_equal(client_disconnect(w->client), 0);
	w->client = NULL;
	server_stop(w->server);
	assert_int_equal(replica_up_with(w, 0, cache, &c), 0);
	assert_int_equal(client_open(c, e.attr.inode, O_RDONLY, false, false, &f, &unchanged), 0);
	part_read(f, 7);
	client_release(f);
	assert_int_equal(client_disconnect(c), 0);
	server_up(w);
}

static _Atomic bool busy;

static void *keep_changing(void *context)
{
	struct world *w = context;
	struct client_setattr s = { .valid = SET_MODE };
	struct client *c = client_up(w);
	uint64_t inode = make(c, "busy");
	struct entry e;

	while (busy) {
		s.mode = 0600 | (s.mode + 1) % 64;
		assert_int_equal(client_setattr(c, inode, &s, &e), 0);
	}
	assert_int_equal(client_disconnect(c), 0);
	return NULL;
}

/* There is always something newer by the time an answer comes. */
static void one_that_is_never_quite_current_is_not_old(void **state)
{
	struct world *w = *state;
	struct client_replica status;
	pthread_t threads[4];
	struct client *c;
	int64_t until;

	assert_int_equal(replica_up(w, 0, &c), 0);
	busy = true;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, keep_changing, w), 0);
	for (until = clock_steady_ns() + 4 * NS_PER_S; clock_steady_ns() < until;)
		usleep(10000);
	client_replica_status(c, &status);
	assert_true(status.age_ms < 3000);
	busy = false;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(client_disconnect(c), 0);
}

static void it_changes_nothing(void **state)
{
	struct world *w = *state;
	struct client_setattr s = { .valid = SET_MODE, .mode = 0600 };
	struct client_file *f;
	struct client *c;
	struct entry e;
	uint64_t inode = make(w->client, "f");
	bool unchanged;

	assert_int_equal(replica_up(w, 0, &c), 0);
	assert_int_equal(client_unlink(c, ROOT_INODE, "f"), -EROFS);
	assert_int_equal(client_mkdir(c, ROOT_INODE, "d", 0755, &root, &e), -EROFS);
	assert_int_equal(client_setattr(c, inode, &s, &e), -EROFS);
	assert_int_equal(client_open(c, inode, O_RDWR, false, false, &f, &unchanged), -EROFS);
	assert_int_equal(client_open(c, ROOT_INODE, O_RDONLY, false, false, &f, &unchanged), -EISDIR);
	assert_int_equal(client_open(c, 12345, O_RDONLY, false, false, &f, &unchanged), -ESTALE);
	assert_int_equal(client_disconnect(c), 0);
}

/* More than is kept of the write sets: then the differences are copied. */
static void one_that_was_away_for_long_catches_up(void **state)
{
	struct world *w = *state;
	uint64_t inode = make(w->client, "f");
	CLEANUP_FREE char *value = malloc(LARGE);
	struct client *c;
	char name[20], got[20];

	assert_non_null(value);
	memset(value, 'x', LARGE);
	make(w->client, "gone");
	assert_int_equal(replica_up(w, 0, &c), 0);
	assert_int_equal(find(c, "gone"), 0);
	assert_int_equal(client_disconnect(c), 0);
	for (int i = 0; i < MANY; i++) {
		snprintf(value, LARGE, "%d", i);
		assert_int_equal(client_setxattr(w->client, inode, "user.x", value, LARGE - 1000, 0, false), 0);
	}
	assert_int_equal(client_setxattr(w->client, inode, "user.x", "end", 3, 0, false), 0);
	assert_int_equal(client_unlink(w->client, ROOT_INODE, "gone"), 0);
	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		make(w->client, name);
	}
	assert_int_equal(replica_up(w, 0, &c), 0);
	assert_int_equal(find(c, "gone"), -ENOENT);
	assert_int_equal(find(c, "n49"), 0);
	assert_int_equal(client_getxattr(c, inode, "user.x", got, sizeof(got)), 3);
	assert_memory_equal(got, "end", 3);
	assert_int_equal(client_disconnect(c), 0);
}

static void without_a_server_it_serves_until_it_is_too_old(void **state)
{
	struct world *w = *state;
	struct client_replica status;
	struct client_space space;
	struct client *c;
	struct entry e;

	make(w->client, "f");
	assert_int_equal(replica_up(w, 0, &c), 0);
	assert_int_equal(client_disconnect(c), 0);
	assert_int_equal(client_disconnect(w->client), 0);
	w->client = NULL;
	server_stop(w->server);
	assert_int_equal(replica_up(w, 3000, &c), 0);
	assert_int_equal(client_lookup(c, ROOT_INODE, "f", &e), 0);
	assert_true(e.valid_ms <= 3000); /* the kernel keeps nothing for longer than it is served */
	assert_int_equal(client_statfs(c, &space), 0);
	assert_true(space.total_bytes > 0);
	client_replica_status(c, &status);
	assert_false(status.following);
	AWAIT(find(c, "f") == -EIO);
	server_up(w);
	AWAIT(find(c, "f") == 0);
	assert_int_equal(client_disconnect(c), 0);
	server_stop(w->server);
	/* Nothing to begin with: an error. */
	snprintf(replicas, sizeof(replicas), "%s/none", w->folder);
	assert_int_not_equal(replica_up(w, 0, &c), 0);
	server_up(w);
}

static void nothing_of_others_is_touched(void **state)
{
	struct world *w = *state;
	struct client *c, *d;
	char path[200];
	int fd;

	assert_int_equal(replica_up(w, 0, &c), 0);
	assert_int_equal(replica_up(w, 0, &d), -EBUSY);
	assert_int_equal(client_disconnect(c), 0);
	snprintf(path, sizeof(path), "%s/test/replica.lock", replicas);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(replica_up(w, 0, &c), -ENOTEMPTY); /* it could be a server's */
	snprintf(path, sizeof(path), "%s/test/data.mdb", replicas);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_others_do_is_seen_and_told),
		TEST(of_what_is_not_uploaded_it_is_told_where_it_is),
		TEST(what_was_opened_before_it_was_uploaded_is_kept_when_it_is_read),
		TEST(it_changes_nothing),
		TEST(one_that_is_never_quite_current_is_not_old),
		TEST(one_that_was_away_for_long_catches_up),
		TEST(without_a_server_it_serves_until_it_is_too_old),
		TEST(nothing_of_others_is_touched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
