#include "cli/mountwords.h"
#include <string.h>
#include <strings.h>
#include <sys/mount.h>

bool mount_word_is_ignored(const char *name)
{
	static const char *const names[] = {
		"defaults",
		"auto",
		"noauto",
		"user",
		"nouser",
		"users",
		"owner",
		"group",
		"nofail",
		"_netdev",
		"async",
		"norelatime",
		"nostrictatime",
		"lazytime",
		"nolazytime",
		"mand",
		"nomand",
		"loud",
		"silent",
		"iversion",
		"noiversion",
		"default_permissions",
		"nonempty",
		"comment",
		"fsname",
		"subtype",
		"helper",
		"uhelper",
		"noquota",
		/* What the kernel lists of a mount, and mount(8) names again for a remount. */
		"user_id",
		"group_id",
		"max_read",
		"blksize",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(names[i], name))
			return true;
	}
	return !strncasecmp(name, "x-", 2);
}

bool mount_flags_add(struct mount_flags *f, const char *name)
{
	static const struct {
		const char *name;
		unsigned long set, clear;
	} switches[] = {
		{ "rw", 0, MS_RDONLY },
		{ "ro", MS_RDONLY, 0 },
		{ "suid", 0, MS_NOSUID },
		{ "nosuid", MS_NOSUID, 0 },
		{ "dev", 0, MS_NODEV },
		{ "nodev", MS_NODEV, 0 },
		{ "exec", 0, MS_NOEXEC },
		{ "noexec", MS_NOEXEC, 0 },
		{ "diratime", 0, MS_NODIRATIME },
		{ "nodiratime", MS_NODIRATIME, 0 },
		{ "atime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME },
		{ "noatime", MS_NOATIME, MS_RELATIME | MS_STRICTATIME },
		{ "relatime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME },
		{ "strictatime", MS_STRICTATIME, MS_NOATIME | MS_RELATIME },
	};

	for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
		if (!strcmp(switches[i].name, name)) {
			f->set = (f->set & ~switches[i].clear) | switches[i].set;
			f->clear = (f->clear & ~switches[i].set) | switches[i].clear;
			return true;
		}
	}
	return false;
}
