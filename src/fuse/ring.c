#include "fuse/ring.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/ring_state.h"
#include "fuse/thread.h"

#define ENABLED "/sys/module/fuse/parameters/enable_uring"
#define POSSIBLE "/sys/devices/system/cpu/possible"
#define COMPLETIONS 1024u
#define RESERVE_IN_ALL 2048u /* slots that are registered at first; each costs a page */
#define RESERVE_LEAST 16u
#define RESERVE_MOST 128u

/* ---- What the system has ---- */

static bool text_read(const char *path, char *out, size_t size)
{
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);

	out[n > 0 ? n : 0] = 0;
	return n > 0;
}

bool ring_possible(char *why, size_t why_size)
{
	char text[8];

	if (!text_read(ENABLED, text, sizeof(text))) {
		snprintf(why, why_size, "this kernel has no FUSE over io_uring; Linux 6.14 or later has it");
		return false;
	}
	if (text[0] == 'Y' || text[0] == '1')
		return true;
	snprintf(why, why_size, "FUSE over io_uring is switched off; root can switch it on: echo Y > " ENABLED);
	return false;
}

/* CPUs in a list such as "0-3,8"; 0: it makes no sense. */
static unsigned cpus_count(const char *list)
{
	unsigned count = 0;

	for (;;) {
		char *end;
		unsigned long first = strtoul(list, &end, 10), last = first;

		if (end == list)
			return 0;
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		if (last < first || last >= RING_QUEUES_MOST)
			return 0;
		count += (unsigned)(last - first) + 1;
		if (*end != ',')
			return count;
		list = end + 1;
	}
}

static unsigned queues_count(void)
{
	char list[1024];

	return text_read(POSSIBLE, list, sizeof(list)) ? cpus_count(list) : 0;
}

/* Until 6.18.3 the kernel keeps the last page it has copied from or to, for ever once we have given it back (its commit 6e0d7f7f4a43). */
static bool ring_trims(void)
{
	unsigned long version[3] = { 0 };
	struct utsname name;
	char *at = name.release;

	if (uname(&name))
		return false;
	for (unsigned i = 0; i < 3; i++) {
		version[i] = strtoul(at, &at, 10);
		at += *at == '.';
	}
	return version[0] != 6 ? version[0] > 6 : version[1] != 18 ? version[1] > 18 : version[2] >= 3;
}

/* A CPU that is possible but not there, or not ours, cannot be pinned to: the thread runs anywhere then. */
void cpu_pin(int cpu)
{
	uint8_t set[RING_QUEUES_MOST / 8];

	memset(set, cpu < 0 ? 0xff : 0, sizeof(set));
	if (cpu >= 0)
		set[cpu / 8] |= (uint8_t)(1u << (cpu % 8));
	if (sched_setaffinity(0, sizeof(set), (cpu_set_t *)set) && cpu >= 0)
		log_debug("fuse: cannot pin a thread to CPU %d: %s", cpu, strerror(errno));
}

int uring_open(struct io_uring *u, unsigned entries, int device)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
		.cq_entries = entries > 4 ? COMPLETIONS : 2 * entries,
	};
	int error = io_uring_queue_init_params(entries, u, &p);

	if (error)
		return error;
	error = io_uring_register_files(u, &device, 1);
	if (error) {
		io_uring_queue_exit(u);
		return error;
	}
	/* Saves looking up the descriptor in every call; works without, too. */
	io_uring_register_ring_fd(u);
	return 0;
}

/* ---- Phases ---- */

struct slot *ring_slot_new(struct ring *r, unsigned queue)
{
	struct slot *s = slot_new((uint16_t)queue);

	if (s) {
		LOCKED(&r->lock);
		s->all = r->slots;
		r->slots = s;
	}
	return s;
}

void ring_reached(struct ring *r, int error)
{
	LOCKED(&r->lock);
	r->reached++;
	if (error && !r->error)
		r->error = error;
	pthread_cond_broadcast(&r->moved);
}

bool ring_wait(struct ring *r, enum ring_phase phase)
{
	LOCKED(&r->lock);
	while (r->phase < phase)
		pthread_cond_wait(&r->moved, &r->lock);
	return r->phase != PHASE_STOPPING;
}

/* Begins a phase and waits until so many threads are through with it. */
static int phase_run(struct ring *r, enum ring_phase phase, unsigned threads)
{
	LOCKED(&r->lock);
	r->phase = phase;
	pthread_cond_broadcast(&r->moved);
	while (r->reached < threads)
		pthread_cond_wait(&r->moved, &r->lock);
	r->reached = 0;
	return r->error;
}

static int threads_start(struct ring *r)
{
	int error = 0;

	LOCKED(&r->lock);
	for (unsigned i = 0; i < r->queue_count && !error; i++)
		error = worker_start(r, &r->queues[i], true);
	if (!error)
		error = thread_start(&r->attendant, attendant_run, r);
	r->attending = !error;
	return error;
}

/* ---- Life ---- */

static unsigned clamp(unsigned value, unsigned least, unsigned most)
{
	return value < least ? least : value > most ? most : value;
}

static struct ring *ring_new(struct session *s, int fd, unsigned queues)
{
	struct ring *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->moved, NULL);
	r->session = s;
	r->device = fd;
	r->queue_count = queues;
	r->trims = ring_trims();
	r->reserve_batch = clamp(RESERVE_IN_ALL / queues, RESERVE_LEAST, RESERVE_MOST);
	r->workers_most = RING_THREADS_MOST + RING_THREADS_A_QUEUE * queues;
	r->mail_event = eventfd(0, EFD_CLOEXEC);
	r->queues = calloc(queues, sizeof(*r->queues));
	r->workers = calloc(r->workers_most, sizeof(*r->workers));
	if (r->mail_event < 0 || !r->queues || !r->workers) {
		ring_free(r);
		return NULL;
	}
	for (unsigned i = 0; i < queues; i++) {
		r->queues[i].number = i;
		pthread_cond_init(&r->queues[i].work, NULL);
	}
	return r;
}

int ring_start(struct session *s, int fd, struct ring **out)
{
	unsigned queues = queues_count();
	struct ring *r = queues ? ring_new(s, fd, queues) : NULL;
	int error;

	if (!r)
		return queues ? -ENOMEM : -EOPNOTSUPP;
	thread_wakeable();
	error = threads_start(r);
	if (!error)
		error = phase_run(r, PHASE_STARTING, queues + 1);
	if (error) {
		ring_stop(r);
		ring_free(r);
		return error;
	}
	*out = r;
	return 0;
}

int ring_open(struct ring *r)
{
	int error = phase_run(r, PHASE_RESERVE, 1);

	return error ? error : phase_run(r, PHASE_OPEN, r->queue_count);
}

static void workers_wake(struct ring *r)
{
	for (unsigned i = 0; i < r->workers_most; i++) {
		struct worker *w = r->workers[i];

		if (w && w->state == WORKER_RUNNING && atomic_load(&w->waiting))
			thread_wake(w->thread);
	}
	thread_wake_pause(&r->moved, &r->lock);
}

void ring_stop(struct ring *r)
{
	atomic_store(&r->stopping, true);
	{
		LOCKED(&r->lock);
		r->phase = PHASE_STOPPING;
		pthread_cond_broadcast(&r->moved);
		for (unsigned i = 0; i < r->queue_count; i++)
			pthread_cond_broadcast(&r->queues[i].work);
		while (r->running)
			workers_wake(r);
	}
	/* The attendant last: until then answers are committed. */
	atomic_store(&r->closing, true);
	mail_wake(r);
	if (r->attending)
		pthread_join(r->attendant, NULL);
	r->attending = false;
	for (unsigned i = 0; i < r->workers_most; i++) {
		if (r->workers[i] && r->workers[i]->state == WORKER_ENDED) {
			pthread_join(r->workers[i]->thread, NULL);
			r->workers[i]->state = WORKER_FREE;
		}
	}
}

void ring_free(struct ring *r)
{
	struct slot *next;

	if (!r)
		return;
	for (struct slot *s = r->slots; s; s = next) {
		next = s->all;
		slot_free(s);
	}
	for (unsigned i = 0; r->queues && i < r->queue_count; i++)
		pthread_cond_destroy(&r->queues[i].work);
	for (unsigned i = 0; r->workers && i < r->workers_most; i++)
		free(r->workers[i]);
	free(r->workers);
	free(r->queues);
	if (r->mail_event >= 0)
		close(r->mail_event);
	pthread_cond_destroy(&r->moved);
	pthread_mutex_destroy(&r->lock);
	free(r);
}
