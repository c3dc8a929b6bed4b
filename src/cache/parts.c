#include "cache/parts.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PARTS_AT_ONCE 64
#define WRITE_BYTES ((size_t)1 << 20)

size_t cache_parts_bytes(const struct iovec *parts, int count)
{
	size_t n = 0;
	for (int i = 0; i < count; i++)
		n += parts[i].iov_len;
	return n;
}

/* Takes n bytes off the front of the window; returns what is left of it. */
static int window_advance(struct iovec *window, int count, size_t n)
{
	int i = 0;
	while (i < count && n >= window[i].iov_len)
		n -= window[i++].iov_len;
	memmove(window, window + i, (size_t)(count - i) * sizeof *window);
	if (i < count) {
		window[0].iov_base = (char *)window[0].iov_base + n;
		window[0].iov_len -= n;
	}
	return count - i;
}

int cache_parts_transfer(cache_transfer t, int fd, const struct iovec *parts, int part_count, uint64_t offset)
{
	struct iovec window[PARTS_AT_ONCE];
	int count = 0, next = 0;
	for (;;) {
		for (; count < PARTS_AT_ONCE && next < part_count; next++)
			if (parts[next].iov_len)
				window[count++] = parts[next];
		if (count == 0)
			return 0;
		ssize_t n = t(fd, window, count, (off_t)offset);
		if (n == 0)
			return -ENODATA;
		if (n < 0 && errno != EINTR)
			return -errno;
		offset += n > 0 ? (uint64_t)n : 0;
		count = window_advance(window, count, n > 0 ? (size_t)n : 0);
	}
}

/* The kernel takes memory in pieces of what is written at a time, and a virtual machine gives free pieces of 2 MiB back to its host, after
 * which touching them takes long: by 4 MiB at a time a GiB took 1.6 s of CPU, by up to 1 MiB 0.2. */
ssize_t cache_write_some(int fd, const struct iovec *parts, int count, off_t offset)
{
	size_t bytes = 0;
	int n = 0;
	while (n < count && bytes + parts[n].iov_len <= WRITE_BYTES)
		bytes += parts[n++].iov_len;
	return n ? pwritev(fd, parts, n, offset) : pwrite(fd, parts[0].iov_base, WRITE_BYTES, offset);
}

void cache_parts_put(const struct iovec *parts, int count, size_t at, const void *bytes, size_t length)
{
	for (int i = 0; i < count && length > 0; i++) {
		if (at >= parts[i].iov_len) {
			at -= parts[i].iov_len;
			continue;
		}
		size_t n = parts[i].iov_len - at < length ? parts[i].iov_len - at : length;
		memcpy((char *)parts[i].iov_base + at, bytes, n);
		bytes = (const char *)bytes + n;
		length -= n;
		at = 0;
	}
}

int cache_pread(int fd, void *into, size_t length, uint64_t offset)
{
	return cache_parts_transfer(preadv, fd, &(struct iovec){ into, length }, 1, offset);
}

int cache_pwrite(int fd, const void *from, size_t length, uint64_t offset)
{
	return cache_parts_transfer(pwritev, fd, &(struct iovec){ (void *)from, length }, 1, offset);
}
