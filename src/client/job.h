/* A job: unstored segments of one or more files on their way into one object.
 * See uploader.c for when and in which order. */
#pragma once
#include "client/payload.h"

struct client;
struct job;

/* Takes what is due, up to a block, out of the queues (gather lock held); NULL if
 * nothing is. */
void job_gather(struct client *c, struct job **out);
/* Encodes, puts, commits; frees the job.  `payload` is the thread's own. */
void job_run(struct client *c, struct job *job, struct payload *payload);
