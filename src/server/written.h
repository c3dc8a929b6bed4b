/* What other mounts have written and not stored yet, in answers about files.
 *
 * A session that has GRANT_WRITE on a file knows its size and times better than meta.  Answers
 * to others are completed with what it says, and marked (ATTR_BEING_WRITTEN): they are
 * true now, and may not be kept. */
#pragma once
#include "server/dispatch.h"

/* After a read of LOOKUP, GETATTR or READDIR; may read it again.  0 or -errno; REQUEST_BROKEN. */
int written_complete(struct request *q, uint16_t op);
