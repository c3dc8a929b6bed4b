/* Files the kernel reads by itself (passthrough), from the cache on the disk.
 *
 * Of a file that is passed through no read reaches us, and nobody can take it back: whoever has it open goes on reading
 * the same backing file.  So
 *
 *   - it is begun only where nobody else can change the file: under the lease of the volume, or on a relaxed volume; for a
 *     file that is whole in the cache, and that nobody here has open for writing or has unstored data of.
 *   - when its content changes all the same, the backing file is changed in place.  It is no longer the cached
 *     content of its version then, for anybody (cache_file_detach).
 *
 * Who changes it, and when those who read see it:
 *
 *   a program on this mount     at once: the bytes go to the backing file before its call returns
 *   another mount               the lease went in between.  When the grant on the file is recalled a thread asks for it again,
 *                               and copies the content anew (REFRESH_NS later or more).  Whoever opens it meanwhile is not
 *                               passed through (client_pass is -EAGAIN)
 *   another one, relaxed        the same, when the file is opened the next time
 *
 * A backing file is `settled` while it shows what a read would: since then no grant has gone (inode.recalls), and what
 * was written here was written to it, too.  Where another process has the same backing file open, it must not see what
 * is not stored yet: then it is copied after storing.
 *
 * Memory.  A file that is to be passed through is read through the kernel's pages of the mount the first time, while the cache is
 * filled, and from then on through those of the backing file.  So it goes to the cache by way of these (cache_file_keep_pages), and once it
 * is whole and closed the kernel forgets the former (passed_prepare).
 *
 * Any thread; inode.lock is held where noted. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct inode;
struct backing;

struct passed {
	struct inode *inode;
	struct backing *backing;
	int fd;           /* belongs to it */
	unsigned refs;    /* files that are passed through, and the queue */
	uint64_t version; /* whose content it had when it was settled the last time; 0: none */
	uint64_t recalls; /* inode.recalls when it was */
	bool copying, queued, refreshing, failed;
	bool stuck;          /* the last refresh failed */
	struct passed *next; /* in the queue */
};

struct refresher {
	pthread_mutex_t lock; /* guards all below; the last of all locks */
	pthread_cond_t work;
	struct passed *first, **end;
	bool stopping, started;
	pthread_t thread;
};

int refresher_start(struct client *c);
void refresher_stop(struct client *c);

/* Whether files can be passed through, as far as others and the kernel are concerned. */
bool passed_is_possible(struct client *c);
/* Without the lock.  Whether what the kernel has of it is twice in memory, and nobody has it open. */
bool passed_is_due(struct inode *i);
/* The same; if so the kernel forgets its pages of the mount.  Not from a thread that handles requests. */
void passed_prepare(struct inode *i);

/* inode.lock is held for all of these. */
/* A change is about to be made, or was: waits until it can be, or is, shown, but not for long.  The lock is given up meanwhile. */
void passed_await(struct inode *i);
bool passed_settle(struct inode *i); /* the grant is held, the content is about to change: may it be changed in place? */
void passed_write(struct inode *i, bool settled, uint64_t offset, const void *bytes, size_t size); /* it was written */
void passed_doubt(struct inode *i); /* before inode.recalls grows */
void passed_lost(struct inode *i);  /* unstored data is dropped */
/* Without the lock: the server has changed [from, to), or, if that is nothing, the size. */
void passed_changed(struct inode *i, uint64_t from, uint64_t to);
