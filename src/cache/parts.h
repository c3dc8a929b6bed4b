/* Memory in several parts, read from a file or written to one. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef ssize_t (*cache_transfer)(int fd, const struct iovec *parts, int count, off_t offset); /* preadv, pwritev */

/* A cache_transfer: pwritev of the first MiB of it, or less, for what goes to the page cache. */
ssize_t cache_write_some(int fd, const struct iovec *parts, int count, off_t offset);

size_t cache_parts_bytes(const struct iovec *parts, int count);
/* All of it: 0, -ENODATA (the file ends before), -errno. */
int cache_parts_transfer(cache_transfer t, int fd, const struct iovec *parts, int count, uint64_t offset);
/* Copies bytes to where they belong, `at` bytes from the beginning of the parts. */
void cache_parts_put(const struct iovec *parts, int count, size_t at, const void *bytes, size_t length);
/* One part: 0, -ENODATA, -errno. */
int cache_pread(int fd, void *into, size_t length, uint64_t offset);
int cache_pwrite(int fd, const void *from, size_t length, uint64_t offset);
