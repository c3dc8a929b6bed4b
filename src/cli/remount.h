/* mount -o remount: what can be changed of a live mount is whether it can be written to, its access times, and nosuid, nodev and
 * noexec.  mount(2) does it; here is what comes before and after:
 *
 *   to ro   all that was written is stored first, and once more when nobody can write any more
 *   to rw   a mount that was made to read only is refused: it has told the kernel and the server so
 *
 * What is not named stays as it is.  mount(8) names all flags: those it was not told it takes from fstab, if that has a line for the
 * mount, or else from the kernel's list of mounts.  So "what is not named" is what neither has. */
#pragma once
#include <stdbool.h>
#include "cli/mountwords.h"
#include "fuse/mount.h"

struct remount_request {
	const char *servers; /* as the mount would be told; NULL: not named */
	struct mount_flags flags;
	bool complete; /* flags that are not named are not to be set: mount(8) names all that stay */
	int failed;    /* the exit code for it */
};

/* `options`: what was named, to be refused if it is not how the mount is.  The exit code. */
int remount(const struct mount_options *options, const struct remount_request *request);
