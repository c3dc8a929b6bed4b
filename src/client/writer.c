#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "client/state.h"

/* Changing contents.  A write only fills segments (segments.h); a full block goes
 * to the uploader at once.  Holes and clones change extents at the server, so
 * what is unstored is stored first. */

static bool has_suidgid(const struct inode *i)
{
	uint32_t mode = i->attr.mode;
	return (mode & S_ISUID) || (mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP);
}

/* The kernel says so with every write of an unprivileged process: ask the server
 * only if there is something to clear. */
static int clear_suidgid(struct inode *i)
{
	struct client_setattr s = { .kill_suidgid = true };
	struct entry entry;
	bool needed;
	int r;
	pthread_mutex_lock(&i->lock);
	r = inode_acquire(i, true, NO_PAGES);
	needed = r == 0 && has_suidgid(i);
	pthread_mutex_unlock(&i->lock);
	return needed ? client_setattr(i->client, i->number, &s, &entry) : r;
}

void *client_buffer_take(struct client *c) { return pool_take(&c->uploader.buffers); }

void client_buffer_give(struct client *c, void *buffer) { pool_give(&c->uploader.buffers, buffer); }

/* The inode's lock is held.  Takes the buffer over, where there is one and it can be, else copies. */
static int write_segments(struct inode *i, uint64_t offset, const void *data, size_t size, void **buffer, int64_t *cost,
			  size_t *written)
{
	uint32_t block_size = i->client->volume.block_size;
	i->writes++;
	size_t direct = 0;
	int r = 0;
	/* What cannot be written to the disk, because that is full, goes the other way. */
	if (size >= WRITEBACK_DIRECT && writeback_is_on(i->client))
		writeback_write(i, offset, data, size, cost, &direct);
	if (direct == 0 && *buffer &&
	    segments_adopt(&i->dirty, block_size, offset, (uint8_t *)data, size, i->writes, *buffer, &i->client->uploader.buffers,
			   cost) == 0) {
		*buffer = NULL;
		*written = size;
		return 0;
	}
	*written = 0;
	if (direct < size)
		r = segments_write(&i->dirty, block_size, offset + direct, (const uint8_t *)data + direct, size - direct,
				   i->writes, cost, written);
	*written += direct;
	return r;
}

/* *buffer becomes NULL if it was taken over. */
static ssize_t file_write(struct client_file *f, uint64_t offset, const void *data, size_t size, unsigned how, void **buffer)
{
	struct inode *i = f->inode;
	struct client *c = i->client;
	uint32_t block_size = c->volume.block_size;
	bool append = how & WRITE_APPEND, settled;
	uint64_t before;
	int64_t cost = 0;
	size_t written;
	bool full;
	int r;
	if (size == 0)
		return 0;
	r = how & WRITE_KILL_SUIDGID ? clear_suidgid(i) : 0;
	if (r == 0)
		r = uploader_reserve(c, size);
	if (r < 0)
		return r;
	LOCKED(&i->lock);
	passed_await(i);
	r = append ? inode_acquire_end(i)
		   : inode_acquire(i, true,
				   how & (WRITE_OF_PAGES | WRITE_AROUND_PAGES) ? NO_PAGES
									       : (struct stretch){ offset, offset + size });
	if (r == 0 && append)
		offset = inode_size(i);
	if (r == 0 && (offset >= FILE_SIZE_MAX || size > FILE_SIZE_MAX - offset))
		r = -EFBIG;
	if (r < 0) {
		uploader_note(i, 0, -(int64_t)size, false);
		return r;
	}
	before = i->dirty.bytes;
	settled = passed_settle(i);
	r = write_segments(i, offset, data, size, buffer, &cost, &written);
	passed_write(i, settled, offset, data, written);
	i->mtime_ns = i->ctime_ns = client_now_ns(c);
	full = offset / block_size != (offset + written) / block_size;
	/* With write-back a block that is full goes to the disk, and is uploaded when the file is left alone. */
	uploader_note(i, cost, (int64_t)(i->dirty.bytes - before) - (int64_t)size, full && !writeback_is_on(c));
	if (full && writeback_is_on(c) && writeback_spool(i, false) < 0)
		uploader_note(i, 0, 0, true);
	if (written > 0 && !(how & (WRITE_APPEND | WRITE_OF_PAGES)) &&
	    pages_doubt(f, (struct stretch){ offset, offset + written }, how & WRITE_AROUND_PAGES))
		holding_repair(i, (struct stretch){ offset, offset + written }, how & WRITE_AROUND_PAGES);
	return written > 0 ? (ssize_t)written : r;
}

ssize_t client_write(struct client_file *f, uint64_t offset, const void *data, size_t size, unsigned how)
{
	void *none = NULL;
	return file_write(f, offset, data, size, how, &none);
}

ssize_t client_write_buffer(struct client_file *f, uint64_t offset, void *data, size_t size, unsigned how, void *buffer,
			    bool *kept)
{
	ssize_t r = file_write(f, offset, data, size, how, &buffer);
	*kept = !buffer;
	return r;
}

/* The answer to a change of contents: new attributes, other extents. */
static void content_changed(struct inode *i, const Wire__EntryReply *reply)
{
	struct attr attr;
	LOCKED(&i->lock);
	window_drop(i);
	if (attr_unpack(reply->attr.data, reply->attr.len, &attr) == 0)
		inode_attr_set(i, &attr);
}

int client_fallocate(struct client_file *f, int mode, uint64_t offset, uint64_t length)
{
	Wire__FallocateRequest request = WIRE__FALLOCATE_REQUEST__INIT;
	struct inode *i = f->inode;
	Wire__EntryReply *reply;
	struct arena arena;
	int r = writeback_settle(i);
	if (r < 0)
		return r;
	request.inode = i->number;
	request.mode = (uint32_t)mode;
	request.offset = offset;
	request.length = length;
	arena_init(&arena, 0);
	r = client_call(i->client, WIRE__OP__FALLOCATE, &request, &arena, &reply);
	if (r == 0) {
		content_changed(i, reply);
		passed_changed(i, offset, offset + length);
	}
	arena_free(&arena);
	return r;
}

/* ---- Seeking data and holes ----
 *
 * Extents begin and end at any byte.  What is told is in units of SEEK_UNIT, as local file systems tell it: a unit that has a byte of
 * data is data.  Programs find the unit by trying and take what they find for the block size. */

#define SEEK_UNIT 4096u

static uint64_t unit_floor(uint64_t offset) { return offset - offset % SEEK_UNIT; }

/* The first byte of data at `from` or later; UINT64_MAX: there is none. */
static int data_find(struct inode *i, uint64_t from, uint64_t *out)
{
	struct window *w = &i->window;
	for (;;) {
		int r = window_cover(i, from, from + 1);
		if (r < 0)
			return r;
		size_t k = window_find(w, from);
		if (k < w->count) {
			*out = w->extents[k].offset > from ? w->extents[k].offset : from;
			return 0;
		}
		*out = UINT64_MAX;
		if (w->to == UINT64_MAX)
			return 0;
		from = w->to;
	}
}

/* `at` is data: the end of the extent that covers it. */
static uint64_t data_end(const struct inode *i, uint64_t at)
{
	return extent_end(&i->window.extents[window_find(&i->window, at)]);
}

static int seek_data(struct inode *i, uint64_t offset, uint64_t *out)
{
	int r = data_find(i, unit_floor(offset), out);
	if (r < 0)
		return r;
	if (*out >= inode_size(i))
		return -ENXIO;
	if (unit_floor(*out) > offset)
		*out = unit_floor(*out);
	else
		*out = offset;
	return 0;
}

static int seek_hole(struct inode *i, uint64_t offset, uint64_t *out)
{
	uint64_t unit = unit_floor(offset), data;
	while (unit < inode_size(i)) {
		int r = data_find(i, unit, &data);
		if (r < 0)
			return r;
		if (data >= unit + SEEK_UNIT)
			break;
		unit = unit_floor(data_end(i, data) - 1) + SEEK_UNIT;
	}
	if (offset >= inode_size(i))
		return -ENXIO;
	*out = unit > inode_size(i) ? inode_size(i) : unit > offset ? unit : offset;
	return 0;
}

int client_lseek(struct client_file *f, uint64_t offset, int whence, uint64_t *out)
{
	struct inode *i = f->inode;
	int r = inode_flush(i);
	if (r < 0)
		return r;
	LOCKED(&i->lock);
	/* One refresh, so that size and extents are of one answer. */
	r = window_cover(i, unit_floor(offset), offset + 1);
	if (r < 0)
		return r;
	if (offset >= inode_size(i))
		return -ENXIO;
	return whence == SEEK_DATA ? seek_data(i, offset, out) : seek_hole(i, offset, out);
}

ssize_t client_copy_range(struct client_file *from, uint64_t from_offset, struct client_file *to, uint64_t to_offset,
			  uint64_t length)
{
	Wire__CloneRequest request = WIRE__CLONE_REQUEST__INIT;
	struct inode *source = from->inode, *target = to->inode;
	Wire__EntryReply *reply;
	struct arena arena;
	struct entry entry;
	int r = inode_flush(source);
	if (r == 0)
		r = writeback_settle(target);
	if (r == 0)
		r = client_getattr(source->client, source->number, &entry);
	if (r < 0)
		return r;
	if (from_offset >= entry.attr.size)
		return 0;
	if (length > entry.attr.size - from_offset)
		length = entry.attr.size - from_offset;
	if (length > SSIZE_MAX)
		length = SSIZE_MAX;
	request.source = source->number;
	request.source_offset = from_offset;
	request.target = target->number;
	request.target_offset = to_offset;
	request.length = length;
	arena_init(&arena, 0);
	r = client_call(target->client, WIRE__OP__CLONE, &request, &arena, &reply);
	if (r == 0) {
		content_changed(target, reply);
		passed_changed(target, to_offset, to_offset + length);
	}
	arena_free(&arena);
	return r < 0 ? r : (ssize_t)length;
}
