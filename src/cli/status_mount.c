/* epochfs status DIR: what a mount tells about itself. */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/units.h"
#include "cli/json.h"
#include "cli/reach.h"
#include "cli/status.h"
#include "cli/table.h"
#include "cli/verbs.h"

#define PATIENCE_S 10

static uint64_t number(const json_t *object, const char *name)
{
	json_int_t n = json_integer_value(json_object_get(object, name));

	return n > 0 ? (uint64_t)n : 0;
}

static const char *text(const json_t *object, const char *name)
{
	const char *value = json_string_value(json_object_get(object, name));

	return value ? value : "?";
}

/* The list of figures as an object, for scripts. */
static int print_json(json_t *status)
{
	json_t *figures = json_object_get(status, "figures"), *object = json_object(), *figure;
	json_int_t silence = json_integer_value(json_object_get(status, "silence_ms"));
	size_t i;

	json_array_foreach(figures, i, figure) json_object_set(object, text(figure, "name"), json_object_get(figure, "value"));
	json_object_set_new(status, "figures", object);
	json_object_set_new(status, "last_heard", silence < 0 ? json_null() : json_time(clock_wall_ns() - silence * NS_PER_MS));
	json_object_del(status, "silence_ms");
	return json_finish(status);
}

static void connection_cell(struct table *t, const json_t *status)
{
	json_int_t silence = json_integer_value(json_object_get(status, "silence_ms"));
	char a[UNITS_TEXT], b[UNITS_TEXT];

	if (json_is_true(json_object_get(status, "connected")))
		table_cell(t, "connected");
	else if (silence < 0)
		table_cell(t, "away");
	else
		table_cell(t, "away: last heard %s, %s ago", date_format(a, clock_wall_ns() - silence * NS_PER_MS),
			   duration_format(b, (uint64_t)(silence / 1000) | 1));
}

static void consistency_cells(struct table *t, const json_t *status)
{
	char a[UNITS_TEXT];
	uint64_t age_ms = number(status, "age_max_ms");

	if (!json_is_true(json_object_get(status, "relaxed")) || !age_ms)
		return;
	table_cell(t, "Consistency");
	table_cell(t,
		   "relaxed: names, attributes and sizes are at most %s old; contents are what others have stored, by fsync or "
		   "about a second after they wrote it",
		   duration_format(a, age_ms / 1000));
}

static void replica_cells(struct table *t, const json_t *replica)
{
	char a[UNITS_TEXT], b[UNITS_TEXT];

	if (!json_is_object(replica))
		return;
	table_cell(t, "Replica");
	table_cell(t, "%s, at most %s old (served up to %s), in %s",
		   json_is_true(json_object_get(replica, "foreign"))     ? "the server has other data"
		   : json_is_true(json_object_get(replica, "copying"))   ? "copying"
		   : json_is_true(json_object_get(replica, "following")) ? "following"
									 : "without the server",
		   duration_format(a, number(replica, "age_ms") / 1000 + 1),
		   duration_format(b, number(replica, "max_lag_ms") / 1000), text(replica, "folder"));
}

static void passthrough_cells(struct table *t, const json_t *passthrough)
{
	if (!json_is_object(passthrough)) /* a mount that was made by an older version */
		return;
	table_cell(t, "Passthrough");
	if (json_is_true(json_object_get(passthrough, "on")))
		table_cell(t, "on");
	else
		table_cell(t, "off: %s", text(passthrough, "reason"));
}

static int print_mount(const json_t *status)
{
	struct table t;

	table_init(&t, NULL, 2);
	table_cell(&t, "Mount");
	table_cell(&t, "%s, volume %s%s, process %lu", text(status, "mount_point"), text(status, "volume"),
		   json_is_true(json_object_get(status, "only_reads")) ? ", read-only"
		   : json_is_true(json_object_get(status, "read_only"))
			   ? ", read-only until it is remounted (mount -o remount,rw)"
			   : "",
		   (unsigned long)number(status, "pid"));
	table_cell(&t, "Server");
	table_cell(&t, "%s", text(status, "servers"));
	table_cell(&t, "Connection");
	connection_cell(&t, status);
	consistency_cells(&t, status);
	replica_cells(&t, json_object_get(status, "replica"));
	if (json_is_string(json_object_get(status, "writeback_directory"))) {
		table_cell(&t, "Write-back");
		table_cell(&t, "in %s", text(status, "writeback_directory"));
	}
	table_cell(&t, "Company");
	table_cell(&t, "%s",
		   json_is_true(json_object_get(status, "alone")) ? "alone with the volume" : "others may use the volume");
	table_cell(&t, "Options");
	table_cell(&t, "%s", *text(status, "options") ? text(status, "options") : "the defaults");
	table_cell(&t, "Requests by");
	table_cell(&t, "%s", text(status, "transport"));
	passthrough_cells(&t, json_object_get(status, "passthrough"));
	return table_print(&t, stdout);
}

static int print_caches(const json_t *caches)
{
	char titles[] = "CACHE|STATE|>BYTES|>OF|>PINNED|>ENTRIES", a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT];
	struct table t;
	json_t *dir;
	size_t i;

	if (!json_array_size(caches)) {
		printf("No cache directory.\n");
		return 0;
	}
	table_init(&t, titles, 0);
	json_array_foreach(caches, i, dir)
	{
		table_cell(&t, "%s", text(dir, "path"));
		if (json_is_true(json_object_get(dir, "in_use")))
			table_cell(&t, "%s", json_is_true(json_object_get(dir, "counting")) ? "counting" : "in use");
		else
			table_cell(&t, "out of use: %s", text(dir, "reason"));
		table_cell(&t, "%s", size_format(a, number(dir, "bytes")));
		table_cell(&t, "%s", size_format(b, number(dir, "size_bytes")));
		table_cell(&t, "%s",
			   json_is_integer(json_object_get(dir, "pinned_bytes")) ? size_format(a, number(dir, "pinned_bytes"))
										 : "unknown");
		table_cell(&t, "%s", count_format(c, number(dir, "entries")));
	}
	return table_print(&t, stdout);
}

static int print_orders(const json_t *orders)
{
	char titles[] = "ORDER|>FILES TOLD|>READ|>WAITING|>AHEAD|>BYTES AHEAD|>WINDOW|>MADE READY|>FAILED";
	static const char *const counts[] = { "files", "read", "waiting", "ahead_files" };
	char a[UNITS_TEXT];
	struct table t;
	json_t *order;
	size_t i;

	if (!json_array_size(orders))
		return 0;
	printf("\n");
	table_init(&t, titles, 0);
	json_array_foreach(orders, i, order)
	{
		table_cell(&t, "%zu", i + 1);
		for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++)
			table_cell(&t, "%s", count_format(a, number(order, counts[k])));
		table_cell(&t, "%s", size_format(a, number(order, "ahead_bytes")));
		table_cell(&t, "%s", size_format(a, number(order, "window_bytes")));
		table_cell(&t, "%s", size_format(a, number(order, "ready_bytes")));
		table_cell(&t, "%s", count_format(a, number(order, "failed")));
	}
	return table_print(&t, stdout);
}

/* Those with a blank before their label belong to the one above them. */
static bool is_part(const json_t *figure) { return text(figure, "label")[0] == ' '; }

static bool is_limit(const json_t *figure)
{
	const char *end = strstr(text(figure, "name"), "_limit_bytes");

	return end && !strcmp(end, "_limit_bytes");
}

/* Whether one of a group is worth showing: a limit says nothing by itself. */
static bool group_is_used(const json_t *figures, size_t first)
{
	for (size_t i = first; i < json_array_size(figures) && (i == first || is_part(json_array_get(figures, i))); i++) {
		const json_t *figure = json_array_get(figures, i);

		if (number(figure, "value") && !is_limit(figure))
			return true;
	}
	return false;
}

/* What is not zero; --json has all. */
static int print_figures(const json_t *figures)
{
	char titles[] = "FIGURE|>VALUE", a[UNITS_TEXT];
	bool used = false;
	struct table t;
	json_t *figure;
	size_t i;

	table_init(&t, titles, 0);
	json_array_foreach(figures, i, figure)
	{
		uint64_t value = number(figure, "value");

		if (!is_part(figure))
			used = group_is_used(figures, i);
		if (!used || (is_part(figure) && !value))
			continue;
		table_cell(&t, "%s", text(figure, "label"));
		table_cell(&t, "%s", strcmp(text(figure, "unit"), "bytes") == 0 ? size_format(a, value) : count_format(a, value));
	}
	if (t.count)
		printf("\n");
	else
		t.headers[0] = NULL;
	return table_print(&t, stdout);
}

static uint64_t figure_value(const json_t *figures, const char *name)
{
	json_t *figure;
	size_t i;

	json_array_foreach(figures, i, figure) if (!strcmp(text(figure, "name"), name)) return number(figure, "value");
	return 0;
}

/* The mount names some of them only. */
static int print_unuploaded(const json_t *status)
{
	char titles[] = "NOT UPLOADED|>BYTES|STATE", a[UNITS_TEXT];
	const json_t *files = json_object_get(status, "not_uploaded");
	uint64_t all = figure_value(json_object_get(status, "figures"), "writeback_files");
	struct table t;
	json_t *file;
	size_t i;
	int error;

	if (!json_array_size(files))
		return 0;
	printf("\n");
	table_init(&t, titles, 0);
	json_array_foreach(files, i, file)
	{
		table_cell(&t, "inode %lu", (unsigned long)number(file, "inode"));
		table_cell(&t, "%s", size_format(a, number(file, "bytes")));
		table_cell(&t, "%s",
			   json_is_true(json_object_get(file, "damaged"))  ? "damaged"
			   : json_is_true(json_object_get(file, "synced")) ? "synced, on the local disk only"
									   : "not synced");
	}
	error = table_print(&t, stdout);
	if (all > i)
		printf("and %s more\n", count_format(a, all - i));
	printf("The names of those that are synced: epochfs writeback list %s\n", text(status, "writeback_directory"));
	return error;
}

int status_of_mount(const char *path, bool json)
{
	CLEANUP_REACH struct reach mount = { .fd = -1 };
	json_t *status;
	int error;

	if (reach_open(&mount, path, PATIENCE_S))
		return verb_fail("cannot show the mount of %s: %s", path, mount.why);
	status = reach_ask(&mount, json_pack("{s:s, s:b}", "op", "status", "pinned", 1));
	if (!status)
		return verb_fail("cannot show the mount of %s: %s", path, mount.why);
	if (json)
		return print_json(status);
	error = print_mount(status);
	printf("\n");
	if (!error)
		error = print_caches(json_object_get(status, "cache"));
	if (!error)
		error = print_orders(json_object_get(status, "orders"));
	if (!error)
		error = print_figures(json_object_get(status, "figures"));
	if (!error)
		error = print_unuploaded(status);
	json_decref(status);
	return error ? verb_fail("out of memory") : EXIT_DONE;
}
