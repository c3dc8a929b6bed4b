#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fixture.h"

#define FOR_EVER_MS 600000 /* a lease no test waits for */
#define SHORT_MS 700

/* ---- A mount: a session with a connection for all and one for its lease ---- */

struct mount {
	struct raw talk, lease;
	uint64_t session;
	uint64_t number; /* what it was told last */
	bool held;
};

static void restart_with_lease(struct fixture *f, int64_t lease_ms)
{
	fixture_stop(f);
	f->options.lease_ms = lease_ms;
	fixture_start(f);
}

static void hello_send(struct raw *w, bool read_only)
{
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;

	q.version = PROTOCOL_VERSION;
	q.mount = true;
	q.volume = "training";
	q.read_only = read_only;
	raw_send(w, WIRE__OP__HELLO, 0, 0, &q);
}

/* Of a HELLO that was sent on m->talk; the lease's connection then joins. */
static void hello_receive(struct fixture *f, struct mount *m)
{
	Wire__HelloReply *reply;

	assert_int_equal(raw_receive(&m->talk, WIRE__OP__HELLO), 0);
	reply = wire__hello_reply__unpack(&m->talk.arena.allocator, m->talk.reply.message_length, m->talk.message);
	assert_non_null(reply);
	m->session = reply->session;
	raw_open(f, &m->lease);
	assert_int_equal(raw_hello(&m->lease, m->session), m->session);
}

static void mount_begin(struct fixture *f, struct mount *m, bool read_only)
{
	*m = (struct mount){ 0 };
	raw_open(f, &m->talk);
	hello_send(&m->talk, read_only);
}

static void mount_open(struct fixture *f, struct mount *m, bool read_only)
{
	mount_begin(f, m, read_only);
	hello_receive(f, m);
}

static void mount_close(struct mount *m)
{
	raw_close(&m->talk);
	raw_close(&m->lease);
}

static bool answered_within(struct raw *w, int ms)
{
	struct pollfd fd = { .fd = connection_fd(w->c), .events = POLLIN };

	return poll(&fd, 1, ms) == 1;
}

static void lease_send(struct mount *m, uint64_t seen)
{
	Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;

	q.seen = seen;
	raw_send(&m->lease, WIRE__OP__LEASE, 0, 0, &q);
}

static int lease_receive(struct mount *m)
{
	int r = raw_receive(&m->lease, WIRE__OP__LEASE);
	Wire__LeaseReply *reply;

	if (r)
		return r;
	reply = wire__lease_reply__unpack(&m->lease.arena.allocator, m->lease.reply.message_length, m->lease.message);
	assert_non_null(reply);
	m->number = reply->number;
	m->held = reply->held;
	return 0;
}

static void lease_ask(struct mount *m)
{
	lease_send(m, m->number);
	assert_int_equal(lease_receive(m), 0);
}

static void lease_ask_at_once(struct mount *m)
{
	Wire__LeaseRequest q = WIRE__LEASE_REQUEST__INIT;

	q.seen = m->number;
	q.at_once = true;
	raw_send(&m->lease, WIRE__OP__LEASE, 0, 0, &q);
	assert_int_equal(lease_receive(m), 0);
}

/* Mounted, alone, and told so. */
static void mount_holder(struct fixture *f, struct mount *m)
{
	mount_open(f, m, false);
	lease_ask(m);
	assert_true(m->held);
}

/* The news that the LEASE request under way is answered with. */
static void expect_told(struct mount *m, bool held)
{
	uint64_t before = m->number;

	assert_int_equal(lease_receive(m), 0);
	assert_int_equal(m->held, held);
	assert_true(m->number > before);
}

static int goodbye(struct mount *m) { return raw_ask(&m->talk, WIRE__OP__GOODBYE, 1, 1, NULL); }

/* ---- Who holds it ---- */

static void who_cannot_wait_is_answered_without_news(void **state)
{
	struct fixture *f = *state;
	struct mount m;

	mount_holder(f, &m);
	alarm(60); /* of waiting for news it would be minutes */
	for (int k = 0; k < 50; k++) {
		lease_ask_at_once(&m);
		assert_true(m.held);
	}
	alarm(0);
	mount_close(&m);
}

static void the_only_mount_is_told_that_it_holds_the_lease(void **state)
{
	struct fixture *f = *state;
	struct mount m;
	uint64_t number;

	mount_open(f, &m, false);
	lease_ask(&m);
	assert_true(m.held);
	number = m.number;
	lease_ask(&m); /* no news, and answered nevertheless */
	assert_true(m.held);
	assert_int_equal(m.number, number);
	mount_close(&m);
}

static void mounts_that_only_read_hold_it_together(void **state)
{
	struct fixture *f = *state;
	struct mount one, two, writer;

	mount_open(f, &one, true);
	lease_ask(&one);
	assert_true(one.held);
	mount_begin(f, &two, true);
	lease_ask(&one); /* given up for a moment, while the other comes */
	assert_false(one.held);
	lease_send(&one, one.number);
	hello_receive(f, &two);
	assert_int_equal(lease_receive(&one), 0);
	assert_true(one.held);
	lease_ask(&two);
	assert_true(two.held);

	mount_begin(f, &writer, false);
	lease_ask(&one);
	assert_false(one.held);
	lease_send(&one, one.number);
	lease_ask(&two);
	assert_false(two.held);
	lease_send(&two, two.number);
	hello_receive(f, &writer);
	lease_ask(&writer);
	assert_false(writer.held);
	mount_close(&writer);
	mount_close(&two);
	mount_close(&one);
}

static void a_state_that_never_was_is_refused(void **state)
{
	struct fixture *f = *state;
	struct mount m;

	mount_holder(f, &m);
	lease_send(&m, m.number + 1);
	assert_int_equal(lease_receive(&m), EINVAL);
	assert_non_null(strstr(raw_why(&m.lease), "the lease has no state"));
	lease_send(&m, m.number - 1); /* and it goes on */
	assert_int_equal(lease_receive(&m), 0);
	assert_true(m.held);
	mount_close(&m);
}

static void two_that_begin_at_once_are_not_both_alone(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;

	mount_begin(f, &a, false);
	mount_begin(f, &b, false);
	hello_receive(f, &a);
	hello_receive(f, &b);
	lease_ask(&a);
	lease_ask(&b);
	assert_false(a.held);
	assert_false(b.held);
	assert_int_equal(goodbye(&b), 0);
	lease_send(&a, a.number);
	expect_told(&a, true);
	mount_close(&a);
	mount_close(&b);
}

static void the_end_of_a_session_gives_it_to_the_one_that_is_left(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;

	mount_open(f, &a, false);
	mount_open(f, &b, false); /* the first was never told, so nobody waits for it */
	lease_ask(&b);
	assert_false(b.held);
	lease_send(&b, b.number);
	assert_int_equal(goodbye(&a), 0);
	expect_told(&b, true);
	mount_close(&a);
	mount_close(&b);
}

static void a_reader_that_is_left_gets_it_too(void **state)
{
	struct fixture *f = *state;
	struct mount writer, reader;

	mount_open(f, &writer, false);
	mount_open(f, &reader, true);
	lease_ask(&writer);
	assert_false(writer.held);
	lease_ask(&reader);
	lease_send(&reader, reader.number);
	assert_int_equal(goodbye(&writer), 0);
	expect_told(&reader, true);
	mount_close(&writer);
	mount_close(&reader);
}

/* ---- The recall ---- */

static void a_second_mount_waits_until_the_first_has_told_everything(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	lease_send(&a, a.number);
	mount_begin(f, &b, false);
	expect_told(&a, false);
	assert_false(answered_within(&b.talk, 100));
	assert_int_equal(status(f)->n_sessions, 1);
	lease_send(&a, a.number);
	hello_receive(f, &b);
	lease_ask(&b);
	assert_false(b.held);
	/* And when the second goes, the first is told. */
	assert_int_equal(goodbye(&b), 0);
	expect_told(&a, true);
	mount_close(&a);
	mount_close(&b);
}

static void a_reader_makes_the_holder_give_it_back_as_well(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	lease_send(&a, a.number);
	mount_begin(f, &b, true);
	expect_told(&a, false);
	lease_send(&a, a.number);
	hello_receive(f, &b);
	mount_close(&a);
	mount_close(&b);
}

static void a_silent_holder_delays_the_next_mount_by_its_lease_only(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;
	int64_t began;

	restart_with_lease(f, SHORT_MS);
	began = clock_steady_ns();
	mount_holder(f, &a);
	mount_open(f, &b, false);
	assert_true(clock_steady_ns() - began >= SHORT_MS * NS_PER_MS);
	/* It comes back late and learns of it; and is not offered the lease before it has said so. */
	lease_ask(&a);
	assert_false(a.held);
	assert_int_equal(goodbye(&b), 0);
	lease_ask(&a);
	lease_ask(&a);
	assert_true(a.held);
	mount_close(&a);
	mount_close(&b);
}

static void a_holder_with_much_to_tell_is_waited_for_longer(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;
	uint64_t held;

	restart_with_lease(f, 2000);
	mount_holder(f, &a);
	held = a.number;
	mount_begin(f, &b, false);
	for (int i = 0; i < 6; i++) {
		assert_false(answered_within(&b.talk, 500));
		lease_send(&a, held);
		assert_int_equal(lease_receive(&a), 0);
		assert_false(a.held);
	}
	lease_send(&a, a.number);
	hello_receive(f, &b);
	mount_close(&a);
	mount_close(&b);
}

static void a_recall_that_is_given_up_gives_the_lease_back(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	lease_send(&a, a.number);
	mount_begin(f, &b, false);
	expect_told(&a, false);
	raw_close(&b.talk);
	lease_ask(&a);
	assert_true(a.held);
	assert_int_equal(status(f)->n_sessions, 1);
	mount_close(&a);
}

static void a_holder_that_unmounts_ends_the_recall(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	lease_send(&a, a.number);
	mount_begin(f, &b, false);
	expect_told(&a, false);
	assert_int_equal(goodbye(&a), 0);
	hello_receive(f, &b);
	lease_ask(&b);
	if (!b.held)
		lease_ask(&b);
	assert_true(b.held);
	mount_close(&a);
	mount_close(&b);
}

/* ---- A holder that is killed ---- */

/* In a process of its own: mounts when told to, says so when it holds the lease, and waits to be killed. */
static void killed_run(struct fixture *f, int go, int up)
{
	struct mount m;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
	if (read(go, &byte, 1) != 1)
		_exit(1);
	mount_open(f, &m, false);
	lease_send(&m, 0);
	if (lease_receive(&m) || !m.held)
		_exit(1);
	lease_send(&m, m.number); /* the server's answer is under way when it dies */
	if (write(up, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

struct killed {
	int go[2], up[2];
	pid_t pid;
};

/* It holds the lease when this returns, and nothing but its death is a reason not to wait for it. */
static void killed_start(struct fixture *f, struct killed *k)
{
	char byte;

	f->options.lease_ms = FOR_EVER_MS;
	f->options.abandoned_s = FOR_EVER_MS / 1000;
	fixture_stop(f); /* a process with threads is not to be forked */
	assert_int_equal(pipe(k->go), 0);
	assert_int_equal(pipe(k->up), 0);
	k->pid = fork();
	assert_true(k->pid >= 0);
	if (!k->pid)
		killed_run(f, k->go[0], k->up[1]);
	fixture_start(f);
	assert_int_equal(write(k->go[1], "", 1), 1);
	assert_int_equal(read(k->up[0], &byte, 1), 1);
}

static void killed_end(struct killed *k)
{
	int end;

	kill(k->pid, SIGKILL);
	assert_int_equal(waitpid(k->pid, &end, 0), k->pid);
	assert_true(WIFSIGNALED(end));
	for (int i = 0; i < 2; i++) {
		close(k->go[i]);
		close(k->up[i]);
	}
}

/* The dead one's session ends soon, and the new one is alone. */
static void expect_alone(struct fixture *f, struct mount *m)
{
	do
		lease_ask(m);
	while (!m->held);
	assert_int_equal(status(f)->n_sessions, 1);
}

static void a_holder_that_was_killed_is_not_waited_for(void **state)
{
	struct fixture *f = *state;
	struct killed k;
	struct mount b;

	killed_start(f, &k);
	mount_begin(f, &b, false);
	assert_false(answered_within(&b.talk, 100));
	killed_end(&k);
	hello_receive(f, &b); /* within its time-out of 20 s */
	expect_alone(f, &b);
	mount_close(&b);
}

static void a_holder_that_was_killed_while_no_server_was_there_is_not_waited_for_either(void **state)
{
	struct fixture *f = *state;
	struct killed k;
	struct mount b;

	killed_start(f, &k);
	fixture_stop(f);
	killed_end(&k);
	fixture_start(f);
	mount_open(f, &b, false);
	expect_alone(f, &b);
	mount_close(&b);
}

/* ---- Restarts ---- */

static void after_a_restart_a_holder_is_waited_for_until_it_comes_back(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;
	uint64_t held, session;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	held = a.number;
	session = a.session;
	fixture_stop(f);
	fixture_start(f);
	mount_begin(f, &b, false);
	assert_false(answered_within(&b.talk, 100));
	mount_close(&a);
	raw_open(f, &a.talk);
	assert_int_equal(raw_hello(&a.talk, session), session);
	raw_open(f, &a.lease);
	assert_int_equal(raw_hello(&a.lease, session), session);
	/* The number of the server that was acknowledges nothing, but is no mistake. */
	lease_send(&a, held);
	expect_told(&a, false);
	assert_false(answered_within(&b.talk, 100));
	lease_send(&a, a.number);
	hello_receive(f, &b);
	mount_close(&a);
	mount_close(&b);
}

static void after_a_restart_a_silent_mount_is_waited_for_one_lease(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;
	int64_t began;

	restart_with_lease(f, SHORT_MS);
	mount_holder(f, &a);
	fixture_stop(f);
	began = clock_steady_ns();
	fixture_start(f);
	mount_open(f, &b, false);
	assert_true(clock_steady_ns() - began >= SHORT_MS * NS_PER_MS);
	mount_close(&a);
	mount_close(&b);
}

static void after_a_restart_the_holder_holds_it_again(void **state)
{
	struct fixture *f = *state;
	struct mount a;
	uint64_t session;

	mount_holder(f, &a);
	session = a.session;
	fixture_stop(f);
	fixture_start(f);
	mount_close(&a);
	raw_open(f, &a.talk);
	assert_int_equal(raw_hello(&a.talk, session), session);
	raw_open(f, &a.lease);
	assert_int_equal(raw_hello(&a.lease, session), session);
	lease_ask(&a);
	assert_false(a.held);
	lease_ask(&a);
	assert_true(a.held);
	mount_close(&a);
}

static void a_server_that_stops_keeps_nobody_waiting(void **state)
{
	struct fixture *f = *state;
	struct mount a, b;
	int64_t began;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	mount_begin(f, &b, false);
	lease_ask(&a);
	assert_false(a.held); /* so the second mount waits */
	began = clock_steady_ns();
	fixture_stop(f);
	assert_true(clock_steady_ns() - began < 8 * NS_PER_S); /* what hangs is cut off after ten */
	assert_int_equal(raw_receive(&b.talk, WIRE__OP__HELLO), -ECONNRESET);
	raw_close(&b.talk);
	mount_close(&a);
	fixture_start(f);
}

static void a_lease_request_does_not_hold_up_the_stop(void **state)
{
	struct fixture *f = *state;
	struct mount a;
	int64_t began;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	lease_send(&a, a.number);
	assert_false(answered_within(&a.lease, 50));
	began = clock_steady_ns();
	fixture_stop(f);
	assert_true(clock_steady_ns() - began < 8 * NS_PER_S);
	assert_int_equal(lease_receive(&a), -ECONNRESET);
	mount_close(&a);
	fixture_start(f);
}

/* ---- Administration ---- */

static void set_retention(struct raw *admin)
{
	Wire__VolumeSetRequest q = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__Volume v = WIRE__VOLUME__INIT;
	char *field = "retention";

	v.name = "training";
	v.retention_s = 3600;
	q.volume = &v;
	q.fields = &field;
	q.n_fields = 1;
	raw_send(admin, WIRE__OP__VOLUME_SET, 0, 0, &q);
}

static void admin_open(struct fixture *f, struct raw *w)
{
	Wire__HelloRequest q = WIRE__HELLO_REQUEST__INIT;

	raw_open(f, w);
	q.version = PROTOCOL_VERSION;
	assert_int_equal(raw_ask(w, WIRE__OP__HELLO, 0, 0, &q), 0);
}

/* The administrator's request, sent before, waits for the holder, who gets the lease back afterwards. */
static void expect_recall(struct mount *holder, struct raw *admin, uint16_t op)
{
	expect_told(holder, false);
	assert_false(answered_within(admin, 100));
	lease_send(holder, holder->number);
	assert_int_equal(raw_receive(admin, op), 0);
	expect_told(holder, true);
}

static void settings_and_what_is_restored_wait_for_the_holder(void **state)
{
	struct fixture *f = *state;
	Wire__TrashRestoreRequest restore = WIRE__TRASH_RESTORE_REQUEST__INIT;
	Wire__CreateRequest create = WIRE__CREATE_REQUEST__INIT;
	Wire__NameRequest name = WIRE__NAME_REQUEST__INIT;
	Wire__EntryReply *made;
	struct mount a;
	struct raw admin;
	struct attr file;

	restart_with_lease(f, FOR_EVER_MS);
	admin_open(f, &admin);
	mount_holder(f, &a);
	lease_send(&a, a.number);
	set_retention(&admin);
	expect_recall(&a, &admin, WIRE__OP__VOLUME_SET);

	create.parent = name.parent = 1;
	create.name.data = name.name.data = (uint8_t *)"file";
	create.name.len = name.name.len = 4;
	create.mode = S_IFREG | 0644;
	assert_int_equal(raw_ask(&a.talk, WIRE__OP__CREATE, 1, 1, &create), 0);
	made = wire__entry_reply__unpack(&a.talk.arena.allocator, a.talk.reply.message_length, a.talk.message);
	assert_int_equal(attr_unpack(made->attr.data, made->attr.len, &file), 0);
	assert_int_equal(raw_ask(&a.talk, WIRE__OP__UNLINK, 2, 2, &name), 0);
	lease_send(&a, a.number);
	restore.volume = "training";
	restore.inode = file.inode;
	raw_send(&admin, WIRE__OP__TRASH_RESTORE, 0, 0, &restore);
	expect_recall(&a, &admin, WIRE__OP__TRASH_RESTORE);
	assert_int_equal(raw_ask(&a.talk, WIRE__OP__LOOKUP, 0, 3, &name), 0);
	mount_close(&a);
	raw_close(&admin);
}

static void what_the_holder_itself_sets_recalls_nothing(void **state)
{
	struct fixture *f = *state;
	struct mount a;

	restart_with_lease(f, FOR_EVER_MS);
	mount_holder(f, &a);
	set_retention(&a.talk);
	assert_int_equal(raw_receive(&a.talk, WIRE__OP__VOLUME_SET), 0);
	lease_send(&a, a.number);
	assert_false(answered_within(&a.lease, 100));
	mount_close(&a);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(the_only_mount_is_told_that_it_holds_the_lease),
		WITH_SERVER(who_cannot_wait_is_answered_without_news),
		WITH_SERVER(mounts_that_only_read_hold_it_together),
		WITH_SERVER(a_state_that_never_was_is_refused),
		WITH_SERVER(two_that_begin_at_once_are_not_both_alone),
		WITH_SERVER(the_end_of_a_session_gives_it_to_the_one_that_is_left),
		WITH_SERVER(a_reader_that_is_left_gets_it_too),
		WITH_SERVER(a_second_mount_waits_until_the_first_has_told_everything),
		WITH_SERVER(a_reader_makes_the_holder_give_it_back_as_well),
		WITH_SERVER(a_silent_holder_delays_the_next_mount_by_its_lease_only),
		WITH_SERVER(a_holder_with_much_to_tell_is_waited_for_longer),
		WITH_SERVER(a_recall_that_is_given_up_gives_the_lease_back),
		WITH_SERVER(a_holder_that_unmounts_ends_the_recall),
		WITH_SERVER(a_holder_that_was_killed_is_not_waited_for),
		WITH_SERVER(a_holder_that_was_killed_while_no_server_was_there_is_not_waited_for_either),
		WITH_SERVER(after_a_restart_a_holder_is_waited_for_until_it_comes_back),
		WITH_SERVER(after_a_restart_a_silent_mount_is_waited_for_one_lease),
		WITH_SERVER(after_a_restart_the_holder_holds_it_again),
		WITH_SERVER(a_server_that_stops_keeps_nobody_waiting),
		WITH_SERVER(a_lease_request_does_not_hold_up_the_stop),
		WITH_SERVER(settings_and_what_is_restored_wait_for_the_holder),
		WITH_SERVER(what_the_holder_itself_sets_recalls_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
