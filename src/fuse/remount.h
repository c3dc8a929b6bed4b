/* What root changes of a live mount (mount -o remount): whether it can be written to, and its access times.  The kernel tells a
 * FUSE server nothing of that.  It enforces "read-only" by itself; but access times are ours.  So the mount watches the list of
 * what is mounted, and takes over what has changed there:
 *
 *   noatime, relatime, nothing (strictatime), nodiratime, of the directory it is mounted on
 *   ro, rw, of that or of the file system
 *
 * What the kernel showed first goes with the options of the mount, whatever it is: fusermount3 knows no strictatime.  From
 * then on only what changes is taken over.
 *
 * The main thread looks when the descriptor says so; whoever asks for the state of the mount looks first, so that the answer is
 * never older than the question.  Any thread. */
#pragma once
#include <pthread.h>
#include "fuse/session.h"

struct remount {
	int watch; /* /proc/self/mountinfo: poll() says POLLPRI after something was mounted or changed; -1: nothing is watched */
	const struct mountpoint *point;
	struct session *session;
	bool only_reads;      /* it was mounted so, and stays so, whatever the kernel has been told since */
	pthread_mutex_t lock; /* guards the flags */
	unsigned long flags;  /* of struct mountinfo, as seen last */
};

/* After the session has begun.  Where the list cannot be read, nothing is watched. */
void remount_begin(struct remount *r, const struct mountpoint *point, struct session *session);
void remount_end(struct remount *r);
/* Takes over what has changed. */
void remount_look(struct remount *r);
