/* load: one workload over a folder, by several processes that start together.
 *
 *   load WORKLOAD FOLDER [--processes P] [--files N] [--folders F] [--size BYTES]
 *        [--block BYTES] [--count N] [--seed S] [--fsync] [--verify] ...
 *
 *   create    makes N files of BYTES in F folders: create, write, close (--fsync: each one)
 *   stat      fstatat of each of the N files (or --count of them) once, in random order
 *   open      open, read, close of each of them, likewise
 *   walk      readdir and fstatat of everything below FOLDER, as find -printf does
 *   list      readdir alone
 *   delete    unlink of the N files, in the order they were made; then the folders
 *   write     one file of BYTES a process in calls of --block, then fsync
 *   read      reads these files from front to back
 *   pread     --count (or as many as there are) blocks at random places of the first of them
 *
 * and those of training jobs, whose files are of --size on average:
 *
 *   ingest           makes a folder of images, then fsync of every folder
 *   epoch            open, fstat, read, close of every image, in random order
 *   traverse         stat, open, close of every image, in random order
 *   shards-write     N files of BYTES, each with fsync
 *   shards           reads them in calls of --block, the files in random order
 *   mmap             --count rows of --block at random places of the first shard (--advise-random: MADV_RANDOM)
 *   checkpoint       a file of BYTES a process: write to another name, fsync, rename, fsync of the folder
 *   checkpoint-read  reads these
 *   accelerate       --accelerators with --workers each, --batch images a batch, --batch-us for each
 *
 * File i of N is in folder i*F/N and process p has the files p*N/P..(p+1)*N/P-1 to
 * create and delete: with F = P each process has a folder of its own, with F = 1
 * all share one.  A later call finds them by the same N, F and BYTES.
 *
 * Every file begins with its own number, so that reading back the wrong thing is noticed; those of
 * training jobs are noise that differs from file to file, of which both ends are checked in every file or
 * block (--verify: everything).  Prints one line of JSON; any error is a message and exit code 1. */
#include "load.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX 64

struct shared {
	pthread_barrier_t start;
	struct result results[PROCESSES_MAX];
};

void die(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	fprintf(stderr, "load: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, ": %s\n", error ? strerror(error) : "not what was written");
	exit(1);
}

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* What this process has used. */
static int64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static unsigned bucket_of(uint64_t ns)
{
	unsigned power;

	if (ns < STEPS)
		return (unsigned)ns;
	power = 63 - (unsigned)__builtin_clzll(ns);
	return (power - 3) * STEPS + (unsigned)((ns >> (power - 4)) & (STEPS - 1));
}

/* The lower edge of a bucket: the inverse of bucket_of. */
static uint64_t bucket_ns(unsigned bucket)
{
	unsigned power = bucket / STEPS + 3;

	if (bucket < STEPS)
		return bucket;
	return (1ULL << power) + ((uint64_t)(bucket % STEPS) << (power - 4));
}

void operation_done(struct job *job, int64_t *since, uint64_t bytes)
{
	int64_t now = now_ns();
	uint64_t took = (uint64_t)(now - *since);
	struct result *r = job->result;

	r->histogram[bucket_of(took)]++;
	if (took > r->longest_ns)
		r->longest_ns = took;
	r->count++;
	r->bytes += bytes;
	*since = now;
}

uint64_t random_next(uint64_t *state) /* splitmix64 */
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

void file_path(const struct job *job, uint64_t file, char out[PATH_BYTES])
{
	snprintf(out, PATH_BYTES, "%05llu/%08llu", (unsigned long long)(file * job->folders / job->files),
		 (unsigned long long)file);
}

static void large_path(uint64_t process, char out[PATH_BYTES])
{
	snprintf(out, PATH_BYTES, "large.%llu", (unsigned long long)process);
}

uint64_t *shuffle_make(const struct job *job, bool shuffled)
{
	uint64_t *all = malloc((job->files + 1) * sizeof(*all)), state = job->seed;

	if (!all)
		die("cannot list %llu files", (unsigned long long)job->files);
	for (uint64_t i = 0; i < job->files; i++)
		all[i] = i;
	for (uint64_t i = job->files; shuffled && i > 1; i--) {
		uint64_t j = random_next(&state) % i, kept = all[i - 1];

		all[i - 1] = all[j];
		all[j] = kept;
	}
	return all;
}

/* Which files are this process's, and in which order.  The shuffle is of the
 * whole list, the same in every process, which then takes its part of it. */
static void order_make(struct job *job, bool shuffled)
{
	uint64_t used = shuffled && job->count && job->count < job->files ? job->count : job->files;
	uint64_t first = job->self * used / job->processes, end = (job->self + 1) * used / job->processes;
	uint64_t *all = shuffle_make(job, shuffled);

	job->order_count = end - first;
	job->order = malloc((job->order_count + 1) * sizeof(*job->order));
	if (!job->order)
		die("cannot list %llu files", (unsigned long long)job->order_count);
	memcpy(job->order, all + first, job->order_count * sizeof(*all));
	free(all);
}

void write_all(int fd, const uint8_t *data, size_t size, const char *path)
{
	while (size) {
		ssize_t n = write(fd, data, size);

		if (n < 0)
			die("cannot write %s", path);
		data += n;
		size -= (size_t)n;
	}
}

size_t read_all(int fd, uint8_t *into, size_t size, const char *path)
{
	size_t have = 0;

	while (have < size) {
		ssize_t n = read(fd, into + have, size - have);

		if (n < 0)
			die("cannot read %s", path);
		if (!n)
			break;
		have += (size_t)n;
	}
	return have;
}

static void stamp_check(const uint8_t *data, uint64_t expected, const char *path)
{
	uint64_t found;

	memcpy(&found, data, sizeof(found));
	errno = 0;
	if (found != expected)
		die("%s begins with %llu instead of %llu", path, (unsigned long long)found, (unsigned long long)expected);
}

/* ---- Workloads ---- */

static void run_create(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->order_count; i++) {
		int fd;

		file_path(job, job->order[i], path);
		memcpy(job->buffer, &job->order[i], sizeof(uint64_t));
		fd = openat(job->root, path, O_CREAT | O_EXCL | O_WRONLY, 0644);
		if (fd < 0)
			die("cannot create %s", path);
		write_all(fd, job->buffer, job->size, path);
		if (job->fsync && fsync(fd))
			die("cannot fsync %s", path);
		if (close(fd))
			die("cannot close %s", path);
		operation_done(job, &since, job->size);
	}
}

static void run_stat(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];
	struct stat st;

	for (uint64_t i = 0; i < job->order_count; i++) {
		file_path(job, job->order[i], path);
		if (fstatat(job->root, path, &st, AT_SYMLINK_NOFOLLOW))
			die("cannot stat %s", path);
		errno = 0;
		if ((uint64_t)st.st_size != job->size)
			die("%s is %lld bytes long", path, (long long)st.st_size);
		operation_done(job, &since, 0);
	}
}

static void run_open(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->order_count; i++) {
		size_t have;
		int fd;

		file_path(job, job->order[i], path);
		fd = openat(job->root, path, O_RDONLY);
		if (fd < 0)
			die("cannot open %s", path);
		have = read_all(fd, job->buffer, job->size, path);
		close(fd);
		errno = 0;
		if (have != job->size)
			die("%s has %zu bytes", path, have);
		if (have >= sizeof(uint64_t))
			stamp_check(job->buffer, job->order[i], path);
		operation_done(job, &since, have);
	}
}

/* What is below `fd` (closed here).  At the top each process takes each P-th folder. */
static void walk_folder(struct job *job, int fd, bool top, bool attributes, int64_t *since)
{
	DIR *d = fdopendir(fd);
	uint64_t index = 0;
	struct dirent *e;

	if (!d)
		die("cannot list a folder");
	while ((errno = 0, e = readdir(d))) {
		bool folder = e->d_type == DT_DIR;
		struct stat st;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (top && index++ % job->processes != job->self)
			continue;
		if (attributes || e->d_type == DT_UNKNOWN) {
			if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
				die("cannot stat %s", e->d_name);
			folder = S_ISDIR(st.st_mode);
		}
		operation_done(job, since, 0);
		if (folder) {
			int below = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY);

			if (below < 0)
				die("cannot open folder %s", e->d_name);
			walk_folder(job, below, false, attributes, since);
		}
	}
	if (errno)
		die("cannot go on listing a folder");
	closedir(d);
}

static void run_listing(struct job *job, bool attributes)
{
	int64_t since = job->result->began_ns;
	int fd = openat(job->root, ".", O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		die("cannot open %s", job->folder);
	walk_folder(job, fd, true, attributes, &since);
}

static void run_walk(struct job *job) { run_listing(job, true); }

static void run_list(struct job *job) { run_listing(job, false); }

static void run_delete(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->order_count; i++) {
		file_path(job, job->order[i], path);
		if (unlinkat(job->root, path, 0))
			die("cannot delete %s", path);
		operation_done(job, &since, 0);
	}
}

static void run_write(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];
	int fd;

	large_path(job->self, path);
	fd = openat(job->root, path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
	if (fd < 0)
		die("cannot create %s", path);
	for (uint64_t at = 0; at < job->size; at += job->block) {
		uint64_t part = job->size - at < job->block ? job->size - at : job->block;

		memcpy(job->buffer, &at, sizeof(at));
		write_all(fd, job->buffer, part, path);
		operation_done(job, &since, part);
	}
	if (fsync(fd))
		die("cannot fsync %s", path);
	if (close(fd))
		die("cannot close %s", path);
}

static void run_read(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];
	int fd;

	large_path(job->self, path);
	fd = openat(job->root, path, O_RDONLY);
	if (fd < 0)
		die("cannot open %s", path);
	for (uint64_t at = 0; at < job->size; at += job->block) {
		uint64_t part = job->size - at < job->block ? job->size - at : job->block;
		size_t have = read_all(fd, job->buffer, part, path);

		errno = 0;
		if (have != part)
			die("%s ends at %llu", path, (unsigned long long)(at + have));
		stamp_check(job->buffer, at, path);
		operation_done(job, &since, part);
	}
	close(fd);
}

static void run_pread(struct job *job)
{
	int64_t since = job->result->began_ns;
	uint64_t state = job->seed + job->self, blocks = job->size / job->block, count = job->count ? job->count : blocks;
	char path[PATH_BYTES];
	int fd;

	large_path(0, path);
	fd = openat(job->root, path, O_RDONLY);
	if (fd < 0)
		die("cannot open %s", path);
	for (uint64_t i = job->self; i < count; i += job->processes) {
		uint64_t at = random_next(&state) % blocks * job->block;

		if (pread(fd, job->buffer, job->block, (off_t)at) != (ssize_t)job->block)
			die("cannot read %s at %llu", path, (unsigned long long)at);
		operation_done(job, &since, job->block);
	}
	close(fd);
}

/* The folders are made before and removed after the measured part. */
static void folders_make(struct job *job)
{
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->folders; i++) {
		snprintf(path, sizeof(path), "%05llu", (unsigned long long)i);
		if (mkdirat(job->root, path, 0755) && errno != EEXIST)
			die("cannot create folder %s", path);
	}
}

enum order { ORDER_NONE, ORDER_MADE, ORDER_RANDOM };

static const struct workload {
	const char *name;
	void (*run)(struct job *job);
	enum order order;
	void (*prepare)(struct job *job);
	void (*setup)(struct job *job);
} workloads[] = {
	{ "create", run_create, ORDER_MADE, .setup = folders_make },
	{ "stat", run_stat, ORDER_RANDOM },
	{ "open", run_open, ORDER_RANDOM },
	{ "walk", run_walk, ORDER_NONE },
	{ "list", run_list, ORDER_NONE },
	{ "delete", run_delete, ORDER_MADE },
	{ "write", run_write, ORDER_NONE },
	{ "read", run_read, ORDER_NONE },
	{ "pread", run_pread, ORDER_NONE },
	{ "ingest", run_ingest, ORDER_MADE, .setup = folders_make },
	{ "epoch", run_epoch, ORDER_RANDOM },
	{ "traverse", run_traverse, ORDER_RANDOM },
	{ "shards-write", run_shards_write, ORDER_MADE },
	{ "shards", run_shards, ORDER_RANDOM },
	{ "mmap", run_mmap, ORDER_NONE },
	{ "checkpoint", run_checkpoint, ORDER_NONE, .prepare = prepare_checkpoint },
	{ "checkpoint-read", run_checkpoint_read, ORDER_NONE },
	{ "accelerate", run_accelerators, ORDER_NONE, .setup = setup_accelerators },
};

/* ---- Processes and results ---- */

static void __attribute__((noreturn)) process_run(struct job *job, const struct workload *w, struct shared *shared)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (w->order != ORDER_NONE)
		order_make(job, w->order == ORDER_RANDOM);
	if (w->prepare)
		w->prepare(job);
	pthread_barrier_wait(&shared->start);
	job->result->began_ns = now_ns();
	job->result->cpu_ns = -cpu_ns();
	w->run(job);
	job->result->cpu_ns += cpu_ns();
	job->result->ended_ns = now_ns();
	exit(0);
}

static void folders_remove(const struct job *job)
{
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->folders; i++) {
		snprintf(path, sizeof(path), "%05llu", (unsigned long long)i);
		if (unlinkat(job->root, path, AT_REMOVEDIR))
			die("cannot remove folder %s", path);
	}
}

static double percentile_us(const struct result *all, double part)
{
	uint64_t wanted = (uint64_t)((double)all->count * part), seen = 0;

	for (unsigned i = 0; i < BUCKETS; i++) {
		seen += all->histogram[i];
		if (seen > wanted)
			return (double)bucket_ns(i) / 1000;
	}
	return (double)all->longest_ns / 1000;
}

static void results_print(const struct job *job, const struct workload *w, const struct shared *shared)
{
	struct result all = { .began_ns = INT64_MAX };
	double seconds;

	for (uint64_t p = 0; p < job->processes; p++) {
		const struct result *r = &shared->results[p];

		all.count += r->count;
		all.bytes += r->bytes;
		all.cpu_ns += r->cpu_ns;
		all.compute_ns += r->compute_ns;
		all.computing_ns += r->computing_ns;
		all.first_ns = r->first_ns > all.first_ns ? r->first_ns : all.first_ns;
		all.began_ns = r->began_ns < all.began_ns ? r->began_ns : all.began_ns;
		all.ended_ns = r->ended_ns > all.ended_ns ? r->ended_ns : all.ended_ns;
		all.longest_ns = r->longest_ns > all.longest_ns ? r->longest_ns : all.longest_ns;
		for (unsigned i = 0; i < BUCKETS; i++)
			all.histogram[i] += r->histogram[i];
	}
	seconds = (double)(all.ended_ns - all.began_ns) / 1e9;
	printf("{\"workload\": \"%s\", \"processes\": %llu, \"count\": %llu, \"bytes\": %llu, \"seconds\": %.6f, \"rate\": %.1f, "
	       "\"mib_per_second\": %.2f, \"cpu_seconds\": %.6f, ",
	       w->name, (unsigned long long)job->processes, (unsigned long long)all.count, (unsigned long long)all.bytes, seconds,
	       (double)all.count / seconds, (double)all.bytes / seconds / (1 << 20), (double)all.cpu_ns / 1e9);
	if (all.computing_ns)
		printf("\"utilisation\": %.4f, \"first_batch_seconds\": %.3f, ",
		       (double)all.compute_ns / (double)all.computing_ns, (double)all.first_ns / 1e9);
	printf("\"latency_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f}}\n", percentile_us(&all, 0.5),
	       percentile_us(&all, 0.9), percentile_us(&all, 0.99), (double)all.longest_ns / 1000);
}

/* One that failed ends the others: they might wait for it at the start. */
static int processes_wait(pid_t *children, uint64_t count)
{
	int failed = 0, status;

	for (uint64_t left = count; left; left--) {
		pid_t ended = wait(&status);
		bool well = ended > 0 && WIFEXITED(status) && !WEXITSTATUS(status);

		for (uint64_t i = 0; i < count; i++) {
			if (children[i] == ended)
				children[i] = 0;
			else if (!well && !failed && children[i] > 0)
				kill(children[i], SIGKILL);
		}
		failed |= !well;
	}
	return failed;
}

/* Of files that differ in size the largest is one and a half times the mean. */
static size_t buffer_size(const struct job *job, const struct workload *w)
{
	bool whole_files = w->order != ORDER_NONE && w->run != run_shards && w->run != run_shards_write;

	return (whole_files && 2 * job->size > job->block ? 2 * job->size : job->block) + sizeof(uint64_t);
}

static int workload_run(struct job *job, const struct workload *w)
{
	size_t buffer_bytes = buffer_size(job, w);
	uint64_t noise = job->seed;
	pid_t children[PROCESSES_MAX];
	pthread_barrierattr_t attributes;
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED || posix_memalign((void **)&job->buffer, 4096, buffer_bytes))
		die("cannot get memory");
	for (size_t i = 0; i < buffer_bytes; i++) /* does not compress, as photographs and tensors do not */
		job->buffer[i] = (uint8_t)random_next(&noise);
	job->noise = noise_make();
	if (w->setup)
		w->setup(job);
	pthread_barrierattr_init(&attributes);
	pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->start, &attributes, (unsigned)job->processes);
	for (job->self = 0; job->self < job->processes; job->self++) {
		job->result = &shared->results[job->self];
		children[job->self] = fork();
		if (children[job->self] < 0)
			die("cannot start process %llu", (unsigned long long)job->self);
		if (!children[job->self])
			process_run(job, w, shared);
	}
	if (processes_wait(children, job->processes))
		return 1;
	if (w->run == run_delete)
		folders_remove(job);
	results_print(job, w, shared);
	return 0;
}

static uint64_t number_parse(const char *text, uint64_t least, uint64_t most)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || end == text || value < least || value > most) {
		fprintf(stderr, "load: %s is not a number from %llu to %llu\n", text, (unsigned long long)least,
			(unsigned long long)most);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "processes", required_argument, NULL, 'p' },
		{ "files", required_argument, NULL, 'n' },
		{ "folders", required_argument, NULL, 'd' },
		{ "size", required_argument, NULL, 's' },
		{ "block", required_argument, NULL, 'b' },
		{ "count", required_argument, NULL, 'c' },
		{ "seed", required_argument, NULL, 'r' },
		{ "accelerators", required_argument, NULL, 'a' },
		{ "workers", required_argument, NULL, 'w' },
		{ "batch", required_argument, NULL, 'B' },
		{ "batch-us", required_argument, NULL, 'u' },
		{ "fsync", no_argument, NULL, 'f' },
		{ "verify", no_argument, NULL, 'v' },
		{ "advise-random", no_argument, NULL, 'm' },
		{ 0 },
	};
	struct job job = { .processes = 1,
			   .files = 1000,
			   .folders = 1,
			   .size = 4096,
			   .block = 1 << 20,
			   .seed = 1,
			   .accelerator_count = 2,
			   .workers = 2,
			   .batch = 400,
			   .batch_us = 223964 };
	const struct workload *w = NULL;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'p': job.processes = number_parse(optarg, 1, PROCESSES_MAX); break;
		case 'n': job.files = number_parse(optarg, 1, 99999999); break;
		case 'd': job.folders = number_parse(optarg, 1, 99999); break;
		case 's': job.size = number_parse(optarg, 0, 1ULL << 40); break;
		case 'b': job.block = number_parse(optarg, 8, 1 << 30); break;
		case 'c': job.count = number_parse(optarg, 1, 1ULL << 40); break;
		case 'r': job.seed = number_parse(optarg, 0, UINT64_MAX); break;
		case 'a': job.accelerator_count = number_parse(optarg, 1, 8); break;
		case 'w': job.workers = number_parse(optarg, 1, 7); break;
		case 'B': job.batch = number_parse(optarg, 1, 100000); break;
		case 'u': job.batch_us = number_parse(optarg, 1, 1000000000); break;
		case 'f': job.fsync = true; break;
		case 'v': job.verify = true; break;
		case 'm': job.advise_random = true; break;
		default: return 2;
		}
	}
	for (size_t i = 0; argc - optind == 2 && i < sizeof(workloads) / sizeof(workloads[0]); i++)
		if (!strcmp(argv[optind], workloads[i].name))
			w = &workloads[i];
	if (!w) {
		fprintf(stderr,
			"load: use it as load WORKLOAD FOLDER [--processes P] [--files N] ...; load.c lists the workloads\n");
		return 2;
	}
	job.folder = argv[optind + 1];
	job.root = open(job.folder, O_RDONLY | O_DIRECTORY);
	if (job.root < 0)
		die("cannot open %s", job.folder);
	return workload_run(&job, w);
}
