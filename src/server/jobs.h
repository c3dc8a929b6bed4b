/* Jobs: work an administrator starts and looks at while it goes on: fsck, gc,
 * scrub.  One of a kind at a time; the last few that ended can still be asked for.
 *
 * A job runs on a thread of its own and tells about itself with job_*; it looks
 * at job_cancelled now and then.  Findings are lines for people; at most
 * JOB_FINDINGS_MAX are kept, the rest is only counted. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define JOB_FINDINGS_MAX 1000
#define JOB_COUNTS_MAX 24
#define JOBS_KEPT 16

struct server;

struct job {
	struct server *server;
	struct job *next; /* newest first */
	uint64_t id;
	const struct job_kind *kind;
	char *volume_name; /* "": all */
	uint32_t volume;   /* 0: all */
	bool repair, quick;
	pthread_t thread;
	_Atomic bool cancelled;

	pthread_mutex_t lock; /* guards all below */
	bool done;
	int status;        /* 0 or -errno */
	const char *phase; /* a literal */
	uint64_t steps_done, steps_all;
	char *findings[JOB_FINDINGS_MAX];
	uint32_t finding_count;
	uint64_t findings_lost; /* for which there was no room */
	struct {
		const char *name;
		uint64_t value;
	} counts[JOB_COUNTS_MAX];
	int count_count;
};

struct jobs {
	pthread_mutex_t lock; /* guards all below */
	struct job *first;
	uint64_t next_id;
	bool stopping;
};

void jobs_init(struct jobs *all);
void jobs_stop(struct jobs *all); /* cancels, waits, forgets */

/* From the job's thread. */
void job_phase(struct job *j, const char *phase, uint64_t steps_all);
void job_progress(struct job *j, uint64_t steps_done);
void job_find(struct job *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
void job_count(struct job *j, const char *name, uint64_t value); /* sets; the order of first mention is kept */
bool job_cancelled(const struct job *j);

/* 0 when it did its work, whatever it found; -ECANCELED, or -errno. */
struct job_kind {
	const char *name;
	int (*run)(struct job *j);
};
int job_fsck(struct job *j);
int job_gc(struct job *j);
int job_scrub(struct job *j);
