#include "fuse/session.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/handlers.h"
#include "fuse/passthrough.h"
#include "rpc/caller.h"

/* Page cache to read ahead into.  The kernel takes the smaller of this and what the mount's
 * device says, which mountpoint_readahead raises afterwards. */
#define READAHEAD_BYTES (1u << 20)

/* Requests nobody waits for (read-ahead, asynchronous direct I/O) in flight at once. */
#define BACKGROUND_MAX 64
#define BACKGROUND_CONGESTED 48

/* A cache on a file system that is not stacked on another one: then overlayfs can still be put on this mount. */
#define PASS_STACK_DEPTH 1

/* What we want of the kernel's features.  Not among them:
 *   WRITEBACK_CACHE   the client buffers writes; two buffers would fight over size and times
 *   AUTO_INVAL_DATA   pages are dropped when a file is opened whose content changed */
#define WANTED \
	((uint64_t)(FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ATOMIC_O_TRUNC | FUSE_DONT_MASK | FUSE_POSIX_ACL | \
		    FUSE_PARALLEL_DIROPS | FUSE_DO_READDIRPLUS | FUSE_ASYNC_DIO | FUSE_HANDLE_KILLPRIV_V2 | FUSE_SETXATTR_EXT | \
		    FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | FUSE_INIT_EXT | FUSE_CACHE_SYMLINKS | FUSE_EXPLICIT_INVAL_DATA | \
		    FUSE_EXPORT_SUPPORT | FUSE_DIRECT_IO_ALLOW_MMAP))

/* Without these what the server or the decoder relies on would be missing. */
#define NEEDED ((uint64_t)(FUSE_MAX_PAGES | FUSE_ATOMIC_O_TRUNC | FUSE_DONT_MASK | FUSE_SETXATTR_EXT | FUSE_HANDLE_KILLPRIV_V2))

int session_init(struct session *s, struct client *client, const struct mountpoint_flags *flags)
{
	int r;

	memset(s, 0, sizeof(*s));
	r = given_init(&s->given);
	if (r < 0)
		return r;
	s->client = client;
	s->device = -1;
	atomic_store(&s->atime, flags->atime);
	atomic_store(&s->nodiratime, flags->nodiratime);
	atomic_store(&s->read_only, flags->read_only);
	s->root = client_root(client);
	pthread_mutex_init(&s->lock, NULL);
	passthrough_init(s);
	locks_begin(s);
	return 0;
}

void session_recall(struct session *s)
{
	bare_change_begin(&s->bare);
	bare_change_end(&s->bare);
	given_recall(&s->given, s->device);
}

void session_uncover(struct session *s, uint64_t directory)
{
	bare_change_begin(&s->bare);
	bare_change_end(&s->bare);
	given_uncover(&s->given, s->device, directory);
}

void session_moved(struct session *s, uint64_t inode)
{
	uint64_t node;
	bool dual;

	bare_change_begin(&s->bare);
	bare_change_end(&s->bare);
	node = session_node(s, inode, &dual);
	given_moved(s->device, node);
	if (dual)
		given_moved(s->device, node ^ NODE_OTHER_SIDE);
}

void session_extend(struct session *s, uint64_t inode, uint64_t size)
{
	bool dual;
	uint64_t node = session_node(s, inode, &dual);

	given_extend(&s->given, s->device, node, size);
	if (dual)
		given_extend(&s->given, s->device, node ^ NODE_OTHER_SIDE, size);
}

void session_forget(struct session *s, uint64_t inode, uint64_t from, uint64_t to)
{
	bool dual;
	uint64_t node = session_node(s, inode, &dual);

	given_forget(s->device, node, from, to);
	if (dual)
		given_forget(s->device, node ^ NODE_OTHER_SIDE, from, to);
}

void session_end(struct session *s)
{
	locks_end(s);
	while (s->handles)
		session_close(s, s->handles);
	pthread_cond_destroy(&s->locks.closed);
	pthread_mutex_destroy(&s->lock);
	passthrough_end(s);
	given_free(&s->given);
}

static void session_ready(struct session *s, int error)
{
	if (s->ready)
		s->ready(s->context, error);
}

/* A kernel with a newer major version sends INIT again after it has seen ours. */
static int handle_init(struct session *s, const struct fuse_request *q, struct reply *r)
{
	const struct fuse_init_in *in = &q->in.init;
	uint64_t offered = in->flags, agreed;
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = FUSE_SPOKEN_MINOR,
		.max_readahead = in->max_readahead < READAHEAD_BYTES ? in->max_readahead : READAHEAD_BYTES,
		.max_background = BACKGROUND_MAX,
		.congestion_threshold = BACKGROUND_CONGESTED,
		.max_write = FUSE_DATA_MAX,
		.max_pages = FUSE_DATA_PAGES,
		.time_gran = 1,
	};

	if (in->major > FUSE_KERNEL_VERSION) {
		reply_data(r, &out, sizeof(out));
		return 0;
	}
	if (in->flags & FUSE_INIT_EXT)
		offered |= (uint64_t)in->flags2 << 32;
	if (in->major < FUSE_KERNEL_VERSION || in->minor < FUSE_OLDEST_MINOR || (offered & NEEDED) != NEEDED) {
		log_error("fuse: this kernel speaks FUSE %u.%u without what EpochFS needs; Linux 5.12 or later has it", in->major,
			  in->minor);
		session_ready(s, -EPROTONOSUPPORT);
		return -EPROTO;
	}
	agreed = (WANTED | (s->ring_wanted ? FUSE_OVER_IO_URING : 0) | (s->pass_wanted ? FUSE_PASSTHROUGH : 0)) & offered;
	atomic_store(&s->ring_agreed, (agreed & FUSE_OVER_IO_URING) != 0);
	atomic_store(&s->no_opens, s->unopened && (offered & FUSE_NO_OPEN_SUPPORT));
	/* Who is not told of the last close() cannot release locks. */
	if (atomic_load(&s->no_opens))
		agreed &= ~(uint64_t)(FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS);
	atomic_store(&s->can_write_directly, (agreed & FUSE_DIRECT_IO_ALLOW_MMAP) != 0);
	atomic_store(&s->given.names, in->minor >= FUSE_INC_EPOCH_MINOR);
	atomic_store(&s->pass_agreed, (agreed & FUSE_PASSTHROUGH) != 0);
	if (agreed & FUSE_PASSTHROUGH)
		fuse_init_out_stack_depth(&out, PASS_STACK_DEPTH);
	out.flags = (uint32_t)agreed;
	out.flags2 = (uint32_t)(agreed >> 32);
	log_debug("fuse: kernel %u.%u, flags %llx of %llx, read-ahead %u", in->major, in->minor, (unsigned long long)agreed,
		  (unsigned long long)offered, in->max_readahead);
	session_ready(s, reply_data(r, &out, sizeof(out)));
	return 0;
}

static int handle_destroy(struct session *s, const struct fuse_request *q, struct reply *r)
{
	reply_error(r, 0);
	return 0;
}

/* The kernel remembers ENOSYS and does not ask again:
 *   ACCESS   the kernel checks permissions itself
 *   POLL     files are always ready
 *   BMAP, others   not asked for */
static int handle_never(struct session *s, const struct fuse_request *q, struct reply *r) { return -ENOSYS; }

static int handle_ioctl(struct session *s, const struct fuse_request *q, struct reply *r) { return -ENOTTY; }

static handler *const handlers[] = {
	[FUSE_LOOKUP] = handle_lookup,
	[FUSE_GETATTR] = handle_getattr,
	[FUSE_SETATTR] = handle_setattr,
	[FUSE_READLINK] = handle_readlink,
	[FUSE_SYMLINK] = handle_symlink,
	[FUSE_MKNOD] = handle_mknod,
	[FUSE_MKDIR] = handle_mkdir,
	[FUSE_UNLINK] = handle_unlink,
	[FUSE_RMDIR] = handle_rmdir,
	[FUSE_RENAME] = handle_rename,
	[FUSE_LINK] = handle_link,
	[FUSE_OPEN] = handle_open,
	[FUSE_READ] = handle_read,
	[FUSE_WRITE] = handle_write,
	[FUSE_STATFS] = handle_statfs,
	[FUSE_RELEASE] = handle_release,
	[FUSE_FSYNC] = handle_fsync,
	[FUSE_SETXATTR] = handle_setxattr,
	[FUSE_GETXATTR] = handle_getxattr,
	[FUSE_LISTXATTR] = handle_listxattr,
	[FUSE_REMOVEXATTR] = handle_removexattr,
	[FUSE_FLUSH] = handle_flush,
	[FUSE_INIT] = handle_init,
	[FUSE_OPENDIR] = handle_opendir,
	[FUSE_READDIR] = handle_readdir,
	[FUSE_RELEASEDIR] = handle_releasedir,
	[FUSE_FSYNCDIR] = handle_fsyncdir,
	[FUSE_GETLK] = handle_getlk,
	[FUSE_SETLK] = handle_setlk,
	[FUSE_SETLKW] = handle_setlkw,
	[FUSE_CREATE] = handle_create,
	[FUSE_DESTROY] = handle_destroy,
	[FUSE_IOCTL] = handle_ioctl,
	[FUSE_FALLOCATE] = handle_fallocate,
	[FUSE_READDIRPLUS] = handle_readdirplus,
	[FUSE_RENAME2] = handle_rename,
	[FUSE_LSEEK] = handle_lseek,
	[FUSE_COPY_FILE_RANGE] = handle_copy,
	[FUSE_SYNCFS] = handle_syncfs,
	[FUSE_TMPFILE] = handle_tmpfile,
	[FUSE_STATX] = handle_statx,
	[FUSE_COPY_FILE_RANGE_64] = handle_copy,
};

/* The kernel's own limit for names is larger than POSIX's NAME_MAX, which is ours.
 * (The second string of a SYMLINK is a path.) */
static bool names_fit(const struct fuse_request *q)
{
	bool second_is_name = q->opcode == FUSE_RENAME || q->opcode == FUSE_RENAME2;

	return !(q->name && strnlen(q->name, NAME_MAX + 1) > NAME_MAX) &&
	       !(q->second && second_is_name && strnlen(q->second, NAME_MAX + 1) > NAME_MAX);
}

/* The kernel found the name a moment ago.  If it is another file's by now, which another mount has put in its place, ESTALE
 * makes it look again; ENOENT would say that there never was such a name. */
static bool is_about_inode(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_GETATTR:
	case FUSE_SETATTR:
	case FUSE_OPEN:
	case FUSE_OPENDIR:
	case FUSE_READLINK:
	case FUSE_STATX: return true;
	default: return false;
	}
}

bool session_accept(const struct fuse_request *q, int decoded, struct reply *r)
{
	if (decoded) {
		log_warn("fuse: a request (%s) was refused: %s", fuse_opcode_name(q->opcode), strerror(-decoded));
		reply_error(r, decoded == -ENOSYS ? decoded : -EIO);
		return false;
	}
	log_debug("fuse: %s of node %llu%s%s, by process %u", fuse_opcode_name(q->opcode), (unsigned long long)q->node,
		  q->name ? " " : "", q->name ? q->name : "", q->pid);
	return true;
}

void session_interrupt_note(struct session *s, uint64_t unique)
{
	atomic_store(&s->early.unique[atomic_fetch_add(&s->early.count, 1) % EARLY_SLOTS], unique);
}

bool session_interrupt_noted(const struct session *s, uint64_t unique)
{
	if (!atomic_load(&s->early.count))
		return false;
	for (unsigned i = 0; i < EARLY_SLOTS; i++) {
		if (atomic_load_explicit(&s->early.unique[i], memory_order_relaxed) == unique)
			return true;
	}
	return false;
}

void session_handle(struct session *s, struct fuse_request *q, struct reply *r)
{
	handler *h = q->opcode < sizeof(handlers) / sizeof(handlers[0]) ? handlers[q->opcode] : NULL;
	int error;

	if (fuse_opcode_is_silent(q->opcode))
		return;
	if (!h)
		h = handle_never;
	rpc_work_begin();
	r->begun = bare_begin(&s->bare);
	r->leave = given_begin(&s->given);
	/* In this order: handle.h. */
	handles_hold(q);
	if (fuse_request_is_harmless(q))
		r->interrupts_allow(r, q->pid);
	error = names_fit(q) ? h(s, q, r) : -ENAMETOOLONG;
	if (error) {
		r->ends = true;
		reply_error(r, error == -ENOENT && is_about_inode(q->opcode) ? -ESTALE : error);
	}
	handles_drop(q);
}
