/* epochfs scrub: reads every stored byte back. */
#include <stdio.h>
#include "cli/job.h"
#include "cli/options.h"
#include "cli/verbs.h"

int verb_scrub(int argc, char **argv)
{
	struct job_request job = {
		.kind = "scrub",
		.clean = "Clean: every stored byte reads back as it was written.",
		.advice = "Restore the files named from a copy; docs/operations.md has the steps.",
	};
	char what[200];
	struct option_spec specs[] = { OPTION_SERVER(&job.server), OPTION_JSON(&job.json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "scrub",
		.usage = "[VOLUME] [OPTION...]",
		.summary = "read every stored byte back and check it",
		.description = "Reads all objects from the store and compares them with their checksums, so that a bad disk is "
			       "noticed while a good copy still exists.  It may run at any time.  Every damaged object is listed "
			       "with the files that lose by it.\n"
			       "\n"
			       "The exit code is 0 if everything is intact and 1 if something was found.",
		.specs = specs,
		.operands_max = 1,
		.examples = "epochfs scrub\nRead back everything.\nepochfs scrub training --json\nOne volume, for a program.\n",
	};
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	job.volume = o.operands[0];
	snprintf(what, sizeof(what), "scrub %s%s", job.volume ? "volume " : "the volumes", job.volume ? job.volume : "");
	job.what = what;
	return server_job_run(&job);
}
