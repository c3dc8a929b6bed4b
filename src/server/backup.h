/* Backups of the metadata: DIR/backup/data-YYYYMMDD-HHMMSS.mdb, the newest three.
 * Made every hour, if anything changed, and at a clean stop. */
#pragma once
#include <stdint.h>

struct server;

struct backup {
	int64_t last_steady_ns;
	uint64_t last_batch; /* in the newest one made by this process */
};

void backup_init(struct server *s);
void backup_if_due(struct server *s); /* one thread at a time, as all here */
void backup_now(struct server *s);
