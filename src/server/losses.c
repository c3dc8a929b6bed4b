#include "server/losses.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "server/dispatch.h"
#include "server/state.h"

#define LOG_TEXT 2000
#define PATH_BYTES 1024u /* the rest of a longer one is left out */

struct loss {
	int64_t when_ns;
	bool given_up, writeback;
	size_t files, path_count;
	char *volume, *host, *mount_point;
	struct buf paths[LOSS_PATHS];
};

void losses_init(struct losses *l) { pthread_mutex_init(&l->lock, NULL); }

static void loss_free(struct loss *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->path_count; i++)
		buf_free(&l->paths[i]);
	free(l->volume);
	free(l->host);
	free(l->mount_point);
	free(l);
}

void losses_free(struct losses *l)
{
	for (size_t i = 0; i < LOSSES_KEPT; i++)
		loss_free(l->latest[i]);
	pthread_mutex_destroy(&l->lock);
}

/* ---- Adding ---- */

/* A file whose last name has gone has no path: nobody misses it. */
static void path_add(struct server *s, uint32_t volume, uint64_t inode, struct loss *l)
{
	Wire__InodeRequest request = WIRE__INODE_REQUEST__INIT;
	struct caller who = { .volume = volume, .root = ROOT_INODE };
	struct buf *path = &l->paths[l->path_count];
	ProtobufCMessage *reply;
	struct arena arena;

	request.inode = inode;
	arena_init(&arena, 0);
	if (meta_read(s->meta, &who, WIRE__OP__PATH, &request.base, &arena, &reply) == 0) {
		const Wire__BytesReply *bytes = (const Wire__BytesReply *)reply;

		buf_append(path, bytes->data.data, bytes->data.len < PATH_BYTES ? bytes->data.len : PATH_BYTES);
		if (path->failed)
			buf_free(path);
		else
			l->path_count++;
	}
	arena_free(&arena);
}

static struct loss *loss_new(struct server *s, const struct session *n, const struct written_files *files, bool given_up)
{
	struct loss *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->when_ns = clock_read(&s->clock);
	l->given_up = given_up;
	l->writeback = n->has_writeback;
	l->files = files->count;
	l->volume = strdup(n->volume_name);
	l->host = strdup(n->host);
	l->mount_point = strdup(n->mount_point);
	if (!l->volume || !l->host || !l->mount_point) {
		loss_free(l);
		return NULL;
	}
	for (size_t i = 0; i < files->count && i < LOSS_PATHS; i++)
		path_add(s, n->volume, files->inodes[i], l);
	return l;
}

static void loss_log(const struct loss *l)
{
	char names[LOG_TEXT + 2 * LOSS_PATHS] = "", one[LOG_TEXT / LOSS_PATHS], count[UNITS_TEXT];
	size_t used = 0;

	for (size_t i = 0; i < l->path_count; i++) {
		text_escape(one, sizeof(one), (const char *)l->paths[i].data, l->paths[i].len);
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "", one);
	}
	log_warn("volume %s: mount %s:%s %s while it could write to %s: what it had written to %s and not %s is missing%s%s%s",
		 l->volume, l->host, l->mount_point, l->given_up ? "was given up" : "went away",
		 counted_format(count, l->files, "file"), l->files == 1 ? "it" : "them", l->writeback ? "synced" : "stored",
		 used ? ": " : "", names, l->files > l->path_count && used ? ", and others" : "");
}

void loss_add(struct server *s, const struct session *n, const struct written_files *files, bool given_up)
{
	struct loss *l, **place;

	if (!files->count)
		return;
	l = loss_new(s, n, files, given_up);
	if (!l) {
		log_error("volume %s: mount %s:%s is gone while it could write to %zu file(s)", n->volume_name, n->host,
			  n->mount_point, files->count);
		return;
	}
	loss_log(l);
	LOCKED(&s->losses.lock);
	place = &s->losses.latest[s->losses.count++ % LOSSES_KEPT];
	loss_free(*place);
	*place = l;
}

/* ---- Listing ---- */

static int paths_copy(struct arena *arena, const struct loss *l, Wire__LossInfo *out)
{
	out->paths = arena_take(arena, (l->path_count + 1) * sizeof(*out->paths));
	if (!out->paths)
		return -ENOMEM;
	for (size_t i = 0; i < l->path_count; i++) {
		uint8_t *bytes = arena_take(arena, l->paths[i].len + 1);

		if (!bytes)
			return -ENOMEM;
		memcpy(bytes, l->paths[i].data, l->paths[i].len);
		out->paths[i] = (ProtobufCBinaryData){ .len = l->paths[i].len, .data = bytes };
	}
	out->n_paths = l->path_count;
	return 0;
}

static Wire__LossInfo *loss_copy(struct arena *arena, const struct loss *l)
{
	Wire__LossInfo *out = arena_take(arena, sizeof(*out));

	if (!out)
		return NULL;
	wire__loss_info__init(out);
	out->when_ns = l->when_ns;
	out->given_up = l->given_up;
	out->writeback = l->writeback;
	out->files = l->files;
	out->volume = arena_string(arena, l->volume);
	out->host = arena_string(arena, l->host);
	out->mount_point = arena_string(arena, l->mount_point);
	return out->volume && out->host && out->mount_point && paths_copy(arena, l, out) == 0 ? out : NULL;
}

int losses_list(struct request *q, Wire__StatusReply *reply)
{
	struct losses *all = &q->server->losses;
	LOCKED(&all->lock);

	reply->losses = arena_take(q->arena, LOSSES_KEPT * sizeof(*reply->losses));
	if (!reply->losses)
		return -ENOMEM;
	for (uint64_t i = all->count; i > 0 && all->count - i < LOSSES_KEPT; i--) {
		Wire__LossInfo *one = loss_copy(q->arena, all->latest[(i - 1) % LOSSES_KEPT]);

		if (!one)
			return -ENOMEM;
		reply->losses[reply->n_losses++] = one;
	}
	return 0;
}
