#include "../temporary.h"
#include "place.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"

static int64_t place_now(void *context) { return __atomic_load_n((int64_t *)context, __ATOMIC_RELAXED); }

int place_make(void **state)
{
	struct place *p = calloc(1, sizeof *p);
	log_set_level(LOG_LEVEL_OFF);
	temporary_template(p->folder, sizeof p->folder, "cache");
	assert_non_null(mkdtemp(p->folder));
	for (int i = 0; i < 3; i++) {
		snprintf(p->dirs[i], sizeof p->dirs[i], "%s/%d", p->folder, i);
		p->dir_names[i] = p->dirs[i];
	}
	p->now = 1000 * NS_PER_S;
	p->clock = (struct clock){ .wall_ns = place_now, .context = &p->now };
	p->options = (struct cache_options){
		.dirs = p->dir_names, .dir_count = 1, .size.bytes = 64 * MIB, .store = "sixteen bytes id", .clock = &p->clock
	};
	*state = p;
	return 0;
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw) { return remove(path); }

int place_remove(void **state)
{
	struct place *p = *state;
	if (p->cache)
		place_close(p);
	if (p->mounted)
		umount2(p->folder, MNT_DETACH);
	nftw(p->folder, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
	free(p);
	return 0;
}

void count_await(struct cache *c)
{
	struct cache_stats all;
	struct cache_dir_stats s;
	cache_stats(c, &all);
	for (int i = 0; i < all.dir_count; i++)
		for (cache_dir_stats(c, i, &s); s.counting; cache_dir_stats(c, i, &s))
			cache_tend(c, 0);
}

void place_open(struct place *p)
{
	int bad;
	assert_int_equal(cache_open(&p->options, &p->cache, &bad), 0);
	count_await(p->cache);
}

void place_close(struct place *p)
{
	cache_close(p->cache);
	p->cache = NULL;
}

bool place_mount(struct place *p, unsigned mib)
{
	char data[32];
	snprintf(data, sizeof data, "size=%um", mib);
	p->mounted = mount("tmpfs", p->folder, "tmpfs", 0, data) == 0;
	if (!p->mounted)
		print_message("SKIPPED: cannot mount a tmpfs: %s\n", strerror(errno));
	return p->mounted;
}

static _Thread_local uint64_t walked_bytes, walked_count;
static _Thread_local const char *walked_prefix;
static _Thread_local char walked_path[256];

static int entry_add(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	walked_bytes += (uint64_t)st->st_blocks * 512;
	if (walked_prefix && type == FTW_F && ftw->level == 2 &&
	    strncmp(path + ftw->base, walked_prefix, strlen(walked_prefix)) == 0) {
		walked_count++;
		snprintf(walked_path, sizeof walked_path, "%s", path);
	}
	return 0;
}

/* What vanishes meanwhile is left out. */
uint64_t place_bytes(const char *folder)
{
	walked_bytes = 0;
	walked_prefix = NULL;
	nftw(folder, entry_add, 16, FTW_PHYS);
	return walked_bytes;
}

uint64_t place_count(struct place *p, const char *prefix)
{
	walked_count = 0;
	walked_prefix = prefix;
	nftw(p->dirs[0], entry_add, 16, FTW_PHYS);
	return walked_count;
}

bool place_find(struct place *p, const char *prefix, char *out, size_t size)
{
	if (place_count(p, prefix) == 0)
		return false;
	snprintf(out, size, "%s", walked_path);
	return true;
}

static uint8_t content_byte(uint64_t number, uint64_t position)
{
	return (uint8_t)((position * 0x9e3779b97f4a7c15ULL + number * 0xc2b2ae3d27d4eb4fULL) >> 56);
}

void content_fill(uint64_t number, uint64_t offset, void *out, size_t length)
{
	for (size_t i = 0; i < length; i++)
		((uint8_t *)out)[i] = content_byte(number, offset + i);
}

bool content_is(uint64_t number, uint64_t offset, const void *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (((const uint8_t *)bytes)[i] != content_byte(number, offset + i))
			return false;
	return true;
}

int object_add(struct cache *c, uint64_t object, size_t size, unsigned flags)
{
	uint8_t *bytes = malloc(size + 1);
	content_fill(object, 0, bytes, size);
	struct iovec parts[2] = { { bytes, size / 3 }, { bytes + size / 3, size - size / 3 } };
	int status = cache_object_add(c, 1, object, parts, 2, flags);
	free(bytes);
	return status;
}

int object_read(struct cache *c, uint64_t object, size_t size)
{
	uint8_t *bytes = malloc(size + 1);
	struct iovec parts[2] = { { bytes, size / 2 }, { bytes + size / 2, size - size / 2 } };
	int status = cache_object_read(c, object, 0, parts, 2);
	bool right = status || content_is(object, 0, bytes, size);
	free(bytes);
	assert_true(right);
	return status;
}

int chunks_add(struct cache_file *f, uint64_t number, uint64_t offset, size_t length)
{
	uint8_t *bytes = malloc(length);
	content_fill(number, offset, bytes, length);
	int status = cache_file_add(f, offset, bytes, length);
	free(bytes);
	return status;
}

int chunks_read(struct cache_file *f, uint64_t number, uint64_t offset, size_t length)
{
	uint8_t *bytes = malloc(length);
	struct iovec parts[2] = { { bytes, length / 3 }, { bytes + length / 3, length - length / 3 } };
	int status = cache_file_read(f, offset, parts, 2);
	bool right = status || content_is(number, offset, bytes, length);
	free(bytes);
	assert_true(right);
	return status;
}

void file_damage(const char *path, uint64_t offset)
{
	uint8_t byte;
	struct stat st;
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
	byte ^= 0x40;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
	assert_int_equal(futimens(fd, (struct timespec[]){ st.st_atim, st.st_mtim }), 0);
	close(fd);
}
