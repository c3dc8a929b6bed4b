/* What of a file is in memory: cachestat(2), from Linux 6.5 on. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RESIDENCE_CALL 451
#define RESIDENCE_TMPFS 0x01021994

struct residence {
	uint64_t cached, dirty, writeback, evicted, evicted_recently; /* pages */
};

/* False: this kernel does not say, or the file is on a tmpfs, all of which is in memory. */
static inline bool residence_of(int fd, struct residence *out)
{
	struct {
		uint64_t offset, length;
	} all = { 0, 0 };
	struct statfs s;

	return fstatfs(fd, &s) == 0 && s.f_type != RESIDENCE_TMPFS && syscall(RESIDENCE_CALL, fd, &all, out, 0) == 0;
}

/* How often somebody has made the kernel drop all clean pages (drop_caches): what was in memory before need not be any more.
 * The kernel counts it once it is done: pages may be missing for a while before the count says why. */
static inline uint64_t residence_drops(void)
{
	unsigned long long drops = 0;
	FILE *f = fopen("/proc/vmstat", "r");
	char line[128];

	while (f && fgets(line, sizeof(line), f) && sscanf(line, "drop_pagecache %llu", &drops) != 1)
		;
	if (f)
		fclose(f);
	return drops;
}
