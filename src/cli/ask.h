/* Questions to a server from a verb that mounts nothing.
 *
 *	CLEANUP_ASK struct ask ask;
 *	Wire__VolumeListReply *reply;
 *	if (ask_open(&ask, server, "list the volumes"))
 *		return EXIT_FAILED;
 *	if (ask_call(&ask, WIRE__OP__VOLUME_LIST, NULL, &reply))
 *		return EXIT_FAILED;
 *
 * Whatever fails has been said on standard error when these return, as "cannot
 * WHAT: why; what to do".  Replies live until ask_close.  One thread. */
#pragma once
#include "base/arena.h"
#include "epochfs.pb-c.h"

struct rpc;

struct ask {
	struct rpc *rpc;
	struct arena arena;
	const char *server;
	char what[400];
};

/* Connects.  `server` NULL: the default address.  A server that does not answer is given ten seconds.  0 or -errno. */
int ask_open(struct ask *a, const char *server, const char *what_format, ...) __attribute__((format(printf, 3, 4)));
/* The same, for so long. */
int ask_open_within(struct ask *a, const char *server, int64_t timeout_ms, const char *what_format, ...)
	__attribute__((format(printf, 4, 5)));
/* The same, saying nothing on an error: for what is only told in addition. */
int ask_open_quietly(struct ask *a, const char *server, int64_t timeout_ms);
void ask_close(struct ask *a);
#define CLEANUP_ASK __attribute__((cleanup(ask_close)))

/* `request` NULL: Empty.  `reply` is the address of a pointer to the reply's type,
 * or NULL.  0, or -errno, said. */
int ask_call(struct ask *a, uint16_t op, const void *request, void *reply);
/* The same, saying nothing on an error but leaving the server's sentence in `why`. */
int ask_quietly(struct ask *a, uint16_t op, const void *request, void *reply, char *why, size_t why_size);
#define ASK_WHY 400
/* Says it after all: what the server said, if it said anything.  EXIT_FAILED. */
int ask_failed(struct ask *a, int error, const char *why);

/* y or yes typed on standard input, after the question was put on standard error. */
int ask_confirm(const char *format, ...) __attribute__((format(printf, 1, 2))); /* 1 yes, 0 no */
