#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fixture.h"

#define MIB ((uint64_t)1 << 20)

static void set_limits(struct fixture *f, uint64_t max_bytes, uint64_t max_files)
{
	Wire__VolumeSetRequest q = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *fields[2] = { "max_bytes", "max_files" };

	v.name = "training";
	v.max_bytes = max_bytes;
	v.max_files = max_files;
	q.volume = &v;
	q.fields = fields;
	q.n_fields = 2;
	assert_int_equal(ask(f, f->admin, WIRE__OP__VOLUME_SET, &q, NULL), 0);
}

static int reserve(struct fixture *f, struct rpc *r, uint64_t bytes, uint64_t need, uint64_t *granted)
{
	Wire__ReserveRequest q = WIRE__RESERVE_REQUEST__INIT;
	Wire__ReserveReply *reply;
	int n;

	q.bytes = bytes;
	q.need = need;
	n = ask(f, r, WIRE__OP__RESERVE, &q, &reply);
	if (!n)
		*granted = reply->bytes;
	return n;
}

static void what_is_reserved_is_not_given_twice(void **state)
{
	struct fixture *f = *state;
	struct rpc *one = fixture_mount(f, "training", false), *two = fixture_mount(f, "training", false);
	uint64_t granted = 0;

	set_limits(f, 10 * MIB, 0);
	assert_int_equal(reserve(f, one, 6 * MIB, MIB, &granted), 0);
	assert_int_equal(granted, 6 * MIB);
	assert_int_equal(reserve(f, two, 6 * MIB, MIB, &granted), 0);
	assert_int_equal(granted, 4 * MIB);
	assert_int_equal(reserve(f, two, 6 * MIB, 5 * MIB, &granted), -EDQUOT);
	assert_non_null(strstr(f->why, "limit is reached"));
	/* Nothing has changed by that; and what is given back can be had. */
	assert_int_equal(reserve(f, one, 7 * MIB, 7 * MIB, &granted), -EDQUOT);
	assert_int_equal(reserve(f, one, 2 * MIB, 0, &granted), 0);
	assert_int_equal(granted, 2 * MIB);
	assert_int_equal(reserve(f, two, 8 * MIB, 8 * MIB, &granted), 0);
	assert_int_equal(granted, 8 * MIB);
	/* A session that ends leaves nothing reserved. */
	assert_int_equal(ask(f, two, WIRE__OP__GOODBYE, NULL, NULL), 0);
	assert_int_equal(reserve(f, one, 10 * MIB, 10 * MIB, &granted), 0);
	rpc_close(one);
	rpc_close(two);
}

static void more_than_the_store_has_is_enospc(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	uint64_t granted = 0;

	assert_int_equal(reserve(f, r, UINT64_MAX, UINT64_MAX, &granted), -ENOSPC);
	assert_int_equal(reserve(f, r, UINT64_MAX, MIB, &granted), 0);
	assert_true(granted >= MIB && granted < status(f)->store_free_bytes);
	rpc_close(r);
}

static void statfs_shows_the_limits(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	Wire__StatfsReply *s;
	struct attr a;
	static const uint8_t bytes[65536];

	assert_int_equal(ask(f, r, WIRE__OP__STATFS, NULL, &s), 0);
	/* Nothing is used of an empty volume, however full the disk is. */
	assert_int_equal(s->total_bytes, status(f)->store_total_bytes);
	assert_int_equal(s->used_bytes, 0);
	assert_true(s->free_bytes > 0 && s->free_bytes < s->total_bytes && s->free_files > 1000000);
	set_limits(f, 10 * MIB, 5);
	assert_int_equal(create(f, r, 1, "file", S_IFREG | 0644, false, &a), 0);
	assert_int_equal(write_file(f, r, a.inode, 0, bytes, sizeof(bytes), NULL), 0);
	assert_int_equal(ask(f, r, WIRE__OP__STATFS, NULL, &s), 0);
	assert_int_equal(s->total_bytes, 10 * MIB);
	assert_int_equal(s->free_bytes, 10 * MIB - sizeof(bytes));
	assert_int_equal(s->used_bytes, sizeof(bytes));
	assert_int_equal(s->total_files, 5);
	assert_int_equal(s->free_files, 4);
	assert_int_equal(s->block_size, 4096);
	for (int i = 0; i < 4; i++)
		assert_int_equal(create(f, r, 1, (char[]){ 'a', (char)('a' + i), 0 }, S_IFREG | 0644, false, NULL), 0);
	assert_int_equal(create(f, r, 1, "one more", S_IFREG | 0644, false, NULL), -EDQUOT);
	rpc_close(r);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(what_is_reserved_is_not_given_twice),
		WITH_SERVER(more_than_the_store_has_is_enospc),
		WITH_SERVER(statfs_shows_the_limits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
