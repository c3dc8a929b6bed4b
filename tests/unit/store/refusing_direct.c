/* Linked into another build of test_dir.c: a file system that takes a page of
 * O_DIRECT and then says no, so that objects are finished in the usual way. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/types.h>

ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
	static bool taken;
	if (!(fcntl(fd, F_GETFL) & O_DIRECT))
		return __real_write(fd, bytes, size);
	if (taken) {
		errno = EINVAL;
		return -1;
	}
	taken = true;
	return __real_write(fd, bytes, 4096);
}
