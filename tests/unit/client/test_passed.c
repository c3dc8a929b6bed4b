/* Files that are passed through, when their content changes; from a server in the same process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"
#include "world.h"

#define MIB (1u << 20)
#define SIZE (64ull * MIB)

/* A file of SIZE bytes 'a' that is read through `fd`. */
struct scene {
	struct world w;
	uint64_t inode;
	struct client_file *file;
	int fd;
};

static void fill(struct client_file *f, char with)
{
	CLEANUP_FREE char *data = malloc(MIB);

	memset(data, with, MIB);
	for (uint64_t at = 0; at < SIZE; at += MIB)
		assert_int_equal(client_write(f, at, data, MIB, 0), MIB);
	assert_int_equal(client_fsync(f), 0);
}

static struct client_file *file_open(struct client *c, uint64_t inode, int flags)
{
	struct client_file *f;
	bool unchanged;

	assert_int_equal(client_open(c, inode, flags, false, false, &f, &unchanged), 0);
	return f;
}

static void read_all(struct client_file *f)
{
	for (uint64_t at = 0; at < SIZE; at += MIB) {
		struct client_read *r;

		assert_int_equal(client_read(f, at, MIB, &r), 0);
		client_read_release(r);
	}
}

/* The client anew, with a cache, and the lease of the volume. */
static void client_anew(struct scene *s)
{
	char cache[96], error[512] = "";
	const char *dirs[] = { cache };
	struct client_options o = { .servers = s->w.address,
				    .volume = "test",
				    .host = "here",
				    .mount_point = "/x",
				    .timeout_ms = 20000,
				    .cache_bytes = 8 * MIB, /* so that what is copied has to be fetched */
				    .cache_dirs = dirs,
				    .cache_dir_count = 1,
				    .cache_size = { .bytes = 1u << 30 } };

	snprintf(cache, sizeof(cache), "%s/cache", s->w.folder);
	assert_int_equal(client_disconnect(s->w.client), 0);
	if (client_connect(&o, &s->w.client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

static void scene_set(struct scene *s)
{
	struct client_file *f;
	struct entry e;
	int tries = 0;

	world_up_with(&s->w, "none", MIB);
	assert_int_equal(client_create(s->w.client, client_root(s->w.client), "file", S_IFREG | 0644, O_RDWR, &root, &f, &e), 0);
	s->inode = e.attr.inode;
	fill(f, 'a');
	client_release(f);
	client_anew(s);
	for (;;) {
		s->file = file_open(s->w.client, s->inode, O_RDONLY);
		read_all(s->file);
		if (client_pass(s->file, &s->fd) == 0)
			return;
		client_release(s->file);
		assert_true(tries++ < 1000);
		usleep(10000); /* it is being written to the cache */
	}
}

static void scene_end(struct scene *s)
{
	client_release(s->file);
	world_down(&s->w);
}

static char shown_at(const struct scene *s, uint64_t offset)
{
	char c = 0;

	assert_int_equal(pread(s->fd, &c, 1, (off_t)offset), 1);
	return c;
}

static void await_shown(const struct scene *s, uint64_t offset, char c)
{
	for (int ms = 0; shown_at(s, offset) != c; ms++) {
		assert_true(ms < 20000);
		usleep(1000);
	}
}

static uint64_t fetched(struct client *c)
{
	struct client_stats n;

	client_stats(c, &n);
	return n.server_bytes;
}

static bool is_copying(struct inode *i)
{
	LOCKED(&i->lock);
	return i->passed && i->passed->copying;
}

static bool is_passed(struct inode *i)
{
	LOCKED(&i->lock);
	return i->passed != NULL;
}

static void what_another_mount_writes_is_copied_to_it(void **state)
{
	struct scene s;

	scene_set(&s);
	struct client *two = client_up(&s.w);
	struct client_file *f = file_open(two, s.inode, O_RDWR);
	fill(f, 'b');
	await_shown(&s, SIZE - 1, 'b');
	assert_int_equal(shown_at(&s, 0), 'b');
	client_release(f);
	assert_int_equal(client_disconnect(two), 0);
	client_pass_end(s.file);
	scene_end(&s);
}

/* Another one changes something, and all of it is copied anew. */
static void await_copying(struct inode *i, struct client_file *other)
{
	for (int tries = 0; tries < 50; tries++) {
		assert_int_equal(client_write(other, 0, "b", 1, 0), 1);
		assert_int_equal(client_fsync(other), 0);
		for (int k = 0; k < 5000; k++) {
			if (is_copying(i))
				return;
			usleep(100);
		}
	}
	fail_msg("it is not copied");
}

static void one_that_nobody_reads_any_more_is_copied_no_further(void **state)
{
	struct scene s;

	scene_set(&s);
	struct inode *i = s.file->inode;
	struct client *two = client_up(&s.w);
	struct client_file *f = file_open(two, s.inode, O_RDWR);
	await_copying(i, f);
	client_pass_end(s.file);
	uint64_t before = fetched(s.w.client);
	for (int ms = 0; is_passed(i); ms++) {
		assert_true(ms < 20000);
		usleep(1000);
	}
	assert_in_range(fetched(s.w.client) - before, 0, SIZE / 2);
	client_release(f);
	assert_int_equal(client_disconnect(two), 0);
	scene_end(&s);
}

/* As if others had changed the file while the server did not hear of us. */
static void what_was_written_here_and_is_refused_is_shown_no_more(void **state)
{
	struct scene s;

	scene_set(&s);
	struct client_file *f = file_open(s.w.client, s.inode, O_RDWR);
	struct inode *i = f->inode;
	assert_int_equal(client_write(f, 5, "refused", 7, 0), 7);
	assert_int_equal(shown_at(&s, 5), 'r');
	pthread_mutex_lock(&i->lock);
	assert_true(inode_has_unstored(i));
	inode_claim_later(i);
	i->claim_version++;
	pthread_mutex_unlock(&i->lock);
	log_set_level(LOG_LEVEL_OFF); /* that data is lost is said loudly */
	assert_int_equal(inode_claim(i), 0);
	await_shown(&s, 5, 'a');
	assert_int_equal(client_fsync(f), -EIO);
	client_release(f);
	client_pass_end(s.file);
	scene_end(&s);
}

/* ---- Before it: where it is read through the mount ---- */

/* What the kernel was told to forget. */
struct forgotten {
	_Atomic uint64_t inode, from, to;
	_Atomic unsigned times;
};

static void note_forgotten(void *context, uint64_t inode, uint64_t from, uint64_t to)
{
	struct forgotten *n = context;

	atomic_store(&n->inode, inode);
	atomic_store(&n->from, from);
	atomic_store(&n->to, to);
	atomic_fetch_add(&n->times, 1);
}

/* A file that was written before, and a client that has not read it; `passes`: the kernel could read it by itself. */
static void unread_scene_set(struct scene *s, struct forgotten *n, bool passes)
{
	struct client_file *f;
	struct entry e;

	*n = (struct forgotten){ 0 };
	world_up_with(&s->w, "none", MIB);
	assert_int_equal(client_create(s->w.client, client_root(s->w.client), "file", S_IFREG | 0644, O_RDWR, &root, &f, &e), 0);
	s->inode = e.attr.inode;
	fill(f, 'a');
	client_release(f);
	client_anew(s);
	client_on_recall(s->w.client, &(struct client_events){ .forget = note_forgotten, .context = n });
	client_passing(s->w.client, passes);
}

static void scene_close(struct scene *s)
{
	client_on_recall(s->w.client, NULL);
	world_down(&s->w);
}

static bool is_complete(struct inode *i)
{
	LOCKED(&i->lock);
	return i->backing && backing_is_complete(i->backing);
}

/* Reads all of it, and closes it once it is whole in the cache.  Returns the inode, with a reference. */
static struct inode *read_into_cache(struct scene *s)
{
	struct client_file *f = file_open(s->w.client, s->inode, O_RDONLY);
	struct inode *i = f->inode;

	inode_ref(i);
	for (int tries = 0; !is_complete(i); tries++) {
		assert_true(tries < 2000);
		read_all(f);
		usleep(10000);
	}
	client_release(f);
	return i;
}

static void once_it_is_whole_and_closed_the_kernel_forgets_its_other_pages(void **state)
{
	struct forgotten n;
	struct scene s;

	unread_scene_set(&s, &n, true);
	struct client_file *f = file_open(s.w.client, s.inode, O_RDONLY);
	struct inode *i = read_into_cache(&s);
	assert_false(passed_is_due(i));
	assert_int_equal(atomic_load(&n.times), 0); /* somebody has it open */
	client_release(f);
	AWAIT(atomic_load(&n.times) == 1);
	assert_true(atomic_load(&n.inode) == s.inode && atomic_load(&n.from) == 0 && atomic_load(&n.to) == UINT64_MAX);
	f = file_open(s.w.client, s.inode, O_RDONLY);
	assert_int_equal(client_pass(f, &s.fd), 0);
	client_pass_end(f);
	client_release(f);
	assert_false(passed_is_due(i));
	assert_int_equal(atomic_load(&n.times), 1);
	inode_unref(i);
	scene_close(&s);
}

/* It is read again from where it is in memory: the pages of the mount. */
static void check_not_prepared(struct scene *s, const struct forgotten *n)
{
	struct inode *i = read_into_cache(s);

	assert_false(passed_is_due(i));
	passed_prepare(i);
	assert_int_equal(atomic_load(&n->times), 0);
	inode_unref(i);
}

static void where_the_kernel_cannot_read_it_by_itself_its_pages_stay(void **state)
{
	struct forgotten n;
	struct scene s;

	unread_scene_set(&s, &n, false);
	check_not_prepared(&s, &n);
	scene_close(&s);
}

static void where_others_may_change_it_its_pages_stay(void **state)
{
	struct forgotten n;
	struct scene s;

	unread_scene_set(&s, &n, true);
	struct client *two = client_up(&s.w);
	AWAIT(!client_is_alone(s.w.client));
	check_not_prepared(&s, &n);
	assert_int_equal(client_disconnect(two), 0);
	scene_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_another_mount_writes_is_copied_to_it),
		cmocka_unit_test(one_that_nobody_reads_any_more_is_copied_no_further),
		cmocka_unit_test(what_was_written_here_and_is_refused_is_shown_no_more),
		cmocka_unit_test(once_it_is_whole_and_closed_the_kernel_forgets_its_other_pages),
		cmocka_unit_test(where_the_kernel_cannot_read_it_by_itself_its_pages_stay),
		cmocka_unit_test(where_others_may_change_it_its_pages_stay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
