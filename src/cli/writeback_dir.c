#include "cli/writeback_dir.h"
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "fuse/mountinfo.h"

int writeback_dir_check(const char *directory, char *why, size_t why_size)
{
	CLEANUP_FREE struct mountinfo *m = malloc(sizeof(*m));
	CLEANUP_FREE char *copy = strdup(directory);
	struct stat st;

	if (!m || !copy) {
		snprintf(why, why_size, "out of memory");
		return -ENOMEM;
	}
	if (stat(directory, &st) < 0 && (errno != ENOENT || stat(dirname(copy), &st) < 0)) {
		int error = errno;

		snprintf(why, why_size, "the write-back directory %s cannot be used: %s", directory, strerror(error));
		return -error;
	}
	/* Without the kernel's list nothing is mounted by us either. */
	if (mountinfo_find_device(st.st_dev, m) || strcmp(m->type, MOUNT_TYPE))
		return 0;
	snprintf(why, why_size,
		 "the write-back directory %s would be on %s, which is an EpochFS mount itself; name one on a local disk",
		 directory, m->point);
	return -EINVAL;
}
