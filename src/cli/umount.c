/* epochfs umount: unmounts, and waits until all that was written is stored.
 *
 * First everything is synced, so that what cannot be stored is told while the volume is
 * still mounted.  Then it is unmounted, and then its process, which tells its number by
 * an attribute of the root directory, is waited for.  (umount(2) returns before a FUSE
 * process has seen it.) */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/options.h"
#include "cli/reach.h"
#include "cli/verbs.h"
#include "fuse/mountpoint.h"
#include "fuse/mountinfo.h"

#define STEP_MS 100

/* The process behind the mount as a descriptor that becomes readable when it ends, or -1
 * if it cannot be known: the mount is dead, or its user does not let us in. */
static int process_open(const struct mountpoint *m)
{
	char text[24] = "";
	long pid;

	if (getxattr(m->path, MOUNT_PID_XATTR, text, sizeof(text) - 1) <= 0)
		return -1;
	pid = strtol(text, NULL, 10);
	return pid > 0 ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;
}

struct syncing {
	const char *path;
	int error;
	int done; /* an end of a pipe, closed when it is over */
};

static void *sync_run(void *argument)
{
	struct syncing *s = argument;
	int fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	/* syncfs takes care of what was written through mappings; fsync reaches the server. */
	s->error = fd < 0 || syncfs(fd) || fsync(fd) ? -errno : 0;
	if (fd >= 0)
		close(fd);
	close(s->done);
	return NULL;
}

/* Shows that something is going on until `fd` becomes readable or is closed. */
static void wait_shown(int fd, const char *phase)
{
	struct progress *p = progress_new("umount");
	int64_t began = clock_steady_ns();
	struct pollfd wait = { fd, POLLIN, 0 };

	while (poll(&wait, 1, STEP_MS) == 0)
		progress_show(p, phase, (uint64_t)((clock_steady_ns() - began) / NS_PER_S), 0);
	progress_end(p);
}

static int sync_shown(const struct mountpoint *m)
{
	struct syncing s = { .path = m->path };
	pthread_t thread;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	s.done = fds[1];
	if (pthread_create(&thread, NULL, sync_run, &s)) {
		close(fds[1]);
		close(fds[0]);
		return -EAGAIN;
	}
	wait_shown(fds[0], "storing, seconds:");
	pthread_join(thread, NULL);
	close(fds[0]);
	return s.error;
}

/* ---- Write-back ---- */

#define ASK_S 5

/* Where the mount keeps what is not uploaded; NULL: nowhere, or it does not say. */
static char *writeback_folder(const struct mountpoint *m)
{
	CLEANUP_REACH struct reach mount;
	json_t *status;
	const char *path;
	char *out;

	if (reach_open(&mount, m->path, ASK_S))
		return NULL;
	status = reach_ask(&mount, json_pack("{s:s}", "op", "status"));
	path = json_string_value(json_object_get(status, "writeback_folder"));
	out = path ? strdup(path) : NULL;
	json_decref(status);
	return out;
}

/* The mount has ended: each spool (client/spool.h) it has left is a file that is not uploaded. */
static int left_tell(const struct mountpoint *m, const char *folder)
{
	DIR *stream = folder ? opendir(folder) : NULL;
	uint64_t files = 0, bytes = 0;
	char count[UNITS_TEXT], size[UNITS_TEXT];
	struct dirent *entry;
	struct stat st;

	while (stream && (entry = readdir(stream)))
		if (strchr(entry->d_name, '.') && entry->d_name[0] != '.' && !fstatat(dirfd(stream), entry->d_name, &st, 0) &&
		    S_ISREG(st.st_mode)) {
			files++;
			bytes += (uint64_t)st.st_blocks * 512;
		}
	if (stream)
		closedir(stream);
	if (!files)
		return EXIT_DONE;
	return verb_fail(
		"%s is unmounted, but the newest content of %s file(s), %s, is not uploaded; it is in %s and nowhere else: "
		"mount the volume again with the same --writeback (epochfs writeback list names the files)",
		m->path, count_format(count, files), size_format(size, bytes), folder);
}

static int unmount(const struct mountpoint *m, bool lazily)
{
	CLEANUP_FREE char *folder = lazily ? NULL : writeback_folder(m);
	CLEANUP_FD int process = process_open(m);
	char why[600] = "";
	int error = process >= 0 && !lazily ? sync_shown(m) : 0;

	if (error)
		return verb_fail(
			"cannot unmount %s: not everything written to it could be stored (%s); it stays mounted (--lazy unmounts "
			"it nevertheless)",
			m->path, strerror(-error));
	/* A dead mount has nothing to lose. */
	error = mountpoint_unmount(m, lazily || mountpoint_is_dead(m), why, sizeof(why));
	if (error == -EBUSY)
		return verb_fail("cannot unmount %s: it is in use; close what uses it (lsof %s shows it), or pass --lazy",
				 m->path, m->path);
	if (error)
		return verb_fail("cannot unmount %s: %s", m->path, why);
	if (process >= 0 && !lazily)
		wait_shown(process, "storing, seconds:");
	return left_tell(m, folder);
}

int verb_umount(int argc, char **argv)
{
	bool lazily = false;
	struct option_spec specs[] = {
		{ "lazy", NULL, OPTION_FLAG, &lazily,
		  "Take it away at once also if it is in use, and do not wait: programs that use it can finish, then the rest is "
		  "stored.",
		  .letter = 'l' },
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "umount",
		.usage = "DIR [OPTION...]",
		.summary = "unmount a volume",
		.description =
			"Stores what was written and not yet stored, unmounts, and returns when all is done.  umount(8) "
			"unmounts as well, "
			"but returns before all is stored; the process of the mount then goes on until it is.  A mount with "
			"--writeback uploads what is left first; what it could not upload in its --timeout stays on its disk, "
			"and "
			"is told, with exit code 1.",
		.examples = "epochfs umount /mnt/training\nUnmount it.\n",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
	};
	struct mountpoint m;
	struct mountinfo info;
	char why[600] = "";
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	if (mountpoint_resolve(o.operands[0], &m, why, sizeof(why)))
		return verb_fail("cannot unmount %s", why);
	if (mountinfo_find(m.path, &info) || strcmp(info.type, MOUNT_TYPE))
		return verb_fail("cannot unmount %s: no volume is mounted there; mount -t " MOUNT_TYPE " lists those that are",
				 m.path);
	return unmount(&m, lazily);
}
