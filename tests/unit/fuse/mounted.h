/* A mount of the fake client for a test: served by a child process, on a fresh
 * directory.  With EPOCHFS_FUSE_URING=on in the environment its requests come by io_uring. */
#pragma once
#include <sys/types.h>
#include "fake_client.h"
#include "fuse/mountpoint.h"

struct mounted {
	pid_t daemon;
	char directory[64];
	struct fake_control *control;
	char why[512]; /* why it did not come up */
};

/* Whether mounts can be tested here; says why not. */
int mounted_possible(void);
bool mounted_by_ring(void); /* requests come by io_uring */

/* A new directory and control block; then start, which waits until the mount is up
 * (0, or -1 and `why`).  `uid` 0: as root, else as that user through fusermount3. */
void mounted_new(struct mounted *m, uid_t uid);
int mounted_start(struct mounted *m, const struct mountpoint_flags *flags, uid_t uid);
/* Waits for the process: its exit code, or 128 + signal. */
int mounted_wait(struct mounted *m);
int mounted_stop(struct mounted *m); /* SIGTERM, then wait */
void mounted_free(struct mounted *m);

/* A path in the mount, valid until eight more were made. */
const char *at(const struct mounted *m, const char *name);

/* Runs `run` as a user in a process of its own; its result, or -1 if it crashed. */
int as_user(uid_t uid, int (*run)(const void *argument), const void *argument);

/* Waits until *value is at least `least` (or, after 20 seconds, fails the test). */
void wait_for(const char *what, atomic_uint *value, unsigned least);
/* How often threads of the mount's process have gone to sleep so far. */
unsigned long mounted_sleeps(const struct mounted *m);
/* For how long each of them has run; how many there are. */
unsigned mounted_ran_ns(const struct mounted *m, unsigned long *ran_ns, unsigned most);
