/* Asking a mount, by its control socket (client/control.h).
 *
 *	CLEANUP_REACH struct reach mount;
 *	if (reach_open(&mount, "/mnt/training", 10))
 *		return verb_fail("cannot show /mnt/training: %s", mount.why);
 *	json_t *answer = reach_ask(&mount, json_pack("{s:s}", "op", "status"));
 *
 * One thread a struct. */
#pragma once
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct reach {
	int fd;
	dev_t device; /* st_dev of everything on the mount */
	char mount_point[PATH_MAX];
	unsigned seconds; /* to wait for an answer; 0: for ever */
	char *buffer;
	size_t length;            /* of what came of the answer */
	bool late;                /* the last answer did not come in time; it may yet */
	char why[PATH_MAX + 512]; /* what went wrong, and what to do */
};

/* The device of whatever is there.  Asks neither the server nor the mount's process about the mount's own directory. */
int reach_device(const char *path, dev_t *out);
/* The mount that this path is on.  `seconds` to wait for each answer, until it is there as a whole; 0: for ever.  0, or -errno and `why`. */
int reach_open(struct reach *r, const char *path, unsigned seconds);
/* One that is known: also when it is not mounted here any more. */
struct mountinfo;
int reach_open_mount(struct reach *r, const struct mountinfo *mount, unsigned seconds);
/* Another connection to the same one. */
int reach_open_again(struct reach *r, const struct reach *other);
void reach_close(struct reach *r);
#define CLEANUP_REACH __attribute__((cleanup(reach_close)))
/* Gives up the request.  The answer, to be given up; NULL: none came, or a refusal: `why`. */
json_t *reach_ask(struct reach *r, json_t *request);
/* Waits once more for an answer that is late, as reach_ask does. */
json_t *reach_answer(struct reach *r);
