/* Where a write-back directory may be: on a local disk, not on an EpochFS mount, which could need the very data it is to keep. */
#pragma once
#include <stddef.h>

/* Of a directory that is there, or is to be made.  0, or -errno and why. */
int writeback_dir_check(const char *directory, char *why, size_t why_size);
