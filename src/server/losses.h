/* Losses: mounts that went away, or were given up, while they could write to files.  What they had
 * written to them and not stored is missing, but for what is synced in a write-back directory.  Each is logged; the latest are kept in memory for STATUS.
 *
 * Any thread; with none of the server's locks but those that say so held. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "epochfs.pb-c.h"

struct request;
struct server;
struct session;

#define LOSSES_KEPT 32
#define LOSS_PATHS 8 /* named of each */

struct losses {
	pthread_mutex_t lock; /* guards all below */
	struct loss *latest[LOSSES_KEPT];
	uint64_t count; /* since the start; latest[count % LOSSES_KEPT] is the next to go */
};

/* What a session could write to: some of it by number. */
struct written_files {
	uint64_t inodes[LOSS_PATHS];
	size_t count; /* all of them */
};

void losses_init(struct losses *l);
void losses_free(struct losses *l);
void loss_add(struct server *s, const struct session *n, const struct written_files *files, bool given_up);
int losses_list(struct request *q, Wire__StatusReply *reply); /* the latest first; 0 or -ENOMEM */
