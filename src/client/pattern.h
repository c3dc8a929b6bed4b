/* How a file is read, seen from the reads alone, and what should be fetched ahead of them.
 *
 * A file has up to PATTERN_CURSORS readers that go through it from some place on: several processes, or one with several
 * places of its own.  Each read belongs to the cursor it continues; one that continues none begins another, instead of
 * the one that has rested longest.  The kernel sends the requests of its own read-ahead slightly out of order, so a cursor takes
 * whatever lies within PATTERN_REORDER of where it is.
 *
 *   a cursor   asleep --(it has read PATTERN_TRUST without gaps; at the start of the file PATTERN_TRUST_START)--> ahead
 *              ahead: `window` bytes beyond what was read are fetched, each time less than half of them are left;
 *                     then the window doubles, from PATTERN_WINDOW to what is allowed
 *
 * PATTERN_TRUST is more than the kernel reads around a fault of a mapping.  So random reads, of records or
 * of mapped pages, fetch nothing ahead, and whoever stops somewhere has wasted at most about as much as was read.
 *
 * Reads of about the same length at a constant distance (strides) are a pattern too: after PATTERN_STRIDES of them the next
 * ones are fetched, one, then two, ... as many as the window allows.
 *
 * Pure: no time, no memory, no lock. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define PATTERN_CURSORS 8
#define PATTERN_RANGES 8
#define PATTERN_REORDER (4u << 20)
#define PATTERN_TRUST_START (128u << 10)
#define PATTERN_TRUST (4u << 20) /* more than that */
#define PATTERN_WINDOW (2u << 20)
#define PATTERN_STRIDES 3u
#define PATTERN_STRIDE_MAX (1u << 30)

struct pattern_range {
	uint64_t from, to;
};

struct pattern_cursor {
	uint64_t start, next; /* where it began, and the end of what it has read */
	uint64_t bytes;       /* it has read: as many as lie between the two, if there are no gaps */
	uint64_t asked_from;  /* what was fetched ahead, */
	uint64_t asked;       /* up to where; 0: nothing yet */
	uint64_t window;      /* 0: asleep */
	uint64_t last;        /* `turn` of its last read; 0: not in use */
};

struct pattern {
	struct pattern_cursor cursors[PATTERN_CURSORS];
	uint64_t turn;
	/* Strides: where the last cursor began, how much the one before it has read, the distance between the two, and how
	 * often it was that; how many are asked for ahead, and may be. */
	uint64_t stride_start, stride_length, stride_asked;
	int64_t stride;
	uint32_t strides, stride_depth;
};

struct pattern_limits {
	uint64_t end;  /* nothing beyond is wanted: the file's, or that of what is known of it */
	uint64_t most; /* bytes ahead of one cursor; 0: nothing is to be fetched */
	uint64_t room; /* for what is asked for now */
	uint64_t step; /* blocks of this size are not parted once the window is as large */
};

/* A read of [offset, offset + bytes).  How many ranges are to be fetched now, none of which was named before to the same cursor. */
int pattern_note(struct pattern *p, uint64_t offset, uint64_t bytes, const struct pattern_limits *l,
		 struct pattern_range out[PATTERN_RANGES]);
/* How much of it a cursor had asked for; before it is noted. */
uint64_t pattern_asked(const struct pattern *p, uint64_t offset, uint64_t bytes);
/* Cursors that are ahead and have not arrived at `end`: among how many memory for them must be shared. */
int pattern_streams(const struct pattern *p, uint64_t end);
