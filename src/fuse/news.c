#include "fuse/news.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/protocol.h"
#include "fuse/session.h"

/* Nothing is passed through on a replica, so an inode has one node (modes.h). */
static uint64_t node_of(const struct session *s, uint64_t inode) { return inode == s->root ? FUSE_ROOT_ID : inode; }

static void name_forget(struct session *s, uint64_t directory, const char *name, size_t length)
{
	struct fuse_notify_inval_entry_out out = { .parent = node_of(s, directory), .namelen = (uint32_t)length };
	char message[sizeof(out) + NAME_MAX + 1];
	int r;

	if (length > NAME_MAX)
		return;
	memcpy(message, &out, sizeof(out));
	memcpy(message + sizeof(out), name, length);
	message[sizeof(out) + length] = 0;
	r = given_notify(s->device, FUSE_NOTIFY_INVAL_ENTRY, message, sizeof(out) + length + 1);
	/* ENOTEMPTY: a directory with something mounted below: the kernel looks again by itself */
	if (r < 0 && r != -ENOENT && r != -ENODEV && r != -ENOTDIR && r != -ENOTEMPTY)
		log_warn("fuse: the kernel does not forget %s in inode %llu: %s", name, (unsigned long long)directory,
			 strerror(-r));
}

/* Until no name of the directory is being taken in. */
static void directory_pass(struct session *s, uint64_t directory) { name_forget(s, directory, "/", 1); }

/* False: it has no such inode. */
static bool inode_forget(struct session *s, const struct client_news *n)
{
	/* From 0 to the end, or (-1) attributes alone. */
	struct fuse_notify_inval_inode_out out = { .ino = node_of(s, n->inode), .off = n->content ? 0 : -1 };
	int r = given_notify(s->device, FUSE_NOTIFY_INVAL_INODE, &out, sizeof(out));

	if (r < 0 && r != -ENOENT && r != -ENODEV)
		log_warn("fuse: the kernel does not forget inode %llu: %s", (unsigned long long)n->inode, strerror(-r));
	return r != -ENOENT;
}

void news_tell(struct session *s, const struct client_news *news, size_t count)
{
	CLEANUP_BUF struct buf missing = { 0 };
	uint64_t passed = 0;

	bare_change_begin(&s->bare);
	bare_change_end(&s->bare);
	given_pass(&s->given);
	for (size_t i = 0; i < count; i++) {
		if (news[i].name_length)
			name_forget(s, news[i].inode, news[i].name, news[i].name_length);
		else if (!inode_forget(s, &news[i]) && given_was(&s->given, node_of(s, news[i].inode)))
			buf_append(&missing, &i, sizeof(i));
	}
	for (size_t k = 0; k < missing.len / sizeof(size_t); k++) {
		const struct client_news *n = &news[((const size_t *)missing.data)[k]];

		if (n->cover != passed)
			directory_pass(s, n->cover);
		passed = n->cover;
		inode_forget(s, n);
	}
	if (missing.failed)
		log_error("fuse: no memory to make the kernel forget; it may show old attributes until they run out");
}
