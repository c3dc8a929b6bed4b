/* The options of a mount that differ from the defaults, as a user would write them: for `epochfs status DIR`, which shows the address
 * of the server elsewhere; --server is left out.  Any thread. */
#pragma once
#include "base/bytes.h"
#include "fuse/mount.h"

void mount_options_describe(const struct mount_options *o, struct buf *out); /* terminated; `failed` without memory */
