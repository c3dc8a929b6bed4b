/* Orphans: objects in the store that no metadata know, left by a client that died
 * between put and commit, and by a server that died between metadata and store.
 * Nobody can have a use for them once the session that had their ids is gone. */
#pragma once
#include "server/jobs.h"

struct orphans {
	uint64_t listed, count, bytes, strange;
};

/* Counts them, and with `remove` deletes them as well.  `strange`: keys in the
 * store that are not objects'. */
int orphans_find(struct job *j, bool remove, struct orphans *out);
/* The store holds objects the metadata do not know yet (they came from a backup):
 * from here on no id up to the highest one is handed out. */
int orphans_pass_over(struct server *s);
