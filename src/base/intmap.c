/* Linear probing.  A removal moves later entries of the run back, so there are
 * no tombstones and a map that lives for months does not slow down. */
#include "base/intmap.h"
#include <errno.h>
#include <stdlib.h>

#define FIRST_CAPACITY 16u

struct intmap_slot {
	uint64_t key;
	void *value; /* NULL: empty */
};

/* The finaliser of MurmurHash3: consecutive numbers, our usual keys, spread well. */
static size_t key_home(const struct intmap *m, uint64_t key)
{
	key ^= key >> 33;
	key *= 0xff51afd7ed558ccdULL;
	key ^= key >> 33;
	key *= 0xc4ceb9fe1a85ec53ULL;
	key ^= key >> 33;
	return key & (m->capacity - 1);
}

/* The key's slot, or the empty one where it would go.  There always is an empty one. */
static struct intmap_slot *slot_find(const struct intmap *m, uint64_t key)
{
	size_t i = key_home(m, key);
	while (m->slots[i].value && m->slots[i].key != key)
		i = (i + 1) & (m->capacity - 1);
	return &m->slots[i];
}

static int intmap_resize(struct intmap *m, size_t capacity)
{
	struct intmap bigger = { .slots = calloc(capacity, sizeof *bigger.slots), .used = m->used, .capacity = capacity };
	if (!bigger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < m->capacity; i++)
		if (m->slots[i].value)
			*slot_find(&bigger, m->slots[i].key) = m->slots[i];
	free(m->slots);
	*m = bigger;
	return 0;
}

void intmap_free(struct intmap *m)
{
	free(m->slots);
	*m = (struct intmap){ 0 };
}

void *intmap_get(const struct intmap *m, uint64_t key) { return m->used ? slot_find(m, key)->value : NULL; }

int intmap_set(struct intmap *m, uint64_t key, void *value)
{
	if (!value)
		return -EINVAL;
	struct intmap_slot *slot = m->capacity ? slot_find(m, key) : NULL;
	if (!slot || (!slot->value && m->used + 1 > m->capacity - m->capacity / 8)) {
		int error = intmap_resize(m, m->capacity ? m->capacity * 2 : FIRST_CAPACITY);
		if (error)
			return error;
		slot = slot_find(m, key);
	}
	if (!slot->value)
		m->used++;
	*slot = (struct intmap_slot){ key, value };
	return 0;
}

void *intmap_remove(struct intmap *m, uint64_t key)
{
	struct intmap_slot *slot = m->used ? slot_find(m, key) : NULL;
	if (!slot || !slot->value)
		return NULL;
	void *value = slot->value;
	size_t mask = m->capacity - 1, hole = (size_t)(slot - m->slots);
	for (size_t i = (hole + 1) & mask; m->slots[i].value; i = (i + 1) & mask) {
		/* An entry may move back into the hole unless its home lies between them. */
		size_t home = key_home(m, m->slots[i].key);
		if (((i - home) & mask) >= ((i - hole) & mask)) {
			m->slots[hole] = m->slots[i];
			hole = i;
		}
	}
	m->slots[hole].value = NULL;
	m->used--;
	if (m->capacity > FIRST_CAPACITY && m->used < m->capacity / 8)
		(void)intmap_resize(m, m->capacity / 2); /* without memory it just stays big */
	return value;
}

bool intmap_next(const struct intmap *m, size_t *position, uint64_t *key, void **value)
{
	while (*position < m->capacity) {
		const struct intmap_slot *slot = &m->slots[(*position)++];
		if (slot->value) {
			if (key)
				*key = slot->key;
			if (value)
				*value = slot->value;
			return true;
		}
	}
	return false;
}
