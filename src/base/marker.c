#include "base/marker.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"

#define TEXT_MAX 64

/* What is no regular file is not opened for reading: that alone may do something, or last. */
static bool is_believed(int folder, int file)
{
	struct stat above, st;

	return fstat(folder, &above) == 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode) && !(above.st_mode & S_IWOTH) &&
	       (st.st_uid == 0 || st.st_uid == above.st_uid);
}

static bool begins_with(int folder, const char *name, const char *text)
{
	CLEANUP_FD int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char found[TEXT_MAX];
	size_t length = strlen(text);

	return fd >= 0 && length <= sizeof(found) && pread(fd, found, length, 0) == (ssize_t)length &&
	       memcmp(found, text, length) == 0;
}

bool marker_is_there(int folder, const char *name, const char *text)
{
	CLEANUP_FD int file = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	return file >= 0 && is_believed(folder, file) && (!text || begins_with(folder, name, text));
}
