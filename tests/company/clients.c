/* clients: many clients of one volume in one process, each with many directories in its
 * cache, and what that costs the server.
 *
 *   clients SERVER VOLUME [--clients N] [--directories D] [--lookups L] [--changes R]
 *           [--threads T] [--server-pid PID]
 *
 * 1. One client makes D directories with a file in each.
 * 2. N clients connect.  Each looks up L names in every directory that are not there, until it
 *    has asked for the whole directory and for leave to keep it (src/client/habits.c).
 * 3. How many can answer for a missing name by themselves is found out by the time it takes.
 * 4. One more client makes a file in R of the directories: nobody may keep these any longer.
 *    Then every client must see the new name.  The same in R directories that one client
 *    alone has seen.
 *
 * Prints one line of JSON: memory of the server (of PID) and of this process after each
 * step, and times.  Any error is a message and exit code 1. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "client/client.h"

#define LOCAL_NS 8000 /* an answer from memory takes less, a call to the server more */
#define CONNECT_MS 120000

static const struct client_identity root = { 0, 0, 022 };

struct bench {
	const char *server, *volume;
	unsigned clients, directories, lookups, changes, threads;
	long server_pid;
	struct client **all; /* `clients` of them, then the one that makes things */
	uint64_t *shared;    /* inodes of the directories everybody lists */
	uint64_t *single;    /* of `changes` directories only the first client lists */
	atomic_uint next;
	atomic_ulong local, asked;
	void (*work)(struct bench *b, unsigned k);
	unsigned count;
};

static void __attribute__((noreturn, format(printf, 2, 3))) die(int error, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "clients: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, ": %s\n", strerror(error < 0 ? -error : error));
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Resident memory of a process in KiB; 0 if it cannot be told. */
static unsigned long memory_kib(long pid)
{
	unsigned long pages = 0;
	char path[64], text[128];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%ld/statm", pid);
	f = pid > 0 ? fopen(path, "r") : NULL;
	if (f && fgets(text, sizeof(text), f)) {
		char *second = strchr(text, ' ');

		pages = second ? strtoul(second, NULL, 10) : 0;
	}
	if (f)
		fclose(f);
	return pages * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
}

/* ---- Sharing out work ---- */

static void *worker_main(void *context)
{
	struct bench *b = context;
	unsigned k;

	while ((k = atomic_fetch_add(&b->next, 1)) < b->count)
		b->work(b, k);
	return NULL;
}

/* Calls work for 0..count-1 on several threads.  How long it took, in ms. */
static double everybody(struct bench *b, unsigned count, void (*work)(struct bench *b, unsigned k))
{
	pthread_t threads[64];
	int64_t began = now_ns();

	b->work = work;
	b->count = count;
	atomic_store(&b->next, 0);
	for (unsigned i = 0; i < b->threads; i++)
		if ((errno = pthread_create(&threads[i], NULL, worker_main, b)))
			die(errno, "cannot start a thread");
	for (unsigned i = 0; i < b->threads; i++)
		pthread_join(threads[i], NULL);
	return (double)(now_ns() - began) / 1e6;
}

/* ---- What is done ---- */

static void connect_one(struct bench *b, unsigned k)
{
	char error[600], point[32];
	struct client_options o = { .servers = b->server,
				    .volume = b->volume,
				    .host = "clients",
				    .mount_point = point,
				    .timeout_ms = CONNECT_MS,
				    .dirty_bytes = 8 << 20,
				    .cache_bytes = 8 << 20 };
	int r;

	snprintf(point, sizeof(point), "client-%u", k);
	r = client_connect(&o, &b->all[k], error, sizeof(error));
	if (r)
		die(r, "client %u cannot connect (%s)", k, error);
}

static uint64_t directory_make(struct bench *b, const char *name)
{
	struct client *c = b->all[b->clients];
	struct entry made, file;
	int r = client_mkdir(c, client_root(c), name, 0755, &root, &made);

	if (!r)
		r = client_mknod(c, made.attr.inode, "file", S_IFREG | 0644, 0, &root, &file);
	if (r)
		die(r, "cannot make %s", name);
	return made.attr.inode;
}

static void make_one(struct bench *b, unsigned k)
{
	char name[32];

	if (k < b->directories) {
		snprintf(name, sizeof(name), "shared-%u", k);
		b->shared[k] = directory_make(b, name);
	} else {
		snprintf(name, sizeof(name), "single-%u", k - b->directories);
		b->single[k - b->directories] = directory_make(b, name);
	}
}

static void directory_learn(struct bench *b, struct client *c, uint64_t inode)
{
	struct entry e;

	for (unsigned i = 0; i < b->lookups; i++) {
		int r = client_lookup(c, inode, "missing", &e);

		if (r != -ENOENT)
			die(r, "looking up a name that is not there");
	}
}

static void learn_one(struct bench *b, unsigned k)
{
	for (unsigned d = 0; d < b->directories; d++)
		directory_learn(b, b->all[k], b->shared[(d + k) % b->directories]);
	if (!k)
		for (unsigned d = 0; d < b->changes; d++)
			directory_learn(b, b->all[k], b->single[d]);
}

/* Whether a client knows a directory shows in how long it takes to answer for a missing name. */
static void probe_one(struct bench *b, unsigned k)
{
	for (unsigned d = 0; d < b->directories; d += 1 + b->directories / 200) {
		int64_t began = now_ns();
		struct entry e;
		int r = client_lookup(b->all[k], b->shared[d], "absent", &e);

		if (r != -ENOENT)
			die(r, "looking up a name that is not there");
		atomic_fetch_add(now_ns() - began < LOCAL_NS ? &b->local : &b->asked, 1);
	}
}

static void verify_one(struct bench *b, unsigned k)
{
	struct entry e;

	for (unsigned d = 0; d < b->changes; d++) {
		int r = client_lookup(b->all[k], b->shared[d], "new", &e);

		if (r)
			die(r, "client %u does not see a file that was made in directory %u", k, d);
	}
}

static int compare_times(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* Makes a file in each; *median and *most in ms. */
static void change(struct bench *b, const uint64_t *directories, double *median, double *most)
{
	struct client *c = b->all[b->clients];
	int64_t *took = calloc(b->changes + 1, sizeof(*took));

	if (!took)
		die(ENOMEM, "cannot measure");
	for (unsigned d = 0; d < b->changes; d++) {
		int64_t began = now_ns();
		struct entry e;
		int r = client_mknod(c, directories[d], "new", S_IFREG | 0644, 0, &root, &e);

		if (r)
			die(r, "cannot make a file in directory %u", d);
		took[d] = now_ns() - began;
	}
	qsort(took, b->changes, sizeof(*took), compare_times);
	*median = (double)took[b->changes / 2] / 1e6;
	*most = b->changes ? (double)took[b->changes - 1] / 1e6 : 0;
	free(took);
}

static unsigned number_of(const char *text, unsigned least, unsigned most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*end || !*text || value < least || value > most) {
		fprintf(stderr, "clients: %s is not a number from %u to %u\n", text, least, most);
		exit(2);
	}
	return (unsigned)value;
}

static void arguments(int argc, char **argv, struct bench *b)
{
	static const struct option options[] = { { "clients", 1, NULL, 'c' }, { "directories", 1, NULL, 'd' },
						 { "lookups", 1, NULL, 'l' }, { "changes", 1, NULL, 'r' },
						 { "threads", 1, NULL, 't' }, { "server-pid", 1, NULL, 'p' },
						 { NULL, 0, NULL, 0 } };
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case 'c': b->clients = number_of(optarg, 1, 2000); break;
		case 'd': b->directories = number_of(optarg, 1, 1000000); break;
		case 'l': b->lookups = number_of(optarg, 0, 1000); break;
		case 'r': b->changes = number_of(optarg, 1, 10000); break;
		case 't': b->threads = number_of(optarg, 1, 64); break;
		case 'p': b->server_pid = number_of(optarg, 1, 1u << 30); break;
		default: exit(2);
		}
	}
	if (argc - optind != 2 || b->changes > b->directories) {
		fprintf(stderr, "usage: clients SERVER VOLUME [OPTION...]; see the top of clients.c\n");
		exit(2);
	}
	b->server = argv[optind];
	b->volume = argv[optind + 1];
}

int main(int argc, char **argv)
{
	struct bench b = { .clients = 200, .directories = 10000, .lookups = 9, .changes = 50, .threads = 8 };
	double made_ms, connected_ms, learned_ms, one_median, one_most, all_median, all_most;
	unsigned long server[3], mine[3], local, asked;

	arguments(argc, argv, &b);
	b.all = calloc(b.clients + 1, sizeof(*b.all));
	b.shared = calloc(b.directories, sizeof(*b.shared));
	b.single = calloc(b.changes, sizeof(*b.single));
	if (!b.all || !b.shared || !b.single)
		die(ENOMEM, "cannot begin");
	connect_one(&b, b.clients);
	made_ms = everybody(&b, b.directories + b.changes, make_one);
	server[0] = memory_kib(b.server_pid);
	mine[0] = memory_kib(getpid());
	connected_ms = everybody(&b, b.clients, connect_one);
	server[1] = memory_kib(b.server_pid);
	mine[1] = memory_kib(getpid());
	learned_ms = everybody(&b, b.clients, learn_one);
	server[2] = memory_kib(b.server_pid);
	mine[2] = memory_kib(getpid());
	everybody(&b, b.clients, probe_one);
	local = atomic_load(&b.local);
	asked = atomic_load(&b.asked);
	change(&b, b.single, &one_median, &one_most);
	change(&b, b.shared, &all_median, &all_most);
	everybody(&b, b.clients, verify_one);
	printf("{\"clients\": %u, \"directories\": %u, \"make_ms\": %.0f, \"connect_ms\": %.0f, \"learn_ms\": %.0f, "
	       "\"answered_locally\": %.3f, \"server_kib\": [%lu, %lu, %lu], \"client_kib\": [%lu, %lu, %lu], "
	       "\"server_bytes_a_lease\": %.1f, \"client_bytes_a_lease\": %.1f, "
	       "\"recall_one_ms\": [%.3f, %.3f], \"recall_all_ms\": [%.3f, %.3f]}\n",
	       b.clients, b.directories, made_ms, connected_ms, learned_ms,
	       (double)local / (double)(local + asked ? local + asked : 1), server[0], server[1], server[2], mine[0], mine[1],
	       mine[2], (double)((long)server[2] - (long)server[1]) * 1024 / b.clients / b.directories,
	       (double)((long)mine[2] - (long)mine[1]) * 1024 / b.clients / b.directories, one_median, one_most, all_median,
	       all_most);
	fflush(stdout);
	for (unsigned k = 0; k <= b.clients; k++)
		client_disconnect(b.all[k]);
	free(b.all);
	free(b.shared);
	free(b.single);
	return 0;
}
