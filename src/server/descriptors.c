#include "server/descriptors.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "block/object.h"

void descriptors_init(struct descriptors *all) { pthread_mutex_init(&all->lock, NULL); }

static void descriptor_close(struct descriptor *d)
{
	close(d->fd);
	free(d);
}

static void list_remove(struct descriptors *all, struct descriptor *d)
{
	*(d->newer ? &d->newer->older : &all->newest) = d->older;
	*(d->older ? &d->older->newer : &all->oldest) = d->newer;
	d->newer = d->older = NULL;
}

static void list_add(struct descriptors *all, struct descriptor *d)
{
	d->older = all->newest;
	d->newer = NULL;
	*(all->newest ? &all->newest->newer : &all->oldest) = d;
	all->newest = d;
}

/* The lock is held.  Out of the map and the list; closed when nobody uses it. */
static void drop(struct descriptors *all, struct descriptor *d)
{
	list_remove(all, d);
	intmap_remove(&all->map, d->object);
	d->forgotten = true;
	if (!d->users)
		descriptor_close(d);
}

void descriptors_free(struct descriptors *all)
{
	while (all->newest)
		drop(all, all->newest);
	intmap_free(&all->map);
	pthread_mutex_destroy(&all->lock);
}

static struct descriptor *find(struct descriptors *all, uint64_t object)
{
	struct descriptor *d;
	LOCKED(&all->lock);

	d = intmap_get(&all->map, object);
	if (!d)
		return NULL;
	d->users++;
	list_remove(all, d);
	list_add(all, d);
	return d;
}

static int open_object(struct store *store, uint64_t object, struct descriptor **out)
{
	char key[OBJECT_KEY_TEXT];
	struct stat st;
	int fd = store_descriptor(store, object_key(key, object));
	struct descriptor *d;

	if (fd < 0)
		return fd;
	d = fstat(fd, &st) ? NULL : calloc(1, sizeof(*d));
	if (!d) {
		close(fd);
		return -ENOMEM;
	}
	d->fd = fd;
	d->object = object;
	d->size = (uint64_t)st.st_size;
	d->users = 1;
	*out = d;
	return 0;
}

/* Two threads may open the same object at once; the second finds the first's. */
static struct descriptor *add(struct descriptors *all, struct descriptor *d)
{
	struct descriptor *there;
	LOCKED(&all->lock);

	there = intmap_get(&all->map, d->object);
	if (there) {
		there->users++;
		descriptor_close(d);
		return there;
	}
	if (intmap_set(&all->map, d->object, d)) {
		d->forgotten = true; /* no memory to keep it: serves this once */
		return d;
	}
	list_add(all, d);
	if (all->map.used > DESCRIPTORS_KEPT)
		drop(all, all->oldest);
	return d;
}

int descriptor_get(struct descriptors *all, struct store *store, uint64_t object, struct descriptor **out)
{
	struct descriptor *d = find(all, object);
	int r;

	if (!d) {
		r = open_object(store, object, &d);
		if (r)
			return r;
		d = add(all, d);
	}
	*out = d;
	return 0;
}

void descriptor_put(struct descriptors *all, struct descriptor *d)
{
	LOCKED(&all->lock);
	if (!--d->users && d->forgotten)
		descriptor_close(d);
}

void descriptor_forget(struct descriptors *all, uint64_t object)
{
	struct descriptor *d;
	LOCKED(&all->lock);

	d = intmap_get(&all->map, object);
	if (d)
		drop(all, d);
}
