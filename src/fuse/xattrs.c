/* Extended attributes.  A size of 0 asks how large the value is; ERANGE tells that it
 * is larger than the room for it. */
#include <errno.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "fuse/handlers.h"
#include "fuse/mountpoint.h"

static int value_reply(const struct fuse_request *q, const void *value, int length, struct reply *r)
{
	if (length < 0)
		return length;
	if (!q->in.getxattr.size) {
		struct fuse_getxattr_out out = { .size = (uint32_t)length };

		reply_data(r, &out, sizeof(out));
		return 0;
	}
	if ((uint32_t)length > q->in.getxattr.size)
		return -ERANGE;
	reply_data(r, value, (size_t)length);
	return 0;
}

/* The process behind the mount, for `epochfs umount` to wait for.  Not listed, and asked
 * of nobody but us, so that it also works while the server is away. */
static int pid_reply(const struct fuse_request *q, struct reply *r)
{
	char text[24];
	int length = snprintf(text, sizeof(text), "%d", (int)getpid());

	return value_reply(q, text, length, r);
}

static int transport_reply(const struct session *s, const struct fuse_request *q, struct reply *r)
{
	const char *text = atomic_load(&s->ring_agreed) ? "io_uring" : "classic";

	return value_reply(q, text, (int)strlen(text), r);
}

/* Room for the value, no more than the kernel would take. */
static int room_take(const struct fuse_request *q, char **out, size_t *size)
{
	*size = q->in.getxattr.size < XATTR_SIZE_MAX ? q->in.getxattr.size : XATTR_SIZE_MAX;
	*out = malloc(*size ? *size : 1);
	return *out ? 0 : -ENOMEM;
}

/* What the server would refuse by its name alone is left to it. */
static bool namespace_is_known(const char *name)
{
	static const char *const known[] = { "user.", "trusted.", "security.", "system.posix_acl_" };

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (!strncmp(name, known[i], strlen(known[i])))
			return true;
	}
	return false;
}

int handle_getxattr(struct session *s, const struct fuse_request *q, struct reply *r)
{
	CLEANUP_FREE char *value = NULL;
	size_t size;
	int error;

	if (q->node == FUSE_ROOT_ID && !strcmp(q->name, MOUNT_PID_XATTR))
		return pid_reply(q, r);
	if (q->node == FUSE_ROOT_ID && !strcmp(q->name, MOUNT_TRANSPORT_XATTR))
		return transport_reply(s, q, r);
	if (namespace_is_known(q->name) && bare_is(&s->bare, session_inode(s, q->node)))
		return -ENODATA;
	error = room_take(q, &value, &size);
	if (error)
		return error;
	return value_reply(q, value, client_getxattr(s->client, session_inode(s, q->node), q->name, value, size), r);
}

/* Only root is shown trusted attributes, as on local file systems: the kernel leaves
 * this to us.  Returns the new length. */
static int trusted_hide(char *names, int length)
{
	int kept = 0;

	for (int at = 0; at < length;) {
		int n = (int)strnlen(names + at, (size_t)(length - at)) + 1;

		if (strncmp(names + at, "trusted.", 8) != 0) {
			memmove(names + kept, names + at, (size_t)n);
			kept += n;
		}
		at += n;
	}
	return kept;
}

int handle_listxattr(struct session *s, const struct fuse_request *q, struct reply *r)
{
	CLEANUP_FREE char *names = NULL;
	int length;

	if (bare_is(&s->bare, session_inode(s, q->node)))
		return value_reply(q, "", 0, r);
	names = malloc(XATTR_LIST_MAX);
	if (!names)
		return -ENOMEM;
	length = client_listxattr(s->client, session_inode(s, q->node), names, XATTR_LIST_MAX);
	if (length > 0 && q->uid != 0)
		length = trusted_hide(names, length);
	return value_reply(q, names, length, r);
}

int handle_setxattr(struct session *s, const struct fuse_request *q, struct reply *r)
{
	uint64_t inode = session_inode(s, q->node);
	bool kill_sgid = q->in.setxattr.setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID;
	int error;

	bare_change_begin(&s->bare);
	error = client_setxattr(s->client, inode, q->name, q->data, q->data_size, (int)q->in.setxattr.flags, kill_sgid);
	bare_change_end(&s->bare);
	if (!error)
		reply_error(r, 0);
	return error;
}

int handle_removexattr(struct session *s, const struct fuse_request *q, struct reply *r)
{
	int error = client_removexattr(s->client, session_inode(s, q->node), q->name);

	if (!error)
		reply_error(r, 0);
	return error;
}
