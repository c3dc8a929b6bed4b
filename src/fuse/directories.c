/* Directories: OPENDIR, READDIR, READDIRPLUS.
 *
 * A directory handle holds nothing: the offset in a READDIR is the cookie of the last
 * entry seen, so a listing can be taken up by anybody at any time.  Offsets 1 and 2
 * are those of "." and "..", which the listing itself does not have.  (A cookie of 1 or
 * 2 would need a name whose hash has 59 leading zeroes.)
 *
 * Listings are not cached by the kernel (no FOPEN_CACHE_DIR, and no ENOSYS for OPENDIR,
 * which implies it): with FUSE_EXPLICIT_INVAL_DATA the kernel checks such a cache only
 * against the mtime it happens to know, so that names made through another mount would
 * stay unseen, and a cached listing brings no attributes for the names in it. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "fuse/handlers.h"
#include "meta/listing.h"

#define OFFSET_DOT 1
#define OFFSET_DOTDOT 2

/* More than any caller's buffer of today, less than what would hurt. */
#define READDIR_MAX (1u << 20)

struct dirents {
	uint8_t *data;
	size_t used, size;
	bool plus;
};

int handle_opendir(struct session *s, const struct fuse_request *q, struct reply *r)
{
	struct fuse_open_out out = { 0 };

	reply_data(r, &out, sizeof(out));
	return 0;
}

int handle_releasedir(struct session *s, const struct fuse_request *q, struct reply *r)
{
	reply_error(r, 0);
	return 0;
}

int handle_fsyncdir(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int error = client_fsync_all(s->client);

	if (!error)
		reply_error(r, 0);
	return error;
}

/* Adds an entry unless there is no room for it.  `entry` NULL: without attributes, which
 * the kernel then asks for when it needs them. */
static bool dirents_add(struct dirents *d, uint64_t inode, uint64_t offset, uint8_t type, const char *name, size_t length,
			const struct fuse_entry_out *entry)
{
	size_t head = d->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
	size_t whole = FUSE_REC_ALIGN(head + length);
	struct fuse_dirent dirent = { .ino = inode, .off = offset, .namelen = (uint32_t)length, .type = type };
	uint8_t *p = d->data + d->used;

	if (whole > d->size - d->used)
		return false;
	if (d->plus) {
		if (entry)
			memcpy(p, entry, sizeof(*entry));
		else
			memset(p, 0, sizeof(*entry));
		p += sizeof(*entry);
	}
	memcpy(p, &dirent, FUSE_NAME_OFFSET);
	memcpy(p + FUSE_NAME_OFFSET, name, length);
	memset(d->data + d->used + head + length, 0, whole - head - length);
	d->used += whole;
	return true;
}

static int dots_add(struct session *s, uint64_t inode, uint64_t offset, struct dirents *d)
{
	struct entry e;
	uint64_t parent;
	int error = client_getattr(s->client, inode, &e);

	if (error)
		return error;
	if (atime_due(s, &e.attr))
		atime_update(s, inode);
	parent = inode == s->root || !e.attr.parent ? inode : e.attr.parent;
	if (offset < OFFSET_DOT)
		dirents_add(d, inode, OFFSET_DOT, DT_DIR, ".", 1, NULL);
	dirents_add(d, parent, OFFSET_DOTDOT, DT_DIR, "..", 2, NULL);
	return 0;
}

/* Adds what fits of a packed listing. */
static int listing_add(struct session *s, const struct buf *listing, struct given_leave leave, uint64_t begun, struct dirents *d)
{
	struct reader in = reader_of(listing->data, listing->len);
	struct listing_entry l;
	int more;

	while ((more = listing_next(&in, &l)) > 0) {
		struct fuse_entry_out out;

		if (d->plus && l.has_attr) {
			struct entry e = { .attr = l.attr, .valid_ms = leave.attr_ms };
			bool dual;
			uint64_t node = session_node(s, l.inode, &dual);
			struct given_leave its = given_of(&s->given, leave, &l.attr);

			if (dual)
				its.attr_ms = 0;
			bare_learn(&s->bare, begun, &e);
			entry_fill(&out, node, &l.attr, its);
			if (its.attr_ms)
				given_note(&s->given, node);
		}
		if (!dirents_add(d, l.inode, l.cookie, l.type, l.name, l.name_length, l.has_attr ? &out : NULL))
			return 0;
	}
	return more;
}

/* How much to ask for so that the answer about fills the kernel's buffer: an entry is
 * some 30 bytes longer there than packed. */
static uint32_t listing_wanted(const struct dirents *d)
{
	size_t room = d->size - d->used;

	return (uint32_t)(room * 4 / 5);
}

static int directory_read(struct session *s, const struct fuse_request *q, struct reply *r, bool plus)
{
	uint64_t inode = session_inode(s, q->node), offset = q->in.read.offset, cookie = offset > OFFSET_DOTDOT ? offset : 0;
	CLEANUP_BUF struct buf listing = { 0 };
	CLEANUP_FREE uint8_t *data = NULL;
	struct dirents d = { .size = q->in.read.size < READDIR_MAX ? q->in.read.size : READDIR_MAX, .plus = plus };
	uint32_t valid_ms = 0;
	bool end = false;
	int error = 0;

	d.data = data = malloc(d.size ? d.size : 1);
	if (!data)
		return -ENOMEM;
	if (offset < OFFSET_DOTDOT)
		error = dots_add(s, inode, offset, &d);
	if (!error)
		error = client_readdir(s->client, inode, cookie, listing_wanted(&d), plus, &listing, &end, &valid_ms);
	if (error)
		return error;
	error = listing_add(s, &listing, given_enter(&s->given, r->leave, valid_ms), r->begun, &d);
	/* An empty answer means the end to the kernel: it must not be given before. */
	if (!error && !d.used && !(end && !listing.len))
		error = listing.len ? -EINVAL : -EIO;
	if (!error)
		reply_data(r, d.data, d.used);
	given_leave(&s->given);
	return error;
}

int handle_readdir(struct session *s, const struct fuse_request *q, struct reply *r) { return directory_read(s, q, r, false); }

int handle_readdirplus(struct session *s, const struct fuse_request *q, struct reply *r) { return directory_read(s, q, r, true); }
