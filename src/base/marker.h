/* Files that tell what a folder is.
 *
 * One is believed only if nobody but root and the owner of the folder can have put it there: in /tmp anybody could, and would decide
 * what others may do below it. */
#pragma once
#include <stdbool.h>

/* Whether the file is in the folder (a descriptor, O_PATH will do), is believed, and begins with `text`; NULL: with whatever. */
bool marker_is_there(int folder, const char *name, const char *text);
