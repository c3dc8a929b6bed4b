#include "cli/remount.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "cli/reach.h"
#include "cli/verbs.h"
#include "fuse/describe.h"
#include "fuse/mountinfo.h"
#include "fuse/mountpoint.h"

#define ASK_S 10
#define ATIME_FLAGS ((unsigned long)(MS_NOATIME | MS_RELATIME | MS_STRICTATIME))

struct live {
	struct mountpoint point;
	/* The mount itself.  Its path is not used once this is open: the user whose mount it is may put a link in its place, and what
	 * is asked of the kernel would be done to another mount. */
	int fd;
	char place[40]; /* what is open, as a path */
	struct mountinfo info;
	struct reach mount;
	json_t *status;
};

static void live_end(struct live *l)
{
	json_decref(l->status);
	reach_close(&l->mount);
	if (l->fd >= 0)
		close(l->fd);
}
#define CLEANUP_LIVE __attribute__((cleanup(live_end)))

static int live_find(struct live *l, const struct mount_options *o)
{
	char why[1000];

	if (mountpoint_resolve(o->directory, &l->point, why, sizeof(why)) || mountpoint_follow(&l->point, why, sizeof(why)))
		return verb_fail("cannot remount %s: %s", o->directory, why);
	l->fd = open(l->point.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (l->fd < 0)
		return verb_fail("cannot remount %s: %s", l->point.path, strerror(errno));
	snprintf(l->place, sizeof(l->place), "/proc/self/fd/%d", l->fd);
	if (mountinfo_find_open(l->fd, &l->info) || strcmp(l->info.point, l->point.path) != 0 ||
	    strcmp(l->info.type, MOUNT_TYPE) != 0)
		return verb_fail("cannot remount %s: no volume is mounted there", l->point.path);
	if (strcmp(l->info.source, o->client.volume) != 0)
		return verb_fail("cannot remount %s: it is the volume %s, not %s", l->point.path, l->info.source,
				 o->client.volume);
	if (geteuid())
		return verb_fail("cannot remount %s: only root can", l->point.path);
	return 0;
}

/* The mount takes over what has changed before it answers. */
static int live_ask(struct live *l, bool done)
{
	const char *before = done ? "" : "cannot remount ",
		   *after = done ? " was remounted, but does not say that it has seen it" : "";

	json_decref(l->status);
	l->status = NULL;
	reach_close(&l->mount);
	if (!reach_open_mount(&l->mount, &l->info, ASK_S))
		l->status = reach_ask(&l->mount, json_pack("{s:s}", "op", "status"));
	if (!l->status)
		return verb_fail("%s%s%s: %s", before, l->point.path, after, l->mount.why);
	if (!json_object_get(l->status, "only_reads"))
		return verb_fail("cannot remount %s: it was mounted by an earlier release; unmount it and mount it again",
				 l->point.path);
	return 0;
}

static bool is_set(const struct live *l, const char *name) { return json_is_true(json_object_get(l->status, name)); }

static const char *text(const struct live *l, const char *name)
{
	const char *value = json_string_value(json_object_get(l->status, name));

	return value ? value : "";
}

/* Whether one option, as text, is among those of the mount. */
static bool has_option(const char *options, const char *one, size_t length)
{
	for (const char *at = options; (at = memmem(at, strlen(at), one, length)); at++) {
		if ((at == options || at[-1] == ' ') && (!at[length] || at[length] == ' '))
			return true;
	}
	return false;
}

/* The length of the first of options as they are described: up to the next one. */
static size_t option_length(const char *options)
{
	const char *next = strstr(options, " -");

	return next ? (size_t)(next - options) : strlen(options);
}

/* Options that could only be given when it was mounted. */
static int others_refuse(const struct live *l, const struct mount_options *o, const struct remount_request *r)
{
	struct mount_options named = *o;
	CLEANUP_BUF struct buf described = { 0 };
	size_t length;

	named.flags = (struct mountpoint_flags){ .others = o->flags.others };
	if (named.flags.others == OTHERS_ALLOWED && l->info.others)
		named.flags.others = OTHERS_WHERE_PERMITTED; /* the kernel lists it */
	mount_options_describe(&named, &described);
	if (described.failed)
		return verb_fail("cannot remount %s: out of memory", l->point.path);
	for (const char *at = (const char *)described.data; *at; at += length + (at[length] == ' ')) {
		length = option_length(at);
		if (!has_option(text(l, "options"), at, length))
			return verb_fail(
				"cannot remount %s with %.*s: that cannot be changed while it is mounted; unmount it and "
				"mount it again",
				l->point.path, (int)length, at);
	}
	if (r->servers && strcmp(r->servers, text(l, "servers")) != 0)
		return verb_fail("cannot remount %s: its server is %s; to change that unmount it and mount it again",
				 l->point.path, text(l, "servers"));
	return 0;
}

/* 0, or -errno.  As epochfs umount: what was written through mappings, and then all at the server.  A user's mount may not let
 * root in; it stores by itself within a second. */
static int store(const struct live *l)
{
	CLEANUP_FD int fd = open(l->place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 && errno == EACCES)
		return 0;
	return fd < 0 || syncfs(fd) || fsync(fd) ? -errno : 0;
}

static unsigned long flags_wanted(const struct live *l, const struct remount_request *r)
{
	unsigned long atime = l->info.flags & ATIME_FLAGS, rest = r->complete ? 0 : l->info.flags & ~ATIME_FLAGS;

	/* The kernel lists none of them where it is strictatime, and takes none of them for relatime. */
	if (!atime)
		atime = MS_STRICTATIME;
	if (r->flags.set & ATIME_FLAGS)
		atime = 0;
	return atime | (rest & ~r->flags.clear) | r->flags.set;
}

static int change(const struct live *l, const struct remount_request *r)
{
	unsigned long flags = flags_wanted(l, r);

	if (!mount(l->info.source, l->place, NULL, MS_REMOUNT | flags, NULL))
		return 0;
	if (errno == EBUSY && (flags & MS_RDONLY)) {
		verb_fail("cannot make %s read-only: files are open for writing, or deleted and still open; close them "
			  "(fuser -vm %s shows who uses it)",
			  l->point.path, l->point.path);
		return r->failed;
	}
	verb_fail("cannot remount %s: %s", l->point.path, strerror(errno));
	return r->failed;
}

static int remount_live(struct live *l, const struct remount_request *r)
{
	/* Also where it is read-only already: that may have been done without storing anything. */
	bool to_ro = (r->flags.set & MS_RDONLY) && !is_set(l, "only_reads"), was_ro = is_set(l, "read_only");
	int error;

	if ((r->flags.clear & MS_RDONLY) && is_set(l, "only_reads"))
		return verb_fail(
			"cannot make %s writable: it was mounted with --ro or --replica, and has told its server and the "
			"kernel so; unmount it and mount it again",
			l->point.path);
	error = to_ro ? store(l) : 0;
	if (error)
		return verb_fail("cannot make %s read-only: what was written to it could not be stored: %s; it stays %s",
				 l->point.path, strerror(-error), was_ro ? "as it is, read-only" : "as it is");
	error = change(l, r);
	if (error)
		return error;
	error = to_ro ? store(l) : 0;
	if (error)
		return verb_fail("%s is read-only, but what was written to it last could not be stored: %s", l->point.path,
				 strerror(-error));
	return live_ask(l, true);
}

int remount(const struct mount_options *options, const struct remount_request *request)
{
	CLEANUP_LIVE struct live l = { .fd = -1, .mount = { .fd = -1 } };

	if (live_find(&l, options) || live_ask(&l, false) || others_refuse(&l, options, request) || remount_live(&l, request))
		return request->failed;
	return EXIT_DONE;
}
