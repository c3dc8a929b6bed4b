/* A client that does not hear of its server any more: the kernel forgets its pages in time, whatever waits for the server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "client/state.h"
#include "relay.h"
#include "world.h"

#define FILES 80u /* more than there are threads of a kind */
#define LONG_MS 120000

/* The kernel, to which the pages of some files are locked for now. */
struct kernel {
	uint64_t inodes[FILES];
	_Atomic unsigned forgotten[FILES];
	_Atomic bool locked[FILES];
};

/* `far` talks through the relay.  It has files open that hold "text", and has read them; `near` keeps it company. */
struct silence {
	struct world w;
	struct relay relay;
	struct client *far, *near;
	struct client_file *files[FILES];
	struct kernel kernel;
};

static void forget(void *context, uint64_t inode, uint64_t from, uint64_t to)
{
	struct kernel *k = context;
	unsigned n = 0;

	while (n < FILES && k->inodes[n] != inode)
		n++;
	if (n == FILES)
		return;
	while (atomic_load(&k->locked[n]))
		usleep(1000);
	atomic_fetch_add(&k->forgotten[n], 1);
}

/* What `far` asks for its lease. */
static _Atomic(struct rpc *) watched;
static _Atomic unsigned asked, asked_at_once;

int __real_rpc_call(struct rpc *r, struct rpc_call *call, struct arena *arena);
int __wrap_rpc_call(struct rpc *r, struct rpc_call *call, struct arena *arena);
int __wrap_rpc_call(struct rpc *r, struct rpc_call *call, struct arena *arena)
{
	if (call->op == WIRE__OP__LEASE && r == atomic_load(&watched))
		atomic_fetch_add(((const Wire__LeaseRequest *)call->request)->at_once ? &asked_at_once : &asked, 1);
	return __real_rpc_call(r, call, arena);
}

static struct client *far_up(const char *address)
{
	struct client_options o = {
		.servers = address, .volume = "test", .host = "here", .mount_point = "/far", .timeout_ms = LONG_MS
	};
	struct client *client;
	char error[512] = "";

	if (client_connect(&o, &client, error, sizeof(error)) < 0)
		fail_msg("client: %s", error);
	return client;
}

static void file_read(struct client_file *f)
{
	struct client_read *r;
	const struct iovec *parts;
	size_t bytes;
	int count;

	assert_int_equal(client_read(f, 0, 5, &r), 0);
	parts = client_read_parts(r, &count, &bytes);
	assert_int_equal(bytes, 4);
	assert_memory_equal(parts[0].iov_base, "text", 4);
	client_read_release(r);
}

static void file_up(struct silence *s, unsigned n)
{
	struct client_file *made;
	struct entry e;
	bool unchanged;
	char name[32];

	snprintf(name, sizeof(name), "file %u", n);
	assert_int_equal(client_create(s->near, client_root(s->near), name, 0644, O_EXCL | O_RDWR, &root, &made, &e), 0);
	assert_int_equal(client_write(made, 0, "text", 4, 0), 4);
	client_release(made);
	s->kernel.inodes[n] = e.attr.inode;
	assert_int_equal(client_open(s->far, e.attr.inode, O_RDONLY, false, false, &s->files[n], &unchanged), 0);
	file_read(s->files[n]);
}

static void silence_up(struct silence *s)
{
	struct client_events events = { .forget = forget, .context = &s->kernel };

	memset(s, 0, sizeof(*s));
	world_up(&s->w, "none");
	log_set_level(LOG_LEVEL_OFF); /* it is said that the server is silent */
	relay_up(&s->relay, s->w.address);
	s->near = s->w.client;
	s->far = far_up(s->relay.address);
	client_on_recall(s->far, &events);
	for (unsigned n = 0; n < FILES; n++)
		file_up(s, n);
}

static void silence_down(struct silence *s)
{
	relay_silence(&s->relay, false);
	client_on_recall(s->far, NULL);
	for (unsigned n = 0; n < FILES; n++)
		if (s->files[n])
			client_release(s->files[n]);
	assert_int_equal(client_disconnect(s->far), 0);
	relay_down(&s->relay);
	world_down(&s->w);
}

static unsigned forgotten(struct silence *s, unsigned n) { return atomic_load(&s->kernel.forgotten[n]); }

/* As if the server had not been heard of for as long as it lets nobody else in, for the nth time.  An answer from before may be
 * taken in meanwhile: so it is said again and again. */
static bool time_passes(struct silence *s, int64_t turn)
{
	atomic_store(&s->far->lease.contact_ns, turn);
	return true;
}

static void file_close(struct silence *s, unsigned n)
{
	client_release(s->files[n]);
	s->files[n] = NULL;
}

static void *close_state(struct silence *s, unsigned n)
{
	LOCKED(&s->far->table_lock);
	return intmap_get(&s->far->closes, s->kernel.inodes[n]);
}

/* Until the keeper waits for the server: what is closed from then on is not told, and looks different. */
static void keeper_hangs(struct silence *s, unsigned most)
{
	unsigned closed = 1;

	file_close(s, 0);
	do {
		assert_true(closed < most);
		usleep(20000);
		file_close(s, closed);
	} while (close_state(s, closed++) == close_state(s, 0));
}

static void what_waits_to_be_closed_does_not_delay_it(void **state)
{
	struct silence s;

	silence_up(&s);
	relay_silence(&s.relay, true);
	keeper_hangs(&s, FILES - 1);
	AWAIT(time_passes(&s, 1) && forgotten(&s, FILES - 1));
	assert_int_equal(forgotten(&s, 0), 0); /* it is not open */
	silence_down(&s);
}

static void what_is_being_given_back_does_not_delay_it(void **state)
{
	struct silence s;

	silence_up(&s);
	relay_silence(&s.relay, true);
	for (unsigned n = 0; n < FILES - 1; n++)
		assert_int_equal(holding_recall(s.far, s.kernel.inodes[n], true, n + 1), 0);
	for (unsigned n = 0; n < GRANT_THREADS_MOST; n++)
		AWAIT(forgotten(&s, n)); /* and now it tells the server */
	AWAIT(time_passes(&s, 1) && forgotten(&s, FILES - 1));
	silence_down(&s);
}

static void pages_that_wait_for_the_server_do_not_delay_it(void **state)
{
	struct silence s;

	silence_up(&s);
	relay_silence(&s.relay, true);
	for (unsigned n = 0; n < FILES / 2; n++) {
		atomic_fetch_add(&s.files[n]->inode->pages.reading, 1); /* as if there were such reads */
		atomic_store(&s.kernel.locked[n], true);
	}
	for (unsigned n = FILES / 2; n < FILES; n++)
		AWAIT(time_passes(&s, 1) && forgotten(&s, n));
	/* And they are forgotten when they can be. */
	for (unsigned n = 0; n < FILES / 2; n++) {
		assert_int_equal(forgotten(&s, n), 0);
		atomic_store(&s.kernel.locked[n], false);
		atomic_fetch_sub(&s.files[n]->inode->pages.reading, 1);
	}
	for (unsigned n = 0; n < FILES / 2; n++)
		AWAIT(forgotten(&s, n));
	silence_down(&s);
}

static void all_forgotten(struct silence *s, unsigned turn)
{
	for (unsigned n = 0; n < FILES; n++)
		AWAIT(time_passes(s, turn) && forgotten(s, n) == turn);
}

/* Twice.  The server keeps who asks for the lease waiting for news; who uses nothing until it is answered does not wait. */
static void it_is_done_once_each_time_and_the_server_asked_to_answer_at_once(void **state)
{
	struct silence s;
	unsigned before;

	silence_up(&s);
	AWAIT(lease_in_contact(s.far));
	atomic_store(&watched, s.far->rpc);
	relay_silence(&s.relay, true);
	all_forgotten(&s, 1);
	AWAIT(time_passes(&s, 1) && atomic_load(&asked_at_once));
	before = atomic_load(&asked);
	relay_silence(&s.relay, false);
	AWAIT(lease_in_contact(s.far));
	AWAIT(atomic_load(&asked) > before);
	relay_silence(&s.relay, true);
	all_forgotten(&s, 2);
	atomic_store(&watched, NULL);
	silence_down(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_waits_to_be_closed_does_not_delay_it),
		cmocka_unit_test(what_is_being_given_back_does_not_delay_it),
		cmocka_unit_test(pages_that_wait_for_the_server_do_not_delay_it),
		cmocka_unit_test(it_is_done_once_each_time_and_the_server_asked_to_answer_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
