/* epochfs umount: unmounts, and waits until all that was written is stored.
 *
 * First everything is synced, so that what cannot be stored is told while the volume is
 * still mounted.  Then it is unmounted, and then its process, which tells its number by
 * an attribute of the root directory, is waited for.  (umount(2) returns before a FUSE
 * process has seen it.)
 *
 * Where a container has a copy of the mount, or it is mounted on another directory as well,
 * its process goes on for these.  Then the process is asked to store what was written up to
 * now, and is not waited for. */
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
#include "cli/holders.h"
#include "cli/options.h"
#include "cli/reach.h"
#include "cli/verbs.h"
#include "client/control.h"
#include "fuse/mountpoint.h"
#include "fuse/mountinfo.h"

#define STEP_MS 100
#define TELL_AFTER_NS (1500 * NS_PER_MS)
#define ASK_S 5
#define COPY_PATIENCE_MS 3000

/* The process behind the mount as a descriptor that becomes readable when it ends, or -1
 * if it cannot be known: the mount is dead, or its user does not let us in. */
static int process_open(const struct mountpoint *m, long *pid)
{
	char text[24] = "";

	*pid = 0;
	if (getxattr(m->path, MOUNT_PID_XATTR, text, sizeof(text) - 1) <= 0)
		return -1;
	*pid = strtol(text, NULL, 10);
	return *pid > 0 ? (int)syscall(SYS_pidfd_open, (pid_t)*pid, 0) : -1;
}

/* Work on a thread of its own, so that what is waited for can be told meanwhile. */
struct work {
	int (*run)(void *context);
	void *context;
	int error;
	int done; /* an end of a pipe, closed when it is over */
};

static void *work_run(void *argument)
{
	struct work *w = argument;

	w->error = w->run(w->context);
	close(w->done);
	return NULL;
}

static int mount_sync(void *context)
{
	const struct mountpoint *m = context;
	CLEANUP_FD int fd = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	/* syncfs takes care of what was written through mappings; fsync reaches the server. */
	return fd < 0 || syncfs(fd) || fsync(fd) ? -errno : 0;
}

/* What the mount says of itself (client/control_status.c); NULL: nothing. */
static json_t *status_ask(const struct mountpoint *m)
{
	CLEANUP_REACH struct reach mount;

	return reach_open(&mount, m->path, ASK_S) ? NULL : reach_ask(&mount, json_pack("{s:s}", "op", "status"));
}

struct leaving {
	const struct mountpoint *point;
	const struct mountinfo *info;
	json_t *status; /* from before it was unmounted; NULL: not known */
	bool read_only, told;
	long pid;
	json_t *storing;    /* what its process said when it was unmounted here, and others still had it */
	char unstored[600]; /* "", or why it is not known whether all is stored then */
};

/* What is known stays, if there is no answer: then false. */
static bool status_renew(struct leaving *l)
{
	json_t *status = status_ask(l->point);

	if (!status)
		return false;
	json_decref(l->status);
	l->status = status;
	return true;
}

static void leaving_end(struct leaving *l)
{
	json_decref(l->status);
	json_decref(l->storing);
}
#define CLEANUP_LEAVING __attribute__((cleanup(leaving_end)))

static void waiting_tell(struct leaving *l)
{
	const char *servers = json_string_value(json_object_get(l->status, "servers"));
	uint64_t ms = (uint64_t)json_integer_value(json_object_get(l->status, "timeout_ms"));
	char limit[UNITS_TEXT];

	l->told = true;
	if (l->read_only)
		fprintf(stderr, "epochfs: waiting for the process of the mount on %s to end\n", l->point->path);
	else if (servers && ms)
		fprintf(stderr,
			"epochfs: storing what was written to %s; if the server at %s does not answer, it is waited for up to "
			"%s\n",
			l->point->path, servers, duration_format(limit, ms / 1000));
	else
		fprintf(stderr, "epochfs: storing what was written to %s; waiting for its server\n", l->point->path);
}

/* Until `fd` becomes readable or is closed.  What is waited for is told, once, and on a terminal that something is going on. */
static void wait_shown(struct leaving *l, int fd)
{
	struct progress *p = progress_new("umount");
	int64_t began = clock_steady_ns(), waited = 0;
	struct pollfd wait = { fd, POLLIN, 0 };

	while (poll(&wait, 1, STEP_MS) == 0) {
		waited = clock_steady_ns() - began;
		if (waited >= TELL_AFTER_NS && !l->told)
			waiting_tell(l);
		progress_show(p, "storing, seconds:", (uint64_t)(waited / NS_PER_S), 0);
	}
	progress_end(p);
}

static int work_shown(struct leaving *l, int (*run)(void *context), void *context)
{
	struct work w = { .run = run, .context = context };
	pthread_t thread;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	w.done = fds[1];
	if (pthread_create(&thread, NULL, work_run, &w)) {
		close(fds[1]);
		close(fds[0]);
		return -EAGAIN;
	}
	wait_shown(l, fds[0]);
	pthread_join(thread, NULL);
	close(fds[0]);
	return w.error;
}

static uint64_t figure(const json_t *status, const char *name)
{
	const json_t *one;
	size_t i;

	json_array_foreach(json_object_get(status, "figures"), i,
			   one) if (!strcmp(json_string_value(json_object_get(one, "name")),
					    name)) return (uint64_t)json_integer_value(json_object_get(one, "value"));
	return 0;
}

/* ---- Write-back ---- */

/* The mount has ended: each spool (client/spool.h) it has left is a file that is not uploaded. */
static int left_tell(const struct leaving *l)
{
	const char *folder = json_string_value(json_object_get(l->status, "writeback_folder"));
	DIR *stream = folder ? opendir(folder) : NULL;
	uint64_t files = 0, bytes = 0, damaged = figure(l->status, "writeback_damaged_files");
	char count[UNITS_TEXT], size[UNITS_TEXT], bad[UNITS_TEXT];
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
	/* With these it would not be mounted again. */
	if (damaged)
		return verb_fail(
			"%s is unmounted, but the newest content of %s, %s, is not uploaded: %s %s damaged in the write-back "
			"directory %s; see \"The disk of a write-back directory is broken\" in docs/operations.md",
			l->point->path, counted_format(count, files, "file"), size_format(size, bytes),
			counted_format(bad, damaged, "file"), damaged == 1 ? "is" : "are", folder);
	/* All had been uploaded a moment before, and the directory could not be written to. */
	if (l->status && !figure(l->status, "writeback_files"))
		return verb_fail(
			"%s is unmounted, and what its write-back held of %s, %s, is still in %s: it is uploaded, unless "
			"epochfs writeback list names the file",
			l->point->path, counted_format(count, files, "file"), size_format(size, bytes), folder);
	return verb_fail("%s is unmounted, but the newest content of %s, %s, is not uploaded; it is in %s and nowhere else: "
			 "mount the volume again with the same --writeback (epochfs writeback list names the files)",
			 l->point->path, counted_format(count, files, "file"), size_format(size, bytes), folder);
}

/* ---- What others still have ---- */

/* A service that is just being started, or a sandbox, has copies of all mounts for a moment. */
static bool ends_soon(int process) { return poll(&(struct pollfd){ process, POLLIN, 0 }, 1, COPY_PATIENCE_MS) > 0; }

static bool has_ended(int process) { return poll(&(struct pollfd){ process, POLLIN, 0 }, 1, 0) > 0; }

/* Whether the mount has its server, and so goes on storing. */
static bool is_storing(const struct leaving *l)
{
	CLEANUP_REACH struct reach mount;
	json_t *status = reach_open_mount(&mount, l->info, ASK_S) ? NULL : reach_ask(&mount, json_pack("{s:s}", "op", "status"));
	bool connected = json_is_true(json_object_get(status, "connected"));

	json_decref(status);
	return connected;
}

/* Asks its process to store what was written up to now, and whether the kernel still has the mount.  It cannot be asked through the
 * mount, which is not here any more. */
static int mount_store(void *context)
{
	struct leaving *l = context;
	CLEANUP_REACH struct reach mount;
	uint64_t ms = (uint64_t)json_integer_value(json_object_get(l->status, "timeout_ms"));
	const char *failure;

	/* What is in a write-back directory is uploaded after the rest was synced: each may take a time-out. */
	if (!reach_open_mount(&mount, l->info, 2 * (unsigned)(ms / 1000) + ASK_S)) {
		l->storing = reach_ask(&mount, json_pack("{s:s}", "op", "store"));
		/* Much may be left to upload. */
		while (!l->storing && mount.late && is_storing(l))
			l->storing = reach_answer(&mount);
	}
	failure = l->storing ? json_string_value(json_object_get(l->storing, "failure")) : mount.why;
	if (failure)
		snprintf(l->unstored, sizeof(l->unstored), "%.*s", (int)sizeof(l->unstored) - 1, failure);
	return 0;
}

/* The number of the device may be that of another mount already; and what does not answer is not known to have ended. */
static bool is_held(const struct leaving *l)
{
	if (!l->storing)
		return true;
	return json_is_true(json_object_get(l->storing, "mounted")) &&
	       json_integer_value(json_object_get(l->storing, "pid")) == l->pid;
}

/* Waits for its process, unless that goes on because others have the mount: then true, with all stored, or `unstored`. */
static bool process_await(struct leaving *l, int process)
{
	if (mountinfo_device_lives(l->info->device) && !has_ended(process)) {
		int error = work_shown(l, mount_store, l);

		if (error)
			snprintf(l->unstored, sizeof(l->unstored), "%s", strerror(-error));
		if (!ends_soon(process) && mountinfo_device_lives(l->info->device) && is_held(l))
			return true;
	}
	wait_shown(l, process);
	return false;
}

static int held_tell(const struct leaving *l)
{
	char who[HOLDERS_TEXT];

	if (!holders_find(l->info->device, who))
		snprintf(who, sizeof(who),
			 "what has it cannot be seen from here: another mount namespace (a container), or files that were open "
			 "when it was unmounted with --lazy");
	if (l->unstored[0] && !l->read_only)
		return verb_fail("%s is unmounted here, but not all that was written to it is known to be stored (%s).  Its "
				 "process (%ld) goes on, and stores it once it can: %s",
				 l->point->path, l->unstored, l->pid, who);
	fprintf(stderr,
		"epochfs: %s is unmounted here, and all that was written to it is stored.  Its process (%ld) goes on until "
		"nobody has it any more: %s\n",
		l->point->path, l->pid, who);
	return EXIT_DONE;
}

/* ---- Unmounting ---- */

/* What could not be stored in time. */
static int unstored_tell(const struct mountpoint *m, const json_t *status, int error)
{
	uint64_t files = figure(status, "unstored_files"), bytes = figure(status, "unstored_bytes");
	bool away = status && !json_is_true(json_object_get(status, "connected"));
	char what[100] = "it is not known whether all that was written to it is stored", count[UNITS_TEXT], size[UNITS_TEXT];

	if (files)
		snprintf(what, sizeof(what), "%s, %s, of what was written to it could not be stored",
			 counted_format(count, files, "file"), size_format(size, bytes));
	return verb_fail("cannot unmount %s: %s (%s); it stays mounted (--lazy unmounts it nevertheless)", m->path, what,
			 away ? "its server does not answer" : strerror(-error));
}

/* Its process tries to upload what is left when it ends, and waits once more; for what is damaged nothing is waited for. */
static void again_tell(struct leaving *l)
{
	bool connected = json_is_true(json_object_get(l->status, "connected"));
	uint64_t ms = (uint64_t)json_integer_value(json_object_get(l->status, "timeout_ms"));
	char limit[UNITS_TEXT];

	if (connected && figure(l->status, "writeback_damaged_files"))
		return;
	l->told = true;
	fprintf(stderr,
		"epochfs: what was written to %s is synced to its write-back directory; it is unmounted, and its server is "
		"waited for once more, for up to %s\n",
		l->point->path, duration_format(limit, ms / 1000));
}

/* With write-back: what is not stored is synced, and outlives the mount. */
static bool all_is_synced(const json_t *status)
{
	const char *folder = json_string_value(json_object_get(status, "writeback_folder"));

	return folder && figure(status, "unstored_files") == figure(status, "writeback_synced_files");
}

static int refusal_tell(const struct mountpoint *m, const struct mountinfo *info, int error, const char *why)
{
	struct mountinfo beneath;

	if (error != -EBUSY && geteuid() && geteuid() != info->user)
		return verb_fail("cannot unmount %s: only root and the user who mounted it may", m->path);
	if (error != -EBUSY)
		return verb_fail("cannot unmount %s: %s", m->path, why);
	if (!mountinfo_find_beneath(m->path, &beneath))
		return verb_fail("cannot unmount %s: something is mounted on %s; unmount that first, or pass --lazy", m->path,
				 beneath.point);
	return verb_fail("cannot unmount %s: it is in use; close what uses it (lsof %s shows it), or pass --lazy", m->path,
			 m->path);
}

static int unmount(const struct mountpoint *m, const struct mountinfo *info, bool lazily)
{
	CLEANUP_LEAVING struct leaving l = { .point = m, .info = info };
	CLEANUP_FD int process = process_open(m, &l.pid);
	bool dead = process < 0 && mountpoint_is_dead(m), renewed = false, unknown;
	char why[600] = "";
	int error = 0, code;

	if (!dead && !lazily) {
		l.status = status_ask(m);
		/* One that was mounted for writing, and then for reading, may still have something to store. */
		l.read_only = info->read_only && json_is_true(json_object_get(l.status, "only_reads"));
		error = l.read_only ? 0 : work_shown(&l, mount_sync, (void *)m);
		renewed = !l.read_only && error != -EACCES && status_renew(&l);
	}
	if (error && error != -EACCES) {
		/* What was so before it was synced is not worth anything. */
		if (!renewed || !all_is_synced(l.status))
			return unstored_tell(m, renewed ? l.status : NULL, error);
		again_tell(&l);
	}
	/* root is not let into another user's mount; its process stores all when it ends. */
	unknown = error == -EACCES ? !l.status || figure(l.status, "unstored_files") : error != 0;
	/* A dead mount has nothing to lose. */
	error = mountpoint_unmount(m, lazily || dead, why, sizeof(why));
	if (error)
		return refusal_tell(m, info, error, why);
	if (dead)
		control_clear(info->user);
	if (process >= 0 && !lazily && process_await(&l, process))
		return held_tell(&l);
	code = left_tell(&l);
	if (code == EXIT_DONE && unknown)
		return verb_fail("%s is unmounted; whether all that was written to it is stored only the log of the mount tells",
				 m->path);
	return code;
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
			"but returns before all is stored; the process of the mount then goes on until it is.\n"
			"\n"
			"A server that does not answer is waited for as long as --timeout of the mount says; then this ends with "
			"exit "
			"code 1, and the volume stays mounted.  A mount that can only read has nothing to store, and ends at "
			"once.\n"
			"\n"
			"A mount with --writeback uploads what is left first.  If the server does not answer it is unmounted "
			"nevertheless, "
			"after twice --timeout, but only if all that was written to it is synced; else it stays mounted, after "
			"one --timeout.  What it could not upload stays on its disk, and is told, with exit code 1.\n"
			"\n"
			"A container, or another process with a mount namespace of its own, keeps its copy of a mount; so does a "
			"second directory (mount --bind).  Then the volume is unmounted here, and all that was written is "
			"stored (with --writeback: uploaded).  The command says which processes still have the volume, and "
			"does not wait for them.  Its exit code is 0, or 1 if not everything could be stored.  The process of "
			"the mount serves the others until the last one unmounts the volume or ends.  Then it stores the rest "
			"and ends, too.",
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
	/* Followed only if nothing is mounted there: looking at a mount may take as long as its server does. */
	if (mountinfo_find(m.path, &info) && mountpoint_follow(&m, why, sizeof(why)))
		return verb_fail("cannot unmount %s", why);
	if (mountinfo_find(m.path, &info) || strcmp(info.type, MOUNT_TYPE))
		return verb_fail("cannot unmount %s: no volume is mounted there; mount -t " MOUNT_TYPE " lists those that are",
				 m.path);
	return unmount(&m, &info, lazily);
}
