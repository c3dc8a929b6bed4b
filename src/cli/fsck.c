/* epochfs fsck: proves that metadata and objects agree. */
#include <stdio.h>
#include "cli/job.h"
#include "cli/options.h"
#include "cli/verbs.h"

int verb_fsck(int argc, char **argv)
{
	struct job_request job = {
		.kind = "fsck",
		.clean = "Clean: metadata and objects agree.",
	};
	char what[200];
	struct option_spec specs[] = {
		{ "repair", NULL, OPTION_FLAG, &job.repair,
		  "Fix what is safe to fix: wrong counters, references and link counts.  Nothing of a file is ever thrown away; "
		  "what cannot be fixed is listed." },
		{ "quick", NULL, OPTION_FLAG, &job.quick,
		  "Check the metadata, and that every object is there and has its size, but do not read contents." },
		OPTION_SERVER(&job.server),
		OPTION_JSON(&job.json),
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "fsck",
		.usage = "[VOLUME] [OPTION...]",
		.summary = "prove that metadata and objects agree",
		.description = "Checks, on the running server and while it is in use, that every extent has its object and its "
			       "checksum, that every object is referenced as often as it says, that directories and link counts "
			       "fit, and that counters and quotas add up.\n"
			       "\n"
			       "The exit code is 0 if nothing was found and 1 if something was, repaired or not.",
		.specs = specs,
		.operands_max = 1,
		.examples = "epochfs fsck\nCheck all volumes.\nepochfs fsck training --repair\nCheck one, and fix what is safe "
			    "to fix.\n",
	};
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	job.volume = o.operands[0];
	job.advice = job.repair ? "What could be fixed was; run it again to see what is left."
				: "epochfs fsck --repair fixes what is safe to fix.";
	snprintf(what, sizeof(what), "check %s%s", job.volume ? "volume " : "the volumes", job.volume ? job.volume : "");
	job.what = what;
	return server_job_run(&job);
}
