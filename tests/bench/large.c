/* Large files: shards read from front to back, a table read through mmap at random places, checkpoints.
 *
 * Shards are shard.NNNNN in the folder, --files of --size each; the table is the first of them.
 * A checkpoint is one file a process, checkpoint.NNNNN. */
#include "load.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARD_SEED (1ULL << 32) /* no image has it */
#define CHECKPOINT_SEED (2ULL << 32)

static void numbered_path(const char *kind, uint64_t number, char out[PATH_BYTES])
{
	snprintf(out, PATH_BYTES, "%s.%05llu", kind, (unsigned long long)number);
}

static uint64_t part_of(const struct job *job, uint64_t at) { return job->size - at < job->block ? job->size - at : job->block; }

static void large_read(struct job *job, const char *path, uint64_t seed, int64_t *since)
{
	int fd = openat(job->root, path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("cannot open %s", path);
	for (uint64_t at = 0; at < job->size; at += job->block) {
		uint64_t part = part_of(job, at);
		size_t have = read_all(fd, job->buffer, part, path);

		errno = 0;
		if (have != part)
			die("%s ends at %llu", path, (unsigned long long)(at + have));
		if (!(job->verify ? content_same : content_ends_same)(job->noise, seed, at, job->buffer, part))
			die("%s has other bytes at %llu", path, (unsigned long long)at);
		operation_done(job, since, part);
	}
	close(fd);
}

void run_shards_write(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->order_count; i++) {
		int fd;

		numbered_path("shard", job->order[i], path);
		fd = openat(job->root, path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
		if (fd < 0)
			die("cannot create %s", path);
		for (uint64_t at = 0; at < job->size; at += job->block) {
			uint64_t part = part_of(job, at);

			content_fill(job->noise, SHARD_SEED + job->order[i], at, job->buffer, part);
			write_all(fd, job->buffer, part, path);
			operation_done(job, &since, part);
		}
		if (fsync(fd) || close(fd))
			die("cannot fsync %s", path);
	}
}

void run_shards(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];

	for (uint64_t i = 0; i < job->order_count; i++) {
		numbered_path("shard", job->order[i], path);
		large_read(job, path, SHARD_SEED + job->order[i], &since);
	}
}

/* Rows of --block at random places.  Every byte of a row is looked at. */
void run_mmap(struct job *job)
{
	int64_t since = job->result->began_ns;
	uint64_t state = job->seed * 1000 + job->self, rows = job->size / job->block;
	char path[PATH_BYTES];
	uint8_t *table;
	int fd;

	numbered_path("shard", 0, path);
	fd = openat(job->root, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("cannot open %s", path);
	table = mmap(NULL, job->size, PROT_READ, MAP_SHARED, fd, 0);
	if (table == MAP_FAILED || (job->advise_random && madvise(table, job->size, MADV_RANDOM)))
		die("cannot map %s", path);
	close(fd);
	for (uint64_t i = job->self; i < job->count; i += job->processes) {
		uint64_t at = random_next(&state) % rows * job->block;

		errno = 0;
		if (!content_same(job->noise, SHARD_SEED, at, table + at, job->block))
			die("%s has other bytes at %llu", path, (unsigned long long)at);
		operation_done(job, &since, job->block);
	}
	munmap(table, job->size);
}

/* The tensors are in memory before the clock starts. */
void prepare_checkpoint(struct job *job)
{
	free(job->buffer);
	if (posix_memalign((void **)&job->buffer, 4096, job->size))
		die("cannot get memory for the checkpoint");
	content_fill(job->noise, CHECKPOINT_SEED + job->self, 0, job->buffer, job->size);
}

/* The name always means a whole checkpoint, the last or the one before: what torch.save into a
 * temporary file, fsync, rename and fsync of the folder give. */
void run_checkpoint(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES], temporary[PATH_BYTES];
	int fd;

	numbered_path("checkpoint", job->self, path);
	numbered_path("checkpoint.new", job->self, temporary);
	fd = openat(job->root, temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		die("cannot create %s", temporary);
	for (uint64_t at = 0; at < job->size; at += job->block) {
		write_all(fd, job->buffer + at, part_of(job, at), temporary);
		operation_done(job, &since, part_of(job, at));
	}
	if (fsync(fd) || close(fd))
		die("cannot fsync %s", temporary);
	if (renameat(job->root, temporary, job->root, path))
		die("cannot rename %s", temporary);
	if (fsync(job->root))
		die("cannot fsync %s", job->folder);
}

void run_checkpoint_read(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];

	numbered_path("checkpoint", job->self, path);
	large_read(job, path, CHECKPOINT_SEED + job->self, &since);
}
