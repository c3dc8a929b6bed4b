/* Write-back, against a server in the same process: what is synced is marked or stored, whatever happens beside it. */
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
#include <time.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/job.h"
#include "client/state.h"
#include "memory.h"
#include "relay.h"
#include "world.h"

/* More than the three seconds between two signs of life of a client. */
#define LEASE_MS 4000

/* `far` writes back and talks through the relay, `near` does not.  The file is open in both. */
struct apart {
	struct world w;
	struct relay relay;
	struct client *far, *near;
	struct client_file *a, *b;
	struct inode *i; /* a's */
	uint64_t inode;
};

static struct client *writer_up(struct apart *p)
{
	char directory[128], error[512] = "";
	struct client_options o = { .servers = p->relay.address,
				    .volume = "test",
				    .host = "far",
				    .mount_point = "/x",
				    .timeout_ms = 20000,
				    .writeback_dir = directory,
				    .upload_limit = 1 };
	struct client *client;

	snprintf(directory, sizeof(directory), "%s/writeback", p->w.folder);
	if (client_connect(&o, &client, error, sizeof(error)) < 0)
		fail_msg("client: %s", error);
	return client;
}

static void put_at(struct client_file *f, uint64_t offset, const char *text)
{
	assert_int_equal(client_write(f, offset, text, strlen(text), 0), strlen(text));
}

static void put(struct client_file *f, const char *text) { put_at(f, 0, text); }

static void expect(struct client_file *f, const char *text)
{
	struct client_read *r;
	const struct iovec *parts;
	size_t bytes;
	int count;

	assert_int_equal(client_read(f, 0, strlen(text) + 1, &r), 0);
	parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, strlen(text));
	for (int k = 0; k < count; text += parts[k++].iov_len)
		assert_memory_equal(parts[k].iov_base, text, parts[k].iov_len);
	client_read_release(r);
}

static void apart_up(struct apart *p)
{
	struct entry e;
	bool unchanged;

	world_up(&p->w, "none");
	log_set_level(LOG_LEVEL_OFF);
	assert_int_equal(client_disconnect(p->w.client), 0);
	p->w.client = NULL;
	server_stop(p->w.server);
	p->w.lease_ms = LEASE_MS;
	server_up(&p->w);
	relay_up(&p->relay, p->w.address);
	p->far = writer_up(p);
	p->near = client_up(&p->w);
	assert_int_equal(client_create(p->far, client_root(p->far), "file", 0644, O_EXCL | O_RDWR, &root, &p->a, &e), 0);
	p->inode = e.attr.inode;
	p->i = p->a->inode;
	put(p->a, "first");
	assert_int_equal(client_fsync(p->a), 0);
	assert_int_equal(writeback_settle(p->i), 0);
	assert_int_equal(client_open(p->near, p->inode, O_RDWR, false, false, &p->b, &unchanged), 0);
}

static void apart_down(struct apart *p)
{
	client_release(p->a);
	client_release(p->b);
	assert_int_equal(client_disconnect(p->far), 0);
	assert_int_equal(client_disconnect(p->near), 0);
	relay_down(&p->relay);
	world_down(&p->w);
}

/* The far one is not heard of until it has been given up. */
static void given_up(struct apart *p)
{
	put(p->a, "other");
	relay_silence(&p->relay, true);
	expect(p->b, "first");
	relay_silence(&p->relay, false);
	assert_int_equal(writeback_settle(p->i), 0);
	expect(p->b, "other");
}

struct syncing {
	struct client_file *file;
	_Atomic bool done;
	int result;
};

static void *sync_run(void *context)
{
	struct syncing *s = context;

	s->result = client_fsync(s->file);
	atomic_store(&s->done, true);
	return NULL;
}

static uint64_t failures(struct inode *i)
{
	uint64_t n;

	pthread_mutex_lock(&i->lock);
	n = i->failures;
	pthread_mutex_unlock(&i->lock);
	return n;
}

/* It has not heard yet that its grants are void: the server refuses the mark, again and again. */
static void fsync_does_not_return_without_a_mark(void **state)
{
	struct syncing s = { 0 };
	struct apart p;
	pthread_t thread;
	uint64_t before;

	apart_up(&p);
	given_up(&p);
	put(p.a, "later");
	pthread_mutex_lock(&p.i->lock);
	p.i->granted_under = 0;
	pthread_mutex_unlock(&p.i->lock);
	before = failures(p.i);
	s.file = p.a;
	assert_int_equal(pthread_create(&thread, NULL, sync_run, &s), 0);
	AWAIT(failures(p.i) != before || atomic_load(&s.done));
	pthread_mutex_lock(&p.i->lock);
	if (atomic_load(&s.done))
		assert_true(p.i->marked || !inode_has_unstored(p.i));
	pthread_mutex_unlock(&p.i->lock);
	holdings_lost(p.far);
	pthread_join(thread, NULL);
	assert_int_equal(s.result, 0);
	expect(p.b, "later");
	apart_down(&p);
}

/* The bytes at the start of the file that a mount would upload again after a crash. */
static int first_bytes(void *context, struct spool *s, uint64_t offset, const struct spool_record *record)
{
	assert_int_equal(offset, 0);
	assert_true(record->length < 32);
	memset(context, 0, 32);
	return spool_read_record(s, record, context);
}

/* While another one is syncing the spool stays, and its mark. */
static void nothing_older_is_left(int (*secure)(struct apart *))
{
	struct spool_state found;
	struct spool *again;
	struct apart p;
	char text[32];

	apart_up(&p);
	put(p.a, "older");
	assert_int_equal(client_fsync(p.a), 0);
	pthread_mutex_lock(&p.i->lock);
	assert_true(p.i->marked);
	p.i->securing++; /* as another fsync */
	pthread_mutex_unlock(&p.i->lock);
	put(p.a, "newer");
	assert_int_equal(inode_flush(p.i), 0);
	assert_int_equal(secure(&p), 0);
	pthread_mutex_lock(&p.i->lock);
	assert_false(inode_has_unstored(p.i));
	if (p.i->spool) {
		assert_int_equal(spool_load(p.far->writeback.folder, p.inode, spool_generation(p.i->spool), first_bytes, text,
					    &found, &again),
				 0);
		spool_unref(again);
		assert_string_equal(text, "newer");
	}
	p.i->securing--;
	pthread_mutex_unlock(&p.i->lock);
	assert_int_equal(writeback_settle(p.i), 0);
	expect(p.b, "newer");
	apart_down(&p);
}

static int by_fsync(struct apart *p) { return client_fsync(p->a); }

static int by_rename(struct apart *p)
{
	return client_rename(p->far, client_root(p->far), "file", client_root(p->far), "renamed", 0);
}

static int by_fsync_of_a_directory(struct apart *p) { return client_fsync_all(p->far); }

static void fsync_and_rename_of_what_is_stored_leave_nothing_older_in_the_spool(void **state)
{
	nothing_older_is_left(by_fsync);
	nothing_older_is_left(by_rename);
	nothing_older_is_left(by_fsync_of_a_directory);
}

struct cutting {
	struct client *client;
	uint64_t inode;
	int result;
};

static void *cut_run(void *context)
{
	struct client_setattr nothing = { .valid = SET_SIZE };
	struct cutting *c = context;
	struct entry e;

	c->result = client_setattr(c->client, c->inode, &nothing, &e);
	return NULL;
}

static bool is_recalled(struct inode *i)
{
	bool recalling;

	pthread_mutex_lock(&i->lock);
	recalling = i->recalling;
	pthread_mutex_unlock(&i->lock);
	return recalling;
}

static void what_is_synced_while_it_is_recalled_is_not_cut_off_by_others(void **state)
{
	struct cutting c = { 0 };
	struct apart p;
	pthread_t thread;

	apart_up(&p);
	pthread_mutex_lock(&p.far->uploader.gather); /* nothing is uploaded */
	put(p.a, "later");
	c.client = p.near;
	c.inode = p.inode;
	assert_int_equal(pthread_create(&thread, NULL, cut_run, &c), 0);
	AWAIT(is_recalled(p.i));
	assert_int_equal(client_fsync(p.a), 0);
	relay_silence(&p.relay, true);
	pthread_join(thread, NULL);
	assert_int_equal(c.result, -EIO);
	relay_silence(&p.relay, false);
	pthread_mutex_unlock(&p.far->uploader.gather);
	assert_int_equal(writeback_settle(p.i), 0);
	expect(p.b, "later");
	apart_down(&p);
}

static bool is_claimed(struct inode *i)
{
	bool claimed;

	pthread_mutex_lock(&i->lock);
	claimed = !i->claim;
	pthread_mutex_unlock(&i->lock);
	return claimed;
}

/* As if a commit had been done, and its answer had not come. */
static void what_is_marked_is_not_lost_when_its_version_is_another(void **state)
{
	struct apart p;

	apart_up(&p);
	pthread_mutex_lock(&p.far->uploader.gather); /* nothing is uploaded */
	put(p.a, "later");
	assert_int_equal(client_fsync(p.a), 0);
	pthread_mutex_lock(&p.i->lock);
	p.i->attr.version--;
	pthread_mutex_unlock(&p.i->lock);
	holdings_lost(p.far);
	AWAIT(is_claimed(p.i));
	pthread_mutex_unlock(&p.far->uploader.gather);
	assert_int_equal(client_fsync(p.a), 0);
	expect(p.b, "later");
	apart_down(&p);
}

static void drop(struct apart *p)
{
	Wire__MarksDropRequest request = WIRE__MARKS_DROP_REQUEST__INIT;

	request.writeback = (ProtobufCBinaryData){ .len = SPOOL_ID, .data = p->far->writeback.id };
	relay_silence(&p->relay, true);
	AWAIT(administrate(&p->w, WIRE__OP__MARKS_DROP, &request.base) == 0); /* until then its mount is there */
}

static bool is_marked(struct inode *i)
{
	int r;

	pthread_mutex_lock(&i->lock);
	r = writeback_is_marked(i);
	pthread_mutex_unlock(&i->lock);
	assert_true(r >= 0);
	return r;
}

static void a_mount_whose_marks_were_given_up_marks_its_files_anew(void **state)
{
	struct apart p;

	apart_up(&p);
	pthread_mutex_lock(&p.far->uploader.gather); /* nothing is uploaded */
	put(p.a, "later");
	assert_int_equal(client_fsync(p.a), 0);
	assert_true(is_marked(p.i));
	drop(&p);
	relay_silence(&p.relay, false);
	AWAIT(is_marked(p.i));
	pthread_mutex_unlock(&p.far->uploader.gather);
	expect(p.b, "later");
	apart_down(&p);
}

static bool has_unstored(struct inode *i)
{
	bool has;

	pthread_mutex_lock(&i->lock);
	has = inode_has_unstored(i);
	pthread_mutex_unlock(&i->lock);
	return has;
}

static void what_was_given_up_does_not_come_back_over_what_others_wrote(void **state)
{
	struct apart p;

	apart_up(&p);
	pthread_mutex_lock(&p.far->uploader.gather);
	put(p.a, "later");
	assert_int_equal(client_fsync(p.a), 0);
	drop(&p);
	put(p.b, "other");
	assert_int_equal(client_fsync(p.b), 0);
	relay_silence(&p.relay, false);
	AWAIT(!has_unstored(p.i));
	pthread_mutex_unlock(&p.far->uploader.gather);
	assert_int_equal(client_fsync(p.a), -EIO);
	expect(p.b, "other");
	expect(p.a, "other");
	apart_down(&p);
}

static int64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

#define FIRST_DATA 128 /* after the spool's head and the record's */

static void damage(struct apart *p, off_t at, const char *bytes)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%016lx.%016lx", spool_folder_path(p->far->writeback.folder), (unsigned long)p->inode,
		 (unsigned long)spool_generation(p->i->spool));
	fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, strlen(bytes), at), strlen(bytes));
	close(fd);
}

static void damaged_down(struct apart *p)
{
	client_release(p->a);
	client_release(p->b);
	assert_int_equal(client_disconnect(p->far), -EIO);
	assert_int_equal(client_disconnect(p->near), 0);
	relay_down(&p->relay);
	world_down(&p->w);
}

/* Of what was synced first its beginning, its end, or both are still wanted. */
static void damage_of_what_is_left_of_a_record_is_found(void **state)
{
	static const struct {
		uint64_t newer, wrong; /* where */
	} cases[] = { { 0, 6 }, { 6, 2 }, { 3, 1 }, { 3, 7 } };

	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		struct apart p;

		apart_up(&p);
		put(p.a, "longer ago");
		assert_int_equal(client_fsync(p.a), 0);
		put_at(p.a, cases[k].newer, "new");
		assert_int_equal(client_fsync(p.a), 0);
		damage(&p, FIRST_DATA + (off_t)cases[k].wrong, "!");
		assert_int_equal(inode_flush(p.i), -EIO);
		assert_true(p.i->damaged);
		damaged_down(&p);
	}
}

/* Also what of it is not damaged, as only all of it can be verified; other writes can be read. */
static void damage_is_not_read_where_it_was_written(void **state)
{
	static const char *const first = "of the first record", *const second = "of the second";
	struct client_read *r;
	struct apart p;

	for (int noticed = 0; noticed < 2; noticed++) {
		apart_up(&p);
		put(p.a, first);
		assert_int_equal(client_fsync(p.a), 0);
		put_at(p.a, strlen(first), second);
		assert_int_equal(client_fsync(p.a), 0);
		if (noticed) { /* by the upload, though what is read here was verified before */
			assert_int_equal(client_read(p.a, 0, 3, &r), 0);
			client_read_release(r);
		}
		damage(&p, FIRST_DATA + 5, "!");
		if (noticed) {
			assert_int_equal(inode_flush(p.i), -EIO);
			assert_true(p.i->damaged);
		}
		assert_int_equal(client_read(p.a, 0, strlen(first), &r), -EIO);
		assert_int_equal(client_read(p.a, 0, 3, &r), -EIO);
		assert_int_equal(client_read(p.a, strlen(first), strlen(second), &r), 0);
		client_read_release(r);
		inode_flush(p.i);
		damaged_down(&p);
	}
}

/* As all of it is read for that, it would be once for each part else. */
static void a_record_is_verified_once_for_all_parts_that_are_left_of_it(void **state)
{
	struct client_read *r;
	struct apart p;

	apart_up(&p);
	put(p.a, "longer ago");
	assert_int_equal(client_fsync(p.a), 0);
	put_at(p.a, 3, "new");
	assert_int_equal(client_fsync(p.a), 0);
	assert_int_equal(client_read(p.a, 0, 1, &r), 0);
	client_read_release(r);
	pthread_mutex_lock(&p.i->lock);
	assert_int_equal(p.i->dirty.count, 3);
	assert_true(p.i->dirty.at[0]->verified && p.i->dirty.at[2]->verified);
	assert_false(p.i->dirty.at[1]->verified);
	pthread_mutex_unlock(&p.i->lock);
	apart_down(&p);
}

static void what_is_left_of_a_record_is_uploaded(void **state)
{
	struct apart p;

	apart_up(&p);
	put(p.a, "longer ago");
	assert_int_equal(client_fsync(p.a), 0);
	put_at(p.a, 3, "new");
	assert_int_equal(client_fsync(p.a), 0);
	assert_int_equal(inode_flush(p.i), 0);
	expect(p.b, "lonnew ago");
	apart_down(&p);
}

/* As a mount that adopts what an earlier one left may find. */
static void a_file_that_was_deleted_meanwhile_is_nobodys_error(void **state)
{
	struct inode *i;
	struct apart p;

	apart_up(&p);
	for (uint32_t opens = 0; opens < 2; opens++) {
		i = inode_get_or_add(p.far, 123456789);
		assert_non_null(i);
		pthread_mutex_lock(&i->lock);
		i->claim = true;
		i->claim_version = CLAIM_ANY;
		i->opens = opens;
		pthread_mutex_unlock(&i->lock);
		assert_int_equal(inode_claim(i), 0);
		assert_int_equal(i->error, opens ? -EIO : 0);
		i->opens = 0;
		inode_unref(i);
	}
	apart_down(&p);
}

static void paced_set(struct apart *p, int64_t ns)
{
	LOCKED(&p->far->uploader.lock);
	p->far->uploader.paced_ns = ns;
}

/* Something newer stands in the middle of it, so that it comes back in two. */
static void what_was_synced_outlives_a_failed_upload_without_memory(void **state)
{
	struct payload payload = { 0 };
	struct job *job = NULL;
	struct apart p;

	apart_up(&p);
	pthread_mutex_lock(&p.far->uploader.gather);
	put(p.a, "longer ago");
	assert_int_equal(client_fsync(p.a), 0);
	paced_set(&p, 0);
	AWAIT((job_gather(p.far, &job), job));
	put_at(p.a, 3, "new");
	memory_short(0, 8);
	job_run(p.far, job, &payload);
	assert_true(memory_plenty());
	payload_free(&payload);
	expect(p.a, "lonnew ago");
	pthread_mutex_unlock(&p.far->uploader.gather);
	assert_int_equal(writeback_settle(p.i), 0);
	expect(p.b, "lonnew ago");
	apart_down(&p);
}

/* Longer than the second after which it would be tried again. */
static void nobody_is_busy_with_what_is_damaged(void **state)
{
	struct apart p;
	int64_t used, until;

	apart_up(&p);
	put(p.a, "later");
	assert_int_equal(client_fsync(p.a), 0);
	damage(&p, FIRST_DATA, "wrong");
	assert_int_equal(inode_flush(p.i), -EIO);
	until = monotonic_ns() + 1500 * NS_PER_MS;
	AWAIT(monotonic_ns() > until);
	used = cpu_ns();
	until = monotonic_ns() + 500 * NS_PER_MS;
	AWAIT(monotonic_ns() > until);
	assert_true(cpu_ns() - used < 250 * NS_PER_MS);
	damaged_down(&p);
}

/* At one byte a second. */
static void uploads_that_were_waited_for_do_not_hold_up_the_others(void **state)
{
	char data[4096] = "";
	int64_t paced_ns = monotonic_ns() + 1000 * NS_PER_S;
	struct apart p;

	apart_up(&p);
	paced_set(&p, paced_ns);
	assert_int_equal(client_write(p.a, 0, data, sizeof(data), 0), sizeof(data));
	assert_int_equal(client_fsync(p.a), 0);
	assert_int_equal(writeback_settle(p.i), 0);
	pthread_mutex_lock(&p.far->uploader.lock);
	assert_int_equal(p.far->uploader.paced_ns, paced_ns);
	pthread_mutex_unlock(&p.far->uploader.lock);
	apart_down(&p);
}

/* Without write-back, too. */
static void the_oldest_is_uploaded_first(void **state)
{
	static char block[BLOCK];
	struct payload payload = { 0 };
	struct job *job = NULL;
	struct apart p;

	apart_up(&p);
	pthread_mutex_lock(&p.near->uploader.gather);
	assert_int_equal(client_write(p.b, BLOCK, block, BLOCK, 0), BLOCK);
	assert_int_equal(client_write(p.b, 0, block, BLOCK, 0), BLOCK);
	job_gather(p.near, &job);
	assert_non_null(job);
	pthread_mutex_lock(&p.b->inode->lock);
	assert_int_equal(p.b->inode->storing.count, 1);
	assert_int_equal(p.b->inode->storing.at[0]->offset, BLOCK);
	pthread_mutex_unlock(&p.b->inode->lock);
	pthread_mutex_unlock(&p.near->uploader.gather);
	job_run(p.near, job, &payload);
	payload_free(&payload);
	assert_int_equal(client_fsync(p.b), 0);
	apart_down(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fsync_does_not_return_without_a_mark),
		cmocka_unit_test(fsync_and_rename_of_what_is_stored_leave_nothing_older_in_the_spool),
		cmocka_unit_test(what_is_synced_while_it_is_recalled_is_not_cut_off_by_others),
		cmocka_unit_test(what_is_marked_is_not_lost_when_its_version_is_another),
		cmocka_unit_test(a_mount_whose_marks_were_given_up_marks_its_files_anew),
		cmocka_unit_test(what_was_given_up_does_not_come_back_over_what_others_wrote),
		cmocka_unit_test(damage_of_what_is_left_of_a_record_is_found),
		cmocka_unit_test(damage_is_not_read_where_it_was_written),
		cmocka_unit_test(a_record_is_verified_once_for_all_parts_that_are_left_of_it),
		cmocka_unit_test(a_file_that_was_deleted_meanwhile_is_nobodys_error),
		cmocka_unit_test(what_is_left_of_a_record_is_uploaded),
		cmocka_unit_test(what_was_synced_outlives_a_failed_upload_without_memory),
		cmocka_unit_test(nobody_is_busy_with_what_is_damaged),
		cmocka_unit_test(uploads_that_were_waited_for_do_not_hold_up_the_others),
		cmocka_unit_test(the_oldest_is_uploaded_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
