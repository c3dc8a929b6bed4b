#include "base/region.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/cleanup.h"

#define UNIT ((size_t)64 << 10) /* pieces are whole ones: few to look through, and little is lost */

struct region {
	int fd;
	uint8_t *base;
	size_t units;
	pthread_mutex_t lock; /* guards the one below */
	bool *taken;          /* for each unit */
};

static size_t units_of(size_t size) { return (size + UNIT - 1) / UNIT; }

/* Where memory is promised only if it is there, that of files is looked for when it is touched, and who finds none is killed.
 * Likewise who makes a file larger than he may. */
static bool is_safe(size_t size)
{
	CLEANUP_FD int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	struct rlimit most;
	char mode = '0';
	return fd >= 0 && read(fd, &mode, 1) == 1 && mode != '2' && getrlimit(RLIMIT_FSIZE, &most) == 0 && size <= most.rlim_cur;
}

static int memory_make(size_t size, int *fd, uint8_t **base)
{
	CLEANUP_FD int made = memfd_create("epochfs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *mapped;
	if (made < 0 || ftruncate(made, (off_t)size) < 0 ||
	    fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
	if (mapped == MAP_FAILED)
		return -errno;
	*base = mapped;
	*fd = made;
	made = -1;
	return 0;
}

int region_new(size_t size, struct region **out)
{
	struct region *r = calloc(1, sizeof(*r));
	int error = -ENOMEM;
	if (r) {
		r->units = units_of(size);
		r->taken = calloc(r->units, sizeof(*r->taken));
		error = !r->taken                   ? -ENOMEM
			: !is_safe(r->units * UNIT) ? -EOPNOTSUPP
						    : memory_make(r->units * UNIT, &r->fd, &r->base);
	}
	if (error) {
		free(r ? r->taken : NULL);
		free(r);
		return error;
	}
	pthread_mutex_init(&r->lock, NULL);
	*out = r;
	return 0;
}

void region_free(struct region *r)
{
	if (!r)
		return;
	munmap(r->base, r->units * UNIT);
	close(r->fd);
	pthread_mutex_destroy(&r->lock);
	free(r->taken);
	free(r);
}

/* The first of `count` free units in a row; r->units: there are none. */
static size_t units_find(const struct region *r, size_t count)
{
	size_t run = 0;
	for (size_t k = 0; k < r->units; k++) {
		run = r->taken[k] ? 0 : run + 1;
		if (run == count)
			return k + 1 - count;
	}
	return r->units;
}

void *region_take(struct region *r, size_t size)
{
	size_t count = units_of(size), first;
	LOCKED(&r->lock);
	first = count ? units_find(r, count) : r->units;
	if (first == r->units)
		return NULL;
	memset(r->taken + first, true, count * sizeof(*r->taken));
	return r->base + first * UNIT;
}

void region_give(struct region *r, void *piece, size_t size)
{
	size_t first = region_offset(r, piece) / UNIT, count = units_of(size);
	(void)madvise(piece, count * UNIT, MADV_REMOVE); /* where that fails the memory stays, for the next to take it */
	LOCKED(&r->lock);
	memset(r->taken + first, false, count * sizeof(*r->taken));
}

bool region_holds(const struct region *r, const void *bytes, size_t size)
{
	size_t at = r ? (size_t)((uintptr_t)bytes - (uintptr_t)r->base) : 0;
	return r && at <= r->units * UNIT && size <= r->units * UNIT - at;
}

uint64_t region_offset(const struct region *r, const void *bytes) { return (uint64_t)((const uint8_t *)bytes - r->base); }

int region_descriptor(const struct region *r) { return r->fd; }
