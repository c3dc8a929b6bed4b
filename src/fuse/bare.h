/* Inodes known to have no extended attributes.  The kernel asks for some of every file
 * (security.capability before the first write, ACLs for `ls -l`), and hardly any file
 * has them; attributes that were just answered tell so, and for as long as they may be
 * cached nobody needs to be asked.
 *
 * A table of fixed size where a newer inode takes the place of an older one; forgetting
 * costs a question, nothing else.  Any thread, no locks.
 *
 * What may not happen is that an attribute just set is not found.  Changes are counted,
 * when they begin and when they are done.  What is learned carries the count from before
 * it was asked for, and is believed only while no other change has begun: any change
 * thus makes all forgotten, which is simple, and rare enough. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include "client/client.h"

#define BARE_SLOTS 16384u

struct bare {
	atomic_uint_fast64_t begun, done; /* changes */
	struct {
		atomic_uint_fast64_t word; /* inode and count, so that they cannot be seen apart */
		atomic_int_fast64_t until_ns;
	} slots[BARE_SLOTS];
};

/* A mark to pass to bare_learn with what is asked for from now on; 0: learn nothing,
 * because a change is under way. */
uint64_t bare_begin(struct bare *b);
void bare_learn(struct bare *b, uint64_t mark, const struct entry *e);
bool bare_is(struct bare *b, uint64_t inode);

/* Around whatever sets attributes. */
void bare_change_begin(struct bare *b);
void bare_change_end(struct bare *b);
