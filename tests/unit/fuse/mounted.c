#include "../temporary.h"
#include "mounted.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <grp.h>
#include <mntent.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/log.h"
#include "fuse/mount.h"

/* Users may open /dev/fuse where udev runs; elsewhere they get one in this namespace. */
static void device_for_users(void)
{
	char directory[100], node[128];

	temporary_template(directory, sizeof(directory), "device");
	if (!mkdtemp(directory))
		return;
	snprintf(node, sizeof(node), "%s/fuse", directory);
	if (!mount("none", directory, "tmpfs", 0, NULL)) {
		if (mknod(node, S_IFCHR | 0666, makedev(10, 229)) || chmod(node, 0666) ||
		    mount(node, "/dev/fuse", NULL, MS_BIND, NULL))
			fprintf(stderr, "cannot make a /dev/fuse for users: %s\n", strerror(errno));
		umount2(directory, MNT_DETACH);
	}
	rmdir(directory);
}

#define RING_SWITCH "/sys/module/fuse/parameters/enable_uring"

bool mounted_by_ring(void)
{
	const char *text = getenv("EPOCHFS_FUSE_URING");

	return text && !strcmp(text, "on");
}

static void ring_switch(char value)
{
	int fd = open(RING_SWITCH, O_WRONLY);

	if (fd < 0 || write(fd, &value, 1) != 1)
		fprintf(stderr, RING_SWITCH ": %s\n", strerror(errno));
	if (fd >= 0)
		close(fd);
}

static pid_t ring_switcher;

/* The mounts' processes come by here, too. */
static void ring_switch_back(void)
{
	if (getpid() == ring_switcher)
		ring_switch('N');
}

/* On for this run, if it was off. */
static bool ring_possible_here(void)
{
	char value = 0;
	int fd = open(RING_SWITCH, O_RDONLY);
	bool there = fd >= 0 && read(fd, &value, 1) == 1;

	if (fd >= 0)
		close(fd);
	if (there && value == 'N') {
		ring_switch('Y');
		ring_switcher = getpid();
		atexit(ring_switch_back);
	}
	return there;
}

/* A new namespace begins with a copy of every mount: a volume that another program unmounts would stay in use by it. */
static void copies_drop(void)
{
	struct mntent *entry;
	FILE *list = setmntent("/proc/self/mounts", "r");

	while (list && (entry = getmntent(list)))
		if (!strncmp(entry->mnt_type, "fuse", 4) && strcmp(entry->mnt_type, "fusectl") != 0)
			umount2(entry->mnt_dir, MNT_DETACH);
	if (list)
		endmntent(list);
}

int mounted_possible(void)
{
	if (mounted_by_ring() && (geteuid() || !ring_possible_here())) {
		fprintf(stderr, "SKIPPED: FUSE over io_uring needs root and Linux 6.14\n");
		return 0;
	}
	if (access("/dev/fuse", R_OK | W_OK) || geteuid()) {
		fprintf(stderr, "SKIPPED: mounting needs root and /dev/fuse: %s\n", geteuid() ? "not root" : strerror(errno));
		return 0;
	}
	/* Mounts of our own: what a failed test leaves behind goes with the process. */
	if (!unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
		copies_drop();
		device_for_users();
	}
	return 1;
}

void mounted_new(struct mounted *m, uid_t uid)
{
	*m = (struct mounted){ .daemon = -1 };
	temporary_template(m->directory, sizeof(m->directory), "fuse");
	assert_non_null(mkdtemp(m->directory));
	assert_int_equal(chmod(m->directory, 0755), 0);
	assert_int_equal(chown(m->directory, uid, uid), 0);
	m->control = mmap(NULL, sizeof(*m->control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(m->control, MAP_FAILED);
	atomic_store(&m->control->valid_ms, 10000);
}

static void become(uid_t uid)
{
	if (uid && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
		_exit(99);
}

struct report {
	int fd;
};

static int on_up(void *context)
{
	struct report *r = context;

	return write(r->fd, "u", 1) == 1 ? 0 : -errno;
}

static void serve(struct mounted *m, const struct mountpoint_flags *flags, uid_t uid, int fd)
{
	struct report report = { fd };
	struct mount_options o = {
		.client = { .servers = "fake", .volume = "testing" },
		.flags = *flags,
		.ring = mounted_by_ring() ? RING_ALWAYS : RING_NEVER,
		.directory = m->directory,
		.up = on_up,
		.context = &report,
	};
	char why[512] = "";
	int error;

	become(uid);
	/* A test that fails leaves its mount behind; it must not outlive the program. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	log_set_level(LOG_LEVEL_WARN);
	o.flags.source = "testing";
	fake_control = m->control;
	error = mount_run(&o, why, sizeof(why));
	/* After it has begun, nobody reads the pipe any more. */
	if (error && write(fd, why, strlen(why)) < 0)
		fprintf(stderr, "the mount failed: %s\n", why);
	/* exit, not _exit: leaks are looked for. */
	exit(error ? 1 : 0);
}

int mounted_start(struct mounted *m, const struct mountpoint_flags *flags, uid_t uid)
{
	char said[512] = "";
	int fds[2];
	ssize_t n;

	assert_int_equal(pipe(fds), 0);
	fflush(NULL);
	m->daemon = fork();
	assert_true(m->daemon >= 0);
	if (!m->daemon) {
		close(fds[0]);
		serve(m, flags, uid, fds[1]);
	}
	close(fds[1]);
	n = read(fds[0], said, sizeof(said) - 1);
	close(fds[0]);
	if (n == 1 && said[0] == 'u')
		return 0;
	snprintf(m->why, sizeof(m->why), "%s", said);
	return -1;
}

int mounted_wait(struct mounted *m)
{
	int status = 0;

	assert_int_equal(waitpid(m->daemon, &status, 0), m->daemon);
	m->daemon = -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int mounted_stop(struct mounted *m)
{
	assert_int_equal(kill(m->daemon, SIGTERM), 0);
	return mounted_wait(m);
}

void mounted_free(struct mounted *m)
{
	assert_int_equal(rmdir(m->directory), 0);
	munmap(m->control, sizeof(*m->control));
}

const char *at(const struct mounted *m, const char *name)
{
	static char paths[8][512];
	static unsigned next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof(paths[0]), "%s/%s", m->directory, name);
	return path;
}

int as_user(uid_t uid, int (*run)(const void *argument), const void *argument)
{
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		become(uid);
		_exit(run(argument) & 0xff);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void wait_for(const char *what, atomic_uint *value, unsigned least)
{
	int64_t until = clock_steady_ns() + 20 * NS_PER_S;

	while (atomic_load(value) < least) {
		if (clock_steady_ns() > until)
			fail_msg("%s: waited in vain for %u, it is %u", what, least, atomic_load(value));
		usleep(1000);
	}
}

/* Of each thread, the number after the key in /proc/PID/task/ID/FILE. */
static unsigned threads_numbers(const struct mounted *m, const char *file, const char *key, unsigned long *numbers, unsigned most)
{
	char path[64 + NAME_MAX], line[128];
	unsigned count = 0;
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)m->daemon);
	d = opendir(path);
	while (d && (e = readdir(d)) && count < most) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", (int)m->daemon, e->d_name, file);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (f && fgets(line, sizeof(line), f)) {
			if (strncmp(line, key, strlen(key)))
				continue;
			numbers[count++] = strtoul(line + strlen(key), NULL, 10);
			break;
		}
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return count;
}

unsigned mounted_ran_ns(const struct mounted *m, unsigned long *ran_ns, unsigned most)
{
	return threads_numbers(m, "schedstat", "", ran_ns, most);
}

unsigned long mounted_sleeps(const struct mounted *m)
{
	enum { THREADS = 600 };
	static unsigned long sleeps[THREADS];
	unsigned long sum = 0;

	for (unsigned i = threads_numbers(m, "status", "voluntary_ctxt_switches:", sleeps, THREADS); i > 0; i--)
		sum += sleeps[i - 1];
	return sum;
}
