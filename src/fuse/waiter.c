#include "fuse/waiter.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernel turns any deadly signal into a pending SIGKILL for every thread of the process. */
bool waiter_is_dying(uint32_t pid)
{
	char path[48], line[128];
	unsigned long long pending = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%u/status", pid);
	f = pid ? fopen(path, "re") : NULL;
	if (!f)
		return pid && errno == ENOENT;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, "SigPnd:", 7)) {
			pending = strtoull(line + 7, NULL, 16);
			break;
		}
	}
	fclose(f);
	return pending & (1ull << (SIGKILL - 1));
}
