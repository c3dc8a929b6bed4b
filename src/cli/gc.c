/* epochfs gc: frees the space of objects nobody needs. */
#include <stdio.h>
#include "cli/job.h"
#include "cli/options.h"
#include "cli/verbs.h"

int verb_gc(int argc, char **argv)
{
	struct job_request job = {
		.kind = "gc",
		.clean = "Done.",
		.advice = "See the server's log; epochfs fsck tells more.",
	};
	char what[200];
	struct option_spec specs[] = { OPTION_SERVER(&job.server), OPTION_JSON(&job.json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "gc",
		.usage = "[VOLUME] [OPTION...]",
		.summary = "free the space of objects nobody needs",
		.description = "Deletes objects that no file refers to, left over by clients that died between storing and "
			       "committing, and rewrites packs that hold little live data.  It may run at any time, also while "
			       "files are in use.  Objects that mounts may still be writing or reading are left alone.\n"
			       "\n"
			       "What users deleted stays in the trash for the retention time of its volume; epochfs trash empty "
			       "frees it earlier.",
		.specs = specs,
		.operands_max = 1,
		.examples = "epochfs gc\nClean up all volumes.\nepochfs gc --json\nThe same, for a program.\n",
	};
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	job.volume = o.operands[0];
	snprintf(what, sizeof(what), "clean up %s%s", job.volume ? "volume " : "the volumes", job.volume ? job.volume : "");
	job.what = what;
	return server_job_run(&job);
}
