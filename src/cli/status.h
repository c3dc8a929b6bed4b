/* The two faces of `epochfs status`: the server, and, with a directory, a mount. */
#pragma once
#include <stdbool.h>

int status_of_mount(const char *path, bool json); /* the exit code */
