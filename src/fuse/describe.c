#include "fuse/describe.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"
#include "base/units.h"

static void text_add(struct buf *out, const char *text) { buf_append(out, text, strlen(text)); }

static void option_add(struct buf *out, const char *name, const char *value)
{
	if (out->len)
		text_add(out, " ");
	text_add(out, name);
	if (value) {
		text_add(out, " ");
		text_add(out, value);
	}
}

static void flag_add(struct buf *out, const char *name, bool given)
{
	if (given)
		option_add(out, name, NULL);
}

/* Quoted where a shell would take it for something else. */
static void path_add(struct buf *out, const char *name, const char *path)
{
	if (!path || !*path)
		return;
	if (!strpbrk(path, " \t\n'\"\\$`&|;<>()*?[]{}~#!")) {
		option_add(out, name, path);
		return;
	}
	option_add(out, name, "'");
	for (; *path; path++) {
		if (*path == '\'')
			text_add(out, "'\\'");
		buf_append(out, path, 1);
	}
	text_add(out, "'");
}

static void number_add(struct buf *out, const char *name, uint64_t n, const char *unit)
{
	char text[40];

	snprintf(text, sizeof(text), "%" PRIu64 "%s", n, unit);
	option_add(out, name, text);
}

/* To the byte, in the largest unit that can say that. */
static void size_add(struct buf *out, const char *name, uint64_t bytes)
{
	static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB" };
	size_t i = 0;

	for (; bytes && bytes % 1024 == 0 && i + 1 < sizeof(units) / sizeof(units[0]); i++)
		bytes /= 1024;
	number_add(out, name, bytes, units[i]);
}

static void amount_add(struct buf *out, const char *name, const struct cache_amount *a, unsigned default_percent)
{
	if (a->percent && a->percent != default_percent)
		number_add(out, name, a->percent, "%");
	else if (!a->percent && a->bytes)
		size_add(out, name, a->bytes);
}

static void time_add(struct buf *out, const char *name, int64_t ms, uint64_t default_s)
{
	char text[UNITS_TEXT], *to = text;

	if (ms <= 0 || (uint64_t)ms == default_s * 1000)
		return;
	duration_format(text, (uint64_t)ms / 1000);
	for (const char *from = text; (*to = *from); from++)
		to += *from != ' ';
	option_add(out, name, text);
}

/* 0 stands for the default, but where it is a choice. */
static void memory_add(struct buf *out, const char *name, uint64_t bytes, uint64_t default_bytes)
{
	if (bytes && bytes != default_bytes)
		size_add(out, name, bytes);
}

static void cache_add(struct buf *out, const struct client_options *o)
{
	for (int i = 0; i < o->cache_dir_count; i++)
		path_add(out, "--cache-dir", o->cache_dirs[i]);
	if (!o->cache_dir_count)
		return;
	amount_add(out, "--cache-size", &o->cache_size, MOUNT_CACHE_SIZE_PERCENT);
	amount_add(out, "--cache-min-free", &o->cache_min_free, MOUNT_CACHE_FREE_PERCENT);
	if (o->cache_share)
		number_add(out, "--cache-share", o->cache_share, "%");
}

static void replica_add(struct buf *out, const struct client_options *o)
{
	if (!o->replica_dir)
		return;
	option_add(out, "--replica", NULL);
	path_add(out, "--replica-dir", o->replica_dir);
	time_add(out, "--replica-max-lag", o->replica_max_lag_ms, MOUNT_REPLICA_LAG_S);
}

static void writeback_add(struct buf *out, const struct client_options *o)
{
	path_add(out, "--writeback", o->writeback_dir);
	amount_add(out, "--writeback-size", &o->writeback_size, 0);
	if (o->upload_limit)
		size_add(out, "--upload-limit", o->upload_limit);
}

static void kernel_add(struct buf *out, const struct mount_options *o)
{
	if (o->ring != RING_WHERE_POSSIBLE)
		option_add(out, "--fuse-uring", o->ring == RING_ALWAYS ? "on" : "off");
	if (o->pass != PASS_WHERE_POSSIBLE)
		option_add(out, "--passthrough", o->pass == PASS_ALWAYS ? "on" : "off");
	flag_add(out, "--allow-other", o->flags.others == OTHERS_ALLOWED);
	flag_add(out, "--no-allow-other", o->flags.others == OTHERS_NOT_ALLOWED);
	flag_add(out, "-o nodiratime", o->flags.nodiratime);
	flag_add(out, "-o nosuid", o->flags.nosuid);
	flag_add(out, "-o nodev", o->flags.nodev);
	flag_add(out, "-o noexec", o->flags.noexec);
}

void mount_options_describe(const struct mount_options *o, struct buf *out)
{
	const struct client_options *c = &o->client;

	flag_add(out, "--ro", o->flags.read_only && !c->replica_dir);
	flag_add(out, "--shared-locks", o->shared_locks);
	replica_add(out, c);
	path_add(out, "--subdir", c->subdir);
	flag_add(out, "--relatime", o->flags.atime == ATIME_RELATIVE);
	flag_add(out, "--strictatime", o->flags.atime == ATIME_ALWAYS);
	time_add(out, "--timeout", c->timeout_ms, MOUNT_TIMEOUT_S);
	memory_add(out, "--cache-memory", c->cache_bytes, MOUNT_MEMORY);
	if (c->readahead_bytes != MOUNT_READAHEAD)
		size_add(out, "--readahead", c->readahead_bytes);
	if (c->parallel && c->parallel != MOUNT_PARALLEL)
		number_add(out, "--parallel", c->parallel, "");
	cache_add(out, c);
	writeback_add(out, c);
	memory_add(out, "--write-memory", c->dirty_bytes, MOUNT_MEMORY);
	kernel_add(out, o);
	path_add(out, "--log-file", o->log_file);
	if (log_get_level() != LOG_LEVEL_INFO)
		option_add(out, "--log-level", log_level_name(log_get_level()));
	buf_le8(out, 0);
}
