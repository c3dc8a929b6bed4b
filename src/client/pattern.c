#include "client/pattern.h"
#include <stdlib.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t distance(uint64_t a, uint64_t b) { return a < b ? b - a : a - b; }

/* ---- Cursors ---- */

static bool has_gaps(const struct pattern_cursor *c) { return c->bytes < (c->next - c->start) / 2; }

/* How far from where it ends a read may be that is still its own.  While it is not trusted that is little: random reads, and
 * those that leave something out each time, are not to be taken for one that goes through. */
static uint64_t reach(const struct pattern_cursor *c)
{
	if (c->window)
		return PATTERN_REORDER;
	return c->bytes < PATTERN_TRUST_START ? 0 : least(PATTERN_REORDER, c->bytes / 2);
}

static struct pattern_cursor *cursor_find(struct pattern *p, uint64_t offset, uint64_t bytes)
{
	struct pattern_cursor *best = NULL;
	uint64_t nearest = UINT64_MAX;

	for (int i = 0; i < PATTERN_CURSORS; i++) {
		struct pattern_cursor *c = &p->cursors[i];
		/* Of one that ends here and one that begins behind it the first is continued, and takes in the other. */
		uint64_t away = least(2 * distance(c->next, offset), 2 * distance(c->start, offset + bytes) + 1);

		if (!c->last || away / 2 > reach(c) || away >= nearest)
			continue;
		nearest = away;
		best = c;
	}
	return best;
}

/* Others that began where it has arrived: requests that had overtaken it. */
static void cursor_absorb(struct pattern *p, struct pattern_cursor *c)
{
	for (int i = 0; i < PATTERN_CURSORS; i++) {
		struct pattern_cursor *other = &p->cursors[i];

		if (other == c || !other->last || other->window || other->start < c->start || other->start > c->next)
			continue;
		c->bytes += other->bytes;
		if (other->next > c->next)
			c->next = other->next;
		*other = (struct pattern_cursor){ 0 };
		i = -1; /* it may have arrived at another one */
	}
}

static struct pattern_cursor *cursor_begin(struct pattern *p, uint64_t offset)
{
	struct pattern_cursor *c = &p->cursors[0];

	for (int i = 1; i < PATTERN_CURSORS; i++)
		if (p->cursors[i].last < c->last)
			c = &p->cursors[i];
	*c = (struct pattern_cursor){ .start = offset, .next = offset };
	return c;
}

static bool is_trusted(const struct pattern_cursor *c)
{
	if (has_gaps(c))
		return false;
	return c->start == 0 ? c->bytes >= PATTERN_TRUST_START : c->bytes > PATTERN_TRUST;
}

/* What the cursor should have asked for by now, beyond what it has. */
static int cursor_ahead(struct pattern_cursor *c, const struct pattern_limits *l, struct pattern_range *out)
{
	uint64_t from = c->asked > c->next ? c->asked : c->next, until;

	if (!is_trusted(c)) {
		c->window = 0;
		return 0;
	}
	if (c->window == 0) {
		c->window = PATTERN_WINDOW;
	} else if (from - c->next >= least(c->window, l->most) / 2) {
		return 0;
	} else {
		c->window = least(c->window * 2, l->most > PATTERN_WINDOW ? l->most : PATTERN_WINDOW);
	}
	until = c->next + least(c->window, l->most);
	if (until >= l->end)
		until = l->end;
	else if (l->step && least(c->window, l->most) >= 2 * l->step)
		until -= until % l->step;
	if (until <= from || l->room == 0)
		return 0;
	until = from + least(until - from, l->room);
	if (c->asked < c->next)
		c->asked_from = from;
	c->asked = until;
	*out = (struct pattern_range){ from, until };
	return 1;
}

/* ---- Strides ---- */

/* A cursor begins at `offset`, and the one before it has read `length`.  Is it where those before it pointed to? */
static void stride_note(struct pattern *p, uint64_t offset, uint64_t length)
{
	int64_t stride = (int64_t)(offset - p->stride_start);

	if (stride == p->stride && length > 0 && (uint64_t)llabs(stride) >= length && llabs(stride) <= PATTERN_STRIDE_MAX) {
		p->strides++;
		p->stride_asked -= p->stride_asked > 0;
	} else {
		p->strides = 0;
		p->stride_asked = p->stride_depth = 0;
	}
	p->stride = stride;
	p->stride_start = offset;
	p->stride_length = length;
}

/* The next ones, as long as the last one was. */
static int stride_ahead(struct pattern *p, const struct pattern_limits *l, struct pattern_range *out)
{
	uint64_t depth;
	int count = 0;

	if (p->strides < PATTERN_STRIDES)
		return 0;
	p->stride_depth = p->stride_depth ? (uint32_t)least(p->stride_depth * 2, 1u << 16) : 1;
	depth = least(p->stride_depth, least(l->most, l->room) / p->stride_length);
	while (count < PATTERN_RANGES && p->stride_asked < depth) {
		int64_t at = (int64_t)p->stride_start + p->stride * (int64_t)(p->stride_asked + 1);

		if (at < 0 || (uint64_t)at >= l->end)
			break;
		out[count++] = (struct pattern_range){ (uint64_t)at, least((uint64_t)at + p->stride_length, l->end) };
		p->stride_asked++;
	}
	return count;
}

/* ---- All of it ---- */

static uint64_t stride_read(const struct pattern *p)
{
	for (int i = 0; i < PATTERN_CURSORS; i++)
		if (p->cursors[i].last && p->cursors[i].start == p->stride_start)
			return p->cursors[i].next - p->cursors[i].start;
	return 0;
}

int pattern_note(struct pattern *p, uint64_t offset, uint64_t bytes, const struct pattern_limits *l,
		 struct pattern_range out[PATTERN_RANGES])
{
	struct pattern_cursor *c;
	bool begins;

	if (bytes == 0)
		return 0;
	p->turn++;
	c = cursor_find(p, offset, bytes);
	begins = !c;
	if (begins) {
		stride_note(p, offset, stride_read(p));
		c = cursor_begin(p, offset);
	}
	c->last = p->turn;
	c->bytes += bytes;
	if (offset < c->start)
		c->start = offset;
	if (offset + bytes > c->next)
		c->next = offset + bytes;
	cursor_absorb(p, c);
	if (l->most == 0)
		return 0;
	return begins && p->strides ? stride_ahead(p, l, out) : cursor_ahead(c, l, out);
}

uint64_t pattern_asked(const struct pattern *p, uint64_t offset, uint64_t bytes)
{
	uint64_t most = 0;

	for (int i = 0; i < PATTERN_CURSORS; i++) {
		const struct pattern_cursor *c = &p->cursors[i];
		uint64_t from = offset > c->asked_from ? offset : c->asked_from, to = least(offset + bytes, c->asked);

		if (from < to && to - from > most)
			most = to - from;
	}
	return most;
}

int pattern_streams(const struct pattern *p, uint64_t end)
{
	int count = 0;

	for (int i = 0; i < PATTERN_CURSORS; i++)
		count += p->cursors[i].window && p->cursors[i].next < end;
	return count;
}
