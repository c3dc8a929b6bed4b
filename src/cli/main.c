/* The program: which verbs there are. */
#include <malloc.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "cli/verbs.h"

static const struct verb verbs[] = {
	{ "serve", "run a server", verb_serve },
	{ "mount", "mount a volume on a directory", verb_mount },
	{ "umount", "unmount a volume", verb_umount },
	{ "volume", "create, list, show, change and delete volumes", verb_volume },
	{ "trash", "list and restore what was deleted, or free its space", verb_trash },
	{ "writeback", "list data of mounts that is not uploaded yet, or give it up", verb_writeback },
	{ "status", "show the server and who has mounted what, or a mount", verb_status },
	{ "warm", "fill a mount's cache before a job reads", verb_warm },
	{ "prefetch", "tell a mount in which order a job will read", verb_prefetch },
	{ "fsck", "prove that metadata and objects agree", verb_fsck },
	{ "gc", "free the space of objects nobody needs", verb_gc },
	{ "scrub", "read every stored byte back and check it", verb_scrub },
	{ 0 },
};

static const struct verb_group program = {
	.name = "epochfs",
	.summary = "a distributed POSIX file system for AI training clusters",
	.description =
		"One program is both the server and the mount.  A server keeps volumes; a volume is a file system of its "
		"own, mounted by as many machines as need it.\n"
		"\n"
		"All verbs but serve talk to a server.  Its address is taken from --server, else from the environment "
		"variable EPOCHFS_SERVER, else it is unix:/var/lib/epochfs/epochfs.sock.\n"
		"\n"
		"The exit code is 0 if all went well, 1 if something failed or was found damaged, 2 if the command line "
		"was wrong.  epochfs --version prints the version.\n"
		"\n"
		"With --json results are JSON on standard output, and errors are JSON on standard error, one object a line: "
		"{\"error\": \"cannot delete volume training: ...\"}.  Where the output cannot be written, because the disk "
		"is full for instance, the exit code is 1.",
	.examples = "epochfs serve --data /var/lib/epochfs\n"
		    "Run a server that keeps everything in one directory.\n"
		    "epochfs volume create training\n"
		    "Make a volume.\n"
		    "epochfs mount training /mnt\n"
		    "Mount it.\n"
		    "epochfs status\n"
		    "See what is going on.\n",
	.verbs = verbs,
};

/* A server and a mount take and give back buffers of many sizes on many threads.  With
 * glibc's defaults each thread's heap grows and shrinks all the time, and every page is
 * faulted in and zeroed again.  What is free at the end of a heap stays until it is this much
 * (malloc_trim gives it back of the first heap only): with 64 MiB a mount still grew after a quarter of an hour. */
static void memory_settings(void)
{
	mallopt(M_ARENA_MAX, 4);
	mallopt(M_TOP_PAD, 1 << 20);
	mallopt(M_TRIM_THRESHOLD, 16 << 20);
	mallopt(M_MMAP_THRESHOLD, 8 << 20);
}

static bool wants_json(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (!strcmp(argv[i], "--json"))
			return true;
	return false;
}

static int run(int argc, char **argv)
{
	if (argc > 0 && !strcmp(basename(argv[0]), MOUNT_HELPER)) {
		argv[0] = MOUNT_HELPER;
		return verb_mount(argc, argv);
	}
	if (argc == 2 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version"))) {
		printf("epochfs %s\n", EPOCHFS_VERSION);
		return EXIT_DONE;
	}
	return verbs_run(&program, argc, argv);
}

int main(int argc, char **argv)
{
	memory_settings();
	if (wants_json(argc, argv))
		verb_errors_as_json();
	return verb_finish(run(argc, argv));
}
