/* epochfs writeback: list, drop. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/ask.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/table.h"
#include "cli/verbs.h"
#include "client/spool.h"

#define PATH_TEXT (4 * 4096)
#define ID_TEXT (2 * SPOOL_ID + 1)

static const char *id_text(char out[ID_TEXT], const uint8_t *id)
{
	for (unsigned i = 0; i < SPOOL_ID; i++)
		snprintf(out + 2 * i, 3, "%02x", id[i]);
	return out;
}

/* A write-back directory, or the id of one that is gone. */
static int id_of(const char *text, uint8_t out[SPOOL_ID])
{
	char path[4200];

	if (strlen(text) == 2 * SPOOL_ID && strspn(text, "0123456789abcdef") == 2 * SPOOL_ID) {
		for (unsigned i = 0; i < SPOOL_ID; i++) {
			char digits[3] = { text[2 * i], text[2 * i + 1], 0 };

			out[i] = (uint8_t)strtoul(digits, NULL, 16);
		}
		return 0;
	}
	snprintf(path, sizeof(path), "%s/id", text);
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return read(fd, out, SPOOL_ID) == SPOOL_ID ? 0 : -EINVAL;
}

static int id_fail(const char *verb, const char *text, int error)
{
	if (error == -EACCES || error == -EPERM || error == -EIO)
		return verb_fail("cannot %s %s: %s", verb, text, strerror(-error));
	return verb_fail("cannot %s %s: it is neither a write-back directory nor the id of one", verb, text);
}

/* ---- What is marked ---- */

/* Every mark of a write-back directory, or (NULL) of all.  0, or -errno, which was said. */
static int marks_each(struct ask *ask, const uint8_t *id, void (*each)(void *context, const Wire__MarkInfo *m), void *context)
{
	Wire__MarksRequest request = WIRE__MARKS_REQUEST__INIT;
	Wire__MarksReply *reply;

	if (id)
		request.writeback = (ProtobufCBinaryData){ .len = SPOOL_ID, .data = (uint8_t *)id };
	do {
		int r = ask_call(ask, WIRE__OP__MARKS, &request, &reply);

		if (r)
			return r;
		for (size_t i = 0; i < reply->n_marks; i++) {
			if (!reply->marks[i]->mark || reply->marks[i]->mark->writeback.len != SPOOL_ID) {
				verb_fail("cannot %s: the server's answer is not understood", ask->what);
				return -EBADMSG;
			}
			each(context, reply->marks[i]);
			request.volume = reply->marks[i]->volume;
			request.after = reply->marks[i]->inode;
		}
	} while (reply->more && reply->n_marks);
	return 0;
}

/* What the server says of the directory with this id, and the volume; NULL: nothing. */
static const Wire__WritebackInfo *writeback_of(const Wire__StatusReply *status, const uint8_t *id, const char *volume)
{
	for (size_t i = 0; i < status->n_writebacks; i++) {
		const Wire__WritebackInfo *w = status->writebacks[i];

		if (w->writeback.len == SPOOL_ID && !memcmp(w->writeback.data, id, SPOOL_ID) && !strcmp(w->volume, volume))
			return w;
	}
	return NULL;
}

/* ---- list ---- */

struct printing {
	bool json;
	const Wire__StatusReply *status;
	json_t *list;
	struct table table;
	size_t count;
};

static json_t *json_text(const char *s) { return json_bytes(s, strlen(s)); }

static void print_json(struct printing *p, const Wire__MarkInfo *m, const char *id)
{
	const Wire__WritebackInfo *w = writeback_of(p->status, m->mark->writeback.data, m->volume_name);

	json_append(&p->list,
		    json_pack("{s:s, s:s, s:o, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "id", id, "volume", m->volume_name,
			      "inode", json_count(m->inode), "path", json_bytes(m->path.data, m->path.len), "deleted", m->deleted,
			      "host", json_text(m->mark->host), "mount_point", json_text(m->mark->mount_point), "directory",
			      json_text(m->mark->directory), "mounted", w ? json_boolean(w->mounted) : json_null(), "size_bytes",
			      json_count(m->mark->size), "since", json_time(m->mark->since_ns)));
}

static void print_one(void *context, const Wire__MarkInfo *m)
{
	char id[ID_TEXT], size[UNITS_TEXT], since[UNITS_TEXT], path[PATH_TEXT], host[256], directory[PATH_TEXT];
	struct printing *p = context;

	p->count++;
	id_text(id, m->mark->writeback.data);
	if (p->json) {
		print_json(p, m, id);
		return;
	}
	text_escape(path, sizeof(path), (const char *)m->path.data, m->path.len);
	text_escape(host, sizeof(host), m->mark->host, strlen(m->mark->host));
	text_escape(directory, sizeof(directory), m->mark->directory, strlen(m->mark->directory));
	table_cell(&p->table, "%s", m->volume_name);
	table_cell(&p->table, "%s%s", path, m->deleted ? " (deleted)" : "");
	table_cell(&p->table, "%s", size_format(size, m->mark->size));
	table_cell(&p->table, "%s", host);
	table_cell(&p->table, "%s", directory);
	table_cell(&p->table, "%s", date_format(since, m->mark->since_ns));
	table_cell(&p->table, "%s", id);
}

/* What to do where the mount that has the data is gone. */
static void print_gone(const Wire__StatusReply *status, const uint8_t *id)
{
	for (size_t i = 0; i < status->n_writebacks; i++) {
		const Wire__WritebackInfo *w = status->writebacks[i];
		char count[UNITS_TEXT], host[256], point[PATH_TEXT], directory[PATH_TEXT];

		if (w->mounted || (id && (w->writeback.len != SPOOL_ID || memcmp(w->writeback.data, id, SPOOL_ID))))
			continue;
		text_escape(host, sizeof(host), w->host, strlen(w->host));
		text_escape(point, sizeof(point), w->mount_point, strlen(w->mount_point));
		text_escape(directory, sizeof(directory), w->directory, strlen(w->directory));
		printf("\n%s:%s is not mounted, and nobody can read %s file%s of %s until then.  Mount it on %s again, with "
		       "--writeback %s.\n",
		       host, point, count_format(count, w->files), w->files == 1 ? "" : "s", w->volume, host,
		       *directory ? directory : "and the same directory as before");
	}
}

static int writeback_list(int argc, char **argv)
{
	struct printing p = { 0 };
	const char *server = NULL;
	struct option_spec specs[] = { OPTION_SERVER(&server), OPTION_JSON(&p.json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "writeback list",
		.usage = "[DIR|ID] [OPTION...]",
		.summary = "list files with data that is not uploaded yet",
		.description =
			"Lists the files that were synced on a mount with --writeback and whose data is on that mount's local "
			"disk only; of all mounts, or of one write-back directory.  The size is that at its first sync.  Where "
			"the mount is known to be gone (over TCP it is after five minutes), it is said how to get the data "
			"uploaded.",
		.specs = specs,
		.operands_max = 1,
		.examples =
			"epochfs writeback list\nList those of all mounts.\nepochfs writeback list /nvme/writeback --json\nList "
			"those in one directory, for a program.\n",
	};
	char titles[] = "VOLUME|FILE|>SIZE|HOST|DIRECTORY|SINCE|ID";
	Wire__StatusReply *status;
	uint8_t id[SPOOL_ID];
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	code = o.operands[0] ? id_of(o.operands[0], id) : 0;
	if (code)
		return id_fail("list", o.operands[0], code);

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "list what is not uploaded"))
		return EXIT_FAILED;
	if (ask_call(&ask, WIRE__OP__STATUS, NULL, &status))
		return EXIT_FAILED;
	p.status = status;
	table_init(&p.table, titles, 0);
	p.list = json_array();
	code = marks_each(&ask, o.operands[0] ? id : NULL, print_one, &p);
	if (code || p.json || !p.count) {
		for (size_t i = 0; i < p.table.count; i++)
			free(p.table.cells[i]);
		free(p.table.cells);
	}
	if (code) {
		json_decref(p.list);
		return EXIT_FAILED;
	}
	if (p.json)
		return json_finish(p.list);
	json_decref(p.list);
	if (!p.count) {
		printf("Nothing is left to upload.\n");
		return EXIT_DONE;
	}
	if (table_print(&p.table, stdout))
		return verb_fail("cannot list what is not uploaded: out of memory");
	print_gone(status, o.operands[0] ? id : NULL);
	return EXIT_DONE;
}

/* ---- drop ---- */

struct total {
	uint64_t files, bytes;
};

static void total_add(void *context, const Wire__MarkInfo *m)
{
	struct total *t = context;

	t->files++;
	t->bytes += m->mark->size;
}

/* 1: yes; 0: no; -errno, which was said. */
static int drop_confirm(struct ask *ask, const char *name, const uint8_t *id)
{
	char count[UNITS_TEXT], size[UNITS_TEXT];
	struct total t = { 0 };
	int r = marks_each(ask, id, total_add, &t);

	if (r || !t.files)
		return r ? r : 1; /* nothing is lost */
	return ask_confirm("Give up the newest data of %s file%s, %s in all, which is in %s and not uploaded?  It is lost then.",
			   count_format(count, t.files), t.files == 1 ? "" : "s", size_format(size, t.bytes), name);
}

static int writeback_drop(int argc, char **argv)
{
	Wire__MarksDropRequest request = WIRE__MARKS_DROP_REQUEST__INIT;
	Wire__MarksDropReply *reply;
	const char *server = NULL;
	bool yes = false, json = false;
	struct option_spec specs[] = {
		OPTION_SERVER(&server),
		OPTION_JSON(&json),
		{ "yes", NULL, OPTION_FLAG, &yes, "Do not ask.", .not_in_file = true },
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "writeback drop",
		.usage = "DIR|ID [OPTION...]",
		.summary = "give up data that is not uploaded",
		.description =
			"For a machine, or a disk, that does not come back: its files can be used again, and hold what was "
			"stored "
			"of them.  What was in the write-back directory only is lost.  If the directory is still there, mount "
			"the volume with it instead, and everything is uploaded.\n"
			"\n"
			"The ids are those that epochfs writeback list shows.  It asks first, and says how many files, and of "
			"what "
			"size, it is about.",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
		.examples =
			"epochfs writeback drop 5f2c0b3a9d1e47f8a6b0c4d2e8f01357\nGive up what a machine that burnt down had.\n"
			"epochfs writeback drop /nvme/writeback --yes\nGive up what is in a directory, without being asked.\n",
	};
	char text[UNITS_TEXT];
	uint8_t id[SPOOL_ID];
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	code = id_of(o.operands[0], id);
	if (code)
		return id_fail("give up", o.operands[0], code);

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "give up %s", o.operands[0]))
		return EXIT_FAILED;
	if (!yes) {
		int confirmed = drop_confirm(&ask, o.operands[0], id);

		if (confirmed < 0)
			return EXIT_FAILED;
		if (!confirmed)
			return verb_fail("nothing was given up");
	}
	request.writeback = (ProtobufCBinaryData){ .len = SPOOL_ID, .data = id };
	if (ask_call(&ask, WIRE__OP__MARKS_DROP, &request, &reply))
		return EXIT_FAILED;
	if (json)
		return json_finish(json_pack("{s:o}", "files", json_count(reply->files)));
	printf("%s can be used again; %s.\n", counted_format(text, reply->files, "file"),
	       reply->files == 1 ? "it holds what was stored of it" : "they hold what was stored of them");
	return EXIT_DONE;
}

int verb_writeback(int argc, char **argv)
{
	static const struct verb verbs[] = {
		{ "list", "list files with data that is not uploaded yet", writeback_list },
		{ "drop", "give up data that is not uploaded", writeback_drop },
		{ 0 },
	};
	static const struct verb_group group = {
		.name = "epochfs writeback",
		.summary = "data of mounts with --writeback that is not uploaded yet",
		.description =
			"With epochfs mount --writeback DIR, fsync returns when the local disk has the data, and it is uploaded "
			"afterwards.  Until then nobody else can read such a file: other mounts wait for the upload, or get an "
			"error if the mount that has the data is gone.  Mounting the volume again with the same DIR uploads it.",
		.verbs = verbs,
	};

	return verbs_run(&group, argc, argv);
}
