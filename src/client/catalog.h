/* The names of directories of which this client knows all names: those it has made
 * itself, and those it has listed because files are made in them.  What is not here
 * is not there, so a new name needs no question to the server.
 *
 * Under the lease of the volume (lease.h) it is all ours; it is cleared when that goes.
 * In company it holds directories the server granted, each until it is recalled.  A
 * directory in here is also what attributes known under its grant rest on: it has a number
 * of its own, and a new one if it was away meanwhile.  Names are kept as 88 bits of a seeded hash, 16 bytes a slot, 21 to 43 bytes
 * a name.  Over the limit, directories not used for longest are forgotten: then the
 * server is asked, nothing else changes.
 *
 * Only "absent" must be true: a name that is said to be present is asked for.
 *
 * A call to the server that changes names of a directory stands between
 * catalog_begin and catalog_end; meanwhile nothing is said about it.  Two of them at
 * once may have been done in either order: then a removed name goes on being
 * present here.  Any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/intmap.h"

#define CATALOG_CHANGED 1024u
#define CATALOG_CHANGING 256u

struct catalog {
	pthread_mutex_t lock;      /* guards all below */
	struct intmap directories; /* inode -> struct catalog_directory */
	struct catalog_directory *newest, *oldest;
	size_t bytes, limit;
	uint64_t seed, next_id;
	uint64_t clears;
	uint64_t changes;                    /* begun so far */
	uint64_t changed[CATALOG_CHANGED];   /* in which directory, the latest of them */
	unsigned changing[CATALOG_CHANGING]; /* how many are under way, by a hash of the directory */
};

struct catalog_change {
	uint64_t directory, id; /* id 0: it was not known */
	uint64_t changes, clears;
	bool alone;
};

enum catalog_answer { CATALOG_UNKNOWN, CATALOG_ABSENT, CATALOG_PRESENT };

int catalog_init(struct catalog *c, size_t limit);
void catalog_free(struct catalog *c);
void catalog_clear(struct catalog *c);

void catalog_drop(struct catalog *c, uint64_t directory);
void catalog_recall(struct catalog *c, uint64_t directory); /* the same, and listings under way are of no use */
uint64_t catalog_clock(struct catalog *c);                  /* grows with every directory taken in */
/* The number of the directory, if it is here, and was at that time; else 0. */
uint64_t catalog_grant(struct catalog *c, uint64_t directory, uint64_t since);
/* Present: *inode is the one it is the name of; 0: unknown. */
enum catalog_answer catalog_find(struct catalog *c, uint64_t directory, const char *name, uint64_t *inode);
/* Adds a name, if it is known that it is not there and nobody changes the directory.  It is good as long as
 * catalog_cleared gives *clears. */
bool catalog_claim(struct catalog *c, uint64_t directory, const char *name, uint64_t inode, uint64_t *clears);
uint64_t catalog_cleared(struct catalog *c); /* how often */

void catalog_begin(struct catalog *c, uint64_t directory, struct catalog_change *change);
void catalog_added(struct catalog *c, const struct catalog_change *change, const char *name,
		   uint64_t inode); /* 0: or perhaps it was, or another */
void catalog_doubted(struct catalog *c, const struct catalog_change *change,
		     const char *name); /* if it is there, the inode may be another */
void catalog_removed(struct catalog *c, const struct catalog_change *change, const char *name);
void catalog_made(struct catalog *c, const struct catalog_change *change, uint64_t directory); /* a new, empty one */
void catalog_end(struct catalog *c, const struct catalog_change *change);

/* A listing, from its first call to its last.  False from begin: not now, or not needed.  End with
 * `complete` takes it in, unless the directory has changed meanwhile. */
struct catalog_listing {
	struct catalog_directory *directory;
	uint64_t id; /* the directory's number, once it is taken in */
	uint64_t changes, clears;
};
bool catalog_has_room(struct catalog *c); /* half of it at least */
bool catalog_listing_begin(struct catalog *c, uint64_t directory, struct catalog_listing *l);
int catalog_listing_add(struct catalog *c, struct catalog_listing *l, const char *name, size_t size,
			uint64_t inode); /* 0 or -ENOMEM */
bool catalog_listing_end(struct catalog *c, struct catalog_listing *l, bool complete);
