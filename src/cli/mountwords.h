/* Words of mount(8), as in the list after -o and in fstab, that are no options of ours. */
#pragma once
#include <stdbool.h>

/* For mount(8) itself, for systemd, always so, or said by the kernel. */
bool mount_word_is_ignored(const char *name);

/* Flags of mount(2), MS_RDONLY and so on, to be set and taken away.  No flag is in both. */
struct mount_flags {
	unsigned long set, clear;
};

/* The last word counts: of "ro,rw" rw is left, of "noatime,relatime" relatime.  False: it is none of those. */
bool mount_flags_add(struct mount_flags *f, const char *name);
