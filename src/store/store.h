/* An object store with put-if-absent: everything durable is an immutable object.
 *
 * Keys are short ASCII paths ("o/00000000000004d2", "store-id"): 1 to 200
 * characters of [a-z0-9._/-], no empty or dot-only component.
 *
 * A put that returned 0 survives a crash of the machine.  A put that returned
 * anything else may or may not have landed; put the same key again to find out
 * (-EEXIST: it, or another's, is there).  Every function may be called from any
 * thread at any time, blocks, and returns 0 or -errno:
 *
 *   -EEXIST  put: the key is taken          -ENOENT  get, stat, delete: no such object
 *   -ENOSPC  put: the store is full         -EIO     the store said no or made no sense
 *   -ERANGE  get: the range is not all inside the object
 *   -EINVAL  the key is not one         -ENOMEM, -EMFILE, -ENFILE  this machine has no more
 *
 * -EEXIST promises that the object there is durable.  A deleted object may be
 * back after a crash of the machine; delete it again then.  Who has a descriptor
 * of a deleted object may find it empty. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct store;

struct store_space {
	uint64_t total_bytes, free_bytes;
};

/* "dir:PATH".  The first open of an empty place (or of a missing last folder)
 * makes a store of it; anything else that is there is refused. */
int store_open(const char *url, struct store **out, char *error, size_t error_size);
void store_close(struct store *s);
const char *store_url(const struct store *s);
bool store_is_folder(const char *path); /* whether dir:PATH is one, of whichever format; see base/marker.h */
int store_key_check(const char *key);   /* 0 or -EINVAL; every function below checks its key */

int store_put(struct store *s, const char *key, const struct iovec *parts, int part_count);
int store_get(struct store *s, const char *key, uint64_t offset, void *into, size_t length);
int store_delete(struct store *s, const char *key);
int store_stat(struct store *s, const char *key, uint64_t *out_size);
/* Every key with the prefix, in any order; a non-zero answer of `each` stops and is returned. */
int store_list(struct store *s, const char *prefix, int (*each)(void *context, const char *key, uint64_t size), void *context);
int store_space(struct store *s, struct store_space *out);

/* A descriptor on the object, where the store has such a thing (dir:), for
 * sendfile and descriptor passing; -EOPNOTSUPP elsewhere.  The caller closes it. */
int store_descriptor(struct store *s, const char *key);

/* What a store implements; see dir.c.  Keys have been checked. */
struct store_ops {
	void (*close)(struct store *s);
	int (*put)(struct store *s, const char *key, const struct iovec *parts, int part_count);
	int (*get)(struct store *s, const char *key, uint64_t offset, void *into, size_t length);
	int (*remove)(struct store *s, const char *key);
	int (*stat)(struct store *s, const char *key, uint64_t *out_size);
	int (*list)(struct store *s, const char *prefix, int (*each)(void *, const char *, uint64_t), void *context);
	int (*space)(struct store *s, struct store_space *out);
	int (*descriptor)(struct store *s, const char *key);
};
struct store {
	const struct store_ops *ops;
	char *url;
};

/* dir.c */
int store_dir_open(const char *path, struct store **out, char *error, size_t error_size);
