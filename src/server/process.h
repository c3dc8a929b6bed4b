/* A process of this machine, so described that it is known again after a restart of the
 * server, or of the machine: by its number and when it was started, and by the boot.
 *
 * Only where the server sees the numbers of the whole machine: those of a container
 * mean other processes after it was started anew. */
#pragma once
#include <stdint.h>

#define PROCESS_BOOT 37 /* a UUID as text */

struct process {
	uint32_t pid;
	uint64_t started;        /* ticks since the boot */
	char boot[PROCESS_BOOT]; /* empty: not known */
};

/* Who is at the other end of a unix socket; *out is left empty if that cannot be said. */
void process_of_peer(int socket, struct process *out);
/* A pidfd; -ESRCH: it has ended; or another -errno: that cannot be said. */
int process_find(const struct process *p);
