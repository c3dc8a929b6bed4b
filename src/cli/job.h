/* Long work on the server that a verb starts, watches and reports: fsck, gc, scrub.
 *
 * While it runs, a progress bar is shown where standard error is a terminal.
 * Interrupting the verb (Ctrl-C, SIGTERM) cancels the work on the server. */
#pragma once
#include <stdbool.h>

struct job_request {
	const char *kind;   /* of JobStartRequest */
	const char *what;   /* "check volume training": for messages */
	const char *volume; /* NULL: all */
	const char *server;
	bool repair, quick, json;
	const char *clean;  /* the sentence when nothing was found */
	const char *advice; /* and what to do when something was; may be NULL */
};

/* Findings and counts on standard output.  EXIT_DONE if the work was done and
 * nothing was found, else EXIT_FAILED. */
int server_job_run(const struct job_request *request);
