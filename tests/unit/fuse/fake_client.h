/* A client of no server: a file system in memory behind client/client.h, so that the
 * mount can be tested alone.  The test and the mount are two processes; what the test
 * may turn or wants to see is in shared memory. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

struct fake_control {
	atomic_uint valid_ms;    /* how long names and attributes may be cached */
	atomic_bool stall;       /* look-ups of names that begin with "stall" wait while this is set */
	atomic_bool stall_files; /* so do calls for files */
	atomic_uint stalled;     /* how many do */
	atomic_bool refuse;      /* client_connect fails */
	atomic_uint opens, untold, releases, reads, getxattrs, fsyncs, syncs, disconnects, readdirs;
	atomic_uint changes;                      /* "another mount" makes so many names in the root when it is listed next */
	atomic_bool changed_content;              /* client_open says that the content is not what it was */
	atomic_uint kills;                        /* calls that came with kill_suidgid */
	atomic_uint flushes, drops;               /* client_unlock_owner, client_unlock_handle */
	_Atomic uint64_t lock_owner, lock_handle; /* of what client_lock or client_lock_wait was asked last */
	atomic_uint waits, cancels;               /* client_lock_wait that had to wait, client_lock_cancel that ended one */
	atomic_uint locks;                        /* client_lock and client_lock_test that were answered */
	atomic_bool stall_drops;                  /* client_unlock_handle waits while this is set */
	int64_t closing_ns, closing_again_ns; /* how long the mount waits for RELEASEs; for tests that set it before the start */
	atomic_uint interrupts;               /* handled, without an answer to the request; for tests that count them */
	atomic_uint granted_ms;               /* how long attributes may be cached by a grant */
	atomic_uint getattrs;                 /* of regular files */
	atomic_bool stall_getattrs;           /* those wait while this is set, with the answer they have */
	atomic_uint stalled_getattrs;         /* how many do */
};

extern struct fake_control *fake_control; /* set by the test before the mount starts */

/* Waits while it is set. */
static inline void fake_stall(const atomic_bool *stall)
{
	if (!atomic_load(stall))
		return;
	atomic_fetch_add(&fake_control->stalled, 1);
	while (atomic_load(stall))
		usleep(1000);
	atomic_fetch_sub(&fake_control->stalled, 1);
}

/* What "another mount" does to a file of the root is told by setting an extended attribute of the root, with the file's name as the value:
 *   user.elsewhere.make      makes it
 *   user.elsewhere.grow      makes it a page longer
 *   user.elsewhere.recall    wants it: the kernel is made to forget its pages, as when a grant is given back */
