/* Who else has a mount, once it is not mounted here any more: a container, or whatever else has a mount namespace of its own, keeps
 * the copy it got when it was made.  One thread. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

#define HOLDERS_TEXT 1024

/* "process 4711 (sleep) has it on /mnt/training, in a mount namespace of its own (a container)": the places where what has this
 * device number is mounted, a few of them in full.  Looks at those that the user may look at; how many it has found. */
size_t holders_find(dev_t device, char out[HOLDERS_TEXT]);
