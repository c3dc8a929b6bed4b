#include "server/jobs.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "server/dispatch.h"
#include "server/state.h"

static const struct job_kind kinds[] = { { "fsck", job_fsck }, { "gc", job_gc }, { "scrub", job_scrub } };

/* ---- What a job says of itself ---- */

void job_phase(struct job *j, const char *phase, uint64_t steps_all)
{
	LOCKED(&j->lock);
	j->phase = phase;
	j->steps_done = 0;
	j->steps_all = steps_all;
}

void job_progress(struct job *j, uint64_t steps_done)
{
	LOCKED(&j->lock);
	j->steps_done = steps_done;
}

void job_find(struct job *j, const char *format, ...)
{
	char *line = NULL;
	va_list arguments;

	va_start(arguments, format);
	if (vasprintf(&line, format, arguments) < 0)
		line = NULL;
	va_end(arguments);
	LOCKED(&j->lock);
	if (line && j->finding_count < JOB_FINDINGS_MAX) {
		j->findings[j->finding_count++] = line;
		return;
	}
	j->findings_lost++;
	free(line);
}

void job_count(struct job *j, const char *name, uint64_t value)
{
	int i = 0;
	LOCKED(&j->lock);

	while (i < j->count_count && strcmp(j->counts[i].name, name))
		i++;
	if (i == JOB_COUNTS_MAX)
		return;
	j->counts[i].name = name;
	j->counts[i].value = value;
	j->count_count = i == j->count_count ? i + 1 : j->count_count;
}

bool job_cancelled(const struct job *j) { return atomic_load(&j->cancelled); }

/* ---- Running ---- */

static void job_free(struct job *j)
{
	for (uint32_t i = 0; i < j->finding_count; i++)
		free(j->findings[i]);
	free(j->volume_name);
	pthread_mutex_destroy(&j->lock);
	free(j);
}

static void *job_run(void *context)
{
	struct job *j = context;
	int r;

	pthread_setname_np(pthread_self(), j->kind->name);
	log_info("%s of %s begins", j->kind->name, j->volume ? j->volume_name : "all volumes");
	r = j->kind->run(j);
	LOCKED(&j->lock);
	if (j->findings_lost && j->finding_count == JOB_FINDINGS_MAX) {
		char *last;

		if (asprintf(&last, "... and %llu more", (unsigned long long)j->findings_lost + 1) >= 0) {
			free(j->findings[JOB_FINDINGS_MAX - 1]);
			j->findings[JOB_FINDINGS_MAX - 1] = last;
		}
	}
	j->status = r;
	j->done = true;
	log_info("%s of %s ended: %s, %llu findings", j->kind->name, j->volume ? j->volume_name : "all volumes",
		 r ? strerror(-r) : "done", (unsigned long long)(j->finding_count + j->findings_lost));
	return NULL;
}

static bool job_is_done(struct job *j)
{
	LOCKED(&j->lock);
	return j->done;
}

/* The lock of jobs is held.  Those that are done stay for a while to be asked for. */
static void jobs_prune(struct jobs *all)
{
	struct job **at = &all->first;
	int kept = 0;

	while (*at) {
		struct job *j = *at;

		if (!job_is_done(j) || ++kept < JOBS_KEPT) {
			at = &j->next;
			continue;
		}
		*at = j->next;
		pthread_join(j->thread, NULL);
		job_free(j);
	}
}

void jobs_init(struct jobs *all)
{
	pthread_mutex_init(&all->lock, NULL);
	all->next_id = 1;
}

void jobs_stop(struct jobs *all)
{
	pthread_mutex_lock(&all->lock);
	all->stopping = true;
	for (struct job *j = all->first; j; j = j->next)
		atomic_store(&j->cancelled, true);
	pthread_mutex_unlock(&all->lock);
	while (all->first) {
		struct job *j = all->first;

		all->first = j->next;
		pthread_join(j->thread, NULL);
		job_free(j);
	}
	pthread_mutex_destroy(&all->lock);
}

/* ---- Requests ---- */

static const struct job_kind *kind_find(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

/* The jobs' lock is held. */
static struct job *job_find_id(struct jobs *all, uint64_t id)
{
	struct job *j = all->first;

	while (j && j->id != id)
		j = j->next;
	return j;
}

static int reply_findings(struct request *q, struct job *j, uint32_t from, Wire__JobReply *reply)
{
	uint32_t count = from < j->finding_count ? j->finding_count - from : 0;

	reply->findings = arena_take(q->arena, (count + 1) * sizeof(*reply->findings));
	if (!reply->findings)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		char *line = arena_string(q->arena, j->findings[from + i]);

		if (!line)
			return -ENOMEM;
		reply->findings[reply->n_findings++] = line;
	}
	return 0;
}

static int reply_counts(struct request *q, struct job *j, Wire__JobReply *reply)
{
	reply->counts = arena_take(q->arena, JOB_COUNTS_MAX * sizeof(*reply->counts));
	if (!reply->counts)
		return -ENOMEM;
	for (int i = 0; i < j->count_count; i++) {
		Wire__JobCount *c = arena_take(q->arena, sizeof(*c));

		if (!c)
			return -ENOMEM;
		wire__job_count__init(c);
		c->name = (char *)j->counts[i].name;
		c->value = j->counts[i].value;
		reply->counts[reply->n_counts++] = c;
	}
	return 0;
}

static int job_reply(struct request *q, struct job *j, uint32_t findings_from)
{
	Wire__JobReply *reply = request_reply(q, &wire__job_reply__descriptor);
	int r;

	if (!reply)
		return -ENOMEM;
	LOCKED(&j->lock);
	reply->job = j->id;
	reply->kind = (char *)j->kind->name;
	reply->done = j->done;
	reply->status = -j->status;
	reply->phase = (char *)j->phase;
	reply->steps_done = j->steps_done;
	reply->steps_all = j->steps_all;
	r = reply_findings(q, j, findings_from, reply);
	return r ? r : reply_counts(q, j, reply);
}

static int job_make(struct request *q, const Wire__JobStartRequest *start, const struct job_kind *kind, struct job **out)
{
	Wire__Volume *v = NULL;
	struct job *j;
	int r = start->volume[0] ? meta_volume_find(q->server->meta, start->volume, q->arena, &v) : 0;

	if (r == -ENOENT)
		return request_explain(q, r, "there is no volume %s; epochfs volume list shows those there are", start->volume);
	if (r)
		return r;
	j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	pthread_mutex_init(&j->lock, NULL);
	j->server = q->server;
	j->kind = kind;
	j->volume = v ? v->id : 0;
	j->repair = start->repair;
	j->quick = start->quick;
	j->phase = "";
	j->volume_name = strdup(start->volume);
	if (!j->volume_name) {
		job_free(j);
		return -ENOMEM;
	}
	*out = j;
	return 0;
}

static int job_start(struct request *q, struct job *j)
{
	struct jobs *all = &q->server->jobs;
	int r;
	LOCKED(&all->lock);

	if (all->stopping)
		return -ESHUTDOWN;
	for (struct job *other = all->first; other; other = other->next)
		if (other->kind == j->kind && !job_is_done(other))
			return request_explain(q, -EBUSY, "a %s is running already; wait for it to end", j->kind->name);
	jobs_prune(all);
	j->id = all->next_id++;
	r = job_reply(q, j, 0);
	if (!r)
		r = -pthread_create(&j->thread, NULL, job_run, j);
	if (r)
		return r;
	j->next = all->first;
	all->first = j;
	return 0;
}

int serve_job_start(struct request *q)
{
	const Wire__JobStartRequest *start = (const Wire__JobStartRequest *)q->message;
	const struct job_kind *kind = kind_find(start->kind);
	struct job *j = NULL;
	int r;

	if (!kind)
		return request_explain(q, -EINVAL, "there is no job %s; there are fsck, gc and scrub", start->kind);
	r = job_make(q, start, kind, &j);
	if (!j)
		return r;
	r = job_start(q, j);
	if (r)
		job_free(j);
	return r;
}

int serve_job_poll(struct request *q)
{
	const Wire__JobPollRequest *poll = (const Wire__JobPollRequest *)q->message;
	struct job *j;
	LOCKED(&q->server->jobs.lock);

	j = job_find_id(&q->server->jobs, poll->job);
	if (!j)
		return request_explain(q, -ENOENT, "there is no job %llu; was the server restarted?",
				       (unsigned long long)poll->job);
	return job_reply(q, j, poll->findings_from);
}

int serve_job_cancel(struct request *q)
{
	const Wire__JobPollRequest *poll = (const Wire__JobPollRequest *)q->message;
	struct job *j;
	LOCKED(&q->server->jobs.lock);

	j = job_find_id(&q->server->jobs, poll->job);
	if (!j)
		return request_explain(q, -ENOENT, "there is no job %llu", (unsigned long long)poll->job);
	atomic_store(&j->cancelled, true);
	return request_reply(q, &wire__empty__descriptor) ? 0 : -ENOMEM;
}
