/* The inside of struct meta, for the files that make it up: view.c, meta.c,
 * writer.c, answers.c, writeset.c, roster.c, opens.c.  Handlers have no business here.
 *
 * Locks, none of which is held while another is taken:
 *   readers_lock    the pool of read transactions
 *   queue_lock      (writer.c) the queue of mutations
 *   recent.lock     the write sets kept
 *   opens.lock      who has what open
 *   roster.lock     the summary of volumes and sessions */
#pragma once
#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/intmap.h"
#include "meta/meta.h"
#include "meta/op.h"

#define READERS_MAX 1024    /* slots in LMDB's reader table */
#define READERS_POOLED 1000 /* read transactions we make: the rest is for backups and tools */

#define DATA_FILE "data.mdb"

/* What META "format" holds; see format.c. */
#define META_FORMAT 1u
struct format {
	uint32_t number;
	uint8_t id[16], history[16];
	int64_t created_ns;
	uint64_t name_seed;
};

/* The write sets of recent batches (writeset.c). */
struct recent {
	pthread_mutex_t lock;
	pthread_cond_t added;
	struct write_set *oldest, *newest;
	size_t bytes;
	uint64_t last_batch; /* the newest durable batch, kept or not */
};

/* Open files (opens.c). */
struct opens {
	pthread_mutex_t lock;
	struct intmap sessions; /* session -> struct session_opens */
	struct intmap files;    /* inode_key -> how many sessions have it open */
};

/* What every operation wants to know of a volume, without unpacking its record (roster.c). */
struct roster_volume {
	uint32_t sessions; /* but for replicas, which nobody has to mind */
	bool relaxed, deleted;
	bool orphaned; /* it has marks of mounts without a session */
	uint64_t max_bytes, max_files, retention_s;
};
struct roster {
	pthread_rwlock_t lock;
	struct intmap volumes;           /* volume -> struct roster_volume */
	_Atomic int64_t replica_seen_ns; /* see meta_replica_seen_ns */
};

struct meta {
	char *folder;
	struct clock clock;
	uint64_t map_bytes;
	MDB_env *env;
	MDB_dbi tables[TABLE_COUNT];
	struct format format;

	pthread_mutex_t readers_lock;
	pthread_cond_t readers_free;
	MDB_txn *idle[READERS_POOLED];
	int idle_count, reader_count;

	struct recent recent;
	struct opens opens;
	struct roster roster;
	struct writer *writer;
	_Atomic uint64_t batch;
	_Atomic bool marked;    /* there may be marks */
	_Atomic bool low_space; /* less than SPACE_RESERVE left where the metadata are */
};

#define SPACE_RESERVE (16u << 20)

/* format.c: the record that says whose file this is, and making a new file.  0, -EBADMSG or what LMDB says. */
int format_load(MDB_txn *txn, MDB_dbi meta_table, struct format *out);
int format_make(const char *folder, const struct clock *clock,
		const struct format *like);                                 /* id and seed are those; NULL: new ones */
int history_clear(const char *file, uint64_t map_bytes);                    /* of a copy that nobody has open */
int history_renew(MDB_env *env, MDB_dbi meta_table, struct format *format); /* if it has none; before the writer starts */

/* walk.c: reads everything once in a child process, so that damage ends the child and not the server.
 * 0, or -EBADMSG with the reason in `why`.  Only while the process has a single thread. */
int walk_check(const char *folder, uint64_t map_bytes, char *why, size_t why_size);

/* meta.c */
int meta_environment_open(const char *path, unsigned flags, uint64_t map_bytes, MDB_env **out);

/* writer.c */
int writer_start(struct meta *m);
void writer_stop(struct meta *m);

/* space.c: sets low_space; the writer calls it before a batch. */
void meta_space_look(struct meta *m);

/* answers.c: the remembered answers of a session, within the batch that made them. */
int answer_find(struct view *v, uint64_t session, uint64_t number, int *status, struct span *packed); /* -ENOENT */
int answer_keep(struct view *v, uint64_t session, uint64_t number, int status, const void *packed, size_t size);
int answers_trim(struct view *v, uint64_t session, uint64_t below, unsigned max); /* forgets up to max of them */

/* writeset.c */
void recent_init(struct recent *r);
void recent_free(struct recent *r);
void recent_add(struct recent *r, uint64_t batch, struct buf *data); /* takes the memory of *data */

/* opens.c */
void opens_init(struct opens *o);
void opens_free(struct opens *o);

/* roster.c */
#define REPLICA_ENDED_KEY "replica.ended"
int roster_init(struct roster *r);
void roster_free(struct roster *r);
int roster_reload(struct meta *m); /* from what is committed */
bool roster_find(struct meta *m, uint32_t volume, struct roster_volume *out);

#define INODE_HEAD (ATTR_PACKED + 2u) /* of an INODE value, before the target; see inode.c */

/* dentry.c: the cookie of a name's first slot; the other slots follow it. */
#define DENTRY_HEAD 9u /* of the value, before the name */
#define DENTRY_SLOT_MASK 15u
uint64_t dentry_slot(uint64_t seed, const void *name, size_t size);

/* ops.c */
op_handler op_handler_of(const struct op_info *info); /* NULL: not ours */
