/* Marks, as the server keeps to them (meta/marks.h): a file with data that is in another mount's
 * write-back directory only is not shown to anybody else, and not changed by anybody else, before
 * that data is stored.
 *
 * Who comes in its way makes the mount store it (a recall of GRANT_WRITE), and waits as long as the mount is
 * heard of.  If it is gone, the answer is EIO, and the log says who has the data.
 *
 * Any thread, with none of the server's locks held. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"
#include "epochfs.pb-c.h"

struct request;
struct server;
struct session;

/* What was refused: of the same mark it is not logged for each reader again. */
struct refusals {
	pthread_mutex_t lock;
	struct intmap generations; /* inode_key -> of the mark */
};
void refusals_init(struct refusals *r);
void refusals_free(struct refusals *r);

/* Whether another mount has marked it.  1, 0 or -errno. */
int marks_are_anothers(struct server *s, const struct session *n, uint64_t inode);
/* Until no other mount has.  0; -EIO: it is gone, explained; REQUEST_BROKEN; -errno. */
int marks_await(struct request *q, uint64_t inode);
/* The same at once: -EIO only if who has marked it is gone. */
int marks_look(struct request *q, uint64_t inode);
int marks_await_mutation(struct request *q, uint16_t op); /* for the files whose content it changes or copies */
/* At once: whether it has to be waited for again.  While grants were recalled for it a mount may have marked a file and gone away. */
bool marks_bar_mutation(struct request *q, uint16_t op);
/* Whether the session's mount has marks on the file: it is not given up for taking long. */
bool marks_are_its_own(struct server *s, const struct session *n, uint64_t inode);
/* The session's mount is gone: says where the data is that its write-back directory has. */
void marks_left_log(struct server *s, const struct session *n);
int marks_list(struct request *q, Wire__StatusReply *reply); /* 0 or -errno */
int serve_marks_drop(struct request *q);
