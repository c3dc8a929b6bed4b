/* Objects in the store held against what the metadata say of them, for fsck and
 * scrub.  Every damage becomes a finding of the job and a line in the log that
 * names object and file. */
#pragma once
#include "meta/check.h"
#include "server/jobs.h"

struct verify {
	struct job *job;
	bool contents;           /* read everything, or only the footer */
	uint64_t objects, bytes; /* looked at so far */
	uint64_t damaged_objects, missing_objects, damaged_extents;
	struct buf stored, raw; /* scratch */
};

/* All objects with references, of the job's volume or of all. */
int verify_objects(struct verify *v);
void verify_free(struct verify *v);
