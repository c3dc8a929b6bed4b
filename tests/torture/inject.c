#include "tests/torture/inject.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/log.h"

/* In shared memory: a call may fail in a child process. */
struct injection {
	_Atomic uint64_t countdown; /* 0: not armed, or fired already */
	_Atomic(const char *) failed_call;
};
static struct injection nothing;
static struct injection *injection = &nothing;

void inject_arm(uint64_t n)
{
	atomic_store(&injection->failed_call, NULL);
	atomic_store(&injection->countdown, n);
}

bool inject_disarm(void)
{
	atomic_store(&injection->countdown, 0);
	return atomic_load(&injection->failed_call) != NULL;
}

const char *inject_failed_call(void) { return atomic_load(&injection->failed_call); }

static bool due(const char *name)
{
	uint64_t left = atomic_load(&injection->countdown);
	while (left > 0 && !atomic_compare_exchange_weak(&injection->countdown, &left, left - 1))
		;
	if (left != 1)
		return false;
	atomic_store(&injection->failed_call, name);
	return true;
}

/* A wrapper that fails with `error` in errno and `result`. */
#define FAILS(type, name, result, error, parameters, arguments) \
	type __real_##name parameters; \
	type __wrap_##name parameters; \
	type __wrap_##name parameters \
	{ \
		if (due(#name)) { \
			errno = error; \
			return result; \
		} \
		return __real_##name arguments; \
	}

FAILS(void *, malloc, NULL, ENOMEM, (size_t n), (n))
FAILS(void *, calloc, NULL, ENOMEM, (size_t n, size_t size), (n, size))
FAILS(void *, realloc, NULL, ENOMEM, (void *p, size_t n), (p, n))
FAILS(int, posix_memalign, ENOMEM, ENOMEM, (void **out, size_t align, size_t n), (out, align, n))
FAILS(void *, aligned_alloc, NULL, ENOMEM, (size_t align, size_t n), (align, n))
FAILS(char *, strdup, NULL, ENOMEM, (const char *s), (s))
FAILS(char *, strndup, NULL, ENOMEM, (const char *s, size_t n), (s, n))
FAILS(int, vasprintf, -1, ENOMEM, (char **out, const char *format, va_list args), (out, format, args))
FAILS(void *, mmap, MAP_FAILED, ENOMEM, (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n, prot, flags, fd, at))
FAILS(void *, mmap64, MAP_FAILED, ENOMEM, (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n, prot, flags, fd, at))

FAILS(ssize_t, read, -1, EIO, (int fd, void *p, size_t n), (fd, p, n))
FAILS(ssize_t, pread, -1, EIO, (int fd, void *p, size_t n, off_t at), (fd, p, n, at))
FAILS(ssize_t, pread64, -1, EIO, (int fd, void *p, size_t n, off_t at), (fd, p, n, at))
FAILS(ssize_t, write, -1, ENOSPC, (int fd, const void *p, size_t n), (fd, p, n))
FAILS(ssize_t, pwrite, -1, ENOSPC, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at))
FAILS(ssize_t, pwrite64, -1, ENOSPC, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at))
FAILS(ssize_t, writev, -1, ENOSPC, (int fd, const struct iovec *v, int n), (fd, v, n))
FAILS(ssize_t, preadv64, -1, EIO, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
FAILS(ssize_t, pwritev64, -1, ENOSPC, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
FAILS(int, posix_fallocate64, ENOSPC, ENOSPC, (int fd, off_t at, off_t n), (fd, at, n))
FAILS(int, fallocate64, -1, ENOSPC, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
FAILS(int, fsync, -1, EIO, (int fd), (fd))
FAILS(int, fdatasync, -1, EIO, (int fd), (fd))
FAILS(int, sync_file_range, -1, EIO, (int fd, off64_t at, off64_t n, unsigned flags), (fd, at, n, flags))
FAILS(int, msync, -1, EIO, (void *p, size_t n, int flags), (p, n, flags))
FAILS(int, ftruncate, -1, ENOSPC, (int fd, off_t n), (fd, n))
FAILS(int, ftruncate64, -1, ENOSPC, (int fd, off_t n), (fd, n))
FAILS(int, linkat, -1, ENOSPC, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
FAILS(int, mkdir, -1, ENOSPC, (const char *path, mode_t mode), (path, mode))
FAILS(int, mkdirat, -1, ENOSPC, (int fd, const char *path, mode_t mode), (fd, path, mode))
FAILS(int, unlink, -1, EIO, (const char *path), (path))
FAILS(int, unlinkat, -1, EIO, (int fd, const char *path, int flags), (fd, path, flags))
FAILS(int, rename, -1, EIO, (const char *from, const char *to), (from, to))
FAILS(int, renameat, -1, EIO, (int a, const char *from, int b, const char *to), (a, from, b, to))
FAILS(int, renameat2, -1, EIO, (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f))
FAILS(int, futimens, -1, EROFS, (int fd, const struct timespec times[2]), (fd, times))
FAILS(int, fchmod, -1, EROFS, (int fd, mode_t mode), (fd, mode))
FAILS(int, fstat64, -1, EIO, (int fd, struct stat64 *st), (fd, st))
FAILS(int, stat64, -1, EIO, (const char *path, struct stat64 *st), (path, st))
FAILS(int, fstatat64, -1, EIO, (int fd, const char *path, struct stat64 *st, int flags), (fd, path, st, flags))
FAILS(int, statvfs64, -1, EIO, (const char *path, struct statvfs64 *v), (path, v))
FAILS(int, fstatvfs64, -1, EIO, (int fd, struct statvfs64 *v), (fd, v))
FAILS(int, chmod, -1, EIO, (const char *path, mode_t mode), (path, mode))
FAILS(int, flock, -1, ENOLCK, (int fd, int what), (fd, what))
FAILS(int, dup3, -1, EMFILE, (int from, int to, int flags), (from, to, flags))
FAILS(DIR *, fdopendir, NULL, ENOMEM, (int fd), (fd))
FAILS(DIR *, opendir, NULL, EMFILE, (const char *path), (path))
FAILS(struct dirent64 *, readdir64, NULL, EIO, (DIR * d), (d))
FAILS(FILE *, fopen64, NULL, EMFILE, (const char *path, const char *mode), (path, mode))
FAILS(FILE *, fdopen, NULL, ENOMEM, (int fd, const char *mode), (fd, mode))
FAILS(int, pipe2, -1, EMFILE, (int fds[2], int flags), (fds, flags))
FAILS(pid_t, fork, -1, EAGAIN, (void), ())

FAILS(int, socket, -1, EMFILE, (int domain, int type, int protocol), (domain, type, protocol))
FAILS(int, socketpair, -1, EMFILE, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds))
FAILS(int, bind, -1, EADDRINUSE, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
FAILS(int, listen, -1, EADDRINUSE, (int fd, int n), (fd, n))
FAILS(int, connect, -1, ECONNREFUSED, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
FAILS(int, accept4, -1, EMFILE, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
FAILS(ssize_t, send, -1, EPIPE, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
FAILS(ssize_t, sendmsg, -1, EPIPE, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
FAILS(ssize_t, recv, -1, ECONNRESET, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
FAILS(ssize_t, recvmsg, -1, ECONNRESET, (int fd, struct msghdr *m, int flags), (fd, m, flags))
FAILS(ssize_t, sendfile64, -1, EPIPE, (int out, int in, off64_t *at, size_t n), (out, in, at, n))
FAILS(ssize_t, readv, -1, ECONNRESET, (int fd, const struct iovec *v, int n), (fd, v, n))
FAILS(int, setsockopt, -1, ENOMEM, (int fd, int l, int o, const void *p, socklen_t n), (fd, l, o, p, n))
FAILS(int, getsockopt, -1, ENOMEM, (int fd, int l, int o, void *p, socklen_t *n), (fd, l, o, p, n))
FAILS(int, poll, -1, EINTR, (struct pollfd * p, nfds_t n, int timeout), (p, n, timeout))
FAILS(int, eventfd, -1, EMFILE, (unsigned n, int flags), (n, flags))
FAILS(int, epoll_create1, -1, EMFILE, (int flags), (flags))
FAILS(int, epoll_ctl, -1, ENOMEM, (int e, int op, int fd, struct epoll_event *ev), (e, op, fd, ev))
FAILS(int, pthread_create, EAGAIN, EAGAIN, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *c), (t, a, f, c))
FAILS(int, pthread_key_create, EAGAIN, EAGAIN, (pthread_key_t * k, void (*f)(void *)), (k, f))

/* The open family takes a mode only sometimes; passing it always does no harm. */
#define FAILS_OPEN(name, parameters, arguments) \
	int __real_##name parameters; \
	int __wrap_##name parameters; \
	int __wrap_##name parameters \
	{ \
		va_list args; \
		va_start(args, flags); \
		unsigned mode = va_arg(args, unsigned); \
		va_end(args); \
		if (due(#name)) { \
			errno = EMFILE; \
			return -1; \
		} \
		return __real_##name arguments; \
	}
FAILS_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
FAILS_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
FAILS_OPEN(openat, (int fd, const char *path, int flags, ...), (fd, path, flags, mode))
FAILS_OPEN(openat64, (int fd, const char *path, int flags, ...), (fd, path, flags, mode))

int __real_vasprintf(char **out, const char *format, va_list args);
int __wrap_asprintf(char **out, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **out, const char *format, ...)
{
	va_list args;
	if (due("asprintf")) {
		errno = ENOMEM;
		return -1;
	}
	va_start(args, format);
	int n = __real_vasprintf(out, format, args);
	va_end(args);
	return n;
}

void torture_fail(const char *file, int line, const char *condition)
{
	inject_disarm();
	fprintf(stderr, "%s:%d: not so: %s (failed call: %s)\n", file, line, condition,
		inject_failed_call() ? inject_failed_call() : "none");
	abort();
}

void torture_folder(char *out, size_t size, const char *name)
{
	snprintf(out, size, "%s/epochfs-torture-%s-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", name, getpid());
	torture_folder_remove(out);
	REQUIRE(mkdir(out, 0700) == 0);
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

void torture_folder_remove(const char *path) { nftw(path, entry_remove, 16, FTW_DEPTH | FTW_PHYS); }

/* LeakSanitizer, where the build has it: looks after every run, so that the call
 * whose failure leaked is known. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static int torture_once(const struct torture *t, uint64_t n, bool loud, bool *fired)
{
	t->prepare(t->context);
	inject_arm(n);
	int status = t->run(t->context);
	*fired = inject_disarm();
	if (loud)
		fprintf(stderr, "%s: call %ju (%s): %s\n", t->name, (uintmax_t)n, inject_failed_call(), strerror(-status));
	if (status > 0 || status < -4095) {
		fprintf(stderr, "%s: call %ju (%s): %d is not an errno\n", t->name, (uintmax_t)n, inject_failed_call(), status);
		return 1;
	}
	if (!*fired && status != 0) {
		fprintf(stderr, "%s: failed with nothing injected: %s\n", t->name, strerror(-status));
		return 1;
	}
	t->verify(t->context, status);
	if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
		fprintf(stderr, "%s: call %ju (%s): leaks when it fails\n", t->name, (uintmax_t)n, inject_failed_call());
		return 1;
	}
	return 0;
}

int torture_main(const struct torture *t, int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, every = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, count = 0;
	bool fired = true, loud = argc == 2;
	injection = mmap(NULL, sizeof *injection, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(injection != MAP_FAILED && n > 0 && every > 0);
	log_set_level(loud ? LOG_LEVEL_DEBUG : LOG_LEVEL_OFF);
	for (; fired; n += every) {
		if (torture_once(t, n, loud, &fired) != 0) {
			fprintf(stderr, "%s: run again with: %s %ju\n", t->name, argv[0], (uintmax_t)n);
			return 1;
		}
		count += fired;
		if (loud)
			return 0;
	}
	printf("%s: %ju calls failed once each, nothing crashed, leaked or broke\n", t->name, (uintmax_t)count);
	return 0;
}
