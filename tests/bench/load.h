/* What the workloads of load share: the job, how operations are counted, paths, and file contents.
 *
 * A workload's `setup` runs once, before the processes are forked; its `prepare` runs in each
 * process, before all of them start together; its `run` is what is measured.  Errors end
 * the process with a message (die), which ends the others, too. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PATH_BYTES 64 /* of names made here, relative to FOLDER */

/* Latencies in nanoseconds, 16 steps to each power of two: within 6 %. */
#define STEPS 16
#define BUCKETS (64 * STEPS)

/* One process's part; lies in memory shared with the parent. */
struct result {
	uint64_t count, bytes;
	int64_t began_ns, ended_ns, cpu_ns;
	int64_t compute_ns, computing_ns, first_ns; /* accelerators: busy, of how long, and the wait for the first batch */
	uint64_t longest_ns;
	uint64_t histogram[BUCKETS];
};

struct noise;
struct accelerators;

struct job {
	const char *folder;
	int root; /* descriptor of the folder */
	uint64_t processes, files, folders, size, block, count, seed;
	uint64_t accelerator_count, workers, batch, batch_us;
	bool fsync, verify, advise_random;
	uint64_t self;   /* number of this process */
	uint64_t *order; /* this process's files in the order to touch them */
	uint64_t order_count;
	uint8_t *buffer;           /* of the block, or of the largest file, page aligned */
	const struct noise *noise; /* contents are made of */
	struct accelerators *accelerators;
	struct result *result;
};

/* load.c */
void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...);
int64_t now_ns(void);
uint64_t random_next(uint64_t *state);
/* The numbers below job->files, shuffled by the seed (freed by the caller). */
uint64_t *shuffle_make(const struct job *job, bool shuffled);
/* Counts one operation that began at *since, and starts the next one. */
void operation_done(struct job *job, int64_t *since, uint64_t bytes);
void file_path(const struct job *job, uint64_t file, char out[PATH_BYTES]);
void write_all(int fd, const uint8_t *data, size_t size, const char *path);
/* Reads until `size` bytes or the end; how many there were. */
size_t read_all(int fd, uint8_t *into, size_t size, const char *path);

/* content.c: bytes that do not compress, different in every file, made and checked at the speed of
 * memory at any place (`at`, a multiple of 8) of the file with that seed. */
const struct noise *noise_make(void);
void content_fill(const struct noise *n, uint64_t seed, uint64_t at, uint8_t *out, size_t size);
bool content_same(const struct noise *n, uint64_t seed, uint64_t at, const uint8_t *data, size_t size);
/* Looks at the first and the last whole word alone. */
bool content_ends_same(const struct noise *n, uint64_t seed, uint64_t at, const uint8_t *data, size_t size);

/* images.c: a folder of images.  Sizes are from half to one and a half of --size, the same in every run. */
uint64_t image_bytes(const struct job *job, uint64_t image);
/* Open, fstat, read, close, as a loader in Python does; `into` has room for one byte more than the image. */
uint64_t image_read(const struct job *job, uint64_t image, uint8_t *into);
void run_ingest(struct job *job);
void run_epoch(struct job *job);
void run_traverse(struct job *job);

/* large.c: shards, mapped tables, checkpoints. */
void run_shards_write(struct job *job);
void run_shards(struct job *job);
void run_mmap(struct job *job);
void prepare_checkpoint(struct job *job);
void run_checkpoint(struct job *job);
void run_checkpoint_read(struct job *job);

/* accelerator.c */
void setup_accelerators(struct job *job);
void run_accelerators(struct job *job);

#endif
