/* Scrub: every stored byte is read back. */
#include "server/state.h"
#include "server/verify.h"

int job_scrub(struct job *j)
{
	struct verify v = { .job = j, .contents = true };
	int r = verify_objects(&v);

	job_count(j, "objects", v.objects);
	job_count(j, "bytes", v.bytes);
	job_count(j, "missing_objects", v.missing_objects);
	job_count(j, "damaged_objects", v.damaged_objects);
	verify_free(&v);
	return r;
}
