#include "fuse/mountpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/fusermount.h"
#include "fuse/mountinfo.h"

#define DEVICE "/dev/fuse"
#define DEAD_MOST 8 /* dead mounts on top of each other */

static int explain(char *why, size_t size, int error, const char *what)
{
	snprintf(why, size, "%s: %s", what, strerror(-error));
	return error;
}

/* realpath(3) would look into the mount, which hangs or fails when it is dead; so only
 * the directory above is resolved. */
int mountpoint_resolve(const char *directory, struct mountpoint *out, char *why, size_t why_size)
{
	CLEANUP_FREE char *copy = strdup(directory), *copy2 = strdup(directory), *above = NULL;
	const char *name;
	int n;

	*out = (struct mountpoint){ 0 };
	if (!copy || !copy2)
		return explain(why, why_size, -ENOMEM, directory);
	name = basename(copy2);
	if (!strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, "/")) {
		if (!realpath(directory, out->path))
			return explain(why, why_size, -errno, directory);
		return 0;
	}
	above = realpath(dirname(copy), NULL);
	if (!above)
		return explain(why, why_size, -errno, directory);
	n = snprintf(out->path, sizeof(out->path), "%s/%s", strcmp(above, "/") ? above : "", name);
	if (n < 0 || (size_t)n >= sizeof(out->path))
		return explain(why, why_size, -ENAMETOOLONG, directory);
	return 0;
}

int mountpoint_follow(struct mountpoint *m, char *why, size_t why_size)
{
	struct stat st;
	char path[PATH_MAX];

	if (lstat(m->path, &st) || !S_ISLNK(st.st_mode))
		return 0;
	if (!realpath(m->path, path))
		return explain(why, why_size, -errno, m->path);
	memcpy(m->path, path, strlen(path) + 1);
	return 0;
}

static int dead_remove(const struct mountpoint *m, char *why, size_t why_size)
{
	struct mountinfo info;
	int error = mountinfo_find(m->path, &info);

	if (error || strcmp(info.type, MOUNT_TYPE)) {
		snprintf(why, why_size, "%s is a dead mount of something else; unmount it first", m->path);
		return -ENOTCONN;
	}
	log_info("%s is a dead mount, left by a process that was killed; it is replaced", m->path);
	return mountpoint_unmount(m, true, why, why_size);
}

/* The kernel answers stat(2) of a dead mount's root from what it has cached; this attribute it always asks for, and a
 * live mount answers it by itself, also while its server is away.  ECANCELED comes of a process that is only just ending and had
 * its requests by io_uring. */
bool mountpoint_is_dead(const struct mountpoint *m)
{
	char pid[24];

	return getxattr(m->path, MOUNT_PID_XATTR, pid, sizeof(pid)) < 0 &&
	       (errno == ENOTCONN || errno == ECONNABORTED || errno == ECANCELED);
}

int mountpoint_prepare(const char *directory, struct mountpoint *out, char *why, size_t why_size)
{
	struct mountinfo info;
	struct stat st;
	int error = mountpoint_resolve(directory, out, why, why_size);

	if (!error)
		error = mountpoint_follow(out, why, why_size);
	/* The system would go on in what it has open, and to unmount it would be to unmount the system. */
	if (!error && !strcmp(out->path, "/")) {
		snprintf(why, why_size, "/ is the root of the system; name a directory of its own");
		error = -EINVAL;
	}
	for (int i = 0; !error && i < DEAD_MOST && mountpoint_is_dead(out); i++)
		error = dead_remove(out, why, why_size);
	if (error)
		return error;
	if (stat(out->path, &st)) {
		error = explain(why, why_size, -errno, out->path);
		if (error == -ENOENT)
			snprintf(why, why_size, "%s is not there; make it first (mkdir %s)", out->path, out->path);
		return error;
	}
	if (!S_ISDIR(st.st_mode))
		return explain(why, why_size, -ENOTDIR, out->path);
	if (!mountinfo_find(out->path, &info) && !strcmp(info.type, MOUNT_TYPE)) {
		snprintf(why, why_size, "volume %s is already mounted there; unmount it first (epochfs umount %s)", info.source,
			 out->path);
		return -EBUSY;
	}
	return 0;
}

/* Whether users may let others in: a line of its own in fuse.conf. */
static bool others_permitted(void)
{
	char line[256];
	bool found = false;
	FILE *f = fopen("/etc/fuse.conf", "re");

	while (f && !found && fgets(line, sizeof(line), f)) {
		char *text = line + strspn(line, " \t");

		text[strcspn(text, " \t\r\n#")] = 0;
		found = !strcmp(text, "user_allow_other");
	}
	if (f)
		fclose(f);
	return found;
}

static bool others_wanted(enum mountpoint_others others)
{
	return others == OTHERS_ALLOWED || (others == OTHERS_WHERE_PERMITTED && (!geteuid() || others_permitted()));
}

unsigned long mountpoint_bits(const struct mountpoint_flags *flags)
{
	static const unsigned long atime[] = { MS_NOATIME, MS_RELATIME, MS_STRICTATIME };

	return (flags->read_only ? MS_RDONLY : 0) | (flags->nosuid ? MS_NOSUID : 0) | (flags->nodev ? MS_NODEV : 0) |
	       (flags->noexec ? MS_NOEXEC : 0) | (flags->nodiratime ? MS_NODIRATIME : 0) | atime[flags->atime];
}

static int mount_as_root(const struct mountpoint *m, const struct mountpoint_flags *flags, char *why, size_t why_size)
{
	char options[160];
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC), error;

	if (fd < 0) {
		snprintf(why, why_size, DEVICE ": %s; the kernel module fuse must be there (modprobe fuse)", strerror(errno));
		return -errno;
	}
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions%s", fd, getuid(),
		 getgid(), others_wanted(flags->others) ? ",allow_other" : "");
	if (!mount(flags->source, m->path, MOUNT_TYPE, mountpoint_bits(flags), options))
		return fd;
	error = -errno;
	close(fd);
	return explain(why, why_size, error, "mount(2)");
}

static int mount_as_user(const struct mountpoint *m, const struct mountpoint_flags *flags, char *why, size_t why_size)
{
	char options[PATH_MAX];
	int n;

	/* fusermount3 opens it with the rights of the user. */
	if (access(DEVICE, R_OK | W_OK)) {
		snprintf(why, why_size, DEVICE ": %s%s", strerror(errno),
			 errno == EACCES ? "; let users have it (chmod 666 " DEVICE ", as udev does), or mount as root"
					 : "; the kernel module fuse must be there (modprobe fuse)");
		return -errno;
	}
	if (flags->others == OTHERS_ALLOWED && !others_permitted()) {
		snprintf(why, why_size, "only root may let other users in, unless /etc/fuse.conf has the line user_allow_other");
		return -EPERM;
	}
	/* fusermount3 always adds nosuid and nodev for users.  It knows no strictatime, and before 3.17 no nodiratime; that makes no
	 * difference, as the kernel leaves access times to us. */
	n = snprintf(options, sizeof(options), "fsname=%s,subtype=epochfs,default_permissions,%s%s%s%s", flags->source,
		     flags->read_only ? "ro" : "rw", flags->atime == ATIME_NEVER ? ",noatime" : "",
		     flags->noexec ? ",noexec" : "", others_wanted(flags->others) ? ",allow_other" : "");
	if (n < 0 || (size_t)n >= sizeof(options))
		return explain(why, why_size, -ENAMETOOLONG, flags->source);
	return fusermount_mount(m->path, options, why, why_size);
}

int mountpoint_mount(struct mountpoint *m, const struct mountpoint_flags *flags, char *why, size_t why_size)
{
	struct mountinfo info;
	int fd = geteuid() ? mount_as_user(m, flags, why, why_size) : mount_as_root(m, flags, why, why_size);

	if (fd >= 0 && !mountinfo_find(m->path, &info))
		m->device = info.device;
	return fd;
}

int mountpoint_unmount(const struct mountpoint *m, bool lazily, char *why, size_t why_size)
{
	if (geteuid())
		return fusermount_unmount(m->path, lazily, why, why_size);
	if (umount2(m->path, UMOUNT_NOFOLLOW | (lazily ? MNT_DETACH : 0)))
		return explain(why, why_size, -errno, m->path);
	return 0;
}

bool mountpoint_is_ours(const struct mountpoint *m)
{
	struct mountinfo info;

	return m->device && !mountinfo_find(m->path, &info) && info.device == m->device;
}

void mountpoint_readahead(const struct mountpoint *m, unsigned kib)
{
	char path[80], text[16];
	int n;

	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(m->device), minor(m->device));
	CLEANUP_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

	n = snprintf(text, sizeof(text), "%u", kib);
	if (fd < 0 || write(fd, text, (size_t)n) != n)
		log_debug("cannot raise the kernel's read-ahead (%s): %s", path, strerror(errno));
}
