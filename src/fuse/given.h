/* What the kernel was given leave to keep: names and attributes.  When the client loses
 * the leave (the lease of the volume, or the grant on a directory), the kernel is made to forget.
 *
 *   given_begin                        when a request comes
 *   given_enter ..                     the answer is made and sent; had the leave gone meanwhile, the answer says so
 *   .. given_note, given_cover ..
 *   .. given_leave
 *   given_recall, given_uncover        lets the answers being sent pass, then tells the kernel
 *
 * The kernel forgets all names at once (FUSE_NOTIFY_INC_EPOCH, Linux 6.16), but attributes
 * inode by inode.  Which inodes were given in the last seconds is remembered; what was
 * given before that has run out by itself.
 *
 *   under the lease of the volume    8 to 24 bytes for up to 64 inodes whose numbers are close
 *   under a grant on a directory     32 bytes an inode, in two rings of fixed size: of directories, and of all else.  Where the
 *                                    oldest has not run out yet there is no room, and no leave is given.
 *
 * Names are not given under grants: forgetting all of them takes mounts on directories of
 * this one away (the kernel drops the names as if they were gone), which is bad enough when
 * the lease of the volume goes; forgetting one needs a lock of the directory, which a
 * program that changes it holds until we have answered. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/intmap.h"
#include "meta/attr.h"

/* What it knows of sizes.  The kernel ignores an answer with attributes if it was told to forget something of the inode after it had
 * asked.  A read() behind the end it knows of asks for the size first; where the answer is ignored, it ends at the old size, although
 * another mount has made the file longer long ago.  Therefore the kernel is made to know that a file is longer before it is made to
 * forget pages of it (given_extend).
 *
 * What this rests on (fuse_notify_store, the same from Linux 2.6.36 on): FUSE_NOTIFY_STORE of bytes behind the end moves the end
 * first, and copies the bytes then.  We give it an address that cannot be read.  So the copy fails, and pages stay as they are. */
#define GIVEN_LATEST 256u
#define GIVEN_DIRECTORIES 4096u
#define GIVEN_FILES 16384u

struct given_ring {
	struct given_covered {
		uint64_t node, cover; /* cover 0: it was forgotten */
		int64_t given_ns, until_ns;
	} * slots;
	uint32_t *index; /* by node: where it was put last */
	uint32_t size, next;
};

struct given {
	pthread_rwlock_t gate; /* shared while an answer is sent; alone at a recall */
	_Atomic uint64_t recalls;
	_Atomic bool names; /* the kernel can be told to forget names */
	bool told;          /* set before the first request: it is told of every single change (news.h), and may keep all */

	pthread_mutex_t lock;      /* guards all below */
	struct intmap now, before; /* node / 64 -> bits */
	int64_t turned_ns;         /* when `now` became `before` */
	uint64_t latest[GIVEN_LATEST];
	uint32_t next;
	/* The kernel was told of these, and had not made an inode of them when it was to forget them: it does when they are opened. */
	uint64_t unmade[GIVEN_LATEST];
	_Atomic uint32_t unmade_count;        /* also looked at without the lock */
	int64_t unmade_until_ns;              /* what was given to them has run out then */
	struct given_ring files, directories; /* under grants */

	void *unreadable; /* a page that is; NULL: there is none */
};

int given_init(struct given *g);
void given_free(struct given *g);

uint64_t given_begin(struct given *g);
/* For how long the names and the attributes in an answer may be kept, of what the client allowed. */
struct given_leave {
	uint32_t name_ms, attr_ms;
};
struct given_leave given_enter(struct given *g, uint64_t begun, uint32_t valid_ms);
/* The same, for one inode in the answer. */
struct given_leave given_of(const struct given *g, struct given_leave l, const struct attr *a);
void given_note(struct given *g, uint64_t node); /* whose attributes are in the answer */
/* In company: for how long, of what the grant on the directory that covers them allows. */
uint32_t given_cover(struct given *g, uint64_t begun, uint64_t node, const struct attr *a, uint32_t granted_ms);
void given_leave(struct given *g);

/* It is about to be opened.  From any thread. */
void given_opened(struct given *g, int device, uint64_t node);

/* Not from a thread that handles requests: the kernel may make it wait for them. */
void given_recall(struct given *g, int device);
void given_uncover(struct given *g, int device, uint64_t cover); /* the attributes it covers */
void given_moved(int device, uint64_t node);                     /* attributes of one; from any thread */
/* The file is at least so long.  Waits for requests that hold its last page. */
void given_extend(const struct given *g, int device, uint64_t node, uint64_t size);
/* Whether the kernel has an inode of it, for now.  From any thread. */
bool given_is_there(int device, uint64_t node);
/* Pages of a file.  Waits for requests that hold some of them, and sends WRITEs for dirty ones. */
void given_forget(int device, uint64_t node, uint64_t from, uint64_t to);

/* For news.c. */
int given_notify(int device, int code, const void *data, size_t size);
/* From here on answers to requests that began before give no leave, and those that gave some have been sent. */
void given_pass(struct given *g);
bool given_was(struct given *g, uint64_t node); /* its attributes were in an answer of the last seconds */
