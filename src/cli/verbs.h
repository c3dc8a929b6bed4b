/* The verbs of the command line: one verb, one file.
 *
 * A verb gets the arguments from its own name on (argv[0] is "mount", argv[1] its
 * first argument), parses them with options.h, prints results on standard output
 * and errors on standard error, and returns the exit code: 0 done, 1 failed, 2
 * wrong usage.
 *
 * Called as mount.fuse.epochfs (the helper of mount(8)), main runs verb_mount with
 * argv[0] being that name. */
#pragma once
#include <stdarg.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define MOUNT_HELPER "mount.fuse.epochfs"

int verb_fsck(int argc, char **argv);
int verb_gc(int argc, char **argv);
int verb_mount(int argc, char **argv);
int verb_prefetch(int argc, char **argv);
int verb_scrub(int argc, char **argv);
int verb_serve(int argc, char **argv);
int verb_status(int argc, char **argv);
int verb_trash(int argc, char **argv);
int verb_umount(int argc, char **argv);
int verb_volume(int argc, char **argv);
int verb_warm(int argc, char **argv);
int verb_writeback(int argc, char **argv);

struct verb {
	const char *name;
	const char *summary; /* half a sentence, lower case, no full stop */
	int (*run)(int argc, char **argv);
};

/* A verb with verbs of its own ("volume create"), and the program itself. */
struct verb_group {
	const char *name; /* "epochfs", "epochfs volume" */
	const char *summary;
	const char *description;  /* paragraphs, or NULL */
	const char *examples;     /* as in struct options, or NULL */
	const struct verb *verbs; /* the last one has no name */
};

/* Runs the verb named by argv[1], or prints help; the exit code. */
int verbs_run(const struct verb_group *group, int argc, char **argv);

/* With --json errors are JSON, too: to be called once, before any is told. */
void verb_errors_as_json(void);
/* "epochfs: TEXT" on standard error, or {"error": "TEXT"}. */
void verb_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void verb_complain_list(const char *format, va_list args);

/* Writes out what was printed.  The exit code: EXIT_FAILED, which is told, if that failed and nothing else had. */
int verb_finish(int code);

/* The same as verb_complain; returns EXIT_FAILED.  TEXT reads `cannot
 * delete training: it is mounted; unmount it first`. */
int verb_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
