#pragma once

#include <stdio.h>
#include <stdlib.h>

/* What mkdtemp() and mkstemp() take: a template in $TMPDIR, else in /tmp. */
static inline void temporary_template(char *out, size_t size, const char *name)
{
	const char *folder = getenv("TMPDIR");

	snprintf(out, size, "%s/epochfs-%s-XXXXXX", folder && folder[0] == '/' ? folder : "/tmp", name);
}
