/* Fsck: the metadata against themselves (meta/check.h), then the store against
 * the metadata. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/orphans.h"
#include "server/state.h"
#include "server/touched.h"
#include "server/verify.h"

static void progress(void *context, const char *phase, uint64_t done, uint64_t all)
{
	struct job *j = context;

	if (!done)
		job_phase(j, phase, all);
	else
		job_progress(j, done);
}

static bool cancelled(void *context) { return job_cancelled(context); }

static void count_metadata(struct job *j, const struct check_result *r)
{
	job_count(j, "volumes", r->volumes);
	job_count(j, "inodes", r->inodes);
	job_count(j, "names", r->names);
	job_count(j, "extents", r->extents);
	job_count(j, "trashed", r->trashed);
	job_count(j, "objects", r->objects);
	job_count(j, "free_objects", r->free_objects);
}

static bool has_fixes(const Wire__FixRequest *fix) { return fix && (fix->n_volumes || fix->n_objects || fix->n_inodes); }

static int fixes_submit(struct job *j, const Wire__FixRequest *fix)
{
	struct caller who = CALLER_SERVER;
	struct arena arena;
	int r;

	arena_init(&arena, 0);
	r = meta_mutate(j->server->meta, &who, WIRE__OP__FIX, &fix->base, &arena, NULL);
	arena_free(&arena);
	return r;
}

static void leases_release(struct job *j, struct intmap *volumes)
{
	uint64_t volume;
	void *value;

	for (size_t i = 0; intmap_next(volumes, &i, &volume, &value);)
		lease_release(j->server, (uint32_t)volume);
	intmap_free(volumes);
}

/* Mounts that hold the lease know the attributes that are about to change. */
static int leases_recall(struct job *j, const Wire__FixRequest *fix, struct intmap *volumes)
{
	for (size_t i = 0; i < fix->n_inodes; i++) {
		uint32_t volume = fix->inodes[i]->volume;
		bool known = intmap_get(volumes, volume) != NULL;
		int r = known ? 0 : sessions_await(j->server, NULL, volume, NULL);

		if (!r && !known)
			r = lease_recall(j->server, NULL, volume);

		if (!r && !known && intmap_set(volumes, volume, j) < 0) {
			lease_release(j->server, volume);
			r = -ENOMEM;
		}
		if (r)
			return r;
	}
	return 0;
}

static void grants_release(struct job *j, const Wire__FixRequest *fix, const struct touch *covers, size_t count)
{
	for (size_t i = 0; i < count; i++)
		grants_change_end(j->server, fix->inodes[i]->volume, &covers[i], 1);
}

/* In company they know them by grants on directories. */
static int grants_recall(struct job *j, const Wire__FixRequest *fix, struct touch *covers)
{
	for (size_t i = 0; i < fix->n_inodes; i++) {
		const Wire__InodeFix *f = fix->inodes[i];
		int r = touched_cover(j->server, f->volume, f->inode, &covers[i]);

		if (r == -ENOENT) { /* there is nothing any more to be known of it */
			covers[i] = (struct touch){ f->inode, TOUCH_DIRECTORY };
			r = 0;
		}
		if (!r)
			r = grants_change_begin(j->server, NULL, NULL, f->volume, &covers[i], 1);
		if (r) {
			grants_release(j, fix, covers, i);
			return r;
		}
	}
	return 0;
}

static int fixes_make(struct job *j, const Wire__FixRequest *fix)
{
	CLEANUP_FREE struct touch *covers = calloc(fix->n_inodes + 1, sizeof(*covers));
	int r = covers ? grants_recall(j, fix, covers) : -ENOMEM;

	if (r)
		return r;
	r = fixes_submit(j, fix);
	grants_release(j, fix, covers, fix->n_inodes);
	return r;
}

static int apply_fixes(struct job *j, const Wire__FixRequest *fix)
{
	struct intmap volumes = { 0 };
	int r;

	job_phase(j, "repairing", 0);
	r = leases_recall(j, fix, &volumes);
	if (!r)
		r = fixes_make(j, fix);
	leases_release(j, &volumes);
	if (r)
		log_error("cannot repair the metadata: %s", strerror(-r));
	return r;
}

static int check_metadata(struct job *j)
{
	struct check_options options = {
		.volume = j->volume,
		.progress = progress,
		.cancelled = cancelled,
		.context = j,
		.max_findings = JOB_FINDINGS_MAX,
	};
	struct check_result result;
	int r = check_run(j->server->meta, &options, &result);

	for (size_t i = 0; i < result.findings_count; i++) {
		log_error("fsck: %s", result.findings[i]);
		job_find(j, "%s", result.findings[i]);
	}
	count_metadata(j, &result);
	job_count(j, "problems", result.problems);
	if (!r && j->repair && has_fixes(result.fix)) {
		r = apply_fixes(j, result.fix);
		job_count(j, "repaired", r ? 0 : result.repairable);
	}
	check_result_free(&result);
	return r;
}

static int check_store(struct job *j)
{
	struct verify v = { .job = j, .contents = !j->quick };
	int r = verify_objects(&v);

	job_count(j, j->quick ? "objects_looked_at" : "objects_read", v.objects);
	job_count(j, "stored_bytes", v.bytes);
	job_count(j, "missing_objects", v.missing_objects);
	job_count(j, "damaged_objects", v.damaged_objects);
	verify_free(&v);
	return r;
}

static int check_orphans(struct job *j)
{
	struct orphans orphans;
	int r = orphans_find(j, j->repair, &orphans);

	job_count(j, j->repair ? "freed_orphans" : "orphans", orphans.count);
	job_count(j, j->repair ? "freed_orphan_bytes" : "orphan_bytes", orphans.bytes);
	if (orphans.strange)
		job_count(j, "strange_keys", orphans.strange);
	return r;
}

int job_fsck(struct job *j)
{
	int r = check_metadata(j);

	if (!r)
		r = check_store(j);
	return r ? r : check_orphans(j);
}
