#include "store/store.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MOST 200u

static bool is_key_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c && strchr("._/-", c)); }

/* A prefix is the start of a key: its last component may be unfinished. */
static int prefix_check(const char *prefix)
{
	size_t length = 0;
	bool only_dots = true; /* also while the component is empty */
	for (; prefix[length]; length++) {
		if (length == KEY_MOST || !is_key_character(prefix[length]))
			return -EINVAL;
		if (prefix[length] != '/')
			only_dots = only_dots && prefix[length] == '.';
		else if (only_dots)
			return -EINVAL;
		else
			only_dots = true;
	}
	return 0;
}

int store_key_check(const char *key)
{
	int error = prefix_check(key);
	if (error)
		return error;
	const char *slash = strrchr(key, '/'), *last = slash ? slash + 1 : key;
	return last[strspn(last, ".")] ? 0 : -EINVAL;
}

int store_open(const char *url, struct store **out, char *error, size_t error_size)
{
	struct store *s;
	if (strncmp(url, "dir:", 4) != 0 || !url[4]) {
		snprintf(error, error_size, "cannot open store %s: not a kind of store known here; use dir:PATH", url);
		return -EINVAL;
	}
	int status = store_dir_open(url + 4, &s, error, error_size);
	if (status)
		return status;
	s->url = strdup(url);
	if (!s->url) {
		snprintf(error, error_size, "cannot open store %s: %s", url, strerror(ENOMEM));
		store_close(s);
		return -ENOMEM;
	}
	*out = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	free(s->url);
	s->ops->close(s);
}

const char *store_url(const struct store *s) { return s->url; }

int store_put(struct store *s, const char *key, const struct iovec *parts, int part_count)
{
	int error = part_count < 0 ? -EINVAL : store_key_check(key);
	return error ? error : s->ops->put(s, key, parts, part_count);
}

int store_get(struct store *s, const char *key, uint64_t offset, void *into, size_t length)
{
	int error = store_key_check(key);
	if (!error && (offset > INT64_MAX || length > INT64_MAX - offset))
		error = -ERANGE;
	return error ? error : s->ops->get(s, key, offset, into, length);
}

int store_delete(struct store *s, const char *key)
{
	int error = store_key_check(key);
	return error ? error : s->ops->remove(s, key);
}

int store_stat(struct store *s, const char *key, uint64_t *out_size)
{
	int error = store_key_check(key);
	return error ? error : s->ops->stat(s, key, out_size);
}

int store_list(struct store *s, const char *prefix, int (*each)(void *context, const char *key, uint64_t size), void *context)
{
	int error = prefix_check(prefix);
	return error ? error : s->ops->list(s, prefix, each, context);
}

int store_space(struct store *s, struct store_space *out) { return s->ops->space(s, out); }

int store_descriptor(struct store *s, const char *key)
{
	int error = store_key_check(key);
	return error ? error : s->ops->descriptor(s, key);
}
