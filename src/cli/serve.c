/* epochfs serve: runs a server in the foreground. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "cli/options.h"
#include "cli/verbs.h"
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

int verb_serve(int argc, char **argv)
{
	const char *data = DATA_DEFAULT, *listen = NULL, *store = NULL, *config = NULL, *log_file = NULL;
	uint64_t grace_s = SERVER_GRACE_S, session_timeout_s = SERVER_SESSION_TIMEOUT_S;
	struct option_spec specs[] = {
		{ "data", "DIR", OPTION_TEXT, &data,
		  "Where the metadata, the unix socket and, unless --store says otherwise, the objects are.  "
		  "Made if missing.  Default: " DATA_DEFAULT "." },
		{ "listen", "ADDRESS:PORT", OPTION_TEXT, &listen,
		  "Listen on TCP as well, on a loopback address (127.0.0.1 or [::1]); port 0 "
		  "picks a free one, which the log and DIR/address tell." },
		{ "store", "URL", OPTION_TEXT, &store, "Where the objects are: dir:PATH.  Default: dir:DIR/objects." },
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
			    "Also over TCP, with the objects on another disk.\n",
	};
	struct server_options options;
	char error[1000] = "";
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
	return server_run(&options, error, sizeof(error)) ? verb_fail("%s", error) : EXIT_DONE;
}
