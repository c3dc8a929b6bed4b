/* epochfs serve: runs a server in the foreground. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "rpc/connection.h"
#include "server/server.h"

#define DATA_DEFAULT "/var/lib/epochfs"

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

static int set_listen(void *context, const char *value, char *why, size_t why_size)
{
	if (address_check(value)) {
		snprintf(why, why_size, "not an address; write 127.0.0.1:PORT, [::1]:PORT or unix:PATH");
		return -EINVAL;
	}
	*(const char **)context = value;
	return 0;
}

static int set_store(void *context, const char *value, char *why, size_t why_size)
{
	if (strncmp(value, "dir:", 4) != 0 || !value[4]) {
		snprintf(why, why_size, "not a kind of store known here; use dir:PATH");
		return -EINVAL;
	}
	*(const char **)context = value;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) { return remove(path); }

/* A data directory that was made for a server that was refused then.  Not if another one has it. */
static void data_remove(const char *data)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/lock", data);
	CLEANUP_FD int lock = n < (int)sizeof(path) ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0 && nftw(data, remove_one, 16, FTW_DEPTH | FTW_PHYS))
		verb_fail("cannot remove %s, which was made for nothing: %s", data, strerror(errno));
}

int verb_serve(int argc, char **argv)
{
	const char *data = DATA_DEFAULT, *listen = NULL, *store = NULL, *config = NULL, *log_file = NULL;
	uint64_t grace_s = SERVER_GRACE_S, session_timeout_s = SERVER_SESSION_TIMEOUT_S;
	struct option_spec specs[] = {
		{ "data", "DIR", OPTION_TEXT, &data,
		  "Where the metadata, the unix socket and, unless --store says otherwise, the objects are.  "
		  "Made if missing.  Default: " DATA_DEFAULT "." },
		{ "listen", "ADDRESS", OPTION_CALL, &listen,
		  "Listen here as well: on TCP, 127.0.0.1:PORT or [::1]:PORT (port 0 picks a free one, which the log and "
		  "DIR/address tell); or on a second unix socket, unix:PATH, which lets in the same users as the first one.",
		  .call = set_listen },
		{ "store", "URL", OPTION_CALL, &store, "Where the objects are: dir:PATH.  Default: dir:DIR/objects.",
		  .call = set_store },
		{ "grace", "TIME", OPTION_DURATION, &grace_s,
		  "How long objects stay in the store after their last reference went, for those who "
		  "are still reading them.  Default: 60s.",
		  .min = 0, .max = 86400 },
		{ "session-timeout", "TIME", OPTION_DURATION, &session_timeout_s,
		  "How long a mount may be silent before it is forgotten.  "
		  "Default: 5m.",
		  .min = 1, .max = 7 * 86400 },
		{ "log-level", "LEVEL", OPTION_CALL, NULL,
		  "The least important lines to log: debug, info, warn or error.  Default: info.", .call = set_log_level },
		{ "log-file", "FILE", OPTION_TEXT, &log_file, "Append the log to this file instead of standard error." },
		{ "config", "FILE", OPTION_TEXT, &config, "Read options from a file, one `name = value` a line.",
		  .not_in_file = true },
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "serve",
		.usage = "[--data DIR] [OPTION...]",
		.summary = "run a server",
		.specs = specs,
		.description = "Serves volumes from one directory, in the foreground, until SIGTERM or SIGINT; then it finishes "
			       "what is in flight and syncs.  "
			       "Local clients connect to the unix socket DIR/epochfs.sock, which lets in root and the user the "
			       "server runs as.\n"
			       "\n"
			       "One directory has one server at a time.  Every hour and at the end the metadata are copied to "
			       "DIR/backup.",
		.examples = "epochfs serve --data /var/lib/epochfs\nServe what is in this directory.\n"
			    "epochfs serve --data /srv/epochfs --listen 127.0.0.1:7070 --store dir:/mnt/disk/objects\n"
			    "Also over TCP, with the objects on another disk.\n"
			    "epochfs serve --data /srv/epochfs --listen unix:/run/epochfs.sock\n"
			    "Also at a shorter path, that a container may have, too.\n",
	};
	struct server_options options;
	char error[1000] = "";
	bool made;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	if (config && options_read_file(&o, config, error, sizeof(error)))
		return verb_fail("%s", error);
	code = log_file ? log_to_file(log_file) : 0;
	if (code)
		return verb_fail("cannot write to the log %s: %s", log_file, strerror(-code));
	options = (struct server_options){
		.data = data,
		.listen = listen,
		.store = store,
		.grace_s = (int64_t)grace_s,
		.session_timeout_s = (int64_t)session_timeout_s,
	};
	made = mkdir(data, 0700) == 0;
	if (!server_run(&options, error, sizeof(error)))
		return EXIT_DONE;
	/* A store elsewhere may know its metadata already, and belong to no other. */
	if (made && !store)
		data_remove(data);
	return verb_fail("%s", error);
}
