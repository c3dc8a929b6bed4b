/* The metadata of all volumes: a state machine in LMDB.  It knows no sockets and
 * no store; time is passed in.
 *
 * Reads take a snapshot and never wait.  Mutations are queued to the one writer
 * thread, which applies whatever is queued in one LMDB transaction, commits it
 * durably and then calls each mutation's `done` (group commit).  A mutation of a
 * session with a number already answered gets the remembered answer and is not
 * applied again.
 *
 * An operation is a request message in, a reply message out, by the op number of
 * proto/epochfs.proto; ops.c has the table.  The server only frames them.
 *
 * Threads: everything here may be called from any thread.  `done` is called on
 * the writer's thread, must not block and must not call back into meta_submit
 * and wait. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/clock.h"
#include "epochfs.pb-c.h"
#include "meta/view.h"

struct meta;

struct meta_options {
	const char *folder; /* holds data.mdb; made if missing */
	const struct clock *clock;
	uint64_t map_bytes; /* 0: 1 TiB of address space */
	bool replica;       /* of a replica (replica.h): it is there already, and takes no mutations */
};

/* Opens or creates.  Refuses what is damaged or of another format with a text
 * that names the file and the way out. */
int meta_open(const struct meta_options *options, struct meta **out, char *error, size_t error_size);
void meta_close(struct meta *m); /* finishes what is queued, syncs */

/* Who asks.  `session` 0 is the server itself or an administrator. */
struct caller {
	uint64_t session;
	uint32_t volume;
	uint64_t root;
	bool read_only;
};

enum op_kind { OP_UNKNOWN, OP_READ, OP_MUTATION, OP_OTHER /* not meta's: the server handles it */ };

struct op_info {
	uint16_t op;
	const char *name;
	enum op_kind kind;
	bool internal; /* refused from the network */
	bool admin;    /* needs no mount session */
	const ProtobufCMessageDescriptor *request, *reply;
};
const struct op_info *op_find(uint16_t op); /* NULL if unknown */

/* Runs a read operation.  The reply's memory comes from `arena`.  0 with *reply
 * set, or -errno; then *reply is an ErrorReply if there is more to say, and else
 * left alone.  -EBADMSG is damage and was logged. */
int meta_read(struct meta *m, const struct caller *who, uint16_t op, const ProtobufCMessage *request, struct arena *arena,
	      ProtobufCMessage **reply);

/* A mutation.  The caller owns it and the request in it until `done`.  A session
 * that has ended (or never was) gets -ENOTCONN.  Errors are not remembered: they
 * changed nothing, and a retry is judged anew.  A file that CREATE leaves open is
 * counted as open before `done`; GOODBYE and SESSION_END forget the session's
 * open files.  On done,
 * `status` is 0 or -errno and `packed` holds the packed reply (if status is 0;
 * else perhaps a packed ErrorReply); the memory of `packed` is the mutation's,
 * to be freed with buf_free by its owner. */
struct mutation {
	struct caller who;
	uint64_t number;         /* of the session; 0: not remembered */
	uint64_t answered_below; /* the session has seen the answers of all numbers below */
	uint16_t op;
	const ProtobufCMessage *request;
	void (*done)(struct mutation *m);
	void *context;
	int status;
	struct buf packed;
	/* The inodes whose directory records, or covered attributes, the caller has made sure of (attr_cover); NULL: all.
	 * A mutation that would change more is refused with -EREMCHG, and `undeclared` is the first that is missing. */
	const uint64_t *declared;
	size_t declared_count;
	uint64_t undeclared;
	uint64_t made;         /* by CREATE: the new inode */
	struct mutation *next; /* the writer's, like the rest */
	uint64_t opened;
};
void meta_submit(struct meta *m, struct mutation *mutation);
/* The same, waiting.  *reply (may be NULL) comes from the arena. */
int meta_mutate(struct meta *m, const struct caller *who, uint16_t op, const ProtobufCMessage *request, struct arena *arena,
		ProtobufCMessage **reply);

/* A snapshot for whoever reads a lot at once (fsck, gc): short-lived, never
 * across a network wait. */
int meta_view_begin(struct meta *m, struct view *out);
void meta_view_end(struct view *v);

/* What has no place in LMDB: which sessions have which files open.  Lost with the
 * process and reclaimed by the sessions afterwards. */
int meta_opened(struct meta *m, uint64_t session, uint32_t volume, uint64_t inode,
		uint64_t number); /* 0 or -ENOMEM; again is fine */
/* Unless it was opened with a higher number; false: it was, or is not open. */
bool meta_closed(struct meta *m, uint64_t session, uint32_t volume, uint64_t inode, uint64_t number);
bool meta_is_open(struct meta *m, uint32_t volume, uint64_t inode);
uint64_t meta_open_count(struct meta *m, uint64_t session);
void meta_session_forget(struct meta *m, uint64_t session); /* all its opens */

/* Volumes by name; -ENOENT.  The Volume comes from the arena. */
int meta_volume_find(struct meta *m, const char *name, struct arena *arena, Wire__Volume **out);
const uint8_t *meta_history(
	const struct meta *m);            /* 16 bytes that stand for one history: another one after a copy was restored */
uint64_t meta_batch(struct meta *m);      /* number of the last durable batch */
uint64_t meta_file_bytes(struct meta *m); /* of data.mdb */
int meta_backup(struct meta *m, const char *file); /* a compact copy, made durable, then renamed in place */

/* Recent write sets, oldest first; `after` is a batch number.  Calls `each` for
 * those still kept (the newest 16 MiB); -ESTALE if the one after `after` is gone. */
int meta_write_sets(struct meta *m, uint64_t after, int (*each)(void *context, uint64_t batch, const void *data, size_t size),
		    void *context);
void meta_await_batch(struct meta *m, uint64_t after, int64_t ns); /* until there is one after it, or so long */

uint64_t meta_name_seed(const struct meta *m); /* of the hashes names are ordered by; for replicas */
/* When a replica of any volume was last known to be there: INT64_MAX: it is; 0: never. */
int64_t meta_replica_seen_ns(struct meta *m);
