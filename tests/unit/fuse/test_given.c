/* The kernel's end of the device is a socket here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "fuse/given.h"
#include "fuse/protocol.h"

struct world {
	struct given given;
	int device, kernel;
};

static uint64_t unmade; /* a node the kernel has no inode of */

ssize_t __real_writev(int fd, const struct iovec *parts, int count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int count)
{
	const struct fuse_out_header *h = parts[0].iov_base;

	if (h->error == FUSE_NOTIFY_INVAL_INODE && unmade &&
	    ((const struct fuse_notify_inval_inode_out *)parts[1].iov_base)->ino == unmade) {
		errno = ENOENT;
		return -1;
	}
	return __real_writev(fd, parts, count);
}

static int up(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	int pair[2];

	*state = w;
	if (!w || given_init(&w->given) || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		return -1;
	w->device = pair[0];
	w->kernel = pair[1];
	atomic_store(&w->given.names, true);
	return 0;
}

static int down(void **state)
{
	struct world *w = *state;

	given_free(&w->given);
	close(w->device);
	close(w->kernel);
	free(w);
	return 0;
}

static struct given_leave give(struct world *w, uint64_t begun, uint64_t node, uint32_t ms)
{
	struct given_leave l = given_enter(&w->given, begun, ms);

	given_note(&w->given, node);
	given_leave(&w->given);
	return l;
}

/* One notification: its code, and the node of an INVAL_INODE; 0: there is none. */
static int heard(struct world *w, uint64_t *node)
{
	struct {
		struct fuse_out_header h;
		struct fuse_notify_inval_inode_out inode;
	} m;
	ssize_t n = recv(w->kernel, &m, sizeof(m), MSG_DONTWAIT);

	if (n < 0)
		return 0;
	assert_int_equal(n, m.h.len);
	assert_int_equal(m.h.unique, 0);
	if (m.h.error == FUSE_NOTIFY_INVAL_INODE) {
		assert_int_equal(n, sizeof(m));
		assert_int_equal(m.inode.off, -1);
		*node = m.inode.ino;
	}
	return m.h.error;
}

/* The sum of the nodes that were forgotten at least once, each of which must be below 64. */
static uint64_t forgotten(struct world *w)
{
	uint64_t all = 0, node;
	int code;

	while ((code = heard(w, &node)))
		if (code == FUSE_NOTIFY_INVAL_INODE)
			all |= 1ull << node;
	return all;
}

static void what_was_given_is_called_back(void **state)
{
	struct world *w = *state;
	uint64_t node;

	assert_int_equal(give(w, given_begin(&w->given), 3, 5000).attr_ms, 5000);
	assert_int_equal(give(w, given_begin(&w->given), 17, 5000).name_ms, 5000);
	given_recall(&w->given, w->device);
	assert_int_equal(heard(w, &node), FUSE_NOTIFY_INC_EPOCH);
	assert_true(forgotten(w) == (1ull << 3 | 1ull << 17));
	given_recall(&w->given, w->device); /* nothing was given since */
	assert_int_equal(heard(w, &node), FUSE_NOTIFY_INC_EPOCH);
	assert_int_equal(heard(w, &node), 0);
}

static uint32_t cover(struct world *w, uint64_t begun, uint64_t node, uint64_t directory, uint32_t ms)
{
	struct attr a = { .inode = node, .parent = directory, .mode = node == directory ? S_IFDIR : S_IFREG };
	uint32_t given_ms;

	assert_int_equal(given_enter(&w->given, begun, 0).attr_ms, 0);
	given_ms = given_cover(&w->given, begun, node, &a, ms);
	given_leave(&w->given);
	return given_ms;
}

static void what_was_given_under_a_grant_goes_with_it(void **state)
{
	struct world *w = *state;
	uint64_t begun = given_begin(&w->given), node;

	assert_int_equal(cover(w, begun, 3, 100, 5000), 5000);
	assert_int_equal(cover(w, begun, 4, 100, 5000), 5000);
	assert_int_equal(cover(w, begun, 5, 5, 5000), 5000);
	given_uncover(&w->given, w->device, 100);
	assert_true(forgotten(w) == (1ull << 3 | 1ull << 4));
	assert_int_equal(cover(w, begun, 6, 200, 5000), 0); /* asked for before that */
	given_uncover(&w->given, w->device, 100);
	assert_int_equal(heard(w, &node), 0);
	given_recall(&w->given, w->device);
	assert_int_equal(heard(w, &node), FUSE_NOTIFY_INC_EPOCH);
	assert_true(forgotten(w) == 1ull << 5);
}

static void no_more_is_given_under_grants_than_can_be_called_back(void **state)
{
	struct world *w = *state;
	uint64_t begun = given_begin(&w->given), now = 0;

	for (uint64_t i = 0; i < GIVEN_FILES; i++)
		assert_int_equal(cover(w, begun, 100000 + i, 100, 600000), 600000);
	assert_int_equal(cover(w, begun, 1, 100, 600000), 0);
	assert_int_equal(cover(w, begun, 100007, 100, 600000), 600000); /* there already */
	for (uint64_t i = 0; i < GIVEN_DIRECTORIES; i++)                /* these have a place of their own */
		now += cover(w, begun, 64 + i, 64 + i, 1) == 1;
	assert_int_equal(now, GIVEN_DIRECTORIES);
	usleep(2000);
	assert_int_equal(cover(w, begun, 7, 7, 5000), 5000); /* that of the first one has run out */
}

static void an_answer_from_before_the_recall_gives_no_leave(void **state)
{
	struct world *w = *state;
	uint64_t begun = given_begin(&w->given);

	given_recall(&w->given, w->device);
	assert_int_equal(give(w, begun, 3, 5000).attr_ms, 0);
	assert_int_equal(give(w, begun, 3, 5000).name_ms, 0);
	assert_int_equal(give(w, given_begin(&w->given), 3, 5000).attr_ms, 5000);
}

static void an_older_kernel_keeps_names_for_a_second(void **state)
{
	struct world *w = *state;
	uint64_t node;
	struct given_leave l;

	atomic_store(&w->given.names, false);
	l = give(w, given_begin(&w->given), 3, 5000);
	assert_int_equal(l.name_ms, 1000);
	assert_int_equal(l.attr_ms, 5000);
	assert_int_equal(give(w, given_begin(&w->given), 3, 500).name_ms, 500);
	given_recall(&w->given, w->device);
	assert_int_equal(heard(w, &node), FUSE_NOTIFY_INVAL_INODE);
	assert_int_equal(node, 3);
}

static void *recaller(void *context)
{
	struct world *w = context;

	given_recall(&w->given, w->device);
	return NULL;
}

/* The kernel hears of the recall after the answer, or it would keep what the answer says. */
static void a_recall_lets_the_answer_being_sent_pass(void **state)
{
	struct world *w = *state;
	uint64_t begun = given_begin(&w->given), node;
	pthread_t thread;

	assert_int_equal(given_enter(&w->given, begun, 5000).attr_ms, 5000);
	given_note(&w->given, 9);
	assert_int_equal(pthread_create(&thread, NULL, recaller, w), 0);
	while (given_begin(&w->given) == begun)
		;
	assert_int_equal(heard(w, &node), 0);
	given_leave(&w->given);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(heard(w, &node), FUSE_NOTIFY_INC_EPOCH);
	assert_true(forgotten(w) == 1ull << 9);
}

/* The program that looked it up may be slow to take the answer in, so it cannot be waited for; but it comes before the open. */
static void what_the_kernel_had_not_taken_in_at_the_recall_is_forgotten_when_it_is_opened(void **state)
{
	struct world *w = *state;

	give(w, given_begin(&w->given), 3, 5000);
	give(w, given_begin(&w->given), 9, 5000);
	unmade = 9;
	given_recall(&w->given, w->device);
	assert_true(forgotten(w) == 1ull << 3);
	unmade = 0;
	given_opened(&w->given, w->device, 3);
	assert_true(forgotten(w) == 0);
	given_opened(&w->given, w->device, 9);
	assert_true(forgotten(w) == 1ull << 9);
	given_opened(&w->given, w->device, 9);
	assert_true(forgotten(w) == 0);
}

#define WITH(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(what_was_given_is_called_back),
		WITH(what_was_given_under_a_grant_goes_with_it),
		WITH(no_more_is_given_under_grants_than_can_be_called_back),
		WITH(an_answer_from_before_the_recall_gives_no_leave),
		WITH(an_older_kernel_keeps_names_for_a_second),
		WITH(a_recall_lets_the_answer_being_sent_pass),
		WITH(what_the_kernel_had_not_taken_in_at_the_recall_is_forgotten_when_it_is_opened),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
