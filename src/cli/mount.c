/* epochfs mount: mounts a volume, in the background or not.
 *
 * Also the helper that mount(8) runs for `mount -t fuse.epochfs` and fstab lines, when
 * called as mount.fuse.epochfs: SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/ask.h"
#include "cli/mountwords.h"
#include "cli/options.h"
#include "cli/remount.h"
#include "cli/verbs.h"
#include "fuse/background.h"
#include "fuse/mount.h"
#include "fuse/mountinfo.h"
#include "server/folder.h"

#define READAHEAD_MAX (64ull << 30)
#define PARALLEL_MAX 256
#define MEMORY_MIN (8ull << 20)
#define MEMORY_MAX (1ull << 40)
#define CACHE_DIRS 16
#define CACHE_SIZE_MIN (4ull << 20) /* 1.2 MiB of it are folders and state; a file may take up to half of what is left */
#define CACHE_SIZE_MIN_TEXT "4MiB"
#define LOG_NAME 160    /* of a file, with the name of the volume */
#define MOUNT_FAILED 32 /* what mount(8) calls a mount that failed */

struct arguments {
	struct options *options;
	const char *server, *subdir, *log_file;
	uint64_t timeout_s, cache_bytes, write_bytes, readahead_bytes, parallel, cache_share, replica_lag_s;
	char *replica_dir;            /* absolute, and ours */
	char *cache_dirs[CACHE_DIRS]; /* the same */
	int cache_dir_count;
	struct cache_amount cache_size, cache_min_free, writeback_size;
	char *writeback_dir; /* absolute, and ours */
	uint64_t upload_limit;
	bool read_only, relatime, noatime, strictatime, foreground, allow_other, no_allow_other, shared_locks, replica;
	bool helper, fake, sloppy, remount;
	struct mount_flags flags;
	uint64_t listed; /* of what was given: by -o */
	enum mount_ring ring;
	enum mount_pass pass;
};

/* One of -o: ours are the long options, with _ for - if one likes (allow_other). */
static int set_one(struct arguments *a, char *setting, char *why, size_t why_size)
{
	char *value = strchr(setting, '=');
	uint64_t before;
	int error;

	if (value)
		*value++ = 0;
	if (!value && !strcmp(setting, "remount")) {
		a->remount = true;
		return 0;
	}
	if (mount_word_is_ignored(setting) || (!value && mount_flags_add(&a->flags, setting)))
		return 0;
	for (char *p = setting; *p; p++) {
		if (*p == '_')
			*p = '-';
	}
	/* What is said in full is not changed by a list; what a list has said, by the rest of it and other lists. */
	before = a->options->given;
	error = options_set(a->options, setting, value, before & ~a->listed, why, why_size);
	a->listed |= a->options->given & ~before;
	return error && !a->sloppy ? -EINVAL : 0;
}

static int set_list(void *context, const char *value, char *why, size_t why_size)
{
	CLEANUP_FREE char *copy = strdup(value);
	char *rest = copy, *setting;

	if (!copy) {
		snprintf(why, why_size, "out of memory");
		return -EINVAL;
	}
	while ((setting = strsep(&rest, ","))) {
		if (*setting && set_one(context, setting, why, why_size))
			return -EINVAL;
	}
	return 0;
}

static int set_log_level(void *context, const char *value, char *why, size_t why_size)
{
	enum log_level level;

	if (log_level_parse(value, &level)) {
		snprintf(why, why_size, "the level is debug, info, warn, error or off");
		return -EINVAL;
	}
	log_set_level(level);
	return 0;
}

static void arguments_free(struct arguments *a)
{
	while (a->cache_dir_count > 0)
		free(a->cache_dirs[--a->cache_dir_count]);
	free(a->replica_dir);
	free(a->writeback_dir);
}
#define CLEANUP_ARGUMENTS __attribute__((cleanup(arguments_free)))

/* Absolute: a mount in the background leaves the current directory, and looks for one that was gone again and again. */
static int directory_absolute(const char *value, char **out, char *why, size_t why_size)
{
	CLEANUP_FREE char *here = realpath(".", NULL);

	if (!*value) {
		snprintf(why, why_size, "a directory is needed");
		return -EINVAL;
	}
	if (asprintf(out, "%s%s%s", value[0] == '/' || !here ? "" : here, value[0] == '/' || !here ? "" : "/", value) < 0) {
		snprintf(why, why_size, "out of memory");
		return -ENOMEM;
	}
	return 0;
}

static int set_writeback_dir(void *context, const char *value, char *why, size_t why_size)
{
	struct arguments *a = context;

	if (a->writeback_dir) {
		snprintf(why, why_size, "there can be only one, and %s was named before", a->writeback_dir);
		return -EINVAL;
	}
	return directory_absolute(value, &a->writeback_dir, why, why_size);
}

static int add_cache_dir(void *context, const char *value, char *why, size_t why_size)
{
	struct arguments *a = context;
	int r;

	if (a->cache_dir_count == CACHE_DIRS) {
		snprintf(why, why_size, "no more than %d directories can be used", CACHE_DIRS);
		return -EINVAL;
	}
	r = directory_absolute(value, &a->cache_dirs[a->cache_dir_count], why, why_size);
	a->cache_dir_count += !r;
	return r;
}

static int set_replica_dir(void *context, const char *value, char *why, size_t why_size)
{
	struct arguments *a = context;

	free(a->replica_dir);
	a->replica_dir = NULL;
	return directory_absolute(value, &a->replica_dir, why, why_size);
}

/* Root's in /var/cache, a user's where such files belong. */
static int replica_dir_choose(struct arguments *a)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char folder[4096] = "/var/cache/epochfs";
	int n;

	if (a->replica_dir)
		return 0;
	if (geteuid() && cache && cache[0] == '/') {
		snprintf(folder, sizeof(folder), "%s/epochfs", cache);
		mkdir(cache, 0700);
	} else if (geteuid()) {
		snprintf(folder, sizeof(folder), "%s/.cache", home ? home : "");
		mkdir(folder, 0700);
		snprintf(folder, sizeof(folder), "%s/.cache/epochfs", home ? home : "");
	}
	mkdir(folder, 0700);
	n = asprintf(&a->replica_dir, "%s/replica", folder);
	if (n < 0)
		a->replica_dir = NULL;
	return n < 0 ? -ENOMEM : 0;
}

/* "200GiB", or "20%" of the file system. */
static int set_amount(void *context, const char *value, char *why, size_t why_size)
{
	struct cache_amount *amount = context;
	char *end;
	unsigned long percent = strtoul(value, &end, 10);

	if (end != value && !strcmp(end, "%") && value[0] != '-' && percent >= 1 && percent <= 100) {
		*amount = (struct cache_amount){ .percent = (unsigned)percent };
		return 0;
	}
	*amount = (struct cache_amount){ 0 };
	if (size_parse(value, &amount->bytes) || !amount->bytes) {
		snprintf(why, why_size, "it is a size (200GiB) or a percentage of the file system (20%%), and not 0");
		return -EINVAL;
	}
	return 0;
}

static int set_cache_size(void *context, const char *value, char *why, size_t why_size)
{
	struct cache_amount *amount = context;
	int r = set_amount(context, value, why, why_size);

	if (!r && amount->bytes && amount->bytes < CACHE_SIZE_MIN) {
		snprintf(why, why_size, "a cache is of no use below " CACHE_SIZE_MIN_TEXT);
		r = -EINVAL;
	}
	return r;
}

/* "30%", or "30". */
static int set_percent(void *context, const char *value, char *why, size_t why_size)
{
	uint64_t *out = context;
	char *end;
	unsigned long percent = strtoul(value, &end, 10);

	if (end == value || (*end && strcmp(end, "%") != 0) || value[0] == '-' || percent < 1 || percent > 100) {
		snprintf(why, why_size, "it is a percentage of the cache, from 1%% to 100%%");
		return -EINVAL;
	}
	*out = percent;
	return 0;
}

static int set_ring(void *context, const char *value, char *why, size_t why_size)
{
	static const struct {
		const char *text;
		enum mount_ring ring;
	} choices[] = { { "auto", RING_WHERE_POSSIBLE }, { "on", RING_ALWAYS }, { "off", RING_NEVER } };
	struct arguments *a = context;

	for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
		if (!strcmp(choices[i].text, value)) {
			a->ring = choices[i].ring;
			return 0;
		}
	}
	snprintf(why, why_size, "it is auto, on or off");
	return -EINVAL;
}

static int set_pass(void *context, const char *value, char *why, size_t why_size)
{
	static const struct {
		const char *text;
		enum mount_pass pass;
	} choices[] = { { "auto", PASS_WHERE_POSSIBLE }, { "on", PASS_ALWAYS }, { "off", PASS_NEVER } };
	struct arguments *a = context;

	for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
		if (!strcmp(choices[i].text, value)) {
			a->pass = choices[i].pass;
			return 0;
		}
	}
	snprintf(why, why_size, "it is auto, on or off");
	return -EINVAL;
}

/* A mount in the background leaves the current directory, so a socket's path must not
 * hang on it. */
static void addresses_absolute(struct buf *out, const char *servers)
{
	static const char prefix[] = "unix:";
	CLEANUP_FREE char *here = realpath(".", NULL);

	while (*servers) {
		size_t length = strcspn(servers, ",");

		if (here && !strncmp(servers, prefix, sizeof(prefix) - 1) && servers[sizeof(prefix) - 1] != '/') {
			buf_append(out, prefix, sizeof(prefix) - 1);
			buf_append(out, here, strlen(here));
			buf_append(out, "/", 1);
			servers += sizeof(prefix) - 1;
			length -= sizeof(prefix) - 1;
		}
		buf_append(out, servers, length + (servers[length] == ','));
		servers += length + (servers[length] == ',');
	}
	buf_le8(out, 0);
}

/* "-mnt-training" for /mnt/training: the end of it, where it is long. */
static void log_name(char out[LOG_NAME], const char *directory)
{
	CLEANUP_FREE char *path = realpath(directory, NULL);
	const char *from = path ? path : directory;
	size_t length = strlen(from);

	snprintf(out, LOG_NAME, "%s", length < LOG_NAME ? from : from + length - LOG_NAME + 1);
	for (char *p = out; *p; p++)
		*p = *p == '/' ? '-' : *p;
}

/* Where a mount in the background logs to, unless told: root's in /var/log, a user's where
 * such files belong. */
static void log_path(char *out, size_t size, const char *volume, const char *directory)
{
	char name[LOG_NAME];
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char folder[4096] = "/var/log";

	if (geteuid() && state && state[0] == '/') {
		snprintf(folder, sizeof(folder), "%s", state);
	} else if (geteuid()) {
		snprintf(folder, sizeof(folder), "%s/.local", home ? home : "");
		mkdir(folder, 0700);
		snprintf(folder, sizeof(folder), "%s/.local/state", home ? home : "");
	}
	mkdir(folder, 0700);
	log_name(name, directory);
	snprintf(out, size, "%s/epochfs-mount-%s%s.log", folder, volume, name);
}

struct going {
	struct background background;
	const char *log_file;
};

static int on_up(void *context)
{
	struct going *g = context;

	return background_up(&g->background, g->log_file);
}

/* Said here, as all verbs say it, because only a verb knows what the user can do about a
 * server that is not there. */
static int server_check(const struct mount_options *m)
{
	CLEANUP_ASK struct ask ask;

	return ask_open_within(&ask, m->client.servers, m->client.timeout_ms, "mount %s", m->client.volume);
}

/* Cuts the path down to the folder of a server that it is in; false: it is in none. */
static bool folder_above(char *path)
{
	char *slash;

	while (!folder_is_served(path)) {
		slash = strrchr(path, '/');
		if (!slash || slash == path)
			return false;
		*slash = 0;
	}
	return true;
}

/* A mount there would cover what a server needs, perhaps the socket it is itself served by.  What is no directory at all, or
 * mounted, the mount says: there is no looking into a volume whose server is away. */
static int point_check(const struct mount_options *m)
{
	struct mountpoint point;
	struct mountinfo info;
	char why[1000];

	if (mountpoint_resolve(m->directory, &point, why, sizeof(why)) || mountpoint_follow(&point, why, sizeof(why)) ||
	    (!mountinfo_find(point.path, &info) && !strcmp(info.type, MOUNT_TYPE)))
		return 0;
	if (!folder_above(point.path))
		return 0;
	return verb_fail("cannot mount %s on %s: %s is the data directory of a server, or its store; name a directory outside",
			 m->client.volume, m->directory, point.path);
}

/* The directory, or the nearest one above it that is there; it need not be there itself. */
static int nearest_find(const char *directory, char out[PATH_MAX])
{
	CLEANUP_FREE char *path = strdup(directory);
	char *slash;

	if (!path)
		return -ENOMEM;
	while (!realpath(*path ? path : "/", out)) {
		slash = strrchr(path, '/');
		if (errno != ENOENT || !slash)
			return -errno;
		*slash = 0;
	}
	return 0;
}

/* What a server finds in its folders it takes for its own.  One that cannot be looked at, the mount says. */
static int directory_check(const struct mount_options *m, const char *option, const char *directory)
{
	char folder[PATH_MAX];

	if (!directory || nearest_find(directory, folder) || !folder_above(folder))
		return 0;
	return verb_fail(
		"cannot mount %s with %s %s: %s is the data directory of a server, or its store; name a directory outside",
		m->client.volume, option, directory, folder);
}

static int directories_check(const struct mount_options *m)
{
	const struct client_options *o = &m->client;
	int code = directory_check(m, "--writeback", o->writeback_dir);

	if (!code)
		code = directory_check(m, "--replica-dir", o->replica_dir);
	for (int i = 0; i < o->cache_dir_count && !code; i++)
		code = directory_check(m, "--cache-dir", o->cache_dirs[i]);
	return code;
}

/* Where the user wants it: found out while somebody can be told.  -1 with errno. */
static int log_file_check(const struct arguments *a)
{
	CLEANUP_FD int fd = a->log_file ? open(a->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0640) : -1;

	return a->log_file && fd < 0 ? -1 : 0;
}

static int run(const struct arguments *a, struct mount_options *m)
{
	char why[1000] = "", path[4400];
	struct going going = { .log_file = a->log_file };
	int code = a->helper ? MOUNT_FAILED : EXIT_FAILED, error;
	CLEANUP_FREE char *log_file = NULL;

	if (log_file_check(a))
		return verb_fail("cannot mount %s: cannot write the log file %s: %s", m->client.volume, a->log_file,
				 strerror(errno));
	m->log_file = log_file = a->log_file ? realpath(a->log_file, NULL) : NULL;
	if (point_check(m) || directories_check(m))
		return code;
	if (!m->client.replica_dir && server_check(m)) /* a replica may do without */
		return code;
	if (a->foreground) {
		error = mount_run(m, why, sizeof(why));
		if (error)
			verb_fail("cannot mount %s: %s", m->client.volume, why);
		return error ? code : EXIT_DONE;
	}
	if (!going.log_file) {
		log_path(path, sizeof(path), m->client.volume, m->directory);
		going.log_file = path;
	}
	error = background_begin(&going.background, why, sizeof(why));
	if (error == BACKGROUND_PARENT)
		return EXIT_DONE;
	if (error < 0) {
		verb_fail("cannot mount %s: %s", m->client.volume, why);
		return code;
	}
	log_copy_to_file(going.log_file);
	m->up = on_up;
	m->context = &going;
	error = mount_run(m, why, sizeof(why));
	if (going.background.report >= 0)
		background_failed(&going.background, why);
	else if (error)
		log_error("volume %s: %s", m->client.volume, why);
	return error ? code : EXIT_DONE;
}

static enum mountpoint_others others_of(const struct arguments *a)
{
	return a->no_allow_other ? OTHERS_NOT_ALLOWED : a->allow_other ? OTHERS_ALLOWED : OTHERS_WHERE_PERMITTED;
}

/* What is said in full is not changed by a list. */
static void flags_settle(struct arguments *a)
{
	if (a->read_only)
		mount_flags_add(&a->flags, "ro");
	if (a->noatime || a->relatime || a->strictatime)
		mount_flags_add(&a->flags, a->noatime ? "noatime" : a->relatime ? "relatime" : "strictatime");
}

static struct mountpoint_flags flags_of(const struct arguments *a)
{
	return (struct mountpoint_flags){
		.source = a->options->operands[0],
		.others = others_of(a),
		.atime = a->flags.set & MS_STRICTATIME ? ATIME_ALWAYS
			 : a->flags.set & MS_RELATIME  ? ATIME_RELATIVE
						       : ATIME_NEVER,
		.read_only = a->flags.set & MS_RDONLY || a->replica,
		.nodiratime = a->flags.set & MS_NODIRATIME,
		.nosuid = a->flags.set & MS_NOSUID,
		.nodev = a->flags.set & MS_NODEV,
		.noexec = a->flags.set & MS_NOEXEC,
	};
}

static int remount_named(const struct arguments *a, const struct mount_options *m)
{
	struct remount_request request = { .flags = a->flags,
					   .complete = a->helper,
					   .failed = a->helper ? MOUNT_FAILED : EXIT_FAILED };

	/* That of the environment is for whatever is mounted anew. */
	if (a->server && a->server != getenv("EPOCHFS_SERVER"))
		request.servers = m->client.servers;
	return remount(m, &request);
}

/* One that is to be changed only names some of its options. */
static int arguments_check(const struct arguments *a)
{
	const struct options *o = a->options;

	if (a->relatime + a->noatime + a->strictatime > 1)
		return options_misused(o, "cannot use %s and %s together", a->relatime ? "--relatime" : "--strictatime",
				       a->noatime ? "--noatime" : "--strictatime");
	if (a->remount)
		return OPTIONS_RUN;
	if (a->allow_other && a->no_allow_other)
		return options_misused(o, "cannot use --allow-other and --no-allow-other together");
	if (!a->cache_dir_count) {
		const struct {
			const char *name;
			const void *value;
		} needing[] = { { "--cache-size", &a->cache_size },
				{ "--cache-min-free", &a->cache_min_free },
				{ "--cache-share", &a->cache_share } };

		for (size_t i = 0; i < sizeof(needing) / sizeof(needing[0]); i++)
			if (options_given(o, needing[i].value))
				return options_misused(o, "%s needs a cache: name a directory for it with --cache-dir",
						       needing[i].name);
	}
	if (a->replica && a->shared_locks)
		return options_misused(o, "cannot use --replica and --shared-locks together");
	if (a->replica && (a->flags.set & (MS_RELATIME | MS_STRICTATIME)))
		return options_misused(o, "cannot use --replica and %s together: a replica changes nothing",
				       a->flags.set & MS_RELATIME ? "--relatime" : "--strictatime");
	if (a->replica && a->pass == PASS_ALWAYS)
		return options_misused(o, "cannot use --replica and --passthrough on together");
	if (!a->replica && (options_given(o, &a->replica_lag_s) || a->replica_dir))
		return options_misused(o, "--replica-dir and --replica-max-lag need --replica");
	if (a->shared_locks && !(a->flags.set & MS_RDONLY))
		return options_misused(o, "--shared-locks needs --ro: mounts that may write share their locks anyway");
	if (a->writeback_dir && (a->flags.set & MS_RDONLY || a->replica))
		return options_misused(o, "cannot use --writeback and %s together: there is nothing to write",
				       a->replica ? "--replica" : "--ro");
	if (!a->writeback_dir && (a->writeback_size.bytes || a->writeback_size.percent || a->upload_limit))
		return options_misused(o, "--writeback-size and --upload-limit need --writeback");
	if (a->pass == PASS_ALWAYS && !a->cache_dir_count)
		return options_misused(o, "--passthrough on needs a --cache-dir to pass files through from");
	return OPTIONS_RUN;
}

int verb_mount(int argc, char **argv)
{
	CLEANUP_ARGUMENTS struct arguments a = { .timeout_s = MOUNT_TIMEOUT_S,
						 .replica_lag_s = MOUNT_REPLICA_LAG_S,
						 .cache_bytes = MOUNT_MEMORY,
						 .write_bytes = MOUNT_MEMORY,
						 .readahead_bytes = MOUNT_READAHEAD,
						 .parallel = MOUNT_PARALLEL,
						 .cache_size = { .percent = MOUNT_CACHE_SIZE_PERCENT },
						 .cache_min_free = { .percent = MOUNT_CACHE_FREE_PERCENT } };
	const char *ignored = NULL;
	bool helper = a.helper = argc > 0 && !strcmp(argv[0], MOUNT_HELPER);
	struct option_spec specs[] = {
		OPTION_SERVER(&a.server),
		{ "ro", NULL, OPTION_FLAG, &a.read_only,
		  "Mount read-only.  Opening and closing files costs no message to the mount, and locks hold within this mount "
		  "only (of a relaxed volume they do cost one, unless it is a --replica)." },
		{ "shared-locks", NULL, OPTION_FLAG, &a.shared_locks,
		  "With --ro: locks exclude other mounts, too, as they do without --ro.  Opening a file costs a message then." },
		{ "replica", NULL, OPTION_FLAG, &a.replica,
		  "Keep all names and attributes of the volume in a file on this machine, which follows the server, and answer "
		  "from "
		  "it: looking up, listing and opening ask nobody, and go on while the server is away.  Read-only; what others "
		  "change is seen a moment later.  The first time the mount takes as long as copying the names does." },
		{ "replica-dir", "DIR", OPTION_CALL, &a,
		  "Where --replica keeps that file, in a folder named after the volume.  Default: /var/cache/epochfs/replica, "
		  "for users "
		  "epochfs/replica in $XDG_CACHE_HOME or ~/.cache.",
		  .call = set_replica_dir },
		{ "replica-max-lag", "TIME", OPTION_DURATION, &a.replica_lag_s,
		  "With --replica: stop serving (EIO) when the server was not heard of for so long.  Default, and the most: 1h.",
		  .min = 1, .max = MOUNT_REPLICA_LAG_S },
		{ "subdir", "PATH", OPTION_TEXT, &a.subdir, "Mount this directory of the volume instead of its root." },
		{ "noatime", NULL, OPTION_FLAG, &a.noatime, "Do not update access times on reading.  The default." },
		{ "relatime", NULL, OPTION_FLAG, &a.relatime,
		  "Update the access time when a file is first read after an open, if it is not later than the last change or is "
		  "a day old." },
		{ "strictatime", NULL, OPTION_FLAG, &a.strictatime,
		  "Update the access time with every read.  Each read is then a change of metadata, and goes to the mount, past "
		  "the kernel's cache.  If a file is already passed through (opened with O_NOATIME, or before a remount), each "
		  "further open counts as one access instead." },
		{ "timeout", "TIME", OPTION_DURATION, &a.timeout_s,
		  "How long to wait for a server that is away; then programs get EIO, or, if the server has not answered since "
		  "the beginning, mounting fails (at once, if nobody listens there).  Once the server is back the mount goes on "
		  "by itself.  (The kernel asks twice "
		  "for some reads before it gives up; so those take twice as long.)  Default: 60s.",
		  .min = 1, .max = 7 * 86400 },
		{ "allow-other", NULL, OPTION_FLAG, &a.allow_other,
		  "Let other users in, each with their own permissions.  The default for root, and for users where "
		  "/etc/fuse.conf has "
		  "user_allow_other." },
		{ "no-allow-other", NULL, OPTION_FLAG, &a.no_allow_other,
		  "Let in nobody but the user who mounts, not even root." },
		{ "cache-memory", "SIZE", OPTION_SIZE, &a.cache_bytes, "Memory for data read or read ahead.  Default: 64MiB.",
		  .min = MEMORY_MIN, .max = MEMORY_MAX },
		{ "readahead", "SIZE", OPTION_SIZE, &a.readahead_bytes,
		  "How far to read ahead of a program that goes through a file; 0 for not at all.  It begins with 2MiB and "
		  "doubles up "
		  "to this.  Without --cache-dir all that are read ahead of share three quarters of --cache-memory.  Default: "
		  "64MiB.",
		  .min = 0, .max = READAHEAD_MAX },
		{ "parallel", "N", OPTION_COUNT, &a.parallel,
		  "How many pieces of up to 4MiB to fetch at a time when reading ahead.  Default: 8.", .min = 1,
		  .max = PARALLEL_MAX },
		{ "cache-dir", "DIR", OPTION_CALL, &a,
		  "Keep what was read on a local disk, in this directory, across mounts and reboots.  It is made if it is "
		  "missing, in a directory that is there; "
		  "mounts of one host can share it.  Several can be named, on different disks.  While one cannot be used (its "
		  "disk is missing, full or read-only) the mount warns, goes on without it, and tries it again; a file, or a "
		  "directory that holds something else, is refused.",
		  .call = add_cache_dir },
		{ "cache-size", "SIZE", OPTION_CALL, &a.cache_size,
		  "How much to keep in each --cache-dir: bytes (200GiB), or percent of its file system (20%).  At "
		  "least " CACHE_SIZE_MIN_TEXT ".  Default: 80%.",
		  .call = set_cache_size },
		{ "cache-min-free", "SIZE", OPTION_CALL, &a.cache_min_free,
		  "How much of the file system of each --cache-dir to leave free, whoever fills it.  Default: 10%.",
		  .call = set_amount },
		{ "cache-share", "PERCENT", OPTION_CALL, &a.cache_share,
		  "How much of each --cache-dir this volume may take, where mounts of several volumes use the same one.  "
		  "Default: all of it.",
		  .call = set_percent },
		{ "writeback", "DIR", OPTION_CALL, &a,
		  "fsync returns when the local disk has the data, in this directory; it is uploaded afterwards, also after a "
		  "crash or a reboot, once the volume is mounted with the same directory again.  Until then that disk has the "
		  "only copy.  "
		  "It is made if it is missing, in a directory that is there, and has to be empty, or one that was used for "
		  "this; mounts of different volumes "
		  "can share it.",
		  .call = set_writeback_dir },
		{ "writeback-size", "SIZE", OPTION_CALL, &a.writeback_size,
		  "How much --writeback may hold: bytes (200GiB), or percent of its file system (20%).  When it is full, fsync "
		  "stores "
		  "at the server.  Default: 50%.",
		  .call = set_amount },
		{ "upload-limit", "RATE", OPTION_SIZE, &a.upload_limit,
		  "How many bytes a second --writeback uploads, unless somebody waits for it.  Default: none.", .min = 0,
		  .max = MEMORY_MAX },
		{ "write-memory", "SIZE", OPTION_SIZE, &a.write_bytes,
		  "Memory for data written and not yet stored; writers wait when it is full.  Default: 64MiB.", .min = MEMORY_MIN,
		  .max = MEMORY_MAX },
		{ "fuse-uring", "WHEN", OPTION_CALL, &a,
		  "Whether the kernel's requests come by io_uring, a quicker way than /dev/fuse: auto (the "
		  "default: if the kernel offers it), on (or the mount fails), or off.  Linux 6.14 and later can, once root has "
		  "switched it on: echo Y > /sys/module/fuse/parameters/enable_uring",
		  .call = set_ring },
		{ "passthrough", "WHEN", OPTION_CALL, &a,
		  "Whether the kernel reads large files (over 1 MiB) that are whole in --cache-dir by itself, at the speed of "
		  "the "
		  "disk: auto (the default: if it can, and not with --ro), on (also with --ro), or off.  Linux 6.9 and later "
		  "can, for root.  With on the mount fails where it cannot, or where no --cache-dir can be used when it starts; "
		  "whatever is said here, it takes a volume that is mounted once, or for reading only (replicas do not count).",
		  .call = set_pass },
		{ "foreground", NULL, OPTION_FLAG, &a.foreground, "Stay in the foreground and log to standard error.",
		  .not_in_file = true, .letter = helper ? 0 : 'f' },
		{ "log-file", "FILE", OPTION_TEXT, &a.log_file,
		  "Where a mount in the background logs to.  Default: epochfs-mount-VOLUME-DIR.log (with - for /) in /var/log, "
		  "for users in "
		  "$XDG_STATE_HOME or ~/.local/state." },
		{ "log-level", "LEVEL", OPTION_CALL, NULL,
		  "The least important lines to log: debug, info, warn or error.  Default: info.", .call = set_log_level },
		{ "", "OPTIONS", OPTION_CALL, &a,
		  "Options as mount(8) has them, parted by commas: those above without the dashes "
		  "(server=HOST:PORT,subdir=PATH), and nosuid, "
		  "nodev, noexec and nodiratime.  With remount, a live mount is changed: ro or rw, noatime, relatime or "
		  "strictatime, nodiratime, nosuid, nodev, noexec; what is not named stays, unless fstab has a line for "
		  "the mount: mount(8) takes the rest from that.  Those for mount(8) itself (_netdev, "
		  "nofail, x-systemd.automount, ...) are taken and ignored.",
		  .call = set_list, .letter = 'o' },
		{ "", NULL, OPTION_IGNORED, NULL, NULL, .letter = 'n' },
		{ "", NULL, OPTION_IGNORED, NULL, NULL, .letter = 'v' },
		{ "", NULL, helper ? OPTION_FLAG : OPTION_IGNORED, helper ? &a.sloppy : NULL, "Ignore unknown options.",
		  .letter = 's' },
		/* The rest is for the helper only; else the list ends here. */
		{ helper ? "" : NULL, NULL, OPTION_FLAG, helper ? &a.fake : NULL, "Do everything but mount.",
		  .letter = helper ? 'f' : 0 },
		{ "", "TYPE", OPTION_TEXT, &ignored, "Ignored.", .letter = 't' },
		{ "", "NAMESPACE", OPTION_TEXT, &ignored, "Ignored.", .letter = 'N' },
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "mount",
		.usage = "VOLUME DIR [OPTION...]",
		.summary = "mount a volume on a directory",
		.description =
			"Returns when the volume is mounted, and serves it in the background until it is unmounted "
			"(epochfs umount, umount(8), or "
			"SIGTERM, which unmounts it).  What programs have written and not yet synced is stored then; "
			"epochfs umount waits for "
			"that, umount(8) does not.\n"
			"\n"
			"Root mounts for all users.  Others mount through fusermount3 (package fuse3), on a directory of "
			"theirs, and from a server that lets them in: one they run themselves, or one that listens on TCP "
			"(epochfs serve --listen).  The unix socket of a server lets in root and the user it runs as, nobody "
			"else.\n"
			"\n"
			"A mount point left dead by a process that was killed (\"Transport endpoint is not connected\") is "
			"replaced.  The data directory of a server, its store, the directories of this mount (--cache-dir, "
			"--writeback, --replica-dir) and what is below them are refused.  So is a directory of this mount in the "
			"data directory of a server, or in its store.\n"
			"\n"
			"With the helper mount.fuse.epochfs (make install) mount(8) and lines of /etc/fstab can mount it, too.",
		.examples = "epochfs mount training /mnt/training\n"
			    "Mount it.\n"
			    "epochfs mount datasets /mnt/images --subdir images --ro\n"
			    "Mount one directory of a volume, read-only.\n"
			    "mount -o remount,ro /mnt/training\n"
			    "Store what was written and allow no more writing, until mount -o remount,rw.\n"
			    "mount -t fuse.epochfs training /mnt/training -o server=127.0.0.1:7070,noexec\n"
			    "Mount it through mount(8).\n"
			    "training /mnt/training fuse.epochfs _netdev,nofail,x-systemd.requires=epochfs-server.service 0 0\n"
			    "A line in /etc/fstab that mounts it at every start, after the server of the same machine.\n",
		.specs = specs,
		.operands_min = 2,
		.operands_max = 2,
	};
	CLEANUP_BUF struct buf servers = { 0 };
	struct mount_options m;
	int code;

	a.options = &o;
	code = options_parse(&o, argc, argv);
	if (code != OPTIONS_RUN)
		return code;
	flags_settle(&a);
	code = arguments_check(&a);
	if (code != OPTIONS_RUN)
		return code;
	if (a.fake)
		return EXIT_DONE;
	if (a.replica && replica_dir_choose(&a))
		return verb_fail("cannot mount %s: out of memory", o.operands[0]);
	addresses_absolute(&servers, a.server ? a.server : SERVER_DEFAULT);
	if (servers.failed)
		return verb_fail("cannot mount %s: out of memory", o.operands[0]);
	m = (struct mount_options){
		.client = { .servers = (const char *)servers.data,
			    .volume = o.operands[0],
			    .subdir = a.subdir,
			    .timeout_ms = (int64_t)a.timeout_s * 1000,
			    .cache_bytes = a.cache_bytes,
			    .readahead_bytes = a.readahead_bytes,
			    .parallel = (unsigned)a.parallel,
			    .cache_dirs = (const char *const *)a.cache_dirs,
			    .cache_dir_count = a.cache_dir_count,
			    .cache_size = a.cache_size,
			    .cache_min_free = a.cache_min_free,
			    .cache_share = (unsigned)a.cache_share,
			    .replica_dir = a.replica ? a.replica_dir : NULL,
			    .replica_max_lag_ms = (int64_t)a.replica_lag_s * 1000,
			    .writeback_dir = a.writeback_dir,
			    .writeback_size = a.writeback_size,
			    .upload_limit = a.upload_limit,
			    .dirty_bytes = a.write_bytes },
		.flags = flags_of(&a),
		.shared_locks = a.shared_locks,
		.ring = a.ring,
		.pass = a.pass,
		.directory = o.operands[1],
	};
	return a.remount ? remount_named(&a, &m) : run(&a, &m);
}
