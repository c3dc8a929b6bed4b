/* What programs do with files, through the kernel and a mount of the fake client. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <cmocka.h>
#include "mounted.h"

#define STRANGER 12345
#define MIB (1u << 20)

static struct mounted mount_of_group;
static struct mounted *const m = &mount_of_group;

static int file_new(const char *name, const void *data, size_t size)
{
	int fd = open(at(m, name), O_RDWR | O_CREAT | O_EXCL, 0644);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, size, 0), size);
	return fd;
}

static struct stat stat_of(const char *name)
{
	struct stat st;

	assert_int_equal(lstat(at(m, name), &st), 0);
	return st;
}

static void names_are_made_found_and_removed(void **state)
{
	char target[64] = "";

	assert_int_equal(mkdir(at(m, "dir"), 0750), 0);
	assert_int_equal(mkdir(at(m, "dir"), 0750), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(stat_of("dir").st_mode, S_IFDIR | 0750);
	close(file_new("dir/file", "x", 1));
	assert_int_equal(symlink("dir/file", at(m, "symlink")), 0);
	assert_int_equal(readlink(at(m, "symlink"), target, sizeof(target)), 8);
	assert_string_equal(target, "dir/file");
	assert_int_equal(stat_of("symlink").st_size, 8);
	assert_int_equal(access(at(m, "symlink"), R_OK), 0);
	assert_int_equal(link(at(m, "dir/file"), at(m, "hard")), 0);
	assert_int_equal(stat_of("hard").st_nlink, 2);
	assert_int_equal(stat_of("hard").st_ino, stat_of("dir/file").st_ino);
	assert_int_equal(rmdir(at(m, "dir")), -1);
	assert_int_equal(errno, ENOTEMPTY);
	assert_int_equal(unlink(at(m, "dir/file")), 0);
	assert_int_equal(stat_of("hard").st_nlink, 1);
	assert_int_equal(access(at(m, "dir/file"), F_OK), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(unlink(at(m, "hard")), 0);
	assert_int_equal(unlink(at(m, "symlink")), 0);
	assert_int_equal(rmdir(at(m, "dir")), 0);
}

static void device_numbers_and_fifos_survive(void **state)
{
	assert_int_equal(mknod(at(m, "device"), S_IFBLK | 0600, makedev(300, 70000)), 0);
	assert_int_equal(stat_of("device").st_rdev, makedev(300, 70000));
	assert_true(S_ISBLK(stat_of("device").st_mode));
	assert_int_equal(mkfifo(at(m, "fifo"), 0640), 0);
	assert_true(S_ISFIFO(stat_of("fifo").st_mode));
	assert_int_equal(unlink(at(m, "device")), 0);
	assert_int_equal(unlink(at(m, "fifo")), 0);
}

static void names_may_have_255_bytes_and_no_more(void **state)
{
	char name[300];

	memset(name, 'n', sizeof(name));
	name[255] = 0;
	close(file_new(name, "", 0));
	assert_int_equal(unlink(at(m, name)), 0);
	name[255] = 'n';
	name[256] = 0;
	assert_int_equal(open(at(m, name), O_CREAT | O_WRONLY, 0644), -1);
	assert_int_equal(errno, ENAMETOOLONG);
	assert_int_equal(access(at(m, name), F_OK), -1);
	assert_int_equal(errno, ENAMETOOLONG);
	close(file_new("short", "", 0));
	assert_int_equal(rename(at(m, "short"), at(m, name)), -1);
	assert_int_equal(errno, ENAMETOOLONG);
	assert_int_equal(unlink(at(m, "short")), 0);
}

static void a_symlink_may_be_as_long_as_a_path(void **state)
{
	char target[PATH_MAX], back[PATH_MAX];

	memset(target, 't', sizeof(target));
	target[PATH_MAX - 1] = 0;
	assert_int_equal(symlink(target, at(m, "long")), 0);
	assert_int_equal(readlink(at(m, "long"), back, sizeof(back)), PATH_MAX - 1);
	assert_memory_equal(target, back, PATH_MAX - 1);
	assert_int_equal(unlink(at(m, "long")), 0);
}

static void renames_know_their_flags(void **state)
{
	close(file_new("a", "a", 1));
	close(file_new("b", "bb", 2));
	assert_int_equal(renameat2(AT_FDCWD, at(m, "a"), AT_FDCWD, at(m, "b"), RENAME_NOREPLACE), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(renameat2(AT_FDCWD, at(m, "a"), AT_FDCWD, at(m, "b"), RENAME_EXCHANGE), 0);
	assert_int_equal(stat_of("a").st_size, 2);
	assert_int_equal(stat_of("b").st_size, 1);
	assert_int_equal(renameat2(AT_FDCWD, at(m, "a"), AT_FDCWD, at(m, "b"), RENAME_WHITEOUT), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(renameat2(AT_FDCWD, at(m, "a"), AT_FDCWD, at(m, "c"), RENAME_NOREPLACE), 0);
	assert_int_equal(rename(at(m, "c"), at(m, "b")), 0);
	assert_int_equal(stat_of("b").st_size, 2);
	assert_int_equal(unlink(at(m, "b")), 0);
}

static void large_data_comes_back_as_written(void **state)
{
	size_t size = 5 * MIB + 12345;
	unsigned char *data = malloc(size), *back = malloc(size);
	int fd;

	for (size_t i = 0; i < size; i++)
		data[i] = (unsigned char)(i * 2654435761u >> 13);
	fd = file_new("large", data, size);
	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	assert_int_equal(pread(fd, back, size, 0), size);
	assert_memory_equal(data, back, size);
	for (size_t offset = 1; offset < size; offset += 777777) {
		size_t length = size - offset < 100001 ? size - offset : 100001;

		assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
		assert_int_equal(pread(fd, back, length, (off_t)offset), length);
		assert_memory_equal(data + offset, back, length);
	}
	assert_int_equal(pread(fd, back, 100, (off_t)size), 0);
	assert_int_equal(fsync(fd), 0);
	assert_true(atomic_load(&m->control->fsyncs) > 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(unlink(at(m, "large")), 0);
	free(data);
	free(back);
}

static void direct_io_goes_around_the_page_cache(void **state)
{
	unsigned char *data = aligned_alloc(4096, 2 * MIB), *back = aligned_alloc(4096, 2 * MIB);
	unsigned before;
	int fd = open(at(m, "direct"), O_RDWR | O_CREAT | O_DIRECT, 0644);

	assert_true(fd >= 0);
	memset(data, 'd', 2 * MIB);
	assert_int_equal(write(fd, data, 2 * MIB), 2 * MIB);
	before = atomic_load(&m->control->reads);
	assert_int_equal(pread(fd, back, 2 * MIB, 0), 2 * MIB);
	assert_int_equal(pread(fd, back, 2 * MIB, 0), 2 * MIB);
	assert_memory_equal(data, back, 2 * MIB);
	assert_int_equal(atomic_load(&m->control->reads) - before, 4);
	close(fd);
	assert_int_equal(unlink(at(m, "direct")), 0);
	free(data);
	free(back);
}

static void shared_mappings_reach_the_file(void **state)
{
	char back[16] = "";
	int fd = file_new("mapped", "", 0);
	char *map;

	assert_int_equal(ftruncate(fd, 10000), 0);
	map = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	memcpy(map + 9000, "mapped", 6);
	assert_int_equal(msync(map, 10000, MS_SYNC), 0);
	memcpy(map + 100, "later", 5);
	assert_int_equal(munmap(map, 10000), 0);
	assert_int_equal(close(fd), 0);
	fd = open(at(m, "mapped"), O_RDONLY | O_DIRECT);
	assert_true(fd >= 0);
	char *block = aligned_alloc(4096, 12288);

	assert_int_equal(read(fd, block, 12288), 10000);
	assert_memory_equal(block + 9000, "mapped", 6);
	assert_memory_equal(block + 100, "later", 5);
	free(block);
	close(fd);
	fd = open(at(m, "mapped"), O_RDONLY);
	map = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	memcpy(map, "private", 7);
	assert_int_equal(pread(fd, back, 7, 0), 7);
	assert_memory_equal(back, "\0\0\0\0\0\0\0", 7);
	munmap(map, 10000);
	close(fd);
	assert_int_equal(unlink(at(m, "mapped")), 0);
}

static void files_are_truncated_both_ways(void **state)
{
	char back[8];
	int fd = file_new("truncated", "12345678", 8);

	assert_int_equal(ftruncate(fd, 4), 0);
	assert_int_equal(stat_of("truncated").st_size, 4);
	assert_int_equal(ftruncate(fd, 8), 0);
	assert_int_equal(pread(fd, back, 8, 0), 8);
	assert_memory_equal(back, "1234\0\0\0\0", 8);
	close(fd);
	fd = open(at(m, "truncated"), O_RDWR | O_TRUNC);
	assert_true(fd >= 0);
	assert_int_equal(stat_of("truncated").st_size, 0);
	assert_int_equal(pread(fd, back, 8, 0), 0);
	assert_int_equal(ftruncate(fd, 16ll << 40), 0);
	assert_int_equal(stat_of("truncated").st_size, 16ll << 40);
	assert_int_equal(pread(fd, back, 8, (16ll << 40) - 8), 8);
	assert_memory_equal(back, "\0\0\0\0\0\0\0\0", 8);
	close(fd);
	assert_int_equal(truncate(at(m, "truncated"), 3), 0);
	assert_int_equal(stat_of("truncated").st_size, 3);
	assert_int_equal(unlink(at(m, "truncated")), 0);
}

/* The kernel has the pages in its cache; after a change it did not make byte by byte it
 * must not show the old ones. */
static void punched_and_zeroed_ranges_read_as_zeroes_at_once(void **state)
{
	char data[16384], back[16384], zeroes[16384] = "";
	int fd;

	memset(data, 'p', sizeof(data));
	fd = file_new("punched", data, sizeof(data));
	assert_int_equal(pread(fd, back, sizeof(back), 0), sizeof(back));
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
	assert_int_equal(pread(fd, back, sizeof(back), 0), sizeof(back));
	assert_memory_equal(back + 4096, zeroes, 4096);
	assert_memory_equal(back, data, 4096);
	assert_memory_equal(back + 8192, data, 8192);
	assert_int_equal(lseek(fd, 0, SEEK_HOLE), 4096);
	assert_int_equal(lseek(fd, 4096, SEEK_DATA), 8192);
	assert_int_equal(lseek(fd, 8192, SEEK_HOLE), 16384);
	assert_int_equal(lseek(fd, 16384, SEEK_DATA), -1);
	assert_int_equal(errno, ENXIO);
	assert_int_equal(fallocate(fd, FALLOC_FL_ZERO_RANGE, 16000, 1000), 0);
	assert_int_equal(stat_of("punched").st_size, 17000);
	assert_int_equal(pread(fd, back, 384, 16000), 384);
	assert_memory_equal(back, zeroes, 384);
	assert_int_equal(fallocate(fd, 0, 0, 20000), 0);
	assert_int_equal(stat_of("punched").st_size, 20000);
	assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 30000), 0);
	assert_int_equal(stat_of("punched").st_size, 20000);
	assert_int_equal(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -1);
	assert_int_equal(errno, EOPNOTSUPP);
	assert_int_equal(fallocate(fd, 0, 0, 40000), 0);
	close(fd);
	assert_int_equal(unlink(at(m, "punched")), 0);
}

static void copied_ranges_are_seen_at_once(void **state)
{
	char data[8192], back[8192];
	loff_t from_at = 0, to_at = 100;
	int from, to;

	memset(data, 'f', sizeof(data));
	from = file_new("from", data, sizeof(data));
	memset(back, 't', sizeof(back));
	to = file_new("to", back, sizeof(back));
	assert_int_equal(pread(to, back, sizeof(back), 0), sizeof(back));
	assert_int_equal(copy_file_range(from, &from_at, to, &to_at, sizeof(data), 0), sizeof(data));
	assert_int_equal(from_at, sizeof(data));
	assert_int_equal(stat_of("to").st_size, sizeof(data) + 100);
	assert_int_equal(pread(to, back, sizeof(back), 100), sizeof(back));
	assert_memory_equal(back, data, sizeof(data));
	assert_int_equal(pread(to, back, 100, 0), 100);
	assert_int_equal(back[99], 't');
	close(from);
	close(to);
	assert_int_equal(unlink(at(m, "from")), 0);
	assert_int_equal(unlink(at(m, "to")), 0);
}

static void two_appenders_do_not_overwrite_each_other(void **state)
{
	pid_t child = fork();
	int fd = open(at(m, "appended"), O_WRONLY | O_CREAT | O_APPEND, 0644), status;
	char data[4000], *all = malloc(4000 * 200);

	memset(data, child ? 'p' : 'c', sizeof(data));
	for (int i = 0; i < 100; i++) {
		if (write(fd, data, sizeof(data)) != sizeof(data))
			_exit(1);
	}
	close(fd);
	if (!child)
		_exit(0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(stat_of("appended").st_size, 4000 * 200);
	fd = open(at(m, "appended"), O_RDONLY);
	assert_int_equal(read(fd, all, 4000 * 200), 4000 * 200);
	for (int i = 0; i < 200; i++)
		assert_int_equal(all[i * 4000], all[i * 4000 + 3999]);
	close(fd);
	free(all);
	assert_int_equal(unlink(at(m, "appended")), 0);
}

static void a_file_lives_on_without_its_name(void **state)
{
	char back[6] = "";
	unsigned releases = atomic_load(&m->control->releases);
	int fd = file_new("unlinked", "still", 5);

	assert_int_equal(unlink(at(m, "unlinked")), 0);
	assert_int_equal(write(fd, "more", 4), 4);
	assert_int_equal(pread(fd, back, 5, 0), 5);
	assert_string_equal(back, "morel");
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 0);
	assert_int_equal(fchmod(fd, 0600), 0);
	close(fd);
	wait_for("releases", &m->control->releases, releases + 1);
}

static void a_temporary_file_can_be_given_a_name(void **state)
{
	char link_path[64];
	int fd = open(m->directory, O_TMPFILE | O_RDWR, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "temporary", 9), 9);
	snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", fd);
	assert_int_equal(linkat(AT_FDCWD, link_path, AT_FDCWD, at(m, "named"), AT_SYMLINK_FOLLOW), 0);
	close(fd);
	assert_int_equal(stat_of("named").st_size, 9);
	assert_int_equal(stat_of("named").st_nlink, 1);
	assert_int_equal(stat_of("named").st_mode, S_IFREG | 0600);
	assert_int_equal(unlink(at(m, "named")), 0);
}

static void times_have_nanoseconds_and_may_be_long_ago(void **state)
{
	struct timespec times[2] = { { 1, 123456789 }, { -5, 1 } };
	struct statx sx;
	struct stat st;

	close(file_new("times", "", 0));
	assert_int_equal(statx(AT_FDCWD, at(m, "times"), 0, STATX_ALL, &sx), 0);
	assert_true(sx.stx_mask & STATX_BTIME);
	assert_true(sx.stx_btime.tv_sec > 1600000000);
	assert_int_equal(utimensat(AT_FDCWD, at(m, "times"), times, 0), 0);
	st = stat_of("times");
	assert_int_equal(st.st_atim.tv_sec, 1);
	assert_int_equal(st.st_atim.tv_nsec, 123456789);
	assert_int_equal(st.st_mtim.tv_sec, -5);
	assert_int_equal(st.st_mtim.tv_nsec, 1);
	times[0].tv_nsec = UTIME_OMIT;
	times[1].tv_nsec = UTIME_NOW;
	assert_int_equal(utimensat(AT_FDCWD, at(m, "times"), times, 0), 0);
	st = stat_of("times");
	assert_int_equal(st.st_atim.tv_sec, 1);
	assert_true(st.st_mtim.tv_sec >= sx.stx_btime.tv_sec);
	times[0] = (struct timespec){ 1ll << 40, 0 };
	times[1].tv_nsec = UTIME_OMIT;
	assert_int_equal(utimensat(AT_FDCWD, at(m, "times"), times, 0), 0);
	assert_int_equal(stat_of("times").st_atim.tv_sec, INT64_MAX / 1000000000);
	assert_int_equal(unlink(at(m, "times")), 0);
}

static void owner_mode_and_umask_are_kept(void **state)
{
	mode_t before = umask(027);
	struct stat st;

	close(open(at(m, "owned"), O_CREAT | O_WRONLY, 0777));
	umask(before);
	assert_int_equal(stat_of("owned").st_mode, S_IFREG | 0750);
	assert_int_equal(chmod(at(m, "owned"), 04711), 0);
	assert_int_equal(stat_of("owned").st_mode, S_IFREG | 04711);
	assert_int_equal(chown(at(m, "owned"), 17, 18), 0);
	st = stat_of("owned");
	assert_int_equal(st.st_uid, 17);
	assert_int_equal(st.st_gid, 18);
	assert_int_equal(unlink(at(m, "owned")), 0);
}

static void extended_attributes_are_kept(void **state)
{
	char value[70000], back[70000], names[256];

	close(file_new("xattrs", "", 0));
	assert_int_equal(setxattr(at(m, "xattrs"), "user.one", "1", 1, XATTR_CREATE), 0);
	assert_int_equal(setxattr(at(m, "xattrs"), "user.one", "1", 1, XATTR_CREATE), -1);
	assert_int_equal(errno, EEXIST);
	assert_int_equal(setxattr(at(m, "xattrs"), "user.two", "1", 1, XATTR_REPLACE), -1);
	assert_int_equal(errno, ENODATA);
	memset(value, 'v', sizeof(value));
	assert_int_equal(setxattr(at(m, "xattrs"), "trusted.large", value, 65536, 0), 0);
	assert_int_equal(getxattr(at(m, "xattrs"), "trusted.large", NULL, 0), 65536);
	assert_int_equal(getxattr(at(m, "xattrs"), "trusted.large", back, 65536), 65536);
	assert_memory_equal(back, value, 65536);
	assert_int_equal(getxattr(at(m, "xattrs"), "trusted.large", back, 65535), -1);
	assert_int_equal(errno, ERANGE);
	assert_int_equal(setxattr(at(m, "xattrs"), "user.empty", "", 0, 0), 0);
	assert_int_equal(getxattr(at(m, "xattrs"), "user.empty", back, 10), 0);
	assert_int_equal(listxattr(at(m, "xattrs"), NULL, 0), 9 + 14 + 11);
	assert_int_equal(listxattr(at(m, "xattrs"), names, sizeof(names)), 9 + 14 + 11);
	assert_string_equal(names, "user.one");
	assert_int_equal(removexattr(at(m, "xattrs"), "user.one"), 0);
	assert_int_equal(getxattr(at(m, "xattrs"), "user.one", back, 10), -1);
	assert_int_equal(errno, ENODATA);
	assert_int_equal(unlink(at(m, "xattrs")), 0);
}

static void a_file_without_extended_attributes_is_not_asked_for_them(void **state)
{
	unsigned asked = atomic_load(&m->control->getxattrs);
	char value[8];

	close(file_new("bare", "x", 1));
	assert_int_equal(getxattr(at(m, "bare"), "user.any", value, sizeof(value)), -1);
	assert_int_equal(errno, ENODATA);
	assert_int_equal(listxattr(at(m, "bare"), NULL, 0), 0);
	assert_int_equal(atomic_load(&m->control->getxattrs), asked);
	assert_int_equal(setxattr(at(m, "bare"), "user.any", "set", 3, 0), 0);
	assert_int_equal(getxattr(at(m, "bare"), "user.any", value, sizeof(value)), 3);
	assert_int_equal(listxattr(at(m, "bare"), NULL, 0), 9);
	assert_int_equal(unlink(at(m, "bare")), 0);
}

static void the_space_is_told(void **state)
{
	struct statvfs st;

	assert_int_equal(statvfs(m->directory, &st), 0);
	assert_int_equal(st.f_blocks * st.f_frsize, 1ull << 40);
	assert_int_equal(st.f_bavail * st.f_frsize, 1ull << 39);
	assert_int_equal(st.f_files, 1000);
	assert_int_equal(st.f_ffree, 900);
	assert_int_equal(st.f_namemax, 255);
}

static int open_secret(const void *path) { return open(path, O_RDONLY) < 0 ? errno : 0; }

static void the_kernel_checks_permissions(void **state)
{
	close(file_new("secret", "x", 1));
	assert_int_equal(chmod(at(m, "secret"), 0600), 0);
	assert_int_equal(as_user(STRANGER, open_secret, at(m, "secret")), EACCES);
	assert_int_equal(chmod(at(m, "secret"), 0604), 0);
	assert_int_equal(as_user(STRANGER, open_secret, at(m, "secret")), 0);
	assert_int_equal(unlink(at(m, "secret")), 0);
}

static int write_to(const void *path)
{
	int fd = open(path, O_WRONLY);

	return fd < 0 || write(fd, "y", 1) != 1 ? errno : 0;
}

static int truncate_it(const void *path) { return truncate(path, 0) ? errno : 0; }

static int open_truncate(const void *path) { return open(path, O_WRONLY | O_TRUNC) < 0 ? errno : 0; }

static int fallocate_it(const void *path)
{
	int fd = open(path, O_WRONLY);

	return fd < 0 || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1) ? errno : 0;
}

static void writing_takes_the_set_user_bit_away(void **state)
{
	struct statx sx;

	int (*const ways[])(const void *) = { write_to, truncate_it, open_truncate, fallocate_it };

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		close(file_new("suid", "x", 1));
		assert_int_equal(chmod(at(m, "suid"), 06777), 0);
		assert_int_equal(as_user(STRANGER, ways[i], at(m, "suid")), 0);
		/* Programs may ask for the mode alone, which the kernel believes to know.  (OPEN brings it no
		 * new one; the write that makes such a file dangerous does.) */
		assert_int_equal(statx(AT_FDCWD, at(m, "suid"), 0, STATX_MODE, &sx), 0);
		if (ways[i] != open_truncate)
			assert_int_equal(sx.stx_mode & 07777, 0777);
		assert_int_equal(stat_of("suid").st_mode, S_IFREG | 0777);
		assert_int_equal(unlink(at(m, "suid")), 0);
	}
	/* Root may. */
	close(file_new("suid", "x", 1));
	assert_int_equal(chmod(at(m, "suid"), 06777), 0);
	assert_int_equal(write_to(at(m, "suid")), 0);
	assert_int_equal(stat_of("suid").st_mode, S_IFREG | 06777);
	assert_int_equal(unlink(at(m, "suid")), 0);
}

static void pages_are_kept_over_an_open_while_the_content_is_the_same(void **state)
{
	char data[8192] = "kept", back[8192];
	unsigned reads;

	close(file_new("kept", data, sizeof(data)));
	for (int i = 0; i < 2; i++) {
		int fd = open(at(m, "kept"), O_RDONLY);

		assert_int_equal(read(fd, back, sizeof(back)), sizeof(back));
		close(fd);
		if (!i)
			reads = atomic_load(&m->control->reads);
	}
	assert_int_equal(atomic_load(&m->control->reads), reads);
	atomic_store(&m->control->changed_content, true);
	int fd = open(at(m, "kept"), O_RDONLY);

	assert_int_equal(read(fd, back, sizeof(back)), sizeof(back));
	assert_true(atomic_load(&m->control->reads) > reads);
	close(fd);
	atomic_store(&m->control->changed_content, false);
	assert_int_equal(unlink(at(m, "kept")), 0);
}

static void locks_work_between_processes(void **state)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10 };
	int fd = file_new("locked", "0123456789012345678901234567890", 31), status;
	pid_t child;

	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(fcntl(fd, F_SETLK, &lock), 0);
	child = fork();
	if (!child) {
		int other = open(at(m, "locked"), O_RDWR);
		int refused = flock(other, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK;

		refused += fcntl(other, F_SETLK, &lock) == -1 && (errno == EAGAIN || errno == EACCES);
		lock.l_start = 0;
		refused += fcntl(other, F_SETLK, &lock) == 0;
		_exit(refused);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 3);
	close(fd);
	assert_int_equal(unlink(at(m, "locked")), 0);
}

static int mount_it(void **state)
{
	struct mountpoint_flags flags = { 0 };

	mounted_new(m, 0);
	if (mounted_start(m, &flags, 0)) {
		fprintf(stderr, "cannot mount: %s\n", m->why);
		return -1;
	}
	return chmod(m->directory, 0777);
}

static int unmount_it(void **state)
{
	int code = mounted_stop(m);

	if (code)
		fprintf(stderr, "the mount ended with %d\n", code);
	assert_int_equal(atomic_load(&m->control->opens), atomic_load(&m->control->releases));
	mounted_free(m);
	return code;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_made_found_and_removed),
		cmocka_unit_test(device_numbers_and_fifos_survive),
		cmocka_unit_test(names_may_have_255_bytes_and_no_more),
		cmocka_unit_test(a_symlink_may_be_as_long_as_a_path),
		cmocka_unit_test(renames_know_their_flags),
		cmocka_unit_test(large_data_comes_back_as_written),
		cmocka_unit_test(direct_io_goes_around_the_page_cache),
		cmocka_unit_test(shared_mappings_reach_the_file),
		cmocka_unit_test(files_are_truncated_both_ways),
		cmocka_unit_test(punched_and_zeroed_ranges_read_as_zeroes_at_once),
		cmocka_unit_test(copied_ranges_are_seen_at_once),
		cmocka_unit_test(two_appenders_do_not_overwrite_each_other),
		cmocka_unit_test(a_file_lives_on_without_its_name),
		cmocka_unit_test(a_temporary_file_can_be_given_a_name),
		cmocka_unit_test(times_have_nanoseconds_and_may_be_long_ago),
		cmocka_unit_test(owner_mode_and_umask_are_kept),
		cmocka_unit_test(extended_attributes_are_kept),
		cmocka_unit_test(a_file_without_extended_attributes_is_not_asked_for_them),
		cmocka_unit_test(the_space_is_told),
		cmocka_unit_test(the_kernel_checks_permissions),
		cmocka_unit_test(writing_takes_the_set_user_bit_away),
		cmocka_unit_test(pages_are_kept_over_an_open_while_the_content_is_the_same),
		cmocka_unit_test(locks_work_between_processes),
	};

	return mounted_possible() ? cmocka_run_group_tests(tests, mount_it, unmount_it) : 77;
}
