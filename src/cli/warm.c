/* epochfs warm: fills the cache of a mount with files, before somebody reads them.
 *
 *   paths, list --> walk --> pieces --> workers, each with a connection to the mount --> what became of them
 *
 * The tool finds the files, in the mounted tree, and names them to the mount by their inodes; the mount fetches them.  Small files go
 * by the dozen, large ones in pieces, so that all workers share one file. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/list.h"
#include "cli/options.h"
#include "cli/reach.h"
#include "cli/tally.h"
#include "cli/verbs.h"
#include "cli/walk.h"

#define JOBS_DEFAULT 4
#define JOBS_MAX 16
#define BATCH 16
#define PIECE_BYTES (64ull << 20)
#define NAMED_MAX 20 /* files that failed are named, so many */
#define LOOK_MS 100
#define CAUSES_BYTES 8192

/* A file while pieces of it are under way. */
struct file {
	char *path;
	uint64_t size, given; /* of it, to workers */
	uint64_t inode;
	int users; /* pieces, and the source while there are more to give */
	bool here, failed, lacking;
};

struct piece {
	struct file *file;
	uint64_t from, to;
};

struct totals {
	uint64_t files, bytes, fetched, damaged;
	uint64_t here_files, lacking_files, lacking_bytes, failed_files;
};

struct warm {
	struct options *options;
	struct reach mount;
	const char *list_path;
	bool pin, unpin, verify, json, quiet, zeroes;
	uint64_t jobs;
	sigset_t signals;
	int64_t began_ns;

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t over;
	struct walk *walk;
	bool walking;
	const char *first; /* the path that said which mount it is, until it is walked */
	int next_operand;
	struct list list;
	struct file *file; /* a large one that is not given out yet in full */
	struct totals totals;
	uint64_t bytes_done; /* for the progress */
	uint64_t named;
	json_t *failures;
	bool stopping; /* Ctrl-C, or there is no sense in going on */
	bool interrupted;
	char fatal[5000];          /* why */
	char causes[CAUSES_BYTES]; /* why there is no room */
	int running;
	struct worker {
		struct warm *warm;
		struct reach mount;
		pthread_t thread;
		bool started;
	} workers[JOBS_MAX];
};

/* ---- The lock is held ---- */

static void fail_file(struct warm *w, const char *path, const char *why)
{
	char shown[4096];

	w->totals.failed_files++;
	if (w->json && w->named < NAMED_MAX)
		json_append(&w->failures, json_pack("{s:o, s:s}", "path", json_bytes(path, strlen(path)), "why", why));
	text_escape(shown, sizeof(shown), path, strlen(path));
	if (w->named < NAMED_MAX)
		verb_complain("cannot %s %s: %s", w->unpin ? "unpin" : "cache", shown, why);
	w->named++;
}

static void unnamed_tell(const struct warm *w)
{
	char a[UNITS_TEXT];

	if (w->named > NAMED_MAX)
		verb_complain("and %s more", count_format(a, w->named - NAMED_MAX));
}

static void give_up(struct warm *w, const char *why)
{
	if (!w->fatal[0])
		snprintf(w->fatal, sizeof(w->fatal), "%s", why);
	w->stopping = true;
	pthread_cond_broadcast(&w->over);
}

static void file_leave(struct warm *w, struct file *f)
{
	if (--f->users > 0)
		return;
	w->totals.files += !f->failed;
	w->totals.here_files += f->here && !f->lacking && !f->failed;
	w->totals.lacking_files += f->lacking && !f->failed;
	free(f->path);
	free(f);
}

static const char *reason(int error)
{
	switch (error) {
	case EBUSY: return "it is being written, and not all of it is stored";
	case EFBIG: return "the pack it is in is too large for the cache";
	case ESTALE: return "it was changed meanwhile";
	case EHOSTUNREACH: return "the server is away";
	case EIO: return "Input/output error; see the log of the mount";
	case EBADMSG: return "it is damaged in the server's store; see \"Corrupted object\" in docs/operations.md";
	default: return strerror(error);
	}
}

/* ---- Where files come from; the lock is held ---- */

/* Whatever is wrong with one path, the others are walked. */
static void path_walk(struct warm *w, const char *path)
{
	int r = walk_begin(w->walk, path);
	char why[PATH_MAX + 100];

	w->walking = r == 0;
	if (r == -EXDEV)
		snprintf(why, sizeof(why), "it is not on the mount %s; warm one mount at a time", w->mount.mount_point);
	if (r < 0)
		fail_file(w, path, r == -EXDEV ? why : strerror(-r));
}

/* The next path to walk; NULL: there is none. */
static const char *path_next(struct warm *w)
{
	const char *first = w->first;

	w->first = NULL;
	if (first)
		return first;
	if (w->next_operand < w->options->operand_count)
		return w->options->operands[w->next_operand++];
	return list_next(&w->list);
}

static struct file *file_new(const struct walk_file *found)
{
	struct file *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	*f = (struct file){ .path = strdup(found->path), .size = found->size, .inode = found->inode, .users = 1 };
	if (f->path)
		return f;
	free(f);
	return NULL;
}

/* NULL: that was all, or the end. */
static struct file *file_next(struct warm *w)
{
	while (!w->stopping) {
		struct walk_file found;
		const char *path;
		struct file *f;
		int r;

		if (!w->walking) {
			path = path_next(w);
			if (!path)
				return NULL;
			path_walk(w, path);
			continue;
		}
		r = walk_next(w->walk, &found);
		w->walking = r != 0;
		if (r < 0)
			fail_file(w, found.path, strerror(-r));
		if (r <= 0)
			continue;
		f = file_new(&found);
		if (!f)
			give_up(w, "out of memory");
		return f;
	}
	return NULL;
}

/* Up to BATCH small files, or one piece of a large one.  How many. */
static int batch_take(struct warm *w, struct piece *out)
{
	int n = 0;
	LOCKED(&w->lock);

	while (n < BATCH && !w->stopping) {
		struct file *f = w->file ? w->file : file_next(w);
		uint64_t length;

		w->file = f;
		if (!f || (n && f->size > PIECE_BYTES / BATCH))
			break;
		length = f->size - f->given < PIECE_BYTES ? f->size - f->given : PIECE_BYTES;
		out[n++] = (struct piece){ f, f->given, f->given + length };
		f->users++;
		f->given += length;
		if (f->given == f->size) {
			file_leave(w, f);
			w->file = NULL;
		}
		if (length > PIECE_BYTES / BATCH)
			break;
	}
	return n;
}

/* ---- Workers ---- */

static json_t *request_make(const struct warm *w, const struct piece *pieces, int count)
{
	json_t *files = json_array();

	for (int i = 0; i < count; i++)
		json_append(&files, json_pack("[I, I, I]", (json_int_t)pieces[i].file->inode, (json_int_t)pieces[i].from,
					      (json_int_t)pieces[i].to));
	return json_pack("{s:s, s:o, s:b, s:b, s:b}", "op", "warm", "files", files, "pin", w->pin, "unpin", w->unpin, "verify",
			 w->verify);
}

static uint64_t number(const json_t *object, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(object, name));
}

/* The lock is held. */
static void piece_done(struct warm *w, const struct piece *p, const json_t *result)
{
	struct file *f = p->file;
	int error = (int)number(result, "error");

	w->totals.bytes += number(result, "bytes");
	w->totals.fetched += number(result, "fetched");
	w->totals.damaged += number(result, "damaged");
	w->totals.lacking_bytes += number(result, "missing");
	w->bytes_done += p->to - p->from;
	f->lacking = f->lacking || number(result, "missing");
	f->here = f->here || json_is_true(json_object_get(result, "here"));
	if (error && !f->failed && error != ECANCELED)
		fail_file(w, f->path, reason(error));
	f->failed = f->failed || error;
	file_leave(w, f);
}

static void batch_done(struct worker *k, const struct piece *pieces, int count, json_t *answer)
{
	struct warm *w = k->warm;
	json_t *results = json_object_get(answer, "files");
	LOCKED(&w->lock);

	if (!answer && !w->interrupted)
		give_up(w, k->mount.why);
	else if (answer && (int)json_array_size(results) != count)
		give_up(w, "the mount's answer makes no sense");
	if (json_is_true(json_object_get(answer, "away")))
		give_up(w, "the server is away");
	for (int i = 0; i < count; i++) {
		if ((int)json_array_size(results) == count) {
			piece_done(w, &pieces[i], json_array_get(results, (size_t)i));
			continue;
		}
		pieces[i].file->failed = true;
		file_leave(w, pieces[i].file);
	}
	json_decref(answer);
}

static void *worker_run(void *context)
{
	struct worker *k = context;
	struct warm *w = k->warm;
	struct piece pieces[BATCH];
	int count;

	while ((count = batch_take(w, pieces)) > 0)
		batch_done(k, pieces, count, reach_ask(&k->mount, request_make(w, pieces, count)));
	LOCKED(&w->lock);
	w->running--;
	pthread_cond_broadcast(&w->over);
	return NULL;
}

static int workers_start(struct warm *w)
{
	LOCKED(&w->lock);

	for (uint64_t i = 0; i < w->jobs; i++) {
		struct worker *k = &w->workers[i];

		k->warm = w;
		if (reach_open_again(&k->mount, &w->mount) < 0) {
			give_up(w, k->mount.why);
			return -EIO;
		}
		if (pthread_create(&k->thread, NULL, worker_run, k)) {
			give_up(w, "cannot start a thread");
			return -EAGAIN;
		}
		k->started = true;
		w->running++;
	}
	return 0;
}

/* The mount sees that nobody waits any more and stops. */
static void workers_hang_up(struct warm *w)
{
	for (uint64_t i = 0; i < w->jobs; i++)
		if (w->workers[i].started)
			shutdown(w->workers[i].mount.fd, SHUT_RDWR);
}

/* The lock is held.  As long as the total is not known, the files take the place of bar and ETA. */
static void progress_tell(struct warm *w, struct progress *p, const struct tally *t, int64_t began_ns)
{
	char rate[UNITS_TEXT], files[UNITS_TEXT], note[2 * UNITS_TEXT + 5];
	int64_t elapsed = clock_steady_ns() - began_ns;
	uint64_t all = tally_bytes(t);

	size_format(rate, elapsed > 0 ? (uint64_t)((double)w->totals.fetched * NS_PER_S / (double)elapsed) : 0);
	snprintf(note, sizeof(note), "%s%s%s/s", all ? "" : counted_format(files, w->totals.files, "file"), all ? "" : "  ",
		 rate);
	progress_note(p, note);
	progress_show(p, "MiB", w->bytes_done >> 20, all ? (all >> 20) + 1 : 0);
}

static void workers_watch(struct warm *w, struct progress *p, const struct tally *t)
{
	int64_t began_ns = clock_steady_ns();
	struct timespec step = { .tv_nsec = NS_PER_MS }; /* what is there already does not take long */
	bool hung_up = false;
	LOCKED(&w->lock);

	while (w->running > 0) {
		if (w->stopping && !hung_up) {
			hung_up = true;
			workers_hang_up(w);
		}
		progress_tell(w, p, t, began_ns);
		pthread_mutex_unlock(&w->lock);
		int caught = sigtimedwait(&w->signals, NULL, &step);
		pthread_mutex_lock(&w->lock);
		step.tv_nsec = step.tv_nsec * 2 < LOOK_MS * NS_PER_MS ? step.tv_nsec * 2 : LOOK_MS * NS_PER_MS;
		if (caught > 0) {
			w->interrupted = true;
			give_up(w, "interrupted");
		}
	}
}

/* ---- Before and after ---- */

__attribute__((format(printf, 2, 3))) static void cause_add(char out[CAUSES_BYTES], const char *format, ...)
{
	size_t n = strlen(out);
	va_list values;

	if (n)
		n += (size_t)snprintf(out + n, CAUSES_BYTES - n, "; ");
	if (n >= CAUSES_BYTES)
		return;
	va_start(values, format);
	vsnprintf(out + n, CAUSES_BYTES - n, format, values);
	va_end(values);
}

/* Why there is no room.  How many directories are in use. */
static size_t causes_of(const json_t *caches, char out[CAUSES_BYTES])
{
	size_t i, used = 0, full = 0;
	const json_t *dir;

	out[0] = 0;
	json_array_foreach(caches, i, dir)
	{
		const char *path = json_string_value(json_object_get(dir, "path"));
		const char *why = json_string_value(json_object_get(dir, "reason"));

		used += why == NULL;
		if (why)
			cause_add(out, "the cache directory %s is out of use: %s", path, why);
		else if (json_is_true(json_object_get(dir, "counting")))
			cause_add(out, "what is in the cache directory %s is still being counted", path);
		else if (number(dir, "free_bytes") < number(dir, "room_bytes"))
			cause_add(out, "the disk of the cache directory %s has no more than --cache-min-free left", path);
		else
			full++;
	}
	if (full)
		cause_add(out, "make --cache-size (or --cache-share) larger, or release what is pinned (epochfs warm --unpin)");
	return used;
}

/* The mount is asked anew: of the connection it may have heard nothing for long. */
static void causes_ask(struct warm *w)
{
	CLEANUP_REACH struct reach mount = { .fd = -1 };
	json_t *status = NULL;

	if (reach_open_again(&mount, &w->mount) == 0)
		status = reach_ask(&mount, json_pack("{s:s}", "op", "status"));
	if (status)
		causes_of(json_object_get(status, "cache"), w->causes);
	else
		snprintf(w->causes, sizeof(w->causes), "the mount does not say why: %s", mount.why);
	json_decref(status);
}

/* What this mount has written and not yet stored cannot be cached. */
static int store_all(struct warm *w)
{
	json_t *status = reach_ask(&w->mount, json_pack("{s:s}", "op", "status")), *figure;
	bool unstored = false;
	size_t i, caches, used;

	if (!status)
		return verb_fail("cannot warm %s: %s", w->mount.mount_point, w->mount.why);
	caches = json_array_size(json_object_get(status, "cache"));
	used = causes_of(json_object_get(status, "cache"), w->causes);
	json_array_foreach(json_object_get(status, "figures"), i, figure)
	{
		const char *name = json_string_value(json_object_get(figure, "name"));

		unstored = unstored || (name && !strcmp(name, "unstored_files") && number(figure, "value"));
	}
	json_decref(status);
	if (!caches)
		return verb_fail("cannot warm %s: it has no cache directory; mount it with --cache-dir DIR",
				 w->mount.mount_point);
	if (!used)
		return verb_fail("cannot warm %s: %s", w->mount.mount_point, w->causes);
	if (unstored) {
		CLEANUP_FD int fd = open(w->mount.mount_point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		if (fd < 0 || fsync(fd) < 0)
			return verb_fail("cannot warm %s: what was written to it cannot be stored: %s", w->mount.mount_point,
					 strerror(errno));
	}
	return 0;
}

static uint64_t cached_files(const struct totals *t) { return t->files - t->here_files - t->lacking_files; }

static bool is_complete(const struct warm *w) { return !w->stopping && !w->totals.failed_files && !w->totals.lacking_files; }

static void report_text(const struct warm *w, double seconds)
{
	const struct totals *t = &w->totals;
	char a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT], d[UNITS_TEXT];
	uint64_t cached = cached_files(t);

	if (w->unpin)
		printf("Nothing of %s is pinned now.\n", counted_format(a, t->files, "file"));
	else if (cached || !t->here_files)
		printf("%s, %s, %s cached%s: %s fetched in %.1f s, %s/s.\n", counted_format(a, cached, "file"),
		       size_format(b, t->bytes), cached == 1 ? "is" : "are", w->pin ? " and pinned" : "",
		       size_format(c, t->fetched), seconds, size_format(d, (uint64_t)((double)t->fetched / seconds)));
	if (t->here_files)
		printf("%s %s on this host already, in the store of the server, and %s read from there.\n",
		       counted_format(a, t->here_files, "file"), t->here_files == 1 ? "is" : "are",
		       t->here_files == 1 ? "is" : "are");
	if (t->damaged)
		printf("%s of the cache %s fetched anew.\n", counted_format(a, t->damaged, "damaged part"),
		       t->damaged == 1 ? "was" : "were");
	if (t->lacking_files)
		printf("There is no room for %s of %s: %s.\n", size_format(a, t->lacking_bytes),
		       counted_format(b, t->lacking_files, "file"), w->causes);
}

static int report_json(struct warm *w, double seconds)
{
	const struct totals *t = &w->totals;
	json_t *failures = w->failures;

	w->failures = NULL;
	return json_finish(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:s?, s:o, s:o, s:f, s:b, s:o}", "files",
				     json_count(w->unpin ? t->files : cached_files(t)), "bytes", json_count(t->bytes),
				     "fetched_bytes", json_count(t->fetched), "files_here", json_count(t->here_files),
				     "files_without_room", json_count(t->lacking_files), "bytes_without_room",
				     json_count(t->lacking_bytes), "why_without_room", t->lacking_files ? w->causes : NULL,
				     "files_failed", json_count(t->failed_files), "damaged", json_count(t->damaged), "seconds",
				     seconds, "complete", is_complete(w), "failures", failures));
}

static int report(struct warm *w)
{
	double seconds = (double)(clock_steady_ns() - w->began_ns + 1) / NS_PER_S;

	if (w->totals.lacking_files)
		causes_ask(w);
	unnamed_tell(w);
	if (w->fatal[0])
		verb_complain("stopped before the end: %s", w->fatal);
	if (w->json && report_json(w, seconds))
		return EXIT_FAILED;
	if (!w->json && !w->quiet)
		report_text(w, seconds);
	return is_complete(w) ? EXIT_DONE : EXIT_FAILED;
}

static void warm_close(struct warm *w)
{
	for (uint64_t i = 0; i < w->jobs; i++) {
		if (w->workers[i].started)
			pthread_join(w->workers[i].thread, NULL);
		if (w->workers[i].warm)
			reach_close(&w->workers[i].mount);
	}
	if (w->file)
		file_leave(w, w->file);
	walk_free(w->walk);
	list_close(&w->list);
	reach_close(&w->mount);
	json_decref(w->failures);
	pthread_cond_destroy(&w->over);
	pthread_mutex_destroy(&w->lock);
}
#define CLEANUP_WARM __attribute__((cleanup(warm_close)))

static int nothing_found(struct warm *w)
{
	unnamed_tell(w);
	if (!w->totals.failed_files)
		return verb_fail("cannot warm anything: %s names no file", w->list_path);
	return verb_fail("cannot warm anything: none of the paths is on an EpochFS mount");
}

/* The first path that is on a mount says which one; those before it have failed. */
static int mount_find(struct warm *w)
{
	bool alone = w->options->operand_count == 1 && !w->list_path;
	int r = w->list_path ? list_open(&w->list, w->list_path, w->zeroes) : 0;
	const char *path;

	if (r < 0)
		return verb_fail("cannot read %s: %s", w->list_path, strerror(-r));
	while ((path = path_next(w)) && reach_open(&w->mount, path, 0)) {
		LOCKED(&w->lock); /* against interrupted_early */
		/* It is found, and cannot be asked: no other path changes that. */
		if (alone || w->mount.mount_point[0]) {
			unnamed_tell(w);
			return verb_fail("cannot warm %s: %s", path, w->mount.why);
		}
		fail_file(w, path, w->mount.why);
	}
	if (!path)
		return nothing_found(w);
	w->first = path;
	w->walk = walk_new(w->mount.device);
	return w->walk ? 0 : verb_fail("cannot warm %s: out of memory", path);
}

/* Before there are workers: it ends as if they had been stopped. */
static void interrupted_early(void *context, int caught)
{
	struct warm *w = context;
	int code;
	LOCKED(&w->lock);

	w->interrupted = true;
	give_up(w, "interrupted");
	code = report(w);
	fflush(stdout);
	_exit(code);
}

static int warm_prepare(struct warm *w)
{
	CLEANUP_INTERRUPT struct interrupt early;
	int code;

	if (interrupt_begin(&early, &w->signals, interrupted_early, w))
		return EXIT_FAILED;
	code = mount_find(w);
	return code ? code : store_all(w);
}

static int warm_run(struct warm *w)
{
	struct tally *t = NULL;
	struct progress *p;
	int code;

	w->began_ns = clock_steady_ns();
	sigemptyset(&w->signals);
	sigaddset(&w->signals, SIGINT);
	sigaddset(&w->signals, SIGTERM);
	code = warm_prepare(w);
	if (code)
		return code;
	p = w->json || w->quiet ? NULL : progress_new("warm");
	if (p)
		t = tally_start(w->mount.device, w->options->operands, w->options->operand_count, &w->list);
	workers_start(w);
	workers_watch(w, p, t);
	progress_end(p);
	tally_stop(t);
	return report(w);
}

int verb_warm(int argc, char **argv)
{
	CLEANUP_WARM struct warm w = {
		.jobs = JOBS_DEFAULT, .mount = { .fd = -1 }, .lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER
	};
	struct option_spec specs[] = {
		{ "files-from", "LIST", OPTION_TEXT, &w.list_path,
		  "Also the files and directories this file names, one a line, relative to the current directory unless they "
		  "begin with /; - is "
		  "standard input." },
		{ "null", NULL, OPTION_FLAG, &w.zeroes, "The list's names are ended by zero bytes, as find -print0 does.",
		  .letter = '0' },
		{ "pin", NULL, OPTION_FLAG, &w.pin, "Keep them: they are not evicted, whatever else is read, until --unpin." },
		{ "unpin", NULL, OPTION_FLAG, &w.unpin, "Release what was pinned, and fetch nothing." },
		{ "verify", NULL, OPTION_FLAG, &w.verify,
		  "Read what was in the cache before, too, compare it with its checksums, and fetch anew what is damaged." },
		{ "jobs", "N", OPTION_COUNT, &w.jobs, "How many files, or pieces of files, to fetch at a time.  Default: 4.",
		  .min = 1, .max = JOBS_MAX },
		{ "quiet", NULL, OPTION_FLAG, &w.quiet, "Say nothing unless something goes wrong.", .letter = 'q' },
		OPTION_JSON(&w.json),
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "warm",
		.usage = "PATH... [OPTION...]",
		.summary = "fill a mount's cache before a job reads",
		.description =
			"Brings the content of files, and of all files below directories, to the --cache-dir of the mount they "
			"are on.  "
			"What is there already is not fetched again.  What is fetched takes the place of whatever was not asked "
			"for in "
			"this way; when there is no room left, it says how much did not fit.\n"
			"\n"
			"What is fetched is compared with its checksums: a file that is damaged in the server's store is named "
			"as "
			"failed.\n"
			"\n"
			"Small files come with the pack they share with their neighbours.  On the host of the server, by its "
			"unix socket, "
			"small files are read from the server's own disk and are not cached; it says how many these are.\n"
			"\n"
			"Symbolic links below a directory are not followed.  Pinning is of the content as it is now: a file that "
			"is "
			"written anew has to be pinned anew, and what shares a pack with a pinned file is pinned with it.\n"
			"\n"
			"The first path that is on a mount says which one is filled.  Paths that are not there, or not on it, "
			"are named as "
			"failed, and the others cached.\n"
			"\n"
			"The exit code is 0 if all of it is cached, 1 if something is not: it failed, or there was no room.  "
			"Interrupted, it "
			"stops and says what was done; what was fetched stays.\n"
			"\n"
			"Only root and the user who mounted may ask a mount for it.  For the job of another user its prologue "
			"does it "
			"as root.\n"
			"\n"
			"On a terminal it shows a bar, the rate and how long it will take, as soon as all files are counted; "
			"that goes on meanwhile.  A list that comes by a pipe cannot be counted: then it shows how much is done, "
			"and the rate.",
		.examples = "epochfs warm /mnt/datasets/imagenet\n"
			    "Fill the cache with a tree.\n"
			    "epochfs warm /mnt/models/llama --pin --verify\n"
			    "Make sure that a model is in the cache, undamaged, and stays.\n"
			    "find /mnt/datasets -name '*.tar' -print0 | epochfs warm --files-from - -0\n"
			    "Only the files that find finds.\n",
		.specs = specs,
		.operands_max = -1,
	};
	int code = options_parse(&o, argc, argv);

	w.options = &o;
	if (code != OPTIONS_RUN) {
		w.jobs = 0;
		return code;
	}
	if (!o.operand_count && !w.list_path)
		return options_misused(&o, "a path is needed, or --files-from");
	if (w.pin && w.unpin)
		return options_misused(&o, "cannot use --pin and --unpin together");
	if (w.unpin && w.verify)
		return options_misused(&o, "cannot use --unpin and --verify together");
	if (w.json)
		w.failures = json_array();
	return warm_run(&w);
}
