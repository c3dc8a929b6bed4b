/* Two clients of one volume, against a server in the same process: what one does the other sees, and
 * what becomes of one the server does not hear of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"
#include "relay.h"
#include "world.h"

/* More than the three seconds between two signs of life of a client. */
#define LEASE_MS 4000
#define TRIES 50

static struct client_file *file_make(struct client *c, const char *name, uint64_t *inode)
{
	struct client_file *f;
	struct entry e;

	assert_int_equal(client_create(c, client_root(c), name, 0644, O_EXCL | O_RDWR, &root, &f, &e), 0);
	*inode = e.attr.inode;
	return f;
}

static struct client_file *file_open(struct client *c, uint64_t inode, int flags)
{
	struct client_file *f;
	bool unchanged;

	assert_int_equal(client_open(c, inode, flags, false, false, &f, &unchanged), 0);
	return f;
}

static void put(struct client_file *f, uint64_t offset, const char *text)
{
	assert_int_equal(client_write(f, offset, text, strlen(text), 0), strlen(text));
}

static void expect(struct client_file *f, const char *text)
{
	struct client_read *r;
	const struct iovec *parts;
	size_t bytes, at = 0;
	int count;

	assert_int_equal(client_read(f, 0, strlen(text) + 1, &r), 0);
	parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, strlen(text));
	for (int i = 0; i < count; at += parts[i++].iov_len)
		assert_memory_equal(parts[i].iov_base, text + at, parts[i].iov_len);
	client_read_release(r);
}

static uint64_t size_of(struct client *c, uint64_t inode)
{
	struct entry e;

	assert_int_equal(client_getattr(c, inode, &e), 0);
	return e.attr.size;
}

static uint64_t unstored(struct client *c)
{
	LOCKED(&c->uploader.lock);
	return c->uploader.unstored;
}

/* ---- Both in contact ---- */

static void what_one_writes_the_other_reads(void **state)
{
	struct client_file *a, *b;
	struct client *two;
	struct world w;
	uint64_t inode;
	char text[32];

	world_up(&w, "none");
	two = client_up(&w);
	a = file_make(w.client, "file", &inode);
	b = file_open(two, inode, O_RDWR);
	for (int i = 0; i < 20; i++) {
		snprintf(text, sizeof(text), "number %03d", i);
		put(i % 2 ? a : b, 0, text);
		expect(i % 2 ? b : a, text);
	}
	client_release(a);
	client_release(b);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

static void names_and_modes_are_seen_at_once(void **state)
{
	struct client_setattr mode = { .valid = SET_MODE, .mode = 0600 };
	struct entry made, seen;
	struct client *two;
	struct world w;
	char name[32];

	world_up(&w, "none");
	two = client_up(&w);
	for (int i = 0; i < 30; i++) {
		struct client *maker = i % 2 ? two : w.client, *other = i % 2 ? w.client : two;

		snprintf(name, sizeof(name), "file %d", i);
		assert_int_equal(client_lookup(other, client_root(other), name, &seen), -ENOENT);
		assert_int_equal(client_mknod(maker, client_root(maker), name, S_IFREG | 0644, 0, &root, &made), 0);
		assert_int_equal(client_lookup(other, client_root(other), name, &seen), 0);
		assert_int_equal(seen.attr.inode, made.attr.inode);
		assert_int_equal(client_setattr(other, made.attr.inode, &mode, &seen), 0);
		assert_int_equal(client_getattr(maker, made.attr.inode, &seen), 0);
		assert_int_equal(seen.attr.mode, S_IFREG | 0600);
		assert_int_equal(client_unlink(maker, client_root(maker), name), 0);
		assert_int_equal(client_lookup(other, client_root(other), name, &seen), -ENOENT);
	}
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

#define RECORD 16
#define APPENDS 150

struct appender {
	struct client_file *file;
	char letter;
};

static void *append(void *context)
{
	const struct appender *a = context;
	char record[RECORD];

	memset(record, a->letter, sizeof(record));
	for (int i = 0; i < APPENDS; i++)
		assert_int_equal(client_write(a->file, 0, record, sizeof(record), WRITE_APPEND), sizeof(record));
	return NULL;
}

static void appends_of_both_lie_one_behind_the_other(void **state)
{
	struct appender all[2] = { { .letter = 'a' }, { .letter = 'b' } };
	char text[2 * APPENDS * RECORD + 1];
	int counts[2] = { 0, 0 };
	struct client_read *r;
	const struct iovec *parts;
	pthread_t threads[2];
	struct client *two;
	struct world w;
	uint64_t inode;
	size_t bytes, at = 0;
	int count;

	world_up(&w, "none");
	two = client_up(&w);
	all[0].file = file_make(w.client, "log", &inode);
	all[1].file = file_open(two, inode, O_WRONLY | O_APPEND);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, append, &all[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(client_read(all[0].file, 0, sizeof(text), &r), 0);
	parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, 2 * APPENDS * RECORD);
	for (int i = 0; i < count; at += parts[i++].iov_len)
		memcpy(text + at, parts[i].iov_base, parts[i].iov_len);
	client_read_release(r);
	for (size_t i = 0; i < bytes; i++)
		assert_int_equal(text[i], text[i / RECORD * RECORD]);
	for (size_t i = 0; i < bytes; i += RECORD)
		counts[text[i] == 'b']++;
	assert_int_equal(counts[0], APPENDS);
	client_release(all[0].file);
	client_release(all[1].file);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

static void the_other_knows_the_size_and_nothing_is_stored_for_it(void **state)
{
	struct client_file *a;
	struct client *two;
	struct world w;
	uint64_t inode, commits;
	char name[32];
	int tries = 0;

	world_up(&w, "none");
	two = client_up(&w);
	do { /* after a second it is stored anyway: then it has proved nothing */
		assert_true(tries++ < TRIES);
		snprintf(name, sizeof(name), "file %d", tries);
		a = file_make(w.client, name, &inode);
		assert_int_equal(size_of(two, inode), 0);
		commits = atomic_load(&w.client->commits);
		put(a, 4995, "hello");
		assert_int_equal(size_of(two, inode), 5000);
		put(a, 9995, "hello");
		assert_int_equal(size_of(two, inode), 10000);
		client_release(a);
	} while (atomic_load(&w.client->commits) != commits);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

struct forgotten {
	_Atomic uint64_t inode;
	_Atomic unsigned count;
	_Atomic uint64_t from, to;  /* the last */
	_Atomic bool hold;          /* it does not come to an end */
	_Atomic bool hold_at_start; /* nor does what begins with the file */
};

static void forget(void *context, uint64_t inode, uint64_t from, uint64_t to)
{
	struct forgotten *f = context;

	atomic_store(&f->inode, inode);
	atomic_store(&f->from, from);
	atomic_store(&f->to, to);
	atomic_fetch_add(&f->count, 1);
	while (atomic_load(&f->hold) || (from == 0 && atomic_load(&f->hold_at_start)))
		usleep(1000);
}

static void a_reader_forgets_what_it_has_before_another_one_has_written(void **state)
{
	struct forgotten forgotten = { 0 };
	struct client_events events = { .forget = forget, .context = &forgotten };
	struct client_file *a, *b;
	struct client *two;
	struct world w;
	uint64_t inode;

	world_up(&w, "none");
	two = client_up(&w);
	client_on_recall(two, &events);
	a = file_make(w.client, "file", &inode);
	put(a, 0, "old");
	b = file_open(two, inode, O_RDONLY);
	expect(b, "old");
	for (unsigned i = 1; i <= 5; i++) {
		unsigned before = atomic_load(&forgotten.count);

		put(a, 0, i % 2 ? "new" : "old");
		assert_true(atomic_load(&forgotten.count) > before);
		assert_int_equal(atomic_load(&forgotten.inode), inode);
		expect(b, i % 2 ? "new" : "old");
	}
	client_on_recall(two, NULL);
	client_release(a);
	client_release(b);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

struct told_size {
	_Atomic uint64_t size; /* the last */
	_Atomic bool late;     /* something was forgotten before it */
};

static void extend(void *context, uint64_t inode, uint64_t size)
{
	struct told_size *t = context;

	atomic_store(&t->size, size);
}

static void forget_after(void *context, uint64_t inode, uint64_t from, uint64_t to)
{
	struct told_size *t = context;

	if (!atomic_exchange(&t->size, 0))
		atomic_store(&t->late, true);
}

/* A read() that asks for the size at that moment goes by what the kernel knew before (fuse/given.h). */
static void the_kernel_knows_the_size_before_it_is_made_to_forget(void **state)
{
	struct told_size told = { 0 };
	struct client_events events = { .extend = extend, .forget = forget_after, .context = &told };
	struct client_file *a, *b;
	struct client *two;
	struct world w;
	uint64_t inode;

	world_up(&w, "none");
	two = client_up(&w);
	client_on_recall(two, &events);
	a = file_make(w.client, "file", &inode);
	put(a, 0, "one");
	b = file_open(two, inode, O_RDWR);
	for (uint64_t i = 1; i <= 5; i++) {
		put(a, 10 * i, "more");
		put(b, 0, "two");
		assert_int_equal(size_of(two, inode), 10 * i + 4);
		atomic_store(&told.size, 0);
		pthread_mutex_lock(&b->inode->lock);
		pages_leave(b->inode, 0);
		pthread_mutex_unlock(&b->inode->lock);
		assert_false(atomic_load(&told.late));
	}
	client_on_recall(two, NULL);
	client_release(a);
	client_release(b);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

/* With the grant: the server may not have heard yet that another mount has closed it. */
static struct client_file *file_open_granted(struct client *c, uint64_t inode)
{
	struct client_file *f = file_open(c, inode, O_RDWR);

	for (int i = 0; f->inode->grant == WIRE__GRANT__GRANT_NONE; i++) {
		assert_true(i < 4000);
		client_release(f);
		usleep(5000);
		f = file_open(c, inode, O_RDWR);
	}
	return f;
}

/* What its kernel is told of the size may have to be recalled while it is on its way; and that size may be another one. */
static void attributes_of_an_open_file_that_others_wanted_are_not_kept(void **state)
{
	struct client_file *a, *b;
	uint32_t valid_ms;
	bool end;
	struct client *two;
	struct buf listing = { 0 };
	struct world w;
	uint64_t inode;
	struct entry e;

	world_up(&w, "none");
	two = client_up(&w);
	a = file_make(w.client, "file", &inode);
	client_release(a);
	b = file_open_granted(two, inode);
	for (int i = 0; i < 2; i++) {
		if (i == 1) {
			a = file_open(w.client, inode, O_RDWR);
			put(a, 0, "theirs");
			put(b, 0, "ours");
		}
		/* A directory that was recalled a moment ago is not granted again at once. */
		AWAIT(client_readdir(two, client_root(two), 0, 65536, true, &listing, &end, &valid_ms) == 0 &&
		      client_getattr(two, inode, &e) == 0 && e.granted_ms > 0);
		assert_int_equal(e.contested, i == 1);
	}
	buf_free(&listing);
	client_release(a);
	client_release(b);
	assert_int_equal(client_disconnect(two), 0);
	world_down(&w);
}

/* ---- A write that the kernel has in its pages, and has not sent yet, while they leave ---- */

struct behind {
	struct world w;
	struct forgotten forgotten;
	struct client_events events;
	struct client *two;
	struct client_file *a, *b;
	uint64_t inode;
};

/* The file was open here, for writing, before another mount has changed it; and the kernel has its pages from after. */
static void behind_up(struct behind *p)
{
	memset(&p->forgotten, 0, sizeof(p->forgotten));
	p->events = (struct client_events){ .forget = forget, .context = &p->forgotten };
	world_up(&p->w, "none");
	p->two = client_up(&p->w);
	client_on_recall(p->w.client, &p->events);
	p->a = file_make(p->w.client, "file", &p->inode);
	p->b = file_open(p->two, p->inode, O_RDWR);
	put(p->b, 0, "old");
	expect(p->a, "old");
	put(p->b, 0, "new");
	expect(p->a, "new");
}

static uint64_t removals(const struct client_file *f) { return atomic_load(&f->inode->pages.removals); }

static unsigned forgets(struct behind *p) { return atomic_load(&p->forgotten.count); }

static void behind_down(struct behind *p)
{
	client_on_recall(p->w.client, NULL);
	client_release(p->a);
	client_release(p->b);
	assert_int_equal(client_disconnect(p->two), 0);
	world_down(&p->w);
}

static void pages_that_came_back_before_a_write_are_forgotten_when_it_comes(void **state)
{
	struct behind p;
	unsigned before;

	behind_up(&p);
	before = forgets(&p);
	put(p.a, 0, "own");
	assert_int_equal(forgets(&p), before + 1);
	assert_int_equal(atomic_load(&p.forgotten.from), 0);
	assert_int_equal(atomic_load(&p.forgotten.to), 3);
	expect(p.a, "own");
	/* The next write began after this one was answered. */
	put(p.a, 0, "two");
	put(p.a, 0, "six");
	assert_int_equal(forgets(&p), before + 1);
	behind_down(&p);
}

static void a_file_that_was_opened_since_wrote_nothing_before(void **state)
{
	struct client_file *since;
	struct behind p;
	unsigned before;

	behind_up(&p);
	since = file_open(p.w.client, p.inode, O_RDWR);
	expect(since, "new");
	before = forgets(&p);
	put(since, 0, "own");
	put(p.a, 0, "two");
	assert_int_equal(forgets(&p), before);
	client_release(since);
	behind_down(&p);
}

static void what_was_not_read_since_is_not_there(void **state)
{
	struct behind p;
	unsigned before;

	behind_up(&p);
	before = forgets(&p);
	put(p.a, 8192, "own");
	assert_int_equal(forgets(&p), before);
	behind_down(&p);
}

/* The kernel made its pages leave before it sent it, which nobody here knows of. */
static void what_is_written_around_the_pages_is_not_hidden_by_what_was_read(void **state)
{
	struct behind p;
	unsigned before;

	behind_up(&p);
	put(p.a, 0, "own");
	expect(p.a, "own");
	before = forgets(&p);
	put(p.a, 0, "two");
	assert_int_equal(forgets(&p), before);
	assert_int_equal(client_write(p.a, 0, "yes", 3, WRITE_AROUND_PAGES), 3);
	assert_int_equal(forgets(&p), before + 1);
	assert_int_equal(client_write(p.a, 8192, "yes", 3, WRITE_AROUND_PAGES), 3); /* nobody has read there */
	assert_int_equal(forgets(&p), before + 1);
	behind_down(&p);
}

static void write_around(struct client_file *f, uint64_t offset, const char *text)
{
	assert_int_equal(client_write(f, offset, text, strlen(text), WRITE_AROUND_PAGES), strlen(text));
}

static void what_was_read_around_the_pages_is_not_in_them(void **state)
{
	struct client_read *r;
	struct behind p;
	unsigned before;

	behind_up(&p);
	put(p.a, 8192, "own");
	assert_int_equal(client_read_around(p.a, 8192, 3, &r), 0);
	client_read_release(r);
	before = forgets(&p);
	write_around(p.a, 8192, "two");
	assert_int_equal(forgets(&p), before);
	behind_down(&p);
}

/* Of those around the pages one may come, and make pages leave, while the kernel has another one in its pages. */
static void a_write_around_the_pages_does_not_stand_for_one_through_them(void **state)
{
	struct behind p;
	unsigned before;

	behind_up(&p);
	before = forgets(&p);
	write_around(p.a, 8192, "one");
	assert_int_equal(forgets(&p), before);
	put(p.a, 0, "own");
	assert_int_equal(forgets(&p), before + 1);
	put(p.a, 0, "two");
	assert_int_equal(forgets(&p), before + 1);
	write_around(p.a, 0, "six");
	assert_int_equal(forgets(&p), before + 2);
	put(p.a, 0, "ten");
	assert_int_equal(forgets(&p), before + 3);
	behind_down(&p);
}

struct held_write {
	struct client_file *file;
	pthread_t thread;
	_Atomic bool may_end, ended_early;
};

static void *held_write_run(void *context)
{
	struct held_write *h = context;

	write_around(h->file, 0, "one");
	atomic_store(&h->ended_early, !atomic_load(&h->may_end));
	return NULL;
}

static void a_write_around_the_pages_waits_for_its_own(void **state)
{
	struct held_write h = { 0 };
	struct behind p;
	unsigned before;

	behind_up(&p);
	before = forgets(&p);
	h.file = p.a;
	atomic_store(&p.forgotten.hold_at_start, true);
	assert_int_equal(pthread_create(&h.thread, NULL, held_write_run, &h), 0);
	AWAIT(forgets(&p) == before + 1);
	for (unsigned i = 1; i <= 50; i++) {
		write_around(p.a, 1, "x");
		assert_int_equal(forgets(&p), before + 1 + i);
	}
	atomic_store(&h.may_end, true);
	atomic_store(&p.forgotten.hold_at_start, false);
	pthread_join(h.thread, NULL);
	assert_false(atomic_load(&h.ended_early));
	behind_down(&p);
}

static void a_page_that_waits_for_the_write_itself_does_not_stop_it(void **state)
{
	struct behind p;
	unsigned before;
	uint64_t removed;

	behind_up(&p);
	before = forgets(&p);
	removed = removals(p.a);
	atomic_store(&p.forgotten.hold, true);
	put(p.a, 0, "own");
	assert_int_equal(forgets(&p), before + 1);
	atomic_store(&p.forgotten.hold, false);
	/* It went after the write was answered: whoever wrote and read meanwhile is in doubt again. */
	AWAIT(removals(p.a) > removed);
	expect(p.a, "own");
	put(p.a, 0, "two");
	assert_int_equal(forgets(&p), before + 2);
	behind_down(&p);
}

/* ---- One that is not heard of ---- */

/* `far` talks through the relay, `near` does not.  The file is open in both for writing, and holds "first". */
struct apart {
	struct world w;
	struct relay relay;
	struct client *far, *near;
	struct client_file *a, *b;
	uint64_t inode;
};

static void apart_up(struct apart *p, int64_t session_timeout_s)
{
	world_up(&p->w, "none");
	log_set_level(LOG_LEVEL_OFF); /* that data is lost is said loudly */
	assert_int_equal(client_disconnect(p->w.client), 0);
	p->w.client = NULL;
	server_stop(p->w.server);
	p->w.lease_ms = LEASE_MS;
	p->w.session_timeout_s = session_timeout_s;
	server_up(&p->w);
	relay_up(&p->relay, p->w.address);
	p->far = client_up_at(p->relay.address);
	p->near = client_up(&p->w);
	p->a = file_make(p->far, "file", &p->inode);
	put(p->a, 0, "first");
	assert_int_equal(client_fsync(p->a), 0);
	p->b = file_open(p->near, p->inode, O_RDWR);
}

static void apart_down(struct apart *p)
{
	client_release(p->a);
	client_release(p->b);
	assert_int_equal(client_disconnect(p->near), 0);
	assert_int_equal(client_disconnect(p->far), 0);
	relay_down(&p->relay);
	world_down(&p->w);
}

/* The far one has written something that nobody knows of, and is not heard of any more. */
static void fall_silent(struct apart *p, const char *text)
{
	int tries = 0;

	do {
		assert_true(tries++ < TRIES);
		relay_silence(&p->relay, false);
		put(p->a, 0, text);
		relay_silence(&p->relay, true);
	} while (!unstored(p->far));
}

static void unstored_data_survives_if_nobody_has_changed_the_file(void **state)
{
	struct apart p;

	apart_up(&p, 0);
	fall_silent(&p, "later");
	expect(p.b, "first"); /* when the far one has been given up */
	relay_silence(&p.relay, false);
	assert_int_equal(client_fsync(p.a), 0);
	expect(p.b, "later");
	expect(p.a, "later");
	apart_down(&p);
}

/* As if the grant had been got after the loss was noted, and before its number was: the server refuses what is stored under it. */
static void a_grant_that_counts_as_from_before_the_loss_is_claimed_and_good_then(void **state)
{
	struct apart p;

	apart_up(&p, 0);
	fall_silent(&p, "later");
	expect(p.b, "first");
	relay_silence(&p.relay, false);
	assert_int_equal(client_fsync(p.a), 0);
	alarm(60); /* it would be refused, and claimed, for ever */
	for (int k = 0; k < 3; k++) {
		put(p.a, 0, k % 2 ? "seven" : "eight");
		pthread_mutex_lock(&p.a->inode->lock);
		p.a->inode->granted_under = 1;
		pthread_mutex_unlock(&p.a->inode->lock);
		assert_int_equal(client_fsync(p.a), 0);
	}
	alarm(0);
	expect(p.b, "eight");
	apart_down(&p);
}

static void unstored_data_is_dropped_if_somebody_has_and_fsync_says_so(void **state)
{
	struct apart p;

	apart_up(&p, 0);
	fall_silent(&p, "never to be seen");
	put(p.b, 0, "other, and longer");
	assert_int_equal(client_fsync(p.b), 0);
	relay_silence(&p.relay, false);
	assert_int_equal(client_fsync(p.a), -EIO);
	assert_int_equal(client_write(p.a, 0, "!", 1, WRITE_APPEND), 1); /* and it goes on, from what the other one has written */
	assert_int_equal(client_fsync(p.a), 0);
	expect(p.b, "other, and longer!");
	expect(p.a, "other, and longer!");
	assert_int_equal(unstored(p.far), 0);
	apart_down(&p);
}

/* Who opens it learns of the new content before the old data is claimed. */
static void so_it_is_if_the_file_is_opened_again_first(void **state)
{
	struct client_file *again = NULL;
	struct apart p;
	bool unchanged;
	int tries = 0;

	apart_up(&p, 0);
	do { /* after a second it is claimed anyway */
		assert_true(tries++ < TRIES);
		if (again)
			client_release(again);
		client_fsync(p.a);
		put(p.a, 0, "never");
		holdings_lost(p.far);
		put(p.b, 0, "other");
		assert_int_equal(client_fsync(p.b), 0);
		while (client_open(p.far, p.inode, O_RDONLY, false, false, &again, &unchanged) == -EIO)
			;
	} while (!unstored(p.far));
	assert_int_equal(client_fsync(p.a), -EIO);
	expect(p.b, "other");
	expect(p.a, "other");
	client_release(again);
	apart_down(&p);
}

static void so_it_is_if_the_server_restarts_meanwhile(void **state)
{
	struct apart p;

	apart_up(&p, 0);
	fall_silent(&p, "never to be seen");
	server_stop(p.w.server);
	server_up(&p.w);
	put(p.b, 0, "other"); /* when the server has waited for the far one long enough */
	assert_int_equal(client_fsync(p.b), 0);
	relay_silence(&p.relay, false);
	assert_int_equal(client_fsync(p.a), -EIO);
	expect(p.a, "other");
	expect(p.b, "other");
	apart_down(&p);
}

static void unstored_data_survives_the_end_of_the_session(void **state)
{
	struct apart p;

	apart_up(&p, LEASE_MS / 1000 + 1);
	fall_silent(&p, "later");
	AWAIT(lease_held(p.near)); /* it is alone */
	expect(p.b, "first");
	relay_silence(&p.relay, false);
	assert_int_equal(client_fsync(p.a), 0);
	expect(p.b, "later");
	expect(p.a, "later");
	apart_down(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_writes_the_other_reads),
		cmocka_unit_test(names_and_modes_are_seen_at_once),
		cmocka_unit_test(appends_of_both_lie_one_behind_the_other),
		cmocka_unit_test(the_other_knows_the_size_and_nothing_is_stored_for_it),
		cmocka_unit_test(a_reader_forgets_what_it_has_before_another_one_has_written),
		cmocka_unit_test(the_kernel_knows_the_size_before_it_is_made_to_forget),
		cmocka_unit_test(attributes_of_an_open_file_that_others_wanted_are_not_kept),
		cmocka_unit_test(pages_that_came_back_before_a_write_are_forgotten_when_it_comes),
		cmocka_unit_test(a_file_that_was_opened_since_wrote_nothing_before),
		cmocka_unit_test(what_was_not_read_since_is_not_there),
		cmocka_unit_test(what_is_written_around_the_pages_is_not_hidden_by_what_was_read),
		cmocka_unit_test(what_was_read_around_the_pages_is_not_in_them),
		cmocka_unit_test(a_write_around_the_pages_does_not_stand_for_one_through_them),
		cmocka_unit_test(a_write_around_the_pages_waits_for_its_own),
		cmocka_unit_test(a_page_that_waits_for_the_write_itself_does_not_stop_it),
		cmocka_unit_test(unstored_data_survives_if_nobody_has_changed_the_file),
		cmocka_unit_test(a_grant_that_counts_as_from_before_the_loss_is_claimed_and_good_then),
		cmocka_unit_test(unstored_data_is_dropped_if_somebody_has_and_fsync_says_so),
		cmocka_unit_test(so_it_is_if_the_file_is_opened_again_first),
		cmocka_unit_test(so_it_is_if_the_server_restarts_meanwhile),
		cmocka_unit_test(unstored_data_survives_the_end_of_the_session),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
