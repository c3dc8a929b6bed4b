/* Linked into a second build of test_dir.c: a file system that has no O_TMPFILE,
 * so that all of the store's promises are checked on the other way of putting. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

int __real_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	unsigned mode = va_arg(args, unsigned);
	va_end(args);
	if ((flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return __real_openat64(folder, path, flags, mode);
}
