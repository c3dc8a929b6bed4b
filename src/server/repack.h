/* Repacking: what is still live in sparse objects is copied together into new
 * ones, and the files are moved over.
 *
 *   read a sparse object's live extents -> append to the pack -> (a block's worth)
 *   -> put the pack -> REPACK moves each extent that is still what was copied
 *
 * Files may be read, written and deleted meanwhile: an extent that changed is not
 * moved, and the old object is deleted by the reaper only after the grace.  A
 * crash leaves at worst an orphan. */
#pragma once
#include "server/jobs.h"

struct repacked {
	uint64_t objects, packs, extents, bytes;
};

/* Objects of which less than half is live. */
int repack_objects(struct job *j, struct repacked *out);
