/* The image folder: many files of about 100 KiB in many folders, as ImageNet is kept.
 *
 * What is read is what open(path, "rb").read() of Python asks of the kernel: open, fstat for
 * the size, a read of one byte more than that, a read that meets the end, close. */
#include "load.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t image_bytes(const struct job *job, uint64_t image)
{
	uint64_t state = image;

	return job->size / 2 + random_next(&state) % job->size;
}

uint64_t image_read(const struct job *job, uint64_t image, uint8_t *into)
{
	uint64_t size = image_bytes(job, image);
	char path[PATH_BYTES];
	struct stat st;
	size_t have;
	int fd;

	file_path(job, image, path);
	fd = openat(job->root, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("cannot open %s", path);
	if (fstat(fd, &st))
		die("cannot fstat %s", path);
	errno = 0;
	if ((uint64_t)st.st_size != size)
		die("%s is %lld bytes long instead of %llu", path, (long long)st.st_size, (unsigned long long)size);
	have = read_all(fd, into, size + 1, path);
	close(fd);
	errno = 0;
	if (have != size)
		die("%s has %zu bytes instead of %llu", path, have, (unsigned long long)size);
	if (!(job->verify ? content_same : content_ends_same)(job->noise, image, 0, into, size))
		die("%s has other bytes", path);
	return size;
}

void run_epoch(struct job *job)
{
	int64_t since = job->result->began_ns;

	for (uint64_t i = 0; i < job->order_count; i++)
		operation_done(job, &since, image_read(job, job->order[i], job->buffer));
}

void run_traverse(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];
	struct stat st;

	for (uint64_t i = 0; i < job->order_count; i++) {
		int fd;

		file_path(job, job->order[i], path);
		if (fstatat(job->root, path, &st, AT_SYMLINK_NOFOLLOW))
			die("cannot stat %s", path);
		fd = openat(job->root, path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			die("cannot open %s", path);
		close(fd);
		errno = 0;
		if ((uint64_t)st.st_size != image_bytes(job, job->order[i]))
			die("%s is %lld bytes long", path, (long long)st.st_size);
		operation_done(job, &since, 0);
	}
}

static void folder_sync(const struct job *job, const char *path)
{
	int fd = openat(job->root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || fsync(fd))
		die("cannot fsync folder %s", path);
	close(fd);
}

static void image_write(struct job *job, uint64_t image, uint64_t size)
{
	char path[PATH_BYTES];
	int fd;

	file_path(job, image, path);
	content_fill(job->noise, image, 0, job->buffer, size);
	fd = openat(job->root, path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		die("cannot create %s", path);
	write_all(fd, job->buffer, size, path);
	if (job->fsync && fsync(fd))
		die("cannot fsync %s", path);
	if (close(fd))
		die("cannot close %s", path);
}

/* Each process writes its part in the order of names, as an archive is unpacked, and then
 * makes the folders it has written to durable. */
void run_ingest(struct job *job)
{
	int64_t since = job->result->began_ns;
	char path[PATH_BYTES];
	uint64_t first, last;

	for (uint64_t i = 0; i < job->order_count; i++) {
		uint64_t size = image_bytes(job, job->order[i]);

		image_write(job, job->order[i], size);
		operation_done(job, &since, size);
	}
	if (!job->order_count)
		return;
	first = job->order[0] * job->folders / job->files;
	last = job->order[job->order_count - 1] * job->folders / job->files;
	for (uint64_t folder = first; folder <= last; folder++) {
		snprintf(path, sizeof(path), "%05llu", (unsigned long long)folder);
		folder_sync(job, path);
	}
	folder_sync(job, ".");
}
