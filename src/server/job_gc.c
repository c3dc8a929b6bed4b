/* Gc: what is due leaves the store, orphans go, sparse objects are rewritten.
 * The rewritten ones are deleted by the reaper when the grace has passed, for
 * mounts may still be reading from them. */
#include "server/orphans.h"
#include "server/repack.h"
#include "server/state.h"
#include "server/stream.h"

int job_gc(struct job *j)
{
	struct orphans orphans = { 0 };
	struct repacked repacked = { 0 };
	struct space_waiting waiting = { 0 };
	uint64_t objects = 0, bytes = 0;
	int r;

	job_phase(j, "deleting freed objects", 0);
	r = reaper_delete_due(j->server, stream_grace_ns(j->server), &objects, &bytes);
	if (!r)
		r = orphans_find(j, true, &orphans);
	if (!r)
		r = repack_objects(j, &repacked);
	if (!r && !stream_grace_ns(j->server))
		r = reaper_delete_due(j->server, 0, &objects, &bytes);
	job_count(j, "freed_objects", objects + orphans.count);
	job_count(j, "freed_bytes", bytes + orphans.bytes);
	job_count(j, "orphans", orphans.count);
	job_count(j, "rewritten_objects", repacked.objects);
	job_count(j, "rewritten_bytes", repacked.bytes);
	job_count(j, "new_packs", repacked.packs);
	if (!r)
		r = space_waiting(j->server, &waiting);
	job_count(j, "waiting_objects", waiting.objects);
	job_count(j, "waiting_bytes", waiting.bytes);
	return r;
}
