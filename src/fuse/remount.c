#include "fuse/remount.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "fuse/mountinfo.h"

#define ATIME_FLAGS (MS_NOATIME | MS_RELATIME)

/* False: it is not there, or something else is mounted over it. */
static bool flags_read(const struct remount *r, unsigned long *out)
{
	struct mountinfo info;

	if (mountinfo_find(r->point->path, &info) || info.device != r->point->device)
		return false;
	*out = info.flags;
	return true;
}

static enum mountpoint_atime atime_of(unsigned long flags)
{
	return flags & MS_NOATIME ? ATIME_NEVER : flags & MS_RELATIME ? ATIME_RELATIVE : ATIME_ALWAYS;
}

void remount_begin(struct remount *r, const struct mountpoint *point, struct session *session)
{
	*r = (struct remount){ .point = point, .session = session, .only_reads = atomic_load(&session->read_only) };
	pthread_mutex_init(&r->lock, NULL);
	r->watch = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	if (r->watch >= 0 && flags_read(r, &r->flags))
		return;
	log_warn("%s: changes by mount -o remount are not noticed: %s", point->path,
		 r->watch < 0 ? strerror(errno) : "it is not in the list of what is mounted");
	if (r->watch >= 0)
		close(r->watch);
	r->watch = -1;
}

void remount_end(struct remount *r)
{
	if (r->watch >= 0)
		close(r->watch);
	r->watch = -1;
	pthread_mutex_destroy(&r->lock);
}

void remount_look(struct remount *r)
{
	static const char *const atimes[] = { "noatime", "relatime", "strictatime" };
	struct session *s = r->session;
	unsigned long flags, changed;
	LOCKED(&r->lock);

	if (r->watch < 0 || !flags_read(r, &flags))
		return;
	changed = flags ^ r->flags;
	r->flags = flags;
	if (changed & ATIME_FLAGS)
		atomic_store(&s->atime, atime_of(flags));
	if (changed & MS_NODIRATIME)
		atomic_store(&s->nodiratime, (flags & MS_NODIRATIME) != 0);
	if (changed & MS_RDONLY)
		atomic_store(&s->read_only, r->only_reads || (flags & MS_RDONLY));
	if (changed & (ATIME_FLAGS | MS_NODIRATIME | MS_RDONLY))
		log_info("%s was remounted: %s, %s%s", r->point->path, flags & MS_RDONLY ? "ro" : "rw",
			 atimes[atomic_load(&s->atime)], flags & MS_NODIRATIME ? ", nodiratime" : "");
}
