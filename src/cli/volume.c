/* epochfs volume: create, list, show, set, delete. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/units.h"
#include "block/extent.h"
#include "cli/ask.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/table.h"
#include "cli/verbs.h"
#include "rpc/caller.h"

#define NAME_MAX_LENGTH 63
#define RETENTION_MAX_S (3650ull * 86400)
#define RETENTION_DEFAULT_S 86400
#define LIMIT_MAX ((uint64_t)1 << 60)

static const char *consistency_text(const Wire__Volume *v) { return v->relaxed ? "relaxed" : "strict"; }

static json_t *volume_json(const Wire__Volume *v)
{
	return json_pack("{s:s, s:o, s:o, s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "name", v->name, "id",
			 json_count(v->id), "block_size", json_count(v->block_size), "compression", v->compression, "retention_s",
			 json_count(v->retention_s), "max_bytes", json_count(v->max_bytes), "max_files", json_count(v->max_files),
			 "consistency", consistency_text(v), "created", json_time(v->created_ns), "used_bytes",
			 json_count(v->used_bytes), "used_files", json_count(v->used_files), "trash_bytes",
			 json_count(v->trash_bytes), "trash_files", json_count(v->trash_files), "sessions",
			 json_count(v->sessions));
}

static const char *limit_text(char *out, uint64_t limit, char *(*format)(char *, uint64_t))
{
	return limit ? format(out, limit) : "none";
}

static int volume_print(const Wire__Volume *v)
{
	char a[UNITS_TEXT], b[UNITS_TEXT];
	struct table t;

	table_init(&t, NULL, 2);
	table_cell(&t, "Name");
	table_cell(&t, "%s", v->name);
	table_cell(&t, "Block size");
	table_cell(&t, "%s", size_format(a, v->block_size));
	table_cell(&t, "Compression");
	table_cell(&t, "%s", v->compression);
	table_cell(&t, "Retention");
	table_cell(&t, "%s", duration_format(a, v->retention_s));
	table_cell(&t, "Consistency");
	table_cell(&t, "%s", consistency_text(v));
	table_cell(&t, "Size limit");
	table_cell(&t, "%s", limit_text(a, v->max_bytes, size_format));
	table_cell(&t, "File limit");
	table_cell(&t, "%s", limit_text(a, v->max_files, count_format));
	table_cell(&t, "Used");
	table_cell(&t, "%s in %s", size_format(a, v->used_bytes), counted_format(b, v->used_files, "file"));
	table_cell(&t, "In the trash");
	table_cell(&t, "%s in %s", size_format(a, v->trash_bytes), counted_format(b, v->trash_files, "file"));
	table_cell(&t, "Mounts");
	table_cell(&t, "%s", count_format(a, v->sessions));
	table_cell(&t, "Created");
	table_cell(&t, "%s", date_format(a, v->created_ns));
	return table_print(&t, stdout) ? verb_fail("cannot show volume: out of memory") : EXIT_DONE;
}

/* The settings of a volume as create and set take them. */
struct settings {
	uint64_t block_size, retention_s, max_bytes, max_files;
	const char *compression, *consistency;
};

static int compression_parse(void *context, const char *value, char *why, size_t why_size)
{
	enum codec codec;
	int level;

	if (codec_parse(value, &codec, &level)) {
		snprintf(why, why_size, "it must be none, lz4, zstd or zstd:LEVEL, with a level of 1 to 19");
		return -EINVAL;
	}
	*(const char **)context = value;
	return 0;
}

#define OPTION_COMPRESSION(s) \
	{ \
		"compression", "CODEC", OPTION_CALL, &(s).compression, \
			"How new data is compressed: none, lz4, zstd or zstd:LEVEL (1 to 19; 3 if not said).  Data that does " \
			"not shrink is kept " \
			"as it is.  Default: none.", \
			.call = compression_parse \
	}
#define OPTION_RETENTION(s) \
	{ \
		"retention", "TIME", OPTION_DURATION, &(s).retention_s, \
			"For how long what is deleted can be restored (see epochfs trash --help): 12h, 30d, or 0 for not at " \
			"all.  A full store frees the oldest of it before its time.  Default: 1d.", \
			.max = RETENTION_MAX_S \
	}
#define OPTION_MAX_BYTES(s) \
	{ \
		"max-bytes", "SIZE", OPTION_SIZE, &(s).max_bytes, \
			"The most its files may hold together, at least a block; 0 or none for no limit.  Writers over it get " \
			"EDQUOT.  Default: none.", \
			.max = LIMIT_MAX \
	}
#define OPTION_MAX_FILES(s) \
	{ \
		"max-files", "COUNT", OPTION_COUNT, &(s).max_files, \
			"The most files, directories and links it may have; 0 or none for no limit.  Default: none.", \
			.max = LIMIT_MAX \
	}
#define OPTION_CONSISTENCY(s) \
	{ \
		"consistency", "MODE", OPTION_CHOICE, &(s).consistency, \
			"strict: every mount sees at once what others do, as on one machine.  relaxed: names, attributes and " \
			"sizes " \
			"may be a second old, and what others write is seen when it is stored: after fsync, or about a " \
			"second " \
			"later.  Mounts go by what it was when they were mounted.  Default: strict.", \
			.choices = "strict|relaxed" \
	}

static int check_name(const struct options *o, const char *name)
{
	size_t length = strlen(name);
	bool good = length >= 1 && length <= NAME_MAX_LENGTH &&
		    (islower((unsigned char)name[0]) || isdigit((unsigned char)name[0]));

	for (size_t i = 0; good && i < length; i++)
		good = islower((unsigned char)name[i]) || isdigit((unsigned char)name[i]) || strchr("._-", name[i]);
	if (good)
		return OPTIONS_RUN;
	return options_misused(
		o,
		"cannot name a volume '%s': a name has 1 to %d of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit",
		name, NAME_MAX_LENGTH);
}

static int check_block_size(const struct options *o, uint64_t size)
{
	char bytes[UNITS_TEXT];

	if (size & (size - 1))
		return options_misused(
			o, "cannot use a block size of %s bytes: it must be a power of two, such as 256KiB, 4MiB or 16MiB",
			count_format(bytes, size));
	return OPTIONS_RUN;
}

static int volume_create(int argc, char **argv)
{
	struct settings s = {
		.block_size = BLOCK_DEFAULT, .retention_s = RETENTION_DEFAULT_S, .compression = "none", .consistency = "strict"
	};
	const char *server = NULL;
	bool json = false;
	struct option_spec specs[] = {
		{ "block-size", "SIZE", OPTION_SIZE, &s.block_size,
		  "The size of the objects large files are cut into, and of the packs small files share: a power of two, so 4MiB "
		  "or 4M, but not 4MB.  It cannot be changed later.  Default: 4MiB.",
		  .min = BLOCK_MIN, .max = BLOCK_MAX },
		OPTION_COMPRESSION(s),
		OPTION_RETENTION(s),
		OPTION_MAX_BYTES(s),
		OPTION_MAX_FILES(s),
		OPTION_CONSISTENCY(s),
		OPTION_SERVER(&server),
		OPTION_JSON(&json),
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "volume create",
		.usage = "NAME [OPTION...]",
		.summary = "make a new, empty volume",
		.examples = "epochfs volume create training\n"
			    "Make a volume with the defaults.\n"
			    "epochfs volume create datasets --compression zstd --retention 30d --max-bytes 2TiB\n"
			    "Compress, keep deleted files for a month, hold no more than 2 TiB.\n",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
	};
	Wire__Volume volume = WIRE__VOLUME__INIT;
	Wire__VolumeReply *reply = NULL;
	int code = options_parse(&o, argc, argv);

	if (code == OPTIONS_RUN)
		code = check_name(&o, o.operands[0]);
	if (code == OPTIONS_RUN)
		code = check_block_size(&o, s.block_size);
	if (code != OPTIONS_RUN)
		return code;
	volume.name = o.operands[0];
	volume.block_size = (uint32_t)s.block_size;
	volume.compression = (char *)s.compression;
	volume.retention_s = s.retention_s;
	volume.max_bytes = s.max_bytes;
	volume.max_files = s.max_files;
	volume.relaxed = !strcmp(s.consistency, "relaxed");

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "create volume %s", volume.name) || ask_call(&ask, WIRE__OP__VOLUME_CREATE, &volume, &reply))
		return EXIT_FAILED;
	if (json)
		return json_finish(volume_json(reply->volume));
	printf("Created volume %s.  Mount it with: epochfs mount %s DIR\n", volume.name, volume.name);
	return EXIT_DONE;
}

static int volume_list(int argc, char **argv)
{
	const char *server = NULL;
	bool json = false;
	struct option_spec specs[] = { OPTION_SERVER(&server), OPTION_JSON(&json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "volume list",
		.usage = "[OPTION...]",
		.summary = "list the volumes of a server",
		.specs = specs,
		.examples = "epochfs volume list\nList the volumes.\n",
	};
	Wire__VolumeListReply *reply = NULL;
	char titles[] = "NAME|>USED|>FILES|>LIMIT|>TRASH|COMPRESSION|RETENTION|CONSISTENCY|>MOUNTS";
	struct table t;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "list the volumes") || ask_call(&ask, WIRE__OP__VOLUME_LIST, NULL, &reply))
		return EXIT_FAILED;
	if (json) {
		json_t *list = json_array();

		for (size_t i = 0; i < reply->n_volumes; i++)
			json_append(&list, volume_json(reply->volumes[i]));
		return json_finish(list);
	}
	if (!reply->n_volumes) {
		printf("No volumes yet.  Make one with: epochfs volume create NAME\n");
		return EXIT_DONE;
	}
	table_init(&t, titles, 0);
	for (size_t i = 0; i < reply->n_volumes; i++) {
		const Wire__Volume *v = reply->volumes[i];
		char text[UNITS_TEXT];

		table_cell(&t, "%s", v->name);
		table_cell(&t, "%s", size_format(text, v->used_bytes));
		table_cell(&t, "%s", count_format(text, v->used_files));
		table_cell(&t, "%s", limit_text(text, v->max_bytes, size_format));
		table_cell(&t, "%s", size_format(text, v->trash_bytes));
		table_cell(&t, "%s", v->compression);
		table_cell(&t, "%s", duration_format(text, v->retention_s));
		table_cell(&t, "%s", consistency_text(v));
		table_cell(&t, "%s", count_format(text, v->sessions));
	}
	return table_print(&t, stdout) ? verb_fail("cannot list the volumes: out of memory") : EXIT_DONE;
}

static int volume_show(int argc, char **argv)
{
	const char *server = NULL;
	bool json = false;
	struct option_spec specs[] = { OPTION_SERVER(&server), OPTION_JSON(&json), { 0 } };
	CLEANUP_OPTIONS struct options o = {
		.name = "volume show",
		.usage = "NAME [OPTION...]",
		.summary = "show the settings and counters of a volume",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
		.examples = "epochfs volume show training --json\nShow it for a program.\n",
	};
	Wire__VolumeNameRequest request = WIRE__VOLUME_NAME_REQUEST__INIT;
	Wire__VolumeReply *reply = NULL;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	request.name = o.operands[0];

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "show volume %s", request.name) || ask_call(&ask, WIRE__OP__VOLUME_SHOW, &request, &reply))
		return EXIT_FAILED;
	return json ? json_finish(volume_json(reply->volume)) : volume_print(reply->volume);
}

static int volume_set(int argc, char **argv)
{
	struct settings s = { 0 };
	const char *server = NULL;
	bool json = false;
	struct option_spec specs[] = {
		OPTION_COMPRESSION(s), OPTION_RETENTION(s),    OPTION_MAX_BYTES(s), OPTION_MAX_FILES(s),
		OPTION_CONSISTENCY(s), OPTION_SERVER(&server), OPTION_JSON(&json),  { 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "volume set",
		.usage = "NAME OPTION...",
		.summary = "change the settings of a volume",
		.description =
			"Limits and retention change at once, compression and consistency for mounts made from now on; what "
			"is stored stays as it is.  The block size cannot be changed.",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
		.examples = "epochfs volume set training --max-bytes 500GiB --retention 7d\nLimit its size and keep deleted "
			    "files for a week.\n"
			    "epochfs volume set training --max-bytes none\nLift the limit.\n",
	};
	const struct {
		const char *name;
		const void *value;
	} fields[] = {
		{ "compression", &s.compression }, { "retention", &s.retention_s },   { "max_bytes", &s.max_bytes },
		{ "max_files", &s.max_files },     { "consistency", &s.consistency },
	};
	char *names[sizeof(fields) / sizeof(fields[0])];
	Wire__Volume volume = WIRE__VOLUME__INIT;
	Wire__VolumeSetRequest request = WIRE__VOLUME_SET_REQUEST__INIT;
	Wire__VolumeReply *reply = NULL;
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	volume.name = o.operands[0];
	volume.compression = s.compression ? (char *)s.compression : "";
	volume.retention_s = s.retention_s;
	volume.max_bytes = s.max_bytes;
	volume.max_files = s.max_files;
	volume.relaxed = s.consistency && !strcmp(s.consistency, "relaxed");
	request.volume = &volume;
	request.fields = names;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (options_given(&o, fields[i].value))
			names[request.n_fields++] = (char *)fields[i].name;
	}
	if (!request.n_fields)
		return options_misused(&o, "cannot change volume %s: nothing to change was given", volume.name);

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "change volume %s", volume.name) || ask_call(&ask, WIRE__OP__VOLUME_SET, &request, &reply))
		return EXIT_FAILED;
	return json ? json_finish(volume_json(reply->volume)) : volume_print(reply->volume);
}

static void silence_format(char *out, size_t size, struct ask *ask, const Wire__SessionInfo *m)
{
	int64_t ns = rpc_server_clock_ns(ask->rpc) - m->last_contact_ns;
	char time[UNITS_TEXT];

	duration_format(time, ns < NS_PER_S ? 1 : (uint64_t)(ns / NS_PER_S));
	if (m->unheard)
		snprintf(out, size, "it was not heard of since the restart of the server, %s ago", time);
	else
		snprintf(out, size, "it was last heard of %s ago", time);
}

static int refuse_mounted(struct ask *ask, const char *name)
{
	Wire__StatusReply *status = NULL;

	if (ask_call(ask, WIRE__OP__STATUS, NULL, &status))
		return EXIT_FAILED;
	for (size_t i = 0; i < status->n_sessions; i++) {
		const Wire__SessionInfo *m = status->sessions[i];
		char host[256], mount_point[4096], silence[UNITS_TEXT + 80], limit[UNITS_TEXT];

		if (strcmp(m->volume, name))
			continue;
		text_escape(host, sizeof(host), m->host, strlen(m->host));
		text_escape(mount_point, sizeof(mount_point), m->mount_point, strlen(m->mount_point));
		silence_format(silence, sizeof(silence), ask, m);
		return verb_fail("cannot delete volume %s: it is mounted on %s at %s; unmount it first (%s; "
				 "if it was killed, the server forgets it after %s of silence)",
				 name, host, mount_point, silence, duration_format(limit, status->session_timeout_s));
	}
	return verb_fail("cannot delete volume %s: it is mounted; unmount it first", name);
}

/* Tells what would be lost and asks; OPTIONS_RUN if it may go.  Nobody is asked about a
 * volume that cannot go because it is mounted. */
static int confirm_delete(struct ask *ask, Wire__VolumeNameRequest *request)
{
	char bytes[UNITS_TEXT], files[UNITS_TEXT];
	Wire__VolumeReply *reply = NULL;

	if (ask_call(ask, WIRE__OP__VOLUME_SHOW, request, &reply))
		return EXIT_FAILED;
	if (reply->volume->sessions)
		return refuse_mounted(ask, request->name);
	if (!ask_confirm("Delete volume %s with %s in %s?  This cannot be undone.", request->name,
			 size_format(bytes, reply->volume->used_bytes), counted_format(files, reply->volume->used_files, "file")))
		return verb_fail("cannot delete volume %s: not confirmed; answer y, or pass --yes", request->name);
	return OPTIONS_RUN;
}

static int volume_delete(int argc, char **argv)
{
	const char *server = NULL;
	bool json = false, yes = false;
	struct option_spec specs[] = {
		{ "yes", NULL, OPTION_FLAG, &yes, "Do not ask." },
		OPTION_SERVER(&server),
		OPTION_JSON(&json),
		{ 0 },
	};
	CLEANUP_OPTIONS struct options o = {
		.name = "volume delete",
		.usage = "NAME [OPTION...]",
		.summary = "delete a volume and everything in it",
		.description = "Asks before it does.  A volume that is mounted anywhere is not deleted, nor asked about.  Its "
			       "trash goes with it: "
			       "nothing can be restored afterwards.",
		.specs = specs,
		.operands_min = 1,
		.operands_max = 1,
		.examples = "epochfs volume delete scratch --yes\nDelete it without asking.\n",
	};
	Wire__VolumeNameRequest request = WIRE__VOLUME_NAME_REQUEST__INIT;
	char why[ASK_WHY];
	int code = options_parse(&o, argc, argv);

	if (code != OPTIONS_RUN)
		return code;
	request.name = o.operands[0];

	CLEANUP_ASK struct ask ask;

	if (ask_open(&ask, server, "delete volume %s", request.name))
		return EXIT_FAILED;
	if (!yes) {
		code = confirm_delete(&ask, &request);
		if (code != OPTIONS_RUN)
			return code;
	}
	code = ask_quietly(&ask, WIRE__OP__VOLUME_DELETE, &request, NULL, why, sizeof(why));
	if (code == -EBUSY)
		return refuse_mounted(&ask, request.name);
	if (code)
		return ask_failed(&ask, code, why);
	if (json)
		return json_finish(json_pack("{s:s}", "deleted", request.name));
	printf("Deleted volume %s.\n", request.name);
	return EXIT_DONE;
}

int verb_volume(int argc, char **argv)
{
	static const struct verb verbs[] = {
		{ "create", "make a new, empty volume", volume_create },
		{ "list", "list the volumes of a server", volume_list },
		{ "show", "show the settings and counters of a volume", volume_show },
		{ "set", "change the settings of a volume", volume_set },
		{ "delete", "delete a volume and everything in it", volume_delete },
		{ 0 },
	};
	static const struct verb_group group = {
		.name = "epochfs volume",
		.summary = "create, list, show, change and delete volumes",
		.description = "A volume is a file system of its own: it has its own root directory, settings, limits and trash.",
		.examples = "epochfs volume create training --retention 30d\nMake a volume whose deleted files can be restored "
			    "for 30 days.\n"
			    "epochfs volume list\nSee all volumes.\n",
		.verbs = verbs,
	};

	return verbs_run(&group, argc, argv);
}
