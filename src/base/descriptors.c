#include "base/descriptors.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"

void descriptors_init(struct descriptors *all, size_t keep)
{
	*all = (struct descriptors){ .keep = keep };
	pthread_mutex_init(&all->lock, NULL);
}

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
	intmap_remove(&all->map, d->number);
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

struct descriptor *descriptor_find(struct descriptors *all, uint64_t number)
{
	struct descriptor *d;
	LOCKED(&all->lock);
	d = intmap_get(&all->map, number);
	if (!d)
		return NULL;
	d->users++;
	list_remove(all, d);
	list_add(all, d);
	return d;
}

static struct descriptor *descriptor_new(uint64_t number, int fd)
{
	struct stat st;
	struct descriptor *d = fstat(fd, &st) ? NULL : malloc(sizeof(*d));
	if (d)
		*d = (struct descriptor){
			.fd = fd, .number = number, .size = (uint64_t)st.st_size, .since_ns = clock_steady_ns(), .users = 1
		};
	else
		close(fd);
	return d;
}

struct descriptor *descriptor_add(struct descriptors *all, uint64_t number, int fd)
{
	struct descriptor *d = descriptor_new(number, fd), *there;
	if (!d)
		return NULL;
	LOCKED(&all->lock);
	there = intmap_get(&all->map, number);
	if (there) {
		there->users++;
		descriptor_close(d);
		return there;
	}
	if (intmap_set(&all->map, number, d)) {
		d->forgotten = true; /* no memory to keep it: serves this once */
		return d;
	}
	list_add(all, d);
	if (all->map.used > all->keep)
		drop(all, all->oldest);
	return d;
}

void descriptor_put(struct descriptors *all, struct descriptor *d)
{
	LOCKED(&all->lock);
	if (!--d->users && d->forgotten)
		descriptor_close(d);
}

void descriptor_forget(struct descriptors *all, uint64_t number)
{
	struct descriptor *d;
	LOCKED(&all->lock);
	d = intmap_get(&all->map, number);
	if (d)
		drop(all, d);
}

size_t descriptors_trim(struct descriptors *all, int64_t before_ns)
{
	struct descriptor *next;
	LOCKED(&all->lock);
	for (struct descriptor *d = all->newest; d; d = next) {
		next = d->older;
		if (d->since_ns < before_ns)
			drop(all, d);
	}
	return all->map.used;
}

void descriptors_allow_all(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}
