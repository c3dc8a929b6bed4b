#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fixture.h"

static char error[600];

static void a_second_server_is_refused_by_name(void **state)
{
	struct fixture *f = *state;
	struct server *second;
	char pid[40];

	assert_int_equal(server_start(&f->options, &second, error, sizeof(error)), -EBUSY);
	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	assert_non_null(strstr(error, pid));
	/* And the first one is none the worse. */
	assert_int_equal(status(f)->n_sessions, 0);
}

static void the_data_directory_is_for_its_owner_only(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	assert_int_equal(stat(f->data, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
}

static void a_socket_left_behind_is_replaced_and_a_clean_stop_leaves_none(void **state)
{
	struct fixture *f = *state;
	const char *path = f->address + strlen("unix:");
	FILE *stale;

	fixture_stop(f);
	assert_false(exists(path));
	stale = fopen(path, "w");
	assert_non_null(stale);
	fclose(stale);
	fixture_start(f);
	assert_int_equal(status(f)->n_sessions, 0);
}

static void tcp_is_for_loopback_and_a_free_port_is_told(void **state)
{
	struct fixture *f = *state;
	struct fixture over_tcp = *f;
	char path[200], text[400];
	struct server *none;
	struct rpc *r;
	FILE *in;

	fixture_stop(f);
	f->options.listen = "0.0.0.0:0";
	assert_int_equal(server_start(&f->options, &none, error, sizeof(error)), -EPERM);
	assert_non_null(strstr(error, "tokens and TLS"));
	f->options.listen = "127.0.0.1:0";
	fixture_start(f);
	assert_non_null(server_tcp_address(f->server));
	snprintf(over_tcp.address, sizeof(over_tcp.address), "%s", server_tcp_address(f->server));
	r = fixture_mount(&over_tcp, "training", false);
	assert_non_null(r);
	rpc_close(r);
	snprintf(path, sizeof(path), "%s/address", f->data);
	in = fopen(path, "r");
	assert_non_null(in);
	text[fread(text, 1, sizeof(text) - 1, in)] = 0;
	fclose(in);
	assert_non_null(strstr(text, over_tcp.address));
	assert_non_null(strstr(text, "unix:"));
}

static void the_store_of_another_server_is_refused(void **state)
{
	struct fixture *f = *state;
	struct server_options other = f->options;
	char data[140], store[140];
	struct server *second;

	snprintf(data, sizeof(data), "%s/other", f->folder);
	snprintf(store, sizeof(store), "dir:%s/objects", f->data);
	other.data = data;
	other.store = store;
	assert_int_equal(server_start(&other, &second, error, sizeof(error)), -EPERM);
	assert_non_null(strstr(error, "belongs to the metadata of another server"));
}

static int count_backups(const char *data)
{
	char path[200];
	int n = 0;
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "%s/backup", data);
	d = opendir(path);
	while (d && (e = readdir(d)))
		n += strstr(e->d_name, ".mdb") != NULL;
	if (d)
		closedir(d);
	return n;
}

static void a_clean_stop_backs_up_what_changed_and_keeps_three(void **state)
{
	struct fixture *f = *state;
	char path[240];

	fixture_stop(f);
	assert_int_equal(count_backups(f->data), 1);
	fixture_start(f);
	fixture_stop(f); /* nothing has changed */
	assert_int_equal(count_backups(f->data), 1);
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/backup/data-2001010%d-000000.mdb", f->data, i + 1);
		fclose(fopen(path, "w"));
	}
	fixture_start(f);
	struct rpc *r = fixture_mount(f, "training", false);
	rpc_close(r);
	fixture_stop(f);
	assert_int_equal(count_backups(f->data), 3);
	snprintf(path, sizeof(path), "%s/backup/data-20010104-000000.mdb", f->data);
	unlink(path); /* may be the third */
	assert_in_range(count_backups(f->data), 2, 3);
}

static void what_was_made_is_there_after_a_restart(void **state)
{
	struct fixture *f = *state;
	struct rpc *r = fixture_mount(f, "training", false);
	struct extent e;
	struct attr a, b;
	char got[5];

	assert_int_equal(create(f, r, 1, "file", S_IFREG | 0644, false, &a), 0);
	assert_int_equal(write_file(f, r, a.inode, 0, "hello", 5, &e), 0);
	fixture_stop(f);
	fixture_start(f);
	assert_int_equal(lookup(f, r, 1, "file", &b), 0);
	assert_int_equal(b.inode, a.inode);
	assert_int_equal(b.size, 5);
	assert_int_equal(object_get(f, r, e.object, e.object_offset, got, 5), 0);
	assert_memory_equal(got, "hello", 5);
	assert_int_equal(f->restarts, 1);
	assert_true(f->known);
	rpc_close(r);
}

/* The number a mount is told first. */
static uint64_t lease_of_a_new_mount(struct fixture *f)
{
	Wire__LeaseRequest request = WIRE__LEASE_REQUEST__INIT;
	Wire__LeaseReply *reply;
	struct rpc *r = fixture_mount(f, "training", false);
	uint64_t number;

	assert_non_null(r);
	assert_int_equal(ask(f, r, WIRE__OP__LEASE, &request, &reply), 0);
	number = reply->number;
	/* Else the next one's lease would be waited for: this process, which holds it, lives on. */
	assert_int_equal(ask(f, r, WIRE__OP__GOODBYE, NULL, NULL), 0);
	rpc_close(r);
	return number;
}

static void starts_write(struct fixture *f, const char *text)
{
	char path[200];
	FILE *file;

	snprintf(path, sizeof(path), "%s/starts", f->data);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void numbers_grow_also_when_the_clock_was_set_back(void **state)
{
	struct fixture *f = *state;
	uint64_t before = lease_of_a_new_mount(f), after;

	for (int i = 0; i < 3; i++) {
		fixture_stop(f);
		f->clock_ahead_ns -= 3600 * NS_PER_S;
		fixture_start(f);
		after = lease_of_a_new_mount(f);
		assert_true(after > before + 1000000); /* not only another state of the same start */
		before = after;
	}
	/* Whatever has become of the record, a server starts. */
	f->clock_ahead_ns = 0;
	for (int i = 0; i < 3; i++) {
		fixture_stop(f);
		starts_write(f, i == 0 ? "" : i == 1 ? "nonsense" : "99999999999999999999\n");
		fixture_start(f);
		assert_true(lease_of_a_new_mount(f) > 0);
	}
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(a_second_server_is_refused_by_name),
		WITH_SERVER(the_data_directory_is_for_its_owner_only),
		WITH_SERVER(a_socket_left_behind_is_replaced_and_a_clean_stop_leaves_none),
		WITH_SERVER(tcp_is_for_loopback_and_a_free_port_is_told),
		WITH_SERVER(the_store_of_another_server_is_refused),
		WITH_SERVER(a_clean_stop_backs_up_what_changed_and_keeps_three),
		WITH_SERVER(what_was_made_is_there_after_a_restart),
		WITH_SERVER(numbers_grow_also_when_the_clock_was_set_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
