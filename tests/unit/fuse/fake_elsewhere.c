/* What "another mount" does: fake_client.h says how it is told to. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "fake_state.h"

void client_on_recall(struct client *c, const struct client_events *events)
{
	LOCKED(&c->lock);
	c->events = events ? *events : (struct client_events){ 0 };
}

/* As when a grant is given back. */
static void recall(struct client *c, uint64_t inode, uint64_t size)
{
	struct client_events events;

	pthread_mutex_lock(&c->lock);
	events = c->events;
	pthread_mutex_unlock(&c->lock);
	events.extend(events.context, inode, size);
	events.forget(events.context, inode, 0, UINT64_MAX);
}

static int file_make(struct client *c, uint64_t directory, const char *name)
{
	struct client_identity who = { 0 };
	LOCKED(&c->lock);

	name_add(c, node_get(c, directory), name, node_new(c, S_IFREG | 0644, &who));
	return 0;
}

static int file_change(struct client *c, uint64_t directory, const char *name, uint64_t longer, struct attr *out)
{
	const struct name *found;
	struct node *n;
	LOCKED(&c->lock);

	found = name_find(node_get(c, directory), name);
	n = found ? node_get(c, found->inode) : NULL;
	if (!n)
		return -ENOENT;
	if (longer)
		resize(n, n->attr.size + longer);
	*out = n->attr;
	return 0;
}

int elsewhere(struct client *c, uint64_t directory, const char *what, const void *name, size_t name_length)
{
	struct attr a;
	char file[64];
	int r;

	snprintf(file, sizeof(file), "%.*s", (int)name_length, (const char *)name);
	if (!strcmp(what, "make"))
		return file_make(c, directory, file);
	r = file_change(c, directory, file, strcmp(what, "grow") ? 0 : PAGE, &a);
	if (!r && !strcmp(what, "recall"))
		recall(c, a.inode, a.size);
	return r;
}
