/* Emulated accelerators: does storage keep them busy?
 *
 * Each accelerator is a process that takes batches in order and "computes" on each for a fixed time,
 * in which it sleeps.  Its --workers loader processes make whole batches in turn, as those of
 * PyTorch's DataLoader: worker w makes the batches w, w + W, w + 2W ..., reads the images into
 * memory shared with the accelerator, compares every byte, and is at most two batches ahead.
 *
 *     worker 0:  read batch 0 | read batch 2 | ...  -- full -->  accelerator: compute 0 | compute 1 | ...
 *     worker 1:  read batch 1 | read batch 3 | ...  -- full -->
 *                                                   <-- empty --
 *
 * Utilisation is the time computed, of the time from the first batch's arrival on to the end: filling
 * the pipe once is not a matter of the steady state, and is reported apart.  An incomplete last batch is
 * left out. */
#include "load.h"
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define DEPTH 2 /* batches a worker is ahead; PyTorch's prefetch_factor */
#define ALIGNMENT 64

struct pipe {
	sem_t full, empty;
	uint8_t *batches[DEPTH];
};

struct accelerators {
	uint64_t slot_bytes;
	struct pipe pipes[]; /* of worker w of accelerator a: a * workers + w */
};

static void *shared_memory(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		die("cannot get %zu bytes of shared memory", bytes);
	return memory;
}

/* Processes 0 to A-1 are the accelerators; then come the workers of the first, of the second ... */
void setup_accelerators(struct job *job)
{
	uint64_t pipes = job->accelerator_count * job->workers;
	struct accelerators *all = shared_memory(sizeof(*all) + pipes * sizeof(all->pipes[0]));

	job->processes = job->accelerator_count * (1 + job->workers);
	/* Sizes differ by half at most, so that a batch of a few hundred is hardly larger than its mean; work() checks. */
	all->slot_bytes = job->batch * (job->size + job->size / 4) + 2 * job->size;
	for (uint64_t p = 0; p < pipes; p++) {
		if (sem_init(&all->pipes[p].full, 1, 0) || sem_init(&all->pipes[p].empty, 1, DEPTH))
			die("cannot make a semaphore");
		for (unsigned i = 0; i < DEPTH; i++)
			all->pipes[p].batches[i] = shared_memory(all->slot_bytes);
	}
	job->accelerators = all;
}

static void sem_take(sem_t *s)
{
	while (sem_wait(s))
		;
}

static uint64_t batches_of(const struct job *job) { return job->files / job->accelerator_count / job->batch; }

static void work(struct job *job, uint64_t accelerator, uint64_t worker)
{
	struct accelerators *all = job->accelerators;
	struct pipe *pipe = &all->pipes[accelerator * job->workers + worker];
	uint64_t *order = shuffle_make(job, true), first = accelerator * batches_of(job) * job->batch;

	for (uint64_t batch = worker, turn = 0; batch < batches_of(job); batch += job->workers, turn++) {
		uint64_t used = 0;

		sem_take(&pipe->empty);
		for (uint64_t i = 0; i < job->batch; i++) {
			uint64_t size;

			if (used + 2 * job->size > all->slot_bytes)
				die("a batch is larger than expected");
			size = image_read(job, order[first + batch * job->batch + i], pipe->batches[turn % DEPTH] + used);
			used += (size + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
			job->result->bytes += size;
		}
		sem_post(&pipe->full);
	}
	free(order);
}

static void compute(int64_t until_ns)
{
	struct timespec t = { until_ns / 1000000000, until_ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

static void accelerate(struct job *job, uint64_t accelerator)
{
	struct result *r = job->result;
	int64_t first_ns = 0;

	for (uint64_t batch = 0; batch < batches_of(job); batch++) {
		struct pipe *pipe = &job->accelerators->pipes[accelerator * job->workers + batch % job->workers];
		int64_t since = now_ns();

		sem_take(&pipe->full);
		if (!batch) {
			first_ns = now_ns();
			r->first_ns = first_ns - r->began_ns;
		}
		operation_done(job, &since, 0);
		sem_post(&pipe->empty); /* it is on the device now */
		compute(since + (int64_t)job->batch_us * 1000);
		r->compute_ns += (int64_t)job->batch_us * 1000;
	}
	r->computing_ns = now_ns() - first_ns;
}

void run_accelerators(struct job *job)
{
	uint64_t worker = job->self - job->accelerator_count;

	job->verify = true;
	if (job->self < job->accelerator_count)
		accelerate(job, job->self);
	else
		work(job, worker / job->workers, worker % job->workers);
}
