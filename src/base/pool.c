#include "base/pool.h"
#include <stdlib.h>
#include <unistd.h>
#include "base/cleanup.h"

/* A spare buffer holds the link to the next one. */
struct pool_spare {
	struct pool_spare *next;
};

void pool_init(struct pool *p, size_t size, size_t keep)
{
	*p = (struct pool){ .size = size < sizeof(struct pool_spare) ? sizeof(struct pool_spare) : size, .keep = keep };
	pthread_mutex_init(&p->lock, NULL);
}

void pool_free(struct pool *p)
{
	while (p->spares) {
		struct pool_spare *spare = p->spares;
		p->spares = spare->next;
		free(spare);
	}
	pthread_mutex_destroy(&p->lock);
}

/* Large ones begin on a page, as devices want them. */
static void *buffer_new(size_t size)
{
	void *buffer = NULL;
	if (size < POOL_ALIGNED)
		return malloc(size);
	return posix_memalign(&buffer, (size_t)sysconf(_SC_PAGESIZE), size) ? NULL : buffer;
}

void *pool_take(struct pool *p)
{
	struct pool_spare *spare;
	pthread_mutex_lock(&p->lock);
	spare = p->spares;
	if (spare) {
		p->spares = spare->next;
		p->count--;
	}
	pthread_mutex_unlock(&p->lock);
	return spare ? spare : buffer_new(p->size);
}

void pool_give(struct pool *p, void *buffer)
{
	struct pool_spare *spare = buffer;
	if (!spare)
		return;
	pthread_mutex_lock(&p->lock);
	if (p->count < p->keep) {
		spare->next = p->spares;
		p->spares = spare;
		p->count++;
		spare = NULL;
	}
	pthread_mutex_unlock(&p->lock);
	free(spare);
}
