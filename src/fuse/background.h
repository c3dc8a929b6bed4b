/* Going to the background, but not before it is clear that all is well: the command
 * ends when the mount is up, or fails with what went wrong.
 *
 *	switch (background_begin(&b, why, sizeof(why))) {
 *	case BACKGROUND_PARENT: return 0;            the mount is up
 *	case BACKGROUND_CHILD: ... mount, then background_up(&b, log) or background_failed(&b, text)
 *	default: say `why`
 *	}
 *
 * Before the process has threads. */
#pragma once
#include <stddef.h>

struct background {
	int report;
};

enum { BACKGROUND_CHILD = 1, BACKGROUND_PARENT = 2 };

/* Forks.  In the child: BACKGROUND_CHILD at once.  In the parent: waits, then
 * BACKGROUND_PARENT, or -errno and the child's text. */
int background_begin(struct background *b, char *why, size_t why_size);

/* In the child.  Lets the parent go, leaves the terminal; from now on the log goes to the
 * file (NULL, or one that cannot be written: nowhere). */
int background_up(struct background *b, const char *log_path);
void background_failed(struct background *b, const char *text);
