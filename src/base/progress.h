/* A progress bar on standard error for work that lasts over two seconds, only
 * where standard error is a terminal:
 *
 *   fsck  objects  [=========>          ]  47 %  1,234 / 2,600  ETA 0:12
 *
 * One thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct progress;
struct progress *progress_new(const char *title); /* NULL is fine to pass on */
void progress_show(struct progress *p, const char *phase, uint64_t done, uint64_t all);
void progress_note(struct progress *p, const char *note); /* stands at the end of the line from now on: "340 MiB/s" */
void progress_end(struct progress *p);                    /* clears the line and frees */

/* The line itself, without the terminal: `all` 0 means unknown. */
char *progress_line(char *out, size_t size, const char *title, const char *phase, uint64_t done, uint64_t all,
		    int64_t elapsed_ns);
