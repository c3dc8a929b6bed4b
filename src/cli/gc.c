/* epochfs gc: frees the space of objects nobody needs. */
#include <stdio.h>
#include "cli/ask.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "cli/waiting.h"
#include "rpc/caller.h"

#define STATUS_MS 3000

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
			       "files are in use.  Objects that mounts may still be writing or reading are left alone; it says "
			       "how many bytes of freed objects wait for "
			       "that, and until when.\n"
			       "\n"
			       "What users deleted stays in the trash for the retention time of its volume; epochfs trash empty "
			       "frees it earlier.",
		.specs = specs,
		.operands_max = 1,
		.examples = "epochfs gc\nClean up all volumes.\nepochfs gc --json\nThe same, for a program.\n",
	};
	Wire__StatusReply *status = NULL;
	char waiting[WAITING_TEXT], why[ASK_WHY];
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	job.volume = o.operands[0];
	snprintf(what, sizeof(what), "clean up %s%s", job.volume ? "volume " : "the volumes", job.volume ? job.volume : "");
	job.what = what;
	code = server_job_run(&job);
	if (code || job.json)
		return code;

	CLEANUP_ASK struct ask ask;

	/* The work is done, also if the server has ended since. */
	if (ask_open_quietly(&ask, job.server, STATUS_MS) || ask_quietly(&ask, WIRE__OP__STATUS, NULL, &status, why, sizeof(why)))
		return EXIT_DONE;
	if (waiting_text(waiting, status))
		printf("Not back yet: %s; mounts may still be reading it (epochfs serve --grace).\n", waiting);
	return EXIT_DONE;
}
