/* How chunks get into their backing file.
 *
 *   past the page cache       as a rule: whoever reads them now has them from elsewhere, and nobody knows who reads them next
 *   through it (keep_pages)   what will be read next by the kernel itself, which finds it in memory then; as long as the file is no
 *                             larger than a quarter of what memory is available.  A quarter, because until the file is complete
 *                             and closed, the pages that it is read through hold the same once more
 *
 * What goes through the page cache is not left to the kernel to be written later: while much is dirty it makes those wait who write,
 * whoever they are, and memory that is needed can only be had by writing it first.  So writing each run begins at once, and who adds
 * a run waits for the one FILL_RUNS before it, as he would for a write past the page cache.  What is written stays in memory,
 * clean. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/memory.h"
#include "cache/parts.h"
#include "cache/state.h"

#define DIRECT_ALIGN 4096u /* enough for every disk */
#define DIRECT_LEAST (256u << 10)
#define DIRECT_PARTS 64
#define MEMORY_AGAIN_NS (100 * NS_PER_MS)
#define MEMORY_SHARE 4u

static bool are_aligned(const struct iovec *parts, int count)
{
	for (int i = 0; i < count; i++)
		if ((uintptr_t)parts[i].iov_base % DIRECT_ALIGN || (parts[i].iov_len % DIRECT_ALIGN && i < count - 1))
			return false;
	return count <= DIRECT_PARTS;
}

/* Copying large runs to the page cache costs more than anything else about filling the cache.  By a descriptor of its own, as others
 * may write a byte or two.  What is left to be written otherwise begins at *done. */
static void write_direct(struct cache_file *f, const struct iovec *parts, int count, uint64_t offset, size_t *done)
{
	struct iovec most[DIRECT_PARTS];
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", f->write_fd);
	CLEANUP_FD int fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		return;
	memcpy(most, parts, (size_t)count * sizeof *parts);
	most[count - 1].iov_len -= most[count - 1].iov_len % DIRECT_ALIGN;
	if (cache_parts_transfer(pwritev, fd, most, count, offset) == 0)
		*done = cache_parts_bytes(most, count);
}

static int write_around_pages(struct cache_file *f, const struct iovec *parts, int count, size_t length, uint64_t offset)
{
	const struct iovec *last = &parts[count - 1];
	size_t done = 0;
	if (length >= DIRECT_LEAST && are_aligned(parts, count))
		write_direct(f, parts, count, offset, &done);
	/* Where that cannot be done it says so here, or it goes through. */
	if (done == 0)
		return cache_parts_transfer(pwritev, f->write_fd, parts, count, offset);
	size_t rest = length - done;
	return rest ? cache_pwrite(f->write_fd, (const uint8_t *)last->iov_base + last->iov_len - rest, rest, offset + done) : 0;
}

/* Takes the place of the run that was begun longest ago. */
static struct cache_run run_note(struct cache_file *f, struct cache_run begun)
{
	LOCKED(&f->filling);
	struct cache_run *slot = &f->begun[f->next_begun++ % FILL_RUNS], oldest = *slot;
	*slot = begun;
	return oldest;
}

static const unsigned written = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

/* The kernel reports once that it could not write, and to whom it does so is chance.  It is noted before anybody else can be told that all
 * is well. */
static int run_sync(struct cache_file *f, struct cache_run run, unsigned flags)
{
	pthread_rwlock_rdlock(&f->syncing);
	int error = sync_file_range(f->write_fd, (off_t)run.offset, (off_t)run.length, flags) < 0 ? -errno : 0;
	if (error)
		atomic_store(&f->detached, true);
	pthread_rwlock_unlock(&f->syncing);
	if (error)
		cache_file_lose(f, error);
	return error;
}

static int write_to_pages(struct cache_file *f, const struct iovec *parts, int count, size_t length, uint64_t offset)
{
	struct cache_run run = { offset, length };
	int error = cache_parts_transfer(cache_write_some, f->write_fd, parts, count, offset);
	if (!error)
		error = run_sync(f, run, SYNC_FILE_RANGE_WRITE);
	if (error)
		return error;
	struct cache_run oldest = run_note(f, run);
	return oldest.length ? run_sync(f, oldest, written) : 0;
}

static bool memory_allows(struct cache *c, uint64_t size)
{
	int64_t now = clock_read(c->options.clock), age = now - atomic_load(&c->memory_ns);
	if (age < 0 || age > MEMORY_AGAIN_NS) {
		atomic_store(&c->memory_bytes, c->options.memory ? c->options.memory() : memory_available("/"));
		atomic_store(&c->memory_ns, now);
	}
	return size <= atomic_load(&c->memory_bytes) / MEMORY_SHARE;
}

int cache_fill_write(struct cache_file *f, const struct iovec *parts, int count, uint64_t offset)
{
	size_t length = cache_parts_bytes(parts, count);
	if (!atomic_load(&f->keeps_pages) || !memory_allows(f->cache, f->size))
		return write_around_pages(f, parts, count, length, offset);
	return write_to_pages(f, parts, count, length, offset);
}

/* The kernel reads what is passed through without looking: where pages cannot be written, it would find something else in their place
 * once it has dropped them.  Whoever reads it otherwise compares it each time. */
int cache_fill_end(struct cache_file *f)
{
	bool is_read_by_the_kernel = atomic_load(&f->keeps_pages);
	return is_read_by_the_kernel && sync_file_range(f->write_fd, 0, 0, written) < 0 ? -errno : 0;
}

void cache_file_keep_pages(struct cache_file *f, bool keep) { atomic_store(&f->keeps_pages, keep); }
