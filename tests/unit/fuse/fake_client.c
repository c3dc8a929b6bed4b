/* One lock, nodes in an intmap, names of a directory in an array in the order of their
 * cookies, contents in pages so that there are holes. */
#include "fake_client.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/intmap.h"
#include "client/client.h"
#include "client/control.h"
#include "fake_state.h"
#include "meta/listing.h"

#define ROOT 7 /* not 1: the mount must translate */

struct fake_control *fake_control;

struct client_file {
	struct client *client;
	struct node *node;
};
struct client_read {
	struct iovec *parts;
	int count;
	size_t bytes;
};

struct node *node_get(struct client *c, uint64_t inode) { return intmap_get(&c->nodes, inode); }

struct node *node_new(struct client *c, uint32_t mode, const struct client_identity *who)
{
	struct node *n = calloc(1, sizeof(*n));
	int64_t now = clock_wall_ns();

	n->attr = (struct attr){ .inode = c->next_inode++,
				 .mode = mode,
				 .uid = who->uid,
				 .gid = who->gid,
				 .nlink = S_ISDIR(mode) ? 2 : 1,
				 .atime_ns = now,
				 .mtime_ns = now,
				 .ctime_ns = now,
				 .btime_ns = now };
	if (!S_ISLNK(mode))
		n->attr.mode &= ~who->umask;
	intmap_set(&c->nodes, n->attr.inode, n);
	return n;
}

static void node_free(struct client *c, struct node *n)
{
	intmap_remove(&c->nodes, n->attr.inode);
	for (size_t i = 0; i < n->name_count; i++)
		free(n->names[i].text);
	for (size_t i = 0; i < n->page_count; i++)
		free(n->pages[i]);
	while (n->xattrs) {
		struct xattr *x = n->xattrs;

		n->xattrs = x->next;
		free(x->name);
		free(x->value);
		free(x);
	}
	free(n->names);
	free(n->pages);
	free(n->target);
	free(n);
}

static void node_put(struct client *c, struct node *n)
{
	if (!n->attr.nlink && !n->opens)
		node_free(c, n);
}

static void touch(struct node *n, bool content)
{
	n->attr.ctime_ns = clock_wall_ns();
	if (content) {
		n->attr.mtime_ns = n->attr.ctime_ns;
		n->attr.version++;
	}
}

static int entry_of(const struct node *n, struct entry *out)
{
	*out = (struct entry){ .attr = n->attr,
			       .valid_ms = atomic_load(&fake_control->valid_ms),
			       .granted_ms = atomic_load(&fake_control->granted_ms) };
	return 0;
}

struct name *name_find(struct node *dir, const char *text)
{
	for (size_t i = 0; i < dir->name_count; i++) {
		if (!strcmp(dir->names[i].text, text))
			return &dir->names[i];
	}
	return NULL;
}

void name_add(struct client *c, struct node *dir, const char *text, struct node *n)
{
	dir->names = realloc(dir->names, (dir->name_count + 1) * sizeof(*dir->names));
	dir->names[dir->name_count++] = (struct name){ strdup(text), n->attr.inode, c->next_cookie += 16 };
	n->attr.parent = dir->attr.inode;
	if (S_ISDIR(n->attr.mode))
		dir->attr.nlink++;
	touch(dir, true);
}

static void name_remove(struct client *c, struct node *dir, struct name *name)
{
	struct node *n = node_get(c, name->inode);

	if (S_ISDIR(n->attr.mode))
		dir->attr.nlink--;
	free(name->text);
	memmove(name, name + 1, (size_t)(dir->names + dir->name_count - name - 1) * sizeof(*name));
	dir->name_count--;
	touch(dir, true);
}

static int name_new(struct client *c, uint64_t parent, const char *text, struct node **dir)
{
	*dir = node_get(c, parent);
	if (!*dir)
		return -ENOENT;
	return name_find(*dir, text) ? -EEXIST : 0;
}

/* Nobody asks it anything. */
int control_start(struct client *c, const struct control_options *options, char *why, size_t why_size) { return 0; }

int client_connect(const struct client_options *options, struct client **out, char *error, size_t error_size)
{
	struct client_identity who = { .uid = getuid(), .gid = getgid() };
	struct client *c;

	if (atomic_load(&fake_control->refuse)) {
		snprintf(error, error_size, "no server at %s", options->servers);
		return -ECONNREFUSED;
	}
	c = calloc(1, sizeof(*c));
	c->next_inode = ROOT;
	pthread_mutex_init(&c->lock, NULL);
	node_new(c, S_IFDIR | 0755, &who);
	*out = c;
	return 0;
}

void client_unmounted(struct client *c) {}

int client_disconnect(struct client *c)
{
	uint64_t key;
	void *value;

	for (size_t i = 0; intmap_next(&c->nodes, &i, &key, &value); i = 0)
		node_free(c, value);
	intmap_free(&c->nodes);
	pthread_mutex_destroy(&c->lock);
	free(c);
	atomic_fetch_add(&fake_control->disconnects, 1);
	return 0;
}

/* Nobody else changes anything here. */
bool client_is_replica(const struct client *c) { return false; }

bool client_is_alone(struct client *c) { return true; }

int client_cache_error(struct client *c, int dir) { return -ENOENT; }

uint64_t client_root(const struct client *c) { return ROOT; }

int client_lookup(struct client *c, uint64_t parent, const char *name, struct entry *out)
{
	struct node *dir;
	struct name *found;

	if (!strncmp(name, "stall", 5))
		fake_stall(&fake_control->stall);
	LOCKED(&c->lock);
	dir = node_get(c, parent);
	found = dir ? name_find(dir, name) : NULL;
	return found ? entry_of(node_get(c, found->inode), out) : -ENOENT;
}

int client_mknod(struct client *c, uint64_t parent, const char *name, uint32_t mode, uint64_t rdev,
		 const struct client_identity *who, struct entry *out)
{
	struct node *dir, *n;
	int error;

	LOCKED(&c->lock);
	error = name_new(c, parent, name, &dir);
	if (error)
		return error;
	n = node_new(c, mode, who);
	n->attr.rdev = rdev;
	name_add(c, dir, name, n);
	return entry_of(n, out);
}

int client_mkdir(struct client *c, uint64_t parent, const char *name, uint32_t mode, const struct client_identity *who,
		 struct entry *out)
{
	return client_mknod(c, parent, name, S_IFDIR | (mode & 07777), 0, who, out);
}

int client_symlink(struct client *c, uint64_t parent, const char *name, const char *target, const struct client_identity *who,
		   struct entry *out)
{
	int error = client_mknod(c, parent, name, S_IFLNK | 0777, 0, who, out);
	struct node *n;

	LOCKED(&c->lock);
	if (error)
		return error;
	n = node_get(c, out->attr.inode);
	n->target = strdup(target);
	n->attr.size = strlen(target);
	return entry_of(n, out);
}

int client_link(struct client *c, uint64_t inode, uint64_t parent, const char *name, struct entry *out)
{
	struct node *dir, *n;
	int error;

	LOCKED(&c->lock);
	n = node_get(c, inode);
	error = name_new(c, parent, name, &dir);
	if (error)
		return error;
	n->attr.nlink++;
	n->attr.flags &= ~(uint32_t)ATTR_TRASHED;
	touch(n, false);
	name_add(c, dir, name, n);
	return entry_of(n, out);
}

static int node_unname(struct client *c, struct node *dir, struct name *name)
{
	struct node *n = node_get(c, name->inode);

	if (S_ISDIR(n->attr.mode) && n->name_count)
		return -ENOTEMPTY;
	name_remove(c, dir, name);
	n->attr.nlink -= S_ISDIR(n->attr.mode) ? 2 : 1;
	touch(n, false);
	if (!n->attr.nlink)
		n->attr.flags |= ATTR_TRASHED;
	node_put(c, n);
	return 0;
}

int client_unlink(struct client *c, uint64_t parent, const char *name)
{
	struct node *dir;
	struct name *found;

	LOCKED(&c->lock);
	dir = node_get(c, parent);
	found = name_find(dir, name);
	return found ? node_unname(c, dir, found) : -ENOENT;
}

int client_rmdir(struct client *c, uint64_t parent, const char *name) { return client_unlink(c, parent, name); }

int client_rename(struct client *c, uint64_t old_parent, const char *old_name, uint64_t new_parent, const char *new_name,
		  uint32_t flags)
{
	struct node *from, *to, *n;
	struct name *old, *new;
	int error;

	LOCKED(&c->lock);
	from = node_get(c, old_parent);
	to = node_get(c, new_parent);
	old = name_find(from, old_name);
	new = name_find(to, new_name);
	if (!old || (!new && (flags & RENAME_EXCHANGE)))
		return -ENOENT;
	if (new && (flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (flags & RENAME_EXCHANGE) {
		uint64_t inode = old->inode;

		old->inode = new->inode;
		new->inode = inode;
		return 0;
	}
	n = node_get(c, old->inode);
	error = new ? node_unname(c, to, new) : 0;
	if (error)
		return error;
	name_remove(c, from, name_find(from, old_name));
	name_add(c, to, new_name, n);
	touch(n, false);
	return 0;
}

int client_readlink(struct client *c, uint64_t inode, char *out, size_t size)
{
	struct node *n;
	size_t length;

	LOCKED(&c->lock);
	n = node_get(c, inode);
	length = strnlen(n->target, size);
	memcpy(out, n->target, length);
	return (int)length;
}

static void change_elsewhere(struct client *c)
{
	struct client_identity who = { 0 };

	while (atomic_load(&fake_control->changes)) {
		char name[32];

		snprintf(name, sizeof(name), "elsewhere%u", atomic_fetch_sub(&fake_control->changes, 1));
		name_add(c, node_get(c, ROOT), name, node_new(c, S_IFREG | 0644, &who));
	}
}

int client_readdir(struct client *c, uint64_t inode, uint64_t cookie, uint32_t max_bytes, bool attributes, struct buf *out,
		   bool *end, uint32_t *valid_ms)
{
	struct node *dir;

	LOCKED(&c->lock);
	atomic_fetch_add(&fake_control->readdirs, 1);
	change_elsewhere(c);
	dir = node_get(c, inode);
	if (!dir)
		return -ENOENT;
	*valid_ms = atomic_load(&fake_control->valid_ms);
	*end = true;
	for (size_t i = 0; i < dir->name_count && *end; i++) {
		struct name *name = &dir->names[i];
		struct node *n = node_get(c, name->inode);
		struct listing_entry e = { .inode = name->inode,
					   .cookie = name->cookie,
					   .type = IFTODT(n->attr.mode),
					   .has_attr = attributes,
					   .name_length = (uint16_t)strlen(name->text),
					   .name = name->text,
					   .attr = n->attr };

		if (name->cookie > cookie && out->len && out->len + listing_entry_size(&e) > max_bytes)
			*end = false;
		else if (name->cookie > cookie)
			listing_append(out, &e);
	}
	return 0;
}

int client_getattr(struct client *c, uint64_t inode, struct entry *out)
{
	struct node *n;
	int r;

	pthread_mutex_lock(&c->lock);
	n = node_get(c, inode);
	r = n ? entry_of(n, out) : -ENOENT;
	pthread_mutex_unlock(&c->lock);
	if (r || !S_ISREG(out->attr.mode))
		return r;
	atomic_fetch_add(&fake_control->getattrs, 1);
	atomic_fetch_add(&fake_control->stalled_getattrs, 1);
	while (atomic_load(&fake_control->stall_getattrs))
		usleep(1000);
	atomic_fetch_sub(&fake_control->stalled_getattrs, 1);
	return 0;
}

static uint8_t *page_of(struct node *n, uint64_t at, bool make)
{
	size_t i = at / PAGE;

	if (i >= n->page_count) {
		if (!make)
			return NULL;
		n->pages = realloc(n->pages, (i + 1) * sizeof(*n->pages));
		memset(n->pages + n->page_count, 0, (i + 1 - n->page_count) * sizeof(*n->pages));
		n->page_count = i + 1;
	}
	if (!n->pages[i] && make) {
		n->pages[i] = calloc(1, PAGE);
		n->attr.allocated += PAGE;
	}
	return n->pages[i];
}

static void zero(struct node *n, uint64_t from, uint64_t to)
{
	while (from < to) {
		size_t in = from % PAGE, length = to - from < PAGE - in ? (size_t)(to - from) : PAGE - in;
		uint8_t *page = page_of(n, from, false);

		if (page && length == PAGE) {
			free(page);
			n->pages[from / PAGE] = NULL;
			n->attr.allocated -= PAGE;
		} else if (page) {
			memset(page + in, 0, length);
		}
		from += length;
	}
}

void resize(struct node *n, uint64_t size)
{
	if (size < n->attr.size)
		zero(n, size, (uint64_t)n->page_count * PAGE);
	n->attr.size = size;
	touch(n, true);
}

static void suid_kill(struct node *n, bool kill)
{
	if (!kill)
		return;
	atomic_fetch_add(&fake_control->kills, 1);
	n->attr.mode &= ~(uint32_t)(S_ISUID | (n->attr.mode & S_IXGRP ? S_ISGID : 0));
}

int client_setattr(struct client *c, uint64_t inode, const struct client_setattr *s, struct entry *out)
{
	int64_t now = clock_wall_ns();
	struct node *n;

	LOCKED(&c->lock);
	n = node_get(c, inode);
	if (!n)
		return -ENOENT;
	if (s->valid & SET_SIZE)
		resize(n, s->size);
	if (s->valid & SET_MODE)
		n->attr.mode = (n->attr.mode & S_IFMT) | (s->mode & 07777);
	if (s->valid & SET_UID)
		n->attr.uid = s->uid;
	if (s->valid & SET_GID)
		n->attr.gid = s->gid;
	if (s->valid & (SET_ATIME | SET_ATIME_NOW))
		n->attr.atime_ns = s->valid & SET_ATIME_NOW ? now : s->atime_ns;
	if (s->valid & (SET_MTIME | SET_MTIME_NOW))
		n->attr.mtime_ns = s->valid & SET_MTIME_NOW ? now : s->mtime_ns;
	suid_kill(n, s->kill_suidgid);
	if (s->valid != (SET_ATIME_NOW | KEEP_CTIME)) /* as the server does */
		touch(n, false);
	return entry_of(n, out);
}

static struct xattr **xattr_find(struct node *n, const char *name)
{
	struct xattr **x = &n->xattrs;

	while (*x && strcmp((*x)->name, name))
		x = &(*x)->next;
	return x;
}

int client_setxattr(struct client *c, uint64_t inode, const char *name, const void *value, size_t size, int flags, bool kill_sgid)
{
	struct xattr **x;
	struct node *n;

	if (!strncmp(name, ELSEWHERE, strlen(ELSEWHERE)))
		return elsewhere(c, inode, name + strlen(ELSEWHERE), value, size);
	LOCKED(&c->lock);
	n = node_get(c, inode);
	x = xattr_find(n, name);
	if (*x && (flags & XATTR_CREATE))
		return -EEXIST;
	if (!*x && (flags & XATTR_REPLACE))
		return -ENODATA;
	if (!*x) {
		*x = calloc(1, sizeof(**x));
		(*x)->name = strdup(name);
	}
	free((*x)->value);
	(*x)->value = malloc(size + 1);
	memcpy((*x)->value, value, size);
	(*x)->size = size;
	n->attr.flags |= ATTR_HAS_XATTR;
	touch(n, false);
	return 0;
}

int client_getxattr(struct client *c, uint64_t inode, const char *name, void *out, size_t size)
{
	struct xattr *x;

	atomic_fetch_add(&fake_control->getxattrs, 1);
	LOCKED(&c->lock);
	x = *xattr_find(node_get(c, inode), name);
	if (!x)
		return -ENODATA;
	if (size && x->size > size)
		return -ERANGE;
	if (size)
		memcpy(out, x->value, x->size);
	return (int)x->size;
}

int client_listxattr(struct client *c, uint64_t inode, char *out, size_t size)
{
	size_t used = 0;

	LOCKED(&c->lock);
	for (struct xattr *x = node_get(c, inode)->xattrs; x; x = x->next) {
		size_t length = strlen(x->name) + 1;

		if (size && used + length > size)
			return -ERANGE;
		if (size)
			memcpy(out + used, x->name, length);
		used += length;
	}
	return (int)used;
}

int client_removexattr(struct client *c, uint64_t inode, const char *name)
{
	struct xattr **x, *gone;

	LOCKED(&c->lock);
	x = xattr_find(node_get(c, inode), name);
	gone = *x;
	if (!gone)
		return -ENODATA;
	*x = gone->next;
	free(gone->name);
	free(gone->value);
	free(gone);
	return 0;
}

int client_statfs(struct client *c, struct client_space *out)
{
	*out = (struct client_space){ .total_bytes = 1ull << 40,
				      .free_bytes = 1ull << 39,
				      .total_files = 1000,
				      .free_files = 900,
				      .block_size = 4u << 20 };
	return 0;
}

static struct client_file *file_new(struct client *c, struct node *n)
{
	struct client_file *f = calloc(1, sizeof(*f));

	*f = (struct client_file){ c, n };
	n->opens++;
	atomic_fetch_add(&fake_control->opens, 1);
	return f;
}

int client_create(struct client *c, uint64_t parent, const char *name, uint32_t mode, int flags,
		  const struct client_identity *who, struct client_file **file, struct entry *out)
{
	int error = client_mknod(c, parent, name, S_IFREG | (mode & 07777), 0, who, out);

	LOCKED(&c->lock);
	if (!error)
		*file = file_new(c, node_get(c, out->attr.inode));
	return error;
}

int client_tmpfile(struct client *c, uint64_t parent, uint32_t mode, const struct client_identity *who, struct client_file **file,
		   struct entry *out)
{
	struct node *n;

	LOCKED(&c->lock);
	n = node_new(c, S_IFREG | (mode & 07777), who);
	n->attr.nlink = 0;
	n->attr.flags = ATTR_TRASHED | ATTR_NO_TRASH;
	*file = file_new(c, n);
	return entry_of(n, out);
}

int client_open(struct client *c, uint64_t inode, int flags, bool kill_suidgid, bool kill_sgid, struct client_file **file,
		bool *unchanged)
{
	struct node *n;

	fake_stall(&fake_control->stall_files);
	LOCKED(&c->lock);
	n = node_get(c, inode);
	if (!n)
		return -ENOENT;
	if (flags & O_TRUNC)
		resize(n, 0);
	suid_kill(n, kill_suidgid);
	*unchanged = !atomic_load(&fake_control->changed_content);
	*file = file_new(c, n);
	return 0;
}

void client_open_untold(struct client_file *f) { atomic_fetch_add(&fake_control->untold, 1); }

void client_release(struct client_file *f)
{
	struct client *c = f->client;

	LOCKED(&c->lock);
	f->node->opens--;
	node_put(c, f->node);
	atomic_fetch_add(&fake_control->releases, 1);
	free(f);
}

void client_volume(const struct client *c, struct volume_info *out) { *out = (struct volume_info){ .name = "fake" }; }

int client_view(struct client *c, uint64_t inode, struct client_file **out)
{
	bool unchanged;

	return client_open(c, inode, O_RDONLY, false, false, out, &unchanged);
}

void client_view_end(struct client_file *f) { client_release(f); }

void client_passing(struct client *c, bool possible) {}

int client_pass(struct client_file *f, int *fd) { return -ENOENT; }

void client_pass_end(struct client_file *f) {}

/* One part a page, each copied, so that nothing changes under the mount. */
int client_read_around(struct client_file *f, uint64_t offset, size_t size, struct client_read **out)
{
	return client_read(f, offset, size, out);
}

int client_read(struct client_file *f, uint64_t offset, size_t size, struct client_read **out)
{
	struct client_read *r = calloc(1, sizeof(*r));
	uint64_t end;

	fake_stall(&fake_control->stall_files);
	LOCKED(&f->client->lock);
	atomic_fetch_add(&fake_control->reads, 1);
	end = offset + size < f->node->attr.size ? offset + size : f->node->attr.size;
	r->parts = calloc(size / PAGE + 2, sizeof(*r->parts));
	while (offset < end) {
		size_t in = offset % PAGE, length = end - offset < PAGE - in ? (size_t)(end - offset) : PAGE - in;
		uint8_t *page = page_of(f->node, offset, false);

		r->parts[r->count].iov_base = calloc(1, length);
		r->parts[r->count].iov_len = length;
		if (page)
			memcpy(r->parts[r->count].iov_base, page + in, length);
		r->count++;
		r->bytes += length;
		offset += length;
	}
	*out = r;
	return 0;
}

const struct iovec *client_read_parts(const struct client_read *r, int *count, size_t *bytes)
{
	*count = r->count;
	*bytes = r->bytes;
	return r->parts;
}

void client_read_release(struct client_read *r)
{
	for (int i = 0; i < r->count; i++)
		free(r->parts[i].iov_base);
	free(r->parts);
	free(r);
}

static void node_write(struct node *n, uint64_t offset, const uint8_t *data, size_t size)
{
	for (size_t done = 0; done < size;) {
		size_t in = (offset + done) % PAGE, length = size - done < PAGE - in ? size - done : PAGE - in;

		memcpy(page_of(n, offset + done, true) + in, data + done, length);
		done += length;
	}
	if (offset + size > n->attr.size)
		n->attr.size = offset + size;
	touch(n, true);
}

void *client_buffer_take(struct client *c) { return aligned_alloc(4096, CLIENT_BUFFER_BYTES); }

void client_buffer_give(struct client *c, void *buffer) { free(buffer); }

ssize_t client_write(struct client_file *f, uint64_t offset, const void *data, size_t size, unsigned how)
{
	fake_stall(&fake_control->stall_files);
	LOCKED(&f->client->lock);
	node_write(f->node, how & WRITE_APPEND ? f->node->attr.size : offset, data, size);
	suid_kill(f->node, how & WRITE_KILL_SUIDGID);
	return (ssize_t)size;
}

/* Takes the buffer and spoils it: the mount must not look at it again. */
ssize_t client_write_buffer(struct client_file *f, uint64_t offset, void *data, size_t size, unsigned how, void *buffer,
			    bool *kept)
{
	*kept = true;
	ssize_t done = client_write(f, offset, data, size, how);
	memset(buffer, 0xee, CLIENT_BUFFER_BYTES);
	client_buffer_give(f->client, buffer);
	return done;
}

int client_fsync(struct client_file *f)
{
	fake_stall(&fake_control->stall_files);
	LOCKED(&f->client->lock);
	atomic_fetch_add(&fake_control->fsyncs, 1);
	return 0;
}

int client_fsync_all(struct client *c)
{
	atomic_fetch_add(&fake_control->syncs, 1);
	return 0;
}

int client_fallocate(struct client_file *f, int mode, uint64_t offset, uint64_t length)
{
	fake_stall(&fake_control->stall_files);
	LOCKED(&f->client->lock);
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		zero(f->node, offset, offset + length);
	if (!(mode & FALLOC_FL_KEEP_SIZE) && offset + length > f->node->attr.size)
		f->node->attr.size = offset + length;
	touch(f->node, true);
	return 0;
}

int client_lseek(struct client_file *f, uint64_t offset, int whence, uint64_t *out)
{
	fake_stall(&fake_control->stall_files);
	LOCKED(&f->client->lock);
	if (offset >= f->node->attr.size)
		return -ENXIO;
	while (offset < f->node->attr.size && !page_of(f->node, offset, false) == (whence == SEEK_DATA))
		offset = (offset / PAGE + 1) * PAGE;
	if (offset >= f->node->attr.size && whence == SEEK_DATA)
		return -ENXIO;
	*out = offset < f->node->attr.size ? offset : f->node->attr.size;
	return 0;
}

ssize_t client_copy_range(struct client_file *from, uint64_t from_offset, struct client_file *to, uint64_t to_offset,
			  uint64_t length)
{
	struct client_read *r;
	int error = client_read(from, from_offset, length, &r);
	ssize_t done;

	if (error)
		return error;
	LOCKED(&to->client->lock);
	for (int i = 0; i < r->count; i++) {
		node_write(to->node, to_offset, r->parts[i].iov_base, r->parts[i].iov_len);
		to_offset += r->parts[i].iov_len;
	}
	done = (ssize_t)r->bytes;
	client_read_release(r);
	return done;
}
