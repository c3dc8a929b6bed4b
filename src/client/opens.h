/* Files that are open here and that the server does not know of.
 *
 * Under the lease of the volume nobody else can change a file or take its name away.  So one that is opened for reading, and
 * of which attributes (attrs.h) and extents (layouts.h) are known, is opened without a call: the inode is `local`, and has
 * GRANT_READ as far as this client is concerned.  The server is told
 *
 *   when the lease is recalled      of all of them, before that is acknowledged (opens_tell)
 *   when this client removes a name of such a file, or opens it for writing: before that, as for any other open
 *
 * A server that restarts is not told: the lease goes on.  Should the lease run out without a word (the server was away for
 * so long), others may have changed such a file, or removed it, before the server hears of it again: then its pages
 * are forgotten, and if it is gone, reading it is an error.
 *
 * Any thread; inode.lock is taken but where noted. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "epochfs.pb-c.h"

struct client;
struct inode;

struct opens {
	_Atomic uint64_t local;    /* how many of them there are */
	_Atomic uint64_t removals; /* how many calls that remove names are under way: meanwhile there are no new ones */
};

/* Without a call: false: the server must be asked.  *unchanged: the kernel's pages of it are good. */
bool open_locally(struct inode *i, bool *unchanged);
void open_local_end(struct inode *i); /* inode.lock is held: it has nothing any more */
/* inode.lock is held: the server was told, and this is its answer.  False: what was known of it is not good any more. */
bool open_told(struct inode *i, const Wire__ExtentsReply *reply, uint64_t recalls);
/* From the lease's thread.  `alive` is called from time to time. */
void opens_tell(struct client *c, void (*alive)(struct client *c));

/* Around a call that takes this name from a file: if that is open here, the server knows it before.  0, or -errno: then there is
 * nothing to end. */
int removal_begin(struct client *c, uint64_t parent, const char *name);
void removal_end(struct client *c);
