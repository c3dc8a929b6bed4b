/* A server in this process, on a folder of its own, and callers to it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../await.h"
#include "block/extent.h"
#include "meta/attr.h"
#include "rpc/caller.h"
#include "server/server.h"

struct fixture {
	char folder[64], data[100];
	struct server *server;
	struct server_options options;
	struct clock clock;
	_Atomic int64_t clock_ahead_ns; /* what the server's clock is ahead of the system's */
	char address[140];
	struct rpc *admin;
	struct arena arena; /* what replies are in */
	char why[400];      /* of the last call that failed */
	int restarts;       /* how often `restarted` was called, and with what */
	bool known;
};

int fixture_setup(void **state); /* with a volume "training" without retention, and grace 0 */
int fixture_teardown(void **state);
void fixture_start(struct fixture *f);
void fixture_stop(struct fixture *f);

struct rpc *fixture_mount(struct fixture *f, const char *volume, bool read_only);
int ask(struct fixture *f, struct rpc *r, uint16_t op, const void *request, void *reply);

/* A connection with frames made by hand. */
struct raw {
	struct connection *c;
	struct arena arena;
	struct frame reply;
	const uint8_t *message;
};
void raw_open(struct fixture *f, struct raw *w);
void raw_close(struct raw *w);
void raw_send(struct raw *w, uint16_t op, uint64_t number, uint64_t answered_below, const void *request);
/* The status of the answer, or -errno if there is none. */
int raw_receive(struct raw *w, uint16_t op);
int raw_ask(struct raw *w, uint16_t op, uint64_t number, uint64_t answered_below, const void *request); /* both */
const char *raw_why(struct raw *w);
uint64_t raw_hello(struct raw *w, uint64_t session); /* mounts "training", or joins; the session */

/* What mounts do. */
int create(struct fixture *f, struct rpc *r, uint64_t parent, const char *name, uint32_t mode, bool open, struct attr *out);
int lookup(struct fixture *f, struct rpc *r, uint64_t parent, const char *name, struct attr *out);
int getattr(struct fixture *f, struct rpc *r, uint64_t inode, struct attr *out);
int unlink_name(struct fixture *f, struct rpc *r, uint64_t parent, const char *name);
int alloc(struct fixture *f, struct rpc *r, uint32_t count, uint64_t *first);
int object_put(struct fixture *f, struct rpc *r, uint64_t object, const void *bytes, size_t size);
int object_get(struct fixture *f, struct rpc *r, uint64_t object, uint32_t offset, void *into, uint32_t length);
/* The bytes as one extent in an object of their own, and a commit: 0 or -errno; *out may be NULL. */
int write_file(struct fixture *f, struct rpc *r, uint64_t inode, uint64_t offset, const void *bytes, uint32_t size,
	       struct extent *out);
int commit(struct fixture *f, struct rpc *r, uint64_t inode, const struct extent *e, uint32_t object_size, uint64_t file_size);
int first_extent(struct fixture *f, struct rpc *r, uint64_t inode, struct extent *out);

/* Runs a job to its end. */
Wire__JobReply *job(struct fixture *f, const char *kind, bool repair, bool quick);
uint64_t job_counted(const Wire__JobReply *reply, const char *name);
Wire__StatusReply *status(struct fixture *f);
char *object_path(struct fixture *f, uint64_t object, char *out, size_t size);
bool exists(const char *path);
