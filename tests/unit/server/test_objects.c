/* The gateway, and what fsck, gc and scrub make of the store. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "block/object.h"
#include "fixture.h"

#define FILE_MODE (S_IFREG | 0644)

static uint8_t *noise(size_t n, unsigned seed)
{
	uint8_t *p = malloc(n);

	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
	return p;
}

/* An object of `payload` noisy bytes, footer included. */
static uint8_t *object_of(uint64_t id, size_t payload, unsigned seed)
{
	uint8_t *p = realloc(noise(payload, seed), payload + OBJECT_FOOTER);

	object_footer_make(id, payload, p + payload);
	return p;
}

static void an_object_comes_back_in_any_part(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	size_t size = (4 << 20) + OBJECT_FOOTER;
	uint8_t *got = malloc(size), *object;
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 4, &id), 0);
	object = object_of(id + 3, 4 << 20, 1);
	assert_int_equal(object_put(f, r, id + 3, object, size), 0);
	assert_int_equal(object_get(f, r, id + 3, 0, got, (uint32_t)size), 0);
	assert_memory_equal(got, object, size);
	assert_int_equal(object_get(f, r, id + 3, 70001, got, 4097), 0);
	assert_memory_equal(got, object + 70001, 4097);
	assert_int_equal(object_get(f, r, id + 3, (uint32_t)size - 1, got, 1), 0);
	assert_int_equal(object_get(f, r, id + 3, (uint32_t)size - 1, got, 2), -ERANGE);
	assert_int_equal(object_get(f, r, id + 3, 0xffffffff, got, 4096), -ERANGE);
	assert_int_equal(object_get(f, r, id, 0, got, 1), -ENOENT);
	free(object);
	free(got);
	rpc_close(r);
}

static int object_open(struct fixture *f, struct rpc *r, uint64_t object, int *fd)
{
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	struct rpc_call call = {
		.op = WIRE__OP__OBJECT_OPEN, .request = &q.base, .descriptor = fd, .why = f->why, .why_size = sizeof(f->why)
	};

	q.object = object;
	return rpc_call(r, &call, &f->arena);
}

static int whole_get(struct fixture *f, struct rpc *r, uint64_t object, void *into, uint32_t most, size_t *length)
{
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	struct iovec part = { into, most };
	struct rpc_call call = {
		.op = WIRE__OP__OBJECT_GET, .request = &q.base, .bulk_in = &part, .bulk_in_count = 1, .bulk_in_length = length
	};

	q.object = object;
	q.length = most;
	q.whole = true;
	return rpc_call(r, &call, &f->arena);
}

static void an_object_can_be_had_as_a_whole_by_who_does_not_know_its_length(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	size_t size = 3000 + OBJECT_FOOTER, length = 0;
	uint8_t got[4000], *object;
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 2, &id), 0);
	object = object_of(id, 3000, 1);
	assert_int_equal(object_put(f, r, id, object, size), 0);
	assert_int_equal(whole_get(f, r, id, got, sizeof(got), &length), 0);
	assert_int_equal(length, size);
	assert_memory_equal(got, object, size);
	free(object);
	assert_int_equal(whole_get(f, r, id, got, (uint32_t)length, &length), 0);
	assert_int_equal(whole_get(f, r, id, got, (uint32_t)length - 1, &length), -EFBIG);
	assert_int_equal(whole_get(f, r, id + 1, got, sizeof(got), &length), -ENOENT);
	assert_int_equal(whole_get(f, r, id, got, sizeof(got), &length), 0);
	rpc_close(r);
}

static void a_mount_on_this_host_gets_the_file_to_read_and_nothing_more(void **state)
{
	struct fixture *f = *state, over_tcp;
	struct rpc *r, *far;
	uint8_t *object, got[1000];
	int fd = -1, other = -1;
	uint64_t id = 0;

	fixture_stop(f);
	f->options.listen = "127.0.0.1:0";
	fixture_start(f);
	over_tcp = *f;
	snprintf(over_tcp.address, sizeof(over_tcp.address), "%s", server_tcp_address(f->server));
	r = fixture_mount(f, "training", false);
	far = fixture_mount(&over_tcp, "training", false);
	assert_int_equal(alloc(f, r, 2, &id), 0);
	object = object_of(id, 5000, 1);
	assert_int_equal(object_put(f, r, id, object, 5032), 0);
	assert_int_equal(object_open(f, r, id, &fd), 0);
	assert_int_equal(object_open(f, r, id, &other), 0);
	assert_int_equal(pread(fd, got, sizeof(got), 4032), 1000);
	assert_memory_equal(got, object + 4032, 1000);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(write(fd, "x", 1), -1);
	/* Each its own: what one does to it does not show in the other. */
	assert_int_equal(lseek(fd, 100, SEEK_SET), 100);
	assert_int_equal(lseek(other, 0, SEEK_CUR), 0);
	close(fd);
	close(other);
	assert_int_equal(object_open(f, r, id + 1, &fd), -ENOENT);
	assert_int_equal(object_open(f, far, id, &fd), -EOPNOTSUPP);
	assert_int_equal(object_get(f, far, id, 4032, got, 1000), 0);
	assert_memory_equal(got, object + 4032, 1000);
	free(object);
	rpc_close(r);
	rpc_close(far);
}

/* The first `shown` bytes are in memory, in two parts that lie the other way round there, and the rest is sent. */
static int object_show(struct fixture *f, struct rpc *r, uint64_t object, const uint8_t *bytes, size_t size, size_t shown, int fd)
{
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	Wire__MemoryPart first = WIRE__MEMORY_PART__INIT, second = WIRE__MEMORY_PART__INIT, *parts[] = { &first, &second };
	struct iovec rest = { (void *)(bytes + shown), size - shown };
	struct rpc_call call = { .op = WIRE__OP__OBJECT_PUT,
				 .request = &q.base,
				 .bulk_out = &rest,
				 .bulk_out_count = 1,
				 .descriptor_out = fd >= 0 ? &fd : NULL,
				 .why = f->why,
				 .why_size = sizeof(f->why) };

	first.length = (uint32_t)(shown / 3);
	second.length = (uint32_t)(shown - shown / 3);
	first.offset = 8192 + second.length;
	second.offset = 4096;
	q.object = object;
	q.n_memory = 2;
	q.memory = parts;
	return rpc_call(r, &call, &f->arena);
}

static int memory_with(const uint8_t *bytes, size_t shown)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t first = shown / 3;

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, first, (off_t)(8192 + shown - first)), first);
	assert_int_equal(pwrite(fd, bytes + first, shown - first, 4096), shown - first);
	return fd;
}

static void an_object_can_be_left_in_memory_that_the_server_is_shown(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	size_t size = (4 << 20) + OBJECT_FOOTER, shown = 4 << 20;
	uint8_t *got = malloc(size), *object;
	uint64_t id = 0;
	int fd;

	assert_int_equal(alloc(f, r, 4, &id), 0);
	object = object_of(id, 4 << 20, 1);
	fd = memory_with(object, shown);
	assert_int_equal(object_show(f, r, id, object, size, shown, fd), 0);
	assert_int_equal(object_get(f, r, id, 0, got, (uint32_t)size), 0);
	assert_memory_equal(got, object, size);
	/* Repeated it is fine, by either way, and not with other bytes. */
	assert_int_equal(object_show(f, r, id, object, size, shown, fd), 0);
	assert_int_equal(object_put(f, r, id, object, size), 0);
	assert_int_equal(pwrite(fd, "other", 5, 5000), 5);
	assert_int_not_equal(object_show(f, r, id, object, size, shown, fd), 0);
	assert_int_equal(object_get(f, r, id, 0, got, (uint32_t)size), 0);
	assert_memory_equal(got, object, size);
	close(fd);
	free(object);
	free(got);
	rpc_close(r);
}

/* So many equal parts, and a footer's worth of bytes after them. */
static int parts_show(struct fixture *f, struct rpc *r, uint64_t object, size_t count, uint64_t offset, uint32_t length, int fd)
{
	Wire__ObjectRequest q = WIRE__OBJECT_REQUEST__INIT;
	Wire__MemoryPart part = WIRE__MEMORY_PART__INIT, *parts[1025];
	uint8_t footer[OBJECT_FOOTER] = { 0 };
	struct iovec rest = { footer, sizeof(footer) };
	struct rpc_call call = {
		.op = WIRE__OP__OBJECT_PUT, .request = &q.base, .bulk_out = &rest, .bulk_out_count = 1, .descriptor_out = &fd
	};

	part.offset = offset;
	part.length = length;
	for (size_t k = 0; k < count; k++)
		parts[k] = &part;
	q.object = object;
	q.n_memory = count;
	q.memory = parts;
	return rpc_call(r, &call, &f->arena);
}

static void what_is_shown_must_be_memory_and_hold_what_is_said(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	size_t size = (1 << 20) + OBJECT_FOOTER, shown = 1 << 20;
	uint8_t *object, *got = malloc(size);
	uint64_t id = 0;
	int pipes[2], whole, cut, folder = open(f->folder, O_RDONLY | O_DIRECTORY);

	assert_int_equal(alloc(f, r, 4, &id), 0);
	object = object_of(id, 1 << 20, 1);
	whole = memory_with(object, shown);
	cut = memory_with(object, shown);
	assert_int_equal(ftruncate(cut, 10000), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(object_show(f, r, id, object, size, shown, -1), -EOPNOTSUPP);
	assert_int_equal(object_show(f, r, id, object, size, shown, pipes[0]), -EOPNOTSUPP); /* nobody ever writes to it */
	assert_int_equal(object_show(f, r, id, object, size, shown, folder), -EOPNOTSUPP);
	assert_int_equal(object_show(f, r, id, object, size, shown, cut), -EOPNOTSUPP);
	assert_int_equal(object_show(f, r, id, object, size - 1, shown, whole), -EBADMSG); /* no footer */
	assert_int_equal(parts_show(f, r, id, 1025, 0, 1, whole), -EOPNOTSUPP);
	assert_int_equal(parts_show(f, r, id, 1, UINT64_MAX - 10, 100, whole), -EOPNOTSUPP);
	assert_int_equal(parts_show(f, r, id, 64, 0, UINT32_MAX, whole), -EINVAL);
	assert_int_equal(object_get(f, r, id, 0, got, 1), -ENOENT);
	assert_int_equal(object_show(f, r, id, object, size, shown, whole), 0);
	close(folder);
	close(pipes[0]);
	close(pipes[1]);
	close(whole);
	close(cut);
	free(object);
	free(got);
	rpc_close(r);
}

static void a_put_is_checked_before_it_is_stored(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false), *other = fixture_mount(f, "training", false);
	uint8_t *object;
	char path[200];
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 1, &id), 0);
	object = object_of(id, 100, 1);
	assert_int_equal(object_put(f, other, id, object, 132), -ESTALE);
	assert_non_null(strstr(f->why, "not in a range of this session"));
	assert_int_equal(object_put(f, r, id + 1, object, 132), -ESTALE);
	assert_int_equal(object_put(f, r, id, object, 131), -EBADMSG);
	assert_non_null(strstr(f->why, "its footer is wrong"));
	assert_int_equal(object_put(f, r, id, object, OBJECT_FOOTER), -EINVAL);
	assert_int_equal(object_put(f, r, id, object, 0), -EINVAL);
	assert_false(exists(object_path(f, id, path, sizeof(path))));
	assert_int_equal(object_put(f, r, id, object, 132), 0);
	assert_true(exists(path));
	free(object);
	rpc_close(r);
	rpc_close(other);
}

static void a_put_repeated_is_fine_but_not_with_other_bytes(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	uint8_t *object, *longer, *other;
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 1, &id), 0);
	object = object_of(id, 100, 1);
	longer = object_of(id, 101, 1);
	other = object_of(id, 100, 1 << 20);
	assert_int_equal(object_put(f, r, id, object, 132), 0);
	assert_int_equal(object_put(f, r, id, object, 132), 0);
	assert_int_equal(object_put(f, r, id, longer, 133), -ESTALE);
	assert_int_equal(object_put(f, r, id, other, 132), -ESTALE);
	free(object);
	free(longer);
	free(other);
	rpc_close(r);
}

struct hammer {
	struct fixture *f;
	uint64_t first;
	unsigned seed;
	int failures;
	pthread_t thread;
};

static void *hammer_run(void *context)
{
	struct hammer *h = context;
	struct fixture own = *h->f;
	struct rpc *r;
	uint64_t id = 0;

	arena_init(&own.arena, 0);
	r = fixture_mount(&own, "training", false);
	h->failures += !r || alloc(&own, r, 400, &id);
	for (int i = 0; i < 400 && !h->failures; i++) {
		size_t payload = 1 + (size_t)(i * 7919 % 60000);
		uint8_t *object = object_of(id + (uint64_t)i, payload, h->seed), *got = malloc(payload);

		h->failures += object_put(&own, r, id + (uint64_t)i, object, payload + OBJECT_FOOTER) != 0;
		h->failures += object_get(&own, r, id + (uint64_t)(i / 2), 0, got, 1) != 0;
		h->failures += object_get(&own, r, id + (uint64_t)i, 0, got, (uint32_t)payload) != 0 ||
			       memcmp(got, object, payload) != 0;
		free(object);
		free(got);
	}
	rpc_close(r);
	arena_free(&own.arena);
	return NULL;
}

static void more_objects_than_descriptors_are_read_by_many_at_once(void **state)
{
	struct fixture *f = *state;
	struct hammer h[4] = { 0 };

	for (unsigned i = 0; i < 4; i++) {
		h[i] = (struct hammer){ .f = f, .seed = i };
		assert_int_equal(pthread_create(&h[i].thread, NULL, hammer_run, &h[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(h[i].thread, NULL);
		assert_int_equal(h[i].failures, 0);
	}
}

static void a_freed_object_is_deleted_after_the_grace(void **state)
{
	struct fixture *f = *state;
	struct rpc *r;
	struct extent e;
	struct attr a;
	char path[200], got[5];

	fixture_stop(f);
	f->options.grace_s = 3600;
	fixture_start(f);
	r = fixture_mount(f, "training", false);
	assert_int_equal(create(f, r, 1, "file", FILE_MODE, false, &a), 0);
	assert_int_equal(write_file(f, r, a.inode, 0, "hello", 5, &e), 0);
	object_path(f, e.object, path, sizeof(path));
	assert_true(exists(path));
	assert_int_equal(object_get(f, r, e.object, 0, got, 5), 0); /* a descriptor of it is open now */
	assert_int_equal(unlink_name(f, r, 1, "file"), 0);
	AWAIT(getattr(f, r, a.inode, NULL) == -ENOENT);
	assert_int_equal(object_get(f, r, e.object, 0, got, 5), 0); /* somebody may still be reading */
	assert_true(exists(path));
	f->clock_ahead_ns = 3601 * NS_PER_S;
	AWAIT(!exists(path));
	AWAIT(status(f)->objects == 0);
	assert_int_equal(object_get(f, r, e.object, 0, got, 5), -ENOENT);
	rpc_close(r);
}

/* ---- fsck and scrub ---- */

static void flip_a_bit(const char *path, off_t at)
{
	int fd;
	uint8_t byte;

	chmod(path, 0600);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void damage_is_found_and_the_file_named(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	uint8_t *bytes = noise(300000, 3);
	char path[200], object[OBJECT_KEY_TEXT + 10], key[OBJECT_KEY_TEXT];
	Wire__JobReply *reply;
	struct attr dir, good, bad;
	struct extent e;

	assert_int_equal(create(f, r, 1, "sets", S_IFDIR | 0755, false, &dir), 0);
	assert_int_equal(create(f, r, dir.inode, "good", FILE_MODE, false, &good), 0);
	assert_int_equal(create(f, r, dir.inode, "bad", FILE_MODE, false, &bad), 0);
	assert_int_equal(write_file(f, r, good.inode, 0, bytes, 300000, NULL), 0);
	assert_int_equal(write_file(f, r, bad.inode, 0, bytes, 300000, &e), 0);
	reply = job(f, "fsck", false, false);
	assert_int_equal(reply->status, 0);
	assert_int_equal(reply->n_findings, 0);
	assert_int_equal(job_counted(reply, "objects_read"), 2);
	assert_int_equal(job(f, "scrub", false, false)->n_findings, 0);

	flip_a_bit(object_path(f, e.object, path, sizeof(path)), 200000);
	snprintf(object, sizeof(object), "object %s ", object_key(key, e.object));
	reply = job(f, "scrub", false, false);
	assert_int_equal(reply->status, 0);
	assert_int_equal(reply->n_findings, 1);
	assert_non_null(strstr(reply->findings[0], object));
	assert_non_null(strstr(reply->findings[0], "/sets/bad "));
	assert_non_null(strstr(reply->findings[0], "wrong checksum"));
	assert_int_equal(job_counted(reply, "damaged_objects"), 1);
	assert_int_equal(job(f, "fsck", false, false)->n_findings, 1);
	assert_int_equal(job(f, "fsck", false, true)->n_findings, 0); /* quick does not read */

	truncate(path, 1000);
	assert_non_null(strstr(job(f, "fsck", false, true)->findings[0], "has the wrong size"));
	unlink(path);
	reply = job(f, "fsck", false, true);
	assert_non_null(strstr(reply->findings[0], "is missing"));
	assert_int_equal(job_counted(reply, "missing_objects"), 1);
	free(bytes);
	rpc_close(r);
}

/* Its descriptor is open and its size known; the answer breaks off in the middle, once. */
static void an_object_cut_short_behind_our_back_is_told_soon(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	uint8_t *object, *got = malloc(100000);
	int64_t begin = clock_steady_ns();
	char path[200];
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 1, &id), 0);
	object = object_of(id, 100000, 1);
	assert_int_equal(object_put(f, r, id, object, 100032), 0);
	assert_int_equal(object_get(f, r, id, 0, got, 100000), 0);
	object_path(f, id, path, sizeof(path));
	chmod(path, 0600);
	assert_int_equal(truncate(path, 50000), 0);
	assert_int_equal(object_get(f, r, id, 0, got, 100000), -ERANGE);
	assert_true(clock_steady_ns() - begin < 15 * NS_PER_S);
	assert_int_equal(object_get(f, r, id, 0, got, 50000), 0);
	assert_memory_equal(got, object, 50000);
	free(object);
	free(got);
	rpc_close(r);
}

static void one_job_of_a_kind_runs_at_a_time_and_others_are_told(void **state)
{
	struct fixture *f = *state;
	Wire__JobStartRequest start = WIRE__JOB_START_REQUEST__INIT;
	Wire__JobPollRequest poll = WIRE__JOB_POLL_REQUEST__INIT;

	start.kind = "defrag";
	assert_int_equal(ask(f, f->admin, WIRE__OP__JOB_START, &start, NULL), -EINVAL);
	assert_string_equal(f->why, "there is no job defrag; there are fsck, gc and scrub");
	start.kind = "fsck";
	start.volume = "nonesuch";
	assert_int_equal(ask(f, f->admin, WIRE__OP__JOB_START, &start, NULL), -ENOENT);
	poll.job = 4711;
	assert_int_equal(ask(f, f->admin, WIRE__OP__JOB_POLL, &poll, NULL), -ENOENT);
	assert_int_equal(ask(f, f->admin, WIRE__OP__JOB_CANCEL, &poll, NULL), -ENOENT);
	for (int i = 0; i < 40; i++) /* more than are kept */
		assert_int_equal(job(f, i % 2 ? "fsck" : "gc", false, true)->status, 0);
}

/* ---- gc ---- */

static void orphans_are_freed_once_their_session_is_gone(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	Wire__JobReply *reply;
	uint8_t *object;
	char path[200];
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 1, &id), 0);
	object = object_of(id, 1000, 1);
	assert_int_equal(object_put(f, r, id, object, 1032), 0);
	object_path(f, id, path, sizeof(path));
	/* It may still be committed. */
	assert_int_equal(job_counted(job(f, "gc", false, false), "orphans"), 0);
	assert_true(exists(path));
	assert_int_equal(ask(f, r, WIRE__OP__GOODBYE, NULL, NULL), 0);
	assert_int_equal(job_counted(job(f, "fsck", false, false), "orphans"), 1);
	assert_true(exists(path));
	reply = job(f, "gc", false, false);
	assert_int_equal(job_counted(reply, "orphans"), 1);
	assert_int_equal(job_counted(reply, "freed_objects"), 1);
	assert_int_equal(job_counted(reply, "freed_bytes"), 1032);
	assert_false(exists(path));
	assert_int_equal(status(f)->objects, 0);
	reply = job(f, "fsck", false, false);
	assert_int_equal(reply->n_findings, 0);
	assert_int_equal(job_counted(reply, "orphans"), 0);
	free(object);
	rpc_close(r);
}

/* Two thirds of an object are overwritten; what is left is moved to a new one, and reads the same. */
static void sparse_objects_are_rewritten_while_in_use(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	uint8_t *bytes = noise(300000, 5), *got = malloc(300000);
	struct extent old, now;
	Wire__JobReply *reply;
	struct attr a;
	char path[200];

	assert_int_equal(create(f, r, 1, "file", FILE_MODE, false, &a), 0);
	assert_int_equal(write_file(f, r, a.inode, 0, bytes, 300000, &old), 0);
	assert_int_equal(write_file(f, r, a.inode, 100000, bytes, 200000, NULL), 0);
	assert_int_equal(first_extent(f, r, a.inode, &now), 0);
	assert_int_equal(now.object, old.object);
	reply = job(f, "gc", false, false);
	assert_int_equal(reply->status, 0);
	assert_int_equal(job_counted(reply, "rewritten_objects"), 1);
	assert_int_equal(job_counted(reply, "new_packs"), 1);
	assert_int_equal(first_extent(f, r, a.inode, &now), 0);
	assert_int_not_equal(now.object, old.object);
	assert_int_equal(now.length, 100000);
	assert_int_equal(object_get(f, r, now.object, now.object_offset + now.skip, got, now.length), 0);
	assert_memory_equal(got, bytes, 100000);
	AWAIT(!exists(object_path(f, old.object, path, sizeof(path))));
	reply = job(f, "fsck", false, false);
	assert_int_equal(reply->status, 0);
	assert_int_equal(reply->n_findings, 0);
	assert_int_equal(job_counted(reply, "orphans"), 0);
	/* Nothing is left to do. */
	assert_int_equal(job_counted(job(f, "gc", false, false), "rewritten_objects"), 0);
	free(bytes);
	free(got);
	rpc_close(r);
}

#define PACKED 10
#define PACKED_BYTES 3000u

/* Ten small files in one object, compressed. */
static uint64_t write_pack(struct fixture *f, struct rpc *r, struct attr files[PACKED])
{
	Wire__CommitRequest q = WIRE__COMMIT_REQUEST__INIT;
	Wire__NewObject object = WIRE__NEW_OBJECT__INIT, *objects[1] = { &object };
	Wire__FileCommit commits[PACKED], *pointers[PACKED];
	struct buf bytes = { 0 }, extents[PACKED] = { 0 };
	uint8_t footer[OBJECT_FOOTER], raw[PACKED_BYTES];
	uint64_t id = 0;

	assert_int_equal(alloc(f, r, 1, &id), 0);
	for (int i = 0; i < PACKED; i++) {
		struct extent e = { 0 };

		memset(raw, 'a' + i, sizeof(raw));
		assert_int_equal(create(f, r, 1, (char[]){ 'p', (char)('0' + i), 0 }, FILE_MODE, false, &files[i]), 0);
		assert_int_equal(extent_encode(raw, sizeof(raw), CODEC_LZ4, 0, &bytes, &e), 0);
		e.object = id;
		extent_pack(&extents[i], &e);
		wire__file_commit__init(&commits[i]);
		commits[i].inode = files[i].inode;
		commits[i].size = sizeof(raw);
		commits[i].extents = (ProtobufCBinaryData){ extents[i].len, extents[i].data };
		pointers[i] = &commits[i];
	}
	object_footer_make(id, bytes.len, footer);
	buf_append(&bytes, footer, sizeof(footer));
	assert_int_equal(object_put(f, r, id, bytes.data, bytes.len), 0);
	object.object = id;
	object.size = (uint32_t)bytes.len;
	object.raw_bytes = PACKED * PACKED_BYTES;
	q.objects = objects;
	q.n_objects = 1;
	q.files = pointers;
	q.n_files = PACKED;
	assert_int_equal(ask(f, r, WIRE__OP__COMMIT, &q, NULL), 0);
	buf_free(&bytes);
	for (int i = 0; i < PACKED; i++)
		buf_free(&extents[i]);
	return id;
}

static void reads_as(struct fixture *f, struct rpc *r, uint64_t inode, char c, uint32_t length)
{
	uint8_t stored[PACKED_BYTES], raw[PACKED_BYTES];
	struct extent e;

	assert_int_equal(first_extent(f, r, inode, &e), 0);
	assert_int_equal(e.length, length);
	assert_int_equal(object_get(f, r, e.object, e.object_offset, stored, e.stored_length), 0);
	assert_int_equal(extent_decode(&e, stored, raw), 0);
	for (uint32_t i = 0; i < e.length; i++)
		assert_int_equal(raw[e.skip + i], c);
}

static void a_pack_of_mostly_deleted_files_is_rewritten_with_its_clones(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	Wire__CloneRequest clone = WIRE__CLONE_REQUEST__INIT;
	Wire__JobReply *reply;
	struct attr files[PACKED], copy;
	struct extent a, b;
	char path[200];
	uint64_t old = write_pack(f, r, files);

	/* A clone of all of file 3, then file 3 is cut in half. */
	assert_int_equal(create(f, r, 1, "copy", FILE_MODE, false, &copy), 0);
	clone.source = files[3].inode;
	clone.target = copy.inode;
	clone.length = PACKED_BYTES;
	assert_int_equal(ask(f, r, WIRE__OP__CLONE, &clone, NULL), 0);
	Wire__SetattrRequest cut = WIRE__SETATTR_REQUEST__INIT;
	cut.inode = files[3].inode;
	cut.valid = SET_SIZE;
	cut.size = PACKED_BYTES / 2;
	assert_int_equal(ask(f, r, WIRE__OP__SETATTR, &cut, NULL), 0);
	for (int i = 0; i < PACKED; i++)
		if (i != 3 && i != 7)
			assert_int_equal(unlink_name(f, r, 1, (char[]){ 'p', (char)('0' + i), 0 }), 0);
	AWAIT(getattr(f, r, files[9].inode, NULL) == -ENOENT);
	reply = job(f, "gc", false, false);
	assert_int_equal(reply->status, 0);
	assert_int_equal(job_counted(reply, "rewritten_objects"), 1);
	reads_as(f, r, files[3].inode, 'd', PACKED_BYTES / 2);
	reads_as(f, r, files[7].inode, 'h', PACKED_BYTES);
	reads_as(f, r, copy.inode, 'd', PACKED_BYTES);
	assert_int_equal(first_extent(f, r, files[7].inode, &a), 0);
	assert_int_equal(first_extent(f, r, copy.inode, &b), 0);
	assert_int_not_equal(a.object, old);
	assert_int_equal(a.object, b.object);
	AWAIT(!exists(object_path(f, old, path, sizeof(path))));
	assert_int_equal(job(f, "fsck", false, false)->n_findings, 0);
	rpc_close(r);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(an_object_comes_back_in_any_part),
		WITH_SERVER(an_object_can_be_had_as_a_whole_by_who_does_not_know_its_length),
		WITH_SERVER(a_mount_on_this_host_gets_the_file_to_read_and_nothing_more),
		WITH_SERVER(an_object_can_be_left_in_memory_that_the_server_is_shown),
		WITH_SERVER(what_is_shown_must_be_memory_and_hold_what_is_said),
		WITH_SERVER(a_put_is_checked_before_it_is_stored),
		WITH_SERVER(a_put_repeated_is_fine_but_not_with_other_bytes),
		WITH_SERVER(more_objects_than_descriptors_are_read_by_many_at_once),
		WITH_SERVER(a_freed_object_is_deleted_after_the_grace),
		WITH_SERVER(damage_is_found_and_the_file_named),
		WITH_SERVER(an_object_cut_short_behind_our_back_is_told_soon),
		WITH_SERVER(a_pack_of_mostly_deleted_files_is_rewritten_with_its_clones),
		WITH_SERVER(one_job_of_a_kind_runs_at_a_time_and_others_are_told),
		WITH_SERVER(orphans_are_freed_once_their_session_is_gone),
		WITH_SERVER(sparse_objects_are_rewritten_while_in_use),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
