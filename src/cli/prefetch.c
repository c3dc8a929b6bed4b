/* epochfs prefetch: tells a mount the order in which a job will read, and holds the order until the job ends.
 *
 * A thread reads the list, looks each file up and tells it to the mount, which takes no more than it needs at a time.  The main
 * thread waits for the end: of the command, of the process, of the order, or a signal.  The order is that of the
 * connection: whatever ends this process ends it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/list.h"
#include "cli/options.h"
#include "cli/reach.h"
#include "cli/verbs.h"

#define WINDOW_DEFAULT (256ull << 20)
#define WINDOW_MIN (1ull << 20)
#define WINDOW_MAX (1ull << 50)
#define AHEAD_DEFAULT 4096
#define AHEAD_MAX 1000000
#define BATCH 256
#define NAMED_MAX 5
#define LOOK_MS 500 /* whether all of it was read */

struct prefetch {
	const char *folder, *order_path;
	uint64_t window, ahead, pid;
	bool zeroes, quiet;
	char **command; /* NULL: none */

	struct list list;
	struct reach mount;
	int folder_fd;

	_Atomic bool told; /* all of it, or as far as that went */
	_Atomic bool read; /* all of it was */
	atomic_bool stop;
	uint64_t missing;
	json_t *progress; /* the last one */
	char trouble[PATH_MAX + 600];
};

/* ---- Telling ---- */

static void missing_note(struct prefetch *p, const char *path, const char *why)
{
	char shown[4096];

	if (p->missing++ >= NAMED_MAX)
		return;
	text_escape(shown, sizeof(shown), path, strlen(path));
	verb_complain("%s of the order is left out: %s", shown, why);
}

/* Up to BATCH of them; how many. */
static int batch_read(struct prefetch *p, struct stat *out)
{
	char *path;
	int n = 0;

	while (n < BATCH && !atomic_load(&p->stop) && (path = list_next(&p->list))) {
		struct stat *st = &out[n];

		if (fstatat(p->folder_fd, path, st, 0) < 0)
			missing_note(p, path, strerror(errno));
		else if (st->st_dev != p->mount.device)
			missing_note(p, path, "it is not on the mount");
		else if (!S_ISREG(st->st_mode))
			missing_note(p, path, "it is no file");
		else
			n++;
	}
	return n;
}

/* The mount takes as many as it has room for; it is asked again for the others, which may last as long as the job. */
static bool batch_tell(struct prefetch *p, const struct stat *batch, int count)
{
	int done = 0;

	while (done < count && !atomic_load(&p->stop)) {
		json_t *files = json_array(), *answer;

		for (int i = done; i < count; i++)
			json_append(&files, json_pack("[I, I]", (json_int_t)batch[i].st_ino, (json_int_t)batch[i].st_size));
		answer = reach_ask(&p->mount, json_pack("{s:s, s:o}", "op", "next", "files", files));
		if (!answer) {
			snprintf(p->trouble, sizeof(p->trouble), "%s", p->mount.why);
			return false;
		}
		done += (int)json_integer_value(json_object_get(answer, "taken"));
		json_decref(answer);
	}
	return true;
}

/* Until all that was told was read, or was left behind. */
static void progress_follow(struct prefetch *p)
{
	struct timespec pause = { .tv_nsec = LOOK_MS * NS_PER_MS };

	while (!atomic_load(&p->stop)) {
		json_t *progress = reach_ask(&p->mount, json_pack("{s:s}", "op", "progress"));

		if (!progress) {
			snprintf(p->trouble, sizeof(p->trouble), "%s", p->mount.why);
			return;
		}
		json_decref(p->progress);
		p->progress = progress;
		if (!json_integer_value(json_object_get(progress, "waiting"))) {
			atomic_store(&p->read, true);
			return;
		}
		nanosleep(&pause, NULL);
	}
}

/* False: that was all, or the mount takes no more. */
static bool some_tell(struct prefetch *p)
{
	CLEANUP_FREE struct stat *batch = malloc(BATCH * sizeof(*batch));
	int count = batch ? batch_read(p, batch) : 0;

	return count > 0 && batch_tell(p, batch, count);
}

static void *teller_run(void *context)
{
	struct prefetch *p = context;

	while (some_tell(p))
		;
	close(p->folder_fd); /* or the volume could not be unmounted */
	if (p->missing > NAMED_MAX)
		verb_complain("%lu more of the order are left out", (unsigned long)(p->missing - NAMED_MAX));
	if (!p->trouble[0])
		progress_follow(p);
	if (p->trouble[0])
		verb_complain("the order is dropped: %s", p->trouble);
	atomic_store(&p->told, true);
	kill(getpid(), SIGCHLD); /* wakes the main thread */
	return NULL;
}

/* ---- The job ---- */

static pid_t command_start(struct prefetch *p, const sigset_t *before)
{
	char **words = p->command;
	pid_t child = fork();
	int error;

	if (child)
		return child;
	pthread_sigmask(SIG_SETMASK, before, NULL);
	if (!strcmp(p->order_path, "-")) {
		/* The list is ours. */
		int nothing = open("/dev/null", O_RDONLY);

		if (nothing >= 0)
			dup2(nothing, STDIN_FILENO);
	}
	execvp(words[0], words);
	error = errno;
	verb_complain("cannot run %s: %s", words[0], strerror(error));
	_exit(error == ENOENT ? 127 : 126);
}

static int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/* Of the command.  Signals are passed on to it; that the order is over is nothing to it. */
static int command_wait(int signals, pid_t child)
{
	struct signalfd_siginfo info;
	int status;

	for (;;) {
		if (waitpid(child, &status, WNOHANG) == child)
			return exit_code(status);
		if (read(signals, &info, sizeof(info)) != sizeof(info))
			continue;
		/* Of Ctrl-C the terminal tells everybody. */
		if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGHUP)
			kill(child, (int)info.ssi_signo);
	}
}

/* Of the process, a signal, or the order. */
static int job_wait(struct prefetch *p, int signals, int process)
{
	struct pollfd fds[] = { { signals, POLLIN, 0 }, { process, POLLIN, 0 } };

	for (;;) {
		struct signalfd_siginfo info;

		if (poll(fds, process >= 0 ? 2 : 1, -1) < 0)
			continue;
		if (process >= 0 && fds[1].revents)
			return EXIT_DONE;
		if (fds[0].revents && read(signals, &info, sizeof(info)) == sizeof(info) && info.ssi_signo != SIGCHLD)
			return EXIT_DONE;
		if (atomic_load(&p->told) && (p->trouble[0] || atomic_load(&p->read)))
			return p->trouble[0] ? EXIT_FAILED : EXIT_DONE;
	}
}

/* ---- Beginning ---- */

static int order_begin(struct prefetch *p)
{
	char a[UNITS_TEXT], b[UNITS_TEXT];
	json_t *answer;
	uint64_t window;
	int r = list_open(&p->list, p->order_path, p->zeroes);

	if (r < 0)
		return verb_fail("cannot read the order %s: %s", p->order_path, strerror(-r));
	if (reach_open(&p->mount, p->folder, 0))
		return verb_fail("cannot prefetch for %s: %s", p->folder, p->mount.why);
	p->folder_fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->folder_fd < 0)
		return verb_fail("cannot open %s: %s", p->folder, strerror(errno));
	answer = reach_ask(&p->mount, json_pack("{s:s, s:I, s:I}", "op", "order", "window", (json_int_t)p->window, "ahead",
						(json_int_t)p->ahead));
	if (!answer)
		return verb_fail("cannot prefetch for %s: %s", p->folder, p->mount.why);
	window = (uint64_t)json_integer_value(json_object_get(answer, "window_bytes"));
	if (window < p->window && !p->quiet)
		fprintf(stderr,
			"epochfs: the mount has no cache directory, so the window is %s of its memory instead of %s "
			"(see --cache-memory of epochfs mount)\n",
			size_format(a, window), size_format(b, p->window));
	json_decref(answer);
	return 0;
}

static int teller_start(struct prefetch *p)
{
	pthread_t teller;

	if (pthread_create(&teller, NULL, teller_run, p))
		return verb_fail("cannot prefetch for %s: cannot start a thread", p->folder);
	pthread_detach(teller);
	return 0;
}

static void summary(const struct prefetch *p)
{
	char a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT];

	if (p->quiet || !p->progress)
		return;
	printf("Of %s of the order %s were seen to be read; %s were made ready ahead of it.\n",
	       counted_format(a, (uint64_t)json_integer_value(json_object_get(p->progress, "files")), "file"),
	       count_format(b, (uint64_t)json_integer_value(json_object_get(p->progress, "read"))),
	       size_format(c, (uint64_t)json_integer_value(json_object_get(p->progress, "ready_bytes"))));
}

/* A command that was not run has not succeeded. */
static void interrupted_early(void *context, int number)
{
	const struct prefetch *p = context;

	if (p->command)
		verb_fail("interrupted before %s was started", p->command[0]);
	_exit(p->command ? 128 + number : EXIT_DONE);
}

static int run(struct prefetch *p)
{
	CLEANUP_INTERRUPT struct interrupt early;
	CLEANUP_FD int signals = -1, process = -1;
	sigset_t set;
	pid_t child = 0;
	int code;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	if (interrupt_begin(&early, &set, interrupted_early, p))
		return EXIT_FAILED;
	code = order_begin(p);
	if (code)
		return code;
	sigaddset(&set, SIGCHLD);
	signal(SIGCHLD, SIG_DFL); /* ignored by who started us, there would be nobody to wait for */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (p->pid) {
		process = (int)syscall(SYS_pidfd_open, (pid_t)p->pid, 0);
		if (process < 0)
			return verb_fail("there is no process %lu: %s", (unsigned long)p->pid, strerror(errno));
	}
	some_tell(p); /* before anything is read */
	interrupt_end(&early);
	if (p->command)
		child = command_start(p, &early.before);
	if (signals < 0 || child < 0)
		return verb_fail("cannot run anything: %s", strerror(errno));
	code = teller_start(p);
	if (!code || child)
		code = child ? command_wait(signals, child) : job_wait(p, signals, process);
	atomic_store(&p->stop, true);
	if (!p->command && atomic_load(&p->told))
		summary(p);
	return code;
}

int verb_prefetch(int argc, char **argv)
{
	/* Not on the stack: the thread that tells may still be waiting for the mount when the process ends. */
	static struct prefetch p = { .window = WINDOW_DEFAULT, .ahead = AHEAD_DEFAULT, .mount = { .fd = -1 }, .folder_fd = -1 };
	struct option_spec specs[] = {
		{ "order", "LIST", OPTION_TEXT, &p.order_path,
		  "The files in the order they will be read, one a line, relative to DIR; - is standard input.  A file may stand "
		  "in it "
		  "many times, once for each epoch." },
		{ "null", NULL, OPTION_FLAG, &p.zeroes, "The list's names are ended by zero bytes.", .letter = '0' },
		{ "window", "SIZE", OPTION_SIZE, &p.window,
		  "How many bytes to fetch ahead of the reader, at most.  Default: 256MiB; without a --cache-dir no more than a "
		  "quarter of "
		  "the mount's --cache-memory.",
		  .min = WINDOW_MIN, .max = WINDOW_MAX },
		{ "ahead", "N", OPTION_COUNT, &p.ahead, "How many files to fetch ahead of the reader, at most.  Default: 4,096.",
		  .min = 1, .max = AHEAD_MAX },
		{ "pid", "PID", OPTION_COUNT, &p.pid, "End when this process ends.", .min = 1, .max = 1ull << 30 },
		{ "quiet", NULL, OPTION_FLAG, &p.quiet, "Say nothing unless something goes wrong.", .letter = 'q' },
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "prefetch",
		.usage = "DIR --order LIST [OPTION...] [-- COMMAND [ARGUMENT...]]",
		.summary = "tell a mount in which order a job will read",
		.description =
			"The mount fetches the files of the order before they are read, in that order, and keeps a bounded "
			"window ahead of "
			"the reader: to its --cache-dir, or, without one, to memory.  It sees by itself how far the reader is, "
			"also if many "
			"workers read at the same time, each a part.\n"
			"\n"
			"The order lasts as long as this process: until the command ends (whose exit code is then the exit "
			"code), or the process "
			"of --pid, or all of the order was read, or it is interrupted, which is no failure.  Interrupted before "
			"the "
			"command was started, it does not start it, and the exit code is 128 and the number of the signal.  "
			"Several jobs can tell orders at a time.\n"
			"\n"
			"Files that are not there are left out, with a message.  If the mount ends, or the server is away, the "
			"job reads on as it would "
			"without an order.\n"
			"\n"
			"What was made ready, in the figures, was fetched, or was in the cache already.\n"
			"\n"
			"Only root and the user who mounted may tell a mount something.  For the job of another user its "
			"prologue "
			"does it as root, with --pid and the process id of the job.",
		.examples = "epochfs prefetch /mnt/datasets --order epoch.txt -- python3 train.py\n"
			    "Run a job that reads in this order.\n"
			    "epochfs prefetch /mnt/datasets --order - --pid $$ --window 2GiB < epoch.txt &\n"
			    "From a job script: for as long as that runs.\n"
			    "epochfs prefetch /mnt/datasets --order epoch.txt --pid $JOB_PID &\n"
			    "As root, from the prologue of a job of whichever user: for as long as that runs.\n",
		.specs = specs,
		.operands_min = 1,
		.operands_max = -1,
		.command = true,
	};
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	if (!p.order_path)
		return options_misused(&o, "--order is needed: the list of files");
	if (p.pid && o.operand_count > 1)
		return options_misused(&o, "cannot use --pid with a command");
	p.folder = o.operands[0];
	p.command = o.operand_count > 1 ? o.operands + 1 : NULL;
	return run(&p);
}
