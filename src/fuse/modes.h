/* How files are open: through the kernel's pages, or passed through to a file on the local disk.
 *
 * The kernel has one way for each of its inodes, from the first open to the last close; an open that does not fit
 * is EIO.  So they are counted.  Who opens for reading joins what there is.  Who opens for writing cannot join an inode
 * that is passed through: stores through a mapping would go to the file on the disk, and nobody would tell us.  Therefore a
 * file has two nodes, the two *sides*, each an inode of its own to the kernel:
 *
 *   node id = inode number, with bit 63 for side 1
 *
 *   current side    what LOOKUP tells; all opens through pages are here
 *   other side      perhaps still open, passed through, from the time when it was the current one; nothing else
 *
 *   open     side       finds there                     does
 *   read     any        passed through                  joins
 *   read     current    pages                           joins
 *   read     current    nothing                         is passed through if it can be and the other side is not; else pages
 *   write    current    nothing, pages                  pages
 *   write    current    passed through                  makes the other side the current one, ESTALE.  So does a read that cannot join
 *   any      other      nothing, all closed             makes this side the current one, and goes on
 *   any      other      anything else                   ESTALE
 *
 * Upon ESTALE the kernel looks the name up again and finds the current side.  Only what has no name to look up gets to see it: a
 * file that is passed through, and opened by /proc/self/fd or by a file handle, for writing, or while it is not known whether what
 * is passed through is all of it (client_pass).
 *
 * Pages and attributes of the two sides are kept apart by the kernel.  From the moment on when a file has had a second side
 * (`dual`, until the mount ends) both are told to forget, attributes are not to be kept, and who is the first to open a
 * side does not find pages of before.
 *
 * What is counted is never less than what the kernel has: from before an open is answered, to its RELEASE.
 * A RELEASE comes some time after close() has returned: who opens for writing waits MODES_WAIT_NS for it, so that reading a file and
 * then writing it does not make it dual.  Any thread.  Nothing else waits but for the lock, which is held while a backing id
 * is made. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"

#define MODES_WAIT_NS 5000000
#define NODE_OTHER_SIDE (1ULL << 63)

enum open_mode {
	OPEN_UNCOUNTED,
	OPEN_PAGES,
	OPEN_PASSED,
};

/* How one was answered. */
struct opened {
	enum open_mode mode;
	unsigned side;
	int backing;  /* the id, if it is passed through */
	bool foreign; /* the kernel's pages of this side may be of another time */
};

struct modes {
	/* A backing id for a descriptor, or -errno; its end. */
	int (*make)(void *context, int fd);
	void (*drop)(void *context, int id);
	void *context;
	pthread_mutex_t lock; /* guards the map and what is in it */
	pthread_cond_t closed;
	struct intmap files; /* inode -> struct mode */
	atomic_uint dual;    /* how many of them are: without any, nothing need be looked up */
	atomic_uint passed;  /* opens that were passed through */
	atomic_uint passing; /* files that are open that way */
};

void modes_init(struct modes *m);
void modes_free(struct modes *m);

/* Each counts the open, until modes_close, or returns -ESTALE, or -ENOMEM. */
int modes_open_write(struct modes *m, uint64_t inode, unsigned side, struct opened *out);
int modes_open_read(struct modes *m, uint64_t inode, unsigned side, int fd,
		    struct opened *out);                               /* fd negative: not passed through */
int modes_create(struct modes *m, uint64_t inode, struct opened *out); /* for one whose answer tells the node */
void modes_close(struct modes *m, uint64_t inode, const struct opened *o);
bool modes_is_passed(struct modes *m, uint64_t inode, unsigned side); /* for the moment */

unsigned modes_side(struct modes *m, uint64_t inode, bool *dual); /* the current one */
/* Whether pages on another side would not hear of a change through this one. */
bool modes_is_elsewhere(struct modes *m, uint64_t inode, unsigned side);
