#include "fuse/waiter.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Signals of a thread, as /proc shows them: a bit each. */
struct signals {
	unsigned long long own, shared, blocked; /* pending for it; for its process; that it does not want now */
};

static void line_read(const char *line, struct signals *out)
{
	if (!strncmp(line, "SigPnd:", 7))
		out->own = strtoull(line + 7, NULL, 16);
	else if (!strncmp(line, "ShdPnd:", 7))
		out->shared = strtoull(line + 7, NULL, 16);
	else if (!strncmp(line, "SigBlk:", 7))
		out->blocked = strtoull(line + 7, NULL, 16);
}

/* 0; -ENOENT: there is no such thread (any more). */
static int signals_read(uint32_t pid, struct signals *out)
{
	char path[48], line[128];
	FILE *f;

	*out = (struct signals){ 0 };
	if (!pid)
		return 0;
	snprintf(path, sizeof(path), "/proc/%u/status", pid);
	f = fopen(path, "re");
	if (!f)
		return errno == ENOENT ? -ENOENT : 0;
	while (fgets(line, sizeof(line), f))
		line_read(line, out);
	fclose(f);
	return 0;
}

/* The kernel turns any deadly signal into a pending SIGKILL for every thread of the process. */
bool waiter_is_dying(uint32_t pid)
{
	struct signals s;

	return signals_read(pid, &s) || (s.own & (1ull << (SIGKILL - 1)));
}

bool waiter_is_interrupted(uint32_t pid)
{
	struct signals s;

	return signals_read(pid, &s) || ((s.own | s.shared) & ~s.blocked);
}
