/* What a mount tells about itself.  Numbers are one list: a figure that is added here is shown by `epochfs status DIR`, and in its
 * JSON, without anything else being changed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "client/control.h"
#include "client/state.h"

#define UNUPLOADED_SHOWN 8u

#define PINNED_NS (2 * NS_PER_S) /* some hundred thousand files are looked at; who asks waits for 10 s */

#define CONTACT_NS (9 * NS_PER_S) /* how long an answer is good for (lease.c), less what it needs to be forgotten */
#define AWAY_NS (7 * NS_PER_S)    /* a LEASE request is answered within three seconds, and the next one, too */

struct figure {
	const char *name, *unit, *label; /* of --json; "bytes" or "count"; for people */
	uint64_t value;
};

static json_t *number(uint64_t n) { return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n); }

/* jansson's names may be anything but text that is none. */
static json_t *text(const char *s)
{
	json_t *value = json_string(s);

	return value ? value : json_string("?");
}

/* ---- Figures ---- */

struct inode_counts {
	uint64_t open, unstored, unstored_bytes;
};

static void inode_count(struct inode *i, void *context)
{
	struct inode_counts *n = context;
	LOCKED(&i->lock);

	n->open += i->opens > 0;
	if (!inode_has_unstored(i))
		return;
	n->unstored++;
	n->unstored_bytes += i->dirty.bytes + i->storing.bytes;
}

static uint64_t uploader_memory(struct client *c, uint64_t *limit)
{
	LOCKED(&c->uploader.lock);
	*limit = c->uploader.limit;
	return c->uploader.cost;
}

static uint64_t prefetch_queued(struct client *c)
{
	LOCKED(&c->prefetcher.lock);
	return c->prefetcher.queue.count + c->prefetcher.asides.count;
}

struct writeback_counts {
	uint64_t files, synced, damaged, bytes;
};

static void writeback_count(void *context, const struct client_unuploaded *file)
{
	struct writeback_counts *n = context;

	n->files++;
	n->synced += file->synced;
	n->damaged += file->damaged;
	n->bytes += file->bytes;
}

static json_t *figures(struct client *c, const struct control_passing *passing)
{
	struct inode_counts inodes = { 0 };
	struct chunks_stats memory;
	struct cache_stats disk = { 0 };
	uint64_t write_limit, write_memory = uploader_memory(c, &write_limit);
	struct writeback_counts behind = { 0 };
	struct client_stats stats;
	json_t *list = json_array();

	client_stats(c, &stats);
	client_writeback_list(c, writeback_count, &behind);
	inodes_each(c, inode_count, &inodes);
	chunks_stats(c->chunks, &memory);
	if (c->cache)
		cache_stats(c->cache, &disk);
	const struct figure all[] = {
		{ "open_files", "count", "Open files", inodes.open },
		{ "passthrough_files", "count", "  passed through now", passing->files },
		{ "passthrough_opens", "count", "  opens passed through so far", passing->opens },
		{ "unstored_files", "count", "Files with unstored data", inodes.unstored },
		{ "unstored_bytes", "bytes", "Unstored data", inodes.unstored_bytes },
		{ "write_memory_bytes", "bytes", "Memory for writing", write_memory },
		{ "write_memory_limit_bytes", "bytes", "  at most", write_limit },
		{ "read_memory_bytes", "bytes", "Memory for reading", memory.bytes },
		{ "read_memory_limit_bytes", "bytes", "  at most", c->memory_bytes },
		{ "read_memory_hits", "count", "  chunks found in it", memory.hits },
		{ "read_memory_fetched_chunks", "count", "  chunks fetched", memory.fetched_chunks },
		{ "read_memory_fetched_bytes", "bytes", "  bytes fetched", memory.fetched_bytes },
		{ "read_bytes", "bytes", "Read by programs", stats.read_bytes },
		{ "server_bytes", "bytes", "  fetched from the server", stats.server_bytes },
		{ "disk_bytes", "bytes", "  from the cache directories", stats.disk_bytes },
		{ "round_trips", "count", "Round-trips to the server", stats.round_trips },
		{ "ahead_fetched_bytes", "bytes", "Read ahead", stats.ahead_fetched },
		{ "ahead_used_bytes", "bytes", "  and read since", stats.ahead_used },
		{ "ahead_wasted_bytes", "bytes", "  and given up unread", stats.ahead_wasted },
		{ "prefetch_queued", "count", "Read-ahead under way", prefetch_queued(c) },
		{ "writeback_files", "count", "Files not uploaded yet", behind.files },
		{ "writeback_synced_files", "count", "  synced, on the local disk only", behind.synced },
		{ "writeback_damaged_files", "count", "  damaged there", behind.damaged },
		{ "writeback_bytes", "bytes", "  bytes of them", behind.bytes },
		{ "writeback_used_bytes", "bytes", "  room they take", client_writeback_bytes(c) },
		{ "cache_hits", "count", "Cache hits", disk.hits },
		{ "cache_misses", "count", "Cache misses", disk.misses },
		{ "cache_adds", "count", "  added", disk.adds },
		{ "cache_refusals", "count", "  not let in", disk.refusals },
		{ "cache_evictions", "count", "  evicted", disk.evictions },
		{ "cache_damaged", "count", "  found damaged", disk.damaged },
		{ "cache_scrubbed_bytes", "bytes", "  verified in the background", disk.scrubbed_bytes },
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "name", all[i].name, "unit", all[i].unit, "label",
						      all[i].label, "value", number(all[i].value)));
	return list;
}

/* ---- The rest ---- */

/* null: it is in use. */
static json_t *trouble(const struct cache_dir_stats *d)
{
	if (d->in_use)
		return json_null();
	return text(d->error == ENODEV ? "it is gone, or its disk is" : strerror(d->error));
}

/* null: there are too many to look at, or it is out of use. */
static json_t *pinned_bytes(struct client *c, int dir, int64_t deadline_ns)
{
	uint64_t bytes;

	return cache_dir_pinned(c->cache, dir, deadline_ns, &bytes) == 0 ? number(bytes) : json_null();
}

/* `pinned`: with what is. */
static json_t *caches(struct client *c, bool pinned)
{
	int64_t deadline_ns = clock_steady_ns() + PINNED_NS;
	json_t *list = json_array();
	struct cache_stats stats;

	if (!c->cache)
		return list;
	cache_stats(c->cache, &stats);
	for (int i = 0; i < stats.dir_count; i++) {
		struct cache_dir_stats d;

		cache_dir_stats(c->cache, i, &d);
		json_array_append_new(list,
				      json_pack("{s:o, s:b, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "path", text(d.path),
						"in_use", d.in_use, "reason", trouble(&d), "counting", d.counting, "bytes",
						number(d.bytes), "entries", number(d.entries), "size_bytes", number(d.size_bytes),
						"room_bytes", number(d.room_bytes), "free_bytes", number(d.free_bytes),
						"pinned_bytes", pinned ? pinned_bytes(c, i, deadline_ns) : json_null()));
	}
	return list;
}

static json_t *orders(struct client *c)
{
	struct told_progress all[TOLD_ORDERS];
	unsigned count = told_progress_all(c, all);
	json_t *list = json_array();

	for (unsigned i = 0; i < count; i++)
		json_array_append_new(list, control_progress(&all[i]));
	return list;
}

json_t *control_progress(const struct told_progress *p)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "window_bytes", number(p->window),
			 "ahead", number(p->ahead), "files", number(p->added), "read", number(p->seen), "passed",
			 number(p->passed), "ready", number(p->ready), "ready_bytes", number(p->ready_bytes), "failed",
			 number(p->failed), "waiting", number(p->waiting), "ahead_files", number(p->ahead_files), "ahead_bytes",
			 number(p->ahead_bytes), "memory_bytes", number(p->memory_bytes));
}

/* Seconds since the server was last heard of, in thousandths; -1: not since a while that is not known. */
static json_int_t silence_ms(struct client *c)
{
	struct client_replica replica;

	if (client_is_replica(c)) {
		client_replica_status(c, &replica);
		return replica.age_ms;
	}
	int64_t contact = atomic_load(&c->lease.contact_ns), heard = contact - CONTACT_NS;

	/* Its first words are answered a moment after it is mounted. */
	if (!contact && clock_steady_ns() - c->connected_ns < AWAY_NS)
		heard = c->connected_ns;
	else if (!contact)
		return -1;
	return (clock_steady_ns() - heard) / NS_PER_MS;
}

static void unuploaded_add(void *context, const struct client_unuploaded *file)
{
	json_t *list = context;

	if (json_array_size(list) < UNUPLOADED_SHOWN)
		json_array_append_new(list, json_pack("{s:o, s:o, s:b, s:b}", "inode", number(file->inode), "bytes",
						      number(file->bytes), "synced", file->synced, "damaged", file->damaged));
}

/* Some of them.  A mount knows no names: of those that are synced the server does (epochfs writeback list). */
static json_t *unuploaded(struct client *c)
{
	json_t *list = json_array();

	if (list)
		client_writeback_list(c, unuploaded_add, list);
	return list;
}

/* How old names, attributes and sizes may be; null: a replica says so itself. */
static json_t *age_max_ms(struct client *c)
{
	return client_is_replica(c) ? json_null() : number(c->volume.relaxed ? RELAXED_MS : 0);
}

/* null: it is none. */
static json_t *replica_json(struct client *c)
{
	struct client_replica r;

	client_replica_status(c, &r);
	if (!r.is_replica)
		return json_null();
	return json_pack("{s:b, s:b, s:b, s:o, s:I, s:I, s:o}", "following", r.following, "copying", r.copying, "foreign",
			 r.foreign, "batch", number(r.batch), "age_ms", (json_int_t)r.age_ms, "max_lag_ms",
			 (json_int_t)r.max_lag_ms, "folder", text(r.folder));
}

static json_t *passthrough(const struct control_passing *p)
{
	return json_pack("{s:b, s:o}", "on", !p->obstacle, "reason", p->obstacle ? text(p->obstacle) : json_null());
}

json_t *control_status(struct client *c, const struct control_options *o, bool pinned)
{
	struct control_passing passing;
	struct control_mounted mounted = { 0 };
	json_int_t silence = silence_ms(c);
	bool connected = silence >= 0 && silence < AWAY_NS / NS_PER_MS && !(c->replica && atomic_load(&c->replica->away));

	json_t *status;

	o->passing(o->context, &passing);
	o->mounted(o->context, &mounted);
	status = json_pack(
		"{s:o, s:o, s:o, s:b, s:I, s:b, s:o, s:o, s:o, s:i, s:b, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}",
		"volume", text(c->volume.name), "mount_point", text(o->mount_point), "servers", text(c->servers), "connected",
		connected, "silence_ms", silence, "alone", lease_held(c), "transport", text(o->transport(o->context)),
		"passthrough", passthrough(&passing), "options",
		text(mounted.options.failed ? "" : (const char *)mounted.options.data), "pid", (int)getpid(), "read_only",
		mounted.read_only, "only_reads", c->read_only, "relaxed", c->volume.relaxed, "age_max_ms", age_max_ms(c), "cache",
		caches(c, pinned), "orders", orders(c), "figures", figures(c, &passing), "replica", replica_json(c),
		"writeback_folder", c->writeback.folder ? text(spool_folder_path(c->writeback.folder)) : json_null(),
		"writeback_directory", c->writeback.folder ? text(spool_folder_directory(c->writeback.folder)) : json_null(),
		"not_uploaded", unuploaded(c), "timeout_ms", (json_int_t)c->timeout_ms);
	buf_free(&mounted.options);
	return status;
}
