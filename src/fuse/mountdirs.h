/* Where the directories that a mount keeps data in, and its server, may be: on a local disk, each one once.  Not beneath its own mount
 * point, which covers them, nor (the directories) around it, and not on another EpochFS mount, which could need the very data they keep. */
#pragma once
#include <stddef.h>
#include "client/client.h"

/* Of directories (absolute) that are there, or are to be made; `point` is the canonical path of the mount point.  0, or -errno and why. */
int mountdirs_check(const struct client_options *o, const char *point, char *why, size_t why_size);
