/* Which directories and files a mutation touches, so that the grants on them can be
 * recalled before it is made (grants.h).
 *
 * The attributes of an inode are covered by the grant on a directory: its own, or, if it
 * is none, the one attr.parent names.  A mutation touches the covers of all inodes whose
 * record it changes, and a name's directory is one of those.
 *
 * This looks before the mutation is queued, so it may be wrong by the time its turn
 * comes: meta then refuses it and says what is missing (mutation.undeclared). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "server/grants.h"

struct arena;
struct server;

int touched_cover(struct server *s, uint32_t volume, uint64_t inode, struct touch *out); /* -ENOENT: no such inode */

/* In the arena, with room for one more.  What is not there is left to the mutation, which says so. */
int touched_find(struct server *s, uint32_t volume, uint16_t op, const ProtobufCMessage *message, struct arena *arena,
		 struct touch **out, size_t *count);
