#include "client/segments.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT_MIN 4096u

struct segment *segment_new(uint64_t offset, uint32_t capacity)
{
	struct segment *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->buffer = s->data = malloc(capacity);
	if (!s->data) {
		free(s);
		return NULL;
	}
	s->offset = offset;
	s->capacity = capacity;
	return s;
}

static void data_free(struct segment *s)
{
	if (s->pool)
		pool_give(s->pool, s->buffer);
	else
		free(s->buffer);
}

void segment_free(struct segment *segment)
{
	if (!segment)
		return;
	data_free(segment);
	spool_unref(segment->spool);
	free(segment);
}

void segments_free(struct segments *s)
{
	for (size_t i = 0; i < s->count; i++)
		segment_free(s->at[i]);
	free(s->at);
	*s = (struct segments){ .blocks = s->blocks };
}

size_t segments_find(const struct segments *s, uint64_t offset)
{
	size_t low = 0, high = s->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (segment_end(s->at[middle]) > offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

bool segments_overlap(const struct segments *s, uint64_t from, uint64_t to)
{
	size_t i = segments_find(s, from);
	return i < s->count && s->at[i]->offset < to;
}

uint64_t segments_end(const struct segments *s) { return s->count ? segment_end(s->at[s->count - 1]) : 0; }

/* Then one can be inserted without an error. */
static int room_make(struct segments *s)
{
	if (s->count == s->capacity) {
		size_t capacity = s->capacity ? s->capacity * 2 : 8;
		struct segment **at = realloc(s->at, capacity * sizeof(*at));
		if (!at)
			return -ENOMEM;
		s->at = at;
		s->capacity = capacity;
	}
	return 0;
}

static int insert_at(struct segments *s, size_t index, struct segment *segment)
{
	if (room_make(s) < 0)
		return -ENOMEM;
	memmove(&s->at[index + 1], &s->at[index], (s->count - index) * sizeof(*s->at));
	s->at[index] = segment;
	s->count++;
	s->bytes += segment->length;
	return 0;
}

/* So are all that are parts of the same record: what was written over between them may have cut it into many. */
static void record_was_verified(const struct segments *s, const struct segment *part)
{
	uint64_t from = part->offset - (part->place - part->record.place), to = from + part->record.length;
	for (size_t k = segments_find(s, from); k < s->count && s->at[k]->offset < to; k++)
		if (s->at[k]->spool == part->spool && s->at[k]->record.place == part->record.place)
			s->at[k]->verified = true;
}

int segment_read(const struct segments *s, struct segment *segment, uint64_t from, void *into, size_t length, bool doubted)
{
	int r = 0;
	if (!segment->spool) {
		memcpy(into, segment->data + (from - segment->offset), length);
		return 0;
	}
	if (!segment->verified || doubted)
		r = spool_verify(segment->spool, &segment->record);
	if (r < 0)
		return r;
	if (!segment->verified)
		record_was_verified(s, segment);
	return spool_read(segment->spool, segment->place + (from - segment->offset), into, length);
}

void segment_set_spooled(struct segment *segment, struct spool *spool, const struct spool_record *record, int64_t *cost)
{
	*cost -= segment->capacity;
	data_free(segment);
	segment->data = NULL;
	segment->buffer = NULL;
	segment->pool = NULL;
	segment->capacity = 0;
	spool_ref(spool);
	segment->spool = spool;
	segment->place = record->place;
	segment->record = *record;
	segment->verified = false;
}

static struct segment *spooled_new(uint64_t offset, uint32_t length, struct spool *spool, uint64_t place,
				   const struct spool_record *record)
{
	struct segment *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->offset = offset;
	s->length = length;
	spool_ref(spool);
	s->spool = spool;
	s->place = place;
	s->record = *record;
	return s;
}

/* A part of a segment, as one of its own. */
static struct segment *segment_part(const struct segment *of, uint64_t from, uint64_t to)
{
	uint32_t length = (uint32_t)(to - from);
	struct segment *s;
	if (of->spool) {
		s = spooled_new(from, length, of->spool, of->place + (from - of->offset), &of->record);
		if (s)
			s->verified = of->verified;
	} else {
		s = segment_new(from, length);
		if (s) {
			memcpy(s->data, of->data + (from - of->offset), length);
			s->length = length;
		}
	}
	if (s)
		s->first_write = of->first_write;
	return s;
}

/* Cuts the one that goes on behind `at` in two there. */
static int segments_split(struct segments *s, uint64_t at, int64_t *cost)
{
	size_t i = segments_find(s, at);
	struct segment *g = i < s->count ? s->at[i] : NULL, *rest;
	if (!g || g->offset >= at)
		return 0;
	rest = segment_part(g, at, segment_end(g));
	if (!rest || insert_at(s, i + 1, rest) < 0) {
		segment_free(rest);
		return -ENOMEM;
	}
	s->bytes -= rest->length;
	g->length -= rest->length;
	*cost += (int64_t)segment_cost(rest);
	return 0;
}

/* Makes [from, to) a gap, and room for what is to fill it.  0, or -ENOMEM with all bytes still there. */
static int segments_punch(struct segments *s, uint64_t from, uint64_t to, int64_t *cost)
{
	if (segments_split(s, to, cost) < 0 || room_make(s) < 0)
		return -ENOMEM;
	for (size_t i = segments_find(s, from); i < s->count && s->at[i]->offset < to;) {
		struct segment *g = s->at[i];
		if (g->offset < from) {
			s->bytes -= segment_end(g) - from;
			g->length = (uint32_t)(from - g->offset);
			i++;
			continue;
		}
		*cost -= (int64_t)segment_cost(g);
		segment_free(segments_take(s, i));
	}
	return 0;
}

int segments_put_spooled(struct segments *s, uint64_t offset, uint32_t length, struct spool *spool, uint64_t place,
			 const struct spool_record *record, uint64_t write_number, int64_t *cost)
{
	struct segment *fresh = spooled_new(offset, length, spool, place, record);
	if (!fresh || segments_punch(s, offset, offset + length, cost) < 0) {
		segment_free(fresh);
		return -ENOMEM;
	}
	fresh->first_write = write_number;
	*cost += (int64_t)segment_cost(fresh);
	return segments_add(s, fresh);
}

int segments_add(struct segments *s, struct segment *segment) { return insert_at(s, segments_find(s, segment->offset), segment); }

struct segment *segments_take(struct segments *s, size_t index)
{
	struct segment *segment = s->at[index];
	s->count--;
	s->bytes -= segment->length;
	memmove(&s->at[index], &s->at[index + 1], (s->count - index) * sizeof(*s->at));
	return segment;
}

void segments_drop(struct segments *s, struct segment *segment)
{
	size_t i = segments_find(s, segment->offset);
	if (i < s->count && s->at[i] == segment)
		segments_take(s, i);
}

void segments_cut(struct segments *s, uint64_t from, int64_t *cost)
{
	while (s->count) {
		struct segment *last = s->at[s->count - 1];
		if (segment_end(last) <= from)
			return;
		s->bytes -= segment_end(last) - (last->offset > from ? last->offset : from);
		if (last->offset < from) {
			last->length = (uint32_t)(from - last->offset);
			return;
		}
		*cost -= (int64_t)segment_cost(last);
		segment_free(last);
		s->count--;
	}
}

/* Moves the bytes into a block's buffer from the pool. */
static int segment_to_block(struct segments *list, struct segment *s, int64_t *cost)
{
	uint8_t *data = pool_take(list->blocks);
	if (!data)
		return -ENOMEM;
	memcpy(data, s->data, s->length);
	data_free(s);
	s->buffer = s->data = data;
	s->pool = list->blocks;
	*cost += (int64_t)list->blocks->size - s->capacity;
	s->capacity = (uint32_t)list->blocks->size;
	return 0;
}

/* Doubles, so that a stream of small writes copies its bytes at most twice; from
 * half a block on it takes a whole one. */
static int segment_grow(struct segments *list, struct segment *s, uint32_t need, uint32_t most, int64_t *cost)
{
	uint64_t capacity = s->capacity;
	uint8_t *data;
	if (need <= s->capacity)
		return 0;
	while (capacity < need)
		capacity *= 2;
	if (capacity > most)
		capacity = most;
	if (list->blocks && capacity > list->blocks->size / 2)
		return segment_to_block(list, s, cost);
	data = realloc(s->data, capacity);
	if (!data)
		return -ENOMEM;
	*cost += (int64_t)(capacity - s->capacity);
	s->buffer = s->data = data;
	s->capacity = (uint32_t)capacity;
	return 0;
}

/* A segment for n bytes at the offset.  One that begins a later block of a file
 * is probably part of a stream and gets a whole block at once. */
static struct segment *segment_begin(struct segments *s, uint32_t block_size, uint64_t offset, uint32_t n)
{
	uint32_t room = block_size - (uint32_t)(offset % block_size), capacity = n > SEGMENT_MIN ? n : SEGMENT_MIN;
	bool stream = s->blocks && offset > 0 && offset % block_size == 0 && n >= block_size / 64;
	struct segment *fresh = stream ? calloc(1, sizeof(*fresh)) : segment_new(offset, capacity < room ? capacity : room);
	if (!stream || !fresh)
		return fresh;
	fresh->offset = offset;
	fresh->capacity = block_size;
	fresh->pool = s->blocks;
	fresh->buffer = fresh->data = pool_take(s->blocks);
	if (fresh->data)
		return fresh;
	free(fresh);
	return NULL;
}

/* One that was adopted stays as it is. */
static bool is_growable(const struct segments *list, const struct segment *s)
{
	return !s->spool && (!s->pool || s->pool == list->blocks);
}

/* Up to where nothing from the index on is in memory. */
static uint64_t gap_end(const struct segments *s, size_t i, uint64_t end)
{
	while (i < s->count && s->at[i]->spool && s->at[i]->offset < end)
		i++;
	return i < s->count && s->at[i]->offset < end ? s->at[i]->offset : end;
}

/* One step: as many bytes as can go into one segment.  The count, or -ENOMEM.  What is on the disk there goes last, when there is
 * memory for what comes instead. */
static int64_t write_step(struct segments *s, uint32_t block_size, uint64_t offset, const uint8_t *data, size_t size,
			  uint64_t write_number, int64_t *cost)
{
	uint64_t block_end = offset - offset % block_size + block_size;
	size_t i = segments_find(s, offset);
	struct segment *next = i < s->count ? s->at[i] : NULL;
	struct segment *before = i > 0 ? s->at[i - 1] : NULL;
	uint64_t end = offset + size < block_end ? offset + size : block_end;
	uint32_t n;
	if (next && !next->spool && next->offset <= offset) {
		n = (uint32_t)((end < segment_end(next) ? end : segment_end(next)) - offset);
		memcpy(next->data + (offset - next->offset), data, n);
		return n;
	}
	end = gap_end(s, i, end);
	n = (uint32_t)(end - offset);
	if (before && segment_end(before) == offset && offset % block_size != 0 && is_growable(s, before)) {
		int r = segment_grow(s, before, before->length + n, (uint32_t)(block_end - before->offset), cost);
		if (r == 0)
			r = segments_punch(s, offset, end, cost);
		if (r < 0)
			return r;
		memcpy(before->data + before->length, data, n);
		before->length += n;
		s->bytes += n;
		return n;
	}
	struct segment *fresh = segment_begin(s, block_size, offset, n);
	if (!fresh || segments_punch(s, offset, end, cost) < 0) {
		segment_free(fresh);
		return -ENOMEM;
	}
	memcpy(fresh->data, data, n);
	fresh->length = n;
	fresh->first_write = write_number;
	*cost += (int64_t)segment_cost(fresh);
	return segments_add(s, fresh) < 0 ? -ENOMEM : n;
}

int segments_write(struct segments *s, uint32_t block_size, uint64_t offset, const uint8_t *data, size_t size,
		   uint64_t write_number, int64_t *cost, size_t *written)
{
	*written = 0;
	while (*written < size) {
		int64_t n = write_step(s, block_size, offset + *written, data + *written, size - *written, write_number, cost);
		if (n < 0)
			return (int)n;
		*written += (size_t)n;
	}
	return 0;
}

int segments_adopt(struct segments *s, uint32_t block_size, uint64_t offset, uint8_t *data, size_t size, uint64_t write_number,
		   void *buffer, struct pool *pool, int64_t *cost)
{
	struct segment *fresh;
	if (size < pool->size - pool->size / 8 || offset % block_size + size > block_size ||
	    segments_overlap(s, offset, offset + size))
		return -EINVAL;
	fresh = malloc(sizeof(*fresh));
	if (!fresh)
		return -ENOMEM;
	*fresh = (struct segment){
		.offset = offset,
		.length = (uint32_t)size,
		.capacity = (uint32_t)pool->size,
		.first_write = write_number,
		.data = data,
		.buffer = buffer,
		.pool = pool,
	};
	if (segments_add(s, fresh) < 0) {
		free(fresh);
		return -ENOMEM;
	}
	*cost += (int64_t)segment_cost(fresh);
	return 0;
}

int segments_restore(struct segments *s, uint32_t block_size, struct segment *segment, int64_t *cost)
{
	uint64_t at = segment->offset, end = segment_end(segment);
	/* The usual case: nothing newer is there, so it goes back as it is. */
	if (!segments_overlap(s, at, end)) {
		int r = segments_add(s, segment);
		if (r == 0)
			*cost += (int64_t)segment_cost(segment);
		return r;
	}
	while (at < end) {
		size_t i = segments_find(s, at), written;
		struct segment *next = i < s->count ? s->at[i] : NULL;
		uint64_t until = next && next->offset < end ? next->offset : end;
		int r;
		if (next && next->offset <= at) {
			at = segment_end(next);
			continue;
		}
		if (segment->spool) {
			struct segment *part = segment_part(segment, at, until);
			r = part ? segments_add(s, part) : -ENOMEM;
			if (r == 0)
				*cost += (int64_t)segment_cost(part);
			else
				segment_free(part);
		} else {
			r = segments_write(s, block_size, at, segment->data + (at - segment->offset), until - at,
					   segment->first_write, cost, &written);
		}
		if (r < 0)
			return r;
		at = until;
	}
	segment_free(segment);
	return 0;
}
