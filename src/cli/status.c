/* epochfs status: the server, and who has mounted what; with a directory, the mount it is on. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/ask.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/status.h"
#include "cli/table.h"
#include "cli/verbs.h"
#include "cli/waiting.h"
#include "rpc/caller.h"

static json_t *session_json(const Wire__SessionInfo *s)
{
	return json_pack("{s:o, s:s, s:o, s:o, s:o, s:b, s:b, s:o, s:o, s:o}", "session", json_count(s->session), "volume",
			 s->volume, "host", json_bytes(s->host, strlen(s->host)), "mount_point",
			 json_bytes(s->mount_point, strlen(s->mount_point)), "pid", json_count(s->pid), "read_only", s->read_only,
			 "replica", s->replica, "since", json_time(s->since_ns), "last_contact",
			 s->unheard ? json_null() : json_time(s->last_contact_ns), "open_files", json_count(s->open_files));
}

static json_t *loss_json(const Wire__LossInfo *l)
{
	json_t *paths = json_array();

	for (size_t i = 0; i < l->n_paths; i++)
		json_append(&paths, json_bytes(l->paths[i].data, l->paths[i].len));
	return json_pack("{s:o, s:s, s:o, s:o, s:b, s:b, s:o, s:o}", "when", json_time(l->when_ns), "volume", l->volume, "host",
			 json_bytes(l->host, strlen(l->host)), "mount_point", json_bytes(l->mount_point, strlen(l->mount_point)),
			 "given_up", l->given_up, "writeback", l->writeback, "files", json_count(l->files), "paths", paths);
}

static void writeback_id(char out[33], ProtobufCBinaryData id)
{
	out[0] = 0;
	for (size_t i = 0; i < id.len && i < 16; i++)
		snprintf(out + 2 * i, 3, "%02x", id.data[i]);
}

static json_t *writeback_json(const Wire__WritebackInfo *w)
{
	char id[33];

	writeback_id(id, w->writeback);
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:b}", "id", id, "volume", w->volume, "host",
			 json_bytes(w->host, strlen(w->host)), "mount_point", json_bytes(w->mount_point, strlen(w->mount_point)),
			 "files", json_count(w->files), "since", json_time(w->since_ns), "mounted", w->mounted);
}

static void print_writebacks(const Wire__StatusReply *s)
{
	char text[UNITS_TEXT], since[UNITS_TEXT], name[4096], host[256], id[33];

	for (size_t i = 0; i < s->n_writebacks; i++) {
		const Wire__WritebackInfo *w = s->writebacks[i];

		writeback_id(id, w->writeback);
		text_escape(name, sizeof(name), w->mount_point, strlen(w->mount_point));
		text_escape(host, sizeof(host), w->host, strlen(w->host));
		printf("\n%s:%s has data of %s of %s that is not uploaded, since %s%s.\n", host, name,
		       counted_format(text, w->files, "file"), w->volume, date_format(since, w->since_ns),
		       w->mounted ? "" : ", and is not mounted: nobody can read them until it is");
		if (w->mounted)
			continue;
		text_escape(name, sizeof(name), w->directory, strlen(w->directory));
		printf("The data is safe in its write-back directory%s%s: mount the volume on %s with it (--writeback), and it "
		       "is "
		       "uploaded.\n",
		       *name ? " " : "", name, host);
		printf("epochfs writeback list %s shows the files.\n", id);
	}
}

static int print_json(const Wire__StatusReply *s)
{
	json_t *sessions = json_array(), *losses = json_array(), *writebacks = json_array();
	char instance[24];

	for (size_t i = 0; i < s->n_sessions; i++)
		json_append(&sessions, session_json(s->sessions[i]));
	for (size_t i = 0; i < s->n_losses; i++)
		json_append(&losses, loss_json(s->losses[i]));
	for (size_t i = 0; i < s->n_writebacks; i++)
		json_append(&writebacks, writeback_json(s->writebacks[i]));
	/* 64 random bits do not fit in what many readers of JSON make of a number. */
	snprintf(instance, sizeof(instance), "%016" PRIx64, s->instance);
	return json_finish(json_pack(
		"{s:s, s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "version", s->version,
		"instance", instance, "started", json_time(s->started_ns), "store", s->store, "store_total_bytes",
		json_count(s->store_total_bytes), "store_free_bytes", json_count(s->store_free_bytes), "waiting_objects",
		json_count(s->waiting_objects), "waiting_bytes", json_count(s->waiting_bytes), "waiting_until",
		s->waiting_objects ? json_time(s->waiting_until_ns) : json_null(), "grace_s", json_count(s->grace_s), "objects",
		json_count(s->objects), "metadata_bytes", json_count(s->metadata_bytes), "batch", json_count(s->batch),
		"sessions", sessions, "losses", losses, "writebacks", writebacks));
}

static uint64_t seconds_since(int64_t now_ns, int64_t then_ns)
{
	return now_ns > then_ns ? (uint64_t)((now_ns - then_ns) / NS_PER_S) : 0;
}

static int print_server(const Wire__StatusReply *s, const char *address, int64_t now_ns)
{
	char a[UNITS_TEXT], b[UNITS_TEXT], waiting[WAITING_TEXT];
	struct table t;

	table_init(&t, NULL, 2);
	table_cell(&t, "Server");
	table_cell(&t, "%s, version %s", address, s->version);
	table_cell(&t, "Started");
	table_cell(&t, "%s, %s ago", date_format(a, s->started_ns), duration_format(b, seconds_since(now_ns, s->started_ns) | 1));
	table_cell(&t, "Store");
	table_cell(&t, "%s", s->store);
	table_cell(&t, "Space");
	table_cell(&t, "%s free of %s", size_format(a, s->store_free_bytes), size_format(b, s->store_total_bytes));
	if (waiting_text(waiting, s)) {
		table_cell(&t, "Freed");
		table_cell(&t, "%s", waiting);
	}
	table_cell(&t, "Objects");
	table_cell(&t, "%s", count_format(a, s->objects));
	table_cell(&t, "Metadata");
	table_cell(&t, "%s, batch %s", size_format(a, s->metadata_bytes), count_format(b, s->batch));
	return table_print(&t, stdout);
}

static int print_sessions(const Wire__StatusReply *s, int64_t now_ns)
{
	char titles[] = "VOLUME|HOST|MOUNT POINT|>PID|MODE|>OPEN FILES|SINCE|LAST HEARD";
	struct table t;

	if (!s->n_sessions) {
		printf("\nNo volume is mounted.\n");
		return 0;
	}
	printf("\n");
	table_init(&t, titles, 0);
	for (size_t i = 0; i < s->n_sessions; i++) {
		const Wire__SessionInfo *m = s->sessions[i];
		uint64_t silent_s = seconds_since(now_ns, m->last_contact_ns);
		char text[UNITS_TEXT], host[256], mount_point[4096];

		text_escape(host, sizeof(host), m->host, strlen(m->host));
		text_escape(mount_point, sizeof(mount_point), m->mount_point, strlen(m->mount_point));

		table_cell(&t, "%s", m->volume);
		table_cell(&t, "%s", host);
		table_cell(&t, "%s", mount_point);
		table_cell(&t, "%u", m->pid);
		table_cell(&t, "%s", m->replica ? "replica" : m->read_only ? "ro" : "rw");
		table_cell(&t, "%s", count_format(text, m->open_files));
		table_cell(&t, "%s", date_format(text, m->since_ns));
		/* A mount that is alive is heard from every few seconds. */
		if (m->unheard)
			table_cell(&t, "not since the restart");
		else if (silent_s < 10)
			table_cell(&t, "now");
		else
			table_cell(&t, "%s ago", duration_format(text, silent_s));
	}
	return table_print(&t, stdout);
}

static void print_losses(const Wire__StatusReply *s)
{
	char text[UNITS_TEXT], name[4096];

	for (size_t i = 0; i < s->n_losses; i++) {
		const Wire__LossInfo *l = s->losses[i];

		text_escape(name, sizeof(name), l->mount_point, strlen(l->mount_point));
		printf("\n%s: the mount of %s on %s %s.\n", date_format(text, l->when_ns), l->volume, name,
		       l->given_up ? "was given up" : "went away");
		printf("It could write to %s; what it had written to %s and not %s is missing:\n",
		       counted_format(text, l->files, "file"), l->files == 1 ? "it" : "them", l->writeback ? "synced" : "stored");
		for (size_t k = 0; k < l->n_paths; k++) {
			text_escape(name, sizeof(name), (const char *)l->paths[k].data, l->paths[k].len);
			printf("  %s\n", name);
		}
		if (l->files > l->n_paths)
			printf("  and others\n");
	}
}

int verb_status(int argc, char **argv)
{
	const char *server = NULL;
	bool json = false;
	struct option_spec specs[] = { OPTION_SERVER(&server), OPTION_JSON(&json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "status",
		.usage = "[DIR] [OPTION...]",
		.summary = "show the server and who has mounted what, or a mount",
		.specs = specs,
		.operands_max = 1,
		.description =
			"Lists the mounts the server knows.  One that was killed is forgotten within seconds if it was local, "
			"else after five minutes of silence; one that was only away begins anew when it comes back.  After a "
			"restart "
			"of the server the five minutes begin anew, and when a mount was last heard is not known until it comes "
			"back.  Then the "
			"latest 32 "
			"mounts, since the server's start, that went away or were given up while they could write to files, and "
			"which.\n"
			"\n"
			"With a directory, that of a mount or one below, it asks the mount's own process, which also answers "
			"while "
			"the server is away: whether it has contact, how old what it shows may be, its cache directories, how "
			"much of what it holds in memory is not stored yet, and the orders it was told (epochfs prefetch).  Of a "
			"mount with --writeback also how many files, and bytes, are not uploaded yet, how many of these were "
			"synced and are on its local disk "
			"only, and the inodes and sizes of the first eight.  It shows the figures that are not zero; --json has "
			"all of "
			"them.  Only root and the user who mounted may.",
		.examples = "epochfs status\nShow it.\nepochfs status --json\nShow it to a program.\n"
			    "epochfs status /mnt/training\nShow what the mount there does.\n",
	};
	Wire__StatusReply *reply = NULL;
	int64_t now_ns;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	if (o.operand_count)
		return status_of_mount(o.operands[0], json);

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "show the status") || ask_call(&ask, WIRE__OP__STATUS, NULL, &reply))
		return EXIT_FAILED;
	if (json)
		return print_json(reply);
	now_ns = rpc_server_clock_ns(ask.rpc);
	if (print_server(reply, ask.server, now_ns) || print_sessions(reply, now_ns))
		return verb_fail("cannot show the status: out of memory");
	print_writebacks(reply);
	print_losses(reply);
	return EXIT_DONE;
}
