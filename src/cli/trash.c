/* epochfs trash: list, restore, empty. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/ask.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/table.h"
#include "cli/verbs.h"
#include "rpc/caller.h"

#define PAGE_ENTRIES 1000
#define FREEING_NS (2 * NS_PER_S) /* the server looks every second for what is to be freed, and for what is to be deleted */
#define PATH_TEXT (4 * 4096)

/* All of the trash of a volume, oldest first; the entries are the arena's. */
struct trash {
	Wire__TrashEntry **entries;
	size_t count;
};

static int trash_load(struct ask *ask, const char *volume, struct trash *out)
{
	Wire__TrashListRequest request = WIRE__TRASH_LIST_REQUEST__INIT;
	Wire__TrashListReply *reply = NULL;

	request.volume = (char *)volume;
	request.max = PAGE_ENTRIES;
	do {
		Wire__TrashEntry **bigger;
		int r = ask_call(ask, WIRE__OP__TRASH_LIST, &request, &reply);

		if (r)
			return r;
		bigger = reallocarray(out->entries, out->count + reply->n_entries + 1, sizeof(*bigger));
		if (!bigger) {
			verb_fail("cannot %s: out of memory", ask->what);
			return -ENOMEM;
		}
		out->entries = bigger;
		for (size_t i = 0; i < reply->n_entries; i++)
			out->entries[out->count++] = reply->entries[i];
		request.from = reply->next;
	} while (reply->next.len);
	return 0;
}

static void trash_free(struct trash *t) { free(t->entries); }
#define CLEANUP_TRASH __attribute__((cleanup(trash_free)))

/* A path made safe to show. */
static char *shown(char out[PATH_TEXT], struct ProtobufCBinaryData path)
{
	text_escape(out, PATH_TEXT, (const char *)path.data, path.len);
	return out;
}

static const char *type_text(uint32_t mode)
{
	return S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "link" : S_ISREG(mode) ? "file" : "special";
}

static json_t *entry_json(const Wire__TrashEntry *e)
{
	return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:o}", "inode", json_count(e->inode), "path",
			 json_bytes(e->path.data, e->path.len), "type", type_text(e->mode), "size", json_count(e->size), "mode",
			 json_count(e->mode & 07777), "deleted", json_time(e->deleted_ns), "expires", json_time(e->expires_ns));
}

static int print_entries(const struct trash *trash)
{
	char titles[] = "DELETED|RESTORABLE UNTIL|TYPE|>SIZE|>INODE|PATH";
	struct table t;

	table_init(&t, titles, 0);
	for (size_t i = 0; i < trash->count; i++) {
		const Wire__TrashEntry *e = trash->entries[i];
		char text[UNITS_TEXT], path[PATH_TEXT];

		table_cell(&t, "%s", date_format(text, e->deleted_ns));
		table_cell(&t, "%s", date_format(text, e->expires_ns));
		table_cell(&t, "%s", type_text(e->mode));
		table_cell(&t, "%s", S_ISREG(e->mode) ? size_format(text, e->size) : "");
		table_cell(&t, "%" PRIu64, e->inode);
		table_cell(&t, "%s", shown(path, e->path));
	}
	return table_print(&t, stdout);
}

static int trash_list(int argc, char **argv)
{
	const char *server = NULL;
	bool json = false;
	struct option_spec specs[] = { OPTION_SERVER(&server), OPTION_JSON(&json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "trash list",
		.usage = "VOLUME [OPTION...]",
		.summary = "list what was deleted and can be restored",
		.description = "Oldest first.  The inode number tells apart several files that were deleted under one name.",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
		.examples = "epochfs trash list training\nSee what can be restored.\n",
	};
	CLEANUP_TRASH struct trash trash = { 0 };
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "list the trash of %s", o.operands[0]) || trash_load(&ask, o.operands[0], &trash))
		return EXIT_FAILED;
	if (json) {
		json_t *list = json_array();

		for (size_t i = 0; i < trash.count; i++)
			json_append(&list, entry_json(trash.entries[i]));
		return json_finish(list);
	}
	if (!trash.count) {
		printf("The trash of %s is empty.\n", o.operands[0]);
		return EXIT_DONE;
	}
	return print_entries(&trash) ? verb_fail("cannot list the trash: out of memory") : EXIT_DONE;
}

/* ---- Restoring ---------------------------------------------------------------- */

static struct ProtobufCBinaryData trimmed(const char *path, size_t length)
{
	while (length && *path == '/')
		path++, length--;
	while (length && path[length - 1] == '/')
		length--;
	return (struct ProtobufCBinaryData){ .data = (uint8_t *)(length ? path : ""), .len = length };
}

static struct ProtobufCBinaryData path_of(const Wire__TrashEntry *e) { return trimmed((const char *)e->path.data, e->path.len); }

static bool same_path(struct ProtobufCBinaryData a, struct ProtobufCBinaryData b)
{
	return a.len == b.len && !memcmp(a.data, b.data, a.len);
}

static bool is_beneath(struct ProtobufCBinaryData path, struct ProtobufCBinaryData folder)
{
	return path.len > folder.len && !memcmp(path.data, folder.data, folder.len) &&
	       (!folder.len || path.data[folder.len] == '/');
}

/* By path, so that directories come before what is in them; the newest of several
 * of one name first. */
static int compare_entries(const void *left, const void *right)
{
	const Wire__TrashEntry *a = *(Wire__TrashEntry *const *)left, *b = *(Wire__TrashEntry *const *)right;
	struct ProtobufCBinaryData x = path_of(a), y = path_of(b);
	int r = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);

	if (r)
		return r;
	if (x.len != y.len)
		return x.len < y.len ? -1 : 1;
	return a->deleted_ns > b->deleted_ns ? -1 : a->deleted_ns < b->deleted_ns;
}

/* Moves what is asked for to the front; how many those are. */
static size_t choose_entries(struct trash *trash, const char *asked, bool recursive)
{
	struct ProtobufCBinaryData path = trimmed(asked, strlen(asked));
	struct ProtobufCBinaryData last = { 0 };
	size_t chosen = 0;
	uint64_t inode = 0;
	bool by_number = !count_parse(asked, &inode);

	qsort(trash->entries, trash->count, sizeof(*trash->entries), compare_entries);
	for (size_t i = 0; i < trash->count; i++) {
		Wire__TrashEntry *e = trash->entries[i];
		struct ProtobufCBinaryData here = path_of(e);
		bool wanted = same_path(here, path) || (recursive && is_beneath(here, path));

		if (wanted && chosen && same_path(here, last))
			continue;
		if (!wanted)
			continue;
		last = here;
		trash->entries[chosen++] = e;
	}
	for (size_t i = 0; !chosen && by_number && i < trash->count; i++) {
		if (trash->entries[i]->inode == inode)
			trash->entries[chosen++] = trash->entries[i];
	}
	return chosen;
}

static int restore_entry(struct ask *ask, const char *volume, const Wire__TrashEntry *e, const char *to, json_t **list)
{
	Wire__TrashRestoreRequest request = WIRE__TRASH_RESTORE_REQUEST__INIT;
	char path[PATH_TEXT];
	Wire__TrashRestoreReply *reply = NULL;

	request.volume = (char *)volume;
	request.inode = e->inode;
	if (to)
		request.to = trimmed(to, strlen(to));
	snprintf(ask->what, sizeof(ask->what), "restore %.300s", shown(path, e->path));
	if (ask_call(ask, WIRE__OP__TRASH_RESTORE, &request, &reply))
		return EXIT_FAILED;
	if (*list) {
		json_append(list, json_pack("{s:o, s:o}", "inode", json_count(e->inode), "path",
					    json_bytes(reply->path.data, reply->path.len)));
		return EXIT_DONE;
	}
	printf("Restored %s\n", shown(path, reply->path));
	return EXIT_DONE;
}

static int trash_restore(int argc, char **argv)
{
	const char *server = NULL, *to = NULL;
	bool json = false, recursive = false;
	struct option_spec specs[] = {
		{ "to", "PATH", OPTION_TEXT, &to, "Restore it under this path of the volume instead of where it was." },
		{ "recursive", NULL, OPTION_FLAG, &recursive,
		  "Restore a directory with everything that was deleted beneath it." },
		OPTION_SERVER(&server),
		OPTION_JSON(&json),
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "trash restore",
		.usage = "VOLUME PATH|INODE [OPTION...]",
		.summary = "bring back what was deleted",
		.description = "PATH is the path in the volume; of several files deleted under it, the last one comes back.  "
			       "INODE, from epochfs trash list, names one exactly.  Directories on the way that are gone are "
			       "made again.  Nothing is overwritten: if the name is taken, say where else to put it (--to).",
		.specs = specs,
		.operands_min = 2,
		.operands_max = 2,
		.examples = "epochfs trash restore training runs/7/model.pt\nBring back a file.\n"
			    "epochfs trash restore training runs/7 --recursive\nBring back a directory with all that was in it.\n"
			    "epochfs trash restore training 4711 --to rescued.pt\nBring back one of several files of one name, "
			    "under another.\n",
	};
	CLEANUP_TRASH struct trash trash = { 0 };
	json_t *list = NULL;
	size_t chosen;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	if (to && recursive)
		return options_misused(&o, "cannot use --to with --recursive: one path is no place for many files");

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "restore %s", o.operands[1]) || trash_load(&ask, o.operands[0], &trash))
		return EXIT_FAILED;
	chosen = choose_entries(&trash, o.operands[1], recursive);
	if (!chosen)
		return verb_fail("cannot restore %s: it is not in the trash of %s; see epochfs trash list %s", o.operands[1],
				 o.operands[0], o.operands[0]);
	if (json)
		list = json_array();
	for (size_t i = 0; i < chosen; i++) {
		if (restore_entry(&ask, o.operands[0], trash.entries[i], to, &list))
			code = EXIT_FAILED;
	}
	if (json)
		json_finish(list);
	return code == EXIT_FAILED ? EXIT_FAILED : EXIT_DONE;
}

/* ---- Emptying ------------------------------------------------------------------ */

static int trash_empty(int argc, char **argv)
{
	uint64_t older_s = 0;
	const char *server = NULL;
	bool json = false, yes = false;
	struct option_spec specs[] = {
		{ "older-than", "TIME", OPTION_DURATION, &older_s,
		  "Only what was deleted longer ago than this.  Default: everything." },
		{ "yes", NULL, OPTION_FLAG, &yes, "Do not ask." },
		OPTION_SERVER(&server),
		OPTION_JSON(&json),
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "trash empty",
		.usage = "VOLUME [OPTION...]",
		.summary = "free the space of what was deleted",
		.description =
			"The space is freed in the background.  The objects of a file stay in the store for the time that "
			"epochfs serve --grace says, for those who still read them (for an hour while there are "
			"replicas), and files that are still open until they are closed.  The space of small files, which share "
			"objects (packs), is back when epochfs gc has rewritten these.  The command says when the space is back "
			"at the earliest; epochfs status shows how much waits.",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
		.examples = "epochfs trash empty training --older-than 7d --yes\nFree what was deleted more than a week ago.\n",
	};
	Wire__TrashEmptyRequest request = WIRE__TRASH_EMPTY_REQUEST__INIT;
	Wire__TrashEmptyReply *reply = NULL;
	Wire__StatusReply *status = NULL;
	char files[UNITS_TEXT], bytes[UNITS_TEXT], date[UNITS_TEXT], grace[UNITS_TEXT], why[ASK_WHY];
	int64_t back_ns = 0;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	request.volume = o.operands[0];

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "empty the trash of %s", request.volume))
		return EXIT_FAILED;
	if (!yes && !ask_confirm("Empty the trash of %s?  This cannot be undone.", request.volume))
		return verb_fail("cannot empty the trash of %s: not confirmed; answer y, or pass --yes", request.volume);
	request.before_ns = INT64_MAX;
	if (options_given(&o, &older_s))
		request.before_ns = rpc_server_clock_ns(ask.rpc) - (int64_t)older_s * NS_PER_S;
	if (ask_call(&ask, WIRE__OP__TRASH_EMPTY, &request, &reply))
		return EXIT_FAILED;
	/* It is emptied, also if the server has ended since. */
	if (!ask_quietly(&ask, WIRE__OP__STATUS, NULL, &status, why, sizeof(why)) && status->grace_s && reply->files)
		back_ns = rpc_server_clock_ns(ask.rpc) + (int64_t)status->grace_s * NS_PER_S + FREEING_NS;
	if (json)
		return json_finish(json_pack("{s:o, s:o, s:o}", "files", json_count(reply->files), "bytes",
					     json_count(reply->bytes), "back", back_ns ? json_time(back_ns) : json_null()));
	printf("Freeing %s in %s.\n", size_format(bytes, reply->bytes), counted_format(files, reply->files, "file"));
	if (back_ns)
		printf("The space is back at %s at the earliest: what was freed stays in the store for %s (epochfs serve "
		       "--grace; an "
		       "hour while there are replicas).  The space of small files is back when epochfs gc has rewritten their "
		       "packs, that "
		       "of open files when they are closed.\n",
		       date_format(date, back_ns), duration_format(grace, status->grace_s));
	return EXIT_DONE;
}

int verb_trash(int argc, char **argv)
{
	static const struct verb verbs[] = {
		{ "list", "list what was deleted and can be restored", trash_list },
		{ "restore", "bring back what was deleted", trash_restore },
		{ "empty", "free the space of what was deleted", trash_empty },
		{ 0 },
	};
	static const struct verb_group group = {
		.name = "epochfs trash",
		.summary = "list and restore what was deleted, or free its space",
		.description = "What is deleted from a volume stays in its trash for the volume's retention time (epochfs volume "
			       "set --retention), then its space is freed.",
		.examples = "epochfs trash list training\nSee what can be restored.\nepochfs trash restore training "
			    "data/labels.csv\nBring back a file.\n",
		.verbs = verbs,
	};

	return verbs_run(&group, argc, argv);
}
