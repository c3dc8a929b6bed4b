/* Files made under the lease, against a real server: what the server gets to know,
 * when, and what others see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "client/state.h"
#include "world.h"

#define FILES 300

static void pause_ms(int ms) { nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000L }, NULL); }

static void wait_lease(struct client *c, bool held)
{
	for (int tries = 0; lease_held(c) != held; tries++) {
		assert_true(tries < 2000);
		pause_ms(5);
	}
}

/* The first file asks for numbers. */
static void wait_numbers(struct client *c)
{
	for (int tries = 0;; tries++) {
		uint64_t left;

		pthread_mutex_lock(&c->newborns.lock);
		left = c->newborns.numbers_left;
		pthread_cond_signal(&c->newborns.work);
		pthread_mutex_unlock(&c->newborns.lock);
		if (left)
			return;
		assert_true(tries < 2000);
		pause_ms(5);
	}
}

static uint64_t made(struct client *c)
{
	uint64_t n;

	pthread_mutex_lock(&c->newborns.lock);
	n = c->newborns.made;
	pthread_mutex_unlock(&c->newborns.lock);
	return n;
}

static uint64_t directory_make(struct client *c, const char *name, uint32_t mode)
{
	struct entry e;

	assert_int_equal(client_mkdir(c, client_root(c), name, mode, &root, &e), 0);
	return e.attr.inode;
}

static int create(struct client *c, uint64_t parent, const char *name, int flags, struct entry *e)
{
	struct client_file *f;
	int r = client_create(c, parent, name, 0666, flags | O_RDWR, &root, &f, e);

	if (r == 0)
		client_release(f);
	return r;
}

static void assert_same(const struct attr *a, const struct attr *b)
{
	uint8_t x[ATTR_PACKED], y[ATTR_PACKED];

	attr_pack(a, x);
	attr_pack(b, y);
	assert_memory_equal(x, y, sizeof(x));
}

static void name_of(char name[32], int i) { snprintf(name, 32, "file-%d", i); }

static uint64_t ready(struct world *w)
{
	wait_lease(w->client, true);
	wait_numbers(w->client);
	return directory_make(w->client, "d", 0755);
}

static void files_in_a_new_directory_are_made_without_asking(void **state)
{
	struct world w;
	struct entry e, again;
	uint64_t d;
	char name[32];

	world_up(&w, "none");
	d = ready(&w);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), 0);
	}
	assert_int_equal(made(w.client), FILES);
	assert_int_equal(client_lookup(w.client, d, "file-7", &e), 0);
	assert_int_equal(client_lookup(w.client, d, "file-x", &e), -ENOENT);
	assert_int_equal(client_fsync_all(w.client), 0);
	assert_int_equal(atomic_load(&w.client->newborns.waiting), 0);
	assert_int_equal(client_lookup(w.client, d, "file-7", &again), 0);
	world_down(&w);
}

static void listed_directories_are_as_good_as_new_ones(void **state)
{
	struct client *before;
	struct world w;
	struct entry e;
	uint64_t d;
	char name[32];

	world_up(&w, "none");
	d = ready(&w);
	for (int i = 0; i < FILES; i += 2) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), 0);
	}
	before = w.client;
	w.client = NULL;
	assert_int_equal(client_disconnect(before), 0);
	w.client = client_up(&w);
	wait_lease(w.client, true);
	wait_numbers(w.client);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), i % 2 ? 0 : -EEXIST);
	}
	assert_true(made(w.client) > FILES / 2 - 10);
	world_down(&w);
}

/* What create() said, what a look says before the server knows, and what the server says. */
static void attributes_are_those_the_server_gives(void **state)
{
	struct client_identity who = { 1000, 1001, 027 };
	struct entry made_e, early, late, parent, parent_late;
	struct client_file *f;
	struct world w;
	uint64_t d;

	world_up(&w, "none");
	ready(&w);
	d = directory_make(w.client, "setgid", 02775);
	assert_int_equal(create(w.client, d, "first", O_EXCL, &early), 0);
	assert_int_equal(client_create(w.client, d, "f", 0666, O_EXCL | O_RDWR, &who, &f, &made_e), 0);
	assert_int_equal(made(w.client), 2);
	assert_int_equal(client_getattr(w.client, made_e.attr.inode, &early), 0);
	assert_int_equal(client_getattr(w.client, d, &parent), 0);
	assert_int_equal(newborns_settle(w.client), 0);
	attrs_forget_all(&w.client->attrs);
	assert_int_equal(client_getattr(w.client, made_e.attr.inode, &late), 0);
	assert_int_equal(client_getattr(w.client, d, &parent_late), 0);
	assert_same(&made_e.attr, &early.attr);
	assert_same(&made_e.attr, &late.attr);
	assert_same(&parent.attr, &parent_late.attr);
	assert_int_equal(late.attr.mode, S_IFREG | 0640);
	assert_int_equal(late.attr.uid, 1000);
	assert_int_equal(late.attr.gid, 0); /* the directory's */
	assert_int_equal(parent.attr.mtime_ns, late.attr.mtime_ns);
	client_release(f);
	world_down(&w);
}

static void whoever_comes_sees_all_that_was_made_before(void **state)
{
	struct client *other;
	struct world w;
	struct entry e;
	uint64_t d, before;
	char name[32];

	world_up(&w, "none");
	d = ready(&w);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), 0);
	}
	other = client_up(&w);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(client_lookup(other, d, name, &e), 0);
		assert_int_equal(create(other, d, name, O_EXCL, &e), -EEXIST);
	}
	/* In company everything goes through the server, at once. */
	assert_false(lease_held(w.client));
	before = made(w.client);
	for (int i = FILES; i < FILES + 20; i++) {
		name_of(name, i);
		assert_int_equal(create(i % 2 ? other : w.client, d, name, O_EXCL, &e), 0);
		assert_int_equal(create(i % 2 ? w.client : other, d, name, O_EXCL, &e), -EEXIST);
	}
	assert_int_equal(made(w.client), before);
	assert_int_equal(made(other), 0);
	assert_int_equal(client_unlink(other, d, "file-0"), 0);
	assert_int_equal(client_disconnect(other), 0);
	/* Alone again, with nothing remembered from before. */
	wait_lease(w.client, true);
	wait_numbers(w.client);
	assert_int_equal(client_lookup(w.client, d, "file-0", &e), -ENOENT);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), i == 0 ? 0 : -EEXIST);
	}
	world_down(&w);
}

static void what_follows_finds_the_file(void **state)
{
	struct client_setattr mode = { .valid = SET_MODE, .mode = 0600 };
	struct client_file *f;
	struct entry e, a;
	struct world w;
	bool unchanged;
	uint64_t d;

	world_up(&w, "none");
	d = ready(&w);
	assert_int_equal(create(w.client, d, "removed", O_EXCL, &e), 0);
	assert_int_equal(client_unlink(w.client, d, "removed"), 0);
	assert_int_equal(client_lookup(w.client, d, "removed", &e), -ENOENT);
	assert_int_equal(create(w.client, d, "removed", O_EXCL, &e), 0);
	assert_int_equal(create(w.client, d, "moved", O_EXCL, &e), 0);
	assert_int_equal(client_rename(w.client, d, "moved", d, "here", 0), 0);
	assert_int_equal(client_lookup(w.client, d, "moved", &e), -ENOENT);
	assert_int_equal(client_lookup(w.client, d, "here", &e), 0);
	assert_int_equal(create(w.client, d, "linked", O_EXCL, &e), 0);
	assert_int_equal(client_link(w.client, e.attr.inode, d, "second", &a), 0);
	assert_int_equal(a.attr.nlink, 2);
	/* A rename of one of two names onto the other leaves both. */
	assert_int_equal(client_rename(w.client, d, "linked", d, "second", 0), 0);
	assert_int_equal(client_lookup(w.client, d, "linked", &a), 0);
	assert_int_equal(create(w.client, d, "linked", O_EXCL, &a), -EEXIST);
	assert_int_equal(create(w.client, d, "changed", O_EXCL, &e), 0);
	assert_int_equal(client_setattr(w.client, e.attr.inode, &mode, &a), 0);
	assert_int_equal(a.attr.mode, S_IFREG | 0600);
	assert_int_equal(create(w.client, d, "opened", O_EXCL, &e), 0);
	assert_int_equal(client_open(w.client, e.attr.inode, O_RDWR, false, false, &f, &unchanged), 0);
	assert_int_equal(client_write(f, 0, "abc", 3, 0), 3);
	assert_int_equal(client_fsync(f), 0);
	client_release(f);
	assert_int_equal(client_rmdir(w.client, client_root(w.client), "d"), -ENOTEMPTY);
	world_down(&w);
}

static void a_server_that_restarts_is_told_what_was_made_meanwhile(void **state)
{
	struct client *other;
	struct client_file *f;
	struct world w;
	struct entry e;
	uint64_t d;
	char name[32];

	world_up(&w, "none");
	d = ready(&w);
	server_stop(w.server);
	assert_true(lease_held(w.client));
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(client_create(w.client, d, name, 0644, O_EXCL | O_RDWR, &root, &f, &e), 0);
		assert_int_equal(client_getattr(w.client, e.attr.inode, &e), 0);
		client_release(f);
	}
	assert_int_equal(made(w.client), FILES);
	assert_true(atomic_load(&w.client->newborns.waiting) > 0);
	server_up(&w);
	other = client_up(&w);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(client_lookup(other, d, name, &e), 0);
	}
	assert_int_equal(client_disconnect(other), 0);
	world_down(&w);
}

static void limits_are_exact_also_for_files_made_without_asking(void **state)
{
	Wire__VolumeSetRequest set = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *fields[] = { "max_files" };
	struct world w;
	struct entry e;
	uint64_t d;
	char name[32];

	world_up(&w, "none");
	d = ready(&w);
	v.name = "test";
	v.max_files = 101; /* and the directory */
	set.volume = &v;
	set.fields = fields;
	set.n_fields = 1;
	assert_int_equal(create(w.client, d, "before", O_EXCL, &e), 0);
	assert_int_equal(made(w.client), 1);
	assert_int_equal(administrate(&w, WIRE__OP__VOLUME_SET, &set.base), 0);
	for (int i = 0; i < 110; i++) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), i < 99 ? 0 : -EDQUOT);
	}
	world_down(&w);
}

/* Random names looked up in a directory of many: a few calls, then one listing. */
static void looking_up_many_names_lists_the_directory(void **state)
{
	struct client_setattr mode = { .valid = SET_MODE, .mode = 0600 };
	struct client *before;
	struct world w;
	struct entry e, again;
	uint64_t d, inode;
	char name[32];

	world_up(&w, "none");
	d = ready(&w);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		assert_int_equal(create(w.client, d, name, O_EXCL, &e), 0);
	}
	before = w.client;
	w.client = NULL;
	assert_int_equal(client_disconnect(before), 0);
	w.client = client_up(&w);
	wait_lease(w.client, true);
	for (int i = 0; i < FILES; i++) {
		name_of(name, i * 7 % FILES);
		assert_int_equal(client_lookup(w.client, d, name, &e), 0);
		assert_int_equal(client_getattr(w.client, e.attr.inode, &again), 0);
		assert_same(&e.attr, &again.attr);
	}
	assert_int_equal(catalog_find(&w.client->catalog, d, "file-1", &inode), CATALOG_PRESENT);
	assert_true(inode != 0);
	assert_int_equal(client_lookup(w.client, d, "nothing", &e), -ENOENT);
	/* What this client changes it sees at once. */
	assert_int_equal(client_lookup(w.client, d, "file-1", &e), 0);
	assert_int_equal(client_setattr(w.client, e.attr.inode, &mode, &again), 0);
	assert_int_equal(client_lookup(w.client, d, "file-1", &e), 0);
	assert_int_equal(e.attr.mode, S_IFREG | 0600);
	assert_int_equal(client_link(w.client, e.attr.inode, d, "link", &again), 0);
	assert_int_equal(client_lookup(w.client, d, "file-1", &e), 0);
	assert_int_equal(e.attr.nlink, 2);
	assert_int_equal(client_unlink(w.client, d, "link"), 0);
	assert_int_equal(client_lookup(w.client, d, "file-1", &e), 0);
	assert_int_equal(e.attr.nlink, 1);
	inode = e.attr.inode;
	assert_int_equal(client_lookup(w.client, d, "file-2", &again), 0);
	assert_int_equal(client_rename(w.client, d, "file-1", d, "file-2", RENAME_EXCHANGE), 0);
	assert_int_equal(client_lookup(w.client, d, "file-2", &e), 0);
	assert_int_equal(e.attr.inode, inode);
	assert_int_equal(client_lookup(w.client, d, "file-1", &e), 0);
	assert_int_equal(e.attr.inode, again.attr.inode);
	assert_int_equal(client_rename(w.client, d, "file-1", d, "file-2", 0), 0);
	assert_int_equal(client_lookup(w.client, d, "file-1", &e), -ENOENT);
	assert_int_equal(client_lookup(w.client, d, "file-2", &e), 0);
	assert_int_equal(e.attr.inode, again.attr.inode);
	world_down(&w);
}

struct contest {
	struct client *client;
	uint64_t directory;
	int won;
};

static void *contestant(void *context)
{
	struct contest *k = context;
	struct entry e;
	char name[32];

	for (int i = 0; i < FILES; i++) {
		name_of(name, i);
		k->won += create(k->client, k->directory, name, O_EXCL, &e) == 0;
		if (i % 10 == 0)
			client_unlink(k->client, k->directory, name);
	}
	return NULL;
}

static void of_several_who_make_a_name_one_succeeds(void **state)
{
	struct contest contest[4];
	pthread_t threads[4];
	struct world w;
	uint64_t d;
	int won = 0;

	world_up(&w, "none");
	d = ready(&w);
	for (int i = 0; i < 4; i++) {
		contest[i] = (struct contest){ w.client, d, 0 };
		assert_int_equal(pthread_create(&threads[i], NULL, contestant, &contest[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		won += contest[i].won;
	}
	/* Each name once, but for every tenth: after it was removed it can be made again. */
	assert_true(won >= FILES);
	assert_true(won <= FILES + FILES / 10 * 3);
	world_down(&w);
}

static void data_of_a_new_file_is_stored_after_the_file(void **state)
{
	static uint8_t data[BLOCK * 3];
	struct client_file *f;
	struct client *other;
	struct world w;
	struct entry e;
	uint64_t d;
	char name[32];

	world_up(&w, "lz4");
	d = ready(&w);
	memset(data, 'x', sizeof(data));
	for (int i = 0; i < 20; i++) {
		name_of(name, i);
		assert_int_equal(client_create(w.client, d, name, 0644, O_EXCL | O_RDWR, &root, &f, &e), 0);
		assert_int_equal(client_write(f, 0, data, sizeof(data), 0), sizeof(data));
		if (i % 3 == 0)
			assert_int_equal(client_fsync(f), 0);
		assert_int_equal(client_getattr(w.client, e.attr.inode, &e), 0);
		assert_int_equal(e.attr.size, sizeof(data));
		client_release(f);
	}
	assert_int_equal(client_fsync_all(w.client), 0);
	other = client_up(&w);
	for (int i = 0; i < 20; i++) {
		name_of(name, i);
		assert_int_equal(client_lookup(other, d, name, &e), 0);
		assert_int_equal(e.attr.size, sizeof(data));
	}
	assert_int_equal(client_disconnect(other), 0);
	world_down(&w);
}

static void removed_directories_leave_no_names_behind(void **state)
{
	struct world w;
	struct entry e;
	char name[32];
	size_t before;

	world_up(&w, "none");
	wait_lease(w.client, true);
	directory_make(w.client, "first", 0755);
	before = w.client->catalog.bytes;
	for (int k = 0; k < 5; k++) {
		uint64_t d = directory_make(w.client, "d", 0755);

		for (int i = 0; i < FILES; i++) {
			name_of(name, i);
			assert_int_equal(create(w.client, d, name, O_EXCL, &e), 0);
		}
		assert_true(w.client->catalog.bytes > before + FILES * 16);
		for (int i = 0; i < FILES; i++) {
			name_of(name, i);
			assert_int_equal(client_unlink(w.client, d, name), 0);
		}
		assert_int_equal(client_rmdir(w.client, client_root(w.client), "d"), 0);
		assert_int_equal(w.client->catalog.bytes, before);
	}
	world_down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_in_a_new_directory_are_made_without_asking),
		cmocka_unit_test(listed_directories_are_as_good_as_new_ones),
		cmocka_unit_test(attributes_are_those_the_server_gives),
		cmocka_unit_test(whoever_comes_sees_all_that_was_made_before),
		cmocka_unit_test(what_follows_finds_the_file),
		cmocka_unit_test(a_server_that_restarts_is_told_what_was_made_meanwhile),
		cmocka_unit_test(limits_are_exact_also_for_files_made_without_asking),
		cmocka_unit_test(looking_up_many_names_lists_the_directory),
		cmocka_unit_test(of_several_who_make_a_name_one_succeeds),
		cmocka_unit_test(data_of_a_new_file_is_stored_after_the_file),
		cmocka_unit_test(removed_directories_leave_no_names_behind),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
