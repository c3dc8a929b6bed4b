#include "cli/job.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/ask.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/table.h"
#include "cli/verbs.h"

/* The first looks come quickly, so that small work is done at once. */
#define POLL_FIRST_MS 5
#define POLL_LAST_MS 200
#define FINDING_TEXT 8192 /* of one line: a path of 4,096 bytes and what is wrong with it */

struct job {
	const struct job_request *request;
	struct ask *ask;
	struct progress *progress;
	uint64_t number;
	uint32_t findings; /* seen so far */
	json_t *list;      /* of findings, for JSON */
	Wire__JobReply *last;
	bool interrupted;
};

static void take_findings(struct job *j, const Wire__JobReply *reply)
{
	for (size_t i = 0; i < reply->n_findings; i++) {
		const char *text = reply->findings[i];
		char visible[FINDING_TEXT];

		text_escape(visible, sizeof(visible), text, strlen(text));
		if (j->request->json)
			json_append(&j->list, json_bytes(text, strlen(text)));
		else
			printf("%s\n", visible);
	}
	if (reply->n_findings)
		fflush(stdout);
	j->findings += (uint32_t)reply->n_findings;
}

/* Waits; true if the user wants to stop. */
static bool wait_interrupted(const sigset_t *signals, int64_t ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS };

	return sigtimedwait(signals, NULL, &time) > 0;
}

static int watch(struct job *j, const sigset_t *signals)
{
	Wire__JobPollRequest poll = WIRE__JOB_POLL_REQUEST__INIT;
	int64_t pause_ms = POLL_FIRST_MS;
	Wire__JobReply *reply = NULL;
	int r;

	poll.job = j->number;
	for (;;) {
		poll.findings_from = j->findings;
		arena_reset(&j->ask->arena);
		r = ask_call(j->ask, WIRE__OP__JOB_POLL, &poll, &reply);
		if (r)
			return r;
		progress_show(j->progress, reply->phase, reply->steps_done, reply->steps_all);
		if (reply->done)
			progress_end(j->progress), j->progress = NULL;
		take_findings(j, reply);
		j->last = reply;
		if (reply->done)
			return 0;
		if (wait_interrupted(signals, pause_ms)) {
			j->interrupted = true;
			return ask_call(j->ask, WIRE__OP__JOB_CANCEL, &poll, NULL);
		}
		pause_ms = pause_ms * 2 > POLL_LAST_MS ? POLL_LAST_MS : pause_ms * 2;
	}
}

/* Count names come as snake_case and are read as words. */
static void print_counts(const Wire__JobReply *reply)
{
	char number[UNITS_TEXT];
	struct table t;

	table_init(&t, NULL, 2);
	t.right[1] = true;
	for (size_t i = 0; i < reply->n_counts; i++) {
		const Wire__JobCount *c = reply->counts[i];
		size_t length = strlen(c->name);
		bool bytes = length >= 5 && !strcmp(c->name + length - 5, "bytes");
		char words[80];

		snprintf(words, sizeof(words), "  %s", c->name);
		for (char *p = words; *p; p++)
			*p = *p == '_' ? ' ' : *p;
		table_cell(&t, "%s", words);
		table_cell(&t, "%s", bytes ? size_format(number, c->value) : count_format(number, c->value));
	}
	table_print(&t, stdout);
}

static int report_json(struct job *j, double elapsed_s)
{
	const Wire__JobReply *reply = j->last;
	bool good = !reply->status && !j->findings;
	json_t *counts = json_object();
	int code;

	for (size_t i = 0; i < reply->n_counts; i++)
		json_object_set_new(counts, reply->counts[i]->name, json_count(reply->counts[i]->value));
	code = json_finish(json_pack("{s:s, s:s, s:s?, s:o, s:o, s:o, s:f}", "kind", j->request->kind, "result",
				     reply->status ? "failed"
				     : j->findings ? "findings"
						   : "clean",
				     "error", reply->status ? strerror(abs(reply->status)) : NULL, "findings_count",
				     json_count(j->findings), "findings", j->list, "counts", counts, "elapsed_s", elapsed_s));
	j->list = NULL;
	return code == EXIT_DONE && good ? EXIT_DONE : EXIT_FAILED;
}

static int report_text(struct job *j)
{
	const Wire__JobReply *reply = j->last;
	char number[UNITS_TEXT];

	if (reply->status) {
		fflush(stdout);
		return verb_fail("cannot %s: %s; see the server's log", j->request->what, strerror(abs(reply->status)));
	}
	if (!j->findings)
		printf("%s\n", j->request->clean);
	else
		printf("%s.%s%s\n", counted_format(number, j->findings, "finding"), j->request->advice ? "  " : "",
		       j->request->advice ? j->request->advice : "");
	print_counts(reply);
	return j->findings ? EXIT_FAILED : EXIT_DONE;
}

static int run(struct job *j, const sigset_t *signals)
{
	Wire__JobStartRequest start = WIRE__JOB_START_REQUEST__INIT;
	int64_t began_ns = clock_steady_ns();
	Wire__JobReply *reply = NULL;
	int r;

	start.kind = (char *)j->request->kind;
	start.volume = j->request->volume ? (char *)j->request->volume : "";
	start.repair = j->request->repair;
	start.quick = j->request->quick;
	if (ask_call(j->ask, WIRE__OP__JOB_START, &start, &reply))
		return EXIT_FAILED;
	j->number = reply->job;
	j->progress = progress_new(j->request->kind);
	r = watch(j, signals);
	progress_end(j->progress);
	if (r)
		return EXIT_FAILED;
	if (j->interrupted)
		return verb_fail("cannot %s: interrupted; start it again when it suits", j->request->what);
	return j->request->json ? report_json(j, (double)(clock_steady_ns() - began_ns) / 1e9) : report_text(j);
}

int server_job_run(const struct job_request *request)
{
	CLEANUP_ASK struct ask ask;
	struct job j = { .request = request, .ask = &ask };
	sigset_t signals, before;
	int code;

	if (ask_open(&ask, request->server, "%s", request->what))
		return EXIT_FAILED;
	if (request->json)
		j.list = json_array();
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	interrupt_leave_ignored(&signals);
	pthread_sigmask(SIG_BLOCK, &signals, &before);
	code = run(&j, &signals);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	json_decref(j.list);
	return code;
}
